"""Looks after connections from time to time: pings them, drops those that do not answer or do not read."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING, Final

from broker.log import NATS, TRACE, out_of_files
from broker.nats.reasons import Reason
from stantools.nats import encoding

if TYPE_CHECKING:
    from broker.nats.connection import Connection
    from broker.nats.server import NatsServer

_SECOND: Final = 1_000_000_000
#: How long after its first PONG a client is pinged, to know how far away it is; some of this is random.
FIRST_PING: Final = 1.0


def first_ping(interval: float) -> int:
    """Returns how many ns after its first PONG a client is pinged."""
    return int(min(interval, FIRST_PING * (1 + random.random())) * _SECOND)


class Keepalive:
    """Looks after the connections of a server."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins, or goes on with changed options."""
        self.stop()
        options = self._server.options
        period = min(1.0, options.ping_interval / 2, options.write_deadline / 2)
        self._timer = asyncio.get_running_loop().call_later(max(period, 0.01), self._look)

    def stop(self) -> None:
        """Ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = time.monotonic_ns()
        options = self._server.options
        deadline = int(options.write_deadline * _SECOND)
        for connection in self._server.connections():
            if connection.ping_at <= now:
                self._ping(connection, now)
            if not connection.closed:
                connection.check_progress(now, deadline)
        try:
            # uvloop turns clients away without a word when there is no descriptor for them.
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as problem:
            out_of_files(problem)
        self.start()

    def _ping(self, connection: Connection, now: int) -> None:
        options = self._server.options
        connection.ping_at = now + int(options.ping_interval * _SECOND)
        if not connection.commands.authorized or connection.handshaking:
            return
        # Who talks is alive; it is only pinged to measure the way.
        if connection.active and connection.rtt:
            connection.active, connection.pings = False, 0
            return
        connection.active = False
        if connection.pings >= options.ping_max:
            NATS.debug("%s - Stale Client Connection - Closing", connection)
            connection.close(Reason.STALE, "Stale Connection", abort=connection.pending > 0)
            return
        connection.pings += 1
        connection.ping_sent = now
        connection.send(encoding.PING)
        if self._server.tracing:
            NATS.log(TRACE, "%s - ->> [PING]", connection)
