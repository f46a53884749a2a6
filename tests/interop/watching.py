"""Somebody who watches a broker while others mistreat it: it has to live, to serve, and to stay small."""

from __future__ import annotations

import os
import secrets
import socket
import time
from pathlib import Path
from typing import Self

from tests.brokers import Broker
from tests.interop.rawclient import RawClient

#: What a log never says if all is well: somebody caught an error that nobody had thought of.
BAD_SIGNS = ("Traceback", "Internal error", "rror in a handler", "error in the handler", "Error while handling")
_TIMEOUT = 20.0


def resident(pid: int) -> int:
    """Bytes of memory that a process has at present."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(pid)


def without_extras(folder: Path) -> dict[str, str]:
    """Returns the environment of a broker without uvloop."""
    blocked = folder / "blocked"
    blocked.mkdir()
    (blocked / "uvloop.py").write_text("raise ImportError\n")
    root = Path(__file__).parents[2]
    return {"PYTHONPATH": f"{blocked}{os.pathsep}{root}"}


class Plain:
    """A bare connection: sends what it is told to, right or wrong."""

    def __init__(self, port: int, *, receive_buffer: int = 0, greeted: bool = True) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(_TIMEOUT)
        self.socket.connect(("127.0.0.1", port))
        self.got = b""
        if greeted:
            self.until(b"\r\n")

    def until(self, wanted: bytes) -> bytes:
        """Reads until something has come."""
        while wanted not in self.got:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError(f"closed after {self.got[-200:]!r}")
            self.got += data
        return self.got

    def throw(self, data: bytes) -> None:
        """Sends as much as the broker takes."""
        try:
            self.socket.sendall(data)
        except ConnectionError:
            return

    def end(self) -> bytes:
        """Sends no more and returns all that still comes until the broker has closed the connection."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
            while data := self.socket.recv(1 << 16):
                self.got = (self.got + data)[-(1 << 20) :]
        except ConnectionError:
            pass
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
        self.socket.close()
        return self.got

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.socket.close()


class Watch:
    """A streaming client that nothing bad may happen to.

    Args:
        broker: A broker that runs.
        growth: Bytes by which the broker may grow.
    """

    def __init__(self, broker: Broker, growth: int = 48 << 20) -> None:
        self.broker = broker
        self.growth = growth
        # Nobody can guess its name, and with that its subjects.
        self.client = RawClient(broker.port, f"watch-{secrets.token_hex(8)}")
        self.channel = b"watched." + secrets.token_hex(8).encode()
        self._read = 0
        self.check()
        assert broker.process is not None
        self._pid = broker.process.pid
        self._before = resident(self._pid)

    @property
    def grown(self) -> int:
        """Bytes by which the broker has grown."""
        return resident(self._pid) - self._before

    def check(self, what: object = "", within: float = _TIMEOUT) -> None:
        """Fails if the broker is dead, does not serve, or has met something unexpected."""
        broker = self.broker
        assert broker.process is not None
        assert broker.process.poll() is None, f"the broker has died of {what!r}:\n{broker.said()[-3000:]}"
        before = time.monotonic()
        ack = self.client.stored(self.channel, b"I am fine")
        assert not ack.error, f"{ack.error!r} after {what!r}"
        assert time.monotonic() - before < within, f"an ack took long after {what!r}"
        with broker.log.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        self._read += len(added)
        said = added.decode("utf-8", "replace")
        for sign in BAD_SIGNS:
            assert sign not in said, f"after {what!r}:\n{said[max(said.index(sign) - 500, 0) :][:3000]}"

    def check_memory(self) -> None:
        """Fails if the broker has grown too much."""
        deadline = time.monotonic() + 5
        while self.grown > self.growth and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.grown <= self.growth, f"the broker has grown by {self.grown >> 20} MiB"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: object, *more: object) -> None:
        if problem is None:
            self.check()
            self.check_memory()
        self.client.close()
