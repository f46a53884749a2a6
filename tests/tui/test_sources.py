"""Sessions of every kind of source: whatever a golden case holds, every view can show it, and nothing raises."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stantools.errors import StantoolsError
from tui.jobs import Job
from tui.opening import open_session
from tui.screens.findings import place_of
from tui.screens.overview import _identity, _top_findings, _verdict, channel_rows
from tui.screens.subdetail import detail
from tui.screens.subrows import SubRows, gather
from tui.session import ScanStage, SourceSession

#: of the JetStream directories, and of the dumps: one of each kind of difficulty
STREAMS = ("enc_no_key", "enc_blk_key_missing", "dmg_block_is_directory", "dmg_missing_msgs_dir", "cl_meta_lost_one")
DUMPS = ("p_server_info_gone", "m_sub_garbage", "p_duplicate_rows")


def places(root: Path, case: str) -> Path:
    store = root / case / "store"
    if not store.exists():
        return root / case / "dump.sql"
    return store / "jetstream" if (store / "jetstream").exists() else store


def look_at_all(session: SourceSession) -> None:
    session._scan(Job("scan", lambda _: None))
    assert session.scanned and session.stage is ScanStage.COMPLETE
    rows = channel_rows(session)
    rows.wide = True
    rows.fill(session.channels.values())
    assert len(rows.rows(0, len(rows))) == len(session.channels)
    for lines in (_verdict(session), _identity(session), _top_findings(session, 8, 100)):
        list(lines)
    assert session.advice() is not None
    for finding in session.findings():
        place_of(session, finding)
    for name, facts in session.channels.items():
        _look_at_channel(session, name)
        assert facts.summary is not None and facts.verdict is not None
    gathered = gather(session, None)
    while gathered.update():
        pass
    for kind in gathered.counts():
        listed = SubRows(kind)
        listed.wide = True
        listed.take(gathered)
        listed.rows(0, len(listed))
        for row in listed.shown[:20]:
            list(detail(row, None))


def _look_at_channel(session: SourceSession, name: str) -> None:
    channel = session.channel(name)
    rough = channel.open()
    exact = channel.refine(rough, live=False, progress=lambda _: None)
    for window in (rough, exact):
        window.rows(0, min(len(window), 500))
    channel.timeline(lambda _: None)
    files, _ = session.listed(name)
    for file in files:
        try:
            opened = session.records(file.path, name) if file.path else None
        except StantoolsError:
            continue  # its reason is shown
        if opened is not None:
            opened.reader.map = opened.mapped(lambda _: None)
            for row in opened.reader.rows(0, 50):
                opened.reader.parts(row)
            opened.reader.close()


@pytest.mark.parametrize("case", STREAMS)
def test_directories(case: str, golden_jetstream: Path) -> None:
    session = open_session(places(golden_jetstream, case))
    look_at_all(session)
    outlook = session.start_outlook()
    assert outlook is None or outlook[0].startswith("If these nodes") == case.startswith("cl_")


@pytest.mark.parametrize("case", DUMPS)
def test_dumps(case: str, golden_sql: Path) -> None:
    look_at_all(open_session(places(golden_sql, case)))


def _cases(root: Path) -> Iterator[Path]:
    for case in sorted(root.iterdir()):
        place = places(root, case.name)
        if place.exists():
            yield place


@pytest.mark.slow
def test_all(golden_jetstream: Path, golden_sql: Path) -> None:
    for place in (*_cases(golden_jetstream), *_cases(golden_sql)):
        try:
            session = open_session(place)
        except StantoolsError:
            continue  # refused by name
        look_at_all(session)
