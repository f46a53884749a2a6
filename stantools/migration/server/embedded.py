"""A real nats-server of our own, on loopback, as long as it is wanted."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stantools.errors import StantoolsError, StoreUnwritableError
from stantools.nats.serverprocess import ServerProcess, find_server

START_SECONDS: Final = 30.0


class EmbeddedServer:
    """A nats-server with JetStream on loopback. A context manager: it runs inside of the `with` block.

    Args:
        store_dir: Where its streams are kept; made if it is missing. They stay there at the end.
        port: Where it listens; 0 lets it choose one that is free.
        binary: Which nats-server, None for the one that `find_server` finds.
        config: More members for its configuration.
    """

    def __init__(
        self, store_dir: Path, port: int = 0, *, binary: Path | None = None, config: dict[str, Any] | None = None
    ) -> None:
        self.store_dir = store_dir
        self._port = port
        self._binary = binary
        self._config = config or {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: ServerProcess | None = None
        self._info: dict[str, Any] = {}

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def version(self) -> str:
        """Its version."""
        return str(self._info.get("version", "unknown"))

    def start(self) -> Self:
        """Starts it, and waits until clients can connect.

        Raises:
            StoreUnwritableError: Its store cannot be written.
            StantoolsError: There is no binary, or it does not start; the message repeats what it said.
        """
        binary = self._binary or find_server("name a running one with --server")
        try:
            self.store_dir.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise StoreUnwritableError(f"{self.store_dir}: cannot be made: {problem.strerror}") from problem
        self._folder = tempfile.TemporaryDirectory(prefix="stantools-nats-")
        settings = {
            "host": "127.0.0.1",
            "port": self._port or -1,
            "jetstream": {"store_dir": str(self.store_dir.absolute())},
            **self._config,
        }
        self._process = ServerProcess(binary, Path(self._folder.name), settings)
        try:
            self._process.launch()
            self._wait(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends it in order, and waits for that. Does nothing if it does not run."""
        if self._process:
            self._process.stop()
            self._process = None
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait(self, process: ServerProcess) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.ended:
                raise StantoolsError(
                    f"nats-server ended at once: {process.last_words()}",
                    f"check that {self.store_dir} can be written and no other server uses it",
                )
            if process.ready:
                self._port = process.port
                if self._answers():
                    return
            time.sleep(0.01)
        raise StantoolsError(
            f"nats-server was not ready within {START_SECONDS:g} s: {process.last_words()}",
            "try again, or start a server and name it with --server",
        )

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1) as connection:
                line = connection.makefile("rb").readline(1 << 16)
            self._info = json.loads(line.removeprefix(b"INFO "))
        except (OSError, ValueError):
            return False
        return True
