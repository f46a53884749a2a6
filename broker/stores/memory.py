"""The store in memory, which is lost when the server ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from broker.log import STREAMING
from broker.record_buffer import MessageRecordBuffer, Record
from broker.stores.blocklist import EMPTY, BlockList
from broker.stores.interface import ANY_SIZE, ChannelStore, Flush, Recovered, StorageError, first_sequence
from broker.stores.limits import limits_reached
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import ChannelLimits, StoreLimits


class MemoryMessages:
    """The messages of a channel in memory. Each counts with the size of its encoded form."""

    def __init__(self, name: bytes, limits: ChannelLimits) -> None:
        self.first = self.last = self.count = self.bytes = 0
        self.limits = limits
        self._name = name
        self._list = BlockList()
        self._limits_logged = False

    def append(self, records: MessageRecordBuffer) -> None:
        count = len(records.sizes)
        if not count:
            return
        first = first_sequence(records, self.last)
        self.bytes += self._list.append(records)
        self.count += count
        self.last = self._list.last
        if self.count == count:
            self.first = first

    def add(self, record: Record) -> bool:
        self.bytes += self._list.add(record)
        self.count += 1
        self.last = record[1]
        if self.count == 1:
            self.first = self.last
        limits = self.limits
        if (self.count > limits.max_msgs > 0) or (self.bytes > limits.max_bytes > 0):
            self._enforce()
        return True

    def flush(self) -> None:
        limits = self.limits
        if (self.count > limits.max_msgs > 0) or (self.bytes > limits.max_bytes > 0):
            self._enforce()

    def read(self, first: int, count: int, size: int = 1 << 20) -> MessageRecordBuffer:
        first = max(first, self.first)
        if first > self.last or not first or count <= 0:
            return EMPTY
        return self._list.read(first, count, size)

    def end_reading(self) -> None: ...

    def sequence_at(self, timestamp: int) -> int:
        if not self.count:
            return self.last + 1 if self.last else 0
        for begin, block in self._list.blocks():
            if int(block.timestamps[-1]) >= timestamp:
                found = begin + int(np.argmax(block.timestamps >= timestamp))
                # The last message precedes others of the same time (streaming-protocol.md section 13, note 1).
                last = self._list.read(self.last, 1, 1)
                return self.last if int(last.timestamps[0]) == timestamp else max(found, self.first)
        return self.last + 1

    def expire(self, now: int) -> int | None:
        age = self.limits.max_age_ns
        if age <= 0:
            return None
        while self.count:
            block, gone = self._list.block()
            young = np.flatnonzero(block.timestamps[gone:] > now - age)
            count = int(young[0]) if len(young) else len(block.sizes) - gone
            if not count:
                return int(block.timestamps[gone]) + age
            self._remove(count, int(block.sizes[gone : gone + count].sum()))
        return None

    def _enforce(self) -> None:
        """Removes the oldest messages while there are too many messages or bytes; the newest one stays."""
        limits = self.limits
        if not self._limits_logged:
            self._limits_logged = True
            STREAMING.warning(*limits_reached(self._name, self.count, self.bytes, limits))
        while self.count > 1:
            surplus = self.count - limits.max_msgs if limits.max_msgs > 0 else 0
            over = self.bytes - limits.max_bytes if limits.max_bytes > 0 else 0
            if surplus <= 0 and over <= 0:
                return
            block, gone = self._list.block()
            here = min(len(block.sizes) - gone, self.count - 1)
            costs = block.sizes[gone : gone + here].cumsum(dtype=np.int64)
            count = max(surplus, int(costs.searchsorted(over)) + 1 if over > 0 else 0)
            count = min(count, here)
            self._remove(count, int(costs[count - 1]))

    def _remove(self, count: int, size: int) -> None:
        self.count -= count
        self.bytes -= size
        self.first += count
        self._list.drop_before(self.first)


class MemorySubscriptions:
    """The subscriptions of a channel: only their number and their ids matter."""

    recorded = False

    def __init__(self, limits: ChannelLimits) -> None:
        self._limits = limits
        self._ids: set[int] = set()
        self._last_id = 0

    def create(self, state: pb.SubState) -> None:
        if 0 < self._limits.max_subs <= len(self._ids):
            state.id = 0
            raise StorageError("too many subscriptions per channel")
        self._last_id += 1
        state.id = self._last_id
        self._ids.add(state.id)

    def update(self, state: pb.SubState) -> None: ...

    def delete(self, subscription: int) -> None:
        self._ids.discard(subscription)

    def sent(self, subscription: int, sequences: Sequence[int]) -> None: ...

    def acked(self, subscription: int, sequences: Sequence[int]) -> None: ...

    def flush(self) -> None: ...


class MemoryStore:
    """A server's state in memory. `crc` is None: record headers are not checked."""

    kind = "MEMORY"
    largest = ANY_SIZE

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self.limits = limits or StoreLimits()
        self.crc: Crc | None = None
        self.wake: Callable[[], None] | None = None
        self._channels: dict[bytes, ChannelStore] = {}

    def recover(self) -> Recovered | None:
        return None

    def init(self, server: pb.ServerInfo) -> None: ...

    def add_client(self, client: pb.ClientInfo) -> None: ...

    def delete_client(self, client_id: bytes) -> None: ...

    def create_channel(self, name: bytes) -> ChannelStore:
        if name in self._channels:
            raise StorageError("already exists")
        if 0 < self.limits.max_channels <= len(self._channels):
            raise StorageError("too many channels")
        limits = self.limits.limits_for(os.fsdecode(name))
        messages = MemoryMessages(name, limits)
        store = self._channels[name] = ChannelStore(messages, MemorySubscriptions(limits), single_store=messages)
        return store

    def delete_channel(self, name: bytes) -> None:
        if self._channels.pop(name, None) is None:
            raise StorageError("not found")

    def completed(self) -> Sequence[Flush]:
        return ()

    def unwritten(self) -> list[str]:
        return []

    def settle(self) -> None: ...

    def close(self) -> None:
        self._channels.clear()
