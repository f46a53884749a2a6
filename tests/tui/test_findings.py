"""Findings: grouped, explained, and opened where they are, for every kind of damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.findings import Finding, Severity
from tests.conftest import others_slow
from tests.tui.conftest import LARGE, SMALL, check_sizes, screen_text, until
from tui.screens.findingrows import FindingGroup, FindingRows, Grouping
from tui.screens.findings import FindingsScreen, place_of
from tui.store_session import StoreSession
from tui.views import View, ViewTarget
from tui.widgets.rowtable import RowTable

SIZES = pytest.mark.parametrize("size", others_slow([(LARGE,), (SMALL,)], [LARGE]), ids=["large", "small"])


async def opened(pilot: Any, place: ViewTarget | None = None) -> FindingsScreen:
    """Opens the view."""
    pilot.app.push_screen(FindingsScreen(pilot.app.session, place or ViewTarget()))
    await until(pilot, lambda: isinstance(pilot.app.screen, FindingsScreen) and not pilot.app.screen.rows.behind)
    await until(pilot, lambda: "Quit" in screen_text(pilot.app) and "finding" in screen_text(pilot.app))
    screen: FindingsScreen = pilot.app.screen
    return screen


@pytest.mark.parametrize(
    "case",
    others_slow(
        (
            "basic",
            "durables",
            "dmg_subs_payload_flip",
            "dmg_zero_tail_subs_clients",
            "dmg_clients_missing",
            "foreign_dirs",
        ),
        ("durables", "dmg_subs_payload_flip", "dmg_clients_missing"),
    ),
)
async def test_golden(case: str, golden: Path, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / case)
    async with browse("datastore") as pilot:
        await opened(pilot)
        await pilot.press("j")
        await check_sizes(pilot, f"findings-{case}", layout=case == "durables")


#: Store, code of a finding that it must have, and what opens there.
DAMAGES = [
    ("dmg_subs_cut_header", "log-torn", (View.SLICES, ViewTarget("alpha", file="alpha/subs.dat", offset=863))),
    ("dmg_subs_cut_payload", "log-torn", (View.SLICES, ViewTarget("alpha", file="alpha/subs.dat", offset=...))),
    ("dmg_subs_payload_flip", "log-damaged", (View.SLICES, ViewTarget("alpha", file="alpha/subs.dat", offset=399))),
    ("dmg_subs_missing", "subs-missing", None),
    ("dmg_garbage_subs", ..., (View.SLICES, ViewTarget("alpha", file="alpha/subs.dat", offset=...))),
    ("dmg_version_0_subs", "file-version", (View.SLICES, ViewTarget("alpha", file="alpha/subs.dat", offset=0))),
    (
        "dmg_unknown_type_subs",
        "log-unknown-type",
        (View.SLICES, ViewTarget("alpha", file="alpha/subs.dat", offset=399)),
    ),
    ("dmg_clients_cut_header", "log-torn", (View.SLICES, ViewTarget(file="clients.dat", offset=...))),
    ("dmg_clients_payload_flip", "log-damaged", (View.SLICES, ViewTarget(file="clients.dat", offset=78))),
    ("dmg_clients_missing", "clients-missing", None),
    ("dmg_clients_missing", "ghost-durable-queue", (View.SUBSCRIPTIONS, ViewTarget("beta.two", seq=1))),
    ("dmg_clients_missing", "orphan-subscription", (View.SUBSCRIPTIONS, ViewTarget("alpha", seq=2))),
    ("dmg_unknown_type_clients", "log-unknown-type", (View.SLICES, ViewTarget(file="clients.dat", offset=...))),
    ("dmg_version_255_clients", "file-version", (View.SLICES, ViewTarget(file="clients.dat", offset=0))),
    ("dmg_server_cut_header", "server-damaged", (View.SLICES, ViewTarget(file="server.dat", offset=0))),
    ("dmg_server_cut_payload", "server-damaged", (View.SLICES, ViewTarget(file="server.dat", offset=...))),
    ("dmg_server_payload_flip", "server-damaged", (View.SLICES, ViewTarget(file="server.dat", offset=...))),
    ("dmg_server_missing", "server-missing", None),
    ("dmg_zero_tail_subs_clients", "log-zeros", (View.SLICES, ViewTarget(file="clients.dat", offset=326))),
    ("dmg_zero_tail_server", ..., (View.SLICES, ViewTarget(file="server.dat", offset=...))),
    ("dmg_zero_tail_dat_noidx", ..., (View.SLICES, ViewTarget("alpha", file=..., offset=...))),
    ("dmg_middle_slice_missing", "slice-missing", (View.MESSAGES, ViewTarget("alpha", seq=16))),
    ("dmg_middle_slice_missing", "sequence-missing", (View.MESSAGES, ViewTarget("alpha", seq=16))),
    ("dmg_crc_flip_noidx", ..., (View.SLICES, ViewTarget("alpha", file=..., offset=...))),
    ("dmg_idx_bad_crc", ..., (View.SLICES, ViewTarget("alpha", file=..., offset=...))),
    ("dmg_length_flip_noidx", ..., (View.SLICES, ViewTarget("alpha", file=..., offset=...))),
    ("dup_slice_after", ..., ...),
    ("foreign_dirs", "inner-directory", None),
]


#: Stores of `DAMAGES`, and those with a finding for each view, and with one that no view shows.
STORES = tuple(dict.fromkeys(case for case, _, _ in DAMAGES))
EACH_VIEW = ("dmg_subs_cut_header", "dmg_clients_missing", "dmg_middle_slice_missing")


def check_place(finding: Finding, place: tuple[View, ViewTarget] | None, expected: Any) -> None:
    """Checks where a finding of `DAMAGES` is shown."""
    if expected is ...:
        return
    if expected is None:
        assert place is None, finding
        return
    assert place is not None and place[0] is expected[0], finding
    for name in ("channel", "seq", "file", "offset"):
        wanted = getattr(expected[1], name)
        assert getattr(place[1], name) == (getattr(finding, name) if wanted is ... else wanted), finding


@pytest.mark.parametrize("case", others_slow(STORES, EACH_VIEW))
async def test_enter_opens_the_place(
    case: str, golden: Path, browse: Any, places: list[tuple[View, ViewTarget]]
) -> None:
    async with browse(golden / case / "datastore") as pilot:
        screen = await opened(pilot)
        for _, code, expected in (each for each in DAMAGES if each[0] == case):
            if code is ...:
                assert screen.rows.findings
                screen.query_one(RowTable).cursor = 1
            else:
                assert screen.go_to(code) == ""
            await pilot.pause()
            finding = screen.finding
            assert finding is not None
            text = " ".join(line.strip() for line in screen_text(pilot.app).splitlines())
            entry = CATALOGUE[finding.code]
            assert f"Meaning: {entry.meaning}"[:40] in text
            await pilot.press("enter")
            await pilot.pause()
            assert pilot.app.commands[-1] == f"stantools explain {finding.code}"
            assert [place_of(pilot.app.session, finding)] == (places or [None])
            check_place(finding, places.pop() if places else None, expected)
            assert ("no place" in screen_text(pilot.app)) == (place_of(pilot.app.session, finding) is None)
            pilot.app.clear_notifications()
            await until(pilot, lambda: "no place" not in screen_text(pilot.app))


def test_every_finding_of_every_golden_store_is_shown_and_has_a_place_or_none(golden: Path) -> None:
    for case in sorted({*STORES, *(path.parent.name for path in golden.glob("dmg_*/expected.json"))}):
        session = StoreSession(golden / case / "datastore")
        session.start().wait()
        rows = FindingRows(session)
        while rows.take() or rows.behind:
            pass
        for _, code, expected in (each for each in DAMAGES if each[0] == case):
            first = rows.at(1) if code is ... else [each.code for each in rows.findings].index(code)
            assert isinstance(first, int)
            check_place(rows.findings[first], place_of(session, rows.findings[first]), expected)
        found = list(session.findings())
        assert sorted(map(str, rows.findings)) == sorted(map(str, found))
        for grouping in Grouping:
            rows.grouping = grouping
            rows.regroup()
            while rows.take() or rows.behind:
                pass
            shown = [rows.at(row) for row in range(len(rows))]
            assert sorted(each for each in shown if isinstance(each, int)) == list(range(len(found)))
            assert all(len(cells) in (1, len(rows.columns)) for cells in rows.rows(0, len(rows)))
        for finding in found:
            place = place_of(session, finding)
            assert place is None or place[1].file or place[1].seq is not None


async def test_grouping_folding_and_errors(golden: Path, browse: Any) -> None:
    async with browse(golden / "dmg_clients_missing" / "datastore") as pilot:
        screen = await opened(pilot)
        rows, table = screen.rows, screen.query_one(RowTable)
        assert [group.name for group in rows.groups] == ["", "beta.two", "alpha"]
        screen.go_to("ghost-durable-queue")
        finding = screen.finding
        for grouping in (Grouping.CODE, Grouping.SEVERITY, Grouping.CHANNEL):
            await pilot.press("b")
            assert rows.grouping is grouping
            assert screen.finding is finding
        await pilot.press("space")
        await pilot.pause()
        assert isinstance(rows.at(table.cursor), FindingGroup)
        assert "▸ ! beta.two: 1 warning" in screen_text(pilot.app)
        await pilot.press("enter", "z")
        assert len(rows) == 3
        await pilot.press("z", "n")
        assert len(rows) == 7
        assert rows.at(table.cursor) is rows.groups[2]
        await pilot.press("N", "N", "e")
        await until(pilot, lambda: "errors only" in screen_text(pilot.app))
        assert len(rows) == 0
        await pilot.press("space", "enter", "y", "e")
        assert len(rows) == 7
        await pilot.press("slash", *"w-3")
        await until(pilot, lambda: rows.shown == 2)
        await pilot.press("enter", "b")
        assert rows.shown == 2
        await pilot.press("escape")
        await until(pilot, lambda: rows.shown == 4)
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is not screen)


async def test_the_place_chooses_a_finding(golden: Path, browse: Any) -> None:
    async with browse(golden / "dmg_clients_missing" / "datastore") as pilot:
        for place, code, channel in (
            (ViewTarget(channel="alpha"), "orphan-subscription", "alpha"),
            (ViewTarget(code="ghost-durable-queue"), "ghost-durable-queue", "beta.two"),
            (ViewTarget(channel="alpha", seq=3), "orphan-subscription", "alpha"),
            (ViewTarget(file="clients.dat"), "clients-missing", None),
        ):
            screen = await opened(pilot, place)
            await until(pilot, lambda screen=screen: screen.finding is not None)
            assert screen.finding is not None
            assert (screen.finding.code, screen.channel) == (code, channel)
            assert place.seq is None or screen.finding.seq == place.seq
            pilot.app.close_views()
            await until(pilot, lambda: len(pilot.app.screen_stack) == 1)


async def at_orphan(pilot: Any) -> FindingsScreen:
    """Opens the view and puts the cursor on an orphaned subscription."""
    screen = await opened(pilot)
    screen.go_to("orphan-subscription")
    await pilot.pause()
    return screen


async def test_the_cursor_stays_on_its_finding(golden_copy: Callable[[str], Path], browse: Any) -> None:
    store = golden_copy("dmg_clients_missing")

    async with browse(store) as pilot:
        screen = await at_orphan(pilot)
        session = pilot.app.session
        table = screen.query_one(RowTable)
        finding, row = screen.finding, table.cursor
        # What is handled late does not bring back what the cursor has left.
        late = RowTable.Highlighted(table)
        table.cursor = 0
        assert late.row == 0
        table.cursor = row
        # Something worse comes for a channel that was there before.
        session.channels["aaa"] = facts = type(session.channels["alpha"])("aaa")
        screen.rows.waiting.append(facts)
        facts.findings = [Finding("log-torn", Severity.ERROR, "aaa/subs.dat", at, 1, "aaa") for at in range(5)]
        facts.verdict = session.channels["alpha"].verdict
        session.touch()
        await until(pilot, lambda: len(screen.rows.findings) == 9)
        assert screen.finding is finding
        assert table.cursor == row + 6


async def test_the_cursor_stays_when_the_store_is_read_again(golden_copy: Callable[[str], Path], browse: Any) -> None:
    store = golden_copy("dmg_clients_missing")

    async with browse(store) as pilot:
        screen = await at_orphan(pilot)
        session = pilot.app.session
        finding = screen.finding
        await pilot.press("R")
        await until(pilot, lambda: session.scanned and len(screen.rows.findings) == 4)
        await until(pilot, lambda: screen.finding == finding and screen.finding is not finding)


async def test_the_cursor_waits_for_its_finding(
    golden_copy: Callable[[str], Path], browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is read again, and what the cursor was on comes after something else."""
    store = golden_copy("dmg_clients_missing")

    async with browse(store) as pilot:
        screen = await at_orphan(pilot)
        session = pilot.app.session
        finding, row = screen.finding, screen.query_one(RowTable).cursor
        root, channels = session.root_findings, session.channels
        monkeypatch.setattr(session, "start", lambda: setattr(session, "root_findings", list(root)))
        await pilot.press("R")
        await until(pilot, lambda: len(screen.rows.findings) == 1)
        session.channels = channels
        screen.rows.waiting = list(channels.values())
        session.touch()
        await until(pilot, lambda: len(screen.rows.findings) == 4)
        assert screen.finding == finding
        assert screen.query_one(RowTable).cursor == row


