"""Rows of the messages table on their way into streams: checked, and spooled channel by channel.

A task does not know the rows of other tasks. So every channel must arrive in one piece, in rising order;
`jetstream.write` arranges that. Every problem of a channel is found before any of its messages is published.

Spooled messages are in a temporary file without a name, so that nothing remains after any end of the process. Memory
holds one entry for some thousand messages.

    block: payloads | replies | padding to 8 | sequence, timestamp, ends of payloads, ends of replies
"""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stantools.errors import RefusedError, StoreUnwritableError, UsageError
from stantools.format.columns import MessageColumns
from stantools.pipeline.spark.jetstream_options import Damaged, SinkOptions
from stantools.streamfiles.batch import MessageBatch
from stantools.streamfiles.headers import safe_value

#: Rows, and payload bytes, of one block. A longer payload is a block of its own.
_ROWS = 4096
_BYTES = 4 << 20

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Texts:
    """Byte strings as ranges of one buffer."""

    content: _U8  #: all of them; may hold more bytes
    ends: _I64  #: boundaries; one more than there are strings

    def __len__(self) -> int:
        return len(self.ends) - 1

    def part(self, low: int, high: int) -> Texts:
        return Texts(self.content, self.ends[low : high + 1])

    def joined(self) -> _U8:
        return self.content[self.ends[0] : self.ends[-1]]

    def relative(self) -> _I64:
        relative: _I64 = self.ends - self.ends[0]
        return relative

    def row(self, row: int) -> bytes:
        return self.content[self.ends[row] : self.ends[row + 1]].tobytes()


@dataclass(frozen=True)
class _SpoolBlock:
    offset: int
    rows: int
    data_size: int
    reply_size: int
    first: int
    last: int

    @property
    def columns_at(self) -> int:
        return -(-(self.data_size + self.reply_size) // 8) * 8


class Spool:
    """Messages of one channel in rising order, as `Messages`, in a temporary file. A context manager."""

    def __init__(self, channel: bytes, subject: bytes, folder: str | None = None) -> None:
        self.channel = channel
        self.subject = subject
        self.count = 0
        self._folder = folder
        self._blocks: list[_SpoolBlock] = []
        self._end = 0
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="stantools-", buffering=0)  # noqa: SIM115
        except OSError as problem:
            raise self._unwritable(problem) from problem

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def first(self) -> int:
        return self._blocks[0].first if self._blocks else 0

    @property
    def last(self) -> int:
        return self._blocks[-1].last if self._blocks else 0

    def add(self, sequences: npt.NDArray[np.uint64], timestamps: _I64, data: Texts, replies: Texts) -> None:
        """Appends messages with rising sequences above those before; timestamps are nanoseconds since 1970."""
        low, rows = 0, len(sequences)
        while low < rows:
            most = int(np.searchsorted(data.ends[low + 1 :], data.ends[low] + _BYTES, "right"))
            high = low + min(max(most, 1), _ROWS, rows - low)
            self._write(sequences[low:high], timestamps[low:high], data.part(low, high), replies.part(low, high))
            low = high

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[MessageBatch]:
        until = self.last if until is None else until
        for block in self._blocks:
            if block.last > after and block.first <= until:
                batch = self._batch(block)
                low, high = np.searchsorted(batch.sequence, np.array([after, until], np.uint64), "right").tolist()
                if low < high:
                    yield batch.part(low, high)

    def _write(self, sequences: npt.NDArray[np.uint64], timestamps: _I64, data: Texts, replies: Texts) -> None:
        payload, answers = data.joined(), replies.joined()
        rows = len(sequences)
        block = _SpoolBlock(self._end, rows, len(payload), len(answers), int(sequences[0]), int(sequences[-1]))
        pad = np.zeros(block.columns_at - len(payload) - len(answers), np.uint8)
        for part in (payload, answers, pad, sequences, timestamps, data.relative(), replies.relative()):
            self._append(np.ascontiguousarray(part).view(np.uint8))
        self._blocks.append(block)
        self.count += rows

    def _append(self, content: _U8) -> None:
        at, view = 0, content.data
        try:
            while at < len(view):
                at += os.write(self._file.fileno(), view[at:])
        except OSError as problem:
            raise self._unwritable(problem) from problem
        self._end += len(view)

    def _batch(self, block: _SpoolBlock) -> MessageBatch:
        rows, base = block.rows, block.columns_at
        size = base + (2 * rows + 2 * (rows + 1)) * 8
        content = os.pread(self._file.fileno(), size, block.offset)
        numbers = np.frombuffer(content, np.int64, offset=base)
        columns = MessageColumns(0)
        columns.capacity = rows
        columns.offset = np.zeros(rows, np.int64)
        columns.size = np.zeros(rows, np.uint32)
        columns.flags = np.zeros(rows, np.uint8)
        columns.sequence = numbers[:rows].view(np.uint64)
        columns.timestamp = numbers[rows : 2 * rows]
        ends, answers = numbers[2 * rows : 3 * rows + 1], numbers[3 * rows + 1 : 4 * rows + 2]
        columns.data_start, columns.data_size = ends[:-1], np.diff(ends).astype(np.uint32)
        columns.reply_start = answers[:-1] + block.data_size
        columns.reply_size = np.diff(answers).astype(np.uint32)
        return MessageBatch(self.channel, self.subject, memoryview(content), columns, columns.sequence)

    def _unwritable(self, problem: OSError) -> StoreUnwritableError:
        place = Path(self._folder or tempfile.gettempdir())
        remedy = "name another directory with the option spoolDir"
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"the largest channel must fit there temporarily; free some space, or {remedy}"
        return StoreUnwritableError(f"{place}: temporary files cannot be written there: {problem.strerror}", remedy)


