"""Writing clients.dat and subs.dat as the server writes them.

Facts: filestore.md sections 2.2, 4.2, 6.1 and 8. The logs keep only the counters that decide when a compaction is
due; the caller keeps the state of clients and subscriptions.

All methods that write raise StoreUnwritableError: for clients.dat the file is unchanged then, for subs.dat it ends
with the last record that was written before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sized
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stantools.format.layout import SubRecord
from stantools.format.logencode import (
    Column,
    encode_client,
    encode_client_delete,
    encode_flow,
    encode_subscription,
    encode_subscription_delete,
)
from stantools.format.proto import store_pb2 as pb
from stantools.store.appendlog import AppendLog, Replacement
from stantools.store.compactionrules import CompactionRules
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE

if TYPE_CHECKING:
    from stantools.format.crc import Crc

#: a subscription for a compaction: its full state, and the pending sequences
Live = tuple[pb.SubState, Collection[int]]


class ClientsLog(AppendLog):
    """The clients.dat of a store; every record is written at once and, as in the server, not synced.

    `deletes` is the number of delete records in the file, as counted when it was read. Raises StoreUnwritableError
    if the file cannot be opened or created, or has a bad version header.
    """

    def __init__(self, root: Path, crc: Crc, rules: CompactionRules | None = None, *, deletes: int = 0) -> None:
        super().__init__(root / CLIENTS_FILE, root, crc, rules, buffer_size=0)
        self.deletes = deletes

    def add(self, client: pb.ClientInfo) -> None:
        self.add_encoded(encode_client(client, self._crc))
        self.write_out()

    def delete(self, client_id: bytes) -> None:
        self.add_encoded(encode_client_delete(client_id, self._crc))
        self.deletes += 1
        self.write_out()

    def due(self, live: int, *, now: float | None = None) -> bool:
        """Returns whether a compaction is due, after a delete, with `live` connected clients.

        `now` is in seconds of a monotonic clock, by default the system's.
        """
        total = self.deletes + live
        return self._due(self.deletes * 100 // total if total else 0, now)

    def compact(self, clients: Iterable[pb.ClientInfo], *, now: float | None = None) -> None:
        self.begin_compaction(clients)
        self._finish(now)

    def begin_compaction(self, clients: Iterable[pb.ClientInfo]) -> Replacement:
        """Starts a compaction in steps; see `Replacement`."""
        kept = list(clients)
        self._deletes_before = self.deletes
        return self._begin_replacement(CLIENTS_FILE, (encode_client(client, self._crc) for client in kept))

    def replace(self, *, now: float | None = None) -> Callable[[], None]:
        sync = super().replace(now=now)
        self.deletes -= self._deletes_before
        return sync


class SubsLog(AppendLog):
    """The subs.dat of a channel; records are buffered until `write_out`, or until there are `buffer_size` bytes.

    Temporary files go to `root`, the store's root directory. `records` and `dead` count the live and dead records in
    the file, as counted when it was read (`sublog.SubsState`). Raises StoreUnwritableError if the file cannot be
    opened or created, or has a bad version header.
    """

    def __init__(
        self,
        directory: Path,
        root: Path,
        crc: Crc,
        rules: CompactionRules | None = None,
        *,
        buffer_size: int = 2 * 1024 * 1024,
        records: int = 0,
        dead: int = 0,
    ) -> None:
        super().__init__(directory / SUBS_FILE, root, crc, rules, buffer_size=buffer_size)
        self.records = records  #: live records in the file; callers of `add_encoded` update it
        self.dead = dead  #: dead records

    def new(self, state: pb.SubState) -> None:
        self.records += 1
        self.add_encoded(encode_subscription(state, self._crc))

    def update(self, state: pb.SubState) -> None:
        self.records += 1
        self.dead += 1
        self.add_encoded(encode_subscription(state, self._crc, update=True))

    def delete(self, subscription: int, pending: int) -> None:
        """Writes that a subscription is gone, which had `pending` messages pending."""
        self.dead += 1 + pending
        self.add_encoded(encode_subscription_delete(subscription, self._crc))

    def sent(self, ids: Column, sequences: Column) -> None:
        """Writes that messages were sent for the first time to subscriptions: one each, or many of one."""
        self.flow(SubRecord.MSG, ids, sequences)

    def acked(self, ids: Column, sequences: Column) -> None:
        self.flow(SubRecord.ACK, ids, sequences)

    def flow(self, types: Column, ids: Column, sequences: Column) -> None:
        """Writes Msg and Ack records of known subscriptions in order; each argument is a column, or one for all."""
        records = encode_flow(types, ids, sequences, self._crc)
        if isinstance(types, int):
            counts = [len(column) for column in (ids, sequences) if isinstance(column, Sized)]
            total = max(counts, default=1)
            sent = total if types == SubRecord.MSG else 0
        else:
            total, sent = len(types), int(np.count_nonzero(np.asarray(types) == SubRecord.MSG))
        self.records += sent
        self.dead += total - sent
        self.add_encoded(records)

    def due(self, *, now: float | None = None) -> bool:
        """Returns whether a compaction is due, after a delete or an acknowledgement.

        `now` is in seconds of a monotonic clock, by default the system's.
        """
        return self._due(self.dead * 100 // self.records if self.records else 100, now)

    def compact(self, subscriptions: Iterable[Live], *, now: float | None = None) -> None:
        """Replaces the file by one with only the live subscriptions and their pending messages."""
        self.begin_compaction(subscriptions)
        self._finish(now)

    def begin_compaction(self, subscriptions: Iterable[Live], *, incomplete: bool = False) -> Replacement:
        """Starts a compaction in steps; see `Replacement`.

        The subscriptions are encoded while the file is filled. Their pending messages must not change until then; a
        state may have a higher `last_sent`, which the log gets anyway. With `incomplete`, records are missing in the
        log, which gets no more records: they go to the new file only.
        """
        kept = list(subscriptions)
        alive = len(kept) + sum(len(pending) for _, pending in kept)
        # the counts to subtract at the replacement: records of the live that count twice, and dead records
        self._dead_counts = self.records - alive, self.dead
        records = (encode_live(state, pending, self._crc) for state, pending in kept)
        return self._begin_replacement("subs", records, incomplete=incomplete)

    def replace(self, *, now: float | None = None) -> Callable[[], None]:
        sync = super().replace(now=now)
        records, dead = self._dead_counts
        self.records, self.dead = self.records - records, self.dead - dead
        return sync


def encode_live(state: pb.SubState, pending: Collection[int], crc: Crc) -> bytes:
    """Encodes a subscription as a compaction does: New, then Msg per pending sequence (filestore.md section 8)."""
    record = encode_subscription(state, crc)
    return record + encode_flow(SubRecord.MSG, state.id, sorted(pending), crc) if pending else record
