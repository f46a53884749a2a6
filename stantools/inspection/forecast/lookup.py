"""Which messages of a recovered channel can be read, and what the others give (filestore specification, 5.3 and 7.7).

Everything good is taken from columns; only damaged or wrongly indexed records are looked at one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stantools.format import index as index_format
from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.encryption import ChannelCipher, DecryptError
from stantools.format.layout import RECORD_HEADER_SIZE, Stop
from stantools.inspection.forecast.model import MAX_TEXTS, Lookups
from stantools.inspection.forecast.readahead import ReadAhead, Source
from stantools.inspection.forecast.rows import data_batches
from stantools.inspection.forecast.slices import Recovery, Slice
from stantools.progress import Progress
from stantools.store.indexes import index_parts
from stantools.store.mapping import Buffer, Window, mapped
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
class _Answers:
    """Collects what lookups give."""

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
class _Both:
    """Answers to a reader that goes through the slice, and to lookups of single messages."""

    ahead: _Answers = field(default_factory=_Answers)
    alone: _Answers = field(default_factory=_Answers)
    differ: bool = False

    def add_readable(self, sequences: NDArray[np.uint64]) -> None:
        """Adds sequences that rise."""
        if len(sequences):
            first, last = int(sequences[0]), int(sequences[-1])
            whole = last - first + 1 == len(sequences)
            ranges = span(first, last) if whole else Ranges.from_sequences(sequences)
            self.ahead.readable.add_all(ranges)
            self.alone.readable.add_all(ranges)

    def add(self, sequence: int, ahead: tuple[int, str], alone: tuple[int, str]) -> None:
        self.ahead.add(sequence, *ahead)
        self.alone.add(sequence, *alone)
        self.differ = self.differ or ahead != alone

    def finish(self) -> tuple[Lookups, Lookups | None]:
        return self.ahead.finish(), self.alone.finish() if self.differ else None


def span(first: int, last: int) -> Ranges:
    """Returns the set of sequences from one to another."""
    return Ranges(np.array([first], np.uint64), np.array([last], np.uint64))


def lookup_slice(
    recovery: Recovery, channel: bytes, found: Slice, wanted: Ranges | None, progress: Progress | None
) -> tuple[Lookups, Lookups | None]:
    """Looks up all sequences of a slice.

    Args:
        recovery: The start.
        channel: The channel's name.
        found: The slice, after limits.
        wanted: The sequences that the server looks for in this slice; None for all that are in it.
        progress: Is told how many bytes were read.

    Returns:
        What a reader that goes from message to message gets, and what lookups of single messages give (None if the
        same).
    """
    key = recovery.options.encryption_key
    cipher = None if key is None else ChannelCipher(key, channel)
    answers = _Both()
    if found.removed == found.rows:
        return answers.finish()
    if found.index is None and cipher is None and found.ascending and found.last - found.first + 1 == found.rows:
        # The index was made from records that are all good, and none is missing between them.
        whole = span(found.first, found.last)
        if progress is not None:
            progress(found.data_end)
        return Lookups(whole if wanted is None else whole & wanted), None
    options = recovery.options
    with mapped(found.data) as data:
        source = Source(data, min(found.data_end, len(data)), recovery.crc, options.check_crc, cipher)
        rows = min(found.rows, _ROWS)
        work = _SliceLookup(source, channel, options.read_buffer_size, wanted, rows, answers, progress)
        if found.index is None:
            work.from_data(found)
        else:
            with mapped(found.index) as index:
                if found.ascending:
                    for part in index_parts(index_format.view(index, found.rows), found.removed):
                        work.ascending(part["sequence"], part["offset"], part["size"])
                else:
                    work.disordered(index, found)
    return answers.finish()


class _SliceLookup:
    """The work on one slice while its files are open."""

    def __init__(
        self,
        source: Source,
        channel: bytes,
        read_buffer_size: int,
        wanted: Ranges | None,
        rows: int,
        answers: _Both,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._channel = channel
        self._wanted = wanted
        self._answers = answers
        self._progress = progress
        self._ahead = ReadAhead(source, read_buffer_size) if read_buffer_size else None
        self._columns = MessageColumns(rows)
        self._stops = np.zeros(rows, np.uint8)
        self._window = Window(source.data)

    def from_data(self, found: Slice) -> None:
        """Looks up messages whose index was made from good records: only decryption can fail."""
        source, skipped = self._source, found.removed
        sequences: list[NDArray[np.uint64]] = []
        for batch in data_batches(source.data, source.end, source.crc, source.check_crc, self._channel):
            begin = min(skipped, batch.capacity)
            skipped -= begin
            failed = self._undecryptable(batch)
            keep = np.ones(batch.capacity, bool)
            keep[:begin] = False
            keep &= self._selected(batch.sequence)
            for row, error in failed.items():
                if keep[row]:
                    self._answers.add(int(batch.sequence[row]), (0, error), (0, error))
                    keep[row] = False
            sequences.append(batch.sequence[keep].copy())
            if found.ascending:
                self._answers.add_readable(sequences.pop())
            self._advance(int(batch.size.sum(dtype=np.int64)) + RECORD_HEADER_SIZE * batch.capacity)
        if not found.ascending and sequences:
            order = np.concatenate(sequences)
            self._answers.add_readable(order[_positions(order, found)[1]])

    def ascending(self, sequences: NDArray[np.uint64], offsets: NDArray[np.int64], sizes: NDArray[np.uint32]) -> None:
        """Looks up messages in the order of the index, in which sequences rise."""
        for start in range(0, len(sequences), _ROWS):
            part = slice(start, start + _ROWS)
            self._ascending_part(sequences[part], offsets[part].astype(np.int64), sizes[part].astype(np.int64))

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
            source.check_crc,
            self._channel,
            columns,
            stops,
        )
        good = (stops == Stop.END) & ((columns.size == sizes) | (sizes == 0))
        failed = self._undecryptable(columns, good)
        for row in failed:
            good[row] = False
        return good, columns.sequence, failed

    def _undecryptable(self, columns: MessageColumns, good: NDArray[np.bool_] | None = None) -> dict[int, str]:
        """Returns the error by row of messages that cannot be decrypted."""
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

    def disordered(self, index: Buffer, found: Slice) -> None:
        """Looks up messages by an index in which sequences do not rise; reading ahead is left out of account."""
        records = np.concatenate(
            [part.copy() for part in index_parts(index_format.view(index, found.rows), found.removed)]
        )
        sequences, positions = _positions(records["sequence"], found)
        keep = self._selected(sequences)
        sequences, chosen = sequences[keep], records[positions[keep]]
        for start in range(0, len(sequences), _ROWS):
            part = chosen[start : start + _ROWS]
            offsets, sizes = part["offset"].astype(np.int64), part["size"].astype(np.int64)
            good, got, failed = self._read(offsets, sizes)
            asked = sequences[start : start + _ROWS]
            plain = good & (got == asked)
            self._answers.add_readable(asked[plain])
            for row in np.flatnonzero(~plain).tolist():
                if good[row]:
                    answer = int(got[row]), ""
                else:
                    offset, size = int(offsets[row]), int(sizes[row])
                    answer = (0, failed[row]) if row in failed else self._source.read_alone(offset, size)
                self._answers.add(int(asked[row]), answer, answer)
            self._advance(int(sizes.sum()) + RECORD_HEADER_SIZE * len(sizes))

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


def _positions(order: NDArray[np.uint64], found: Slice) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """Finds, in an index without order, the record that the server finds for each sequence.

    It begins at the position that the sequence would have if none were missing, and goes back to the first record
    that is not beyond it (section 5.3).

    Returns:
        The sequences that are found, ascending, and the position of each.
    """
    asked = np.unique(order)
    asked = asked[(asked >= found.first) & (asked <= found.last)]
    starts = np.minimum(asked - np.uint64(found.first), np.uint64(max(len(order) - 1, 0))).astype(np.intp)
    # Of the records so far, those that a search could still stop at: positions and sequences both rise.
    candidates: list[int] = []
    values: list[int] = []
    positions = np.full(len(asked), -1, np.intp)
    at = 0
    for query in np.argsort(starts, kind="stable").tolist():
        while at <= starts[query]:
            value = int(order[at])
            while values and values[-1] >= value:
                values.pop()
                candidates.pop()
            values.append(value)
            candidates.append(at)
            at += 1
        place = bisect_right(values, int(asked[query])) - 1
        if place >= 0 and values[place] == int(asked[query]):
            positions[query] = candidates[place]
    hit = positions >= 0
    return asked[hit], positions[hit]


def wanted_of_slices(slices: list[Slice]) -> Iterator[Ranges | None]:
    """Tells which sequences are looked for in which slice: of slices that overlap, the last one comes first."""
    if len(slices) == 1:
        yield None
        return
    spans = [(found.first, found.last) for found in slices]
    order = sorted(spans)
    if all(before[1] < after[0] for before, after in pairwise(order)):
        yield from (None for _ in slices)
        return
    # The others come in no particular order in the server; here by number.
    wanted: dict[int, Ranges] = {}
    taken = Ranges()
    for place in (len(slices) - 1, *range(len(slices) - 1)):
        own = Ranges.of([spans[place]])
        wanted[place] = own - taken
        taken = taken | own
    yield from (wanted[place] for place in range(len(slices)))


def unite(parts: list[tuple[Lookups, Lookups | None]]) -> tuple[Lookups, Lookups | None]:
    """Puts together what was found in the slices of a channel."""
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
