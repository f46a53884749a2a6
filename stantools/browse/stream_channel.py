"""A stream of a JetStream directory for the browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from stantools.browse.block_reader import BlockRecordReader
from stantools.browse.browsed_channel import BrowsedChannel, FileState, ListedFile, OpenedRecords
from stantools.browse.row_model import MessageStretch, RowNote, RowNoteKind, SliceParts
from stantools.browse.slice_map import ByteSegment, BytesState, IndexState
from stantools.browse.stream_rows import BlockStretchReader, block_parts, places_of
from stantools.browse.timeline import TimedRows, Timeline
from stantools.browse.window import RowWindow
from stantools.errors import StoreUnreadableError
from stantools.format.columns import MessageRecords
from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.findings import RANKS
from stantools.notation import counted
from stantools.progress import Progress
from stantools.store.directory import size_of
from stantools.store.growing_channel import Sign, sign
from stantools.store.ranges import Ranges
from stantools.streamfiles.block_survey import BlockSurvey
from stantools.streamfiles.directory import BlockFile, StoredStream
from stantools.streamfiles.flaws import FlawKind
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.survey import StreamSurvey

#: A stream up to this number of bytes is read completely when it is opened; of a larger one its ends are.
_SMALL_BYTES: Final = 1 << 19
_FIRST_BLOCKS, _LAST_BLOCKS = 1, 1


class StreamChannel(BrowsedChannel):
    """A stream. A `survey` is used if the files have not changed since."""

    def __init__(self, stream: StoredStream, survey: StreamSurvey | None = None) -> None:
        self._stream = replace(stream, flaws=[])
        fits = survey is not None and _sizes(survey.directory) == _sizes(self._stream)
        self._survey = survey if fits else None

    def signature(self) -> tuple[Sign, ...]:
        last = self._stream.blocks[-1].path if self._stream.blocks else None
        return sign(self._stream.path), sign(last) if last else None, sign(self._stream.path / "msgs")

    def bytes_to_read(self) -> int:
        size = sum(each.size for each in self._stream.blocks)
        return size if self._survey else 2 * size

    def open(self) -> RowWindow:
        blocks = self._stream.blocks
        if sum(each.size for each in blocks) <= _SMALL_BYTES:
            return self.refine(None, live=False, progress=lambda _: None)
        hidden = range(_FIRST_BLOCKS, len(blocks) - _LAST_BLOCKS)
        parts: list[SliceParts] = []
        for at, each in enumerate(blocks):
            if at not in hidden:
                parts.append(replace(self._rows(each, None), exact=False))
            elif at == hidden.start:
                note = RowNote(RowNoteKind.PENDING, f"{len(hidden):,} more blocks are being read", each.path.name)
                parts.append(SliceParts(each.path.name, (), (note,), exact=False))
        return self._window(parts, None)

    def refine(self, window: RowWindow | None, *, live: bool, progress: Progress) -> RowWindow:
        known = {each.name: each for each in window.parts} if window else {}
        survey = self._survey
        if survey is None and not live:
            survey = self._survey = StreamSurvey(self._stream, progress)
        by_path = {each.file.path: each for each in (*survey.blocks, *survey.others)} if survey else {}
        parts = []
        files = [*self._stream.blocks, *(each.file for each in survey.others)] if survey else self._stream.blocks
        for file in files:
            have = known.get(file.path.name)
            if live and have is not None and have.mark == (sign(file.path),):
                parts.append(have)
            else:
                parts.append(self._rows(file, by_path.get(file.path)))
            progress(file.size)
        return self._window(parts, survey)

    def _rows(self, file: BlockFile, block: BlockSurvey | None) -> SliceParts:
        survey = self._survey
        if survey is None:
            return block_parts(self._stream, file, block, None, None)
        live = survey.intact
        if block is not None and any(each is block for each in survey.others):
            live = live - Ranges.union(each.sequences for each in survey.blocks)
        return block_parts(self._stream, file, block, live, survey.damaged)

    def _window(self, parts: list[SliceParts], survey: StreamSurvey | None) -> RowWindow:
        if survey and survey.others:
            parts = sorted(parts, key=_first_sequence)
        missing = survey.damaged | survey.missing if survey else None
        return RowWindow(BlockStretchReader(self._stream, missing), parts)

    def timeline(self, progress: Progress) -> Timeline:
        timeline = Timeline(_BlockTimes(self._survey or StreamSurvey(self._stream)))
        timeline.read(progress)
        return timeline

    def path_of(self, name: str) -> Path:
        files = (*self._stream.blocks, *self._stream.other_blocks)
        return next((each.path for each in files if each.path.name == name), self._stream.path / "msgs" / name)

    def files(self) -> Sequence[ListedFile]:
        return list(_listed(self._stream))

    def states(self) -> dict[Path, FileState]:
        survey = self._survey
        blocks = (*survey.blocks, *survey.others) if survey else ()
        return {each.file.path: block_state(survey, each) for each in blocks if survey}


def _sizes(stream: StoredStream) -> dict[Path, int]:
    return {each.path: each.size for each in (*stream.blocks, *stream.other_blocks)}


def _first_sequence(part: SliceParts) -> int:
    return next((each.first for each in part.pieces if isinstance(each, MessageStretch)), 0)


class _BlockTimes:
    """The intact messages of a stream's blocks."""

    def __init__(self, survey: StreamSurvey) -> None:
        self.damaged = survey.damaged
        self.missing: Ranges | None = survey.missing
        self._survey = survey

    def files(self) -> Iterator[Iterator[TimedRows]]:
        return (self._read(each) for each in self._survey.blocks)

    def _read(self, block: BlockSurvey) -> Iterator[TimedRows]:
        for number, rows in enumerate(self._survey.records(block)):
            places = self._intact(rows)
            if len(places):
                yield TimedRows(places, partial(self._again, block, number))

    def _again(self, block: BlockSurvey, number: int) -> MessageRecords:
        for at, rows in enumerate(self._survey.records(block)):
            if at == number:
                return self._intact(rows)
        raise StoreUnreadableError(f"{block.file.path}: has changed since it was read")

    def _intact(self, rows: RecordBatch) -> MessageRecords:
        return places_of(rows.take(self._survey.intact.select(rows.sequence))).copied()


