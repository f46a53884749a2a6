"""The history of one subscription or client in subs.dat or clients.dat: its records, and losses by damage.

A subs.dat may have millions of records, so an index of the records of one subscription is made in one pass, twelve
bytes a record, and records are read again on access.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stantools.errors import readable
from stantools.format.columns import LogColumns
from stantools.format.crc import Crc
from stantools.format.layout import MAX_TYPED_PAYLOAD, RECORD_HEADER, RECORD_HEADER_SIZE, SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.records import FileKind, FileRecord, damage_record, entry_record, read_records
from stantools.store.clientlog import ClientsState, read_clients, salvage_clients
from stantools.store.logrepair import CLIENTS_LOG, SUBS_LOG, LogLayout
from stantools.store.logscan import LogDamage, LogEntry, judge_row, scan_log
from stantools.store.mapping import Buffer, MappedWindow, mapped
from stantools.store.sublog import SubsState, read_subs, salvage_subs

#: Maximum number of damaged ranges that are kept; the rest is counted.
MAX_DAMAGES = 10_000
#: Maximum size in bytes of a payload that is read again for a row. Servers write far smaller ones.
_MAX_PAYLOAD = 1 << 20
_DAMAGED = 0xFFFFFFFF


class PendingCount:
    """Counts the pending messages of subscriptions, record by record.

    Unlike the fold of the server it counts for ids without a New record as well, as a history shows the file's
    content.
    """

    def __init__(self) -> None:
        self._held: dict[int, set[int]] = {}

    def after(self, kind: int, number: int, sequence: int) -> int:
        """Returns how many messages are pending after a record.

        `kind` is the record type (0 for a range of bytes that is none), `number` the subscription, `sequence` that
        of the message sent or acknowledged.
        """
        held = self._held.setdefault(number, set())
        if kind == SubRecord.MSG:
            held.add(sequence)
        elif kind == SubRecord.ACK:
            held.discard(sequence)
        elif kind in (SubRecord.NEW, SubRecord.DELETE):
            held.clear()
        return len(held)


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """A record of a subscription or client, or a damaged range among them."""

    record: FileRecord
    id: int | None = None  #: id of the subscription; None for clients, and for damage without one
    sequence: int | None = None  #: the message sent or acknowledged
    pending: int = 0  #: messages pending after it; 0 for clients


def subscription_history(buffer: Buffer, crc: Crc, ids: Container[int] = ()) -> Iterator[HistoryRecord]:
    """Iterates over the records of a subs.dat and its damage in file order, with the messages pending after each.

    `ids` are the subscriptions to return; an empty container means all, including damage that names no subscription.
    """
    pending = PendingCount()
    for record in read_records(buffer, FileKind.SUBS, crc):
        if record.type == "version" and record.ok:
            continue
        number, sequence = record.fields.get("id"), record.fields.get("seqno")
        held = pending.after(_TYPES.get(record.type, 0), number, sequence or 0) if number is not None else 0
        if not ids or number in ids:
            yield HistoryRecord(record, number, sequence, held)


_TYPES = {kind.name.lower(): int(kind) for kind in SubRecord}


class LogHistory:
    """An index of the records of one subscription or client; `records` reads a part of them."""

    def __init__(self, path: Path, layout: LogLayout, crc: Crc, owner: int | bytes) -> None:
        self.path = path
        self.good = 0  #: good records of it
        self.damages = 0  #: damaged ranges that could be its records
        self._layout = layout
        self._crc = crc
        self._owner = owner
        self._starts: list[int] = []
        self._offsets: list[npt.NDArray[np.int64]] = []
        self._pending: list[npt.NDArray[np.uint32]] = []
        self._found: dict[int, FileRecord] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def records(self, start: int, stop: int) -> list[HistoryRecord]:
        """Reads a part of the history from the file.

        Raises `StoreUnreadableError` if the file is gone or not readable.
        """
        places = []
        for row in range(max(start, 0), min(stop, self._count)):
            chunk = bisect_right(self._starts, row) - 1
            at = row - self._starts[chunk]
            places.append((int(self._offsets[chunk][at]), int(self._pending[chunk][at])))
        with readable(self.path), self.path.open("rb", buffering=0) as file:
            return [self._record(file.fileno(), offset, pending) for offset, pending in places]

    def _record(self, descriptor: int, offset: int, pending: int) -> HistoryRecord:
        if pending == _DAMAGED:
            return HistoryRecord(self._found[offset])
        header = os.pread(descriptor, RECORD_HEADER_SIZE, offset)
        if len(header) == RECORD_HEADER_SIZE:
            size = RECORD_HEADER.unpack(header)[0] & MAX_TYPED_PAYLOAD
            content = memoryview(header + os.pread(descriptor, min(size, _MAX_PAYLOAD), offset + RECORD_HEADER_SIZE))
            if len(content) == RECORD_HEADER_SIZE + size:
                judged = judge_row(self._layout, content, 0)
                if not isinstance(judged, LogDamage) and _belongs_to(judged.message, self._owner):
                    entry = LogEntry(offset, size, judged.types[0], judged.message)
                    record = entry_record(entry, content, self._layout, self._crc)
                    if isinstance(self._owner, bytes):
                        return HistoryRecord(record)
                    return HistoryRecord(record, self._owner, record.fields.get("seqno"), pending)
        detail = "the file has changed since it was read"
        return HistoryRecord(FileRecord(offset, RECORD_HEADER_SIZE, "changed", False, detail=detail))

    def _add(self, offsets: list[int], pending: list[int]) -> None:
        if offsets:
            self._starts.append(self._count)
            self._offsets.append(np.array(offsets, np.int64))
            self._pending.append(np.array(pending, np.uint32))
            self._count += len(offsets)

    def _damage(self, buffer: Buffer, damage: LogDamage) -> None:
        if damage.message is not None and not _belongs_to(damage.message, self._owner):
            return
        self.damages += 1
        if self.damages <= MAX_DAMAGES:
            self._found[damage.offset] = damage_record(damage, buffer, self._crc)
            self._add([damage.offset], [_DAMAGED])


def read_history(
    path: Path, crc: Crc, owner: int | bytes, *, progress: Callable[[int], None] | None = None
) -> LogHistory:
    """Finds the records of a subscription (then the file is read as a subs.dat) or of a client.

    `progress` is called with bytes. Raises `StoreUnreadableError` if the file is missing or not readable.
    """
    layout = SUBS_LOG if isinstance(owner, int) else CLIENTS_LOG
    result = LogHistory(path, layout, crc, owner)
    pending = PendingCount()
    done = 0
    with mapped(path, sequential=True) as buffer:
        window = MappedWindow(buffer)
        for part in scan_log(buffer, layout, crc):
            if isinstance(part, LogDamage):
                result._damage(buffer, part)
            else:
                _index(result, part, buffer, pending)
            window.reach(part.end)
            if progress:
                progress(part.end - done)
            done = part.end
    return result


def _index(result: LogHistory, batch: LogColumns, buffer: Buffer, pending: PendingCount) -> None:
    """Adds the records of a batch that belong to the subscription or client."""
    owner, layout = result._owner, result._layout
    rows, plain = np.arange(len(batch.type)), np.zeros(len(batch.type), bool)
    if isinstance(owner, int):
        kinds = np.asarray(batch.type)
        plain = (kinds == SubRecord.MSG) | (kinds == SubRecord.ACK)
        rows = np.flatnonzero(~plain | (np.asarray(batch.id) == owner))
    offsets: list[int] = []
    counts: list[int] = []
    columns = (batch.offset, batch.type, batch.seq, plain)
    for offset, kind, sequence, known in zip(*(np.asarray(column)[rows].tolist() for column in columns), strict=True):
        number = owner if isinstance(owner, int) else 0
        if not known:
            judged = judge_row(layout, buffer, offset)
            if isinstance(judged, LogDamage):
                result._add(offsets, counts)
                offsets, counts = [], []
                result._damage(buffer, judged)
                continue
            if not _belongs_to(judged.message, owner):
                continue
        offsets.append(offset)
        counts.append(pending.after(kind, number, sequence) if layout is SUBS_LOG else 0)
        result.good += 1
    result._add(offsets, counts)


def _belongs_to(message: object, owner: int | bytes) -> bool:
    if isinstance(message, (pb.SubState, pb.SubStateDelete, pb.SubStateUpdate, pb.ClientInfo, pb.ClientDelete)):
        return bool(message.id == owner)
    return True


@dataclass(frozen=True)
class LogLoss:
    """The part of a log that the server reads, compared with the whole file."""

    offset: int  #: offset at which the server stops reading
    size: int  #: size of the file in bytes
    error: str  #: reason why the server refuses to start; "" if it starts
    read: int  #: clients or subscriptions of the server then
    read_records: int  #: good records before `offset`
    found: int  #: clients or subscriptions by all intact records
    found_records: int  #: good records in the whole file
    damages: int
    repaired: int  #: damaged records that prove themselves and can be kept


def log_loss(path: Path, kind: FileKind, crc: Crc) -> LogLoss | None:
    """Compares the part of a log that the server reads with the whole file; None if it reads all of it.

    Raises `StoreUnreadableError` if the file is missing or not readable.
    """
    strict: SubsState | ClientsState
    tolerant: SubsState | ClientsState
    with mapped(path) as buffer:
        strict = read_subs(buffer, crc) if kind is FileKind.SUBS else read_clients(buffer, crc)
        end = strict.end
        if end is None or not end.early:
            return None
        tolerant = salvage_subs(buffer, crc) if kind is FileKind.SUBS else salvage_clients(buffer, crc)
    return LogLoss(
        offset=end.offset,
        size=end.file_size,
        error=end.error,
        read=_count(strict),
        read_records=strict.rows,
        found=_count(tolerant),
        found_records=tolerant.rows,
        damages=len(tolerant.damages),
        repaired=sum(each.repaired for each in tolerant.damages),
    )


def _count(state: SubsState | ClientsState) -> int:
    return len(state.subscriptions) if isinstance(state, SubsState) else len(state.clients)
