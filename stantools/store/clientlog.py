"""The clients of a store, folded from clients.dat.

Facts: filestore.md sections 3.3, 4.4 and 8. An add record adds or replaces a client, a delete record
removes it; a delete of an unknown client means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stantools.format.crc import Crc
from stantools.format.gogo import DecodeError
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.proto import store_pb2 as pb
from stantools.store.logrepair import CLIENTS_LOG
from stantools.store.logscan import LogDamage, LogState, ServerScan, decode_record, judge_row, record_at, scan_log
from stantools.store.mapping import Buffer


@dataclass
class ClientsState(LogState):
    clients: dict[bytes, pb.ClientInfo] = field(default_factory=dict)  #: by id, in order of connection
    deletes: int = 0  #: number of delete records in the file

    @property
    def fragmentation(self) -> int:
        """Share of deletes in percent, as the server computes it."""
        total = self.deletes + len(self.clients)
        return self.deletes * 100 // total if total else 0

    def _apply(self, message: object) -> None:
        if isinstance(message, pb.ClientInfo):
            self.clients.pop(message.id, None)
            self.clients[message.id] = message
        elif isinstance(message, pb.ClientDelete):
            self.deletes += 1
            self.clients.pop(message.id, None)

    def _count(self, size: int) -> None:
        self.rows += 1
        self.record_bytes += RECORD_HEADER_SIZE + size


def read_clients(buffer: Buffer, crc: Crc) -> ClientsState:
    """Folds a clients.dat as the server does at its start, up to the first problem.

    `end` of the result holds the reason; after an error, the state is that of the records before it.
    """
    state = ClientsState()
    scan = ServerScan(buffer, CLIENTS_LOG, crc)
    for batch in scan:
        for offset in batch.offset:
            kind, size, _, payload = record_at(buffer, offset)
            try:
                message = decode_record(CLIENTS_LOG, kind, payload)
            except DecodeError as error:
                scan.refuse(offset, str(error))
                break
            state._apply(message)
            state._count(size)
    state.end = scan.end
    return state


def salvage_clients(buffer: Buffer, crc: Crc) -> ClientsState:
    """Folds the intact records of a clients.dat, and damaged ones with a proven payload."""
    state = ClientsState()
    for part in scan_log(buffer, CLIENTS_LOG, crc):
        if isinstance(part, LogDamage):
            _apply_damage(state, part)
            continue
        for offset, size in zip(part.offset, part.size, strict=True):
            judged = judge_row(CLIENTS_LOG, buffer, offset)
            if isinstance(judged, LogDamage):
                _apply_damage(state, judged)
            else:
                state._apply(judged.message)
                state._count(size)
    return state


def _apply_damage(state: ClientsState, damage: LogDamage) -> None:
    kind = None
    if damage.reading is not None:
        # The two messages of this log never look alike, so there is only one type.
        (kind,) = damage.reading.types
        state._apply(damage.reading.message)
    state.damages.append(replace(damage, type=kind))
