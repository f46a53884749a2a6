"""A start that fails because the store is damaged ends with the command that says what is wrong."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.brokers import Broker


def failed_start(folder: Path, *words: object) -> list[str]:
    broker = Broker(folder, *words)
    with pytest.raises(RuntimeError):
        broker.start()
    return broker.said().splitlines()


@pytest.mark.parametrize("name", ["store", "a store; with 'quotes'", "-dash"])
def test_the_last_line_is_the_command(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "broker"
    store = folder / name
    with Broker(folder, "-st", "FILE", f"-dir={name}") as broker:
        broker.stop()
    (store / "server.dat").write_bytes(b"damaged" * 10)
    reason, command = failed_start(folder, "-st", "FILE", f"-dir={name}")[-2:]
    assert "[FTL] STREAM: Failed to start: " in reason
    words = shlex.split(command[command.index("stantools doctor") :])
    assert words == ["stantools", "doctor", str(store)]


def test_what_is_no_damage_has_no_such_line(tmp_path: Path) -> None:
    with Broker(tmp_path, "-st", "FILE", "-dir", "d", "-cid", "one") as broker:
        broker.stop()
    assert "does not match" in failed_start(tmp_path, "-st", "FILE", "-dir", "d", "-cid", "two")[-1]
    assert "must be specified" in failed_start(tmp_path, "-st", "FILE")[-1]
