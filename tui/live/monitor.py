"""A streaming server as its monitoring shows it: rates, lag, who has not moved for a while, restarts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tui.jobs import Job
from tui.live import facts
from tui.live.endpoint import STREAMING, Address, Endpoint, MissingError, MonitorError, TooLargeError
from tui.live.facts import Channel, Client, LiveSubscription, Nats, Server, Store
from tui.live.source import LiveSource, Meter, Pace

#: Entries that one answer holds at most: parsing it does not hold up the user interface.
PAGE: Final = 512
#: Store and limits, and the NATS server, are asked for once in this many rounds.
_SELDOM = 5
_T = TypeVar("_T")


#: Seconds without any movement from which on we say so.
STILL = 5.0


@dataclass(slots=True)
class Watched:
    """A subscription."""

    channel: str  #: name of its channel
    facts: LiveSubscription  #: what the server said last
    lag: int = 0  #: messages of its channel that were not sent yet; of a queue group, to the member that is furthest
    since: float = 0.0  #: when it has moved last, by the clock of the monitor
    still: float = 0.0  #: seconds for which messages have been waiting, to be sent or acknowledged, and none was
    state: str = "ok"  #: `stalled`, `not moving`, `offline` or `ok`: the first that is so

    def _see(self, facts: LiveSubscription, at: float) -> None:
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
    """A channel of a running server, as it was last seen.

    Attributes:
        facts: What the server said last.
        subscriptions: In the order of the server.
        lag: Of the subscription that is furthest behind.
        pending: Messages that wait for acknowledgement, of all subscriptions.
        stalled: How many subscriptions the server calls stalled.
        still: How many others do not move.
    """

    __slots__ = ("_known", "facts", "lag", "meter", "pending", "stalled", "still", "subscriptions")

    def __init__(self, facts: Channel, at: float) -> None:
        self.meter = Meter()  #: how fast its last sequence grows
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


class Rates:
    """How much goes into a server and comes out."""

    def __init__(self) -> None:
        self.in_messages, self.in_bytes, self.out_messages, self.out_bytes = (Meter() for _ in range(4))

    def see(self, server: Server, at: float) -> bool:
        """Takes note of the counters; returns whether none of them has gone back."""
        pairs = (
            (self.in_messages, server.in_messages),
            (self.in_bytes, server.in_bytes),
            (self.out_messages, server.out_messages),
            (self.out_bytes, server.out_bytes),
        )
        # All of them, also behind one that has gone back.
        forward = [meter.see(value, at) for meter, value in pairs]
        return all(forward)

    def forget(self) -> None:
        """The server counts from 0 again."""
        for meter in (self.in_messages, self.in_bytes, self.out_messages, self.out_bytes):
            meter.forget()


class Monitor(LiveSource):
    """A streaming server that is watched; see `LiveSource` for what is known of every server.

    Args:
        address: Of its monitoring.
        pace: How often it is asked.
        endpoint: Asks it; one is made for the address if none is given.
        clock: Returns seconds that only go forward.
        wall: Returns seconds since 1970.

    Attributes:
        stalled: How many of them the server calls stalled.
        still: How many others do not move.
    """

    def __init__(
        self,
        address: Address,
        pace: Pace,
        *,
        endpoint: Endpoint | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("monitor", pace, clock, wall)
        self.address = address
        self.server: Server | None = None  #: what the server said about itself last; None before its first answer
        self.store: Store | None = None  #: its store and limits, if known
        self.nats: Nats | None = None  #: the NATS server below, if it can be asked
        self.rates = Rates()  #: what goes in and out
        self.channels: dict[str, WatchedChannel] = {}  #: by name
        self.subscriptions: Sequence[Watched] = ()  #: of all channels
        self.stalled = self.still = 0
        self.clients: dict[str, Client] = {}  #: by id
        self._endpoint = endpoint or Endpoint(address)
        self._round = 0
        self._page = PAGE
        #: Channels that were not on the last list: it may have been moved on while we turned its pages.
        self._missed: set[str] = set()

    def run(self, job: Job[None]) -> None:
        """Asks again and again until the job is cancelled."""
        try:
            while True:
                begun = self._clock()
                self.ask(job.check)
                # A server that takes long to answer has time for others, too.
                self.pace.wait(job.check, at_least=self._clock() - begun)
        finally:
            self._endpoint.close()

    def ask(self, check: Callable[[], None] = lambda: None) -> None:
        """Asks everything once. What goes wrong becomes the `problem`."""
        begun, last = self._clock(), self.events[-1] if self.events else None
        try:
            self._ask_server()
            check()
            self._ask_others()
            check()
            channels = self._channels(check)
            clients = {each.id: each for each in self._pages("clientsz", facts.read_clients, check)}
            self._take(channels, self._clock())
            self.clients = clients
        except MonitorError as problem:
            self._fail(problem)
        else:
            # That it was restarted, which is known by now, says more.
            if self.problem is not None and last is not None and self.events[-1] is last:
                self._tell("the server answers again")
            self.problem = None
            self.took = self._clock() - begun
            self._round += 1
        self.revision += 1

    def _ask_server(self) -> None:
        try:
            server = facts.read_server(self._endpoint.ask(f"{STREAMING}/serverz"))
        except MissingError as problem:
            raise self._without_streaming(problem) from None
        at = self._clock()
        before, self.server = self.server, server
        if before is not None:
            self._note_changes(before, server, at)
        else:
            self.rates.see(server, at)
        self.answered = at

    def _note_changes(self, before: Server, server: Server, at: float) -> None:
        if before.server_id != server.server_id or before.start_time != server.start_time:
            other = before.cluster_id != server.cluster_id and before.cluster_id and server.cluster_id
            self._tell("another server answers now" if other else "the server was restarted", bad=True)
            self._restart()
        if not self.rates.see(server, at):
            self._tell("the server counts from zero again: it was restarted", bad=True)
            self._restart()
            self.rates.see(server, at)
        if (before.state, before.role) != (server.state, server.role):
            now = " ".join(filter(None, (server.state, server.role))) or "unknown"
            self._tell(f"the server is {now} now", bad=server.state in ("FAILED", "SHUTDOWN"))

    def _restart(self) -> None:
        self.rates.forget()
        self.store, self._round = None, 0
        self._missed = set()
        self._show({})

    def _without_streaming(self, problem: MonitorError) -> MonitorError:
        """Finds out whether it is at least a NATS server that has no streaming facts."""
        with contextlib.suppress(MonitorError):
            document = self._endpoint.ask("/varz")
            if "server_id" in document:
                return MonitorError(
                    f"{self.address.shown} is a NATS server without NATS Streaming",
                    "name the monitoring of the streaming server; JetStream is shown with --server nats://HOST:4222",
                )
        return problem

    def _ask_others(self) -> None:
        if self._round % _SELDOM and self.store is not None:
            return
        with contextlib.suppress(MissingError):
            self.store = facts.read(Store, self._endpoint.ask(f"{STREAMING}/storez"))
        try:
            self.nats = facts.read(Nats, self._endpoint.ask("/varz"))
        except MissingError:
            # An external NATS server has monitoring of its own, elsewhere.
            self.nats = None

    def _channels(self, check: Callable[[], None]) -> list[Channel]:
        return list(self._pages("channelsz", facts.read_channels, check, subs=1))

    def _pages(
        self, name: str, read: Callable[[dict[str, Any]], Iterator[_T]], check: Callable[[], None], **query: int
    ) -> Iterator[_T]:
        offset, limit = 0, self._page
        while True:
            check()
            try:
                page = self._endpoint.ask(f"{STREAMING}/{name}", **query, offset=offset, limit=limit)
            except TooLargeError:
                if limit == 1:
                    raise
                limit = max(limit // 8, 1)
                continue
            found = list(read(page))
            yield from found
            offset += limit
            if not found or offset >= facts.read_total(page):
                return

    def _take(self, found: list[Channel], at: float) -> None:
        channels: dict[str, WatchedChannel] = {}
        for channel in found:
            watched = self.channels.get(channel.name)
            if watched is None:
                watched = WatchedChannel(channel, at)
            else:
                watched.see(channel, at)
            channels[channel.name] = watched
        # A channel that was not there may have slipped to a page that we had turned: it gets a second chance.
        missed = self.channels.keys() - channels.keys()
        again = missed - self._missed if len(found) > self._page else set()
        for name in again:
            channels[name] = self.channels[name]
        self._missed = again
        self._show(dict(sorted(channels.items())) if again else channels)

    def _show(self, channels: dict[str, WatchedChannel]) -> None:
        self.channels = channels
        self.subscriptions = [each for channel in channels.values() for each in channel.subscriptions]
        self.stalled = sum(each.stalled for each in channels.values())
        self.still = sum(each.still for each in channels.values())
