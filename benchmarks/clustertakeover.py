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
from itertools import pairwise

from brokerruns import Options
from clusternodes import Node, Nodes, running
from measure import table, verdict

from stantools.streaming.client import Client, ClientOptions, Message, Start, SubscriptionOptions, connect
from stantools.streaming.errors import NoServerError

_CLUSTER = "test-cluster"
#: Seconds between two publishes, before the fault, from the first acknowledgement after it until everything that comes
#: again has come, and until a node that was started again has all that the others have. A node that is ended in order
#: serves for a moment more: only what was published after that shows that another one does.
_EACH = 0.004
_BEFORE = 3.0
_AFTER = 6.0
_WHOLE = 6.0
_SURE = 1.0
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
        seconds: The longest time without an acknowledgement, from the last one before the fault on.
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
    times: list[float] = field(default_factory=list)  #: when
    fault: float | None = None  #: when something was done to the node that leads
    again: bool = False  #: something was acknowledged that was published a while after that

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
        self.times.append(time.perf_counter())
        self.again |= self.fault is not None and begun > self.fault + _SURE

    @property
    def longest(self) -> float:
        """The longest time between two acknowledgements, the later of which came after the fault."""
        assert self.fault is not None
        return max(after - before for before, after in pairwise(self.times) if after > self.fault)


async def _watched(node: Node, others: list[Node], fault: Callable[[Node], None], channel: str) -> Seen:
    urls = [other.url for other in others]
    durables = [_Reader(), _Reader()]
    group = _Reader()
    options = ClientOptions(ack_timeout=_PATIENCE)
    clients: list[Client] = []

    async def joined(name: str) -> Client:
        # All NATS servers know who leads a moment after it does.
        async with asyncio.timeout(_PATIENCE):
            while True:
                with contextlib.suppress(NoServerError):
                    clients.append(await connect(urls, _CLUSTER, f"{channel}-{name}", options))
                    return clients[-1]
                await asyncio.sleep(0.05)

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
        while not writer.again:
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
        writer.longest,
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


def _repeated(all_seen: list[Seen]) -> float:
    return sum(seen.repeated for seen in all_seen) / sum(seen.deliveries for seen in all_seen)


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
        rows.append(
            (
                f"the node leads, and {name}",
                f"{statistics.median(seconds):.2f} ({seconds[0]:.2f}-{seconds[-1]:.2f})",
                "" if name == "it is ended in order" else _ORIGINAL,
                verdict(f"< {_GOAL:.0f} s", seconds[-1] < _GOAL) if name == "its broker is killed" else "",
                f"{_repeated(all_seen):.2%} (≤ {max(_repeated([seen]) for seen in all_seen):.2%})",
                *("", ""),
                str(sum(seen.lost for seen in all_seen)),
            )
        )
    # The original's share is that of all its faults.
    every = [seen for all_seen in found.values() for seen in all_seen]
    share, lost = _repeated(every), str(sum(seen.lost for seen in every))
    wanted = verdict("≤ half", share <= _REPEATED / 2)
    rows.append(("all of them", "", "", "", f"{share:.2%}", f"{_REPEATED:.1%}", wanted, lost))
    headers = ("250 messages/s, 2 durables, a group", "nothing acknowledged for s", "original s", "target")
    return table((*headers, "delivered again", "original", "target ", "acknowledged and not delivered"), rows)
