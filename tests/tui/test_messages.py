"""The messages of a channel: rows, notes in their places, detail, jumps, search, following, files that go away."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from stantools.browse.payload_views import PayloadForm
from stantools.browse.window import RowNote, WindowMessage
from stantools.errors import StoreUnwritableError
from stantools.format.crc import Crc
from stantools.store.limits import SliceLimits
from stantools.store.read_options import ReadOptions
from stantools.store.sample import SampleOptions, write_sample
from stantools.store.slicewriter import SliceWriter, WriteOptions
from tests.conftest import load_expected, others_slow
from tests.cutting import DATA, LEFT, write_store
from tests.tui.conftest import LARGE, SCREENS, SMALL, check_screen, check_sizes, notices, screen_text, until
from tui.screens import messages
from tui.views import View, ViewTarget
from tui.widgets.messagedetail import MessageDetail
from tui.widgets.rowtable import RowTable

CRC = Crc()
SIZES = pytest.mark.parametrize("size", others_slow([(SMALL,), (LARGE,)], [SMALL]), ids=["small", "large"])
Browse = Callable[..., contextlib.AbstractAsyncContextManager[Any]]


@contextlib.asynccontextmanager
async def opened(
    browser: contextlib.AbstractAsyncContextManager[Any], place: ViewTarget
) -> AsyncIterator[tuple[Any, Any]]:
    """Opens a browser at a place in the messages."""
    async with browser as pilot:
        await shown(pilot, place)
        yield pilot, pilot.app.screen


async def shown(pilot: Any, place: ViewTarget) -> None:
    """Opens the messages at a place, and waits until all rows are known."""
    pilot.app.open_view(View.MESSAGES, place, above=True)
    await until(pilot, lambda: pilot.app.screen.NAME == "messages" and pilot.app.screen.is_mounted)
    await settled(pilot)


async def settled(pilot: Any) -> None:
    """Waits until nothing is going on in the background."""
    screen = pilot.app.screen
    await until(pilot, lambda: not screen.working)
    await pilot.pause()


async def type_text(pilot: Any, text: str) -> None:
    """Types into the field that is open."""
    await pilot.pause()
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await pilot.pause()


async def jump(pilot: Any, text: str) -> None:
    """Goes to a place as the user does."""
    await pilot.press("colon")
    await type_text(pilot, text)
    await settled(pilot)


async def search(pilot: Any, text: str) -> None:
    """Searches as the user does."""
    await pilot.press("slash")
    await type_text(pilot, text)
    await settled(pilot)


def row_now(screen: Any) -> Any:
    """The row at the cursor."""
    return screen.table.row()


def line(screen: Any) -> str:
    """The line below the table."""
    return str(screen.query_one("#message-line").content)


def write_channel(root: Path, payloads: list[bytes], *, name: str = "one", replies: list[bytes] | None = None) -> Path:
    """Writes a store of one channel."""
    write_sample(root, SampleOptions(channels=0, messages=0, no_subscriptions=True))
    channel = root / name
    channel.mkdir()
    with SliceWriter(channel, name.encode(), CRC, WriteOptions(SliceLimits(4000), sync=False)) as writer:
        count = len(payloads)
        times = [1_780_000_000_000_000_000 + number * 1_000_000_000 for number in range(count)]
        writer.append(range(1, count + 1), times, replies, payloads)
    return root


DAMAGED = {
    "dmg_crc_flip_idx_intact": 19,
    "dmg_length_flip_noidx": 23,
    "dmg_zero_tail_dat_and_idx": 41,
    "dmg_zeroed_last_records": 39,
    "dmg_payload_flip_noidx": 25,
    "dmg_last_slice_cut_header": 38,
    "dmg_middle_slice_missing": 15,
    "dmg_dat_missing_idx_there": 1,
    "dmg_idx_missing_all": 0,
    "dmg_idx_bad_crc": 18,
    "dmg_idx_shorter_early": 11,
    "dmg_version_2_dat": 15,
    "dmg_garbage_dat": 40,
    "dup_slice_after": 40,
}


#: One of each kind of note.
KINDS = {
    "dmg_length_flip_noidx",
    "dmg_middle_slice_missing",
    "dmg_dat_missing_idx_there",
    "dmg_idx_missing_all",
    "dmg_idx_bad_crc",
    "dmg_version_2_dat",
    "dup_slice_after",
}


@pytest.mark.parametrize("case", others_slow(DAMAGED, KINDS))
async def test_damage(case: str, golden: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of damage is in its place and says what it is."""

    monkeypatch.chdir(golden / case)
    async with opened(browse("datastore"), ViewTarget(channel="alpha")) as (pilot, screen):
        table = screen.query_one(RowTable)
        while table.cursor < DAMAGED[case]:
            before = table.cursor
            await pilot.press("right_square_bracket")
            await pilot.pause()
            assert table.cursor > before
        assert table.cursor == DAMAGED[case] and isinstance(row_now(screen), RowNote)
        await pilot.press("space")
        await settled(pilot)
        await check_sizes(pilot, f"messages-{case}", layout=case == "dmg_length_flip_noidx")