def _listed(stream: StoredStream) -> Iterator[ListedFile]:
    for block in (*stream.blocks, *stream.other_blocks):
        yield ListedFile(block.path, size=block.size, number=block.number)
    others = dict.fromkeys(("meta.inf", "meta.sum", "meta.key"), "configuration") | {"msgs/index.db": "index"}
    for consumer in stream.consumers:
        others |= {f"obs/{consumer.name}/{each}": f"consumer {consumer.name}" for each in ("meta.inf", "o.dat")}
    present = {stream.path / name: about for name, about in others.items() if (stream.path / name).exists()}
    if present:
        yield ListedFile(None, "— other files —")
    for path, about in present.items():
        yield ListedFile(path, about, size=size_of(path))


def block_state(survey: StreamSurvey, block: BlockSurvey) -> FileState:
    held = block.sequences & survey.intact
    unreadable = next((each.detail for each in block.flaws if each.kind is FlawKind.BLOCK_UNREADABLE), "")
    if not block.readable and not unreadable:
        unreadable = "it is encrypted, and its key cannot be opened"
    plain = not (block.compressed or block.encrypted)
    damages = [
        f"{f'at {each.offset}: ' if each.offset is not None else ''}{each.detail}"
        + (f", {counted(each.length, 'byte')}" if each.length else "")
        for each in block.flaws
        if RANKS[CATALOGUE[each.kind.value].severity] == 0
    ]
    return FileState(
        held,
        _index_state(survey, block),
        _segments(block, unreadable=bool(unreadable)),
        block.file.size if plain else 0,
        held.count(),
        held.first or None,
        (block.first_time, block.last_time) if block.messages else None,
        unreadable,
        damages=damages,
        place=lambda sequence: 0 if sequence in held else None,
    )


def _segments(block: BlockSurvey, *, unreadable: bool) -> Sequence[ByteSegment]:
    if unreadable:
        return [ByteSegment(0, 1, BytesState.UNREADABLE)]
    found = [ByteSegment(0, max(block.file.size, 1), BytesState.GOOD)] if block.file.size else []
    zeros = {each.offset for each in block.flaws if each.kind is FlawKind.BLOCK_ZEROS}
    for gap in block.gaps:
        found.append(ByteSegment(gap.start, gap.end, BytesState.ZERO if gap.start in zeros else BytesState.BAD))
    return found


def _index_state(survey: StreamSurvey, block: BlockSurvey) -> IndexState:
    stream = survey.directory
    known = stream.index
    if known is None or not known.version:
        broken = any(each.kind in (FlawKind.INDEX_HASH, FlawKind.INDEX_VERSION) for each in stream.flaws)
        if broken:
            return IndexState("warning", "unreadable", "index.db cannot be read: a server reads the block")
        return IndexState("clean", "none", "there is no index.db: a server reads the block")
    entry = known.blocks.get(block.file.number)
    if entry is None:
        return IndexState("clean", "unnamed", "index.db does not name it: it is newer, or a leftover")
    listed = entry.listed(known.first)
    if listed == block.sequences & survey.intact:
        return IndexState("clean", "agrees", f"index.db agrees with the block, {listed.count():,} messages")
    absent = (listed - block.sequences).count()
    if absent:
        return IndexState("warning", f"{absent:,} absent", f"index.db lists {absent:,} messages that it does not have")
    return IndexState("clean", "older", "index.db lists other messages: it is older")


def stream_records(stream: StoredStream, path: Path, survey: StreamSurvey | None) -> OpenedRecords | None:
    """Opens a block of a stream; None if the file is none. Raises `StoreUnreadableError`."""
    file = next((each for each in (*stream.blocks, *stream.other_blocks) if each.path == path), None)
    if file is None:
        return None
    known = (
        next((each for each in (*survey.blocks, *survey.others) if each.file.path == path), None) if survey else None
    )
    reader = BlockRecordReader(stream, file, known)
    return OpenedRecords(reader, reader.map_records)
