"""The overview: the verdict, the forecast, the advice, the channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stantools.sources.nodes import find_node
from stantools.store import mapping
from tests import cutting
from tests.conftest import others_slow
from tests.tui.conftest import LARGE, check_sizes, screen_text, until
from tui.cells import text_of
from tui.jobs import JobState
from tui.screens.overview import _verdict
from tui.screens.subscriptions import SubscriptionsScreen
from tui.session import SourceSession


@pytest.mark.parametrize(
    "case",
    others_slow(
        (
            "basic",
            "durables",
            "gap_truncated_slice",
            "dmg_crc_flip_noidx",
            "dmg_server_cut_payload",
            "dmg_subs_cut_payload",
            "many_channels",
        ),
        ("durables", "gap_truncated_slice", "dmg_crc_flip_noidx", "dmg_server_cut_payload", "dmg_subs_cut_payload"),
    ),
)
async def test_golden(case: str, golden: Path, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / case)
    async with browse("datastore") as pilot:
        await check_sizes(pilot, f"overview-{case}", layout=case in ("durables", "many_channels"))


def test_messages_are_not_counted_as_the_stores_before_all_indexes_are_read() -> None:
    def verdict(phase: str, done: int) -> str:
        session = SimpleNamespace(
            NOUN="channel",
            totals=SimpleNamespace(by_index=200 * done),
            channels=dict.fromkeys("abc"),
            job=SimpleNamespace(running=True, phase=phase, done=done, share=0.5),
            scanned=False,
            forecast_problem="",
            start_outlook=lambda: None,
            advice=lambda: None,
        )
        return "".join(map(text_of, next(iter(_verdict(cast("SourceSession", session))))))

    assert verdict("", 0) == "reading the indexes: 0 of 3 channels, 0 messages so far"
    assert verdict("reading indexes", 2) == "reading the indexes: 2 of 3 channels, 400 messages so far"
    assert verdict("checking every byte", 3).startswith("600 messages in 3 channels by the indexes; checking")


@pytest.mark.parametrize("case", others_slow(["killed_under_load", "snapshots"], ["killed_under_load"]))
async def test_a_clustered_node(
    case: str, golden_clusters: Path, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Term, members, indexes and snapshots of the node, and what its log holds that its store does not."""

    monkeypatch.chdir(golden_clusters / case / "nodes")
    files = find_node(Path("a"))
    assert files
    assert files.data
    async with browse(files.data, files=files) as pilot:
        node = pilot.app.session.node
        assert node is not None
        await check_sizes(pilot, f"overview-node-{case}", layout=True)
        assert "stantools info a" in pilot.app.commands
        await pilot.press("5")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, SubscriptionsScreen) and pilot.app.screen.gathered.known
        )
        subscriptions = sum(len(each.subscriptions) for each in node.state.channels.values())
        await until(pilot, lambda: f"[subscriptions {subscriptions}]" in screen_text(pilot.app))
        assert "not here" not in screen_text(pilot.app)


@pytest.mark.parametrize("file", others_slow([cutting.DATA, cutting.INDEX, cutting.SUBS], [cutting.DATA]))
async def test_a_file_that_is_cut_while_it_is_read(
    file: str, tmp_path: Path, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan ends and says why; the next one finds what is left."""

    cutting.write_store(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mapping, "open_mapped", mapping.open_mapped)  # so that it is put back
    cutting.cut_when_mapped(str(tmp_path / "store" / file))
    async with browse("store", size=LARGE, scan=False) as pilot:
        session = pilot.app.session
        await until(pilot, lambda: session.job is not None and not session.job.running)
        assert session.job.state is JobState.FAILED
        assert "was truncated while it was read" in session.job.problem.message
        await until(
            pilot, lambda: f"the scan ended: store/{file}: was truncated while it was read" in screen_text(pilot.app)
        )
        await pilot.press("R")
        await until(pilot, lambda: not session.job.running and session.job.state is JobState.DONE)
        assert any(each.file == file for each in session.findings())
