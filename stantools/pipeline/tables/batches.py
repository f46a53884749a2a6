"""Messages as Arrow batches: columns that point into a mapped file become arrays; payloads are copied at most once.

No object is made per message. A value that is equal in every row is one array that all batches share. Only unusual
rows are handled one by one: subjects that differ from the channel, names that are not UTF-8, payloads to decrypt.
Without pyarrow the rows are lists of values (`PlainRows`).
"""

from __future__ import annotations

import enum
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stantools.errors import StoreUnreadableError
from stantools.format import kernels
from stantools.format.encryption import ChannelCipher
from stantools.format.envelope import Buffer
from stantools.format.layout import Flag
from stantools.format.message_batch import MessageBatch
from stantools.inspection.survey import stop_text
from stantools.notation import counted
from stantools.pipeline.tables.arrow import pa
from stantools.pipeline.tables.model import Mode, SliceRef, TableName, plain_text
from stantools.pipeline.tables.schema import column_names, schema_of
from stantools.pipeline.tables.table_options import TableOptions
from stantools.pipeline.tables.value_rows import ValueRows
from stantools.store.resync import DamagedRange

_HIGHEST = 2**63 - 1
_MOST_DATA = 2**31 - 1
_PER_MICROSECOND = 1000

REMEDY = (
    "read with mode PERMISSIVE to have damaged places as rows, or DROPMALFORMED to leave them out; "
    "`stantools verify` lists all of them"
)


class RowStatus(enum.StrEnum):
    """Status of a row of the messages table, in addition to the kinds of damage (`store.resync.DamageKind`)."""

    OK = "ok"
    REPAIRED = "repaired"  #: the header is damaged; the CRC proves the message
    SEALED = "sealed"  #: the given key does not decrypt the payload, which is returned as stored
    OUT_OF_RANGE = "out-of-range"  #: the sequence or the payload size does not fit into the column
    UNREADABLE = "unreadable"  #: the file or the store cannot be read


#: Statuses of messages; `_Codes` holds positions in this tuple.
_STATUSES = (RowStatus.OK, RowStatus.REPAIRED, RowStatus.SEALED, RowStatus.OUT_OF_RANGE)
_OK, _REPAIRED, _SEALED, _OUT_OF_RANGE = range(4)

#: positions in `_STATUSES`; None if all are ok
_Codes = npt.NDArray[np.uint8] | None


def odd_row(
    options: TableOptions, problem: StoreUnreadableError, place: tuple[str, str | None, str | None], **values: Any
) -> Iterator[pa.RecordBatch]:
    """Yields the row of the messages table for damage or a problem; raises it in mode FAILFAST."""
    if options.mode is Mode.FAILFAST:
        raise problem
    if options.mode is Mode.DROPMALFORMED:
        return
    store, channel, file = (plain_text(each) for each in place)
    values |= {"store": store, "channel": channel, "slice": file or None}
    yield _rows(options, 1, {name: [value] for name, value in values.items()})


def _rows(options: TableOptions, count: int, values: dict[str, list[Any]]) -> pa.RecordBatch:
    """Returns rows with values in some columns and nulls in the others."""
    names = options.columns or column_names(TableName.MESSAGES)
    columns = {name: values.get(name, [None] * count) for name in names}
    if pa is None:
        return ValueRows(columns)
    schema = schema_of(TableName.MESSAGES, options.columns)
    return pa.RecordBatch.from_arrays([pa.array(columns[each.name], each.type) for each in schema], schema=schema)


