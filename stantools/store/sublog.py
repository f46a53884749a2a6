"""The subscriptions of a channel, folded from its subs.dat.

Facts: filestore.md sections 4.1 to 4.3 and 8. Per record:

    record   id known                                          id unknown
    New      state replaced, pending emptied                   created
    Update   state replaced, pending kept                      created
    Delete   removed                                           nothing; counts for the highest id
    Msg      pending gains the sequence, last_sent only rises  nothing
    Ack      pending loses the sequence                        nothing

Msg and Ack records are by far the most, so they are taken from columns; only the others become objects.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from stantools.format.columns import LogColumns
from stantools.format.crc import Crc
from stantools.format.gogo import DecodeError
from stantools.format.layout import RECORD_HEADER_SIZE, SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.store.logrepair import SUBS_LOG
from stantools.store.logscan import LogDamage, LogEnd, ServerScan, decode_record, judge_row, record_at, scan_log
from stantools.store.mapping import Buffer


@dataclass(slots=True)
class Subscription:
    """A subscription as recovered.

    Attributes:
        state: Its last New or Update record, with `last_sent` raised by what was sent since.
        pending: Sequences that were sent and not acknowledged.
    """

    state: pb.SubState
    pending: set[int]


@dataclass
class SubsState:
    """What a subs.dat adds up to.

    Attributes:
        subscriptions: By id, in the order of their first record.
        max_id: Highest id ever used in the file; a standalone server goes on from there.
        records: Records as the server counts them for its compaction: New, Update and Msg of known ids.
        dead: Records that a compaction would leave out, as the server counts them.
        rows: All good records in the file.
        record_bytes: Their bytes, headers included: the size that the server tracks for its compaction.
        end: Where and why the server stops reading. None where reading went on after damage.
        damages: Damaged ranges in file order; repaired ones are among them.
    """

    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    max_id: int = 0
    records: int = 0
    dead: int = 0
    rows: int = 0
    record_bytes: int = 0
    end: LogEnd | None = None
    damages: list[LogDamage] = field(default_factory=list)

    @property
    def fragmentation(self) -> int:
        """Share of dead records in percent, as the server computes it."""
        return self.dead * 100 // self.records if self.records else 100


class SubStatus(enum.StrEnum):
    """What the server makes of a recovered subscription."""

    ACTIVE = "active"  #: its client is known: delivery goes on
    OFFLINE_DURABLE = "offline durable"  #: kept until its client comes back
    SHADOW = "shadow"  #: keeps the position of a durable queue group without members
    GHOST = "ghost"  #: member of a durable queue group without a known client: the server appends a Delete
    ORPHAN = "orphan"  #: not durable and its client is unknown: dropped from memory, stays in the file


def classify(state: pb.SubState, known_clients: Container[bytes]) -> SubStatus:
    """Tells what the server makes of a recovered subscription (filestore.md section 4.3).

    Args:
        state: The subscription.
        known_clients: Ids of the clients recovered from clients.dat.
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


def read_subs(buffer: Buffer, crc: Crc, *, check_crc: bool = True) -> SubsState:
    """Folds a subs.dat as the server does at its start: up to the first problem.

    `end` of the result says how it ended; with an error there, the state is what was read before it.
    """
    fold = _Fold()
    scan = ServerScan(buffer, SUBS_LOG, crc, check_crc=check_crc)
    for batch in scan:
        refused = _apply_strictly(fold, batch, buffer)
        if refused is not None:
            scan.refuse(*refused)
    fold.result.end = scan.end
    return fold.finish()


def salvage_subs(buffer: Buffer, crc: Crc, *, check_crc: bool = True, repair: bool = True) -> SubsState:
    """Folds every intact record of a subs.dat, whatever is between them.

    Args:
        buffer: The file.
        crc: The store's CRC.
        check_crc: False takes records with a wrong CRC for good.
        repair: Also apply records whose header is damaged and whose payload proves itself. A record of unknown type
            that says "message sent" or "message acknowledged" is only applied where it must be the former: taken for
            the wrong one it could lose a delivery.
    """
    fold = _Fold()
    for part in scan_log(buffer, SUBS_LOG, crc, check_crc=check_crc):
        if isinstance(part, LogDamage):
            _apply_damage(fold, part, repair=repair)
        else:
            _apply_tolerantly(fold, part, buffer, repair=repair)
    return fold.finish()


