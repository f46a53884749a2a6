"""The embedded NATS server: accepts clients, keeps track of them, ends cleanly."""

from __future__ import annotations

import asyncio
import os
import platform
import random
import socket
import ssl
import time
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from broker.listening import BACKLOG, MAX_PORT, ListenError, address, open_sockets, unspecified
from broker.log import NATS, out_of_files
from broker.nats import tls
from broker.nats.auth import Authenticator, ClientCredentials, SlowChecks, server_id
from broker.nats.client import ClientState, CloseReason
from broker.nats.client_router import ClientRouter
from broker.nats.connection import ROWS, ClientConnection
from broker.nats.connection_protocol import ConnectionProtocol
from broker.nats.fair_scheduler import FairScheduler, Mailbox
from broker.nats.internal import InternalClient, SystemClient
from broker.nats.nats_options import VERSION, reload_changes
from broker.nats.read_coalescer import ReadCoalescer
from broker.nats.recipients import MessageRecipients
from broker.nats.router import Router
from broker.nats.subscriptions import Subscriptions
from broker.reserved import ReservedSubjects
from broker.rounds import APPLY, READ, WRITE, LoopRounds
from stantools.nats import encoding
from stantools.nats.frames import frame_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from broker.nats.client import BrokerClient
    from broker.nats.nats_options import NatsOptions
    from broker.nats.routes.mesh import RouteMesh

_READ_BUFFER: Final = 512 * 1024
#: Number of closed connections kept for monitoring.
_CLOSED: Final = 4096


