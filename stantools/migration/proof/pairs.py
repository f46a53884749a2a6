"""Comparing the messages of two stores, many at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stantools.format.columns import MessageColumns
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.migration.batches import Piece
from stantools.progress import Progress
from stantools.store.mapping import Buffer
from stantools.store.ranges import Ranges

_U64 = npt.NDArray[np.uint64]
_Rows = npt.NDArray[np.intp]

#: What can differ, in the order in which it is told.
KINDS = ("missing", "extra", "timestamp", "reply", "payload")


class Compared:
    """What a comparison of two channels came to.

    Attributes:
        both: Messages that both have.
    """

    def __init__(self) -> None:
        self.both = 0
        self._ranges = dict.fromkeys(KINDS, Ranges())

    def differing(self) -> Iterator[tuple[str, Ranges]]:
        """Gives each kind of difference there is, with the sequences."""
        return ((kind, ranges) for kind, ranges in self._ranges.items() if ranges)

    def add(self, other: Compared) -> None:
        """Adds what a comparison of other messages of the same channels came to."""
        self.both += other.both
        for kind, ranges in other.differing():
            self._ranges[kind] |= ranges

    def note(self, kind: str, sequences: _U64) -> None:
        """Takes note that sequences, which may be none, differ in one way."""
        if len(sequences):
            self._ranges[kind] |= Ranges.from_sequences(sequences)


class _Reader:
    """Goes through the pieces of one side.

    Attributes:
        buffer: What the columns of the present piece point into.
        columns: The present piece.
        at: Its first row that was not compared yet.
    """

    def __init__(self, pieces: Iterator[Piece], progress: Progress | None) -> None:
        self._pieces = pieces
        self._progress = progress
        self.buffer: Buffer = memoryview(b"")
        self.columns = MessageColumns(0)
        self.at = 0

    def load(self) -> bool:
        """Makes sure that there is a row to compare; False at the end."""
        while self.at == len(self.columns.sequence):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self.buffer, self.columns = piece
            self.at = 0
            if self._progress:
                sizes = int(self.columns.size.sum(dtype=np.int64))
                self._progress(sizes + RECORD_HEADER_SIZE * len(self.columns.size))
        return True

    @property
    def last(self) -> int:
        """The last sequence of the present piece."""
        return int(self.columns.sequence[-1])

    def up_to(self, sequence: int) -> slice:
        """Takes the rows up to a sequence."""
        end = int(np.searchsorted(self.columns.sequence, np.uint64(sequence), side="right"))
        rows, self.at = slice(self.at, end), end
        return rows


def compare_pieces(a: Iterator[Piece], b: Iterator[Piece], progress: Progress | None = None) -> Compared:
    """Compares the messages of two channels, each given in rising order.

    Args:
        a: Those of the first.
        b: Those of the second.
        progress: Told the number of bytes of both as they are compared.
    """
    compared = Compared()
    one, other = _Reader(a, progress), _Reader(b, progress)
    while True:
        left, right = one.load(), other.load()
        if not (left and right):
            break
        bound = min(one.last, other.last)
        rows, other_rows = one.up_to(bound), other.up_to(bound)
        _compare_rows(compared, one, rows, other, other_rows)
    for reader, kind in ((one, "missing"), (other, "extra")):
        while reader.load():
            compared.note(kind, reader.columns.sequence[reader.at :])
            reader.at = len(reader.columns.sequence)
    return compared


def _compare_rows(compared: Compared, one: _Reader, rows: slice, other: _Reader, other_rows: slice) -> None:
    a, b = one.columns.sequence[rows], other.columns.sequence[other_rows]
    if np.array_equal(a, b):
        here: _Rows = np.arange(rows.start, rows.stop)
        there: _Rows = np.arange(other_rows.start, other_rows.stop)
    else:
        common, here, there = np.intersect1d(a, b, assume_unique=True, return_indices=True)
        compared.note("missing", a[~np.isin(a, common, assume_unique=True)])
        compared.note("extra", b[~np.isin(b, common, assume_unique=True)])
        here, there = here + rows.start, there + other_rows.start
    if not len(here):
        return
    compared.both += len(here)
    sequences = one.columns.sequence[here]
    compared.note("timestamp", sequences[one.columns.timestamp[here] != other.columns.timestamp[there]])
    if _same_bytes(one, here, other, there):
        return
    for kind, start, size in (("payload", "data_start", "data_size"), ("reply", "reply_start", "reply_size")):
        parts, other_parts = _parts(one, here, start, size), _parts(other, there, start, size)
        differs = [x != y for x, y in zip(parts, other_parts, strict=True)]
        compared.note(kind, sequences[np.array(differs)])


def _same_bytes(one: _Reader, here: _Rows, other: _Reader, there: _Rows) -> bool:
    """Tells whether payloads and replies lie in the same order between the same bytes, which is quick to find out."""
    starts, sizes = _places(one, here)
    other_starts, other_sizes = _places(other, there)
    if not np.array_equal(sizes, other_sizes):
        return False
    if not len(filled := np.flatnonzero(sizes)):
        return True
    starts, other_starts, sizes = starts[filled], other_starts[filled], sizes[filled]
    shift = int(other_starts[0] - starts[0])
    if not np.array_equal(starts + shift, other_starts):
        return False
    begin, end = int(starts.min()), int((starts + sizes).max())
    mine = np.frombuffer(one.buffer, np.uint8)[begin:end]
    return np.array_equal(mine, np.frombuffer(other.buffer, np.uint8)[begin + shift : end + shift])


def _places(reader: _Reader, rows: _Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    columns = reader.columns
    starts = np.concatenate((columns.data_start[rows], columns.reply_start[rows]))
    sizes = np.concatenate((columns.data_size[rows], columns.reply_size[rows])).astype(np.int64)
    return starts, sizes


def _parts(reader: _Reader, rows: _Rows, start: str, size: str) -> Iterator[bytes]:
    starts, sizes = getattr(reader.columns, start)[rows].tolist(), getattr(reader.columns, size)[rows].tolist()
    return (bytes(reader.buffer[at : at + length]) for at, length in zip(starts, sizes, strict=True))
