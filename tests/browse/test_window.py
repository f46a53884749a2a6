"""The window on a channel's rows: the same messages as everywhere else, in their places, whatever the store is like."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.browse.stretch_reader import WindowFiles
from stantools.browse.window import Row, RowNote, RowNoteKind, RowWindow, WindowMessage, open_window, refine
from stantools.browse.window_build import estimate
from stantools.browse.window_reader import SliceStretchReader
from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.inspection.stored_messages import MessageReader, Selection, StoredMessage
from stantools.inspection.survey import ChannelSurvey
from stantools.inspection.survey_jobs import survey_channels
from stantools.inspection.verify import verify
from stantools.store.directory import ChannelFiles, list_channel, open_datastore
from stantools.store.limits import SliceLimits
from stantools.store.read_options import open_store
from stantools.store.sample import SampleOptions, write_sample
from stantools.store.slicewriter import SliceWriter, WriteOptions
from tests.conftest import cases_by_kind, load_expected
from tests.mutations import apply_mutation, damages, fresh_copy

CRC = Crc()


def everything(window: RowWindow) -> list[Row]:
    """All rows, read one by one, which have to be those that are read together."""
    rows = [window.row(row) for row in range(len(window))]
    together = window.rows(0, len(window))
    assert [_short(row) for row in together] == [_short(row) for row in rows]
    for size in (1, 3, 7):
        parts = [part for at in range(0, len(window), size) for part in window.rows(at, at + size)]
        assert [_short(row) for row in parts] == [_short(row) for row in rows]
    return rows


def _short(row: Row) -> object:
    return (
        row if isinstance(row, RowNote) else (row.sequence, row.offset, row.timestamp, row.size, row.reply, row.flags)
    )


def messages(rows: list[Row]) -> list[WindowMessage]:
    return [row for row in rows if isinstance(row, WindowMessage)]


def notes(window: RowWindow) -> list[tuple[int, str]]:
    return [(at, row.sentence()) for at, row in enumerate(everything(window)) if isinstance(row, RowNote)]


def survey_of(root: Path, channel: str, crc: Crc) -> ChannelSurvey:
    (survey,) = survey_channels(open_datastore(root, crc), [channel])
    return survey


def check_lookups(window: RowWindow, rows: list[Row]) -> None:
    """Every message is found by what it is, every note by where it is."""
    for at, row in enumerate(rows):
        if isinstance(row, RowNote):
            if row.kind is RowNoteKind.DAMAGE and row.length:
                assert window.row_of_place(f"some/channel/{row.file}", (row.offset or 0) + row.length - 1) == at
            continue
        found = rows[window.row_of_sequence(row.sequence)]
        assert isinstance(found, WindowMessage) and found.sequence == row.sequence
        first = rows[window.row_of_time(row.timestamp)]
        assert isinstance(first, WindowMessage) and first.timestamp >= row.timestamp
        if not row.proven:
            assert window.row_of_place(row.file, row.offset) == at
            assert window.row_of_place(row.file, row.offset + row.record_size + 7) == at


def check_notes(window: RowWindow, rows: list[Row]) -> None:
    """All notes are met on the way down, and on the way up."""
    told = [at for at, row in enumerate(rows) if isinstance(row, RowNote)]
    assert list(_notes(window)) == told
    above, at = [], len(rows)
    while (before := window.next_note(at, backward=True)) is not None:
        above.append(before)
        at = before
    assert above[::-1] == told


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden(case: str, golden: Path) -> None:
    """What the window shows of a golden store is what `messages` gives, with a scan's result or without."""
    root = golden / case / "datastore"
    store = open_store(root)
    crc = store.crc
    for name in store.channel_names:
        files = store.channel(name)
        wanted = [m for m in MessageReader(files, crc).read(Selection()) if isinstance(m, StoredMessage)]
        survey = survey_of(root, name, crc)
        for known in (None, survey):
            window = refine(None, files, crc, survey=known)
            rows = everything(window)
            repaired = {each.damage.offset for one in survey.slices for each in one.damages if each.damage.repair}
            told = [(m.sequence, m.timestamp, m.subject, m.reply, m.data, m.file, m.offset) for m in messages(rows)]
            expected = [(m.sequence, m.timestamp, m.subject, m.reply, m.data, m.file, m.offset) for m in wanted]
            if known is None:  # an index that can be believed hides that a record is damaged, until it is looked at
                expected = [each for each in expected if each in told or each[-1] not in repaired]
            assert told == expected
            assert window.exact
            check_lookups(window, rows)
            if known is not None:
                check_notes(window, rows)
            window.close()


