"""What clients notice when a node that leads dies: how long nothing is acknowledged, and what is delivered again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from brokerruns import Options
from clusternodes import Node, Nodes, running
from measure import table, verdict

from stantools.streaming.client import Client, ClientOptions, Message, Start, SubscriptionOptions, connect

_CLUSTER = "test-cluster"
#: Seconds between two publishes, before the fault, from the first acknowledgement after it until everything that comes
#: again has come, and until a node that was started again has all that the others have.
_EACH = 0.004
_BEFORE = 3.0
_AFTER = 6.0
_WHOLE = 6.0
_PATIENCE = 60.0
_ACK_WAIT = 2
#: Seconds and parts of the deliveries that the study has measured for the original's three nodes (high-availability.md
#: sections B.1 and C.10); what the project wants.
_ORIGINAL, _REPEATED = "4.8-7.9", 0.043
_GOAL = 1.0


def _kill_broker(node: Node) -> None:
    os.kill(node.pid, signal.SIGKILL)


def _kill_server(node: Node) -> None:
    os.kill(node.server, signal.SIGKILL)


def _kill_both(node: Node) -> None:
    _kill_server(node)
    _kill_broker(node)


def _end(node: Node) -> None:
    os.kill(node.pid, signal.SIGTERM)


_FAULTS: dict[str, Callable[[Node], None]] = {
    "its broker is killed": _kill_broker,
    "its nats-server is killed": _kill_server,
    "both are killed": _kill_both,
    "it is ended in order": _end,
}


@dataclass
class Seen:
    """What came of a fault.

    Attributes:
        seconds: From the fault until a message is acknowledged that was published after it.
        deliveries: Messages that subscribers got, from before the fault until some seconds after it.
        repeated: Those among them that a subscription or queue group had had before.
        lost: Messages that were acknowledged, and that a durable did not get.
    """

    seconds: float = 0.0
    deliveries: int = 0
    repeated: int = 0
    lost: int = 0


@dataclass
class _Reader:
    """A subscription, or the members of a queue group."""

    seen: set[int] = field(default_factory=set)
    texts: set[bytes] = field(default_factory=set)
    deliveries: int = 0

    def take(self, message: Message) -> None:
        self.deliveries += 1
        self.seen.add(message.sequence)
        self.texts.add(message.data)

    @property
    def repeated(self) -> int:
        return self.deliveries - len(self.seen)


@dataclass
class _Writer:
    """Publishes at a steady pace, whatever becomes of it."""

    client: Client
    channel: str
    acked: list[bytes] = field(default_factory=list)
    fault: float | None = None  #: when something was done to the node that leads
    again: float | None = None  #: when something was acknowledged that was published after that

    async def run(self) -> None:
        due = time.perf_counter()
        for number in range(1 << 30):
            text = b"%d" % number
            begun = time.perf_counter()
            # What cannot be sent at the moment is not acknowledged either.
            with contextlib.suppress(Exception):
                await self.client.publish_async(self.channel, text, partial(self._took, text, begun))
            due = max(due + _EACH, time.perf_counter() - 1)
            await asyncio.sleep(max(due - time.perf_counter(), 0))

    def _took(self, text: bytes, begun: float, problem: Exception | None) -> None:
        if problem is not None:
            return
        self.acked.append(text)
        if self.fault is not None and self.again is None and begun > self.fault:
            self.again = time.perf_counter()


async def _watched(node: Node, others: list[Node], fault: Callable[[Node], None], channel: str) -> Seen:
    urls = [other.url for other in others]
    durables = [_Reader(), _Reader()]
    group = _Reader()
    options = ClientOptions(ack_timeout=_PATIENCE)
    clients: list[Client] = []

    async def joined(name: str) -> Client:
        clients.append(await connect(urls, _CLUSTER, f"{channel}-{name}", options))
        return clients[-1]

    first = Start.first()
    for number, reader in enumerate(durables):
        about = SubscriptionOptions(durable="d", start=first, ack_wait=_ACK_WAIT)
        await (await joined(f"durable{number}")).subscribe(channel, reader.take, about)
    for number in range(2):
        about = SubscriptionOptions(queue="q", durable="g", start=first, ack_wait=_ACK_WAIT)
        await (await joined(f"member{number}")).subscribe(channel, group.take, about)
    writer = _Writer(await joined("writer"), channel)
    publishing = asyncio.create_task(writer.run())
    await asyncio.sleep(_BEFORE)
    writer.fault = time.perf_counter()
    fault(node)
    async with asyncio.timeout(_PATIENCE):
        while writer.again is None:
            await asyncio.sleep(0.01)
    await asyncio.sleep(_AFTER)
    publishing.cancel()
    acked = set(writer.acked)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while any(acked - reader.texts for reader in durables):
                await asyncio.sleep(0.1)
    readers = [*durables, group]
    seen = Seen(
        writer.again - writer.fault,
        sum(reader.deliveries for reader in readers),
        sum(reader.repeated for reader in readers),
        sum(len(acked - reader.texts) for reader in durables),
    )
    for client in clients:
        with contextlib.suppress(Exception):
            await client.close()
    return seen


def _once(nodes: Nodes, fault: Callable[[Node], None], channel: str) -> Seen:
    node = nodes.leader()
    seen = asyncio.run(_watched(node, nodes.others(node), fault, channel))
    assert node.process is not None
    if node.process.poll() is not None:
        node.start(wait=False)
    time.sleep(_WHOLE)
    nodes.leader()
    return seen


def takeover(options: Options) -> str:
    """Faults of the node that leads, one after the other."""
    found: dict[str, list[Seen]] = {name: [] for name in _FAULTS}
    for turn in range(options.rounds):
        with running(options.place) as nodes:
            for number, (name, fault) in enumerate(_FAULTS.items()):
                found[name].append(_once(nodes, fault, f"c{turn}-{number}"))
    rows = []
    for name, all_seen in found.items():
        seconds = sorted(seen.seconds for seen in all_seen)
        repeated = sum(seen.repeated for seen in all_seen) / sum(seen.deliveries for seen in all_seen)
        rows.append(
            (
                f"the node leads, and {name}",
                f"{statistics.median(seconds):.2f} ({seconds[0]:.2f}-{seconds[-1]:.2f})",
                "" if name == "it is ended in order" else _ORIGINAL,
                verdict(f"< {_GOAL:.0f} s", seconds[-1] < _GOAL) if name == "its broker is killed" else "",
                f"{repeated:.2%}",
                f"{_REPEATED:.1%}",
                verdict("≤ half", repeated <= _REPEATED / 2),
                str(sum(seen.lost for seen in all_seen)),
            )
        )
    headers = ("250 messages/s, 2 durables, a group", "acknowledged again after s", "original s", "target")
    return table((*headers, "delivered again", "original", "target ", "acknowledged and not delivered"), rows)
