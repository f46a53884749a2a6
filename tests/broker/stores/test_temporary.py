"""Streams in the system's temporary directory, which every user may write to: what others put there is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.broker_options import BrokerOptions
from broker.config.reader import parse
from broker.stores.interface import StorageError
from broker.stores.streams.directory import StreamsDirectory


def problem(directory: Path, *, temporary: bool = True) -> str:
    with pytest.raises(StorageError) as caught:
        StreamsDirectory(directory, temporary=temporary)
    return caught.value.message


def test_a_directory_of_the_users_own_is_made_and_used_again(tmp_path: Path) -> None:
    for _ in range(2):
        StreamsDirectory(tmp_path / "nats", temporary=True).close()
    assert (tmp_path / "nats").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("part", ["nats", "nats/jetstream"])
def test_links_are_refused(tmp_path: Path, part: str) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / part).parent.mkdir(exist_ok=True, mode=0o700)
    (tmp_path / part).symlink_to(tmp_path / "theirs")
    assert f"{tmp_path / part} is no directory, but a link" in problem(tmp_path / "nats")
    assert not list((tmp_path / "theirs").iterdir())


def test_directories_of_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "nats"
    directory.mkdir()
    directory.chmod(0o777)
    assert "other users may write" in problem(directory)
    directory.chmod(0o700)
    monkeypatch.setattr("os.geteuid", lambda: directory.stat().st_uid + 1)
    assert "belongs to another user" in problem(directory)


@pytest.mark.parametrize("temporary", [True, False])
def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path, temporary: bool) -> None:
    (tmp_path / "nats").mkdir(mode=0o700)
    (tmp_path / "nats" / "streams.lock").symlink_to(tmp_path / "victim")
    assert "cannot be used" in problem(tmp_path / "nats", temporary=temporary)
    assert not (tmp_path / "victim").exists()


def test_a_start_without_a_directory_says_where_streams_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    found = parse(("-js",), {})
    assert isinstance(found, BrokerOptions) and found.streams is not None and found.streams.temporary
    assert any(f"temporary directory {tmp_path}/nats" in line for line in found.nats_warnings)
    configured = parse(("-js", "-sd", str(tmp_path)), {})
    assert isinstance(configured, BrokerOptions) and configured.nats_warnings == ()
