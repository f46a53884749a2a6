"""In a task: sums over its messages. One pass, a few columns; only the sums are kept.

A piece of a slice becomes rows of several kinds that can be added in any order: messages by time, sizes and
intervals by bucket. Only its `piece` row has a position, because gaps and silence between messages of two pieces are
seen only where the pieces meet (`summary`).

Messages are counted in time buckets whose width fits the piece, at most an hour. Each width divides the wider ones
(`browse.histogram.WIDTHS`), and a channel is never shorter than its pieces, so that its buckets are sums of theirs.

Histograms of whole numbers over many orders of magnitude have buckets whose width is a sixteenth of their size. Two
of the same kind can be added. A percentile of one is off by at most a sixteenth (6.25 %); numbers below 32 are
exact.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stantools.browse.histogram import BARS, bucket_width
from stantools.errors import StoreUnreadableError
from stantools.pipeline.tables.model import FailedRead, Mode, SlicePiece, Split, StreamPart, TableName, plain_text
from stantools.pipeline.tables.read import read_split
from stantools.pipeline.tables.stream_messages import StreamRows
from stantools.pipeline.tables.table_options import TableOptions

#: subjects of a stream that are counted; with more there is no list of those with the most messages
_MAX_SUBJECTS = 1 << 18
_TOP_SUBJECTS = 10
HOUR = 3_600_000_000_000
#: buckets per power of two
_PARTS = 16
_BITS = 4
_GOOD = pa.array(["ok", "repaired"])


class SumKind(enum.StrEnum):
    TIME = "time"  #: messages of a time bucket; `bucket` is its number since 1970, `width` its nanoseconds
    SIZE = "size"  #: payloads of similar size
    INTERVAL = "interval"  #: intervals between messages of similar length, in nanoseconds
    PIECE = "piece"  #: the whole piece
    SUBJECT = "subject"  #: one of the subjects of a stream with the most messages; `detail` is its name
    UNREADABLE = "unreadable"  #: something that could not be read


#: One row of sums. Columns without meaning for a kind are 0 or null.
SCHEMA = pa.schema(
    [
        pa.field("store", pa.string()),
        pa.field("channel", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("bucket", pa.int64()),
        pa.field("width", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("largest", pa.int64()),
        pa.field("damaged", pa.int64()),
        pa.field("missing", pa.int64()),
        pa.field("gaps", pa.int64()),
        pa.field("silence", pa.int64()),
        pa.field("first_seq", pa.int64()),
        pa.field("last_seq", pa.int64()),
        pa.field("first_ns", pa.int64()),
        pa.field("last_ns", pa.int64()),
        pa.field("earliest", pa.int64()),
        pa.field("latest", pa.int64()),
        pa.field("slice", pa.int64()),
        pa.field("archived", pa.bool_()),
        pa.field("offset", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)

_COLUMNS = ("seq", "timestamp_ns", "size", "status")
Row = dict[str, object]


def sums_of(split: Split, options: TableOptions) -> Iterator[pa.RecordBatch]:
    """Yields the sums of one task as batches of `SCHEMA`.

    The split must hold pieces of slices; columns and table of the options are ignored.
    """
    how = replace(options, table=TableName.MESSAGES, columns=_COLUMNS, mode=Mode.PERMISSIVE)
    rows: list[Row] = []
    for part in split.parts:
        rows += _rows(part, how)
        if len(rows) >= options.batch_rows:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _rows(part: object, options: TableOptions) -> list[Row]:
    if isinstance(part, StreamPart):
        return _stream_rows(part, options)
    if isinstance(part, SlicePiece):
        ref = part.slice
        place: Row = {"slice": ref.number, "archived": ref.archived, "offset": part.start}
        sums = _PieceSums({"store": plain_text(ref.store.root), "channel": plain_text(ref.channel)}, place)
        try:
            for batch in read_split(Split((part,)), options):
                sums.add(batch)
        except StoreUnreadableError as problem:
            return [_unreadable(part.slice.store.root, part.slice.channel, problem.message)]
        return sums.rows()
    if isinstance(part, FailedRead):
        return [_unreadable(part.root, part.channel, part.message)]
    raise TypeError(f"statistics are made of messages, not of {part!r}")


def _stream_rows(part: StreamPart, options: TableOptions) -> list[Row]:
    """Returns the sums of a stream; deleted messages are not missing."""
    columns = ("sequence", "time_ns", "size", "state", "subject")
    rows = StreamRows(part, replace(options, table=TableName.STREAM_MESSAGES, columns=columns))
    base: Row = {"store": plain_text(part.store), "channel": plain_text(part.label)}
    sums = _PieceSums(base, {"slice": 0, "archived": False, "offset": 0})
    subjects: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for batch in rows.batches():
        sums.add(batch)
        good = batch.filter(pc.equal(batch.column("state"), "ok"))
        if len(subjects) <= _MAX_SUBJECTS:
            table = pa.Table.from_batches([good.select(["subject", "size"])]).group_by("subject")
            for each in table.aggregate([("size", "sum"), ("size", "count")]).to_pylist():
                subjects[each["subject"]] += each["size_count"]
                sizes[each["subject"]] += each["size_sum"]
    survey = rows.survey
    assert survey is not None
    gone = survey.damaged | survey.missing
    sums.set_missing(gone.count(), len(gone.pairs()))
    found = sums.rows()
    if len(subjects) <= _MAX_SUBJECTS:
        for subject, count in subjects.most_common(_TOP_SUBJECTS):
            what: Row = {"kind": SumKind.SUBJECT.value, "detail": subject}
            found.append({**base, **what, "messages": count, "bytes": sizes[subject]})
    return found


def _unreadable(root: str, channel: str | None, message: str) -> Row:
    return {
        "store": plain_text(root),
        "channel": plain_text(channel),
        "kind": SumKind.UNREADABLE.value,
        "detail": plain_text(message),
    }


def _batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@dataclass
class _PieceSums:
    """Sums over one piece, whose messages arrive in the order of the file."""

    base: Row  #: store and channel
    place: Row  #: order of the pieces of a channel
    _width: int = 1
    _times: dict[int, tuple[int, int]] = field(default_factory=dict)
    _span: tuple[int, int] | None = None
    _sizes: dict[int, int] = field(default_factory=dict)
    _intervals: dict[int, int] = field(default_factory=dict)
    _messages: int = 0
    _bytes: int = 0
    _largest: int = 0
    _damaged: int = 0
    _missing: int = 0
    _gaps: int = 0
    _silence: int = 0
    _first: tuple[int, int] | None = None
    _last: tuple[int, int] = (0, 0)

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds a batch with the columns seq, timestamp_ns, size and status."""
        good = pc.is_in(batch.column(3), value_set=_GOOD).to_numpy(zero_copy_only=False)
        self._damaged += int(len(good) - good.sum())
        if not good.any():
            return
        keep = np.flatnonzero(good)
        # Null, which only rows without a message have, becomes 0.
        numbers = (batch.column(place).fill_null(0).to_numpy(zero_copy_only=False) for place in range(3))
        sequence, time, size = (column[keep] for column in numbers)
        self._messages += len(keep)
        self._bytes += int(size.sum())
        self._largest = max(self._largest, int(size.max()))
        _count_into(self._sizes, bucket_of(size))
        self._count_times(time, size)
        if self._first is None:
            self._first = (int(sequence[0]), int(time[0]))
        else:
            sequence = np.concatenate(([self._last[0]], sequence))
            time = np.concatenate(([self._last[1]], time))
        self._count_between(sequence, time)
        self._last = (int(sequence[-1]), int(time[-1]))

    def _count_times(self, time: npt.NDArray[np.int64], size: npt.NDArray[np.int64]) -> None:
        low, high = int(time.min()), int(time.max())
        if self._span:
            low, high = min(low, self._span[0]), max(high, self._span[1])
        self._span = low, high
        width = fitting_width(self._span)
        if width > self._width:
            self._times = widened(width, {(self._width, place): sums for place, sums in self._times.items()})
            self._width = width
        places, inverse = np.unique(time // self._width, return_inverse=True)
        counts = np.bincount(inverse)
        sums = np.zeros(len(places), np.int64)
        np.add.at(sums, inverse, size)
        for place, count, total in zip(places.tolist(), counts.tolist(), sums.tolist(), strict=True):
            before = self._times.get(place, (0, 0))
            self._times[place] = (before[0] + count, before[1] + total)

    def _count_between(self, sequence: npt.NDArray[np.int64], time: npt.NDArray[np.int64]) -> None:
        if len(sequence) < 2:
            return
        between = np.diff(sequence) - 1
        holes = between[between > 0]
        self._missing += int(holes.sum())
        self._gaps += len(holes)
        # A sequence that does not rise begins another history of the channel: there is no interval before it.
        intervals = np.diff(time)[between >= 0]
        intervals = np.maximum(intervals, 0)  # the clock of a server may be set back
        if len(intervals):
            self._silence = max(self._silence, int(intervals.max()))
            _count_into(self._intervals, bucket_of(intervals))

    def set_missing(self, sequences: int, gaps: int) -> None:
        """Sets the number of missing sequences where holes between messages do not tell it."""
        self._missing, self._gaps = sequences, gaps

    def rows(self) -> list[Row]:
        base = self.base
        rows: list[Row] = [
            {
                **base,
                "kind": SumKind.TIME.value,
                "bucket": place,
                "width": self._width,
                "messages": count,
                "bytes": total,
            }
            for place, (count, total) in self._times.items()
        ]
        for kind, histogram in ((SumKind.SIZE, self._sizes), (SumKind.INTERVAL, self._intervals)):
            rows += [{**base, "kind": kind.value, "bucket": each, "messages": n} for each, n in histogram.items()]
        first = self._first or (None, None)
        last = self._last if self._first else (None, None)
        rows.append(
            {
                **base,
                "kind": SumKind.PIECE.value,
                "messages": self._messages,
                "bytes": self._bytes,
                "largest": self._largest,
                "damaged": self._damaged,
                "missing": self._missing,
                "gaps": self._gaps,
                "silence": self._silence,
                "first_seq": first[0],
                "last_seq": last[0],
                "first_ns": first[1],
                "last_ns": last[1],
                "earliest": self._span and self._span[0],
                "latest": self._span and self._span[1],
                **self.place,
            }
        )
        return rows


def fitting_width(span: tuple[int, int] | None) -> int:
    """Returns the width of a time bucket for messages of a span, in nanoseconds."""
    return min(bucket_width(span[1] - span[0], BARS), HOUR) if span else 1


def widened(width: int, times: Mapping[tuple[int, int], tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Adds up the messages and bytes of time buckets, given by width and number, into buckets of a wider width.

    The width, in nanoseconds, must be a multiple of every width in `times`.
    """
    total: dict[int, tuple[int, int]] = {}
    for (narrow, place), (messages, size) in times.items():
        at = place // (width // narrow)
        before = total.get(at, (0, 0))
        total[at] = before[0] + messages, before[1] + size
    return total


def _count_into(histogram: dict[int, int], buckets: npt.NDArray[np.int64]) -> None:
    values, counts = np.unique(buckets, return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        histogram[value] = histogram.get(value, 0) + count


def bucket_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    _, exponent = np.frexp(values.astype(np.float64))
    shift = np.maximum(exponent.astype(np.int64) - 1 - _BITS, 0)
    # Rounding up to a float may have reached the next power of two.
    shift = np.where((values >> shift) < _PARTS, np.maximum(shift - 1, 0), shift)
    return (shift << _BITS) + (values >> shift)


def bounds_of(bucket: int) -> tuple[int, int]:
    shift = max((bucket >> _BITS) - 1, 0)
    mantissa = bucket - (shift << _BITS)
    return mantissa << shift, ((mantissa + 1) << shift) - 1


def percentile(histogram: Mapping[int, int], share: float) -> int:
    """Returns the middle of the bucket that a share (0 to 1) of all numbers does not exceed."""
    total = sum(histogram.values())
    if not total:
        return 0
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= share * total:
            break
    low, high = bounds_of(bucket)
    return (low + high) // 2