class NatsServer:
    """A NATS server in this process.

    Args:
        options: Its options.
        config_file: The configuration file, for the log.
        sockets: Listening sockets, if already open.

    Attributes:
        start_time: Time of the start, ns since the epoch.
        config_time: Time of the last load of the configuration.

    Raises:
        TLSError: The TLS options cannot be used.
        UsageError: The URL of a route is wrong.
    """

    def __init__(self, options: NatsOptions, config_file: str = "", sockets: Sequence[socket.socket] = ()) -> None:
        self.options = options
        self.config_file = config_file
        self.id = server_id()  #: a public nkey
        self.name = options.name or self.id  #: name; the id by default
        self.version = VERSION  #: version of the NATS protocol
        self.subscriptions = Subscriptions()
        self.read_coalescer = ReadCoalescer(self)  #: gathered input of the connections
        self.apply_input: Final = self.read_coalescer.run
        #: order of input, commits and output
        self.rounds = self.read_coalescer.rounds = LoopRounds(self.apply_input, self.flush)
        self.turns = FairScheduler(self.apply_input)  #: turns on the event loop
        self.mailbox = Mailbox(self.turns)  #: messages between parts of this process
        recipients = MessageRecipients(self.subscriptions)
        self.client_router = ClientRouter(recipients, self.mailbox)  #: delivers the publishes of connections
        self.router = Router(recipients, self.rounds, self.dirty)
        self.start_time = self.config_time = time.time_ns()
        self.slow_consumers = 0  #: connections closed because they were too slow
        self.total_connections = 0  #: clients since the start
        self.closed: deque[ClientConnection] = deque(maxlen=_CLOSED)  #: the last closed connections
        self.read_buffer = bytearray(_READ_BUFFER)  #: read buffer of all connections
        self.read_view = memoryview(self.read_buffer)
        self.frames = frame_table(ROWS)  #: frame table of all connections
        self.tracing = self.router.tracing = options.trace  #: log protocol messages
        self.lame = False
        self.offers: Mapping[str, Any] = {}  #: further members of INFO, such as streams
        self._stopped = False
        self._clients: dict[int, BrokerClient] = {}
        self._connections: dict[int, ClientConnection] = {}
        self._cid = 0
        self._sockets = sockets
        self._listeners: list[asyncio.Server] = []
        self._port = 0
        self._dirty: deque[ClientConnection] = deque()
        self.slow_checks = SlowChecks()  #: pending checks of hashed passwords
        self._keepalive: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._context: ssl.SSLContext | None = None
        self.authenticator = Authenticator(options.authorization)
        self._configure_tls()
        self.mesh: RouteMesh | None = None  #: routes to other servers, if any
        if options.cluster is not None:
            from broker.nats.routes.mesh import RouteMesh

            self.mesh = self.subscriptions.mesh = RouteMesh(self, options.cluster)

    # Facts

    @property
    def host(self) -> str:
        return self.options.host

    @property
    def port(self) -> int:
        """The listening port; 0 before the start."""
        return self._port

    @property
    def listening(self) -> bool:
        return bool(self._listeners)

    @property
    def go_version(self) -> str:
        """The text in place of the original's compiler version."""
        return f"python{platform.python_version()}"

    def clients(self) -> list[BrokerClient]:
        return list(self._clients.values())

    def connections(self) -> list[ClientConnection]:
        return list(self._connections.values())

    def info(self, connection: ClientConnection | None = None) -> dict[str, Any]:
        """Returns the members of INFO, in the original's order."""
        options = self.options
        host, port = self._advertised()
        info: dict[str, Any] = {
            "server_id": self.id,
            "server_name": self.name,
            "version": self.version,
            "proto": 1,
            "go": self.go_version,
            "host": host,
            "port": port,
        }
        if not options.no_header_support:
            info["headers"] = True
        info |= self.offers
        if self.authenticator.required and self.authenticator.anonymous is None:
            info["auth_required"] = True
        if options.tls is not None:
            info["tls_required"] = True
            if options.tls.verify or options.tls.verify_and_map:
                info["tls_verify"] = True
        info["max_payload"] = options.max_payload
        if connection is not None:
            info["client_id"] = connection.cid
            info["client_ip"] = connection.host
            if connection.nonce:
                info["nonce"] = connection.nonce
        if self.lame:
            info["ldm"] = True
        if self.mesh is not None:
            info["cluster"] = self.mesh.name
            if urls := self.mesh.connect_urls:
                info["connect_urls"] = [*([] if unspecified(host) else [address(host, port)]), *urls]
        return info

    def _advertised(self) -> tuple[str, int]:
        advertise = self.options.client_advertise
        if not advertise:
            return self.options.host, self._port
        host, _, port = advertise.rpartition(":")
        if host and port.isdigit() and "]" not in port:
            return host.strip("[]"), int(port)
        return advertise.strip("[]"), self._port

    # Life

    async def start(self, *, before_listening: Callable[[], Awaitable[None]] | None = None) -> None:
        """Starts to listen.

        `before_listening` starts monitoring, between the first log lines and the listener. Raises `ListenError`.
        """
        NATS.info("Starting nats-server")
        NATS.info("  Version:  %s", self.version)
        NATS.info("  Git:      [not set]")
        NATS.debug("  Go build: %s", self.go_version)
        NATS.info("  Name:     %s", self.name)
        NATS.info("  ID:       %s", self.id)
        if self.config_file:
            NATS.info("Using configuration file: %s", self.config_file)
        if self.authenticator.plain_passwords:
            NATS.warning("Plaintext passwords detected, use nkeys or bcrypt")
        if before_listening is not None:
            await before_listening()
        self.start_time = time.time_ns()
        await self._listen()
        self._schedule_checks()
        NATS.info("Listening for client connections on %s", address(self.options.host, self._port))
        if self.options.tls is not None:
            NATS.info("TLS required for client connections")
        NATS.info("Server is ready")
        if self.mesh is not None:
            try:
                await self.mesh.start()
            except OSError as problem:
                raise ListenError(str(problem)) from None

    async def _listen(self) -> None:
        host, port = self.options.host, max(self.options.port, 0)
        if not -1 <= self.options.port <= MAX_PORT:
            # Event loops treat invalid ports differently; some use other ports.
            where, port = address(host, self.options.port), self.options.port
            raise ListenError(f'Error listening on port: {where}, "listen tcp: address {port}: invalid port"')
        try:
            sockets = self._sockets or open_sockets(host, port)
        except OSError as problem:
            where, number = address(host, port), problem.errno or 0
            problem_text = os.strerror(number) if number > 0 else problem.strerror or str(problem)
            raise ListenError(
                f'Error listening on port: {where}, "listen tcp {where}: bind: {problem_text.lower()}"'
            ) from None
        loop = asyncio.get_running_loop()
        self._listeners = [
            await loop.create_server(self._connect, sock=listener, backlog=BACKLOG) for listener in sockets
        ]
        self._port = sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes all connections and stops listening; may be called again."""
        if self._stopped:
            return
        self._stopped = True
        NATS.info("Initiating Shutdown...")
        if self._keepalive is not None:
            self._keepalive.cancel()
        self.slow_checks.stop()
        self._stop_listening()
        if self.mesh is not None:
            await self.mesh.stop()
        for connection in self.connections():
            connection.close(CloseReason.SERVER_SHUTDOWN)
        for client in self.clients():
            if isinstance(client, InternalClient):
                client.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # Sockets with room get their last output in the next rounds.
        await asyncio.sleep(0)
        self.turns.stop()
        NATS.info("Server Exiting..")

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    async def lame_duck(self) -> None:
        """Lame duck mode: closes the connections, a few at a time, and stops (server-operations.md section 8)."""
        if self.lame:
            return
        self.lame = True
        options = self.options
        NATS.info("Entering lame duck mode, stop accepting new clients")
        self._stop_listening()
        self.announce()
        if self.mesh is not None:
            self.mesh.leave()
        if self.connections():
            await asyncio.sleep(options.lame_duck_grace_period)
        left = self.connections()
        if left:
            NATS.info("Closing existing clients")
            pause = max(options.lame_duck_duration - options.lame_duck_grace_period, 0.0) / len(left)
            # If the timer is too coarse for single clients, several are closed at a time.
            step = max(1, int(0.001 / pause)) if pause else len(left)
            for i in range(0, len(left), step):
                for connection in left[i : i + step]:
                    connection.close(CloseReason.SERVER_SHUTDOWN)
                if i + step < len(left):
                    await asyncio.sleep(pause * step * random.uniform(0.5, 1.0))
        await self.stop()

    def reload(self, options: NatsOptions) -> list[str]:
        """Applies changed options and returns the log lines about them.

        Raises `ReloadError` or `TLSError` before anything is changed.
        """
        # Earlier input is handled with the old options.
        self.apply_input()
        before = self.options
        lines, recheck = reload_changes(before, options)
        if options.tls is not None:
            tls.server_context(options.tls)
        self.options = options
        self.config_time = time.time_ns()
        self.tracing = self.router.tracing = options.trace
        self._configure_tls()
        self._schedule_checks()
        if recheck:
            self.subscriptions.forget_permissions()
            for client in self.clients():
                client.recheck()
        if options.max_connections and before.max_connections != options.max_connections:
            # The latest connections exceed the new limit.
            for connection in self.connections()[options.max_connections :]:
                self._refuse(connection)
        announced = ("max_payload", "client_advertise", "tls", "authorization")
        if any(getattr(before, name) != getattr(options, name) for name in announced):
            self.announce()
        lines.append("Reloaded server configuration")
        for line in lines:
            NATS.info("%s", line)
        return lines

    def _configure_tls(self) -> None:
        options = self.options
        self._context = tls.server_context(options.tls) if options.tls is not None else None
        map_certificates = options.tls is not None and options.tls.verify_and_map
        self.authenticator = Authenticator(options.authorization, map_certificates=map_certificates)

    # Connections

    def _connect(self) -> ConnectionProtocol:
        self._cid += 1
        return ConnectionProtocol(ClientConnection(self._cid, server=self, read_coalescer=self.read_coalescer))

    def accept(self, connection: ClientConnection) -> None:
        self.total_connections += 1
        limit = self.options.max_connections
        full = bool(limit) and len(self._clients) >= limit
        self._clients[connection.cid] = self._connections[connection.cid] = connection
        NATS.debug("%s - Client connection created", connection)
        if self._context is None:
            connection.send(encoding.info(self.info(connection)))
            connection.start_authentication_timer()
        if full:
            self._refuse(connection)
        elif self._context is not None:
            connection.advance(ClientState.HANDSHAKE)
            task = asyncio.get_running_loop().create_task(self._upgrade(connection, self._context))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _upgrade(self, connection: ClientConnection, context: ssl.SSLContext) -> None:
        # Reading can be paused only after the loop has started it; INFO follows, so no input is missed.
        await asyncio.sleep(0)
        if connection.closed or self.options.tls is None:
            return
        connection.transport.pause_reading()
        connection.send(encoding.info(self.info(connection)))
        connection.flush()
        loop = asyncio.get_running_loop()
        timeout = self.options.tls.timeout
        NATS.debug("%s - Starting TLS client connection handshake", connection)
        try:
            transport = await loop.start_tls(
                connection.transport,
                ConnectionProtocol(connection),
                context,
                server_side=True,
                ssl_handshake_timeout=timeout,
            )
        except (OSError, asyncio.CancelledError) as problem:
            if isinstance(problem, asyncio.CancelledError) and not isinstance(problem, OSError):
                connection.close(CloseReason.SERVER_SHUTDOWN, abort=True)
                raise
            NATS.error("%s - TLS handshake error: %s", connection, tls.handshake_problem(problem))
            connection.close(CloseReason.TLS_HANDSHAKE, abort=True)
            return
        if transport is None or connection.closed:
            connection.close(CloseReason.TLS_HANDSHAKE, abort=True)
            return
        connection.upgraded(transport)
        NATS.debug("%s - TLS handshake complete", connection)
        connection.start_authentication_timer()
        connection.resume_input()

    @staticmethod
    def _refuse(connection: ClientConnection) -> None:
        NATS.error("%s - maximum connections exceeded", connection)
        connection.close(CloseReason.MAX_CONNECTIONS, "maximum connections exceeded")

    def _schedule_checks(self) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
        options = self.options
        period = min(1.0, options.ping_interval / 2, options.write_deadline / 2)
        self._keepalive = asyncio.get_running_loop().call_later(max(period, 0.01), self._check_connections)

    def _check_connections(self) -> None:
        now = time.monotonic_ns()
        for connection in self.connections():
            connection.look_after(now)
        try:
            # uvloop refuses clients silently when file descriptors run out.
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as problem:
            out_of_files(problem)
        self._schedule_checks()

    def ended(self, connection: ClientConnection) -> None:
        if self._clients.pop(connection.cid, None) is None:
            return
        self._connections.pop(connection.cid, None)
        self.turns.begin(self.subscriptions.leave(connection))
        self.closed.append(connection)

    def dirty(self, connections: Iterable[ClientConnection]) -> None:
        """Registers connections with output, which is written at the end of the round."""
        self._dirty.extend(connections)
        rounds = self.rounds
        if not rounds.scheduled and (rounds.step is READ or rounds.step is APPLY):
            rounds.soon()

    def flush(self) -> None:
        """Writes the collected output of all connections. Called in each round of the event loop, or earlier.

        If it takes longer than a turn, the remaining connections follow in the next round.
        """
        dirty = self._dirty
        if not dirty:
            return
        rounds = self.rounds
        before = rounds.step
        assert before is not WRITE, "WRITE in the middle of WRITE"
        rounds.step = WRITE
        deadline = 0.0
        try:
            while dirty:
                dirty.popleft().flush()
                if dirty:
                    if not deadline:
                        deadline = self.turns.deadline()
                    elif perf_counter() > deadline:
                        rounds.soon()
                        break
        finally:
            rounds.step = before

    def announce(self) -> None:
        """Sends the changed INFO to clients that support it."""
        for connection in self.connections():
            if connection.protocol >= 1:
                connection.send(encoding.info(self.info(connection)))

    # Clients in this process

    def internal_client(self, name: str, credentials: ClientCredentials | None = None) -> InternalClient:
        """Returns a new client for a part of this process.

        `name` is for views, `credentials` are those of `Authenticator.part`. Raises `AuthorizationError`.
        """
        identity, credentials = self.authenticator.part(credentials)
        self._cid += 1
        self.total_connections += 1
        client = InternalClient(self._cid, name, server=self, mailbox=self.mailbox)
        client.become(identity)
        client.credentials = credentials
        self._clients[client.cid] = client
        return client

    def system_client(self, name: str, reserved: ReservedSubjects) -> SystemClient:
        """Returns a client for the server itself, which publishes nothing to reserved subjects."""
        self._cid += 1
        return SystemClient(self._cid, name, server=self, mailbox=self.mailbox, reserved=reserved)

    def forget(self, client: BrokerClient) -> None:
        self._clients.pop(client.cid, None)

    @property
    def has_undelivered(self) -> bool:
        """Whether earlier messages still wait for their delivery."""
        return bool(self.mailbox or self.read_coalescer)