@pytest.mark.parametrize("case", ["basic", "durables", "gap_filled", "gap_truncated_slice", "slices_count", "v038"])
def test_expected_messages(case: str, golden: Path) -> None:
    """Healthy stores show what the real server saw."""
    root = golden / case / "datastore"
    for name, channel in load_expected(case)["channels"].items():
        rows = everything(refine(None, list_channel(root / name), CRC))
        listed = {each["seq"]: each for each in channel["messages"]}
        for row in messages(rows):
            if row.sequence in listed:
                one = listed[row.sequence]
                assert (row.timestamp, row.size, row.reply.decode()) == (one["ts"], one["len"], one["reply"])
        shown = {row.sequence for row in messages(rows)}
        assert set(listed) <= shown


def test_gaps_and_damage_are_in_their_places(golden: Path) -> None:
    def of(case: str, channel: str = "alpha") -> list[tuple[int, str]]:
        root = golden / case / "datastore"
        return notes(refine(None, list_channel(root / channel), CRC, survey=survey_of(root, channel, CRC)))

    assert of("basic", "foo") == []
    assert of("gap_truncated_slice", "gapcut") == [(16, "4 missing (17–20)")]
    assert of("dmg_middle_slice_missing") == [(15, "15 missing (16–30)")]
    assert of("dmg_payload_flip_idx_intact") == [
        (24, "damaged 81 bytes at msgs.2.dat:455 (sequence 25): the payload does not match its CRC")
    ]
    assert of("dmg_dat_missing_idx_there") == [
        (0, "msgs.1.dat is missing; its index is there and names 15 messages"),
        (1, "only the index names messages 1–15: the data file is missing"),
    ]
    assert of("dmg_idx_shorter_early") == [
        (11, "the index does not name 4 messages (12-15): the server may not see them")
    ]
    assert of("dup_slice_after") == [(40, "the sequence goes back from 40 to 1")]
    assert of("dmg_zeroed_last_records") == [
        (38, "damaged 283 bytes at msgs.3.dat:514 (sequence 39): zero bytes where records should be"),
        (39, "only the index names message 40: no good record of it is in msgs.3.dat"),
    ]


@pytest.mark.parametrize("case", ["encrypted_aes", "encrypted_chacha"])
def test_encrypted(case: str, golden: Path) -> None:
    files = list_channel(golden / case / "datastore" / "enc.foo")
    key = load_expected(case)["options"]["encryption"]["key"].encode()
    without, wrong, right = (refine(None, files, CRC, key=each) for each in (None, b"another key", key))
    assert without.encrypted and not without.decrypts
    assert all(row.encrypted and not row.error for row in messages(everything(without)) if row.size)
    assert all(row.error for row in messages(everything(wrong)) if row.size)
    wanted = [m.data for m in MessageReader(files, CRC, key=key).read(Selection()) if isinstance(m, StoredMessage)]
    assert [row.data for row in messages(everything(right))] == wanted


