"""What a migration says before its question: the content of the target, every obstacle; and while it follows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.cli.streamprogress import StreamsProgress
from stantools.errors import ExitCode, RefusedError
from stantools.migration.journal import FollowState, Journal, check_journal, digest_of_journal
from stantools.migration.workflow import default_plan_file
from stantools.store.sample import SampleOptions, write_sample
from tests import servers
from tests.migration.test_migrate import run


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip(f"nats-server {servers.NEWEST} is not here")
    with servers.NatsServer(tmp_path_factory.mktemp("server"), servers.NEWEST) as server:
        yield server.url


def sample(place: Path, channels: int = 3, **more: Any) -> Path:
    write_sample(place / "store", SampleOptions(channels=channels, messages=20, size=20, seed=4, **more))
    return place / "store"


def test_the_plan_shows_what_the_target_has(tmp_path: Path, url: str) -> None:
    sample(tmp_path, 20)
    words = ("store", "--server", url, "--subject-prefix", "there", "--stream-prefix", "there-")
    assert "in the target" not in run(tmp_path, "migrate", "plan", *words).stdout
    for file in tmp_path.glob("*.yaml"):
        file.unlink()
    run(tmp_path, "migrate", *words, "--channel", "orders", "--plan", "one.yaml", "--yes")
    again = run(tmp_path, "migrate", "plan", *words, "--plan", "all.yaml").stdout
    assert "in the target: 1 stream of 20 exists already, and is compared; 19 others are new" in again
    head, _, first, *_ = again.splitlines()
    assert "in the target" in head
    assert first.split()[0] == "there-orders"
    assert first.split()[-1] == "20"
    assert "… and 8 more streams: --all shows them" in again
    assert "more streams" not in run(tmp_path, "migrate", "plan", *words, "--plan", "all.yaml", "--all").stdout


def test_a_different_stream_of_that_name_is_in_the_plan(tmp_path: Path, url: str) -> None:
    """It is a warning: `apply` refuses it without --replace or --append-missing, before it asks."""
    words = ("--server", url, "--subject-prefix", "other", "--stream-prefix", "other-", "--channel", "orders")
    sample(tmp_path)
    run(tmp_path, "migrate", "store", *words, "--yes", "--plan", "a.yaml")
    (tmp_path / "second").mkdir()
    sample(tmp_path / "second", names=["orders"], gaps=True)
    planned = run(tmp_path, "migrate", "plan", "second/store", *words, "--plan", "b.yaml").stdout
    assert "warning: other-orders: it already exists, with 20 messages up to 20" in planned
    refused = run(tmp_path, "migrate", "apply", "b.yaml", expect=ExitCode.REFUSED)
    assert "[y/N]" not in refused.stderr


def test_following_has_a_plan_of_its_own(tmp_path: Path, url: str) -> None:
    sample(tmp_path)
    words = ("store", "--server", url, "--subject-prefix", "own", "--stream-prefix", "own-")
    run(tmp_path, "migrate", *words, "--yes")
    followed = run(tmp_path, "migrate", *words, "--follow", "--dry-run")
    assert "belongs to another migration" not in followed.stderr
    refused = run(
        tmp_path, "migrate", *words, "--cutover", "--plan", "x.yaml", "--yes", "--channel", "orders", "--dry-run"
    )
    assert refused.returncode == 0
    common = default_plan_file(tmp_path / "store")
    assert default_plan_file(tmp_path / "store", follows=True).name == common.name.replace("migration", "follow")


def test_another_journal_is_refused_before_the_question(tmp_path: Path, url: str) -> None:
    store = sample(tmp_path)
    words = ("store", "--server", url, "--subject-prefix", "late", "--stream-prefix", "late-", "--plan", "p.yaml")
    with Journal(tmp_path / "p.yaml", "another plan", url):
        pass
    for more in ((), ("--follow",)):
        refused = run(tmp_path, "migrate", *words, *more, expect=ExitCode.REFUSED)
        assert "belongs to another migration" in refused.stderr
        assert "[y/N]" not in refused.stderr
    assert "belongs to another migration" in run(tmp_path, "migrate", *words, "--dry-run", expect=4).stdout
    assert store.exists()


def test_a_journal_of_an_earlier_version_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file was the default of both kinds: a store that is followed with it stays there."""
    monkeypatch.chdir(tmp_path)
    common = default_plan_file(tmp_path / "store")
    running = pytest.raises(RefusedError, match="another migration with this plan is running")
    with Journal(common, f"follow {tmp_path}/store", "nats://h"), running:
        check_journal(common, f"follow {tmp_path}/store", "nats://h")
    assert digest_of_journal(common) == f"follow {tmp_path}/store"
    assert default_plan_file(tmp_path / "store", follows=True) == common
    before = common.with_name(common.name + ".journal").read_bytes()
    check_journal(common, f"follow {tmp_path}/store", "nats://h")
    with pytest.raises(RefusedError, match="the plan was changed"):
        check_journal(common, "another", "nats://h")
    assert common.with_name(common.name + ".journal").read_bytes() == before


@pytest.mark.parametrize(
    ("ending", "advice"), [(False, "--cutover"), (True, "stop producers, consumers, then the server")]
)
def test_following_says_once_that_it_is_in_step(ending: bool, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    with StreamsProgress("follow", 10, mode="none") as watch:
        for behind in (7, 0, 3, 0):
            watch.followed(FollowState(400, behind, None, 12, ending))
    said = capsys.readouterr().err
    assert said.count("in step: 0 behind") == 1
    assert "400 channels" in said
    assert advice in said


@pytest.mark.parametrize(
    ("seconds", "age"), [(0.3, "0.3 s"), (65, "1m5s"), (7265, "2h1m"), (95_942_430, "3y15d"), (4 * 86_400, "4d0h")]
)
def test_the_age_of_the_last_message_has_two_units(
    seconds: float, age: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stantools.cli.streamprogress.time.time", lambda: 1e9)
    with StreamsProgress("follow", 10, mode="none") as watch:
        watch.followed(FollowState(1, 0, 1e9 - seconds, 12, False))
    assert f"last message {age} ago" in capsys.readouterr().err


def test_the_state_of_following_is_in_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stantools.cli.streamprogress.time.time", lambda: 1000.0)
    with StreamsProgress("follow", 10, mode="json") as watch:
        watch.followed(FollowState(2, 5, 999.7, 1, False))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert lines[-1]["follow"] == {"behind": 5, "last_message_seconds": 0.3, "carried": 1}
