"""One connection to another NATS server (high-availability.md section R.1)."""

from __future__ import annotations

import asyncio
import enum
import hmac
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from broker.log import NATS
from broker.nats.client import Counters
from broker.nats.routes import wire

if TYPE_CHECKING:
    from broker.nats.fair_scheduler import FairScheduler
    from broker.nats.nats_options import ClusterOptions
    from broker.nats.routes.wire import RemoteInterest, RoutedMessage
    from stantools.nats.login import NatsAddress

_SECOND: Final = 1_000_000_000
#: Maximum seconds between two pings, and maximum number of unanswered pings.
_PING: Final = 30.0
_MAX_PINGS: Final = 2
#: Bytes of collected output that are written at once; pending bytes that count as congestion.
_FLUSH_SIZE: Final = 256 * 1024
_PATIENT_LIMIT: Final = 8 << 20


class RouteState(enum.Enum):
    UNTRUSTED = enum.auto()  #: of an incoming connection: credentials are expected
    TRUSTED = enum.auto()  #: INFO is expected
    OPEN = enum.auto()
    UNNEEDED = enum.auto()  #: the other end is about to close it
    CLOSED = enum.auto()


# Constants for hot paths: looking up members of an enumeration is slow (Python 3.11).
UNTRUSTED, TRUSTED, OPEN, UNNEEDED, CLOSED = RouteState
_NEXT: Final = {
    UNTRUSTED: (TRUSTED, UNNEEDED, CLOSED),
    TRUSTED: (OPEN, UNNEEDED, CLOSED),
    OPEN: (CLOSED,),
    UNNEEDED: (CLOSED,),
    CLOSED: (),
}


class RouteNetwork(Protocol):
    """All links together, as one of them sees it."""

    cluster: ClusterOptions
    turns: FairScheduler
    max_pending: int

    def about(self, link: Route) -> dict[str, Any]: ...

    def credentials(self, link: Route) -> dict[str, Any]: ...

    def agrees(self, fields: Any) -> str:
        """Returns the reason why a server cannot be in this cluster; empty if it can."""

    def connected(self, link: Route) -> None: ...

    def introduced(self, link: Route) -> bool: ...

    def informed(self, link: Route, fields: Any) -> None:
        """The other end has sent a new INFO about itself, or about a third server."""

    def interest_changed(self, link: Route, interest: RemoteInterest) -> None: ...

    def arrived(self, link: Route, message: RoutedMessage) -> None: ...

    def overloaded(self) -> bool:
        """Delivers messages between parts of this process. Returns whether some are left."""

    def gone(self, link: Route) -> None: ...


