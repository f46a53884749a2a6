"""Who gets a message: the rules that hold for one message and for a run of them, from sockets and from this process."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from broker.log import NATS
from broker.nats.client import Counters

if TYPE_CHECKING:
    from broker.nats.client import BrokerClient, NatsSubscription
    from broker.nats.subscriptions import Subscriptions
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

#: Seconds of pause for a client that sends more than a handler can take; then it may send another read.
_STALL = 1.0


def choose(members: Sequence[NatsSubscription]) -> NatsSubscription:
    """Chooses the member of a queue group for a message."""
    return members[int(random.random() * len(members))]


class MessageRecipients:
    """Chooses receivers, hands them rows of tables, ends subscriptions at their limits, and counts."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self.counters = Counters()  #: messages and bytes of all clients
        self.subscriptions = subscriptions

    def count_input(self, origin: BrokerClient, count: int, size: int) -> None:
        counters = origin.counters
        counters.in_msgs += count
        counters.in_bytes += size
        counters = self.counters
        counters.in_msgs += count
        counters.in_bytes += size

    def count_output(self, to: NatsSubscription, count: int, size: int) -> None:
        to.delivered += count
        counters = to.client.counters
        counters.out_msgs += count
        counters.out_bytes += size
        counters = self.counters
        counters.out_msgs += count
        counters.out_bytes += size

    def within_limit(self, to: NatsSubscription, count: int) -> int:
        """Returns how many of `count` messages a subscription still gets; ends it if it reaches its limit with them."""
        if not to.limit:
            return count
        count = min(count, max(to.limit - to.delivered, 0))
        if to.delivered + count >= to.limit:
            self.subscriptions.remove(to)
        return count

    def of_one(
        self,
        origin: BrokerClient | None,
        plain: Iterable[NatsSubscription],
        groups: Iterable[Sequence[NatsSubscription]],
    ) -> list[NatsSubscription]:
        """Returns the receivers of one message: all outside of queue groups, and one member of each."""
        chosen = [s for s in plain if s.receives(origin)]
        for group in groups:
            members = [s for s in group if s.receives(origin)]
            if members:
                chosen.append(choose(members))
        return [s for s in chosen if self.within_limit(s, 1)]

    def hand_rows(self, to: NatsSubscription, buffer: Buffer, frames: Frames, begin: int, end: int, size: int) -> float:
        """Hands rows to a handler or client. Returns the seconds that the publishers should pause."""
        self.count_output(to, end - begin, size)
        client, handler = to.client, to.handler
        try:
            if handler is None:
                return client.take(to, buffer, frames, begin, end, size)
            client.full = False
            handler(buffer, frames, begin, end)
            return _STALL if client.full else 0
        except Exception as problem:
            report_failure(to, problem)
            return 0


def report_failure(to: NatsSubscription, problem: Exception) -> None:
    """Logs an error of a handler; the connections of the publishers stay open."""
    NATS.error("%s: error in the handler of %r: %r", to.client.name, to.subject.decode(errors="replace"), problem)
    NATS.debug("Details", exc_info=True)