def test_a_rough_look_has_the_same_rows(golden: Path) -> None:
    """Before anything is checked the rows of a healthy store are there already."""
    files = list_channel(
        golden / "slices_count" / "datastore" / open_datastore(golden / "slices_count" / "datastore").channel_names[0]
    )
    rough = RowWindow(SliceStretchReader(files.raw_name, CRC, key=None), estimate(files))
    assert not rough.exact
    assert everything(rough) == everything(refine(rough, files, CRC))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sample") / "store"
    options = SampleOptions(names=["one", "two"], messages=60, size=40, gaps=True, slice_msgs=17)
    return write_sample(place, options).path


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_any_damage(healthy: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Every intact message has its row, nothing raises, and what is not a message says why."""
    root = fresh_copy(healthy, tmp_path / "store")
    names = sorted(str(p.relative_to(healthy)) for p in healthy.rglob("msgs.*"))
    sizes = {name: (healthy / name).stat().st_size for name in names}
    gone: set[str] = set()
    for mutation in data.draw(st.lists(damages(names, sizes), min_size=1, max_size=4)):
        if mutation["file"] not in gone:
            apply_mutation(root, mutation)
        if mutation["op"] == "delete":
            gone.add(mutation["file"])
    for verdict in verify(open_datastore(root)).channels:
        files = list_channel(root / verdict.name)
        exact = refine(None, files, CRC, survey=survey_of(root, verdict.name, CRC))
        rows = everything(exact)
        shown = {row.sequence for row in messages(rows)}
        assert {seq for first, last in verdict.intact for seq in range(first, last + 1)} <= shown
        told = {seq for row in rows if isinstance(row, RowNote) and row.last for seq in range(row.first, row.last + 1)}
        lost = {s for ranges in (verdict.damaged, verdict.missing) for a, b in ranges for s in range(a, b + 1)}
        inside = range(min(shown, default=0), max(shown, default=0))
        assert {seq for seq in lost if seq in inside} <= told | shown
        check_lookups(exact, rows)
        check_notes(exact, rows)
        for other in (
            refine(None, files, CRC),
            RowWindow(SliceStretchReader(files.raw_name, CRC, key=None), estimate(files)),
            refine(exact, files, CRC, live=True),
        ):
            other.rows(0, len(other))
            for row in range(len(other)):
                other.row(row)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel of 300,000 messages: sequences from 1 with a hole, and one slice without its index."""
    channel = tmp_path_factory.mktemp("large") / "store" / "big"
    channel.mkdir(parents=True)
    with SliceWriter(channel, b"big", CRC, WriteOptions(SliceLimits(90_000), sync=False)) as writer:
        for begin in range(0, 300_000, 20_000):
            shift = 1 if begin < 200_000 else 5001
            numbers = range(begin + shift, begin + shift + 20_000)
            times = [1_700_000_000_000_000_000 + number * 1_000_000 for number in numbers]
            writer.append(numbers, times, None, [b"message %d" % number for number in numbers])
    sorted(channel.glob("*.idx"))[1].unlink()
    return channel


def test_large(large: Path) -> None:
    files = list_channel(large)
    window = open_window(files, CRC)
    assert not window.exact
    assert messages(window.rows(0, 3))[2].data == b"message 3"
    window = refine(window, files, CRC)
    survey = survey_of(large.parent, "big", CRC)
    for each in (window, refine(None, files, CRC, survey=survey)):
        assert (len(each), each.messages, each.highest) == (300_002, 300_000, 305_000)
        kinds = [(row, each.row(row)) for row in _notes(each)]
        assert [note.sentence() for _, note in kinds if isinstance(note, RowNote)] == [
            "msgs.2.idx is missing: the server scans the data file",
            "5,000 missing (200001–205000)",
        ]
        for sequence in (1, 2, 4096, 4097, 90_000, 90_001, 123_456, 200_000, 205_001, 299_999, 305_000):
            row = each.row_of_sequence(sequence)
            message = each.row(row)
            assert isinstance(message, WindowMessage)
            assert (message.sequence, message.data) == (sequence, b"message %d" % sequence)
            assert each.row_of_time(message.timestamp) == row
            assert each.row_of_time(message.timestamp - 1) == row
            assert each.row_of_place(message.file, message.offset + 9) == row
        assert each.row_of_sequence(203_000) == kinds[1][0]
        assert each.row_of_sequence(10**9) == len(each) - 1
        assert each.row_of_sequence(0) == 0
        assert each.row_of_time(0) <= 1
        assert each.row_of_time(2**63 - 1) == len(each) - 1
        assert (each.row_of_share(0), each.row_of_share(0.5), each.row_of_share(1)) == (0, 150_000, 300_001)
        assert each.row_from_end(1) == len(each) - 1
        assert each.row_from_end(10**9) == 0
        last = each.rows(len(each) - 10, len(each) + 10)
        assert [row.sequence for row in messages(last)] == list(range(304_991, 305_001))


def _notes(window: RowWindow) -> Iterator[int]:
    row = -1
    while (found := window.next_note(row)) is not None:
        yield found
        row = found


def test_what_is_known_is_not_looked_at_again(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = list_channel(large)
    window = refine(None, files, CRC)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was read again")

    monkeypatch.setattr("stantools.browse.window_build.survey_slice", never)
    monkeypatch.setattr("stantools.browse.window_build.SliceFile.open", never)
    assert len(refine(window, files, CRC)) == len(window)


def test_a_large_payload_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    channel = tmp_path / "store" / "big"
    channel.mkdir(parents=True)
    payload = bytes(range(256)) * 8192
    with SliceWriter(channel, b"big", CRC, WriteOptions(sync=False)) as writer:
        writer.append([1, 2], [10, 20], [b"answer.here", b""], [payload, b"small"])
    window = refine(None, list_channel(channel), CRC)
    head, small = messages(window.rows(0, 2))
    assert not head.whole and len(head.data) < 5000 and payload.startswith(head.data)
    assert (head.size, head.reply, head.subject, small.whole) == (len(payload), b"answer.here", b"big", True)
    whole = window.row(0)
    assert isinstance(whole, WindowMessage) and whole.whole and whole.data == payload
    with (channel / "msgs.1.dat").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"?")
    again = window.row(0)
    assert isinstance(again, RowNote) and again.kind is RowNoteKind.DAMAGE


def test_files_that_vanish_or_shrink_while_open(tmp_path: Path) -> None:
    root = write_sample(tmp_path / "store", SampleOptions(names=["one"], messages=200, slice_msgs=50)).path
    files = list_channel(root / "one")
    window = refine(None, files, CRC)
    rows = everything(window)
    shutil.rmtree(root / "one")
    assert everything(window) == rows, "what is open can be read on"
    fresh = window.another()
    assert all(isinstance(row, RowNote) and row.kind is RowNoteKind.FILE for row in fresh.rows(0, 200))
    assert isinstance(fresh.row(7), RowNote)
    with pytest.raises(StoreUnreadableError):
        fresh.row_of_sequence(25)

    root = write_sample(tmp_path / "other", SampleOptions(names=["one"], messages=200, slice_msgs=50)).path
    window = refine(None, list_channel(root / "one"), CRC)
    with (root / "one" / "msgs.2.dat").open("r+b") as file:
        file.truncate(1000)
    with (root / "one" / "msgs.3.idx").open("r+b") as file:
        file.truncate(100)
    rows = window.rows(0, 200)
    assert len(rows) == 200
    assert [row.sequence for row in messages(rows)][:50] == list(range(1, 51))
    assert {row.kind for row in rows if isinstance(row, RowNote)} == {RowNoteKind.DAMAGE, RowNoteKind.FILE}


def test_following(tmp_path: Path) -> None:
    channel = tmp_path / "store" / "live"
    channel.mkdir(parents=True)
    with SliceWriter(channel, b"live", CRC, WriteOptions(SliceLimits(10), sync=False)) as writer:
        writer.append(range(1, 8), range(7), None, [b"x"] * 7)
        writer.flush()
        window = refine(None, list_channel(channel), CRC, live=True)
        assert len(window) == 7
        writer.append(range(8, 25), range(17), None, [b"y"] * 17)
        writer.flush()
        with (channel / "msgs.3.dat").open("ab") as file:
            file.write(b"\x20\0\0\0half")  # a record that is being written
        window = refine(window, list_channel(channel), CRC, live=True)
        assert [row.sequence for row in messages(everything(window))] == list(range(1, 25))
        assert len(window) == 24
        assert len(refine(window, list_channel(channel), CRC)) > 24
        writer.abandon()


def test_a_channel_without_messages(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    window = open_window(list_channel(tmp_path / "empty"), CRC)
    assert (len(window), window.messages, window.exact) == (0, 0, True)
    assert window.rows(0, 10) == []
    assert isinstance(window.row(0), RowNote)
    assert (window.row_of_sequence(5), window.row_of_time(5), window.row_from_end(1)) == (0, 0, 0)
    assert window.row_of_place("msgs.1.dat", 4) is None
    assert window.next_note(0) is None


def test_few_files_are_open(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}" for number in range(40)]
    for path in paths:
        path.write_bytes(path.name.encode())
    files = WindowFiles()
    assert [files.read(path, 0, 10) for path in paths] == [path.name.encode() for path in paths]
    if Path("/proc/self/fd").is_dir():
        links = (Path(entry.path) for entry in os.scandir("/proc/self/fd"))
        assert sum(os.path.realpath(link).startswith(str(tmp_path)) for link in links) == 16
    with pytest.raises(StoreUnreadableError):
        files.read(tmp_path, 0, 10)
    with pytest.raises(StoreUnreadableError):
        files.read(tmp_path / "none", 0, 10)
    files.close()


def test_many_slices(tmp_path: Path) -> None:
    """Only the first and the last slices of a long list are looked at before the first rows can be seen."""
    options = SampleOptions(names=["one"], messages=400, size=10, slice_msgs=2)
    root = write_sample(tmp_path / "store", options).path
    files: ChannelFiles = list_channel(root / "one")
    rough = RowWindow(SliceStretchReader(files.raw_name, CRC, key=None), estimate(files))
    assert [note for _, note in notes(rough)] == ["40 more slices are being read"]
    assert len(refine(rough, files, CRC)) == 400
