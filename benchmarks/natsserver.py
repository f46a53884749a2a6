"""A real nats-server on the same machine and cores, and what processor time it takes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import measure  # noqa: F401  (before tests)

from stantools.nats.serverprocess import EmbeddedServer, find_server
from tests import servers

_TICK = os.sysconf("SC_CLK_TCK")
#: A server is at rest when it has used no processor time for so many seconds.
_REST_SECONDS = 0.3
_REST_AT_MOST = 30.0


def processor_of(pid: int) -> float:
    """The processor time that a process has used so far, with all its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


class Server:
    """A running server.

    Attributes:
        url: Where clients connect.
        version: Its version.
        pid: Its process.
    """

    def __init__(self, embedded: EmbeddedServer, pid: int) -> None:
        self.url = embedded.url
        self.version = embedded.version
        self.pid = pid

    def processor(self) -> float:
        """The processor time that it has used so far, in seconds."""
        return processor_of(self.pid)

    def memory(self) -> float:
        """The most memory that it has had, in MiB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the kernel does not tell")

    def rest(self) -> None:
        """Waits until it has nothing left to do, such as removing the files of a deleted stream."""
        used, since = self.processor(), time.monotonic()
        deadline = since + _REST_AT_MOST
        while time.monotonic() - since < _REST_SECONDS and time.monotonic() < deadline:
            time.sleep(0.05)
            now = self.processor()
            if now > used + 1 / _TICK:
                used, since = now, time.monotonic()


@contextmanager
def running(directory: Path, version: str = servers.NEWEST) -> Iterator[Server]:
    """Starts a server of a version, or another one if that is not here; it runs as long as the `with` block.

    Args:
        directory: For its streams.
        version: The version.
    """
    wanted = servers.binary(version)
    note = directory.with_suffix(".pid")
    embedded = EmbeddedServer(
        directory, binary=wanted if wanted.exists() else find_server(), config={"pid_file": str(note)}
    )
    with embedded:
        yield Server(embedded, int(note.read_text()))