async def test_copy_as_json_and_resize(golden: Path, browse: Any) -> None:
    async with browse(golden / "dmg_subs_payload_flip" / "datastore") as pilot:
        screen = await opened(pilot)
        await pilot.press("j", "y")
        copied = json.loads(pilot.app.clipboard)
        assert (copied["code"], copied["file"], copied["offset"]) == ("log-damaged", "alpha/subs.dat", 399)
        finding = screen.finding
        for size in (LARGE, (60, 14), SMALL):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert screen.finding is finding
            assert "log-damaged" in screen_text(pilot.app)


@SIZES
async def test_hostile_findings_are_shown_harmlessly(size: tuple[int, int], golden: Path, browse: Any) -> None:
    name = "\x1b[31m[bold]x[/bold]‮\udcff\a"

    async with browse(golden / "durables" / "datastore", size=size) as pilot:
        screen = await opened(pilot)
        session = pilot.app.session
        session.channels[name] = facts = type(session.channels["events"])(name)
        screen.rows.waiting.append(facts)
        facts.findings = [Finding("log-torn", Severity.ERROR, f"{name}/subs.dat", 1, 1, name, None, name + "\n", name)]
        facts.verdict = session.channels["events"].verdict
        session.touch()
        await until(pilot, lambda: len(screen.rows.findings) == 1)
        for key in ("j", "b", "b", "b"):
            await pilot.press(key)
            await pilot.pause()
            text = screen_text(pilot.app)
            assert "[bold]" in text
            assert all(character.isprintable() for line in text.splitlines() for character in line)


