"""Subscriptions, queue groups and clients, and their histories."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.logwriter import ClientsLog, SubsLog
from tests.cli.expected import renamed
from tests.conftest import cases_by_kind, load_expected, others_slow
from tests.tui.conftest import LARGE, SMALL, check_screen, check_sizes, notices, screen_text, until
from tui.screens.history import HistoryScreen, PendingScreen
from tui.screens.subrows import SubscriptionTree
from tui.screens.subscriptions import SubscriptionsScreen
from tui.store_session import StoreSession
from tui.views import View, ViewTarget
from tui.widgets.rowtable import RowTable

SIZES = pytest.mark.parametrize("size", others_slow([(LARGE,), (SMALL,)], [LARGE]), ids=["large", "small"])
CRC = Crc()


async def opened(pilot: Any, place: ViewTarget | None = None) -> SubscriptionsScreen:
    """Opens the view for a channel, or for the whole store."""
    pilot.app.push_screen(SubscriptionsScreen(pilot.app.session, place or ViewTarget()))
    await until(pilot, lambda: isinstance(pilot.app.screen, SubscriptionsScreen) and pilot.app.screen.gathered.known)
    await until(pilot, lambda: "Quit" in screen_text(pilot.app))
    screen: SubscriptionsScreen = pilot.app.screen
    await until(pilot, lambda: not screen.working)
    return screen


async def history(pilot: Any) -> HistoryScreen:
    """Opens the history of what is at the cursor."""
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, HistoryScreen) and pilot.app.screen.rows is not None)
    await until(pilot, lambda: "Quit" in screen_text(pilot.app))
    found: HistoryScreen = pilot.app.screen
    return found


@pytest.mark.parametrize(
    ("case", "channel"),
    others_slow(
        [
            ("durables", None),
            ("durables", "jobs.queue"),
            ("compaction", None),
            ("basic", None),
            ("clustered", None),
            ("dmg_subs_cut_payload", None),
            ("dmg_subs_payload_flip", "alpha"),
            ("dmg_subs_missing", None),
            ("dmg_version_0_subs", None),
            ("dmg_zero_tail_subs_clients", None),
            ("dmg_clients_missing", None),
        ],
        ("durables", "clustered", "dmg_subs_payload_flip", "dmg_zero_tail_subs_clients", "dmg_clients_missing"),
    ),
)
async def test_subscriptions(
    case: str, channel: str | None, golden: Path, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(golden / case)
    async with browse("datastore") as pilot:
        await opened(pilot, ViewTarget(channel=channel))
        where = f"-{channel}" if channel else ""
        await check_sizes(pilot, f"subscriptions-{case}{where}", layout=case == "durables")


async def test_queue_groups_and_clients(golden: Path, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / "durables")
    async with browse("datastore") as pilot:
        await opened(pilot)
        await pilot.press("tab", "j", "j")
        await check_sizes(pilot, "subscriptions-groups-durables", layout=True)
        await pilot.press("tab")
        await check_sizes(pilot, "clients-durables", layout=True)


@pytest.mark.parametrize(
    "case",
    others_slow(
        (
            "clients_many",
            "dmg_clients_payload_flip",
            "dmg_clients_missing",
            "dmg_unknown_type_clients",
            "dmg_zero_tail_subs_clients",
        ),
        ("dmg_clients_payload_flip",),
    ),
)
async def test_clients(case: str, golden: Path, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / case)
    async with browse("datastore") as pilot:
        await opened(pilot)
        await pilot.press("shift+tab")
        await check_sizes(pilot, f"clients-{case}")


@pytest.mark.parametrize("case", others_slow(["durables", "dmg_subs_payload_flip"], ["durables"]))
async def test_history(case: str, golden: Path, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / case)
    async with browse("datastore") as pilot:
        await opened(pilot)
        await pilot.press(*"jjj")
        await history(pilot)
        await pilot.press("j")
        await check_sizes(pilot, f"subscriptions-history-{case}", layout=case == "durables")


async def test_history_of_a_client(
    golden: Path, browse: Any, monkeypatch: pytest.MonkeyPatch, places: list[Any]
) -> None:
    monkeypatch.chdir(golden / "dmg_clients_payload_flip")
    async with browse("datastore") as pilot:
        screen = await opened(pilot)
        await pilot.press("shift+tab")
        screen.go_to("w-3")
        await pilot.pause()
        await history(pilot)
        await pilot.press("j")
        await pilot.pause()
        await check_screen(pilot, "clients-history-dmg_clients_payload_flip-80")
        await pilot.press("enter")
        assert places == [(View.SLICES, ViewTarget(file="clients.dat", offset=152))]
        await pilot.press("m")
        assert len(places) == 1
        assert pilot.app.commands[-1] == "stantools clients datastore --history"


async def test_a_record_opens_its_bytes_and_its_message(
    golden: Path, browse: Any, monkeypatch: pytest.MonkeyPatch, places: list[Any]
) -> None:
    monkeypatch.chdir(golden / "durables")
    async with browse("datastore") as pilot:
        screen = await opened(pilot, ViewTarget(channel="events"))
        assert screen.go_to("3") == ""
        await pilot.pause()
        await history(pilot)
        assert pilot.app.commands[-1] == "stantools subs datastore --channel events --id 3 --history"
        await pilot.press("j", "j", "enter", "m")
        assert places == [
            (View.SLICES, ViewTarget(channel="events", file="events/subs.dat", offset=717)),
            (View.MESSAGES, ViewTarget(channel="events", seq=2)),
        ]
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert screen.query_one(RowTable).cursor == screen.rows.find(("subscription", "events", "3"))


async def test_pending_messages(golden: Path, browse: Any, places: list[Any]) -> None:
    """The first one, and one by one."""
    async with browse(golden / "durables" / "datastore") as pilot:
        screen = await opened(pilot, ViewTarget(channel="jobs.queue"))
        screen.go_to("5")
        await pilot.press("m")
        assert places == [(View.MESSAGES, ViewTarget(channel="jobs.queue", seq=2))]
        await pilot.press("tab")
        screen.go_to("workers")
        await pilot.press("m")
        assert places[1:] == [(View.MESSAGES, ViewTarget(channel="jobs.queue", seq=3))]
        await pilot.press("tab", "m", "p")
        assert len(places) == 2
        places.clear()
        screen = await opened(pilot, ViewTarget(channel="events"))
        screen.go_to("2")
        await pilot.press("p")
        await until(pilot, lambda: isinstance(pilot.app.screen, PendingScreen))
        assert "18 messages sent and not acknowledged" in screen_text(pilot.app)
        await pilot.press("j", "enter")
        assert places == [(View.MESSAGES, ViewTarget(channel="events", seq=4))]
        pilot.app.go_to("11")
        assert pilot.app.screen.query_one(RowTable).cursor == 7


async def test_the_place_chooses_a_subscription(golden: Path, browse: Any) -> None:
    async with browse(golden / "durables" / "datastore") as pilot:
        screen = await opened(pilot, ViewTarget(channel="events", seq=4))
        row = screen.row
        assert row is not None
        assert row.key == ("subscription", "events", "4")
        assert screen.go_to("app-3") == ""
        assert screen.row is not row
        assert screen.go_to("999") == "there is no subscription 999 here"
        assert screen.go_to("jobs.queue") is None


async def test_filter_sort_and_all_channels(golden: Path, browse: Any) -> None:
    async with browse(golden / "durables" / "datastore") as pilot:
        screen = await opened(pilot, ViewTarget(channel="jobs.queue"))

        def ids() -> list[int]:
            return [row.one.state.id for row in screen.rows.shown]

        assert ids() == [8, 5, 2, 4, 1, 10, 11]
        await pilot.press("s")
        assert screen.rows.order == "state" and ids()[:2] == [8, 1]
        await pilot.press("s", "s", "s")
        assert screen.rows.order == "pending" and ids()[:3] == [5, 10, 11]
        await pilot.press("S")
        assert ids()[0] == 1
        await pilot.press("slash", *"workers")
        await until(pilot, lambda: sorted(ids()) == [2, 4])
        await pilot.press("enter", "c")
        assert screen.place.channel is None
        assert sorted(ids()) == [2, 4]
        await pilot.press("escape")
        await until(pilot, lambda: len(ids()) == 15)
        await pilot.press("c")
        assert screen.place.channel == "jobs.queue"
        await pilot.press("slash", *"nothing like it", "enter")
        await until(pilot, lambda: "match the filter" in screen_text(pilot.app))
        await pilot.press("escape", "escape")
        await until(pilot, lambda: pilot.app.screen is not screen)


async def test_resize_keeps_the_cursor(golden: Path, browse: Any) -> None:
    async with browse(golden / "durables" / "datastore") as pilot:
        screen = await opened(pilot)
        await pilot.press("j", "j")
        before = screen.row
        for size in (LARGE, (100, 30), (60, 12), SMALL):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert screen.row is before
        assert "wait" not in screen_text(pilot.app).splitlines()[2]


@pytest.mark.parametrize("case", cases_by_kind())
def test_the_rows_are_what_the_real_server_recovered(case: str, golden: Path, golden_copy: Any) -> None:
    expected = load_expected(case)
    state = expected["server_open"] if "channels" in expected["server_open"] else expected
    session = StoreSession(golden_copy(case) if expected["setup"] else golden / case / "datastore")
    session.start().wait()
    gathered = SubscriptionTree(session, None)
    while gathered.behind:
        gathered.update()
    assert gathered.known
    for name, channel in state.get("channels", {}).items():
        ours = {row.one.state.id: row.one for row in gathered.subscriptions if row.channel.name == name}
        theirs = {each["ID"]: renamed(each) for each in channel["subscriptions"]}
        if name in gathered.damaged or any(each.startswith("clients.dat") for each in session.overview.problems):
            # What is intact is shown, also if the server does not get so far.
            assert ours.keys() >= theirs.keys()
            continue
        # The server appends a record that deletes a ghost; before that start it is there.
        assert {number for number, one in ours.items() if one.status.value not in ("ghost", "orphan")} <= theirs.keys()
        assert theirs.keys() <= ours.keys()
        for number, each in theirs.items():
            said = ours[number].as_json()
            assert {field: said[field] for field in each} == each
        if "damage" in expected:
            continue
        for number, each in theirs.items():
            group = each["q_group"], each["is_durable"]
            members = [other for other in theirs.values() if (other["q_group"], other["is_durable"]) == group]
            sent = max(other["last_sent"] for other in (members if group[0] else [each]))
            assert ours[number].lag == max(channel["last_seq"] - max(sent, channel["first_seq"] - 1), 0)


async def test_before_anything_is_read(golden: Path, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreSession, "start", lambda _self: None)

    async with browse(golden / "durables" / "datastore", scan=False) as pilot:
        screen = SubscriptionsScreen(pilot.app.session, ViewTarget())
        pilot.app.push_screen(screen)
        await until(pilot, lambda: "0 of 2 channels read" in screen_text(pilot.app))
        assert "not read yet" in screen_text(pilot.app)
        session = pilot.app.session
        from tui.jobs import Job

        job: Job[None] = Job("look", session.look)
        job.start().wait()
        session.touch()
        await until(pilot, lambda: "[subscriptions 15]" in screen_text(pilot.app))
        assert "not known yet" in screen_text(pilot.app)


HOSTILE = b"\x1b[31m[bold]x[/bold]\xe2\x80\xae\xff\x07\r\n"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A store whose names hold markup, escapes, bytes that are not UTF-8, and a change of writing direction."""
    from stantools.store.sample import SampleOptions, write_sample

    store = tmp_path / "store"
    write_sample(store, SampleOptions(seed=7))
    for channel in [each for each in store.iterdir() if each.is_dir()]:
        (channel / "subs.dat").unlink(missing_ok=True)
        with SubsLog(channel, store, CRC) as log:
            for number, group, durable in ((1, b"", HOSTILE), (2, HOSTILE, b""), (3, b"", b"")):
                log.new(
                    pb.SubState(
                        id=number, client_id=HOSTILE, inbox=HOSTILE, ack_inbox=HOSTILE, max_in_flight=2,
                        q_group=group, durable_name=durable, is_durable=bool(durable),
                    )
                )  # fmt: skip
                log.sent([number, number], [1, 2])
    with ClientsLog(store, CRC) as clients:
        clients.add(pb.ClientInfo(id=HOSTILE, hb_inbox=HOSTILE, conn_id=HOSTILE, protocol=1))
    return store


