"""A streaming server as its monitoring shows it, asked again and again.

`Monitor.run` is the work of a job. What it finds out is put into the model; `revision` tells that something is new.
The user interface only reads: what it reads is replaced as a whole or changes in single numbers.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from stantools.errors import StantoolsError
from tui.live import documents
from tui.live.documents import Client, Nats, Server, Store
from tui.live.endpoint import STREAMING, Address, Endpoint, MissingError, MonitorError, TooLargeError
from tui.live.history import Meter
from tui.live.pace import Pace
from tui.live.watched import Watched, WatchedChannel

#: Entries that one answer holds at most: parsing it does not hold up the user interface.
PAGE: Final = 512
#: Store and limits, and the NATS server, are asked for in every so manieth round.
_SELDOM = 5
#: Things that happened are remembered, the newest last.
_EVENTS = 100

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the server; `time` is in seconds since 1970."""

    time: float
    text: str
    bad: bool = False


class Rates:
    """How much goes into a server and comes out."""

    def __init__(self) -> None:
        self.in_messages, self.in_bytes, self.out_messages, self.out_bytes = (Meter() for _ in range(4))

    def see(self, server: Server, at: float) -> bool:
        """Takes note of the counters; tells whether none of them has gone back."""
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


class Monitor:
    """A server that is watched.

    Args:
        address: Of its monitoring.
        endpoint: Asks it; one is made for the address if none is given.
        clock: Tells seconds that only go forward.
        wall: Tells seconds since 1970.

    Attributes:
        pace: How often it is asked.
        server: What the server said about itself last; None before its first answer.
        store: Its store and limits, if known.
        nats: The NATS server below, if it can be asked.
        rates: What goes in and out.
        channels: By name.
        subscriptions: Of all channels.
        stalled: How many of them the server calls stalled.
        still: How many others do not move.
        clients: By id.
        events: What happened: restarts, the server gone and back.
        problem: Why it could not be asked in the last round; None if it could. What is known is old then.
        answered: When it answered last, by the clock; None if never.
        took: Seconds that the last whole round took.
        revision: Grows with every round.
    """

    def __init__(
        self,
        address: Address,
        *,
        endpoint: Endpoint | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.address = address
        self.pace = Pace()
        self.server: Server | None = None
        self.store: Store | None = None
        self.nats: Nats | None = None
        self.rates = Rates()
        self.channels: dict[str, WatchedChannel] = {}
        self.subscriptions: Sequence[Watched] = ()
        self.stalled = self.still = 0
        self.clients: dict[str, Client] = {}
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.problem: StantoolsError | None = None
        self.answered: float | None = None
        self.took = 0.0
        self.revision = 0
        self._endpoint = endpoint or Endpoint(address)
        self._clock, self._wall = clock, wall
        self._round = 0
        self._page = PAGE
        #: Channels that were not on the last list: it may have been moved on while we turned its pages.
        self._missed: set[str] = set()

    @property
    def age(self) -> float:
        """For how many seconds the server has not answered; 0 if it never did."""
        return self._clock() - self.answered if self.answered is not None else 0.0

    def run(self, check: Callable[[], None]) -> None:
        """Asks again and again, until `check` raises.

        Args:
            check: Called many times a second.
        """
        try:
            while True:
                begun = self._clock()
                self.ask(check)
                # A server that takes long to answer has time for others, too.
                self.pace.wait(check, at_least=self._clock() - begun)
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
            clients = {each.id: each for each in self._pages("clientsz", documents.read_clients, check)}
            self._take(channels, self._clock())
            self.clients = clients
        except MonitorError as problem:
            self._fail(problem)
        else:
            # That it was restarted, which has been told by now, says more.
            if self.problem is not None and last is not None and self.events[-1] is last:
                self._tell("the server answers again")
            self.problem = None
            self.took = self._clock() - begun
            self._round += 1
        self.revision += 1

    def _ask_server(self) -> None:
        try:
            server = documents.read_server(self._endpoint.ask(f"{STREAMING}/serverz"))
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
            self._tell("the server counts anew: it was restarted", bad=True)
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
        """Finds out whether it is at least a NATS server that has no streaming documents."""
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
            self.store = documents.read_store(self._endpoint.ask(f"{STREAMING}/storez"))
        try:
            self.nats = documents.read_nats(self._endpoint.ask("/varz"))
        except MissingError:
            # An external NATS server has monitoring of its own, elsewhere.
            self.nats = None

    def _channels(self, check: Callable[[], None]) -> list[documents.Channel]:
        return list(self._pages("channelsz", documents.read_channels, check, subs=1))

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
            if not found or offset >= documents.read_total(page):
                return

    def _take(self, found: list[documents.Channel], at: float) -> None:
        channels: dict[str, WatchedChannel] = {}
        for facts in found:
            watched = self.channels.get(facts.name)
            if watched is None:
                watched = WatchedChannel(facts, at)
            else:
                watched.see(facts, at)
            channels[facts.name] = watched
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

    def _fail(self, problem: MonitorError) -> None:
        if self.problem is None and self.answered is not None:
            self._tell(f"the server does not answer: {problem.message}", bad=True)
        self.problem = problem

    def _tell(self, text: str, *, bad: bool = False) -> None:
        self.events.append(Event(self._wall(), text, bad))