def _session(channels: dict[str, list[Finding]], root: list[Finding]) -> Any:
    facts = {name: SimpleNamespace(name=name, findings=found, verdict=object()) for name, found in channels.items()}
    return SimpleNamespace(opened=object(), root_findings=root, channels=facts)


_FINDINGS = st.lists(
    st.tuples(
        st.sampled_from(list(Severity)), st.sampled_from(["a", "b", "c"]), st.sampled_from(["log-torn", "log-zeros"])
    ),
    max_size=30,
)


@given(_FINDINGS, st.sampled_from(list(Grouping)), st.booleans(), st.sets(st.integers(0, 5)))
def test_rows_and_findings_find_each_other(
    made: list[tuple[Severity, str, str]], grouping: Grouping, errors_only: bool, folded: set[int]
) -> None:
    channels: dict[str, list[Finding]] = {}
    for at, (severity, channel, code) in enumerate(made):
        channels.setdefault(channel, []).append(Finding(code, severity, f"{channel}/subs.dat", at, 1, channel))
    rows = FindingRows(_session(channels, []))
    rows.grouping, rows.errors_only = grouping, errors_only
    while rows.take(0.001) or rows.behind:
        pass
    for place in folded:
        if place < len(rows.groups):
            rows.toggle(rows.groups[place])
    wanted = [each for each in made if not errors_only or each[0] is Severity.ERROR]
    assert rows.shown == len(wanted)
    assert len(rows.rows(0, len(rows) + 5)) == len(rows)
    seen = set()
    for row in range(len(rows)):
        what = rows.at(row)
        assert what is not None
        assert rows.row_of(what) == row
        group = rows.group_of(row)
        assert group is what or group is not None
        if isinstance(what, int):
            seen.add(what)
    for number, finding in enumerate(rows.findings):
        row = rows.row_of(number)
        if errors_only and finding.severity is not Severity.ERROR:
            assert row is None
        else:
            assert row is not None
            assert number in seen or isinstance(rows.at(row), FindingGroup)
    ranks = [
        [("error", "warning", "info").index(rows.findings[n].severity) for part in g.members for n in part]
        for g in rows.groups
    ]
    assert ranks == [sorted(each) for each in ranks]
    assert rows.at(-1) is None
    assert rows.at(len(rows)) is None


def test_ten_thousand_findings_come_little_by_little() -> None:
    found = [
        Finding("log-damaged", list(Severity)[at % 3], "a/subs.dat", at, 1, "a", None, f"number {at}")
        for at in range(10_000)
    ]
    rows = FindingRows(_session({"a": found, "b": found[:3]}, found[:2]))
    steps = 0
    while rows.take(0) or rows.behind:
        steps += 1
        if steps == 1:
            # A step takes a bounded number, however many there are.
            assert len(rows.findings) <= 1000
        if steps > 3:
            break
    while rows.behind:
        rows.take(1)
    assert len(rows) == 10_005 + 1
    assert rows.row_of(9_999) is not None
    assert len(rows.rows(5_000, 5_040)) == 40
    rows.filter = "Number 777"
    rows.regroup()
    while rows.take(1) or rows.behind:
        pass
    assert rows.shown == 11