@SIZES
async def test_hostile_names_are_shown_harmlessly(size: tuple[int, int], hostile: Path, browse: Any) -> None:
    async with browse(hostile, size=size) as pilot:
        await opened(pilot)
        for key in ("j", "tab", "j", "tab", "enter"):
            text = screen_text(pilot.app)
            assert "[bold]" in text
            assert all(character.isprintable() for line in text.splitlines() for character in line)
            await pilot.press(key)
            await pilot.pause()
        await until(pilot, lambda: isinstance(pilot.app.screen, HistoryScreen) and not pilot.app.screen.working)
        text = screen_text(pilot.app)
        assert "[bold]" in text
        assert all(character.isprintable() for line in text.splitlines() for character in line)


async def test_a_store_that_vanishes(golden_copy: Callable[[str], Path], browse: Any) -> None:
    store = golden_copy("durables")

    async with browse(store) as pilot:
        screen = await opened(pilot, ViewTarget(channel="events"))
        found = await history(pilot)
        shutil.rmtree(store)
        await pilot.press("G", "enter", "m")
        await until(pilot, lambda: "cannot be read" in notices(pilot.app))
        assert pilot.app.screen is found
        await pilot.press("escape", "j", "enter")
        await until(pilot, lambda: "no such file" in screen_text(pilot.app))
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)


async def test_a_file_that_changes_while_it_is_shown(golden_copy: Callable[[str], Path], browse: Any) -> None:
    store = golden_copy("durables")

    async with browse(store) as pilot:
        screen = await opened(pilot, ViewTarget(channel="events"))
        found = await history(pilot)
        path = store / "events" / "subs.dat"
        path.write_bytes(path.read_bytes()[:505])
        found.query_one(RowTable).reload()
        await until(pilot, lambda: "the file has changed since it was read" in screen_text(pilot.app))
        await pilot.press("escape", "R")
        await until(pilot, lambda: pilot.app.session.scanned and screen.gathered.known)
        await until(pilot, lambda: "the server stops reading at offset" in screen_text(pilot.app))