class Route(asyncio.Protocol):
    """A connection to another server.

    Args:
        number: Its id in logs and views.
        net: All links together.
        url: The URL that this server has connected to; None for an incoming connection.
        configured: The URL comes from the options, not from another server.

    Attributes:
        host: Address of the other end.
        port: Its port.
    """

    def __init__(
        self, number: int, net: RouteNetwork, url: NatsAddress | None = None, *, configured: bool = False
    ) -> None:
        self.number = number
        self.url = url
        self.configured = configured
        self.host, self.port = "", 0
        self.local_host = ""
        self.remote: dict[str, Any] = {}  #: last INFO of the other end; empty before it
        self.state = UNTRUSTED if url is None else TRUSTED
        self.over = asyncio.Event()  #: set at its end
        self.reason = ""
        self.start = time.time_ns()  #: start time, ns since the epoch
        self.rtt = 0  #: last round trip in ns; 0 if unknown
        self.counters = Counters()
        self.wishes: dict[tuple[bytes, bytes], int] = {}  #: interest there: weights by subject and queue group
        self._net = net
        self._parser = wire.Parser()
        self._transport: asyncio.Transport
        self._out: list[bytes] = []
        self._out_size = 0
        self._flushing: asyncio.Handle | None = None
        self._fed = self._working = False
        self._timer: asyncio.TimerHandle | None = None
        self._pings = 0
        self._pinged = 0
        self._ping_at = 0
        self._progress = (0, 0)
        self._written = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port} - rid:{self.number}"

    @property
    def remote_id(self) -> str:
        return str(self.remote.get("server_id", ""))

    # Life

    def _advance(self, state: RouteState) -> None:
        assert state in _NEXT[self.state], f"{self.state} does not become {state}"
        self.state = state

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.host, self.port = str(peer[0]), int(peer[1]) if len(peer) > 1 else 0
        self.local_host = str((transport.get_extra_info("sockname") or ("",))[0])
        loop = asyncio.get_running_loop()
        reason = "Authentication Timeout"
        self._timer = loop.call_later(self._net.cluster.timeout, self.close, reason, reason if self.url is None else "")
        self._net.connected(self)
        NATS.debug("%s - Route connection created", self)
        if self.url is None:
            self.send(wire.info(self._net.about(self)))

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, problem: Exception | None) -> None:
        self._end("Client Closed" if problem is None else f"Read Error: {problem}")

    def close(self, reason: str, error: str = "") -> None:
        if self.state is CLOSED:
            return
        if error:
            self.send(wire.error(error))
        self.flush()
        self._end(reason)
        self._transport.close()
        asyncio.get_running_loop().call_later(2.0, self._transport.abort)

    def _end(self, reason: str) -> None:
        if self.state is CLOSED:
            return
        self._advance(CLOSED)
        self.reason = reason
        self.over.set()
        for timer in (self._timer, self._flushing):
            if timer is not None:
                timer.cancel()
        self._out, self._flushing = [], None
        NATS.log(logging.INFO if self.remote else logging.DEBUG, "%s - Router connection closed: %s", self, reason)
        self._net.gone(self)

    def look_after(self, now: int) -> None:
        if self.state is not OPEN:
            return
        waiting = self._transport.get_write_buffer_size()
        taken = self._written - waiting
        if not waiting or taken != self._progress[0]:
            self._progress = (taken, now)
        elif now - self._progress[1] > int(self._net.cluster.write_deadline * _SECOND):
            self.close("Slow Consumer (Write Deadline)")
            return
        if now < self._ping_at:
            return
        if self._pings >= _MAX_PINGS:
            self.close("Stale Connection", "Stale Connection")
            return
        self.ping(now)

    def ping(self, now: int) -> None:
        self._ping_at = now + int(min(_PING, self._net.cluster.ping_interval) * _SECOND)
        self._pings += 1
        self._pinged = now
        self.send(wire.PING)

    # Output

    def send(self, data: bytes) -> None:
        if self.state is CLOSED:
            return
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size > _FLUSH_SIZE:
            self.flush()
        elif self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self.state is CLOSED or not self._out:
            return
        out, self._out = self._out, []
        self._written, self._out_size = self._written + self._out_size, 0
        self._transport.write(b"".join(out))
        if self._transport.get_write_buffer_size() > self._net.max_pending:
            self._end("Slow Consumer (Pending Bytes)")
            self._transport.abort()

    @property
    def pending(self) -> int:
        return self._out_size + (0 if self.state is CLOSED else self._transport.get_write_buffer_size())

    @property
    def congested(self) -> bool:
        return self.pending > _PATIENT_LIMIT

    def deliver(self, subject: bytes, reply: bytes, queues: list[bytes], header_size: int, payload: bytes) -> None:
        """Sends a message for clients there: all outside of queue groups, and one member of each of `queues`."""
        self.counters.out_msgs += 1
        self.counters.out_bytes += len(payload)
        if header_size and not self.remote.get("headers"):
            payload, header_size = payload[header_size:], 0
        self.send(wire.message(subject, reply, queues, header_size, payload))

    # Input

    def data_received(self, data: bytes) -> None:
        """Handles input up to the time of a turn; reading pauses until all of it is handled."""
        if self.state is CLOSED:
            return
        self._parser.feed(data)
        self._fed = True
        if not self._working:
            self._working = True
            self._transport.pause_reading()
            self._net.turns.begin(self._work())

    def _work(self) -> Iterator[None]:
        try:
            while self._fed:
                self._fed = False
                for event in self._parser.events():
                    self._handle(event)
                    if self.state is CLOSED:
                        return
                    yield
                while self._net.overloaded():
                    yield
        except wire.WireError as problem:
            NATS.error("%s - Unknown Protocol Operation: %s", self, problem)
            self.close("Parse Error", "Unknown Protocol Operation")
        finally:
            self._working = False
            if self.state is not CLOSED and not self._transport.is_closing():
                self._transport.resume_reading()

    def _handle(self, event: wire.Event) -> None:
        if isinstance(event, wire.RoutedMessage):
            if self.state is OPEN:
                self.counters.in_msgs += 1
                self.counters.in_bytes += len(event.payload)
                self._net.arrived(self, event)
        elif isinstance(event, wire.RemoteInterest):
            if self.state is OPEN:
                self._net.interest_changed(self, event)
        elif event == wire.PING:
            self.send(wire.PONG)
        elif event == wire.PONG:
            self._pings = 0
            if self._pinged:
                self.rtt, self._pinged = time.monotonic_ns() - self._pinged, 0
        elif isinstance(event, wire.RouteInfo):
            self._informed(event.fields)
        elif isinstance(event, wire.RouteConnect):
            self._connect(event.fields)
        elif isinstance(event, wire.RouteError):
            NATS.log(
                logging.DEBUG if self.state is UNNEEDED else logging.ERROR, "%s - Route Error '%s'", self, event.text
            )
            self.close(event.text)

    def _connect(self, fields: Any) -> None:
        """Handles the CONNECT of the other end: who it is, and its credentials."""
        cluster = self._net.cluster
        if cluster.user and not (
            hmac.compare_digest(str(fields.get("user", "")).encode(), cluster.user.encode())
            and hmac.compare_digest(str(fields.get("pass", "")).encode(), cluster.password.encode())
        ):
            NATS.error("%s - authentication error", self)
            self.close("Authentication Failure", "Authorization Violation")
            return
        if self.state is UNTRUSTED:
            self._advance(TRUSTED)

    def _informed(self, fields: Any) -> None:
        if self.state is OPEN:
            self._net.informed(self, fields)
            return
        if self.state is UNNEEDED:
            return
        if fields.get("route_account"):
            # An account-specific link, from a server that does not know yet that there are no accounts here.
            self._advance(UNNEEDED)
            return
        if self.state is UNTRUSTED:
            NATS.error("%s - authentication error", self)
            self.close("Authentication Failure", "Authorization Violation")
            return
        if problem := self._net.agrees(fields):
            NATS.error("%s - %s", self, problem)
            self.close("Cluster Name Conflict", problem)
            return
        self.remote = dict(fields)
        if self.url is not None:
            self.send(wire.connect(self._net.credentials(self)))
            self.send(wire.info(self._net.about(self)))
            self.ping(time.monotonic_ns())
        if not self._net.introduced(self):
            return
        self._parser.trusted = True
        if self.state is TRUSTED:  # what was sent may have been too much for the other end
            self._advance(OPEN)
            if self._timer is not None:
                self._timer.cancel()
            self._ping_at = self._ping_at or time.monotonic_ns() + _SECOND
