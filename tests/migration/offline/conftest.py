from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stantools.migration.targets import in_use
from stantools.store.running_servers import RunningServer, running_servers


@pytest.fixture
def only_our_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that others run on this machine are none of the test's business."""

    def ours() -> Iterator[RunningServer]:
        return (each for each in running_servers() if any(str(tmp_path) in argument for argument in each.arguments))

    monkeypatch.setattr(in_use, "running_servers", ours)
