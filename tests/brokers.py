"""Reference brokers as processes of their own, for the tests: on loopback, on free ports, stopped by pid."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from tests.reaper import ServerProcess
from tests.servers import free_port

#: What scripts wait for in the log (server-operations.md section 11).
READY = "Streaming Server is ready"
_START = 60.0
#: Where brokers are forked from: to load Python, numpy and the broker costs ten times what a short test makes it do.
_LOADED = multiprocessing.get_context("forkserver")
_LOADED.set_forkserver_preload(["broker.cli", "broker.config.reader", "broker.process", "broker.stores.file"])
#: What is forked instead of `python -m`, and where its `console` is.
_PROGRAMS = {"broker": "broker.cli", "tests.interop.failing": "tests.interop.failing"}


def _serve(program: str, words: Sequence[str], folder: Path, log: Path, errors: Path) -> None:
    # A test process that hangs is ended: its brokers end with it.
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.chdir(folder)
    for number, path in ((1, log), (2, errors)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["stan-broker", *words]
    importlib.import_module(_PROGRAMS[program]).console()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


class Fork:
    """A broker that is forked, with what is needed here of a `subprocess.Popen`."""

    def __init__(self, program: str, words: Sequence[str], folder: Path, log: Path, errors: Path | None = None) -> None:
        self._process = _LOADED.Process(target=_serve, args=(program, words, folder, log, errors or log), daemon=True)
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("broker", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def alone(*words: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end."""
    command = ["stan-broker", *(str(word) for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        process = Fork("broker", command[1:], Path.cwd(), output, errors)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())


class Broker:
    """A broker that can be started, stopped, killed and started again.

    With more environment variables, or where `command` is another program, it is a Python that is started for it.

    Args:
        folder: Where its log goes; the process runs there.
        words: More options, as for `stan-broker`.
        http: With monitoring.
        port: Client port; a free one by default.
        environment: More environment variables.
    """

    def __init__(
        self,
        folder: Path,
        *words: object,
        http: bool = False,
        port: int = 0,
        environment: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.words = [str(word) for word in words]
        self.port = port or free_port()
        self.http_port = free_port() if http else 0
        self.log = folder / "broker.log"
        self.environment = environment or {}
        self.process: subprocess.Popen[bytes] | Fork | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitoring(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def figures(self, path: str) -> Any:
        """What its monitoring says, from JSON."""
        with urllib.request.urlopen(f"{self.monitoring}/{path}", timeout=_START) as answer:
            return json.load(answer)

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "broker", "-a", "127.0.0.1", "-p", str(self.port)]
        if self.http_port:
            words += ["-m", str(self.http_port)]
        return [*words, *self.words]

    def start(self, *, wait: bool = True) -> Self:
        """Starts it and waits until it is ready."""
        self.log.touch()
        start = self.log.stat().st_size
        command = self.command()
        if command[:2] == [sys.executable, "-m"] and command[2] in _PROGRAMS and not self.environment:
            self.process = Fork(command[2], command[3:], self.folder, self.log)
        else:
            root = Path(__file__).parents[1]
            environment = {**os.environ, "PYTHONPATH": str(root), **self.environment}
            with self.log.open("ab") as log:
                self.process = ServerProcess(
                    command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, env=environment
                )
        deadline = time.monotonic() + _START
        while wait and READY not in self.said(start):
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.said(start)
                self.stop(signal.SIGKILL)
                raise RuntimeError(f"the broker did not start ({self.process.returncode}):\n{said}")
            time.sleep(0.02)
        return self

    def said(self, start: int = 0) -> str:
        """What it logged, from a position on."""
        with self.log.open("rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", "replace")

    def stop(self, number: int = signal.SIGINT, timeout: float = 60) -> int:
        """Ends it with a signal, and if need be by force. Returns its exit code."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *problem: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)