class _Fold:
    """The state machine of filestore.md section 4.1."""

    def __init__(self) -> None:
        self.result = SubsState()
        self.pending: dict[int, set[int]] = {}
        self.last_sent: dict[int, int] = {}
        self.states: dict[int, pb.SubState] = {}

    def finish(self) -> SubsState:
        for number, state in self.states.items():
            state.last_sent = self.last_sent[number]
            self.result.subscriptions[number] = Subscription(state, self.pending[number])
        return self.result

    def count(self, sizes: npt.NDArray[np.uint32], sign: int = 1) -> None:
        """Counts good records of the given payload sizes, or takes them back."""
        self.result.rows += sign * len(sizes)
        self.result.record_bytes += sign * (int(sizes.sum(dtype=np.int64)) + RECORD_HEADER_SIZE * len(sizes))

    def put(self, kind: int, state: pb.SubState) -> None:
        number = state.id
        self.result.records += 1
        if kind == SubRecord.UPDATE and number in self.states:
            self.result.dead += 1
        else:
            self.pending[number] = set()
        self.states[number] = state
        self.last_sent[number] = state.last_sent
        self.result.max_id = max(self.result.max_id, number)

    def delete(self, number: int) -> None:
        self.result.max_id = max(self.result.max_id, number)
        if number in self.states:
            self.result.dead += 1 + len(self.pending[number])
            del self.states[number], self.pending[number], self.last_sent[number]

    def flow(self, types: list[int], ids: list[int], sequences: list[int]) -> None:
        """Applies a run of Msg and Ack records."""
        pending, last_sent = self.pending, self.last_sent
        message = int(SubRecord.MSG)
        # Records of unknown ids are rare, so they are what is counted one by one.
        sent = types.count(message)
        acked = len(types) - sent
        for kind, number, sequence in zip(types, ids, sequences, strict=True):
            held = pending.get(number)
            if held is None:
                if kind == message:
                    sent -= 1
                else:
                    acked -= 1
            elif kind == message:
                held.add(sequence)
                if sequence > last_sent[number]:
                    last_sent[number] = sequence
            else:
                held.discard(sequence)
        self.result.records += sent
        self.result.dead += acked


def _apply_strictly(fold: _Fold, batch: LogColumns, buffer: Buffer) -> tuple[int, str] | None:
    """Applies a batch; returns offset and error text of the record that the server refuses, if there is one."""
    for row in _runs(fold, batch):
        offset, kind = int(batch.offset[row]), int(batch.type[row])
        if kind == SubRecord.DELETE:
            fold.delete(int(batch.id[row]))
            continue
        _, _, _, payload = record_at(buffer, offset)
        try:
            message = decode_record(SUBS_LOG, kind, payload)
        except DecodeError as error:
            # The record and what follows were counted with their batch, but are never read.
            fold.count(batch.size[row:], -1)
            return offset, str(error)
        fold.put(kind, cast(pb.SubState, message))
    return None


def _runs(fold: _Fold, batch: LogColumns) -> Iterator[int]:
    """Applies the Msg and Ack records of a batch and yields the other rows, each when its turn has come."""
    fold.count(batch.size)
    types, ids, sequences = batch.type.tolist(), batch.id.tolist(), batch.seq.tolist()
    done = 0
    for row in np.flatnonzero((batch.type != SubRecord.MSG) & (batch.type != SubRecord.ACK)).tolist():
        fold.flow(types[done:row], ids[done:row], sequences[done:row])
        yield row
        done = row + 1
    fold.flow(types[done:], ids[done:], sequences[done:])


def _apply_tolerantly(fold: _Fold, batch: LogColumns, buffer: Buffer, *, repair: bool) -> None:
    for row in _runs(fold, batch):
        number, size = int(batch.id[row]), int(batch.size[row])
        if batch.type[row] == SubRecord.DELETE and number and size == pb.SubStateDelete(id=number).ByteSize():
            fold.delete(number)
            continue
        judged = judge_row(SUBS_LOG, buffer, int(batch.offset[row]))
        if isinstance(judged, LogDamage):
            fold.count(batch.size[row : row + 1], -1)
            _apply_damage(fold, judged, repair=repair)
        elif judged.types[0] == SubRecord.DELETE:
            fold.delete(cast(pb.SubStateDelete, judged.message).id)
        else:
            fold.put(judged.types[0], cast(pb.SubState, judged.message))


def _apply_damage(fold: _Fold, damage: LogDamage, *, repair: bool) -> None:
    kind = _repair(fold, damage) if repair else None
    fold.result.damages.append(replace(damage, type=kind))


def _repair(fold: _Fold, damage: LogDamage) -> int | None:
    """Applies a damaged record that proves itself, and returns the record type it must have had."""
    if damage.reading is None:
        return None
    message, types = damage.reading.message, damage.reading.types
    if isinstance(message, pb.SubState):
        known = message.id in fold.states
        kind = types[0] if len(types) == 1 else SubRecord.UPDATE if known else SubRecord.NEW
        # A copy, because the fold raises last_sent, and the damage keeps what was stored.
        state = pb.SubState()
        state.CopyFrom(message)
        fold.put(kind, state)
        return kind
    if isinstance(message, pb.SubStateDelete):
        fold.delete(message.id)
        return SubRecord.DELETE
    assert isinstance(message, pb.SubStateUpdate)
    if len(types) == 1:
        kind = types[0]
    elif message.id in fold.states and message.seqno > fold.last_sent[message.id]:
        # Nothing is acknowledged before it was sent.
        kind = SubRecord.MSG
    else:
        return None
    fold.flow([kind], [message.id], [message.seqno])
    return kind
