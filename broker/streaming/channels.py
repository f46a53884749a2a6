"""Channels, and which ones there may be (streaming-protocol.md section 10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from broker import log
from broker.streaming.errors import RefusedError
from broker.streaming.names import quoted, without_case
from broker.streaming.slots import Slots
from broker.wire.kernels import Names

if TYPE_CHECKING:
    from broker.blocks import Records
    from broker.stores.interface import ChannelStore, Store
    from broker.streaming.queues import QueueGroup
    from broker.streaming.subscriptions import Subscription
    from broker.streaming.timers import Timer

#: Bytes of messages that are read at a time.
READ_SIZE = 1 << 20


class Channel:
    """A channel: its stores, and who is subscribed.

    Attributes:
        name: Its name.
        number: What the kernels know it by.
        messages: Its message store.
        store: Its subscription store.
        visible: The last sequence that may be delivered: what is behind it is not flushed.
        timestamp: Of the last message that this process stored; timestamps never go back (streaming-protocol.md section
            11).
        fresh: The blocks stored last, while they are being delivered, so that they need not be read.
        plain: Active plain subscriptions by number.
        durables: Plain durables by key, active and offline.
        groups: Queue groups by name.
        by_ack_inbox: All active subscriptions.
        last_activity: When messages were stored last (monotonic ns).
        idle: When the channel is deleted if nothing happens.
        ageing: When the next message is too old.
    """

    __slots__ = (
        "ageing",
        "by_ack_inbox",
        "durables",
        "fresh",
        "groups",
        "idle",
        "last_activity",
        "messages",
        "name",
        "number",
        "plain",
        "store",
        "timestamp",
        "visible",
    )

    def __init__(self, name: bytes, stores: ChannelStore) -> None:
        self.name = name
        self.number = -1
        self.messages = stores.messages
        self.store = stores.subscriptions
        self.visible = self.messages.last
        self.timestamp = 0
        self.fresh: list[Records] = []
        self.plain: dict[int, Subscription] = {}
        self.durables: dict[bytes, Subscription] = {}
        self.groups: dict[bytes, QueueGroup] = {}
        self.by_ack_inbox: dict[bytes, Subscription] = {}
        self.last_activity = 0
        self.idle: Timer | None = None
        self.ageing: Timer | None = None

    @property
    def active(self) -> bool:
        """Somebody is subscribed; offline durables do not count (streaming-protocol.md section 21.1)."""
        return bool(self.by_ack_inbox)

    def subscriptions(self) -> Iterator[Subscription]:
        """Yields all: active plain ones, offline durables, then queue groups with their members, then their shadows."""
        return chain(
            self.plain.values(),
            (durable for durable in self.durables.values() if not durable.active),
            *(
                group.members if group.shadow is None else [*group.members, group.shadow]
                for group in self.groups.values()
            ),
        )

    def find(self, inbox: bytes) -> Subscription | None:
        """Returns the active subscription with an ack inbox or, failing that, with a delivery inbox.

        Facts: streaming-protocol.md section 20.
        """
        if (found := self.by_ack_inbox.get(inbox)) is not None:
            return found
        return next((each for each in self.by_ack_inbox.values() if each.inbox == inbox), None)

    def read(self, first: int, count: int) -> tuple[Records, int, int]:
        """Returns a block and which of its rows are the next messages that may be delivered, maybe none.

        Args:
            first: The lowest sequence that is wanted.
            count: How many at most.
        """
        last = self.visible
        first = max(first, self.messages.first)
        for block in self.fresh:
            sequences = block.sequences
            lowest = int(sequences[0])
            if lowest <= first <= int(sequences[-1]):
                begin = first - lowest
                return block, begin, min(len(block), begin + count, last - lowest + 1)
        block = self.messages.read(first, min(count, max(last - first + 1, 0)), READ_SIZE)
        end = len(block)
        if end and int(block.sequences[-1]) > last:
            end = int(np.searchsorted(block.sequences, np.uint64(last), "right"))
        return block, 0, end


class Channels:
    """All channels.

    Attributes:
        names: Numbers of the names, for the kernels.
        on_created: Called with each new channel, not with recovered ones.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._channels: dict[bytes, Channel] = {}
        self._spellings: dict[str, list[bytes]] = {}
        self._slots: Slots[Channel] = Slots()
        self.names = Names()
        self.on_created: list[Callable[[Channel], None]] = []

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._channels.values())

    def __getitem__(self, number: int) -> Channel:
        """Returns the channel that the kernels know by a number."""
        return self._slots[number]

    def get(self, name: bytes) -> Channel | None:
        """Returns the channel of this very name."""
        return self._channels.get(name)

    def obtain(self, name: bytes) -> Channel:
        """Returns the channel of a name, which is a valid one; creates it if there is none.

        Raises:
            RefusedError: There is one that differs in case only.
            StorageError: It cannot be created, for example because there are too many.
        """
        if (channel := self._channels.get(name)) is not None:
            return channel
        if spellings := self._spellings.get(without_case(name)):
            message = (
                f"rejecting channel {quoted(name)} because channel {quoted(spellings[0])} alreay exists "
                "(different cases not allowed)"
            )
            log.STREAMING.error("Creating channel %s failed: %s", quoted(name), message)
            raise RefusedError(message.encode(errors="surrogateescape"))
        channel = self.recover(name, self._store.create_channel(name))
        log.STREAMING.info("Channel %s has been created", quoted(name))
        for notify in self.on_created:
            notify(channel)
        return channel

    def recover(self, name: bytes, stores: ChannelStore) -> Channel:
        """Adds a channel that is stored already."""
        channel = Channel(name, stores)
        channel.number = self._slots.put(channel)
        self._channels[name] = channel
        self._spellings.setdefault(without_case(name), []).append(name)
        self.names.add(name, channel.number)
        return channel

    def delete(self, channel: Channel) -> None:
        """Removes a channel and everything it has.

        Raises:
            StorageError: It cannot be removed from the store, and is there as before.
        """
        name = channel.name
        self._store.delete_channel(name)
        del self._channels[name]
        spellings = self._spellings[without_case(name)]
        spellings.remove(name)
        if not spellings:
            del self._spellings[without_case(name)]
        self.names.discard(name)
        self._slots.take(channel.number)
