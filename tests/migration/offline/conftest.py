from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stantools.migration.targets import in_use


@pytest.fixture
def only_our_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that others run on this machine are none of the test's business."""
    real = in_use.running_servers

    def ours() -> Iterator[in_use.RunningServer]:
        return (each for each in real() if any(str(tmp_path) in argument for argument in each.arguments))

    monkeypatch.setattr(in_use, "running_servers", ours)
