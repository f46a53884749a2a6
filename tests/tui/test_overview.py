"""The overview: the verdict, the forecast, the advice, the channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.store import mapping
from tests import cutting
from tests.tui.conftest import LARGE, check_sizes, screen_text, until
from tui.jobs import State


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
def test_golden(case: str, golden: Path, browse: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(pilot: Any) -> None:
        await check_sizes(pilot, f"overview-{case}", layout=case in ("durables", "many_channels"))

    monkeypatch.chdir(golden / case)
    browse("datastore", look)


@pytest.mark.parametrize("file", [cutting.DATA, cutting.INDEX, cutting.SUBS])
def test_a_file_that_is_cut_while_it_is_read(
    file: str, tmp_path: Path, browse: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan ends and says why; the next one finds what is left."""

    async def look(pilot: Any) -> None:
        session = pilot.app.session
        await until(pilot, lambda: session.job is not None and not session.job.running)
        assert session.job.state is State.FAILED
        assert "was cut while it was read" in session.job.problem.message
        await until(pilot, lambda: f"the scan ended: store/{file}: was cut while it was read" in screen_text(pilot.app))
        await pilot.press("R")
        await until(pilot, lambda: not session.job.running and session.job.state is State.DONE)
        assert any(each.file == file for each in session.findings())

    cutting.write_store(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mapping, "_open", mapping._open)  # so that it is put back
    cutting.cut_when_mapped(str(tmp_path / "store" / file))
    browse("store", look, size=LARGE, scan=False)
