"""The whole broker as a process: puts the parts together, starts them in the original's order, ends them at a signal.

Facts: operations sections 1 (order of the start), 2 (exit codes), 11 (lines of the log) and 13 (signals).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import platform
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.bus.embedded import EmbeddedBus
from broker.bus.external import ExternalBus
from broker.config import logs, ports
from broker.config.options import BrokerOptions
from broker.config.reload import reload_options
from broker.driver import LoopDriver, SystemClock, report_loop_error
from broker.log import NATS, STREAMING
from broker.nats.server import NatsServer
from broker.stores import open_store
from broker.streaming.ids import new_id
from broker.streaming.server import StreamingServer
from broker.version import NATS_VERSION, STREAMING_VERSION
from stantools.errors import StantoolsError

if TYPE_CHECKING:
    from broker.monitoring.server import MonitoringServer

EXIT_FAILURE = 1
EXIT_TERMINATED = 143


class StartError(StantoolsError):
    """The broker could not be started; the text is the reason as the log shows it."""


def run(options: BrokerOptions, argv: list[str] | None = None) -> int:
    """Runs a broker until a signal ends it.

    Args:
        options: What was configured.
        argv: The command line it came from, for a reload; None without.

    Returns:
        The exit code.
    """
    with logs.configured(options.logging) as log_files:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_Process(options, argv or [], log_files).run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Process:
    def __init__(self, options: BrokerOptions, argv: list[str], log_files: logs.LogFiles) -> None:
        self._options = options
        self._argv = argv
        self._log_files = log_files
        self._id = new_id()
        self._ended: asyncio.Future[int] | None = None
        self._ports_file: ports.PortsFile | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report_loop_error)
        self._ended = loop.create_future()
        async with contextlib.AsyncExitStack() as stack:
            try:
                await self._start(stack)
            except StantoolsError as error:
                STREAMING.critical("Failed to start: %s", error)
                return EXIT_FAILURE
            except OSError as error:
                STREAMING.critical("Failed to start: %s", error.strerror or error)
                return EXIT_FAILURE
            # What is there now stays: the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            code = await self._ended
            STREAMING.info("Shutting down.")
        return code

    def end(self, code: int) -> None:
        """Ends the process, unless that is under way."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(code)

    # The start, in the original's order (operations section 1.2).

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        options, loop = self._options, asyncio.get_running_loop()
        self._handle_signals(loop)
        self._introduce()
        if options.failure:
            raise StartError(options.failure)
        store = open_store(options.store, options.file, options.limits, options.encryption)
        nats = None
        if not options.connection.urls:
            nats = NatsServer(options.nats)
            await nats.start(config_file=options.config_file)
            stack.push_async_callback(nats.stop)
            self._write_pid()
            if options.ports_file_dir:
                self._ports_file = ports.PortsFile(options.ports_file_dir, [nats.url])
                stack.callback(self._ports_file.remove)
        driver = LoopDriver(loop, self._fatal)
        clock = SystemClock()
        bus = await self._connect(nats, stack)
        server = StreamingServer(options.streaming, store, bus, clock, driver, server_id=self._id)
        driver.server = server
        stack.callback(driver.stop)
        stack.callback(server.stop)
        await self._monitor(nats, server, stack)
        await self._ready(server)
        self._banner()
        self._nats = nats
        STREAMING.info("Streaming Server is ready")
