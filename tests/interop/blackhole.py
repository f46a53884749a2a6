"""TCP connections by way of this process, which can turn into black holes: nothing arrives, and nobody is told."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self

#: Seconds between two looks whether what is held back may go on.
_LOOK = 0.02


class Way:
    """A port that leads to another one.

    Attributes:
        port: Where it begins.
        cut: Nothing passes, in either direction, until it is False again.
    """

    def __init__(self, to: int) -> None:
        self.cut = False
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = [self._listener]
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._link, args=(near,), daemon=True).start()

    def _link(self, near: socket.socket) -> None:
        self._wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._to), timeout=5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        self._sockets += (near, far)
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._wait()
                target.sendall(data)
            # The end of a connection is not heard either.
            self._wait()
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _wait(self) -> None:
        while self.cut and not self._closed:
            time.sleep(_LOOK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._closed = True
        for each in self._sockets:
            each.close()
