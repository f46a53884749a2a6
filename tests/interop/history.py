"""Clients that go on whatever befalls the servers, and what must be true of all that they saw.

Facts: high-availability.md section D.6.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from stantools.streaming.client import Client, ClientOptions, Message, Start, SubscriptionOptions, connect
from stantools.streaming.errors import StreamingError

#: Seconds after which a message without an answer is taken for lost, and until everything has to be well again.
_SILENCE = 3.0
_PATIENCE = 90.0
_PAUSE = 0.01
_OPTIONS = ClientOptions(ack_timeout=_SILENCE)


@dataclass(eq=False)
class Writer:
    """Publishes one message after the other, of which some may be under way at the same time.

    Attributes:
        sent: When each was published, in steps of the history's clock.
        acked: When it was acknowledged.
    """

    client: Client
    channel: str
    window: int
    clock: itertools.count[int]
    sent: dict[bytes, int] = field(default_factory=dict)
    acked: dict[bytes, int] = field(default_factory=dict)
    stopping: bool = False

    async def run(self) -> None:
        room = asyncio.Semaphore(self.window)
        for number in itertools.count():
            await room.acquire()
            if self.stopping:
                return
            data = b"%s %d" % (self.client.client_id.encode(), number)
            self.sent[data] = next(self.clock)
            try:
                await self.client.publish_async(self.channel, data, partial(self._answered, data, room))
            except StreamingError:
                # There is no connection.
                room.release()
                await asyncio.sleep(0.1)
            await asyncio.sleep(_PAUSE)

    def _answered(self, data: bytes, room: asyncio.Semaphore, problem: Exception | None) -> None:
        if problem is None:
            self.acked[data] = next(self.clock)
        room.release()


@dataclass(eq=False)
class Reader:
    """A durable subscription, or the members of a durable queue group."""

    channel: str
    got: dict[int, bytes] = field(default_factory=dict)
    deliveries: int = 0
    problems: list[str] = field(default_factory=list)

    def take(self, message: Message) -> None:
        self.deliveries += 1
        before = self.got.setdefault(message.sequence, message.data)
        if before != message.data:
            self.problems.append(f"sequence {message.sequence} was {before!r}, and is {message.data!r}")


class History:
    """Writers and readers of some channels, at a cluster whose NATS servers are at `urls`."""

    def __init__(self, urls: Sequence[str], cluster: str) -> None:
        self._urls = list(urls)
        self._cluster = cluster
        self._clock = itertools.count()
        self._clients: list[Client] = []
        self._running: list[asyncio.Task[None]] = []
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []

    async def client(self, name: str) -> Client:
        """A client; the next one begins at another server."""
        self._urls.append(self._urls.pop(0))
        async with asyncio.timeout(_PATIENCE):
            while True:
                with contextlib.suppress(StreamingError):
                    self._clients.append(await connect([*self._urls], self._cluster, name, _OPTIONS))
                    return self._clients[-1]
                await asyncio.sleep(0.2)

    async def begin(self, channels: Sequence[str]) -> None:
        """Has two writers, a durable and a queue group of two at work on each channel."""
        for channel in channels:
            for queue, members in (("", 1), ("q", 2)):
                reader = Reader(channel)
                self.readers.append(reader)
                about = SubscriptionOptions(queue=queue, durable="d", start=Start.first(), ack_wait=1)
                for member in range(members):
                    client = await self.client(f"reader-{channel}-{queue}{member}")
                    await client.subscribe(channel, reader.take, about)
            for window in (1, 32):
                client = await self.client(f"writer-{channel}-{window}")
                self.writers.append(Writer(client, channel, window, self._clock))
        self._running = [asyncio.create_task(writer.run()) for writer in self.writers]
        await self.goes_on()

    async def goes_on(self) -> None:
        """Returns when each writer has had something acknowledged that it has published since."""
        begun = next(self._clock)
        async with asyncio.timeout(_PATIENCE):
            for writer in self.writers:
                while not any(writer.sent[data] > begun for data in reversed(list(writer.acked)[-100:])):
                    assert not writer.client.closed
                    await asyncio.sleep(0.05)

    async def end(self) -> None:
        """Publishes no more, and waits until everything was delivered that was acknowledged."""
        for writer in self.writers:
            writer.stopping = True
        await asyncio.gather(*self._running)
        for writer in self.writers:
            await writer.client.settled()
        acked = {
            channel: {data for writer in self.writers if writer.channel == channel for data in writer.acked}
            for channel in {reader.channel for reader in self.readers}
        }
        async with asyncio.timeout(_PATIENCE):
            for reader in self.readers:
                while acked[reader.channel] - set(reader.got.values()):
                    await asyncio.sleep(0.1)

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        for client in self._clients:
            with contextlib.suppress(StreamingError):
                await client.close()

    @property
    def repeated(self) -> float:
        """The part of the deliveries of what had been delivered before."""
        deliveries = sum(reader.deliveries for reader in self.readers)
        return 1 - sum(len(reader.got) for reader in self.readers) / deliveries

    def check(self, logs: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
        """Compares what was seen with what the channels have: sequences and payloads.

        Raises:
            AssertionError: It cannot be.
        """
        for channel, log in logs.items():
            writers = [writer for writer in self.writers if writer.channel == channel]
            sent = {data: at for writer in writers for data, at in writer.sent.items()}
            acked = {data: at for writer in writers for data, at in writer.acked.items()}
            assert [sequence for sequence, _ in log] == list(range(1, len(log) + 1)), "there is a gap"
            texts = [data for _, data in log]
            twice = [data for data, count in Counter(texts).items() if count > 1]
            assert not twice, f"stored more than once: {twice[:5]}"
            lost = acked.keys() - set(texts)
            assert not lost, f"acknowledged, and not there: {sorted(lost)[:5]} of {len(lost)}"
            assert set(texts) <= sent.keys(), "nobody has published that"
            # What was acknowledged before another one was published comes before it.
            soonest = len(sent) + len(acked) + (1 << 40)
            for data in reversed(texts):
                assert soonest > sent[data], f"{data!r} came later, and is before what was acknowledged by then"
                soonest = min(soonest, acked.get(data, soonest))
            for reader in self.readers:
                if reader.channel == channel:
                    assert not reader.problems
                    assert reader.got.items() <= dict(log).items(), "something was delivered that is not there"
