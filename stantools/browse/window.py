"""The rows of a channel, with random access: messages in the order of the slices, with notes in between.

    row  0  message 1
    row  1  message 2
    row  2  — 12 missing (3–14) —
    row  3  message 15
    …

Of a channel of any size only its outline is in memory (`row_model`); messages are read on access to their rows. A
record that differs from the outline becomes a note: reading rows never raises for the content of the files.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from stantools.browse.row_model import (
    MessageStretch,
    Piece,
    ProvenMessage,
    Row,
    RowNote,
    RowNoteKind,
    SliceParts,
    WindowMessage,
    joined,
)
from stantools.browse.stretch_reader import StretchReader
from stantools.browse.window_build import Builder, estimate, is_small
from stantools.browse.window_reader import SliceStretchReader
from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.inspection.survey import ChannelSurvey
from stantools.progress import Progress
from stantools.store.directory import ChannelFiles

__all__ = ["MessageStretch", "Row", "RowNote", "RowNoteKind", "RowWindow", "WindowMessage", "open_window", "refine"]


class RowWindow:
    """The rows of a channel. Not for several threads at once; `another` makes one more on the same outline."""

    def __init__(self, reader: StretchReader, parts: list[SliceParts]) -> None:
        self.parts = parts
        self.reader = reader
        self._sampled = False
        self._pieces: list[Piece] = joined(parts, reader.channel, reader.absent)
        self._starts = [0]
        self.messages = 0  #: number of messages
        self.highest = 0  #: highest sequence
        for piece in self._pieces:
            self._starts.append(self._starts[-1] + (piece.rows if isinstance(piece, MessageStretch) else 1))
            if not isinstance(piece, RowNote):
                self.messages += piece.count if isinstance(piece, MessageStretch) else 1
            self.highest = max(self.highest, piece.sequence if isinstance(piece, ProvenMessage) else piece.last)

    @property
    def exact(self) -> bool:
        """Only reading every record would reveal more."""
        return all(part.exact for part in self.parts)

    @property
    def decrypts(self) -> bool:
        """There is a key."""
        return self.reader.decrypts

    @property
    def key(self) -> bytes | None:
        return self.reader.key

    @property
    def encrypted(self) -> bool:
        """The last messages may be encrypted."""
        if not self._sampled:
            self._sampled = True
            last = next((piece for piece in reversed(self._pieces) if isinstance(piece, MessageStretch)), None)
            self.reader.encrypted = last is not None and self.reader.looks_encrypted(last)
        return self.reader.encrypted

    def another(self) -> RowWindow:
        """Returns a window with the same rows, for another thread."""
        return self.with_key(self.key)

    def with_key(self, key: bytes | None) -> RowWindow:
        """Returns a window with the same rows that reads payloads with another encryption key."""
        return RowWindow(self.reader.another(key), self.parts)

    def close(self) -> None:
        self.reader.close()

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, row: int) -> Row:
        """Returns one row, with a payload of any size and everything checked."""
        found = self.rows(row, row + 1)
        if not found:
            return RowNote(RowNoteKind.FILE, "there is no such row")
        if isinstance(found[0], RowNote) or found[0].whole:
            return found[0]
        place = bisect_right(self._starts, row) - 1
        piece = self._pieces[place]
        assert isinstance(piece, MessageStretch)
        position = piece.at_row(row - self._starts[place])[0]
        try:
            whole = self.reader.messages(piece, self.reader.located(piece, position, position + 1), whole=True)
        except StoreUnreadableError as error:
            return RowNote(RowNoteKind.FILE, error.message, piece.files.name)
        return whole[0] if whole else _changed(piece)

    def rows(self, start: int, stop: int) -> list[Row]:
        """Returns rows from `start` to `stop` (exclusive). Of large records only the beginning is read."""
        start, stop = max(start, 0), min(stop, len(self))
        rows: list[Row] = []
        _ = self.encrypted
        place = bisect_right(self._starts, start) - 1
        while start < stop:
            piece, begin = self._pieces[place], self._starts[place]
            end = min(self._starts[place + 1], stop)
            if isinstance(piece, MessageStretch):
                rows += self._of_stretch(piece, start - begin, end - begin)
            else:
                rows.append(self.reader.proven(piece) if isinstance(piece, ProvenMessage) else piece)
            start, place = end, place + 1
        return rows

    def _of_stretch(self, stretch: MessageStretch, low: int, high: int) -> list[Row]:
        first, _ = stretch.at_row(low)
        last, at_gap = stretch.at_row(high - 1)
        stop = last if at_gap else last + 1
        try:
            located = self.reader.located(stretch, first, stop)
            messages = self.reader.messages(stretch, located)
        except StoreUnreadableError as error:
            text = f"{stretch.files.name}: {error.message}"
            return [RowNote(RowNoteKind.FILE, text, stretch.files.name)] * (high - low)
        rows: list[Row] = []
        number = low - first  # gaps before
        for row in range(low, high):
            if number < len(stretch.breaks) and int(stretch.breaks[number]) + number == row:
                rows.append(self._gap(stretch, int(stretch.breaks[number])))
                number += 1
            else:
                place = row - number - first
                rows.append(messages[place] if place < len(messages) else _changed(stretch))
        return rows

    def _gap(self, stretch: MessageStretch, position: int) -> RowNote:
        try:
            around = self.reader.located(stretch, position - 1, position + 1).sequence
        except StoreUnreadableError:
            around = np.empty(0, np.uint64)
        if len(around) < 2 or around[1] <= around[0]:
            return RowNote(RowNoteKind.GAP, "missing", stretch.files.name)
        return self.reader.absent(int(around[0]) + 1, int(around[1]) - 1)

    def stretches(self, first: int, last: int) -> Iterator[tuple[MessageStretch, int, int, int]]:
        """Iterates over the runs in a range of rows, for bulk readers.

        Yields a run, its first row, and the range of its positions within the rows (end exclusive).
        """
        place = bisect_right(self._starts, first) - 1
        while place < len(self._pieces) and self._starts[place] < last:
            piece, begin = self._pieces[place], self._starts[place]
            if isinstance(piece, MessageStretch):
                low, _ = piece.at_row(max(first - begin, 0))
                high = piece.count
                if last < self._starts[place + 1]:
                    high = piece.at_row(last - begin)[0]
                yield piece, begin, low, high
            place += 1

    def single_rows(self, first: int, last: int) -> Iterator[int]:
        """Iterates over the rows in a range that hold a message outside of runs."""
        place = bisect_right(self._starts, first) - 1
        while place < len(self._pieces) and self._starts[place] < last:
            if isinstance(self._pieces[place], ProvenMessage) and self._starts[place] >= first:
                yield self._starts[place]
            place += 1

    def row_of_sequence(self, sequence: int) -> int:
        """Returns the row of a message, or the row where it would be.

        If several have the sequence (a copied slice, a restart), it is the last one.
        """
        note, after = -1, -1
        for place in reversed(range(len(self._pieces))):
            piece, begin = self._pieces[place], self._starts[place]
            if isinstance(piece, MessageStretch):
                if piece.first <= sequence <= piece.last:
                    position = self.reader.position_of(piece, sequence, "sequence")
                    row = piece.row_of(position)
                    exact = self.reader.located(piece, position, position + 1).sequence
                    if len(exact) and int(exact[0]) == sequence:
                        return begin + row
                    note = begin + row - 1 if note < 0 else note
                if piece.first > sequence or after < 0:
                    after = begin if piece.first > sequence else begin + piece.rows - 1
            elif isinstance(piece, ProvenMessage):
                if piece.sequence == sequence:
                    return begin
            elif note < 0 and piece.first <= sequence <= piece.last and piece.last:
                note = begin
        return note if note >= 0 else max(after, 0)

    def row_of_time(self, timestamp: int) -> int:
        """Returns the row of the first message at or after a time, the last row if all are older."""
        for place, piece in enumerate(self._pieces):
            if isinstance(piece, MessageStretch) and piece.last_timestamp >= timestamp:
                return self._starts[place] + piece.row_of(self.reader.position_of(piece, timestamp, "timestamp"))
            if isinstance(piece, ProvenMessage) and piece.timestamp >= timestamp:
                return self._starts[place]
        return max(len(self) - 1, 0)

    def row_of_place(self, file: str, offset: int) -> int | None:
        """Returns the row of the record or damage at a byte of a slice, None if the file has no row.

        `file` is the name of the slice, with or without directories; an index stands for its data file.
        """
        name = file.rpartition("/")[2]
        found = None
        for place, piece in enumerate(self._pieces):
            begin = self._starts[place]
            if (piece.file if isinstance(piece, RowNote) else piece.files.name) != name:
                continue
            if isinstance(piece, MessageStretch):
                if piece.start <= offset < piece.end:
                    return begin + piece.row_of(self.reader.position_of(piece, offset, "offset", side="right"))
            elif isinstance(piece, RowNote):
                if piece.offset is not None and piece.offset <= offset < piece.offset + (piece.length or 0):
                    return begin
            elif isinstance(piece, ProvenMessage) and piece.offset <= offset < piece.start + piece.size:
                return begin
            at = piece.offset if isinstance(piece, RowNote | ProvenMessage) else piece.start
            if found is None or (at is not None and at <= offset):
                found = begin
        return found

    def row_of_share(self, share: float) -> int:
        """Returns the row at a share of all rows, from 0 to 1."""
        return round(min(max(share, 0.0), 1.0) * max(len(self) - 1, 0))

    def row_from_end(self, number: int) -> int:
        """Returns the row of the last message for 1, of the one before for 2 and so on; at least the first row."""
        for place in reversed(range(len(self._pieces))):
            piece, begin = self._pieces[place], self._starts[place]
            if isinstance(piece, MessageStretch):
                if number <= piece.count:
                    return begin + piece.row_of(piece.count - number)
                number -= piece.count
            elif isinstance(piece, ProvenMessage):
                number -= 1
                if not number:
                    return begin
        return 0

    def next_note(self, row: int, *, backward: bool = False) -> int | None:
        """Returns the next row that is not a message, from a row on; None if there is none."""
        if not self._pieces:
            return None
        place = max(min(bisect_right(self._starts, row), len(self._pieces)) - 1, 0)
        places = range(place, -1, -1) if backward else range(place, len(self._pieces))
        for each in places:
            piece, begin = self._pieces[each], self._starts[each]
            if isinstance(piece, RowNote):
                if (begin < row) if backward else (begin > row):
                    return begin
            elif isinstance(piece, MessageStretch):
                found = _next_break(piece, row - begin, backward=backward)
                if found is not None:
                    return begin + found
        return None


def _next_break(stretch: MessageStretch, row: int, *, backward: bool) -> int | None:
    """Returns the row of the next gap of a run before or after a row, counted from its first."""
    numbers = range(len(stretch.breaks))

    def row_of(number: int) -> int:
        return int(stretch.breaks[number]) + number

    cut = bisect_left(numbers, row, key=row_of) - 1 if backward else bisect_right(numbers, row, key=row_of)
    return row_of(cut) if 0 <= cut < len(numbers) else None


def open_window(
    files: ChannelFiles,
    crc: Crc,
    *,
    key: bytes | None = None,
    survey: ChannelSurvey | None = None,
) -> RowWindow:
    """Opens a channel at once: a small one exactly, a large one from its indexes (`refine` does the rest).

    Without a key, payloads stay as they are stored. A `survey` of the channel is used if given.
    """
    parts = Builder(files.raw_name, crc).build(files, {}, survey) if is_small(files) else estimate(files)
    return RowWindow(SliceStretchReader(files.raw_name, crc, key=key), parts)


def refine(
    window: RowWindow | None,
    files: ChannelFiles,
    crc: Crc,
    *,
    key: bytes | None = None,
    survey: ChannelSurvey | None = None,
    live: bool = False,
    progress: Progress | None = None,
) -> RowWindow:
    """Determines all rows of a channel as it is now.

    Slices of `window` with unchanged files are not read again. Without a key, payloads stay as they are stored.
    `live`: a server is writing. `progress` is called with bytes.
    """
    known = {part.name: part for part in window.parts} if window else {}
    builder = Builder(files.raw_name, crc, live=live)
    reader = SliceStretchReader(files.raw_name, crc, key=key)
    return RowWindow(reader, builder.build(files, known, survey, progress))


def _changed(stretch: MessageStretch) -> RowNote:
    return RowNote(RowNoteKind.FILE, f"{stretch.files.name} has changed since it was read", stretch.files.name)