class SliceRowBuilder:
    def __init__(self, ref: SliceRef, options: TableOptions) -> None:
        self._options = options
        self.names = options.columns or column_names(TableName.MESSAGES)
        self._wanted = frozenset(self.names)
        self._mode = options.mode
        self._max_rows = max(options.batch_rows, 1)
        self._max_bytes = max(options.batch_bytes, 1)
        self._channel = os.fsencode(ref.channel)
        self._subject = plain_text(self._channel)
        self._file = ref.data
        self._fixed = {
            "store": plain_text(ref.store.root),
            "channel": plain_text(ref.channel),
            "slice": ref.name,
        }
        # The set of rows must not depend on the selected columns.
        opens = options.mode is not Mode.PERMISSIVE or self._wanted & {"data", "size", "status"}
        key = options.key.key() if opens else None
        self._cipher = None if key is None else ChannelCipher(key, self._channel)
        self._maker = (PlainRows if pa is None else ArrowRows)(self._fixed, self._subject, self._max_rows)

    def messages(self, batch: MessageBatch, *, repaired: bool = False) -> Iterator[pa.RecordBatch]:
        """Yields rows for messages, of which there is at least one."""
        codes: _Codes = np.full(len(batch), _REPAIRED, np.uint8) if repaired else None
        batch, codes = self._decrypt(batch, codes)
        if int(batch.sequence.max()) > _HIGHEST or int(batch.data_size.max()) > _MOST_DATA:
            codes = np.zeros(len(batch), np.uint8) if codes is None else codes
            codes[(batch.sequence > _HIGHEST) | (batch.data_size > _MOST_DATA)] = _OUT_OF_RANGE
        if codes is not None and self._mode is not Mode.PERMISSIVE:
            right = codes <= _REPAIRED
            if not right.all():
                if self._mode is Mode.FAILFAST:
                    row = int(right.argmin())
                    self._fail(batch, row, sealed=codes[row] == _SEALED)
                batch, codes = batch.pick(right), codes[right]
        for low, high in pairwise(self._bounds(batch)):
            part = None if codes is None else codes[low:high]
            yield self._maker.rows(batch.part(low, high), part, self._options.columns)

    def damages(self, damages: Sequence[DamagedRange]) -> pa.RecordBatch | None:
        """Returns rows for damaged ranges, without the ranges that a repair covers; None if there are none."""
        damages = [damage for damage in damages if damage.repair is None]
        if not damages or self._mode is Mode.DROPMALFORMED:
            return None
        if self._mode is Mode.FAILFAST:
            first = damages[0]
            raise StoreUnreadableError(
                f"{self._file}: damaged at offset {first.offset}, {counted(first.length, 'byte')}: {first.kind.value}: "
                f"{stop_text(first.stop)}; expected a message whose payload matches its CRC",
                REMEDY,
            )
        sequences = (damage.sequence for damage in damages)
        return self._partial_rows(
            len(damages),
            offset=[damage.offset for damage in damages],
            size=[damage.length for damage in damages],
            seq=[each if each is not None and each <= _HIGHEST else None for each in sequences],
            status=[damage.kind.value for damage in damages],
        )

    def unreadable(
        self, error: StoreUnreadableError, offset: int | None = None, size: int | None = None
    ) -> pa.RecordBatch | None:
        """Returns a row for an unreadable file or range; None in mode DROPMALFORMED."""
        if self._mode is Mode.FAILFAST:
            raise error
        if self._mode is Mode.DROPMALFORMED:
            return None
        return self._partial_rows(1, offset=[offset], size=[size], status=[RowStatus.UNREADABLE.value])

    def _partial_rows(self, rows: int, **values: list[Any]) -> pa.RecordBatch:
        return _rows(self._options, rows, {name: [value] * rows for name, value in self._fixed.items()} | values)

    def _bounds(self, batch: MessageBatch) -> list[int]:
        rows = len(batch)
        payload = int(batch.data_size.sum(dtype=np.int64)) if "data" in self._wanted else 0
        if rows <= self._max_rows and payload <= self._max_bytes:
            return [0, rows] if rows else []
        ends = np.cumsum(batch.data_size, dtype=np.int64)
        bounds = [0]
        while bounds[-1] < rows:
            low = bounds[-1]
            done = int(ends[low - 1]) if low else 0
            high = int(np.searchsorted(ends, done + self._max_bytes, "right")) if "data" in self._wanted else rows
            bounds.append(min(max(high, low + 1), low + self._max_rows, rows))
        return bounds

    def _decrypt(self, batch: MessageBatch, codes: _Codes) -> tuple[MessageBatch, _Codes]:
        """Decrypts the payloads if there is a key."""
        if self._cipher is None or not batch.coded().any():
            return batch, codes
        codes = np.zeros(len(batch), np.uint8) if codes is None else codes
        payloads, problems = zip(*batch.opened(self._cipher), strict=True)
        codes[[bool(problem) for problem in problems]] = _SEALED
        return batch.with_contents(payloads, list(batch.replies())), codes if codes.any() else None

    def _fail(self, batch: MessageBatch, row: int, *, sealed: bool) -> None:
        place = f"{self._file}: at offset {int(batch.offset[row])}, sequence {int(batch.sequence[row])}"
        if sealed:
            raise StoreUnreadableError(
                f"{place}: the payload looks encrypted and the key does not open it",
                "check the encryption key; mode PERMISSIVE returns such messages as they are stored",
            )
        raise StoreUnreadableError(
            f"{place}: expected a sequence below 2^63 and a payload below 2 GiB, as the columns can hold them", REMEDY
        )


