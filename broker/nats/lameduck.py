"""Lame duck mode: no new clients, those that are there are told and then sent away one after the other."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from broker.log import NATS
from broker.nats.reasons import Reason

if TYPE_CHECKING:
    from broker.nats.server import NatsServer


async def run(server: NatsServer) -> None:
    """Sends the clients of a server away and stops it."""
    if server.lame:
        return
    server.lame = True
    options = server.options
    NATS.info("Entering lame duck mode, stop accepting new clients")
    server.stop_listening()
    server.send_info()
    if server.connections():
        await asyncio.sleep(options.lame_duck_grace_period)
    left = server.connections()
    if left:
        NATS.info("Closing existing clients")
        pause = max(options.lame_duck_duration - options.lame_duck_grace_period, 0.0) / len(left)
        # Many at a time where there are more than the timer can tell apart.
        step = max(1, int(0.001 / pause)) if pause else len(left)
        for i in range(0, len(left), step):
            for connection in left[i : i + step]:
                connection.close(Reason.SERVER_SHUTDOWN)
            if i + step < len(left):
                await asyncio.sleep(pause * step * random.uniform(0.5, 1.0))
    await server.stop()
