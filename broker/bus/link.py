"""A connection to NATS that comes back whenever it is lost (streaming-protocol.md section 1.3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.bus.login import BusError, Login, Server, client_context, discovered
from broker.log import NATS, STREAMING
from stantools.nats import encoding
from stantools.nats.kernels import encode_publishes
from stantools.nats.session import Session

if TYPE_CHECKING:
    from broker.blocks import Payloads
    from broker.config.options import ConnectionOptions
    from stantools.nats.frames import Handler

#: Bytes that wait for the server, beyond which those who send from a store wait.
_CONGESTED: Final = 8 << 20
#: Seconds between two attempts to connect again.
_RETRY: Final = 0.25
#: Seconds that an attempt may take.
_PATIENCE: Final = 2.0
#: Seconds between two pings, and unanswered ones after which the connection is given up.
_PING_INTERVAL: Final = 120.0
_MAX_PINGS: Final = 2
#: Servers that other servers told about, at most.
_MAX_SERVERS: Final = 100

NO_SERVERS: Final = "nats: no servers available for connection"


def _nothing() -> None:
    """Nobody wants to know."""


class Link:
    """One of the streaming server's connections.

    Args:
        name: What it is called.
        options: How to connect.
        servers: Where to.
        login: Who we are.

    Attributes:
        handlers: Handlers of the subscriptions by number.
        info: What the server last said about itself.
        on_discovered: Called when the server has told about others that were not known.
    """

    def __init__(self, name: str, options: ConnectionOptions, servers: list[Server], login: Login) -> None:
        self.name = name
        self.handlers: dict[int, Handler] = {}
        self.info: dict[str, Any] = {}
        self.on_discovered: Callable[[], None] = _nothing
        self._subjects: dict[int, bytes] = {}
        self._sids = 0
        self._tls = options.tls
        self._context = client_context(options.tls) if options.tls else None
        self._servers = list(servers)
        self._login = login
        self._session: Session | None = None  # None while there is no connection that can be used
        self._error = ""
        self._closed = False
        self._reconnecting: asyncio.Task[None] | None = None
        self._pinging: asyncio.TimerHandle | None = None

    # Life

    async def connect(self) -> None:
        """Connects to the first server that can be reached.

        Raises:
            BusError: There is none, or it refuses us.
        """
        problem: Exception | None = None
        for server in list(self._servers):
            try:
                await self._open(server)
            except (OSError, TimeoutError, BusError) as failure:
                problem = failure
            else:
                return
        if isinstance(problem, BusError):
            raise problem
        if problem is not None and "certificate" in str(problem):
            raise BusError(f"x509: {problem}") from problem
        raise BusError(NO_SERVERS) from problem

    async def close(self) -> None:
        """Sends what waits, and disconnects for good."""
        self._closed = True
        if self._reconnecting:
            self._reconnecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reconnecting
        if self._session:
            self._session.close()
            # The transport tells of its end in a later turn.
            await asyncio.sleep(0)
        STREAMING.debug("connection %r has been closed", self.name)

    @property
    def connected(self) -> bool:
        """Whether something can be sent now."""
        return self._session is not None

    @property
    def max_payload(self) -> int:
        """Bytes that a message may have."""
        size = self.info.get("max_payload")
        return size if isinstance(size, int) else 1 << 20

    async def _open(self, server: Server) -> None:
        session: Session | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                loop = asyncio.get_running_loop()
                _, session = await loop.create_connection(lambda: Session(self), server.host, server.port)
                info = await session.greeting
                await self._secure(session, server, info)
                self._error = ""
                said = self._login.options(self.name, server, info)
                session.write(encoding.connect(said))
                if not await session.pong():
                    raise BusError(self._error) if self._error else ConnectionResetError("the connection was closed")
        except BaseException:
            if session:
                session.abort("it could not be set up")
            raise
        self.informed(info)
        self._session = session
        for sid, subject in self._subjects.items():
            session.write(encoding.subscribe(subject, sid))
        self._pinging = loop.call_later(_PING_INTERVAL, self._ping)

    async def _secure(self, session: Session, server: Server, info: dict[str, Any]) -> None:
        offered = bool(info.get("tls_required") or info.get("tls_available"))
        wanted = server.tls or self._context is not None
        if not wanted and not info.get("tls_required"):
            return
        if not offered:
            raise BusError("nats: secure connection not available")
        if self._context is None:
            # The system's authorities, as without any option.
            from broker.config.options import ClientTLSOptions

            self._context = client_context(ClientTLSOptions())
        name = (self._tls.server_name if self._tls else "") or server.name
        await session.secure(self._context, name)

    def _ping(self) -> None:
        session = self._session
        if session is None:
            return
        if session.unanswered >= _MAX_PINGS:
            session.abort("nats: stale connection")
            return
        session.ping(lambda good: None)
        self._pinging = asyncio.get_running_loop().call_later(_PING_INTERVAL, self._ping)

    async def _reconnect(self) -> None:
        while True:
            for server in list(self._servers):
                await asyncio.sleep(_RETRY)
                try:
                    await self._open(server)
                except (OSError, TimeoutError, BusError) as problem:
                    STREAMING.debug("connection %r: no connection to %s: %s", self.name, server, problem)
                else:
                    STREAMING.info('connection "%s" reconnected to NATS Server at "%s"', self.name, server)
                    self._reconnecting = None
                    return

    # What a session tells

    def informed(self, info: dict[str, Any]) -> None:
        """Keeps what the server says, and the other servers of its cluster."""
        self.info |= info
        addresses = info.get("connect_urls")
        known = {(server.host, server.port) for server in self._servers}
        before = len(self._servers)
        for address in addresses if isinstance(addresses, list) else []:
            server = discovered(str(address), self._servers[0])
            if server and (server.host, server.port) not in known and len(self._servers) < _MAX_SERVERS:
                self._servers.append(server)
        # What is said at the beginning is where we are, nothing new.
        if self._session and len(self._servers) > before:
            self.on_discovered()

    def refused(self, text: str) -> None:
        """Notes an error that the server sent."""
        self._error = text
        if self._session:
            STREAMING.error('connection "%s": %s', self.name, text)

    def failed(self, problem: Exception) -> None:
        """Says that a handler failed."""
        NATS.error("Error in a handler: %r", problem)
        NATS.debug("Details", exc_info=problem)

    def lost(self, session: Session, reason: str) -> None:
        """Begins to connect again if it was the connection in use."""
        if session is not self._session:
            return
        self._session = None
        if self._pinging:
            self._pinging.cancel()
        if not self._closed:
            STREAMING.error('connection "%s" has been disconnected: %s', self.name, reason)
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    # Work

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> bool:
        """Publishes; returns False if it could not be sent."""
        session = self._session
        if session is None or not session.writable or self._is_too_large(len(payload)):
            return False
        session.write(encoding.publish(subject, payload, reply))
        return True

    @property
    def congested(self) -> bool:
        """The server has not taken much of what was sent."""
        return self._session is not None and self._session.pending > _CONGESTED

    def hold_back(self) -> None:
        """Collects what is published until `let_go` is called, which has to happen in this or the next turn."""
        if self._session:
            self._session.hold_back()

    def let_go(self) -> None:
        """Sends what was collected."""
        if self._session:
            self._session.flush()

    def publish_block(self, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        """Publishes rows of a block; returns False if nothing of it was sent."""
        session = self._session
        if begin >= end:
            return session is not None
        largest = int(block.sizes[begin]) if end - begin == 1 else int(block.sizes[begin:end].max())
        if session is None or not session.writable or self._is_too_large(largest):
            return False
        session.write(encode_publishes(block, begin, end, subject))
        return True

    def _is_too_large(self, size: int) -> bool:
        if size > self.max_payload:
            STREAMING.error('connection "%s": nats: maximum payload exceeded', self.name)
            return True
        return False

    def subscribe(self, subject: bytes, handler: Handler) -> int:
        """Subscribes, now and whenever the connection comes back. Returns the number of the subscription."""
        self._sids += 1
        self.handlers[self._sids] = handler
        self._subjects[self._sids] = subject
        if self._session:
            self._session.write(encoding.subscribe(subject, self._sids))
        return self._sids

    def unsubscribe(self, sid: int) -> None:
        """Unsubscribes; its handler is not called any more."""
        self.handlers.pop(sid, None)
        if self._subjects.pop(sid, None) is not None and self._session:
            self._session.write(encoding.unsubscribe(sid))

    def flush(self, done: Callable[[], None]) -> None:
        """Calls `done` when the server has everything, and we what it had for us; or when the connection is lost."""
        if self._session:
            self._session.ping(lambda good: done())
        else:
            asyncio.get_running_loop().call_soon(done)
