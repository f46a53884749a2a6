"""Writing clients.dat and subs.dat as the server writes them.

Facts: filestore.md sections 2.2, 4.2, 6.1 and 8. The logs keep no state of clients and subscriptions, only
the counters that decide when a compaction is worth it; what is alive comes from the caller.
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

#: A subscription for a compaction: its full state, and the sequences that are pending.
Live = tuple[pb.SubState, Collection[int]]


class ClientsLog(AppendLog):
    """The clients.dat of a store; every record is written at once, and as in the server not synced.

    Args:
        root: The store's root directory.
        crc: The store's CRC.
        rules: When to compact.
        deletes: Delete records in the file, as counted when it was read.

    Raises:
        StoreUnwritableError: It cannot be opened or created, or has a bad version header.
    """

    def __init__(self, root: Path, crc: Crc, rules: CompactionRules | None = None, *, deletes: int = 0) -> None:
        super().__init__(root / CLIENTS_FILE, root, crc, rules, buffer_size=0)
        self.deletes = deletes

    def add(self, client: pb.ClientInfo) -> None:
        """Writes that a client has connected.

        Raises:
            StoreUnwritableError: It cannot be written; the file is as it was.
        """
        self.add_encoded(encode_client(client, self._crc))
        self.write_out()

    def delete(self, client_id: bytes) -> None:
        """Writes that a client is gone.

        Raises:
            StoreUnwritableError: It cannot be written; the file is as it was.
        """
        self.add_encoded(encode_client_delete(client_id, self._crc))
        self.deletes += 1
        self.write_out()

    def due(self, live: int, *, now: float | None = None) -> bool:
        """Returns whether a compaction is due, after a delete.

        Args:
            live: Clients that are connected.
            now: Seconds of a monotonic clock; by default the system's.
        """
        total = self.deletes + live
        return self._due(self.deletes * 100 // total if total else 0, now)

    def compact(self, clients: Iterable[pb.ClientInfo], *, now: float | None = None) -> None:
        """Replaces the file by one that has nothing but the live clients.

        Raises:
            StoreUnwritableError: It cannot be written; the file is as it was.
        """
        self.begin_compaction(clients)
        self._finish(now)

    def begin_compaction(self, clients: Iterable[pb.ClientInfo]) -> Replacement:
        """Begins a compaction; see `Replacement`.

        Raises:
            StoreUnwritableError: It cannot be begun.
        """
        kept = list(clients)
        self._deletes_before = self.deletes
        return self._begin_replacement(CLIENTS_FILE, (encode_client(client, self._crc) for client in kept))

    def replace(self, *, now: float | None = None) -> Callable[[], None]:
        """See `AppendLog.replace`."""
        sync = super().replace(now=now)
        self.deletes -= self._deletes_before
        return sync


class SubsLog(AppendLog):
    """The subs.dat of a channel; records are gathered until `write_out`.

    Args:
        directory: The channel's directory.
        root: The store's root directory, for temporary files.
        crc: The store's CRC.
        rules: When to compact.
        buffer_size: Bytes that are gathered before they are written.
        records: Live records in the file, as counted when it was read (`sublog.SubsState`).
        dead: Dead records in the file.

    Raises:
        StoreUnwritableError: It cannot be opened or created, or has a bad version header.
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
        self.records = records  #: live records in the file; whoever adds encoded ones counts them, too
        self.dead = dead  #: dead records

    def new(self, state: pb.SubState) -> None:
        """Writes a new subscription.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.records += 1
        self.add_encoded(encode_subscription(state, self._crc))

    def update(self, state: pb.SubState) -> None:
        """Writes the new state of a known subscription.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.records += 1
        self.dead += 1
        self.add_encoded(encode_subscription(state, self._crc, update=True))

    def delete(self, subscription: int, pending: int) -> None:
        """Writes that a subscription is gone.

        Args:
            subscription: Its id.
            pending: How many messages it had pending.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.dead += 1 + pending
        self.add_encoded(encode_subscription_delete(subscription, self._crc))

    def sent(self, ids: Column, sequences: Column) -> None:
        """Writes that messages were sent for the first time to subscriptions: one each, or many of one.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.flow(SubRecord.MSG, ids, sequences)

    def acked(self, ids: Column, sequences: Column) -> None:
        """Writes that pending messages were acknowledged.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.flow(SubRecord.ACK, ids, sequences)

    def flow(self, types: Column, ids: Column, sequences: Column) -> None:
        """Writes Msg and Ack records of known subscriptions in a given order.

        Args:
            types: `SubRecord.MSG` or `SubRecord.ACK` of each, or one for all.
            ids: Subscription ids, or one for all.
            sequences: Message sequences, or one for all.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
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

        Args:
            now: Seconds of a monotonic clock; by default the system's.
        """
        return self._due(self.dead * 100 // self.records if self.records else 100, now)

    def compact(self, subscriptions: Iterable[Live], *, now: float | None = None) -> None:
        """Replaces the file by one that has nothing but the live subscriptions and what they have pending.

        Raises:
            StoreUnwritableError: It cannot be written; the file is as it was.
        """
        self.begin_compaction(subscriptions)
        self._finish(now)

    def begin_compaction(self, subscriptions: Iterable[Live], *, incomplete: bool = False) -> Replacement:
        """Begins a compaction; see `Replacement`.

        Args:
            subscriptions: They are encoded as the file is filled. What is pending must not change until then; a state
                may have a higher `last_sent`, which the log gets anyway.
            incomplete: Records are missing in the log, which therefore gets no more: they go to the new file only.

        Raises:
            StoreUnwritableError: It cannot be begun.
        """
        kept = list(subscriptions)
        alive = len(kept) + sum(len(pending) for _, pending in kept)
        # What is dead by then goes, and what is counted twice of what is alive.
        self._gone = self.records - alive, self.dead
        records = (encode_live(state, pending, self._crc) for state, pending in kept)
        return self._begin_replacement("subs", records, incomplete=incomplete)

    def replace(self, *, now: float | None = None) -> Callable[[], None]:
        """See `AppendLog.replace`."""
        sync = super().replace(now=now)
        records, dead = self._gone
        self.records, self.dead = self.records - records, self.dead - dead
        return sync


def encode_live(state: pb.SubState, pending: Collection[int], crc: Crc) -> bytes:
    """Encodes a subscription as a compaction writes it: New, then Msg for each pending sequence.

    Facts: filestore.md section 8.
    """
    record = encode_subscription(state, crc)
    return record + encode_flow(SubRecord.MSG, state.id, sorted(pending), crc) if pending else record
