"""Rows of the messages table on their way into streams: checked, and spooled channel by channel.

A task does not know the rows of other tasks. So every channel must arrive in one piece, in rising order;
`jetstream.write` arranges that. Every problem of a channel is found before any of its messages is published.

Spooled messages are in a temporary file of Arrow's format without a name, so that nothing remains after any end of the
process. Memory holds one entry for some thousand messages.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
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
from stantools.format.message_batch import MessageBatch
from stantools.pipeline.spark.jetstream_options import Damaged, SinkOptions
from stantools.streamfiles.headers import safe_value

#: Rows, and payload bytes, of one block. A longer payload is a block of its own.
_ROWS = 4096
_BYTES = 4 << 20

_I64 = npt.NDArray[np.int64]


_SPOOLED = pa.schema(
    [("seq", pa.uint64()), ("time", pa.int64()), ("data", pa.large_binary()), ("reply", pa.large_binary())]
)


class Spool:
    """Messages of one channel in rising order, as `Messages`, in a temporary file. A context manager."""

    def __init__(self, channel: bytes, subject: bytes, folder: str | None = None) -> None:
        self.channel = channel
        self.subject = subject
        self.count = 0
        self._folder = folder
        self._blocks: list[tuple[int, int]] = []  # first and last sequence
        with self._writing():
            self._file = tempfile.TemporaryFile(dir=folder, prefix="stantools-")  # noqa: SIM115
            self._writer = pa.ipc.new_file(self._file, _SPOOLED)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # buffered rows, if the disk is full
            self._file.close()

    @property
    def first(self) -> int:
        return self._blocks[0][0] if self._blocks else 0

    @property
    def last(self) -> int:
        return self._blocks[-1][1] if self._blocks else 0

    def add(
        self, sequences: npt.NDArray[np.uint64], timestamps: _I64, data: pa.LargeBinaryArray, replies: pa.Array
    ) -> None:
        """Appends messages with rising sequences above those before; timestamps are nanoseconds since 1970."""
        columns = [pa.array(sequences, pa.uint64()), pa.array(timestamps, pa.int64()), data, replies]
        batch = pa.RecordBatch.from_arrays(columns, schema=_SPOOLED)
        ends = _contents(data)[1]
        low, rows = 0, len(sequences)
        while low < rows:
            most = int(np.searchsorted(ends[low + 1 :], ends[low] + _BYTES, "right"))
            high = low + min(max(most, 1), _ROWS, rows - low)
            with self._writing():
                self._writer.write_batch(batch.slice(low, high - low))
            self._blocks.append((int(sequences[low]), int(sequences[high - 1])))
            low = high
        self.count += rows

    def complete(self) -> None:
        """Ends writing, before the messages are read."""
        with self._writing():
            self._writer.close()
            self._file.flush()
        self._reader = pa.ipc.open_file(self._file)

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[MessageBatch]:
        until = self.last if until is None else until
        for number, (first, last) in enumerate(self._blocks):
            if last > after and first <= until:
                batch = self._batch(self._reader.get_batch(number))
                low, high = np.searchsorted(
                    batch.stream_sequence, np.array([after, until], np.uint64), "right"
                ).tolist()
                if low < high:
                    yield batch.part(low, high)

    def _batch(self, block: pa.RecordBatch) -> MessageBatch:
        rows = block.num_rows
        payloads, ends = _contents(block.column("data"))
        replies, answers = _contents(block.column("reply"))
        columns = MessageColumns(0)
        columns.capacity = rows
        columns.offset = np.zeros(rows, np.int64)
        columns.size = np.zeros(rows, np.uint32)
        columns.flags = np.zeros(rows, np.uint8)
        columns.sequence = block.column("seq").to_numpy()
        columns.timestamp = block.column("time").to_numpy()
        columns.data_start, columns.data_size = ends[:-1], np.diff(ends).astype(np.uint32)
        columns.reply_start = answers[:-1] + len(payloads)
        columns.reply_size = np.diff(answers).astype(np.uint32)
        content = np.concatenate([payloads, replies])
        return MessageBatch(columns, content.data, self.channel, self.subject)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            place = Path(self._folder or tempfile.gettempdir())
            remedy = "name another directory with the option spoolDir"
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                remedy = f"the largest channel must fit there temporarily; free some space, or {remedy}"
            raise StoreUnwritableError(
                f"{place}: temporary files cannot be written there: {problem.strerror}", remedy
            ) from problem


def _contents(column: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uint8], _I64]:
    """Returns the bytes of all values, and their boundaries: one more than there are values."""
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
    texts = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    return texts[ends[0] : ends[-1]], ends - ends[0]


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
                            spool.complete()
                            complete, spool = spool, None
                            yield complete
                        self._check_new(channel, done)
                        _, subject = self.options.names(channel)
                        name, spool = channel, Spool(_raw(channel), _raw(subject), self.options.spool_folder())
                    self._add(spool, channel, part)
            if spool is not None:
                spool.complete()
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
        if batch.column("data").null_count:
            row = int(np.flatnonzero(batch.column("data").is_null().to_numpy(zero_copy_only=False))[0])
            raise RefusedError(
                f"channel {channel}: message {sequences[row]} has no data (null)",
                "an empty payload is X'': coalesce(data, X'')",
            )
        spool.add(sequences, self._timestamps(batch, channel), _bytes(batch, "data"), _replies(batch))

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


def _bytes(batch: pa.RecordBatch, name: str) -> pa.LargeBinaryArray:
    """Returns a column of texts or bytes as bytes; null counts as empty."""
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(column.type) and not _is_binary(column.type) and not pa.types.is_null(column.type):
        raise _wrong_type(name, column.type)
    return pc.fill_null(column.cast(pa.large_binary()), b"")


def _is_text(kind: pa.DataType) -> bool:
    return any(fits(kind) for fits in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_binary(kind: pa.DataType) -> bool:
    return any(fits(kind) for fits in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view))


def _wrong_type(name: str, kind: pa.DataType) -> UsageError:
    return UsageError(f"the column {name} is of type {kind}, expected {({**REQUIRED, **OPTIONAL})[name]}", "convert it")


def _replies(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """Returns the reply subjects, made valid for headers."""
    if "reply" not in batch.schema.names:
        return pa.array([b""] * batch.num_rows, pa.large_binary())
    replies = _bytes(batch, "reply")
    content, _ = _contents(replies)
    if not len(content) or (int(content.min()) > 0x20 and not (content == 0x7F).any()):
        return replies
    return pa.array([safe_value(each.as_py()) for each in replies], pa.large_binary())


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