@pytest.mark.parametrize(
    ("case", "channel", "seq"), others_slow([("basic", "foo", 6), ("gap_truncated_slice", "gapcut", 18)], ["basic"])
)
async def test_healthy(
    case: str,
    channel: str,
    seq: int,
    golden: Path,
    browse: Browse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(golden / case)
    async with opened(browse("datastore"), ViewTarget(channel=channel, seq=seq)) as (pilot, _screen):
        await pilot.press("space")
        await settled(pilot)
        await check_sizes(pilot, f"messages-{case}", layout=case == "basic")


@pytest.mark.parametrize("key", [True, False], ids=["key", "no-key"])
async def test_encrypted(key: bool, golden: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = load_expected("encrypted_aes")["options"]["encryption"]["key"].encode()

    monkeypatch.chdir(golden / "encrypted_aes")
    reading = ReadOptions(encryption_key=secret if key else None)
    async with opened(browse("datastore", read_options=reading), ViewTarget(channel="enc.foo", seq=5)) as (
        pilot,
        _screen,
    ):
        await pilot.press("space")
        await settled(pilot)
        await check_sizes(pilot, f"messages-encrypted-{'key' if key else 'no-key'}")


async def test_the_key_can_be_given_inside(golden: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = load_expected("encrypted_aes")["options"]["encryption"]["key"]

    decrypted = (SCREENS / "messages-encrypted-key-80.txt").read_text().splitlines()
    monkeypatch.chdir(golden / "encrypted_aes")
    async with opened(browse("datastore"), ViewTarget(channel="enc.foo", seq=5)) as (pilot, _screen):
        await settled(pilot)
        assert "no key was given (E)" in screen_text(pilot.app)
        await pilot.press("E")
        await pilot.pause()
        pilot.app.screen.query_one(Input).value = secret
        await until(pilot, lambda: "••••" in screen_text(pilot.app))
        assert secret not in screen_text(pilot.app)
        await pilot.press("enter")
        await until(pilot, lambda: " encrypted" not in screen_text(pilot.app))
        pilot.app.clear_notifications()
        await pilot.press("space")
        await settled(pilot)
        assert screen_text(pilot.app).splitlines()[2:-3] == decrypted[2:-3]
        await pilot.press("colon")
        await type_text(pilot, "findings")
        await pilot.press("enter", "at")
        await until(pilot, lambda: "verify datastore --encryption-key-env" in screen_text(pilot.app))
        assert secret not in screen_text(pilot.app)
        await pilot.press("escape", "escape", "E", "enter")
        await until(pilot, lambda: pilot.app.session.read_options.encryption_key is None)
        await pilot.press("2")
        await until(pilot, lambda: "no key was given" in screen_text(pilot.app))


HOSTILE = [
    b"\x1b[31mred\x1b]52;c;aGVsbG8=\x07 and \x1b[2J",
    b"[bold red]no markup[/] [@click=app.quit]here[/]",
    "user \u202egnp.exe\u202c \u200b\u2066x".encode(),
    "東京 🚀 wide".encode() + b" \xf0\x9f",
    b"\x00\x00NUL\x00",
    b"\xff\xfe\xc3\x28 not UTF-8",
    b"x" * (1 << 20),
    b"line one\r\nline two\n\ttabbed",
    b'{"key": "\x1b[31m", "\\u202e": [1, {"deep": {"deeper": {"deepest": [1, 2]}}}], "big": 1234567890123456789012345}',
    b"\x0a\x09\x08\x96\x01\x12\x04\x1b[0m\x15\x00\x00\x80\x3f\x1a\x03abc",
    b"\\back\\slash",
    b"",
]


async def test_hostile_payloads(tmp_path: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in a payload or a reply reaches the terminal as more than text."""
    replies = [
        b"\x1b[5mreply" if number == 0 else b"[red]r[/]" if number == 1 else b"" for number in range(len(HOSTILE))
    ]
    write_channel(tmp_path / "store", HOSTILE, name="host\u202eile[b]", replies=replies)

    monkeypatch.chdir(tmp_path)
    async with opened(browse("store"), ViewTarget(channel="host\u202eile[b]")) as (pilot, screen):
        await pilot.press("space")
        for number in range(len(HOSTILE)):
            assert screen.query_one(RowTable).cursor == number
            for _ in PayloadForm:
                text = screen_text(pilot.app)
                assert all(each.isprintable() for each in text.replace("\n", "")), ascii(text)
                await pilot.press("v")
                await settled(pilot)
            await pilot.press("down")
            await settled(pilot)
        await jump(pilot, "9")
        # The last form that was chosen stays: the payload as JSON is reached again.
        while screen.query_one(MessageDetail).form is not PayloadForm.JSON:
            await pilot.press("v")
        await pilot.pause()
        await check_sizes(pilot, "messages-hostile", layout=True)
        await pilot.press("plus", "plus")
        await pilot.pause()
        assert "deepest" in "".join(
            cell if isinstance(cell, str) else cell[0]
            for row in screen.query_one("#message-body").lines
            for cell in row
        )


async def test_a_large_payload_is_read_in_the_background(tmp_path: Path, browse: Browse) -> None:
    write_channel(tmp_path / "store", [b"small", bytes(range(256)) * (1 << 14)])

    async with opened(browse(tmp_path / "store"), ViewTarget(channel="one")) as (pilot, screen):
        await pilot.press("space", "down")
        await until(pilot, lambda: screen.query_one(MessageDetail).message is not None)
        await until(pilot, lambda: screen.query_one(MessageDetail).message.sequence == 2)
        assert len(screen.query_one(MessageDetail).message.data) == 1 << 22
        pane = screen.query_one("#message-body")
        pane.focus()
        await pilot.press("end")
        await pilot.pause()
        assert "003ffff0" in screen_text(pilot.app)


async def test_jumps(golden: Path, browse: Browse) -> None:
    async with opened(browse(golden / "gap_truncated_slice" / "datastore"), ViewTarget(channel="gapcut")) as (
        pilot,
        screen,
    ):

        async def go(text: str) -> Any:
            """Goes there without the dialog."""
            assert pilot.app.go_to(text) == ""
            await settled(pilot)
            return row_now(screen)

        await jump(pilot, "16")
        assert row_now(screen).sequence == 16
        for text, sequence in (("-1", 31 + 4), ("-2", 34), ("100%", 35), ("0%", 1), ("40%", 13), ("1", 1)):
            row = await go(text)
            assert isinstance(row, WindowMessage) and row.sequence == sequence, text
        assert isinstance(await go("18"), RowNote)
        await jump(pilot, "1000")
        assert "sequence 1000 does not exist" in line(screen)
        first = await go("1")
        from stantools.notation import format_time

        last = await go("35")
        assert (await go(format_time(first.timestamp + 1))).sequence == 2
        assert (await go(format_time(last.timestamp)[11:-1])).sequence == 35
        assert (await go("2001-01-01")).sequence == 1
        await jump(pilot, "2200-01-01")
        assert "all messages are older" in line(screen)
        commands = pilot.app.commands
        assert any("--seq" in each and " messages " in each for each in commands)


async def test_places_of_other_views(golden: Path, browse: Browse) -> None:
    async with browse(golden / "dmg_crc_flip_noidx" / "datastore") as pilot:
        for place, seq in (
            (ViewTarget(channel="alpha", seq=33), 33),
            (ViewTarget(channel="alpha", file="alpha/msgs.2.dat", offset=340), 22),
            (ViewTarget(channel="alpha", timestamp=1795220672828532485), 40),
            (ViewTarget(channel="alpha", file="alpha/msgs.9.dat", offset=4, seq=7), 7),
            (ViewTarget(channel="alpha", file="alpha/msgs.2.dat", offset=270), None),
        ):
            await shown(pilot, place)
            row = row_now(pilot.app.screen)
            assert (row.sequence if isinstance(row, WindowMessage) else None) == seq, place
            pilot.app.close_views()
            await until(pilot, lambda: len(pilot.app.screen_stack) == 1)


async def test_other_views_are_opened_here(golden: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(
        browse(golden / "dmg_payload_flip_idx_intact" / "datastore"), ViewTarget(channel="alpha", seq=24)
    ) as (pilot, _screen):
        asked: list[tuple[View, ViewTarget]] = []
        monkeypatch.setattr(pilot.app, "open_view", lambda view, place, above=False: asked.append((view, place)))
        await pilot.press("t", "x", "f")
        await jump(pilot, "30")
        await pilot.press("left_square_bracket", "enter")
        await pilot.pause()
        timeline, slices, findings, damage = asked
        assert timeline[0] is View.TIMELINE and timeline[1].seq == 24 and timeline[1].timestamp
        assert slices == (View.SLICES, ViewTarget(channel="alpha", file="alpha/msgs.2.dat", offset=416, seq=24))
        assert findings == (View.FINDINGS, ViewTarget(channel="alpha"))
        assert damage == (View.SLICES, ViewTarget(channel="alpha", file="alpha/msgs.2.dat", offset=455))


async def test_search(tmp_path: Path, browse: Browse) -> None:
    payloads = [b"nothing"] * 50
    payloads[3] = b"Order 17"
    payloads[20] = b"an order"
    payloads[44] = b"\xde\xad\xbe\xef"
    write_channel(tmp_path / "store", payloads)

    async with opened(browse(tmp_path / "store"), ViewTarget(channel="one")) as (pilot, screen):

        def at() -> int:
            return int(row_now(screen).sequence)

        await search(pilot, "order")
        assert at() == 4
        await pilot.press("n")
        await settled(pilot)
        assert at() == 21
        await pilot.press("n")
        await settled(pilot)
        assert at() == 4 and "from the start on" in line(screen)
        await pilot.press("N")
        await settled(pilot)
        assert at() == 21 and "from the end on" in line(screen)
        await search(pilot, "Order")
        assert at() == 4
        await search(pilot, "x:ad be")
        assert at() == 45
        await search(pilot, "r:[0-9]+$")
        assert at() == 4
        await search(pilot, "absent")
        assert at() == 4 and "not found: absent" in line(screen)
        await pilot.press("slash")
        await type_text(pilot, "r:(")
        assert "is not a regular expression" in screen_text(pilot.app)
        await pilot.press("escape")
        await pilot.pause()
        assert pilot.app.screen is screen
        greps = [each for each in pilot.app.commands if "--grep" in each]
        assert greps[0].endswith("one --grep order --ignore-case")
        assert greps[2].endswith(r"--grep '\xad\xbe' --regex")


async def test_a_search_is_cancelled(tmp_path: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from stantools.browse import search as searching

    write_channel(tmp_path / "store", [b"nothing"] * 50)
    gate = threading.Event()

    def slow(self: Any, first: int, last: int, progress: Any = None) -> None:
        while True:
            gate.wait(0.01)
            progress(0)

    monkeypatch.setattr(searching.Searcher, "forward", slow)

    async with opened(browse(tmp_path / "store"), ViewTarget(channel="one")) as (pilot, screen):
        await pilot.press("slash")
        await type_text(pilot, "nothing")
        await until(pilot, lambda: "searching" in line(screen))
        await pilot.press("down")
        assert row_now(screen).sequence == 2, "keys work while it runs"
        await pilot.press("escape")
        await until(pilot, lambda: "cancelled" in line(screen))
        assert pilot.app.screen is screen


async def test_copy_and_save(tmp_path: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    write_channel(tmp_path / "store", [b"a text", b"\x00\xff", b'{"a": 1}'])
    monkeypatch.chdir(tmp_path)

    async with opened(browse("store"), ViewTarget(channel="one")) as (pilot, screen):
        await pilot.press("y")
        assert pilot.app.clipboard == "a text"
        await pilot.press("down", "y")
        assert pilot.app.clipboard == "00ff"
        await pilot.press("w")
        await type_text(pilot, str(tmp_path / "payload"))
        assert (tmp_path / "payload").read_bytes() == b"\x00\xff"
        assert "saved 2 bytes" in line(screen)
        await pilot.press("down", "w")
        await type_text(pilot, str(tmp_path / "payload"))
        await until(pilot, lambda: "Replace" in screen_text(pilot.app))
        await pilot.press("n")
        await pilot.pause()
        assert (tmp_path / "payload").read_bytes() == b"\x00\xff"
        await pilot.press("w")
        await type_text(pilot, str(tmp_path / "payload"))
        await until(pilot, lambda: "Replace" in screen_text(pilot.app))
        await pilot.press("y")
        await until(pilot, lambda: (tmp_path / "payload").read_bytes() == b'{"a": 1}')
        await pilot.press("w")
        for name, words in (
            (str(tmp_path / "store" / "x"), "in the store"),
            (str(tmp_path / "none" / "x"), "no such directory"),
            (str(tmp_path), "is a directory"),
            ("nul\0", "not a name for a file"),
            ("", "name a file"),
        ):
            await type_text(pilot, name)
            assert words in screen_text(pilot.app), name
        await pilot.press("escape")
        assert not (tmp_path / "store" / "x").exists()
        # Without being asked for another name: letters, digits, dots and dashes only.
        await pilot.press("w")
        await pilot.pause()
        await pilot.press("enter")
        await until(pilot, (tmp_path / "one-3.json").exists)

        def full(path: Path, data: bytes, *, over: bool) -> None:
            raise StoreUnwritableError(f"{path}: cannot be written: No space left on device", "choose another place")

        monkeypatch.setattr(messages, "write_payload", full)
        await pilot.press("w")
        await type_text(pilot, str(tmp_path / "another"))
        await until(pilot, lambda: "No space left" in notices(pilot.app))


async def test_following_a_writer(tmp_path: Path, browse: Browse) -> None:
    root = write_channel(tmp_path / "store", [b"first"] * 5)
    writer = SliceWriter.resume(root / "one", b"one", CRC, WriteOptions(SliceLimits(8), sync=False))

    try:
        async with opened(browse(root), ViewTarget(channel="one")) as (pilot, screen):
            table = screen.query_one(RowTable)
            await pilot.press("F")
            await settled(pilot)
            assert "FOLLOWING" in line(screen) and table.cursor == 4
            writer.append(range(6, 21), range(15), None, [b"more"] * 15)
            writer.flush()
            await until(pilot, lambda: len(table.source) == 20)
            await settled(pilot)
            assert row_now(screen).sequence == 20
            await pilot.press("up")
            writer.append(range(21, 26), range(5), None, [b"again"] * 5)
            writer.flush()
            await until(pilot, lambda: len(table.source) == 25)
            await settled(pilot)
            assert row_now(screen).sequence == 19, "who has gone up stays there"
            await pilot.press("F")
            await pilot.pause()
            assert "FOLLOWING" not in line(screen)
            writer.append([26], [5], None, [b"unseen"])
            writer.flush()
            await until(pilot, lambda: "have changed" in line(screen))
            assert len(table.source) == 25
            assert any(each.endswith("--follow") for each in pilot.app.commands)
    finally:
        writer.abandon()


@pytest.mark.parametrize("follow", [False, True])
async def test_a_channel_that_vanishes(follow: bool, tmp_path: Path, browse: Browse) -> None:
    root = write_channel(tmp_path / "store", [b"there"] * 60)

    async with opened(browse(root), ViewTarget(channel="one")) as (pilot, screen):
        if follow:
            await pilot.press("F")
            await settled(pilot)
        shutil.rmtree(root / "one")
        await until(pilot, lambda: "directory is gone" in line(screen))
        for key in ("G", "g", "space", "v", "n", "right_square_bracket", "F", "y", "colon"):
            await pilot.press(key)
        await type_text(pilot, "30")
        await settled(pilot)
        assert screen_text(pilot.app)


async def test_a_store_that_shrinks(tmp_path: Path, browse: Browse) -> None:
    root = write_channel(tmp_path / "store", [b"there" * 20] * 1000)

    async with opened(browse(root), ViewTarget(channel="one")) as (pilot, screen):
        with (root / "one" / "msgs.1.dat").open("r+b") as file:
            file.truncate(5000)
        with (root / "one" / "msgs.1.idx").open("r+b") as file:
            file.truncate(4)
        await pilot.press("G", "space", "up", "g", "slash")
        await type_text(pilot, "there")
        await until(pilot, lambda: "have changed" in line(screen))
        await settled(pilot)
        await pilot.press("G")
        await pilot.pause()
        assert "damaged" in screen_text(pilot.app) or "has changed" in screen_text(pilot.app)
        await pilot.press("R")
        await until(pilot, lambda: pilot.app.session.job is not None and not pilot.app.session.job.running)
        await until(pilot, lambda: len(screen.query_one(RowTable).source) < 100)


@SIZES
async def test_a_channel_without_messages(
    size: tuple[int, int], tmp_path: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sample(tmp_path / "store", SampleOptions(names=["empty"], messages=0))
    monkeypatch.chdir(tmp_path)

    async with opened(browse("store", size=size), ViewTarget(channel="empty")) as (pilot, screen):
        for key in ("down", "G", "enter", "space", "space", "v", "y", "n", "escape", "right_square_bracket", "F", "F"):
            await pilot.press(key)
        await jump(pilot, "5")
        await pilot.press("y")
        assert "there is no message in this row" in line(screen)
        await check_screen(pilot, f"messages-empty-{size[0]}")


async def test_ten_thousand_rows(tmp_path: Path, browse: Browse) -> None:
    root = write_channel(tmp_path / "store", [b"message %d" % number for number in range(1, 10_001)])

    async with opened(browse(root), ViewTarget(channel="one")) as (pilot, screen):
        table = screen.query_one(RowTable)
        await pilot.press("G")
        await pilot.pause()
        assert table.cursor == 9_999
        assert "message 10000" in screen_text(pilot.app)
        await pilot.press("pageup")
        await pilot.pause()
        assert row_now(screen).sequence < 10_000
        while table.cursor > 9_900:
            await pilot.press("pageup")
        await pilot.press("g")
        await pilot.pause()
        assert "message 1 " in screen_text(pilot.app) or "message 1\n" in screen_text(pilot.app)


async def test_resize(golden: Path, browse: Browse) -> None:
    async with opened(browse(golden / "damage_base" / "datastore"), ViewTarget(channel="alpha", seq=20)) as (
        pilot,
        screen,
    ):
        detail = screen.query_one(MessageDetail)
        assert not detail.display
        await pilot.resize_terminal(*LARGE)
        await until(pilot, lambda: detail.display)
        assert detail.message.sequence == 20
        await pilot.resize_terminal(60, 15)
        await until(pilot, lambda: not detail.display)
        await pilot.press("space", "v", "v")
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        assert row_now(screen).sequence == 20
        assert screen_text(pilot.app)


async def test_rows_are_refined_in_the_background(tmp_path: Path, browse: Browse) -> None:
    """A large channel shows its first rows at once; the gaps come when they are known, the cursor stays."""
    root = tmp_path / "store"
    write_sample(root, SampleOptions(channels=0, messages=0, no_subscriptions=True))
    (root / "big").mkdir()
    with SliceWriter(root / "big", b"big", CRC, WriteOptions(sync=False)) as writer:
        writer.append(
            [*range(1, 5001), *range(6001, 26001)], range(25_000), None, [b"some payload of a message"] * 25_000
        )

    async with opened(browse(root, scan=False), ViewTarget(channel="big", seq=6001)) as (pilot, screen):
        assert len(screen.query_one(RowTable).source) == 25_001
        await jump(pilot, "6001")
        assert row_now(screen).sequence == 6001
        await pilot.press("left_square_bracket")
        await pilot.pause()
        assert "1,000 missing (5001–6000)" in screen_text(pilot.app)


async def test_a_file_that_is_cut_while_it_is_shown(tmp_path: Path, browse: Browse) -> None:
    """What was known of the rest is shown as damaged, and that the files have changed."""
    write_store(tmp_path / "store")

    async with opened(browse(tmp_path / "store", size=LARGE), ViewTarget(channel="foo")) as (pilot, _screen):
        os.truncate(tmp_path / "store" / DATA, LEFT)
        await pilot.press("end")
        await until(pilot, lambda: "(sequence 5000): the file e" in screen_text(pilot.app))
        await until(pilot, lambda: "the files have changed since they were opened" in screen_text(pilot.app))
        assert "msgs.1.dat:1109528" in screen_text(pilot.app)
