"""The subscriptions of a channel, folded from its subs.dat.

Facts: filestore.md sections 4.1 to 4.3 and 8. Per record:

    record   id known                                          id unknown
    New      state replaced, pending emptied                   created
    Update   state replaced, pending kept                      created
    Delete   removed                                           nothing; counts for the highest id
    Msg      pending gains the sequence, last_sent only rises  nothing
    Ack      pending loses the sequence                        nothing

There may be millions of records, and of subscriptions, which would take a kilobyte each as objects. So records
are folded in columns (`stantools.store.folding`) to a table: a subscription becomes an object on access. Only a record
that differs from the server's encoding is decoded during the fold.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, islice
from operator import lt
from typing import TYPE_CHECKING, cast

from stantools.format import gogo
from stantools.format.columns import LogColumns
from stantools.format.crc import Crc
from stantools.format.layout import MAX_TYPED_PAYLOAD, RECORD_HEADER, RECORD_HEADER_SIZE, SubFlag, SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.lazy_numpy import np
from stantools.store.folding import Fold, Folded
from stantools.store.logrepair import SUBS_LOG, recognise
from stantools.store.logscan import LogDamage, LogState, ServerScan, decode_record, judge_row, record_at, scan_log
from stantools.store.mapping import Buffer, MappedWindow

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Records of up to this total size are copied, so that their file need not stay mapped.
_MAX_COPIED = 1 << 20
#: number of records after which the file's pages are released
_RELEASE_RECORDS = 4096
_USUAL = int(SubFlag.USUAL)
_AS_STORED = int(SubFlag.USUAL | SubFlag.MOVED)


@dataclass(slots=True)
class StoredSubscription:
    state: pb.SubState  #: its last New or Update record, with `last_sent` raised by later records
    pending: set[int]  #: sequences that were sent and not acknowledged


class SubStatus(enum.StrEnum):
    ACTIVE = "active"  #: its client is known: delivery continues
    OFFLINE_DURABLE = "offline durable"  #: kept until its client reconnects
    SHADOW = "shadow"  #: keeps the position of a durable queue group without members
    GHOST = "ghost"  #: member of a durable queue group without a known client: the server appends a Delete
    ORPHAN = "orphan"  #: not durable and its client is unknown: dropped from memory, stays in the file


def classify(state: pb.SubState, known_clients: Container[bytes]) -> SubStatus:
    """Returns the server's decision about a recovered subscription (filestore.md section 4.3).

    `known_clients` are the ids of the clients recovered from clients.dat.
    """
    if state.durable_name and state.is_closed:
        return SubStatus.OFFLINE_DURABLE
    if state.client_id in known_clients:
        return SubStatus.ACTIVE
    if state.durable_name:
        return SubStatus.OFFLINE_DURABLE
    if state.q_group and state.is_durable:
        return SubStatus.GHOST if state.client_id else SubStatus.SHADOW
    return SubStatus.ORPHAN


#: the statuses in the order of their numbers in columns
STATUSES = tuple(SubStatus)


_CLIENT, _DURABLE, _CLOSED = int(SubFlag.HAS_CLIENT), int(SubFlag.HAS_DURABLE), int(SubFlag.IS_CLOSED)
_DURABLE_GROUP = int(SubFlag.HAS_GROUP | SubFlag.IS_DURABLE)


def by_flags(predicate: Callable[[int], int]) -> bytes:
    """Returns a predicate on flags as a table, for `SubTable.rows` and `bytes.translate`."""
    return bytes(map(predicate, range(256)))


def _status_of_unknown(flags: int) -> int:
    """Returns the result of `classify` for an unknown client, as a number of `STATUSES`."""
    status = SubStatus.ORPHAN
    if flags & _DURABLE:
        status = SubStatus.OFFLINE_DURABLE
    elif flags & _DURABLE_GROUP == _DURABLE_GROUP:
        status = SubStatus.GHOST if flags & _CLIENT else SubStatus.SHADOW
    return STATUSES.index(status)


#: a member of a durable queue group, or its shadow
IN_DURABLE_GROUP = by_flags(lambda flags: flags & _DURABLE_GROUP == _DURABLE_GROUP)
_STATUS_OF_UNKNOWN = by_flags(_status_of_unknown)
_ACTIVE = STATUSES.index(SubStatus.ACTIVE)
#: the status depends on whether the client is known
_DEPENDS_ON_CLIENT = by_flags(lambda flags: flags & (_DURABLE | _CLOSED) != _DURABLE | _CLOSED)


class SubTable(Mapping[int, StoredSubscription]):
    """Subscriptions by id, in order of creation; each object is made on access.

    A `place` in the columns is the offset of a record in `content`, or, below zero, -1 - i for `states[i]`, which
    are states that the log does not hold as they are. The log is kept as long as the table if the records are too
    many to be copied; reading raises StoreChangedError if it has lost any of them.
    """

    def __init__(self, folded: Folded, content: Buffer | bytes, states: Sequence[pb.SubState] = ()) -> None:
        self.ids = folded.id
        self.last_sent = folded.last_sent  #: highest sequence that was sent to each
        self.flags = folded.flags  #: bits of `layout.SubFlag`
        self._place = folded.place
        self._first = folded.first
        self._pending = folded.pending
        self._states = states
        self._content = self._copied(memoryview(content))
        self._window = MappedWindow(self._content)
        self._record_count = 0

    def _copied(self, content: Buffer) -> Buffer:
        """The records alone, if they are few; else the whole log."""
        # a view of its own lives on when the file is closed
        if len(self) * RECORD_HEADER_SIZE > _MAX_COPIED:
            return memoryview(content)
        parts: list[Buffer] = []
        places, total = self._place[:], 0
        for row, begin in enumerate(self._place):
            if begin < 0:
                continue
            part = content[begin : begin + RECORD_HEADER_SIZE + self._size(content, begin)]
            places[row] = total
            parts.append(part)
            total += len(part)
            if total > _MAX_COPIED:
                return memoryview(content)
        self._place = places
        return memoryview(b"".join(parts))

    def __reduce__(self) -> tuple[object, ...]:
        # Another process gets the records alone, without the rest of the log.
        places, records = self._place[:], bytearray()
        for row, place in enumerate(self._place):
            if place >= 0:
                places[row] = len(records)
                records += self._record(place)
        columns = Folded(self.ids, places, self.last_sent, self.flags, self._first, self._pending)
        return SubTable, (columns, bytes(records), self._states)

    @staticmethod
    def _size(content: Buffer, place: int) -> int:
        size: int = RECORD_HEADER.unpack_from(content, place)[0] & MAX_TYPED_PAYLOAD
        return size

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __getitem__(self, number: int) -> StoredSubscription:
        order = self.by_id
        at = bisect_left(order, number, key=self.ids.__getitem__)
        if at == len(order) or self.ids[order[at]] != number:
            raise KeyError(number)
        return self.at(order[at])

    @cached_property
    def by_id(self) -> Sequence[int]:
        """The rows in the order of ids."""
        rows = range(len(self))
        if all(map(lt, self.ids, islice(self.ids, 1, None))):
            return rows
        return array("q", sorted(rows, key=self.ids.__getitem__))

    @cached_property
    def waiting(self) -> NDArray[np.int64]:
        return np.diff(self._first)

    @cached_property
    def _end(self) -> int:
        last = max(self._place, default=-1)
        return last + RECORD_HEADER_SIZE + self._size(self._content, last) if last >= 0 else 0

    def at(self, row: int) -> StoredSubscription:
        return StoredSubscription(self.state(row), set(self.pending(row)))

    def pending(self, row: int) -> list[int]:
        """Sequences that were sent to the subscription of a row and not acknowledged, ascending."""
        first, end = self._first[row], self._first[row + 1]
        return self._pending[first:end].tolist() if first < end else []

    def state(self, row: int) -> pb.SubState:
        """Decodes the state of the subscription of a row into a new object."""
        self._record_count += 1
        if self._record_count % _RELEASE_RECORDS == 0:
            self._window.drop()
        return self._read(self._place[row], self.flags[row], self.last_sent[row])

    def _record(self, place: int) -> bytes:
        record = bytes(self._content[place : place + RECORD_HEADER_SIZE + self._size(self._content, place)])
        # Lost bytes of a file read as zeros. An intact record may end in one as well, but few do.
        if not record[-1]:
            self._window.check(self._end)
        return record

    def _read(self, place: int, flags: int, last_sent: int) -> pb.SubState:
        if place < 0:
            state = pb.SubState()
            state.CopyFrom(self._states[-1 - place])
        else:
            payload = self._record(place)[RECORD_HEADER_SIZE:]
            state = pb.SubState.FromString(payload) if flags & _USUAL else gogo.decode(pb.SubState, payload)
        state.last_sent = last_sent
        return state

    def each(self, rows: Sequence[int] | NDArray[np.int64]) -> Iterator[tuple[pb.SubState, list[int]]]:
        """Yields state and ascending pending sequences of many rows, faster than one by one."""
        columns = self._place, self.flags, self.last_sent, self._first
        for begin in range(0, len(rows), _RELEASE_RECORDS):
            part = rows[begin : begin + _RELEASE_RECORDS]
            self._window.drop()
            taken = (map(column.__getitem__, part) for column in columns)
            for row, place, flags, last, at in zip(part, *taken, strict=True):
                limit = self._first[row + 1]
                yield self._read(place, flags, last), self._pending[at:limit].tolist() if at < limit else []

    def last_pending(self) -> NDArray[np.uint64]:
        """The highest pending sequence of each subscription; 0 if there is none."""
        result = np.zeros(len(self), np.uint64)
        some = np.flatnonzero(self.waiting)
        result[some] = np.asarray(self._pending)[np.asarray(self._first)[some + 1] - 1]
        return result

    def encoded(self, row: int) -> bytes | None:
        """Returns the New record of a row, copied from the log; None if its state has changed since."""
        place, flags = self._place[row], self.flags[row]
        if place < 0 or flags & _AS_STORED != _USUAL:
            return None
        record = bytearray(self._record(place))
        record[3] = SubRecord.NEW
        return bytes(record)

    def statuses(self, known_clients: Container[bytes]) -> bytearray:
        """Returns the results of `classify` for all rows, as numbers of `STATUSES`."""
        result = bytearray(self.flags.tobytes().translate(_STATUS_OF_UNKNOWN))
        if known_clients:
            rows = self.rows(_DEPENDS_ON_CLIENT)
            for row, (state, _) in zip(rows, self.each(rows), strict=True):
                if state.client_id in known_clients:
                    result[row] = _ACTIVE
        return result

    def rows(self, chosen: bytes) -> array[int]:
        """Returns the rows, ascending, for which a table of `by_flags` is true."""
        return array("q", compress(range(len(self)), self.flags.tobytes().translate(chosen)))


@dataclass
class SubsState(LogState):
    #: by id, in the order of their first record
    subscriptions: SubTable = field(default_factory=lambda: SubTable(Fold().finish(), memoryview(b"")))
    max_id: int = 0  #: highest id ever used in the file; a standalone server continues from there
    records: int = 0  #: records as the server counts them for its compaction: New, Update and Msg of known ids
    dead: int = 0  #: records that a compaction would remove, as the server counts them

    @property
    def fragmentation(self) -> int:
        """Share of dead records in percent, as the server computes it."""
        return self.dead * 100 // self.records if self.records else 100


def read_subs(buffer: Buffer, crc: Crc) -> SubsState:
    """Folds a subs.dat as the server does at its start, up to the first problem.

    `end` of the result holds the reason; after an error, the state is that of the records before it.
    """
    fold = _SubsFold(buffer)
    scan = ServerScan(buffer, SUBS_LOG, crc)
    for batch in scan:
        refused = fold.apply_strictly(batch)
        if refused is not None:
            scan.refuse(*refused)
    fold.result.end = scan.end
    return fold.finish()


def salvage_subs(buffer: Buffer, crc: Crc) -> SubsState:
    """Folds the intact records of a subs.dat, and damaged ones with a proven payload.

    A record of unknown type that says "message sent" or "message acknowledged" is only applied if it must be the
    former: a wrong acknowledgement could lose a delivery.
    """
    fold = _SubsFold(buffer)
    for part in scan_log(buffer, SUBS_LOG, crc):
        if isinstance(part, LogDamage):
            fold.apply_damage(part)
        else:
            fold.apply_tolerantly(part)
    return fold.finish()


class _SubsFold:
    """The fold around the compiled code: records that differ from the server's encoding, and all counters."""

    def __init__(self, buffer: Buffer) -> None:
        self.result = SubsState()
        self._buffer = buffer
        self._fold = Fold()
        self._states: list[pb.SubState] = []

    def finish(self) -> SubsState:
        fold, result = self._fold, self.result
        result.records, result.dead, result.max_id = fold.records, fold.dead, fold.max_id
        result.subscriptions = SubTable(fold.finish(), self._buffer, self._states)
        return result

    def apply_strictly(self, batch: LogColumns) -> tuple[int, str] | None:
        """Applies a batch; returns offset and error text of the record that the server refuses, if there is one."""
        for row in self._other_rows(batch):
            offset, kind = batch.offset[row], batch.type[row]
            if kind == SubRecord.DELETE:
                self._fold.delete(batch.id[row])
                continue
            _, _, _, payload = record_at(self._buffer, offset)
            try:
                message = decode_record(SUBS_LOG, kind, payload)
            except gogo.DecodeError as error:
                # the record and its successors were counted with their batch, but are never read
                self._count(batch, -1, row)
                return offset, str(error)
            self._put(kind, cast(pb.SubState, message), offset, payload)
        return None

    def apply_tolerantly(self, batch: LogColumns) -> None:
        """Applies the records of a batch that make sense."""
        for row in self._other_rows(batch):
            offset = batch.offset[row]
            judged = judge_row(SUBS_LOG, self._buffer, offset)
            if isinstance(judged, LogDamage):
                self._count(batch, -1, row, row + 1)
                self.apply_damage(judged)
            elif judged.types[0] == SubRecord.DELETE:
                self._fold.delete(cast(pb.SubStateDelete, judged.message).id)
            else:
                payload = record_at(self._buffer, offset)[3]
                self._put(judged.types[0], cast(pb.SubState, judged.message), offset, payload)

    def apply_damage(self, damage: LogDamage) -> None:
        """Records damage, and applies a damaged record with a proven payload."""
        self.result.damages.append(replace(damage, type=self._repair(damage)))

    def _other_rows(self, batch: LogColumns) -> Iterator[int]:
        """Applies a batch and yields the rows that the fold leaves to the caller, each in its turn."""
        self._count(batch)
        row = 0
        while (row := self._fold.apply(self._buffer, batch, row)) < len(batch.type):
            yield row
            row += 1

    def _count(self, batch: LogColumns, sign: int = 1, first: int = 0, end: int | None = None) -> None:
        """Adds good, contiguous records of a batch to the counts, or subtracts them."""
        end = batch.capacity if end is None else end
        if first < end:
            self.result.rows += sign * (end - first)
            behind = batch.offset[end - 1] + RECORD_HEADER_SIZE + batch.size[end - 1]
            self.result.record_bytes += sign * (behind - batch.offset[first])

    def _put(self, kind: int, state: pb.SubState, offset: int, payload: Buffer) -> None:
        """Applies a New or Update record that is intact in the file."""
        usual = recognise(SUBS_LOG, payload)
        flags = _flags(state) | (SubFlag.USUAL if usual and SubRecord.NEW in usual.types else 0)
        self._fold.put(kind, state.id, state.last_sent, offset, flags)

    def _repair(self, damage: LogDamage) -> int | None:
        """Applies a damaged record with a proven payload, and returns the record type it must have had."""
        if damage.reading is None:
            return None
        message, types = damage.reading.message, damage.reading.types
        if isinstance(message, pb.SubState):
            known = self._fold.last_sent(message.id) >= 0
            kind = types[0] if len(types) == 1 else SubRecord.UPDATE if known else SubRecord.NEW
            self._states.append(message)
            self._fold.put(kind, message.id, message.last_sent, -len(self._states), _flags(message))
            return kind
        if isinstance(message, pb.SubStateDelete):
            self._fold.delete(message.id)
            return SubRecord.DELETE
        assert isinstance(message, pb.SubStateUpdate)
        if len(types) == 1:
            kind = types[0]
        elif 0 <= self._fold.last_sent(message.id) < message.seqno:
            # An acknowledgement follows its delivery.
            kind = SubRecord.MSG
        else:
            return None
        self._fold.flow(kind, message.id, message.seqno)
        return kind


def _flags(state: pb.SubState) -> int:
    flags = SubFlag(0)
    for value, flag in zip(
        (state.client_id, state.q_group, state.durable_name, state.is_durable, state.is_closed), SubFlag, strict=False
    ):
        if value:
            flags |= flag
    return int(flags)
