"""The demonstration: what it prints."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NoReturn

import pytest

from stantools.demo import rescue, stage
from stantools.errors import StantoolsError


def test_steps_are_numbered_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> NoReturn:
        raise StantoolsError("there is no nats-server to start")

    monkeypatch.setattr(stage, "_numbers", itertools.count(8))
    monkeypatch.setattr(rescue, "find_server", missing)
    stage.title("Into JetStream")
    assert not rescue.RescueDemo(tmp_path).migrate()
    stage.title("Or on with the broker")
    shown = capsys.readouterr().out
    assert "=== 8. Into JetStream" in shown and "skipped: there is no nats-server to start" in shown
    assert "=== 9. Or on with the broker" in shown
