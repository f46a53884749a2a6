"""A streaming server seen through its monitoring: rates, lag, subscriptions without progress, restarts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from stantools.nats.monitoring import STREAMING, Address, Endpoint, MissingError, MonitorError, TooLargeError
from tui.jobs import Job
from tui.live import facts
from tui.live.facts import LiveChannel, LiveClient, LiveSubscription, NatsFacts, ServerFacts, StoreFacts
from tui.live.source import LiveSource, PollInterval, RateMeter

#: Entries per page: parsing one page does not delay the user interface.
PAGE: Final = 512
#: Rounds between two requests for the store, its limits and the NATS server.
_FACTS_INTERVAL = 5
_T = TypeVar("_T")


#: Seconds without progress after which a subscription counts as not moving.
STILL = 5.0


@dataclass(slots=True)
class WatchedServer:
    channel: str
    facts: LiveSubscription  #: the server's last answer
    lag: int = 0  #: undelivered messages of its channel; in a queue group, counted from its furthest member
    since: float = 0.0  #: time of its last progress, on the monitor's clock
    still: float = 0.0  #: seconds since the last progress while messages wait for delivery or acknowledgement
    state: str = "ok"  #: `stalled`, `not moving`, `offline` or `ok`; the first that applies

    def _see_lag(self, lag: int, at: float) -> None:
        self.lag = lag
        # The lag of a queue group may be delivered to other members.
        waits = self.facts.pending or (lag and not self.facts.queue)
        self.still = at - self.since if waits and not self.facts.offline else 0.0
        if self.facts.offline:
            self.state = "offline"
        elif self.facts.stalled:
            self.state = "stalled"
        else:
            self.state = "not moving" if self.still >= STILL else "ok"


class WatchedChannel:
    """A channel of a running server.

    Attributes:
        facts: The server's last answer.
        subscriptions: Its subscriptions, in the server's order.
        lag: The largest lag of a subscription.
        pending: Unacknowledged messages of all subscriptions.
        stalled: Number of subscriptions that the server reports as stalled.
        still: Number of other subscriptions that do not move.
    """

    __slots__ = ("_known", "facts", "lag", "meter", "pending", "stalled", "still", "subscriptions")

    def __init__(self, facts: LiveChannel, at: float) -> None:
        self.meter = RateMeter()  #: growth of its last sequence
        self._known: dict[tuple[str, ...], WatchedServer] = {}
        self.see(facts, at)

    def see(self, facts: LiveChannel, at: float) -> None:
        self.facts = facts
        # A channel that was deleted and created again counts from 1.
        self.meter.see(facts.last, at)
        known: dict[tuple[str, ...], WatchedServer] = {}
        sent: dict[str, int] = {}
        for each in facts.subscriptions:
            watched = self._known.get(each.key)
            if watched is None or each.key in known:
                watched = WatchedServer(facts.name, each, since=at)
            old = watched.facts
            if (each.last_sent, each.pending, each.offline) != (old.last_sent, old.pending, old.offline):
                watched.since = at
            watched.facts = each
            known[each.key if each.key not in known else (*each.key, str(len(known)))] = watched
            if each.queue:
                sent[each.queue] = max(sent.get(each.queue, 0), each.last_sent)
        self._known = known
        self.subscriptions = list(known.values())
        for watched in self.subscriptions:
            furthest = sent.get(watched.facts.queue, watched.facts.last_sent)
            # Messages removed by limits are no longer undelivered.
            behind = facts.last - max(furthest, facts.first - 1) if facts.messages else 0
            watched._see_lag(max(behind, 0), at)
        self.lag = max((each.lag for each in self.subscriptions), default=0)
        self.pending = sum(each.facts.pending for each in self.subscriptions)
        self.stalled = sum(each.facts.stalled and not each.facts.offline for each in self.subscriptions)
        self.still = sum(each.state == "not moving" for each in self.subscriptions)

    @property
    def state(self) -> str:
        """The worst state: `stalled`, `not moving`, `behind` (messages wait for an offline subscription) or `ok`."""
        if self.stalled:
            return "stalled"
        if self.still:
            return "not moving"
        return "behind" if any(each.facts.offline and each.lag for each in self.subscriptions) else "ok"


class TrafficRates:
    def __init__(self) -> None:
        self.in_messages, self.in_bytes, self.out_messages, self.out_bytes = (RateMeter() for _ in range(4))

    def see(self, server: ServerFacts, at: float) -> bool:
        """Reads the counters; returns False if one of them decreased."""
        pairs = (
            (self.in_messages, server.in_messages),
            (self.in_bytes, server.in_bytes),
            (self.out_messages, server.out_messages),
            (self.out_bytes, server.out_bytes),
        )
        # A list, so that every meter is updated even after one decreased.
        forward = [meter.see(value, at) for meter, value in pairs]
        return all(forward)

    def forget(self) -> None:
        for meter in (self.in_messages, self.in_bytes, self.out_messages, self.out_bytes):
            meter.forget()


class Monitor(LiveSource):
    """A watched streaming server.

    Args:
        address: URL of its monitoring.
        pace: The polling interval.
        endpoint: A client; one is made for the address by default.
        clock: Monotonic time in seconds.
        wall: Seconds since 1970.

    Attributes:
        stalled: Number of subscriptions that the server reports as stalled.
        still: Number of other subscriptions that do not move.
    """

    def __init__(
        self,
        address: Address,
        pace: PollInterval,
        *,
        endpoint: Endpoint | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("monitor", pace, clock, wall)
        self.address = address
        self.server: ServerFacts | None = None  #: the last `serverz`; None before the first answer
        self.store: StoreFacts | None = None  #: store and limits, if known
        self.nats: NatsFacts | None = None  #: the NATS server, if its monitoring answers
        self.rates = TrafficRates()
        self.channels: dict[str, WatchedChannel] = {}
        self.subscriptions: Sequence[WatchedServer] = ()
        self.stalled = self.still = 0
        self.clients: dict[str, LiveClient] = {}
        self._endpoint = endpoint or Endpoint(address)
        self._round = 0
        self._page = PAGE
        #: Channels missing from the last list; the list may have changed between two of its pages.
        self._missed: set[str] = set()

    def run(self, job: Job[None]) -> None:
        try:
            while True:
                begun = self._clock()
                self.ask(job.check)
                # The interval is at least the duration of a round, so that an overloaded server gets a rest.
                self.pace.wait(job.check, minimum=self._clock() - begun)
        finally:
            self._endpoint.close()

    def ask(self, check: Callable[[], None] = lambda: None) -> None:
        """Polls everything once; an error becomes the `problem`."""
        begun, last = self._clock(), self.events[-1] if self.events else None
        try:
            self._ask_server()
            check()
            self._ask_others()
            check()
            channels = list(self._pages("channelsz", facts.read_channels, check, subs=1))
            clients = {each.id: each for each in self._pages("clientsz", facts.read_clients, check)}
            self._take(channels, self._clock())
            self.clients = clients
        except MonitorError as problem:
            self._fail(problem)
        else:
            # A restart, noticed by now, explains more than the lost connection.
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

    def _note_changes(self, before: ServerFacts, server: ServerFacts, at: float) -> None:
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
        """Returns a better error if the server is a NATS server without streaming."""
        with contextlib.suppress(MonitorError):
            document = self._endpoint.ask("/varz")
            if "server_id" in document:
                return MonitorError(
                    f"{self.address.shown} is a NATS server without NATS Streaming",
                    "name the monitoring of the streaming server; JetStream is shown with --server nats://HOST:4222",
                )
        return problem

    def _ask_others(self) -> None:
        if self._round % _FACTS_INTERVAL and self.store is not None:
            return
        with contextlib.suppress(MissingError):
            self.store = facts.read(StoreFacts, self._endpoint.ask(f"{STREAMING}/storez"))
        try:
            self.nats = facts.read(NatsFacts, self._endpoint.ask("/varz"))
        except MissingError:
            # An external NATS server has its monitoring at another address.
            self.nats = None

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

    def _take(self, found: list[LiveChannel], at: float) -> None:
        channels: dict[str, WatchedChannel] = {}
        for channel in found:
            watched = self.channels.get(channel.name)
            if watched is None:
                watched = WatchedChannel(channel, at)
            else:
                watched.see(channel, at)
            channels[channel.name] = watched
        # A missing channel may have moved to a page already read; it is dropped when the next list misses it as well.
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
