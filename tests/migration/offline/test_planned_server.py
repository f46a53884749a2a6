"""A plan for a server of our own looks into the directory that it will be started with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stantools.errors import ExitCode
from stantools.store.running_servers import RunningServer
from stantools.store.sample import SampleOptions, write_sample
from tests.migration.test_migrate import channels_of, run, store
from tests.trees import tree

__all__ = ["store"]

pytestmark = pytest.mark.usefixtures("only_our_servers")


@pytest.fixture
def filled(store: Path, tmp_path: Path) -> Path:
    """The directory of a stopped server with the streams of another store, and one of no channel."""
    other = tmp_path / "other"
    write_sample(other, SampleOptions(channels=2, messages=40, size=20, seed=9))
    run(tmp_path / "w0", "migrate", other, "--jetstream-store", tmp_path / "js", "--yes")
    run(tmp_path / "w1", "migrate", other, "--jetstream-store", tmp_path / "js", "--yes", "--stream-prefix", "old_",
        "--subject-prefix", "old.", "--channel", channels_of(other)[0])  # fmt: skip
    return tmp_path / "js"


def test_streams_that_exist_are_in_the_plan(store: Path, filled: Path, tmp_path: Path) -> None:
    before = tree(filled)
    words = ("migrate", store, "--server", "embedded", "--embedded-store", filled, "--dry-run")
    refused = run(tmp_path / "a", *words, expect=ExitCode.REFUSED)
    assert "2 streams of 3 exist already, and are compared; 1 other is new" in refused.stdout
    assert "it already exists, with 40 messages up to 40" in " ".join(refused.stdout.split())
    run(tmp_path / "b", *words, "--replace")
    planned = run(tmp_path / "c", "migrate", "plan", store, "--server", "embedded", "--embedded-store", filled)
    assert "2 streams of 3 exist already" in planned.stdout and "in the target" in planned.stdout
    assert tree(filled) == before


def test_subjects_that_another_stream_has_are_in_the_plan(store: Path, filled: Path, tmp_path: Path) -> None:
    words = ("migrate", store, "--server", "embedded", "--embedded-store", filled, "--dry-run")
    refused = run(tmp_path / "a", *words, "--stream-prefix", "new_", expect=ExitCode.REFUSED)
    assert "of the existing stream orders" in refused.stdout
    run(tmp_path / "b", *words, "--stream-prefix", "new_", "--subject-prefix", "new.")


def test_what_a_migration_has_made_is_no_obstacle(store: Path, tmp_path: Path) -> None:
    run(tmp_path / "w", "migrate", store, "--jetstream-store", tmp_path / "js", "--yes")
    words = ("migrate", store, "--server", "embedded", "--embedded-store", tmp_path / "js", "--dry-run")
    assert "3 streams of 3 exist already, and are compared" in run(tmp_path / "another", *words).stdout


def test_a_damaged_stream_is_called_so(store: Path, filled: Path, tmp_path: Path) -> None:
    block = next((filled / "jetstream/$G/streams" / "orders" / "msgs").glob("*.blk"))
    content = bytearray(block.read_bytes())
    content[len(content) // 2] ^= 1
    block.write_bytes(content)
    words = ("migrate", store, "--server", "embedded", "--embedded-store", filled, "--dry-run", "--replace")
    assert ", damaged" in run(tmp_path / "a", *words).stdout


def test_accounts_one_level_too_high_are_named(store: Path, filled: Path, tmp_path: Path) -> None:
    words = ("migrate", store, "--server", "embedded", "--dry-run", "--embedded-store", filled / "jetstream")
    said = run(tmp_path / "a", *words).stdout
    assert f"--embedded-store {filled}" in " ".join(said.split())


def test_no_second_server_is_started_in_a_directory(
    store: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RunningServer(os.getpid(), ["-js", "-sd", str(filled)])
    monkeypatch.setattr("stantools.migration.targets.in_use.running_servers", lambda: iter([server]))
    words = ("migrate", store, "--server", "embedded", "--embedded-store", filled)
    planned = run(tmp_path / "a", *words, "--replace", "--dry-run", expect=ExitCode.REFUSED)
    assert "is in use" in planned.stdout
    refused = run(tmp_path / "b", *words, "--replace", "--yes", expect=ExitCode.REFUSED)
    assert "is in use" in refused.stderr and "nats-server with store directory" in refused.stderr
