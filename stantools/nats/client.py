"""A connection to one of several NATS servers, which is restored whenever it is lost.

`NatsClient` is the common base of the broker's connections and of `stantools.nats.connection`: finding a server, login,
subscriptions that outlive a connection, requests, and reconnection. Nothing is queued while disconnected: what
cannot be sent now is not sent. Derived classes override the methods whose names begin with `on_` to get events.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stantools.nats import encoding
from stantools.nats.credentials import tls_context
from stantools.nats.errors import LoginError, NatsError, NotEncryptedError
from stantools.nats.frames import for_each, rows
from stantools.nats.nats_session import NatsSession

if TYPE_CHECKING:
    import ssl

    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Handler
    from stantools.nats.login import Login, NatsAddress

#: unanswered pings after which a connection is given up
_MAX_PINGS: Final = 2
#: maximum number of servers learned from other servers
_MAX_SERVERS: Final = 100
#: consecutive refusals by a server, after a lost connection, that remove it from the list
_MAX_REFUSALS: Final = 2
_VERSION_LINE: Final = b"NATS/1.0 "


@dataclass(frozen=True, slots=True)
class ClientSettings:
    name: str  #: name of the connection
    login: Login
    #: TLS for an encrypted connection; nothing is sent then to a server without TLS. None encrypts only if a server or
    #: its URL demands it.
    tls: ssl.SSLContext | None = None
    tls_name: str = ""  #: name in the server's certificate; empty for the name in the URL
    tls_first: bool = False  #: begin with TLS at once, as servers with `handshake_first` require
    timeout: float = 2.0  #: maximum seconds of an attempt to connect
    pause: float = 0.25  #: seconds between two attempts to reconnect to the same server
    attempts: int | None = None  #: failed attempts after which a server is given up; None for no limit
    ping: float = 120.0  #: seconds between two pings
    inbox: str = "_INBOX"  #: prefix of the subjects of answers


class ConnectFailure(NamedTuple):
    server: NatsAddress
    problem: Exception
    info: dict[str, Any]  #: the server's INFO, if it was received


class UnreachableError(NatsError):
    def __init__(self, failures: Sequence[ConnectFailure]) -> None:
        super().__init__("nats: no servers available for connection")
        self.failures = failures  #: one for each server


class NatsMessage(NamedTuple):
    """A message of a subscription; the header block is empty if there is none."""

    subject: bytes
    reply: bytes
    header: bytes
    data: bytes

    @property
    def status(self) -> int:
        """The three digits after `NATS/1.0` in the header block, 0 if there are none."""
        digits = self.header[len(_VERSION_LINE) : len(_VERSION_LINE) + 3]
        return int(digits) if self.header.startswith(_VERSION_LINE) and digits.isdigit() else 0


class NatsClient:
    """A connection to one of `servers`, which are tried in this order, before those that they announce."""

    def __init__(self, servers: Sequence[NatsAddress], settings: ClientSettings) -> None:
        self.settings = settings
        self.server = servers[0]  #: the current or last server
        self.handlers: dict[int, Handler] = {}  #: handlers of the subscriptions by number
        self.info: dict[str, Any] = {}  #: the last INFO of the server
        self._servers = list(servers)
        self._context = settings.tls
        if servers[0].web:  # imported only then, and here, where no timeout runs
            from stantools.nats.websocket import open_websocket

            self._open_websocket = open_websocket
        self._subjects: dict[int, tuple[bytes, bytes]] = {}
        self._sids = 0
        self._session: NatsSession | None = None  # None while there is no usable connection
        self._settled = asyncio.Event()  # set while the client is connected, or has given up
        self._error = ""
        self._closed = False
        self._tried = 0.0
        self._reconnect_task: asyncio.Task[None] | None = None
        self._ping_task: asyncio.TimerHandle | None = None
        # requests: a wildcard inbox, and the callbacks of unanswered requests
        self._answers = b""
        self._asked = 0
        self._asking: dict[bytes, Callable[[NatsMessage], None]] = {}

    # Lifecycle.

    async def open(self) -> None:
        """Connects to the first server that can be reached; UnreachableError if none accepts the client."""
        failures = []
        for server in tuple(self._servers):
            if (failure := await self._connect_to(server)) is None:
                return
            failures.append(failure)
        raise UnreachableError(failures)

    async def close(self) -> None:
        """Sends buffered frames, and disconnects for good."""
        self._closed = True
        self._settled.set()
        self._asking.clear()
        if self._reconnect_task:
            self._reconnect_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reconnect_task
        if session := self._session:
            session.close()
            try:
                async with asyncio.timeout(self.settings.timeout):
                    await session.ended.wait()
            except TimeoutError:  # the server reads nothing any more
                session.abort("")

    @property
    def connected(self) -> bool:
        return self._session is not None

    @property
    def closed(self) -> bool:
        """Whether the client was closed or has given up, so that there will be no further connection."""
        return self._closed

    @property
    def encrypted(self) -> bool:
        return self._session is not None and self._session.encrypted

    @property
    def max_payload(self) -> int:
        """Maximum size of a message in bytes, headers included, for this server."""
        size = self.info.get("max_payload")
        return size if isinstance(size, int) else 1 << 20

    async def _connect_to(self, server: NatsAddress) -> ConnectFailure | None:
        info: dict[str, Any] = {}
        session = NatsSession(self)
        self._error = ""
        self._tried = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self.settings.timeout):
                await self._log_in(session, server, info)
        except (OSError, TimeoutError, NatsError) as problem:
            session.abort("it could not be set up")
            # The error of the server is the reason, whatever happened afterwards.
            return ConnectFailure(server, LoginError(self._error) if self._error else problem, info)
        except BaseException:
            session.abort("it could not be set up")
            raise
        self.server = server
        self.informed(info)
        self._session = session
        for sid, (subject, queue) in self._subjects.items():
            session.write(encoding.subscribe(subject, sid, queue))
        self._ping_task = asyncio.get_running_loop().call_later(self.settings.ping, self._ping)
        self._settled.set()
        return None

    async def _log_in(self, session: NatsSession, server: NatsAddress, info: dict[str, Any]) -> None:
        settings = self.settings
        loop = asyncio.get_running_loop()
        name = settings.tls_name or server.name
        at_once = settings.tls_first or (server.web and server.tls)
        context = self._tls() if at_once else None
        if server.web:
            await self._open_websocket(session, server, context, name)
        else:
            await loop.create_connection(
                lambda: session, server.host, server.port, ssl=context, server_hostname=name if at_once else None
            )
        info |= await session.greeting
        if not session.encrypted and (server.tls or self._context is not None or info.get("tls_required")):
            if server.web or not (info.get("tls_required") or info.get("tls_available")):
                raise NotEncryptedError("nats: secure connection not available")
            await session.secure(self._tls(), name)
        session.write(encoding.connect(settings.login.options(settings.name, server, info)))
        if not await session.pong():
            raise ConnectionResetError("the connection was closed")

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            # the system's authorities, as without any option
            self._context = tls_context()
        return self._context

    def _ping(self) -> None:
        session = self._session
        if session is None:
            return
        if session.unanswered >= _MAX_PINGS:
            session.abort("nats: stale connection")
            return
        session.ping(lambda good: None)
        self._ping_task = asyncio.get_running_loop().call_later(self.settings.ping, self._ping)

    async def _reconnect(self) -> None:
        settings, loop = self.settings, asyncio.get_running_loop()
        attempts: Counter[NatsAddress] = Counter()
        refusals: Counter[NatsAddress] = Counter()
        given_up: set[NatsAddress] = set()
        while servers := [server for server in self._servers if server not in given_up]:
            await asyncio.sleep(self._tried + settings.pause - loop.time())
            for server in servers:
                if (failure := await self._connect_to(server)) is None:
                    self._reconnect_task = None
                    self.on_back()
                    return
                self.on_unreachable(failure)
                attempts[server] += 1
                refusals[server] = refusals[server] + 1 if isinstance(failure.problem, LoginError) else 0
                if settings.attempts and (attempts[server] == settings.attempts or refusals[server] == _MAX_REFUSALS):
                    given_up.add(server)
        self._closed = True
        self._reconnect_task = None
        self._settled.set()
        self.on_given_up()

    # Events of a session.

    def informed(self, info: dict[str, Any]) -> None:
        """Stores the server's INFO, and the other servers of its cluster."""
        self.info |= info
        addresses = info.get("connect_urls")
        known = {(server.host, server.port) for server in self._servers}
        before = len(self._servers)
        for address in addresses if isinstance(addresses, list) else []:
            server = self._servers[0].discovered(str(address))
            if server and (server.host, server.port) not in known and len(self._servers) < _MAX_SERVERS:
                self._servers.append(server)
        # The first INFO belongs to the connection and announces no news.
        if self._session and len(self._servers) > before:
            self.on_discovered()

    def refused(self, text: str) -> None:
        self._error = text
        if self._session:
            self.on_refused(text)

    def failed(self, problem: Exception) -> None:
        self.on_failed(problem)

    def lost(self, session: NatsSession, reason: str) -> None:
        """Starts to reconnect if it was the connection in use."""
        if session is not self._session:
            return
        self._session = None
        if self._ping_task:
            self._ping_task.cancel()
        if not self._closed:
            self._settled.clear()
            self.on_lost(reason)
            self._reconnect_task = asyncio.get_running_loop().create_task(self._reconnect())

    # Events for derived classes.

    def on_lost(self, reason: str) -> None: ...

    def on_back(self) -> None: ...

    def on_unreachable(self, failure: ConnectFailure) -> None: ...

    def on_given_up(self) -> None:
        """No server could be reconnected to, and no further attempts will be made."""

    def on_refused(self, text: str) -> None: ...

    def on_failed(self, problem: Exception) -> None: ...

    def on_discovered(self) -> None: ...

    # Sending and subscribing.

    def send(self, frames: bytes) -> bool:
        """Sends whole frames at the end of this turn of the loop; returns False if there is no usable connection.

        A connection is unusable if the server does not read and too many bytes wait for it already.
        """
        session = self._session
        if session is None or not session.writable:
            return False
        session.write(frames)
        return True

    def subscribe(self, subject: bytes, handler: Handler, queue: bytes = b"") -> int:
        """Subscribes, now and after every reconnection. Returns the number of the subscription."""
        self._sids += 1
        self.handlers[self._sids] = handler
        self._subjects[self._sids] = subject, queue
        if self._session:
            self._session.write(encoding.subscribe(subject, self._sids, queue))
        return self._sids

    def listen(self, subject: bytes, take: Callable[[NatsMessage], None], queue: bytes = b"") -> int:
        """Subscribes with a callback per message, for few messages. Returns the argument of `unsubscribe`.

        Exceptions of the callback go to `on_failed`.
        """

        def handle(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
            for_each((NatsMessage(*row) for row in rows(buffer, frames, begin, end)), take_subscribed)

        def take_subscribed(message: NatsMessage) -> None:
            if sid in self.handlers:  # the callback may have unsubscribed
                take(message)

        sid = self.subscribe(subject, handle, queue)
        return sid

    def unsubscribe(self, sid: int) -> None:
        """Unsubscribes; the handler is not called any more."""
        self.handlers.pop(sid, None)
        if self._subjects.pop(sid, None) is not None and self._session:
            self._session.write(encoding.unsubscribe(sid))

    def new_inbox(self) -> bytes:
        return f"{self.settings.inbox}.{secrets.token_hex(11)}".encode()

    def ask(self, subject: bytes, payload: bytes, answered: Callable[[NatsMessage], None]) -> bytes:
        """Sends a request, if there is a connection.

        `answered` gets the answer; status 503 is the server's own, if there is no subscriber. Returns the key for
        `forget`.
        """
        if not self._answers:
            self._answers = self.new_inbox() + b"."
            self.listen(self._answers + b"*", self._take_answer)
        self._asked += 1
        reply = self._answers + b"%d" % self._asked
        self._asking[reply] = answered
        self.send(encoding.publish(subject, payload, reply))
        return reply

    def forget(self, request: bytes) -> bool:
        """Ends the wait for the answer to a request; returns whether it was still unanswered."""
        return self._asking.pop(request, None) is not None

    def _take_answer(self, message: NatsMessage) -> None:
        if answered := self._asking.pop(message.subject, None):
            answered(message)