#: Required and optional columns.
REQUIRED = {"channel": "text", "seq": "a whole number", "data": "binary or text"}
OPTIONAL = {
    "timestamp_ns": "a whole number",
    "timestamp": "a time",
    "reply": "text",
    "subject": "text",
    "status": "text",
}
#: Statuses of messages; rows of other statuses are damaged ranges of a store.
_GOOD = pa.array(["ok", "repaired"])
ARRANGE = "write it with stantools.pipeline.spark.jetstream.write, which puts the rows in order"


def check_columns(columns: Mapping[str, Any], *, origin: bool) -> None:
    """Checks that the required columns exist; `columns` maps their names to types in any form."""
    missing = [name for name in REQUIRED if name not in columns]
    if origin and not {"timestamp_ns", "timestamp"} & set(columns):
        missing.append("timestamp_ns")
    if missing:
        have = ", ".join(columns) or "none"
        remedy = "select them"
        if missing == ["timestamp_ns"]:
            remedy += ", or omit the headers with channel, sequence and time: option originHeaders=off"
        raise UsageError(f"messages need the columns {', '.join(missing)}; there are {have}", remedy)


@dataclass
class SpoolRows:
    """The rows of one task; counts by status the rows left out on request."""

    options: SinkOptions
    left_out: dict[str, int] = field(default_factory=dict)

    def channels(self, batches: Iterable[pa.RecordBatch]) -> Generator[Spool, None, None]:
        """Yields one spool per channel, which the caller closes.

        Raises `RefusedError` if rows are out of order or are not messages, `UsageError` for missing or wrong
        columns.
        """
        done: set[str] = set()
        name, spool = "", None
        try:
            for batch in batches:
                for channel, part in self._runs(batch):
                    if spool is None or channel != name:
                        if spool is not None:
                            done.add(name)
                            complete, spool = spool, None
                            yield complete
                        self._check_new(channel, done)
                        _, subject = self.options.names(channel)
                        name, spool = channel, Spool(_raw(channel), _raw(subject), self.options.spool_folder())
                    self._add(spool, channel, part)
            if spool is not None:
                complete, spool = spool, None
                yield complete
        finally:
            if spool is not None:
                spool.close()

    def _check_new(self, channel: str, done: Collection[str]) -> None:
        if channel in done:
            raise RefusedError(f"channel {channel}: its rows are not contiguous in the partition", ARRANGE)
        if self.options.stream and done:
            raise RefusedError(
                f"stream {self.options.stream} would get the channels {min(done)} and {channel}, whose sequences "
                "exclude each other",
                "write one channel, or leave the option stream out: each channel then gets a stream of its own",
            )

    def _runs(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Cuts a batch where another channel begins."""
        check_columns(dict(zip(batch.schema.names, batch.schema.types, strict=True)), origin=self.options.origin)
        batch = self._messages(batch)
        if not batch.num_rows:
            return
        channels = _cast_column(batch, "channel", pa.string())
        if channels.null_count:
            raise RefusedError("a row has no channel (null)", "leave such rows out: channel IS NOT NULL")
        codes = channels.dictionary_encode()
        numbers = codes.indices.to_numpy()
        cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for low, high in itertools.pairwise(cuts):
            yield codes.dictionary[int(numbers[low])].as_py(), batch.slice(low, high - low)

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Drops or refuses rows that are not messages."""
        if "status" not in batch.schema.names:
            return batch
        status = _cast_column(batch, "status", pa.string())
        good = pc.fill_null(pc.is_in(status, _GOOD), False)
        if pc.all(good).as_py():
            return batch
        damaged = batch.filter(pc.invert(good))
        if self.options.damaged is Damaged.REFUSE:
            row = {name: damaged.column(name)[0].as_py() for name in damaged.schema.names if name != "data"}
            place = ", ".join(
                f"{key} {row[key]}" for key in ("store", "channel", "slice", "offset", "seq") if row.get(key)
            )
            raise RefusedError(
                f"a row is not an intact message but {row['status'] or 'null'}: {place}",
                "leave such rows out with the option damaged=leave-out, when reading with mode=DROPMALFORMED, or with "
                "status IN ('ok', 'repaired'); without the column status every row counts as a message",
            )
        for each in pc.value_counts(_cast_column(damaged, "status", pa.string())).to_pylist():
            word = each["values"] or "null"
            self.left_out[word] = self.left_out.get(word, 0) + each["counts"]
        return batch.filter(good)

    def _add(self, spool: Spool, channel: str, batch: pa.RecordBatch) -> None:
        sequences = self._sequences(batch, channel, spool.last)
        self._check_subject(batch, channel, sequences)
        data = _texts(batch, "data")
        if batch.column("data").null_count:
            row = int(np.flatnonzero(batch.column("data").is_null().to_numpy(zero_copy_only=False))[0])
            raise RefusedError(
                f"channel {channel}: message {sequences[row]} has no data (null)",
                "an empty payload is X'': coalesce(data, X'')",
            )
        spool.add(sequences, self._timestamps(batch, channel), data, _replies(batch))

    def _sequences(self, batch: pa.RecordBatch, channel: str, last: int) -> npt.NDArray[np.uint64]:
        column = _cast_column(batch, "seq", pa.int64())
        if column.null_count:
            raise RefusedError(f"channel {channel}: a row has no seq (null)", "leave such rows out: seq IS NOT NULL")
        values = column.to_numpy()
        before = np.concatenate(([last], values[:-1]))
        wrong = np.flatnonzero(values <= before)
        if len(wrong):
            now, earlier = int(values[wrong[0]]), int(before[wrong[0]])
            if now < 1:
                raise RefusedError(f"channel {channel}: {now} is not a sequence", "sequences begin at 1")
            if now == earlier:
                raise RefusedError(
                    f"channel {channel}: there are two messages with sequence {now}",
                    "write one store at a time, or give each its own option streamPrefix and subjectPrefix; "
                    "dropDuplicates(['channel', 'seq']) if they are the same",
                )
            raise RefusedError(f"channel {channel}: message {now} comes after message {earlier}", ARRANGE)
        return np.asarray(values.view(np.uint64))

    def _check_subject(self, batch: pa.RecordBatch, channel: str, sequences: npt.NDArray[np.uint64]) -> None:
        if "subject" not in batch.schema.names:
            return
        same = pc.fill_null(pc.equal(_cast_column(batch, "subject", pa.string()), channel), True)
        if not pc.all(same).as_py():
            row = int(np.flatnonzero(~same.to_numpy(zero_copy_only=False))[0])
            raise RefusedError(
                f"channel {channel}: message {sequences[row]} has the subject {batch.column('subject')[row]}",
                "it belongs to another channel; leave it out, or drop the column subject to publish it as one "
                "of this channel",
            )

    def _timestamps(self, batch: pa.RecordBatch, channel: str) -> npt.NDArray[np.int64]:
        if "timestamp_ns" in batch.schema.names:
            column = _cast_column(batch, "timestamp_ns", pa.int64())
        elif "timestamp" in batch.schema.names:
            kind = batch.schema.field("timestamp").type
            if not pa.types.is_timestamp(kind):
                raise UsageError(f"the column timestamp is of type {kind}, expected a time", "convert it")
            column = batch.column("timestamp").cast(pa.timestamp("ns", kind.tz)).cast(pa.int64())
        else:
            return np.zeros(batch.num_rows, np.int64)
        if column.null_count and self.options.origin:
            raise RefusedError(
                f"channel {channel}: a message has no time (null) for its headers",
                "give it one, or leave the headers out: option originHeaders=off",
            )
        return np.asarray(column.fill_null(0).to_numpy())


def _cast_column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """Returns a column converted to a type; raises `UsageError` for other columns."""
    column = batch.column(name)
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    fits = pa.types.is_integer if pa.types.is_integer(kind) else _is_text
    if not fits(column.type) and not pa.types.is_null(column.type):
        raise _wrong_type(name, column.type)
    return column.cast(kind)


def _texts(batch: pa.RecordBatch, name: str, *, fill: bool = False) -> Texts:
    """Returns a column of texts or bytes; with `fill`, null counts as empty."""
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return Texts(np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int64))
    if not _is_text(column.type) and not _is_binary(column.type):
        raise _wrong_type(name, column.type)
    if not any(fits(column.type) for fits in _NARROW):
        column = column.cast(pa.large_binary())
    if fill and column.null_count:
        column = pc.fill_null(column, "" if _is_text(column.type) else b"")
    narrow = any(fits(column.type) for fits in _NARROW)
    number = np.dtype(np.int32 if narrow else np.int64)
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, number, len(column) + 1, column.offset * number.itemsize)
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    return Texts(data, ends.astype(np.int64, copy=False))


