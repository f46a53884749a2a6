"""The state file of a replay."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from stantools.errors import RefusedError, StoreUnreadableError, StoreUnwritableError
from stantools.migration.replay.state import ReplayPosition, ReplayState, ReplayStateFile, default_path

IDENTITY = {"store": "/a", "to": ["nats://b:1"], "as": "core"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def test_what_is_saved_is_there_again(path: Path) -> None:
    with ReplayStateFile(path, IDENTITY, resume=False) as file:
        run = file.state.run
        file.state.channels = {b"a": ReplayPosition(3, -5), b"\xff b": ReplayPosition(2**64 - 1, 7)}
        file.state.streams = {"S": 9}
        file.state.selection = {"since": 5}
        file.save()
        file.state.streams = {"S": 10}
        file.save()
    with ReplayStateFile(path, IDENTITY, resume=True) as file:
        expected = ReplayState(
            IDENTITY,
            {"since": 5},
            run,
            {b"a": ReplayPosition(3, -5), b"\xff b": ReplayPosition(2**64 - 1, 7)},
            {"S": 10},
        )
        assert file.state == expected
        file.remove()
    assert list(path.parent.iterdir()) == []


def test_nothing_is_written_when_nothing_has_changed(path: Path) -> None:
    with ReplayStateFile(path, IDENTITY, resume=False) as file:
        file.save()
        before = path.stat()
        file.save()
        assert os.path.samestat(path.stat(), before)
        file.state.streams = {"S": 1}
        file.save()
        assert not os.path.samestat(path.stat(), before)


def test_a_run_that_was_killed_at_once_can_be_gone_on_with(path: Path) -> None:
    with ReplayStateFile(path, IDENTITY, resume=False):
        pass
    assert path.read_bytes() == b""
    with ReplayStateFile(path, IDENTITY, resume=True) as file:
        assert file.state.identity == IDENTITY
        assert file.state.channels == {}


def test_an_unfinished_replay_is_not_begun_anew(path: Path) -> None:
    with ReplayStateFile(path, IDENTITY, resume=False) as file:
        file.save()
    before = path.read_bytes()
    with pytest.raises(RefusedError, match="unfinished") as caught:
        ReplayStateFile(path, IDENTITY, resume=False)
    assert "--resume" in caught.value.remedy
    assert path.read_bytes() == before


def test_only_one_replay_uses_it(path: Path) -> None:
    with ReplayStateFile(path, IDENTITY, resume=False) as file:
        with pytest.raises(RefusedError, match="another replay is using it"):
            ReplayStateFile(path, IDENTITY, resume=True)
        file.save()  # the lock goes along with the new file
        with pytest.raises(RefusedError, match="another replay is using it"):
            ReplayStateFile(path, IDENTITY, resume=True)
    ReplayStateFile(path, IDENTITY, resume=True).__exit__(None, None, None)


def test_without_a_file_there_is_nothing_to_resume(path: Path) -> None:
    with pytest.raises(RefusedError, match="does not exist"):
        ReplayStateFile(path, IDENTITY, resume=True)


def test_another_replay_is_refused(path: Path) -> None:
    with ReplayStateFile(path, IDENTITY, resume=False) as file:
        file.save()
    with pytest.raises(RefusedError, match="its as is 'core', this one's is 'jetstream'"):
        ReplayStateFile(path, IDENTITY | {"as": "jetstream"}, resume=True)


VALID = json.loads(ReplayState(IDENTITY).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"\xff",
        b"[]",
        b"{}",
        b"1",
        *(
            json.dumps(VALID | change).encode()
            for change in (
                {"kind": "other"},
                {"schema": 2},
                {"channels": []},
                {"channels": {"a": 1}},
                {"channels": {"a": [1]}},
                {"channels": {"a": ["1", 2]}},
                {"streams": {"a": None}},
                {"streams": None},
                {"run": "a b"},
                {"run": 5},
                {"identity": 5},
                {"selection": 5},
            )
        ),
    ],
    ids=[*(f"text{number}" for number in range(5)), *(f"change{number}" for number in range(12))],
)
def test_what_is_no_state_file_is_refused_and_stays(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreUnreadableError, match="not a state file"):
        ReplayStateFile(path, IDENTITY, resume=True)
    assert path.read_bytes() == content


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StoreUnwritableError):
        ReplayStateFile(tmp_path / "missing" / "state.json", IDENTITY, resume=False)
    with pytest.raises((StoreUnwritableError, RefusedError)):
        ReplayStateFile(tmp_path, IDENTITY, resume=False)
    with pytest.raises(StoreUnreadableError):
        ReplayStateFile(tmp_path, IDENTITY, resume=True)


def test_a_state_that_cannot_be_saved_is_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReplayStateFile(path, IDENTITY, resume=False) as file:
        file.save()
        before = path.read_bytes()
        file.state.streams = {"S": 5}

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("stantools.migration.replay.state.write_all", full)
            with pytest.raises(StoreUnwritableError, match="No space left"):
                file.save()
        assert path.read_bytes() == before
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        file.save()
        assert json.loads(path.read_bytes())["streams"] == {"S": 5}
        assert stat.S_ISREG(path.stat().st_mode)


def test_the_same_command_has_the_same_file() -> None:
    assert default_path(IDENTITY) == default_path(dict(reversed(IDENTITY.items())))
    assert default_path(IDENTITY) != default_path(IDENTITY | {"as": "jetstream"})
