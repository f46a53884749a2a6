"""Slices and the bytes in them: what is shown of each kind of damage, and getting about."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.browse.slice_map import BytesState
from tests.conftest import others_slow
from tests.inspection.timedstores import NOW, SECOND, write_channel
from tests.tui.conftest import LARGE, SMALL, check_screen, check_sizes, notices, screen_text, until
from tui.screens.record import RecordScreen
from tui.screens.slices import SlicesScreen
from tui.views import View, ViewTarget
from tui.widgets.hexview import HexView
from tui.widgets.rowtable import RowTable
from tui.widgets.slicebar import BAR_SYMBOLS

Browse = Callable[..., None]

#: A golden store, its channel, and the keys that lead from the list to what is wrong in it.
DAMAGED = [
    ("damage_base", "alpha", ("enter", "j")),
    ("dmg_length_flip_noidx", "alpha", ("n", "enter", "n")),
    ("dmg_payload_flip_idx_intact", "alpha", ("n", "enter", "n")),
    ("dmg_zero_tail_dat_noidx", "alpha", ("n", "enter", "n")),
    ("dmg_last_slice_cut_header", "alpha", ("n", "enter", "n")),
    ("dmg_early_slice_cut_payload", "alpha", ("enter", "n")),
    ("dmg_middle_slice_missing", "alpha", ("n", "j", "enter", "G")),
    ("dmg_garbage_dat", "alpha", ("n", "enter", "n")),
    ("dmg_garbage_idx", "alpha", ("n", "n", "enter", "n")),
    ("dmg_garbage_subs", "alpha", ("n", "enter", "n")),
    ("dmg_garbage_server", "alpha", ("n", "enter", "n")),
    ("dmg_unknown_type_subs", "alpha", ("n", "enter", "n")),
    ("dmg_version_2_dat", "alpha", ("n", "enter", "n")),
    ("dmg_idx_shorter_early", "alpha", ("enter", "G")),
    ("dmg_dat_missing_idx_there", "alpha", ("enter", "j")),
    ("archived_bak", "arch", ("enter", "j")),
]
#: One of each kind of row and of state; `test_resize` and `test_without_colors` show damaged bytes in both sizes.
KINDS = {
    "archived_bak",
    "damage_base",
    "dmg_dat_missing_idx_there",
    "dmg_garbage_idx",
    "dmg_idx_shorter_early",
    "dmg_middle_slice_missing",
    "dmg_unknown_type_subs",
    "dmg_zero_tail_dat_noidx",
}


async def settled(pilot: Any) -> None:
    """Waits until nothing is read any more and the keys are at the bottom."""
    await pilot.pause()
    await until(pilot, lambda: pilot.app.screen.is_mounted and not getattr(pilot.app.screen, "working", False))
    await until(pilot, lambda: "Quit" in screen_text(pilot.app).splitlines()[-1])
    await pilot.pause()


async def press(pilot: Any, *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


async def opened(pilot: Any, channel: str | None, **place: Any) -> Any:
    """Opens the slices and waits for what they lead to."""
    pilot.app.open_view(View.SLICES, ViewTarget(channel=channel, **place))
    wanted = RecordScreen if "file" in place else SlicesScreen
    await until(pilot, lambda: isinstance(pilot.app.screen, wanted))
    await settled(pilot)
    return pilot.app.screen


def row_text(pilot: Any, name: str) -> str:
    """The line on the screen that begins with a symbol and a name."""
    return next(line for line in screen_text(pilot.app).splitlines() if line[3:].startswith(name))


def record(pilot: Any) -> tuple[int, str]:
    """Offset and type of the record at the cursor."""
    screen: RecordScreen = pilot.app.screen
    assert screen.row is not None
    return screen.row.offset, screen.row.type


@pytest.mark.parametrize(("case", "channel", "keys"), others_slow(DAMAGED, KINDS), ids=[each[0] for each in DAMAGED])
async def test_golden(
    case: str,
    channel: str,
    keys: tuple[str, ...],
    golden: Path,
    browse: Browse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(golden / case)
    async with browse("datastore") as pilot:
        await opened(pilot, channel)
        at = keys.index("enter")
        await press(pilot, *keys[:at])
        await check_sizes(pilot, f"slices-{case}", layout=case == "archived_bak")
        await press(pilot, *keys[at:])
        await check_sizes(pilot, f"records-{case}", layout=case == "archived_bak")


def test_every_state_has_a_symbol_of_its_own() -> None:
    assert set(BAR_SYMBOLS) == set(BytesState)
    assert len({symbol for symbol, _ in BAR_SYMBOLS.values()}) == len(BytesState)


async def test_without_colors(golden: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(golden / "dmg_length_flip_noidx")
    async with browse("datastore") as pilot:
        assert pilot.app.no_color
        await opened(pilot, "alpha")
        await press(pilot, "n")
        await check_screen(pilot, "slices-dmg_length_flip_noidx-80")
        await press(pilot, "enter", "n")
        await check_screen(pilot, "records-dmg_length_flip_noidx-80")


async def test_before_the_scan(golden: Path, browse: Browse) -> None:
    async with browse(golden / "damage_base" / "datastore") as pilot:
        session = pilot.app.session
        facts = session.channels["alpha"]
        kept, facts.survey, facts.verdict, session.scanned = (facts.survey, facts.verdict), None, None, False
        await opened(pilot, "alpha")
        assert "not scanned" in row_text(pilot, "msgs.2.dat") and "····" in row_text(pilot, "msgs.2.dat")
        assert "not scanned yet" in screen_text(pilot.app)
        await press(pilot, "enter")
        assert "15 records" in screen_text(pilot.app)
        await press(pilot, "escape")
        facts.survey, facts.verdict = kept
        session.scanned = True
        session.touch()
        await until(pilot, lambda: "agrees" in row_text(pilot, "msgs.1.dat"))


async def test_going_about_in_the_list(golden: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async with browse(golden / "dmg_crc_flip_noidx" / "datastore") as pilot:
        screen = await opened(pilot, "alpha")
        table = screen.query_one(RowTable)
        assert pilot.app.go_to("3") == "" and table.cursor == 2
        assert pilot.app.go_to("9") == "there is no slice 9"
        await press(pilot, "N")
        assert table.cursor == 1
        await press(pilot, "N")
        assert "no damage above this" in notices(pilot.app)
        monkeypatch.setattr(pilot.app, "open_view", lambda *args, **more: asked.append((args, more)))
        await press(pilot, "m", "f", "G", "s")
        assert asked == [
            ((View.MESSAGES, ViewTarget(channel="alpha", seq=16)), {"above": True}),
            ((View.FINDINGS, ViewTarget(channel="alpha")), {"above": True}),
        ]
        assert "slice" in screen.go_to_hint()
        assert pilot.app.commands[-1].startswith("stantools verify ")


async def test_opened_at_a_sequence(golden: Path, browse: Browse) -> None:
    async with browse(golden / "damage_base" / "datastore") as pilot:
        pilot.app.open_view(View.SLICES, ViewTarget(channel="alpha", seq=33))
        await until(pilot, lambda: isinstance(pilot.app.screen, RecordScreen))
        await settled(pilot)
        assert pilot.app.screen.row.sequence == 33
        await press(pilot, "escape")
        assert pilot.app.go_to("#17") == ""
        await settled(pilot)
        assert pilot.app.screen.row.sequence == 17
        await press(pilot, "escape")
        assert "no scanned slice" in pilot.app.go_to("#99")


async def test_opened_at_an_offset(golden: Path, browse: Browse) -> None:
    async with browse(golden / "damage_base" / "datastore") as pilot:
        for file, offset, expected in (
            ("alpha/msgs.2.dat", 265, (265, "message")),
            ("alpha/msgs.2.dat", 300, (265, "message")),
            ("alpha/msgs.2.dat", 0, (0, "version")),
            ("alpha/msgs.2.idx", 40, (36, "index")),
            ("alpha/subs.dat", 10, (4, "new")),
            ("clients.dat", 20, (4, "add")),
            ("server.dat", 100, (4, "server")),
        ):
            screen = await opened(pilot, "alpha", file=file, offset=offset)
            assert record(pilot) == expected
            part = screen.parts[screen.query_one(HexView).field]
            assert part.start <= offset < part.end
            assert pilot.app.commands[-1].endswith(file)
            await press(pilot, "escape")
            assert isinstance(pilot.app.screen, SlicesScreen)
            assert Path(file).name in screen_text(pilot.app)


async def test_opened_at_what_is_no_file(golden: Path, browse: Browse) -> None:
    async with browse(golden / "damage_base" / "datastore") as pilot:
        for file in ("alpha", "alpha/unknown", "nowhere/msgs.1.dat"):
            pilot.app.open_view(View.SLICES, ViewTarget(channel="alpha", file=file, offset=3))
            await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
            await settled(pilot)
            if "msgs" in file:
                assert "cannot be read" in screen_text(pilot.app)
                await press(pilot, "n", "N", "f", "m", "j", "enter")
            else:
                assert isinstance(pilot.app.screen, SlicesScreen)
            pilot.app.close_views()
            await until(pilot, lambda: len(pilot.app.screen_stack) == 1)


async def test_going_about_in_a_file(golden: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async with browse(golden / "damage_base" / "datastore") as pilot:
        screen = await opened(pilot, "alpha", file="alpha/msgs.2.dat")
        assert record(pilot) == (0, "version")
        await press(pilot, "j", "j")
        assert record(pilot) == (47, "message")
        go = pilot.app.go_to
        for text, offset in (("0x10b", 265), ("333", 333), ("340", 333), ("100%", 764), ("0%", 0), ("1_0", 4)):
            assert go(text) == ""
            await settled(pilot)
            assert record(pilot)[0] == offset, text
        assert go("5000") == "the file has 802 bytes"
        assert go("#29") == ""
        await settled(pilot)
        assert screen.row.sequence == 29
        assert go("#77") == ""
        await settled(pilot)
        assert "sequence 77 is not in this file" in notices(pilot.app)
        assert "0x4d2" in screen.go_to_hint()
        await press(pilot, "n")
        assert "no damage after this record" in notices(pilot.app)
        monkeypatch.setattr(pilot.app, "open_view", lambda *args, **more: asked.append((args, more)))
        await press(pilot, "m")
        assert asked == [((View.MESSAGES, ViewTarget(channel="alpha", seq=29)), {"above": True})]
        await press(pilot, "g", "m")
        assert "this record is not a message" in notices(pilot.app)


@pytest.mark.parametrize("size", others_slow([(SMALL,), (LARGE,)], [SMALL]), ids=["small", "large"])
async def test_bytes_and_fields(size: tuple[int, int], golden: Path, browse: Browse) -> None:
    async with browse(golden / "damage_base" / "datastore", size=size) as pilot:
        screen = await opened(pilot, "alpha", file="alpha/msgs.2.dat", offset=4)
        hexview, fields = screen.query_one(HexView), screen.query_one("#fields", RowTable)
        await press(pilot, "enter")
        assert hexview.has_focus
        await press(pilot, "l", "l", "l")
        assert screen.parts[hexview.field].name == "sequence" and fields.cursor == hexview.field
        assert "sequence (13): 16" in screen_text(pilot.app)
        await press(pilot, "h")
        assert screen.parts[hexview.field].name == "sequence: tag"
        await press(pilot, "j", "G", "g", "pagedown", "pageup", "k")
        await press(pilot, "f")
        assert fields.has_focus and "field 2, 5 bytes" in screen_text(pilot.app)
        await press(pilot, "j", "j", "j")
        assert screen.parts[hexview.field].name == "subject"
        await press(pilot, "f")
        assert hexview.has_focus
        await press(pilot, "escape")
        assert screen.query_one("#records").has_focus and isinstance(pilot.app.screen, RecordScreen)
        await press(pilot, "escape")
        assert isinstance(pilot.app.screen, SlicesScreen)


async def test_a_click_on_a_byte(golden: Path, browse: Browse) -> None:
    async with browse(golden / "damage_base" / "datastore") as pilot:
        screen = await opened(pilot, "alpha", file="alpha/msgs.2.dat", offset=4)
        # A mark, eight digits, a space; three columns for each byte.
        await pilot.click(HexView, offset=(1 + 11 + 3 * 4, 0))
        await settled(pilot)
        assert screen.parts[screen.query_one(HexView).field].name == "CRC"


async def test_many_records(tmp_path: Path, browse: Browse) -> None:
    """Long records are scrolled; a cursor goes to the end of many records at once."""
    payloads = [b"small"] * 5_000 + [bytes(range(256)) * 2000]
    store = write_channel(tmp_path, [NOW + n for n in range(len(payloads))], payloads=payloads)

    async with browse(store) as pilot:
        screen = await opened(pilot, "c", file="c/msgs.1.dat")
        await press(pilot, "G")
        assert screen.row.sequence == len(payloads)
        assert "512,0" in screen_text(pilot.app)
        await press(pilot, "enter", "G")
        assert "timestamp" in "".join(part.name for part in screen.parts)
        last = screen_text(pilot.app).splitlines()[-3]
        assert last[2:10] == f"{(screen.row.offset + screen.row.length - 1) // 16 * 16 % 16 + int(last[2:10], 16):08x}"
        await press(pilot, "escape", "k", "k")
        assert screen.row.sequence == len(payloads) - 2


async def test_resize(golden: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / "dmg_length_flip_noidx")
    async with browse("datastore") as pilot:
        await opened(pilot, "alpha")
        await pilot.resize_terminal(*LARGE)
        await press(pilot, "n")
        await check_screen(pilot, "slices-dmg_length_flip_noidx-140")
        await press(pilot, "g")
        await pilot.resize_terminal(20, 8)
        await pilot.pause()
        await pilot.resize_terminal(*SMALL)
        await press(pilot, "n")
        await check_screen(pilot, "slices-dmg_length_flip_noidx-80")
        await press(pilot, "enter", "n")
        await pilot.resize_terminal(*LARGE)
        await settled(pilot)
        await check_screen(pilot, "records-dmg_length_flip_noidx-140")
        await pilot.resize_terminal(20, 8)
        await pilot.pause()
        await pilot.resize_terminal(*SMALL)
        await settled(pilot)
        assert any("✗" in line and "374" in line for line in screen_text(pilot.app).splitlines()[4:12])


async def test_a_store_that_vanishes(golden_copy: Callable[[str], Path], browse: Browse) -> None:
    store = golden_copy("damage_base")

    async with browse(store) as pilot:
        await opened(pilot, "alpha", file="alpha/msgs.2.dat", offset=4)
        shutil.rmtree(store)
        # What is open stays readable.
        await press(pilot, "j", "G", "enter", "escape")
        assert record(pilot)[0] == 764
        await press(pilot, "escape")
        pilot.app.session.touch()
        await press(pilot, "g", "enter")
        assert "cannot be read" in screen_text(pilot.app)
        await press(pilot, "escape", "f")


async def test_a_file_that_is_cut_while_it_is_open(golden_copy: Callable[[str], Path], browse: Browse) -> None:
    store = golden_copy("damage_base")

    async with browse(store) as pilot:
        await opened(pilot, "alpha", file="alpha/msgs.2.dat")
        os.truncate(store / "alpha" / "msgs.2.dat", 100)
        await press(pilot, "G", "enter", "l", "l", "escape", "k", "g")
        assert "the file has 100 B now" in screen_text(pilot.app)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
async def test_no_permission(golden_copy: Callable[[str], Path], browse: Browse) -> None:
    store = golden_copy("damage_base")
    (store / "alpha" / "msgs.2.dat").chmod(0)

    async with browse(store) as pilot:
        await opened(pilot, "alpha")
        assert "####" in row_text(pilot, "msgs.2.dat")


async def test_a_file_that_is_a_directory(golden_copy: Callable[[str], Path], browse: Browse) -> None:
    """Something that cannot be read, also for root."""
    store = golden_copy("damage_base")
    (store / "alpha" / "msgs.2.dat").unlink()
    (store / "alpha" / "msgs.2.dat").mkdir()

    async with browse(store) as pilot:
        await opened(pilot, "alpha")
        for _ in range(2):
            await press(pilot, "j", "enter", "j", "escape")
            if not isinstance(pilot.app.screen, SlicesScreen):
                await press(pilot, "escape")


async def test_names_are_harmless(tmp_path: Path, browse: Browse) -> None:
    name = "evil\x1b[31m[bold]\u202e"
    store = write_channel(tmp_path, [NOW + n * SECOND for n in range(3)], channel=name)

    async with browse(store) as pilot:
        await opened(pilot, name)
        await press(pilot, "enter", "j", "enter", *"lllll", "f")
        text = screen_text(pilot.app)
        assert "\x1b" not in text and "\u202e" not in text and "[bold]" in text


async def test_without_check_of_crcs(golden: Path, browse: Browse) -> None:
    from stantools.store.read_options import ReadOptions

    async with browse(golden / "dmg_crc_flip_noidx" / "datastore", read_options=ReadOptions(check_crc=False)) as pilot:
        await opened(pilot, "alpha", file="alpha/msgs.2.dat", offset=300)
        assert "CRCs were not checked" in screen_text(pilot.app)