def _foreign_subjects(batch: MessageBatch, subject: str) -> list[str] | None:
    """Returns the subject of each row; None if all have the channel's."""
    if not batch.has_foreign:
        return None
    subjects = [subject] * len(batch)
    for row in np.flatnonzero(batch.flags & Flag.FOREIGN_SUBJECT).tolist():
        subjects[row] = plain_text(batch.record_subject(row))
    return subjects


class PlainRows:
    """Makes rows of values; arguments as for `ArrowRows`."""

    def __init__(self, fixed: dict[str, str], subject: str, _max_rows: int) -> None:
        self._fixed = fixed
        self._subject = subject

    def rows(self, batch: MessageBatch, codes: _Codes, names: tuple[str, ...]) -> ValueRows:
        count = len(batch)
        values: dict[str, Callable[[], Iterable[Any]]] = {
            **{name: partial(itertools.repeat, value, count) for name, value in self._fixed.items()},
            "seq": lambda: [each if each <= _HIGHEST else None for each in batch.sequence.tolist()],
            "timestamp": lambda: (batch.timestamp // _PER_MICROSECOND).tolist(),
            "timestamp_ns": batch.timestamp.tolist,
            "subject": lambda: _foreign_subjects(batch, self._subject) or [self._subject] * count,
            "reply": lambda: map(plain_text, batch.replies()),
            "data": lambda: [None if len(data) > _MOST_DATA else data for data in batch.payloads()],
            "size": batch.data_size.tolist,
            "offset": batch.offset.tolist,
            "status": lambda: [_STATUSES[code].value for code in ([_OK] * count if codes is None else codes.tolist())],
        }
        return ValueRows({name: list(values[name]()) for name in names or column_names(TableName.MESSAGES)})


class ArrowRows:
    """Makes Arrow's arrays. `fixed` has the columns that are equal in all rows of a slice."""

    def __init__(self, fixed: dict[str, str], subject: str, max_rows: int) -> None:
        self._subject = subject
        self._max_rows = max_rows
        self._cache: dict[str, pa.Array] = {}
        self._makers: dict[str, Callable[[MessageBatch, _Codes], pa.Array]] = {
            "store": lambda batch, _: self._shared_constant(fixed["store"], len(batch)),
            "channel": lambda batch, _: self._constant(fixed["channel"], len(batch)),
            "slice": lambda batch, _: self._constant(fixed["slice"], len(batch)),
            "seq": self._seq,
            "timestamp": self._timestamp,
            "timestamp_ns": lambda batch, _: numbers(batch.timestamp, pa.int64()),
            "subject": self._subjects,
            "reply": self._replies,
            "data": self._data,
            "size": lambda batch, _: numbers(batch.data_size, pa.int64()),
            "offset": lambda batch, _: numbers(batch.offset, pa.int64()),
            "status": self._status,
        }

    def rows(self, batch: MessageBatch, codes: _Codes, names: tuple[str, ...]) -> pa.RecordBatch:
        schema = schema_of(TableName.MESSAGES, names)
        return pa.RecordBatch.from_arrays([self._makers[name](batch, codes) for name in schema.names], schema=schema)

    def _seq(self, batch: MessageBatch, codes: _Codes) -> pa.Array:
        sequence = batch.sequence
        if codes is not None and (high := sequence > _HIGHEST).any():
            return pa.array(sequence.view(np.int64), pa.int64(), mask=high)
        return numbers(sequence.view(np.int64), pa.int64())

    def _timestamp(self, batch: MessageBatch, _: _Codes) -> pa.Array:
        target, values = _allocate(len(batch), np.int64)
        np.floor_divide(batch.timestamp, _PER_MICROSECOND, out=values)
        return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(values), [None, target])

    def _subjects(self, batch: MessageBatch, _: _Codes) -> pa.Array:
        subjects = _foreign_subjects(batch, self._subject)
        if subjects is None:
            return self._constant(self._subject, len(batch))
        return pa.array(subjects, pa.string())

    def _replies(self, batch: MessageBatch, _: _Codes) -> pa.Array:
        if not batch.reply_size.any():
            return self._shared_constant("", len(batch))
        return strings(batch.buffer, batch.reply_start, batch.reply_size)

    def _data(self, batch: MessageBatch, codes: _Codes) -> pa.Array:
        sizes = batch.data_size
        if codes is not None and (huge := sizes > _MOST_DATA).any():
            data = gather(batch.buffer, batch.data_start, np.where(huge, 0, sizes).astype(np.uint32))
            return pa.array(data.to_pylist(), pa.binary(), mask=huge)
        return gather(batch.buffer, batch.data_start, sizes)

    def _status(self, batch: MessageBatch, codes: _Codes) -> pa.Array:
        if codes is None:
            return self._shared_constant(RowStatus.OK.value, len(batch))
        return pa.array([status.value for status in _STATUSES], pa.string()).take(pa.array(codes))

    def _constant(self, value: str, rows: int) -> pa.Array:
        return _repeated(self._cache, value, rows, self._max_rows)

    def _shared_constant(self, value: str, rows: int) -> pa.Array:
        """Returns the array for a value that many slices share."""
        if len(_cache) > _MAX_CACHED:
            _cache.clear()
        return _repeated(_cache, value, rows, self._max_rows)


