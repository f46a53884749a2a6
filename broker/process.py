"""The broker as a process: decides on its parts, starts them in the original's order, ends them at a signal.

Facts: server-operations.md sections 1 (order of the start), 2 (exit codes), 11 (lines of the log) and 13 (signals).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import platform
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from broker.bus.embedded import EmbeddedBus, credentials_of, roles_of
from broker.components import BrokerParts, NatsStartError
from broker.config import logs
from broker.config.reader import EXIT_UNAVAILABLE
from broker.config.values import ConfigurationError
from broker.driver import LoopDriver, StoreTimer, keep_freed_memory, report_loop_error, short_collector_pauses
from broker.listening import ListenError, reachable
from broker.log import NATS, STREAMING
from broker.nats import tls
from broker.nats.auth import AuthorizationError
from broker.nats.nats_options import ReloadError
from broker.nats.nats_server import NatsServer
from broker.signals import SignalThread
from broker.stores.interface import OriginalStoreError, StorageError
from broker.stores.limits import limits_table
from broker.streaming.context import new_id
from broker.streaming.server import StreamingServer
from broker.streaming.streaming_options import VERSION
from stantools.errors import StantoolsError
from stantools.escaping import shell_word

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from broker.bus.nodeserver import NodeServer
    from broker.config.broker_options import BrokerOptions, NodeOptions
    from broker.stores.interface import RemoteStore, StateStore

EXIT_FAILURE: Final = 1
#: Seconds for an end that includes a NATS server of its own, so that the next start finds its directory free.
_NODE_PATIENCE: Final = 12.0
EXIT_TERMINATED: Final = 143


class ProcessStartError(StantoolsError):
    """The broker cannot start; the text is the reason as logged."""


def run(options: BrokerOptions, argv: Sequence[str], sockets: Sequence[socket.socket] = ()) -> int:
    """Runs a broker until a signal ends it; returns the exit code.

    Args:
        options: The configuration.
        argv: The command line, for a reload.
        sockets: Listening sockets of the NATS server, if already open.

    Raises:
        ConfigurationError: The log cannot be opened.
    """
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with (
        logs.configured(options.logging) as log_files,
        SignalThread({signal.SIGINT: 0, signal.SIGTERM: EXIT_TERMINATED}) as signals,
        asyncio.Runner(loop_factory=loop_factory) as runner,
    ):
        return runner.run(_Process(options, argv, log_files, sockets, signals).run())


class _Process:
    def __init__(
        self,
        options: BrokerOptions,
        argv: Sequence[str],
        log_files: logs.LogFiles,
        sockets: Sequence[socket.socket],
        signals: SignalThread,
    ) -> None:
        self._parts = BrokerParts(options, self._fatal)
        self._argv = argv
        self._log_files = log_files
        self._signals = signals
        self._sockets = sockets
        self._nats: NatsServer | None = None
        self._ended: asyncio.Future[int]
        self._node_server: NodeServer | None = None
        self._damaged_store: Path | None = None  #: the store that keeps the server from starting
        #: sends the clients away; None with an external NATS server
        self._lame_duck: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._lame_duck_task: asyncio.Task[None] | None = None
        self._reload_task: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Starts, runs, and ends. Returns the exit code."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report_loop_error)
        keep_freed_memory()
        self._ended = loop.create_future()
        self._handle_signals(loop)
        try:
            async with contextlib.AsyncExitStack() as stack:
                await self._start(stack)
                stack.enter_context(short_collector_pauses())
                await self._ended
        # The reason is the last line of the log, where scripts look for it.
        except (ListenError, NatsStartError) as error:
            NATS.critical("%s", error)
            return EXIT_FAILURE
        except (StantoolsError, AuthorizationError, tls.TLSError) as error:
            STREAMING.critical("Failed to start: %s", error)
            if self._damaged_store is not None:
                place = shell_word(str(self._damaged_store.absolute()))
                STREAMING.error("What is wrong with the store, and what to do: stantools doctor %s", place)
            return EXIT_UNAVAILABLE if isinstance(error, OriginalStoreError) else EXIT_FAILURE
        return self._ended.result()

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    def _fatal(self, message: str) -> None:
        STREAMING.critical("%s", message)
        self._end(EXIT_FAILURE)

    # The start, in the original's order (server-operations.md section 1.2).

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        parts, options = self._parts, self._parts.options
        cluster_id, prefix = options.streaming.cluster_id, options.streaming.discover_prefix
        self._log_start()
        if options.failure:
            raise ProcessStartError(options.failure)
        if options.node is not None:
            node = await self._start_node(options.node, stack)
            if not self._ended.done():
                await self._join(node, stack)
            return
        loop = asyncio.get_running_loop()
        link = backing = lock = None
        if options.channels is not None:
            from broker.stores.jetstream.store import StreamBacking

            link, names = parts.link(options.channels)
            backing = StreamBacking(link, names, self._fatal, durable=options.channels.durable_copy)
        store = parts.store(backing)
        self._signals.unwritten = lambda: [*store.unwritten(), *(parts.streams.unwritten() if parts.streams else ())]
        if options.streaming.ft_group and options.file is not None:
            from broker.stores.file.locks import GroupLock, make_directory

            make_directory(options.file.directory)
            lock = GroupLock(options.file.directory, options.streaming.ft_group)
        roles = roles_of(options.streaming)
        if options.connection.urls:
            from broker.bus.external import ExternalBus

            external = ExternalBus(options.connection, cluster_id, roles=roles, discover_prefix=prefix)
            driver = LoopDriver(loop, self._fatal, external.rounds)
            server = parts.streaming(store, external, driver, lock=lock)
            external.on_discovered(server.servers_discovered)
            await parts.monitor(None, server, stack)
            await external.connect()
            stack.push_async_callback(external.close)
            self._check_max_payload(external.max_payload)
        else:
            self._nats = nats = NatsServer(options.nats, options.config_file, self._sockets)
            self._lame_duck = nats.lame_duck
            driver = LoopDriver(loop, self._fatal, nats.rounds)
            for line in options.nats_warnings:
                NATS.warning("%s", line)
            bus = EmbeddedBus(
                nats,
                cluster_id,
                roles=roles,
                credentials=credentials_of(options.connection, options.nats.tls),
                discover_prefix=prefix,
            )
            stack.push_async_callback(nats.stop)
            audience = None
            if options.streams is not None:
                audience = parts.serve_streams(nats, options.streams, store, stack)
            server = parts.streaming(store, bus, driver, lock=lock, audience=audience)
            await nats.start(before_listening=lambda: parts.monitor(nats, server, stack))
            self._write_run_files(f"nats://{reachable(nats.host, nats.port)}", stack)
        if link is not None:
            await link.connect()
            stack.push_async_callback(link.close)
        stack.callback(_stop, server, driver)
        if link is not None:
            remote = cast("RemoteStore", store)
            await remote.prepare()
            stack.push_async_callback(remote.finish)
        if parts.streams is not None:
            # Registered first, because it may read channels.
            stack.callback(parts.streams.stop)
        await self._start_streaming(server)
        if self._ended.done():
            return
        upkeep = StoreTimer(loop, store)
        stack.callback(upkeep.stop)
        upkeep.start()
        self._banner(store)

    async def _start_node(self, node: NodeOptions, stack: contextlib.AsyncExitStack) -> NodeOptions:
        """Locks the directory of a node and starts its NATS server. Returns the node with the server's URL."""
        if node.directory is None:
            return node
        from broker.stores.jetstream.node import NodeDirectory

        options = self._parts.options
        cluster_id = options.streaming.cluster_id.decode(errors="replace")
        directory = NodeDirectory(node.directory, cluster_id, node.log_path)
        stack.callback(directory.close)
        node = replace(node, node_id=await directory.open(node.node_id, new_id))
        if node.server is None:
            return node
        from broker.bus.nodeserver import NodeServer

        self._signals.patience = _NODE_PATIENCE
        server = self._node_server = NodeServer(node.server, directory, node.node_id, self._fatal)
        stack.push_async_callback(server.stop)
        port = await server.start(self._ended)
        url = f"nats://{reachable(options.nats.host, port)}"
        self._parts.options = replace(options, connection=replace(options.connection, urls=url))
        return node

    async def _join(self, node: NodeOptions, stack: contextlib.AsyncExitStack) -> None:
        """Starts as a member of a group, which follows until it leads."""
        from broker.bus.external import ExternalBus
        from broker.group import LeaderTerm, ServerGroup
        from broker.stores.jetstream.store import StreamBacking

        parts, options = self._parts, self._parts.options
        assert options.channels is not None
        durable = options.channels.durable_copy
        loop = asyncio.get_running_loop()
        link, names = parts.link(options.channels)
        began = time.time_ns()
        upkeep: StoreTimer | None = None

        def make(over: Callable[[str], None]) -> LeaderTerm:
            prefix = options.streaming.discover_prefix
            bus = ExternalBus(options.connection, options.streaming.cluster_id, discover_prefix=prefix)
            driver = LoopDriver(loop, self._fatal, bus.rounds)
            store = parts.store(StreamBacking(link, names, over, group.node_id, node.lease, durable))
            self._signals.unwritten = store.unwritten
            server = parts.streaming(store, bus, driver, member=group)
            server.started_at = began
            if parts.monitoring is not None:
                parts.monitoring.show(server)

            def stop() -> None:
                if upkeep is not None:
                    upkeep.stop()
                _stop(server, driver)
                # Objects of the last term are garbage, in cycles as well.
                gc.unfreeze()

            return LeaderTerm(bus, cast("RemoteStore", store), server, stop)

        def serves(term: LeaderTerm) -> None:
            nonlocal upkeep
            upkeep = StoreTimer(loop, term.server.store)
            upkeep.start()
            self._banner(term.server.store)

        group = ServerGroup(link, names, node.node_id or new_id(), node.lease, make, serves, self._fatal)

        async def leave(server: NodeServer) -> None:
            # Another node serves meanwhile, also the clients that are still connected here.
            await group.stop()
            await link.close()
            await server.lame_duck()

        if self._node_server is not None:
            self._lame_duck = partial(leave, self._node_server)
        await link.connect()
        stack.push_async_callback(link.close)
        self._check_max_payload(link.max_payload)
        # With a NATS server in each node, there may not be a majority yet.
        await group.start(check=node.server is None)
        stack.push_async_callback(group.stop)
        stack.callback(STREAMING.info, "Shutting down.")
        await parts.monitor(None, group.server, stack)
        if node.server is not None:
            self._write_run_files(options.connection.urls, stack)
        STREAMING.info("Cluster Node ID : %s", group.node_id)
        if node.peers:
            STREAMING.info("Cluster known peers:")
            for number, peer in enumerate(node.peers, 1):
                STREAMING.info('  peer %d: "%s"', number, peer)
        STREAMING.info("This node is following until it leads; each stream has %d replica(s)", names.replicas)

    def _log_start(self) -> None:
        options = self._parts.options
        cluster_id = options.streaming.cluster_id.decode(errors="replace")
        STREAMING.info("Starting nats-streaming-server[%s] version %s", cluster_id, VERSION)
        STREAMING.info("ServerID: %s", self._parts.server_id)
        STREAMING.info("Go version: none, this is the reference broker on Python %s", platform.python_version())
        STREAMING.info("Git commit: [not set]")
        for line in options.warnings:
            STREAMING.warning("%s", line)

    def _check_max_payload(self, taken: int) -> None:
        """Warns if an external NATS server accepts only smaller messages than this broker."""
        if taken < (allowed := self._parts.options.nats.max_payload):
            STREAMING.warning(
                "max_payload of the NATS server is %d bytes, and %d are allowed here: larger messages are refused, and "
                "stored ones cannot be delivered. Raise max_payload of the NATS server to %d, or "
                "lower it here (max_payload in the file) to %d",
                taken,
                allowed,
                allowed,
                taken,
            )

    def _write_run_files(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        options = self._parts.options
        if not (options.pid_file or options.ports_file_dir):
            return
        from broker.config.processes import PortsFile, write_pid_file

        if options.pid_file:
            try:
                write_pid_file(options.pid_file)
            except ConfigurationError as error:
                raise NatsStartError(error.message) from error
        if options.ports_file_dir:
            monitoring = self._parts.monitoring
            stack.callback(PortsFile(options.ports_file_dir, [url], [monitoring.url] if monitoring else ()).remove)

    async def _start_streaming(self, server: StreamingServer) -> None:
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def settle(problem: str) -> None:
            if not started.done():
                started.set_result(problem)

        server.start(lambda: settle(""), settle)
        self._ended.add_done_callback(lambda _: settle(""))
        await started
        if problem := started.result():
            self._damaged_store = server.damaged
            raise ProcessStartError(problem)

    def _banner(self, store: StateStore) -> None:
        STREAMING.info("Message store is %s", store.kind)
        options = self._parts.options
        if options.directory:
            STREAMING.info("Store location: %s", options.directory)
        for line in limits_table(options.limits):
            STREAMING.info("%s", line)
        STREAMING.info("Streaming Server is ready")

    # Signals (server-operations.md section 13).

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        actions: dict[int, Callable[[], object]] = {
            signal.SIGINT: lambda: self._end(0),
            signal.SIGTERM: lambda: self._end(EXIT_TERMINATED),
            signal.SIGUSR1: self._reopen,
            signal.SIGUSR2: self._enter_lame_duck,
            signal.SIGHUP: self._reload,
        }
        self._signals.attach(loop, actions)

    def _reopen(self) -> None:
        self._log_files.reopen()
        if self._node_server is not None:
            self._node_server.signal(signal.SIGUSR1)

    def _enter_lame_duck(self) -> None:
        """Lame duck mode: sends the clients away, a few at a time, and ends."""
        if self._lame_duck is not None and self._lame_duck_task is None:
            self._lame_duck_task = asyncio.get_running_loop().create_task(self._lame_duck())
            self._lame_duck_task.add_done_callback(lambda _: self._end(0))

    async def _reload_node(self, server: NodeServer) -> None:
        """Makes the node's NATS server read its part of the configuration file again."""
        from broker.config.reload import ReloadProblem, reload_node

        try:
            await server.reload(reload_node(self._parts.options, self._argv))
        except ReloadProblem as problem:
            STREAMING.error("%s", problem.line)
        except StantoolsError as problem:
            STREAMING.error("Reload: %s", problem)
        else:
            NATS.info("Reloaded server configuration")

    def _reload(self) -> None:
        from broker.config.reload import ReloadProblem, reload_options

        if self._node_server is not None:
            if self._reload_task is None or self._reload_task.done():
                self._reload_task = asyncio.get_running_loop().create_task(self._reload_node(self._node_server))
            return
        try:
            reloaded = reload_options(self._parts.options, self._argv)
            if self._nats is not None:
                self._nats.reload(reloaded.options.nats)
            self._log_files.apply(reloaded.options.logging)
        except ReloadProblem as problem:
            STREAMING.error("%s", problem.line)
        except (ReloadError, AuthorizationError, tls.TLSError) as error:
            STREAMING.error("Reload: %s", error)
        except ConfigurationError as error:
            STREAMING.error("Reload: %s", error.message)
        else:
            self._parts.options = reloaded.options
            for line in reloaded.warnings:
                NATS.warning("%s", line)
            for line in reloaded.lines:
                NATS.info("%s", line)


def _stop(server: StreamingServer, driver: LoopDriver) -> None:
    driver.stop()
    driver.rounds.apply_input()
    try:
        server.stop()
    except StorageError as error:
        STREAMING.error("The store could not be closed: %s", error)
