"""Readable messages of a recovered channel, and the outcome for the others (filestore.md sections 5.3, 7.7).

Good records are handled as columns; only damaged or wrongly indexed records are handled one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stantools.format import kernels
from stantools.format.columns import MessageColumns, MessageRecords
from stantools.format.encryption import ChannelCipher, DecryptError
from stantools.format.layout import RECORD_HEADER_SIZE, ScanStop
from stantools.inspection.forecast.channel_forecast import MAX_TEXTS, Lookups
from stantools.inspection.forecast.server_reading import ServerReadAhead, SliceData
from stantools.inspection.forecast.slices import RecoveredSlice, RecoveryContext, data_batches
from stantools.progress import Progress
from stantools.store.indexes import SliceIndex
from stantools.store.mapping import Buffer, MappedWindow, mapped
from stantools.store.ranges import Ranges

_ROWS = 16384


class _Sequences:
    """A set of sequences that is filled one by one or by whole arrays."""

    def __init__(self) -> None:
        self._ranges: list[Ranges] = []
        self._single: list[int] = []

    def add(self, sequence: int) -> None:
        self._single.append(sequence)
        if len(self._single) == _ROWS:
            self._pack()

    def add_all(self, ranges: Ranges) -> None:
        self._ranges.append(ranges)

    def _pack(self) -> None:
        self._ranges.append(Ranges.from_sequences(np.array(self._single, np.uint64)))
        self._single.clear()

    def finish(self) -> Ranges:
        if self._single:
            self._pack()
        return Ranges.union(self._ranges)


@dataclass
class _LookupResults:
    readable: _Sequences = field(default_factory=_Sequences)
    failing: _Sequences = field(default_factory=_Sequences)
    errors: dict[int, str] = field(default_factory=dict)
    wrong: dict[int, int] = field(default_factory=dict)

    def add(self, sequence: int, got: int, error: str) -> None:
        if error:
            self.failing.add(sequence)
            if len(self.errors) < MAX_TEXTS:
                self.errors[sequence] = error
        elif got == sequence:
            self.readable.add(sequence)
        else:
            self.wrong[sequence] = got

    def finish(self) -> Lookups:
        return Lookups(self.readable.finish(), self.failing.finish(), self.errors, self.wrong)


@dataclass
class _LookupPair:
    """Results for a reader that goes through the slice, and for lookups of single messages."""

    ahead: _LookupResults = field(default_factory=_LookupResults)
    alone: _LookupResults = field(default_factory=_LookupResults)
    differ: bool = False

    def add_readable(self, sequences: NDArray[np.uint64]) -> None:
        """Adds ascending sequences."""
        if len(sequences):
            first, last = int(sequences[0]), int(sequences[-1])
            whole = last - first + 1 == len(sequences)
            ranges = span(first, last) if whole else Ranges.from_sequences(sequences)
            self.ahead.readable.add_all(ranges)
            self.alone.readable.add_all(ranges)

    def add(self, sequence: int, ahead: tuple[int, str] | None, alone: tuple[int, str] | None) -> None:
        """Adds one sequence; None if it is not found."""
        if ahead is not None:
            self.ahead.add(sequence, *ahead)
        if alone is not None:
            self.alone.add(sequence, *alone)
        self.differ = self.differ or ahead != alone

    def finish(self) -> tuple[Lookups, Lookups | None]:
        return self.ahead.finish(), self.alone.finish() if self.differ else None


def span(first: int, last: int) -> Ranges:
    return Ranges.of([(first, last)])


def lookup_slice(
    recovery: RecoveryContext, channel: bytes, found: RecoveredSlice, wanted: Ranges | None, progress: Progress | None
) -> tuple[Lookups, Lookups | None]:
    """Looks up all sequences of a slice (after limits).

    `wanted` are the sequences that the server looks for in this slice; None for all that are in it. Returns the
    results of a sequential reader, and those of lookups of single messages (None if they are the same).
    """
    key = recovery.options.encryption_key
    cipher = None if key is None else ChannelCipher(key, channel)
    answers = _LookupPair()
    if found.removed == found.rows:
        return answers.finish()
    if found.index is None and cipher is None and found.ascending and found.last - found.first + 1 == found.rows:
        # The index was made from records that are all good, with no gap between them.
        return _all_readable(found, span(found.first, found.last), wanted, progress)
    sound = recovery.sound_sequences(found.data, found.data_size, found.index_size)
    if sound is not None and cipher is None and found.index is not None:
        return _all_readable(found, sound & span(found.first, found.last), wanted, progress)
    options = recovery.options
    with mapped(found.data) as data:
        source = SliceData(data, min(found.data_end, len(data)), recovery.crc, cipher)
        rows = min(found.rows, _ROWS)
        work = _SliceLookup(source, channel, options.read_buffer_size, wanted, rows, answers, progress)
        if found.index is None:
            work.from_data(found)
        else:
            with mapped(found.index) as index:
                if found.ascending:
                    for part in SliceIndex(index, found.rows).parts(found.removed):
                        work.ascending(part)
                else:
                    work.disordered(index, found)
    return answers.finish()


def _all_readable(
    found: RecoveredSlice, sequences: Ranges, wanted: Ranges | None, progress: Progress | None
) -> tuple[Lookups, None]:
    if progress is not None:
        progress(found.data_end)
    return Lookups(sequences if wanted is None else sequences & wanted), None


class _SliceLookup:
    def __init__(
        self,
        source: SliceData,
        channel: bytes,
        read_buffer_size: int,
        wanted: Ranges | None,
        rows: int,
        answers: _LookupPair,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._channel = channel
        self._wanted = wanted
        self._answers = answers
        self._progress = progress
        self._ahead = ServerReadAhead(source, read_buffer_size) if read_buffer_size else None
        self._columns = MessageColumns(rows)
        self._stops = np.zeros(rows, np.uint8)
        self._window = MappedWindow(source.data)

    def from_data(self, found: RecoveredSlice) -> None:
        """Looks up messages whose index was made from good records: only decryption can fail."""
        source, skipped = self._source, found.removed
        disordered = _UnorderedIndex()
        for batch in data_batches(source.data, source.end, source.crc, self._channel):
            begin = min(skipped, batch.capacity)
            skipped -= begin
            failed = self._undecryptable(batch)
            keep = np.ones(batch.capacity, bool)
            keep[:begin] = False
            if not found.ascending:
                good = np.ones(batch.capacity, bool)
                good[list(failed)] = False
                rows = batch.sequence, batch.offset, batch.size.astype(np.int64), good, batch.sequence
                disordered.add([each[keep] for each in rows], {row - begin: text for row, text in failed.items()})
            else:
                keep &= self._selected(batch.sequence)
                for row, error in failed.items():
                    if keep[row]:
                        self._answers.add(int(batch.sequence[row]), (0, error), (0, error))
                        keep[row] = False
                self._answers.add_readable(batch.sequence[keep])
            self._advance(int(batch.size.sum(dtype=np.int64)) + RECORD_HEADER_SIZE * batch.capacity)
        if not found.ascending:
            self._look_up(disordered, found)

    def ascending(self, records: MessageRecords) -> None:
        """Looks up messages in the order of an index with ascending sequences."""
        for start in range(0, len(records), _ROWS):
            part = records.part(start, start + _ROWS)
            self._ascending_part(part.sequence, part.offset.copy(), part.size.astype(np.int64))

    def _ascending_part(
        self, sequences: NDArray[np.uint64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        ahead = self._ahead
        good, got, failed = self._read(offsets, sizes)
        ends = offsets + sizes + RECORD_HEADER_SIZE
        plain = good & (got == sequences)
        if ahead is not None:
            plain[1:] &= offsets[1:] == ends[:-1]
            plain[0] = plain[0] and ahead.aligned(int(offsets[0]))
        done = 0
        for row in np.flatnonzero(~plain).tolist():
            if row < done:
                continue
            self._add_readable(sequences[done:row])
            if ahead is not None:
                ahead.skip(offsets[done:row], ends[done:row])
            while True:
                offset, size = int(offsets[row]), int(sizes[row])
                if good[row]:
                    alone = int(got[row]), ""
                else:
                    alone = (0, failed[row]) if row in failed else self._source.read_alone(offset, size)
                answer = alone if ahead is None else ahead.read(offset, size)
                if self._wanted is None or int(sequences[row]) in self._wanted:
                    self._answers.add(int(sequences[row]), answer, alone)
                row += 1
                if row == len(sequences) or ahead is None or ahead.aligned(int(offsets[row])):
                    break
            done = row
        self._add_readable(sequences[done:])
        if ahead is not None:
            ahead.skip(offsets[done:], ends[done:])
        self._advance(int(sizes.sum()) + RECORD_HEADER_SIZE * len(sizes))

    def _read(
        self, offsets: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint64], dict[int, str]]:
        """Reads records at offsets: which are good, their sequences, and errors of decryption by row."""
        source = self._source
        self._window.reach(min(max(int(offsets[0]), 0), source.end))
        columns, stops = self._columns.take(len(offsets)), self._stops[: len(offsets)]
        kernels.read_messages_at(
            source.data,
            source.end,
            np.ascontiguousarray(offsets),
            source.crc,
            self._channel,
            columns,
            stops,
        )
        good = (stops == ScanStop.END) & ((columns.size == sizes) | (sizes == 0))
        failed = self._undecryptable(columns, good)
        for row in failed:
            good[row] = False
        return good, columns.sequence, failed

    def _undecryptable(self, columns: MessageColumns, good: NDArray[np.bool_] | None = None) -> dict[int, str]:
        """Returns the error of each message that cannot be decrypted, by row."""
        source = self._source
        if source.cipher is None:
            return {}
        failed = {}
        chosen = columns.data_size > 0
        for row in np.flatnonzero(chosen if good is None else chosen & good).tolist():
            begin = int(columns.data_start[row])
            try:
                source.cipher.decrypt(source.data[begin : begin + int(columns.data_size[row])])
            except DecryptError as error:
                failed[row] = str(error)
        return failed

    def disordered(self, index: Buffer, found: RecoveredSlice) -> None:
        """Looks up messages by an index whose sequences are not ascending."""
        disordered = _UnorderedIndex()
        for part in SliceIndex(index, found.rows).parts(found.removed):
            for start in range(0, len(part), _ROWS):
                rows = part.part(start, start + _ROWS)
                offsets, sizes = rows.offset.copy(), rows.size.astype(np.int64)
                good, got, failed = self._read(offsets, sizes)
                disordered.add([rows.sequence, offsets, sizes, good, got], failed)
                self._advance(int(sizes.sum()) + RECORD_HEADER_SIZE * len(sizes))
        self._look_up(disordered, found)

    def _look_up(self, rows: _UnorderedIndex, found: RecoveredSlice) -> None:
        """Looks up the sequences of unordered rows, in ascending order."""
        rows.join()
        asked, positions = _positions(rows.order, found)
        if self._wanted is not None:
            keep = self._wanted.select(asked)
            asked, positions = asked[keep], positions[keep]
        cache = None if self._ahead is None else _Cache(rows, self._source, self._ahead.capacity, asked)
        readable = np.zeros(len(asked), bool)
        right = (positions >= 0) & rows.good[positions] & (rows.got[positions] == asked)
        lookups = zip(asked.tolist(), positions.tolist(), right.tolist(), strict=True)
        for at, (sequence, row, own) in enumerate(lookups):
            alone = (sequence, "") if own else rows.read_alone(row, self._source) if row >= 0 else None
            if cache is None:
                ahead = alone
            elif (ahead := cache.get(at)) is None and row >= 0:
                ahead = cache.fill(row, alone)
            if ahead == alone == (sequence, ""):
                readable[at] = True
            else:
                self._answers.add(sequence, ahead, alone)
        self._answers.add_readable(asked[readable])

    def _add_readable(self, sequences: NDArray[np.uint64]) -> None:
        if self._wanted is not None:
            sequences = sequences[self._selected(sequences)]
        self._answers.add_readable(sequences)

    def _selected(self, sequences: NDArray[np.uint64]) -> NDArray[np.bool_]:
        if self._wanted is None:
            return np.ones(len(sequences), bool)
        return self._wanted.select(sequences)

    def _advance(self, count: int) -> None:
        if self._progress is not None:
            self._progress(count)


class _UnorderedIndex:
    """The rows of an unordered index: sequence, offset and size, and the result of reading each record on its own."""

    def __init__(self) -> None:
        self._parts: list[list[NDArray[Any]]] = []
        self._rows = 0
        self.failed: dict[int, str] = {}  #: errors of decryption, by row

    def add(self, columns: Sequence[NDArray[Any]], failed: dict[int, str]) -> None:
        """Adds rows (order, offsets, sizes, good, got), which are copied."""
        self._parts.append([column.copy() for column in columns])
        self.failed |= {self._rows + row: text for row, text in failed.items()}
        self._rows += len(columns[0])

    def join(self) -> None:
        """Joins the added rows into arrays."""
        self.order, self.offsets, self.sizes, self.good, self.got = map(np.concatenate, zip(*self._parts, strict=True))

    def read_alone(self, row: int, source: SliceData) -> tuple[int, str]:
        """Returns the result of a lookup that finds this row."""
        if self.good[row]:
            return int(self.got[row]), ""
        if row in self.failed:
            return 0, self.failed[row]
        return source.read_alone(int(self.offsets[row]), int(self.sizes[row]))


class _Cache:
    """The messages that the server has read ahead from a slice with an unordered index.

    The server reads rows of the index from the one it found onwards, and the data one record after the other with
    the sizes of these rows, until a record is not good, the buffer is full, or a row does not have the next
    sequence. A sequence beyond a second copy of a record, or beyond swapped records, is looked up again, at the
    position that it would have if each sequence were there once. Each message is kept under the sequence of its row.
    """

    def __init__(self, rows: _UnorderedIndex, source: SliceData, capacity: int, sequences: NDArray[np.uint64]) -> None:
        self._rows, self._source, self._capacity, self._sequences = rows, source, capacity, sequences
        self._ends = rows.offsets + rows.sizes + RECORD_HEADER_SIZE
        plain = rows.good & (rows.got == rows.order)
        plain[1:] &= rows.offsets[1:] == self._ends[:-1]
        self._follows = np.ones(len(plain), bool)
        self._follows[1:] = rows.order[1:] == rows.order[:-1] + np.uint64(1)
        self._plain = plain
        self._breaks = np.flatnonzero(~(plain & self._follows))
        place = np.searchsorted(sequences, rows.order)
        place[place == len(sequences)] = 0
        self._place = np.where(sequences[place] == rows.order, place, -1) if len(sequences) else place
        self._right = bytearray(len(sequences))
        self._other: dict[int, int] = {}

    def get(self, at: int) -> tuple[int, str] | None:
        """Returns the message kept for a sequence, by its position in the sequences; None if there is none."""
        if at in self._other:
            return self._other[at], ""
        return (int(self._sequences[at]), "") if self._right[at] else None

    def fill(self, row: int, alone: tuple[int, str] | None) -> tuple[int, str] | None:
        """Reads ahead from a row; returns the result for its own sequence."""
        rows, offset = self._rows, int(self._rows.offsets[row])
        limit, at, first = offset + self._capacity, offset, row
        if offset + RECORD_HEADER_SIZE + int(rows.sizes[row]) > limit:
            return alone
        answer: tuple[int, str] | None = None
        while row < len(rows.order) and (row == first or self._follows[row]):
            if self._plain[row] and at == int(rows.offsets[row]):
                following = int(np.searchsorted(self._breaks, row, side="right"))
                stop = int(self._breaks[following]) if following < len(self._breaks) else len(rows.order)
                stop = row + int(np.searchsorted(self._ends[row:stop], limit, side="right"))
                if stop > row:
                    self._keep(row, stop)
                    at, row = int(self._ends[stop - 1]), stop
                    continue
            size = int(rows.sizes[row])
            if at + RECORD_HEADER_SIZE + size > limit:
                break
            got, error = self._source.read_buffered(at, size)
            if error:
                answer = (0, error) if row == first else None
                break
            place = int(self._place[row])
            if place >= 0:
                self._other[place] = got
            at, row = at + RECORD_HEADER_SIZE + size, row + 1
        return answer or self.get(int(self._place[first]))

    def _keep(self, begin: int, end: int) -> None:
        """Keeps rows whose messages agree with the index."""
        places = self._place[begin:end]
        places = places[places >= 0]
        np.frombuffer(self._right, np.uint8)[places] = 1
        if self._other:
            for place in places.tolist():
                self._other.pop(place, None)


def _positions(order: NDArray[np.uint64], found: RecoveredSlice) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Finds, in an unordered index, the record that the server finds for each sequence.

    The search begins at the position that the sequence would have if none were missing, and goes back to the first
    record with that sequence, if need be to the beginning (filestore.md section 5.3; a real server found a record
    directly before the place of its first look, with a lower sequence in between). Position -1: not found.
    """
    asked, ranks = np.unique(order, return_inverse=True)
    rows = np.int64(len(order))
    # By sequence, then by position: the last one that is not after the place where the search begins.
    keys = np.sort(ranks.astype(np.int64) * rows + np.arange(rows))
    inside = np.flatnonzero((asked >= found.first) & (asked <= found.last))
    starts = np.minimum(asked[inside] - np.uint64(found.first), np.uint64(max(len(order) - 1, 0))).astype(np.int64)
    at = np.searchsorted(keys, inside * rows + starts, side="right") - 1
    hit = keys[np.maximum(at, 0)]
    known = (at >= 0) & (hit // rows == inside)
    return asked[inside], np.where(known, hit % rows, -1)


#: Written by a server that ends because it has no slice to write to.
PANIC = "panic: runtime error: invalid memory address or nil pointer dereference"


def panic(first: int, last: int) -> Lookups:
    """Returns the lookups of a channel in which the first one ends the server."""
    return Lookups(failing=span(first, last), errors={first: PANIC})


def wanted_of_slices(slices: list[RecoveredSlice]) -> Iterator[Ranges | None]:
    """Returns the sequences looked for in each slice: where slices overlap, the last one comes first."""
    if len(slices) == 1:
        yield None
        return
    spans = [(found.first, found.last) for found in slices]
    order = sorted(spans)
    if all(before[1] < after[0] for before, after in pairwise(order)):
        yield from (None for _ in slices)
        return
    # The server has no particular order for the others; here they come by number.
    wanted: dict[int, Ranges] = {}
    taken = Ranges()
    for place in (len(slices) - 1, *range(len(slices) - 1)):
        own = Ranges.of([spans[place]])
        wanted[place] = own - taken
        taken = taken | own
    yield from (wanted[place] for place in range(len(slices)))


def unite(parts: list[tuple[Lookups, Lookups | None]]) -> tuple[Lookups, Lookups | None]:
    """Joins the results of the slices of a channel."""
    ahead = _united([part[0] for part in parts])
    if all(alone is None for _, alone in parts):
        return ahead, None
    return ahead, _united([ahead_part if alone is None else alone for ahead_part, alone in parts])


def _united(parts: list[Lookups]) -> Lookups:
    if len(parts) == 1:
        return parts[0]
    result = Lookups(Ranges.union(part.readable for part in parts), Ranges.union(part.failing for part in parts))
    for part in parts:
        result.wrong |= part.wrong
        result.errors |= part.errors
    if len(result.errors) > MAX_TEXTS:
        result.errors = dict(sorted(result.errors.items())[:MAX_TEXTS])
    return result