#: Types with contiguous values and offsets of 32 bits.
_NARROW = (pa.types.is_binary, pa.types.is_string)


def _is_text(kind: pa.DataType) -> bool:
    return any(fits(kind) for fits in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_binary(kind: pa.DataType) -> bool:
    return any(fits(kind) for fits in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view))


def _wrong_type(name: str, kind: pa.DataType) -> UsageError:
    return UsageError(f"the column {name} is of type {kind}, expected {({**REQUIRED, **OPTIONAL})[name]}", "convert it")


def _replies(batch: pa.RecordBatch) -> Texts:
    """Returns the reply subjects, made valid for headers."""
    if "reply" not in batch.schema.names or batch.column("reply").null_count == batch.num_rows:
        return Texts(np.zeros(0, np.uint8), np.zeros(batch.num_rows + 1, np.int64))
    replies = _texts(batch, "reply", fill=True)
    content = replies.joined()
    if not len(content) or (int(content.min()) > 0x20 and not (content == 0x7F).any()):
        return replies
    safe = [safe_value(replies.row(row)) for row in range(len(replies))]
    ends = np.zeros(len(safe) + 1, np.int64)
    np.cumsum([len(each) for each in safe], out=ends[1:])
    return Texts(np.frombuffer(b"".join(safe), np.uint8), ends)


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
