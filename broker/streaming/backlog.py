"""What waits for the store: the flushes in progress, and the pace of the publishers.

Flushes complete in order within a channel and in any order between channels. While too much waits, publishers are
read more slowly, until half of the limits is free. Being slow is a flag and no state: it may begin and end at any time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from broker.streaming.state import MAKING

if TYPE_CHECKING:
    from broker.stores.interface import Flush
    from broker.streaming.ports import StreamingBus
    from broker.streaming.publisher_acks import ChannelBatch, CommitBatch
    from broker.streaming.registry import Channels
    from broker.streaming.state import Channel

#: Limits of the bytes that wait for a store, per channel and in total.
CHANNEL_BOUND = 16 << 20
BOUND = 64 << 20
#: Limit of the channels that the store is about to create.
NEW_BOUND = 1024


class PendingFlush:
    """A flush in progress: its portions, their last sequence and bytes."""

    __slots__ = ("flush", "last", "portions", "size")

    def __init__(self, flush: Flush, last: int, portions: list[ChannelBatch], size: int) -> None:
        self.flush = flush
        self.last = last
        self.portions = portions
        self.size = size


class StoreBacklog:
    """The flushes in progress, by channel; it slows down the publishers."""

    def __init__(self, bus: StreamingBus, channels: Channels) -> None:
        self._bus = bus
        self._channels = channels
        self.flushes: dict[Channel, deque[PendingFlush]] = {}
        self._size = 0
        self._full: set[Channel] = set()
        self._slowed = False

    def add(self, channel: Channel, flush: Flush, last: int, portions: list[ChannelBatch]) -> bool:
        """Adds portions to a flush in progress. Returns whether it is a new flush."""
        size = sum(portion.size for portion in portions)
        queue = self.flushes.setdefault(channel, deque())
        new = not queue or queue[-1].flush is not flush
        if new:
            queue.append(PendingFlush(flush, last, portions, size))
        else:
            newest = queue[-1]
            newest.last = last
            newest.portions += portions
            newest.size += size
        self._size += size
        if sum(each.size for each in queue) > CHANNEL_BOUND:
            self._full.add(channel)
        return new

    def first(self, channel: Channel) -> Flush | None:
        """Returns the flush of a channel that completes next; None after its messages were given up."""
        queue = self.flushes.get(channel)
        return None if queue is None else queue[0].flush

    def take(self, channel: Channel) -> PendingFlush:
        """Removes the first flush of a channel, which is complete."""
        queue = self.flushes[channel]
        done = queue.popleft()
        if not queue:
            del self.flushes[channel]
        self._size -= done.size
        self._check_full(channel)
        return done

    def give_up(self, channel: Channel) -> list[ChannelBatch]:
        """Removes all flushes of a channel. Returns their portions."""
        portions: list[ChannelBatch] = []
        for each in self.flushes.pop(channel, ()):
            self._size -= each.size
            portions += each.portions
        self._check_full(channel)
        return portions

    def _check_full(self, channel: Channel) -> None:
        """A channel is full until half of its limit is free."""
        if channel in self._full and sum(e.size for e in self.flushes.get(channel, ())) <= CHANNEL_BOUND // 2:
            self._full.discard(channel)

    def staged(self, batch: CommitBatch, size: int) -> None:
        """Slows down the publishers of a new batch if too much waits; `size` are all bytes that are not flushed yet."""
        full = self._full
        if (
            self._size + size > BOUND
            or (full and any(each.channel in full for each in batch.portions))
            or (self._channels.making > NEW_BOUND and any(each.channel.state is MAKING for each in batch.portions))
        ):
            self._slowed = True
            self._bus.slow_down()

    def end_slowdown(self, size: int) -> None:
        """Ends the slow reading of publishers when half of the limits is free; `size` as above."""
        if (
            self._slowed
            and not self._full
            and self._size + size <= BOUND // 2
            and self._channels.making <= NEW_BOUND // 2
        ):
            self._slowed = False
            self._bus.end_slowdown()
