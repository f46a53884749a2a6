"""Streams for the browser: rows, lookups, searches, times and records of golden directories, and of a growing one."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from stantools.browse.row_model import RowNote, RowNoteKind, WindowMessage
from stantools.browse.search import Searcher, parse_query
from stantools.browse.stream_channel import StreamChannel, stream_records
from stantools.browse.window import RowWindow
from stantools.inspection.stored_messages import Selection, StoredMessage
from stantools.inspection.stream_messages import StreamMessageReader
from stantools.sources.door import open_source
from stantools.store.ranges import Ranges
from stantools.streamfiles import kernels
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.highwayhash import block_key
from stantools.streamfiles.survey import StreamSurvey

CASES = (
    *("ok_deletes15", "ok_s2_15", "ok_bigmsg15", "ok_wq15", "dmg_flip_payload_idx", "dmg_zero_bytes_mid_idx"),
    *("dmg_missing_mid_idx", "dmg_blocks_swapped", "dmg_block_renumbered", "dmg_cut_last_inside_killed"),
    *("s2_flip_block", "left_blk_tmp_complete", "left_new_msgs_tomb", "dmg_first_seq_noidx"),
)


def quiet(_: int) -> None:
    pass


def streams(golden: Path, case: str) -> tuple[StoredStream, ...]:
    return open_source(golden / case / "store" / "jetstream").streams


def shown(window: RowWindow) -> list[WindowMessage]:
    return [row for row in window.rows(0, len(window)) if isinstance(row, WindowMessage)]


@pytest.mark.parametrize("case", CASES)
def test_rows(case: str, golden_jetstream: Path) -> None:
    """Each intact message is a row, with what `messages` prints; losses and deletions are told where they are."""
    for stream in streams(golden_jetstream, case):
        survey = StreamSurvey(stream)
        window = StreamChannel(stream, survey).refine(None, live=False, progress=quiet)
        assert window.exact
        whole = (window.row(at) for at in range(len(window)))
        found = sorted((row for row in whole if isinstance(row, WindowMessage)), key=lambda each: each.sequence)
        wanted = [m for m in StreamMessageReader(stream).read(Selection()) if isinstance(m, StoredMessage)]
        assert [(m.sequence, m.timestamp, m.subject, m.headers or b"", m.data) for m in wanted] == [
            (row.sequence, row.timestamp, row.subject, row.headers, row.data) for row in found
        ]
        rows = window.rows(0, len(window))
        assert [row for at in range(0, len(window), 7) for row in window.rows(at, at + 7)] == rows
        for at, row in enumerate(rows):
            if isinstance(row, WindowMessage):
                assert window.row_of_place(row.file, row.offset) == at
        told = Ranges.of((row.first, row.last) for row in rows if isinstance(row, RowNote) and row.last)
        inside = Ranges.of([(survey.intact.first, survey.intact.last)]) if survey.intact else Ranges()
        assert not ((survey.damaged | survey.missing) & inside) - told
        deleted = [row for row in rows if isinstance(row, RowNote) and row.kind is RowNoteKind.DELETED]
        assert not any((survey.damaged | survey.missing).meets(row.first, row.last) for row in deleted)


@pytest.mark.parametrize("case", ["ok_deletes15", "ok_s2_15", "dmg_flip_payload_idx"])
@pytest.mark.parametrize("text", ["t:orders", "x:22", "r:^[a-z]+", "Zürich"])
def test_search(case: str, text: str, golden_jetstream: Path) -> None:
    """Payloads, headers and subjects are searched, and nothing else of a record."""
    query = parse_query(text)
    for stream in streams(golden_jetstream, case):
        window = StreamChannel(stream, StreamSurvey(stream)).open()
        searcher = Searcher(window, query)
        found = list(searcher.matches(0, len(window)))
        searcher.close()
        rows = [window.row(at) for at in range(len(window))]
        assert found == [
            at
            for at, row in enumerate(rows)
            if isinstance(row, WindowMessage)
            and any(query.pattern.search(each) for each in (row.data, row.headers or b"", row.subject) if each)
        ]


@pytest.mark.parametrize("case", CASES)
def test_files_and_records(case: str, golden_jetstream: Path) -> None:
    """The records of a block cover it, each byte of each has a meaning, and good ones have no wrong part."""
    for stream in streams(golden_jetstream, case):
        survey = StreamSurvey(stream)
        channel = StreamChannel(stream, survey)
        states = channel.states()
        assert Ranges.union(each.held for each in states.values()) == survey.intact
        timeline = channel.timeline(quiet)
        assert timeline.count == Ranges.union(each.sequences & survey.intact for each in survey.blocks).count()
        for file in channel.files():
            if file.number is None or file.path is None or not file.path.is_file():
                continue
            opened = stream_records(stream, file.path, survey)
            assert opened is not None
            reader = opened.reader
            reader.map = opened.mapped(quiet)
            at = 0
            for row in reader.rows(0, reader.map.rows):
                parts = reader.parts(row)
                assert row.offset == at == parts[0].start and parts[-1].end == row.offset + row.length
                assert all(one.end == two.start for one, two in pairwise(parts))
                assert not row.ok or all(part.role.value not in ("wrong", "zeros") for part in parts)
                at += row.length
            assert at == reader.map.size
            reader.close()


def test_growing(golden_jetstream: Path, tmp_path: Path) -> None:
    """Blocks that have not changed are kept with their deletions; new messages of the last one are there."""
    place = shutil.copytree(golden_jetstream / "ok_deletes15" / "store" / "jetstream", tmp_path / "jetstream")
    stream = open_source(place).stream("ORDERS")
    survey = StreamSurvey(stream)
    channel = StreamChannel(stream, survey)
    window, before = channel.open(), channel.signature()
    old = [row.sequence for row in shown(window)]
    last = stream.blocks[-1]
    record = kernels.encode_record(survey.last + 1, 1, b"orders.new", b"", b"new", block_key("ORDERS", last.number))
    last.path.write_bytes(last.path.read_bytes() + record)
    again = StreamChannel(stream, survey)
    assert again.signature() != before
    grown = again.refine(window, live=True, progress=quiet)
    rows = {row.sequence: row for row in shown(grown)}
    assert rows[survey.last + 1].data == b"new"
    assert {row.sequence: row for row in shown(window)} == {number: rows[number] for number in old}
    exact = StreamChannel(stream, survey).refine(grown, live=False, progress=quiet)
    assert exact.exact and [row.sequence for row in shown(exact)] == [*old, survey.last + 1]


def test_large_stream_is_shown_at_once(golden_jetstream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large stream, the first and the last block are shown before the others are read."""
    monkeypatch.setattr("stantools.browse.stream_channel._SMALL_BYTES", 0)
    stream = open_source(golden_jetstream / "ok_blocks15" / "store" / "jetstream").stream("ORDERS")
    channel = StreamChannel(stream)
    rough = channel.open()
    notes = [row for row in rough.rows(0, len(rough)) if isinstance(row, RowNote)]
    assert not rough.exact and any(each.kind is RowNoteKind.PENDING for each in notes)
    exact = channel.refine(rough, live=False, progress=quiet)
    survey = StreamSurvey(stream)
    assert exact.exact and Ranges.of((row.sequence, row.sequence) for row in shown(exact)) == survey.intact
