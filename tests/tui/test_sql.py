"""Dumps of SQL stores in the browser: the rows that are intact, and the findings about all."""

import shutil
from pathlib import Path
from typing import Any

from tests.tui.conftest import check_sizes, until
from tui.views import View, ViewTarget


async def test_dump(golden_sql: Path, tmp_path: Path, monkeypatch: Any, browse: Any) -> None:
    shutil.copy(golden_sql / "p_gap_at_limit" / "dump.sql", tmp_path / "dump.sql")
    monkeypatch.chdir(tmp_path)
    async with browse("dump.sql", of_any_kind=True) as pilot:
        session = pilot.app.session
        await check_sizes(pilot, "sql-overview", layout=True)
        name = next(iter(session.channels))
        pilot.app.open_view(View.MESSAGES, ViewTarget(channel=name))
        await pilot.pause()
        table = pilot.app.screen.table
        await until(pilot, lambda: table.window is not None and table.window.exact)
        shown = [row.sequence for row in table.window.rows(0, len(table.window)) if hasattr(row, "data")]
        intact = session.channels[name].verdict.intact
        assert shown == [number for first, last in intact for number in range(first, last + 1)]
        pilot.app.open_view(View.FINDINGS)
        await pilot.pause()
        assert {each.code for each in session.findings()} >= {"sequence-missing"}
        pilot.app.open_view(View.PLANS)
        await pilot.pause()
        assert session.source is not None
