"""The overview: the verdict, the forecast, the advice, the channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tui.conftest import LARGE, SMALL, check_screen


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    "case",
    [
        "basic",
        "durables",
        "gap_truncated_slice",
        "dmg_crc_flip_noidx",
        "dmg_server_cut_payload",
        "dmg_subs_cut_payload",
        "many_channels",
    ],
)
def test_golden(
    case: str, size: tuple[int, int], golden: Path, browse: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(pilot: Any) -> None:
        check_screen(pilot.app, f"overview-{case}-{size[0]}")

    monkeypatch.chdir(golden / case)
    browse("datastore", look, size=size)
