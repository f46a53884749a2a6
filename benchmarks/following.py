"""Leaving a running server: the delay of messages on their way to a stream, and the downtime for clients."""

from __future__ import annotations

import asyncio
import json
from statistics import median

from measure import table, verdict
from nats.js import JetStreamContext
from streams import Options

from tests.migration.leaving import Rehearsal
from tests.servers import NEWEST, NatsServer

#: Seconds for which the server goes on while it is followed.
_SECONDS = 5
_DELAY, _PAUSE = 1.0, 2.0


class _Leaving(Rehearsal):
    """One round, in which publisher, server and subscriber go on for a while before the end."""

    async def is_carried(self, js: JetStreamContext) -> None:
        await asyncio.sleep(_SECONDS)
        await super().is_carried(js)


def section(options: Options) -> str:
    """Rehearses it with real processes, once a round."""
    delays, longest, unserved, pauses, carried = [], [], [], [], []
    for _ in range(options.rounds):
        with options.directory() as place:
            server = NatsServer(place / "server").start()
            try:
                rehearsal = _Leaving(place, server, 0)
                rehearsal.migration.words += ["-o", "json"]
                cutover = json.loads(asyncio.run(rehearsal.run([])))["cutover"]
            finally:
                server.kill()
        delays.append(cutover["delay"])
        longest.append(cutover["longest_delay"])
        unserved.append(cutover["seconds"])
        pauses.append(rehearsal.publisher.moved)
        carried.append(cutover["carried"])
    rows = [
        ("from stored to in the stream, usually", *_of(delays), verdict(f"< {_DELAY:g} s", median(delays) < _DELAY)),
        ("the longest of a round", *_of(longest), None),
        ("nothing was served, as the command says", *_of(unserved), None),
        ("pause of the publisher", *_of(pauses), verdict(f"< {_PAUSE:g} s", median(pauses) < _PAUSE)),
    ]
    text = table(("", "s", "at most", "target"), rows)
    title = f"{median(carried):.0f} messages carried while the server goes on, nats-server {NEWEST}"
    return f"**{title}**\n\n{text}"


def _of(seconds: list[float]) -> tuple[str, str]:
    return f"{median(seconds):.2f}", f"{max(seconds):.2f}"
