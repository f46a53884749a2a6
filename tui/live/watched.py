"""A channel and its subscriptions as they change: rates, lag, and who has not moved for a while."""

from __future__ import annotations

from dataclasses import dataclass

from tui.live.documents import Channel, Subscription
from tui.live.history import Meter

#: Seconds without any movement from which on we say so.
STILL = 5.0


@dataclass(slots=True)
class Watched:
    """A subscription.

    Attributes:
        channel: Name of its channel.
        facts: What the server said last.
        lag: Messages of its channel that were not sent yet; of a queue group, to the member that is furthest.
        since: When it has moved last, by the clock of the monitor.
        state: `stalled`, `not moving`, `offline` or `ok`: the first that is so.
        still: Seconds for which messages have been waiting, to be sent or acknowledged, and none was.
    """

    channel: str
    facts: Subscription
    lag: int = 0
    since: float = 0.0
    still: float = 0.0
    state: str = "ok"

    def _see(self, facts: Subscription, at: float) -> None:
        old = self.facts
        if (facts.last_sent, facts.pending, facts.offline) != (old.last_sent, old.pending, old.offline):
            self.since = at
        self.facts = facts

    def _see_lag(self, lag: int, at: float) -> None:
        self.lag = lag
        # What a group is behind others of it may be sent.
        waits = self.facts.pending or (lag and not self.facts.queue)
        self.still = at - self.since if waits and not self.facts.offline else 0.0
        if self.facts.offline:
            self.state = "offline"
        elif self.facts.stalled:
            self.state = "stalled"
        else:
            self.state = "not moving" if self.still >= STILL else "ok"


class WatchedChannel:
    """A channel.

    Attributes:
        facts: What the server said last.
        rate: How fast its last sequence grows.
        subscriptions: In the order of the server.
        lag: Of the subscription that is furthest behind.
        pending: Messages that wait for acknowledgement, of all subscriptions.
        stalled: How many subscriptions the server calls stalled.
        still: How many others do not move.
    """

    __slots__ = ("_known", "facts", "lag", "meter", "pending", "stalled", "still", "subscriptions")

    def __init__(self, facts: Channel, at: float) -> None:
        self.meter = Meter()
        self._known: dict[tuple[str, ...], Watched] = {}
        self.see(facts, at)

    def see(self, facts: Channel, at: float) -> None:
        """Takes note of what the server says now."""
        self.facts = facts
        # A channel that was deleted and made again counts from 1 again.
        self.meter.see(facts.last, at)
        known: dict[tuple[str, ...], Watched] = {}
        sent: dict[str, int] = {}
        for each in facts.subscriptions:
            watched = self._known.get(each.key)
            if watched is None or each.key in known:
                watched = Watched(facts.name, each, since=at)
            watched._see(each, at)
            known[each.key if each.key not in known else (*each.key, str(len(known)))] = watched
            if each.queue:
                sent[each.queue] = max(sent.get(each.queue, 0), each.last_sent)
        self._known = known
        self.subscriptions = list(known.values())
        for watched in self.subscriptions:
            furthest = sent.get(watched.facts.queue, watched.facts.last_sent)
            # What was removed by limits meanwhile is not waited for any more.
            behind = facts.last - max(furthest, facts.first - 1) if facts.messages else 0
            watched._see_lag(max(behind, 0), at)
        self.lag = max((each.lag for each in self.subscriptions), default=0)
        self.pending = sum(each.facts.pending for each in self.subscriptions)
        self.stalled = sum(each.facts.stalled and not each.facts.offline for each in self.subscriptions)
        self.still = sum(each.state == "not moving" for each in self.subscriptions)

    @property
    def state(self) -> str:
        """The worst of it: `stalled`, `not moving`, `behind` (an offline subscription waits for messages) or `ok`."""
        if self.stalled:
            return "stalled"
        if self.still:
            return "not moving"
        return "behind" if any(each.facts.offline and each.lag for each in self.subscriptions) else "ok"