def gathered(batches: Iterable[pa.RecordBatch], options: TableOptions) -> Iterator[pa.RecordBatch]:
    """Joins small batches as long as the result stays within the limits of the options."""
    if pa is None:  # text files gather what they encode at once
        yield from (batch for batch in batches if batch.num_rows)
        return
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        count = batch.num_rows
        if not count:
            continue
        place = batch.schema.get_field_index("data")
        payload = int(batch.column(place).nbytes) if place >= 0 else 0
        if pending and (rows + count > options.batch_rows or size + payload > options.batch_bytes):
            yield _join(pending)
            pending, rows, size = [], 0, 0
        if not pending and (2 * count > options.batch_rows or 2 * payload > options.batch_bytes):
            yield batch
            continue
        pending.append(batch)
        rows += count
        size += payload
    if pending:
        yield _join(pending)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _repeated(made: dict[str, pa.Array], value: str, rows: int, max_rows: int) -> pa.Array:
    """Returns a part of the cached array if it is long enough, else makes and caches a new one."""
    known = made.get(value)
    if known is None or len(known) < rows:
        room = rows if known is None else max(rows, min(4 * rows, max_rows))
        known = made[value] = pa.repeat(pa.scalar(value, pa.string()), room)
    return known if len(known) == rows else known.slice(0, rows)


#: Arrays of values that slices have in common: stores, `ok`, no reply.
_cache: dict[str, pa.Array] = {}
_MAX_CACHED = 16


def _allocate(rows: int, kind: type[np.generic]) -> tuple[pa.Buffer, npt.NDArray[Any]]:
    """Returns memory of Arrow's pool for numbers, because the pool reuses it without clearing it."""
    target = pa.allocate_buffer(rows * np.dtype(kind).itemsize)
    return target, np.frombuffer(target, kind)


def numbers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    target, copy = _allocate(len(values), np.int64)
    copy[:] = values
    return pa.Array.from_buffers(kind, len(values), [None, target])


def gather(buffer: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint32]) -> pa.Array:
    ends, offsets = _allocate(len(starts) + 1, np.int32)
    target, content = _allocate(int(sizes.sum(dtype=np.int64)), np.uint8)
    kernels.gather(buffer, starts, sizes, offsets, content)
    return pa.Array.from_buffers(pa.binary(), len(starts), [None, ends, target])


def strings(buffer: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint32]) -> pa.Array:
    texts = gather(buffer, starts, sizes)
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([plain_text(text) for text in texts.to_pylist()], pa.string())
