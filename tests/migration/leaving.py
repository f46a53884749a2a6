"""Leaving a streaming server without downtime, with real processes: who publishes, who subscribes, and a checker.

The streaming server is the broker, on a file store. Publisher and subscriber use it until it stops, then JetStream. The
checker has the last word: every message that was acknowledged is in the stream, once and in order, and the subscriber
got each of them once and in order, over both servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from stantools.errors import ExitCode
from stantools.streaming.client import ClientOptions, Message, Start, SubscriptionOptions, connect
from stantools.streaming.errors import StreamingError
from tests import natsclient
from tests.brokers import Broker
from tests.servers import NatsServer
from tests.waiting import eventually

CLUSTER = "test-cluster"
CHANNEL = "orders"
WAIT = 60.0


class Migration:
    """`stantools migrate --follow` as a process that may be killed and started again."""

    def __init__(self, folder: Path, store: Path, url: str, *words: str) -> None:
        self.folder = folder
        self.words = [str(store), "--server", url, "--yes", "--progress", "none", "--plan", "plan.yaml", *words]
        self.process: subprocess.Popen[str] | None = None

    def start(self, *words: str) -> None:
        command = [sys.executable, "-m", "stantools", "migrate", *self.words, *words]
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.communicate()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def finish(self) -> tuple[int, str, str]:
        """Waits until it ends; returns exit code, output and what it told."""
        assert self.process
        out, err = await asyncio.to_thread(self.process.communicate, timeout=WAIT)
        return self.process.returncode, out, err

    async def check_running(self) -> None:
        """Fails, with all it told, if it has ended."""
        if not self.running:
            code, out, err = await self.finish()
            raise AssertionError(f"the migration has ended with {code}:\n{out}{err}")


@dataclass
class Publisher:
    """Publishes numbered messages without end, first to the streaming server, then to JetStream.

    Attributes:
        acked: Numbers that a server has acknowledged, in order.
        moved: Seconds between the last acknowledgement of the one server and the first of the other.
        idle: It has stopped to publish to the streaming server.
        repeated: Numbers that were published again, as no acknowledgement came: a server may hold them twice.
    """

    url: str
    channel: str = CHANNEL
    acked: list[int] = field(default_factory=list)
    number: int = 0
    moved: float = 0.0
    repeated: set[int] = field(default_factory=set)
    idle: bool = False
    _last: float = 0.0

    def _took(self) -> None:
        self._last = time.monotonic()
        self.acked.append(self.number)

    async def to_streaming(self, stop: Callable[[], bool], every: float = 0.002) -> None:
        """Publishes until told to stop; the last message was acknowledged. Fails where no acknowledgement comes."""
        self._last = time.monotonic()
        options = ClientOptions(ack_timeout=2.0)
        waiting = False
        while not stop() or waiting:
            assert time.monotonic() - self._last < WAIT, f"no acknowledgement of {self.number} within {WAIT:g} s"
            with contextlib.suppress(StreamingError, NatsError, OSError):
                async with await connect(self.url, CLUSTER, f"pub-{self.channel}", options) as client:
                    while not stop() or waiting:
                        if waiting:
                            self.repeated.add(self.number)
                        else:
                            self.number += 1
                        waiting = True
                        await client.publish(self.channel, b"%d" % self.number)
                        waiting = False
                        self._took()
                        await asyncio.sleep(every)
            await asyncio.sleep(0.02)
        self.idle = True

    async def to_stream(self, js: JetStreamContext, count: int) -> None:
        """Publishes so many to the stream, as soon as there is one that takes them."""
        for _ in range(count):
            self.number += 1
            await js.publish(self.channel, b"%d" % self.number, timeout=WAIT)
            self.moved = self.moved or time.monotonic() - self._last
            self._took()


@dataclass
class Subscriber:
    """A durable that acknowledges each message, first at the streaming server, then at its consumer.

    Attributes:
        got: Numbers of the messages, in order.
        again: Those that were said to have been sent before.
    """

    url: str
    channel: str = CHANNEL
    durable: str = "worker"
    got: list[int] = field(default_factory=list)
    again: set[int] = field(default_factory=set)

    async def of_streaming(self, stop: Callable[[], bool]) -> None:
        async def take(message: Message) -> None:
            self.got.append(int(message.data))
            if message.redelivered:
                self.again.add(self.got[-1])

        options = SubscriptionOptions(start=Start.first(), durable=self.durable)
        while not stop():
            with contextlib.suppress(StreamingError, NatsError, OSError):
                async with await connect(self.url, CLUSTER, f"sub-{self.channel}", ClientOptions()) as client:
                    subscription = await client.subscribe(self.channel, take, options)
                    while not stop() and not client.closed:
                        await asyncio.sleep(0.01)
                    await subscription.close()
            await asyncio.sleep(0.02)

    async def of_stream(self, js: JetStreamContext, until: int) -> None:
        subscription = await js.pull_subscribe_bind(self.durable, self.channel)
        deadline = time.monotonic() + WAIT
        # The consumer begins with what was sent, and not acknowledged.
        self.again |= set(range(1, max(self.got, default=0) + 1)).difference(self.got)
        while self.got[-1:] != [until]:
            assert time.monotonic() < deadline, f"{self.got[-3:]} of {until}"
            for message in await subscription.fetch(50, timeout=WAIT):
                self.got.append(int(message.data))
                await message.ack_sync(timeout=WAIT)


def broker(folder: Path, *words: object, port: int = 0) -> Broker:
    """A streaming server with a file store whose slices are small."""
    options = ["-cid", CLUSTER, "-store", "file", "-dir", folder / "store", "--file_slice_max_msgs", 300]
    return Broker(folder, *options, *words, port=port)


async def in_stream(js: JetStreamContext, name: str = CHANNEL) -> list[tuple[int, bytes]]:
    """Sequence and payload of every message of a stream."""
    state = (await js.stream_info(name)).state
    found: list[tuple[int, bytes]] = []
    if not state.messages:
        return found
    subscription = await js.subscribe(">" if name == ">" else "", stream=name, ordered_consumer=True)
    while len(found) < state.messages:
        message = await subscription.next_msg(timeout=WAIT)
        found.append((message.metadata.sequence.stream, message.data))
    await subscription.unsubscribe()
    return found


def check(publisher: Publisher, subscriber: Subscriber, held: list[tuple[int, bytes]], *, crashed: bool) -> None:
    """Every message that was acknowledged is in the stream, once and in order, and so it came to the subscriber.

    Args:
        publisher: Who published.
        subscriber: Who got them.
        held: What the stream holds.
        crashed: The streaming server was killed: what was not acknowledged then may be there twice, what the subscriber
            had acknowledged last may have come again, and what was under way to it came after its ack wait.
    """
    assert [sequence for sequence, _ in held] == list(range(1, len(held) + 1))
    numbers = [int(data) for _, data in held]
    assert list(dict.fromkeys(numbers)) == publisher.acked == list(range(1, publisher.number + 1))
    twice = {number for number, count in Counter(numbers).items() if count > 1}
    assert twice <= publisher.repeated
    late = subscriber.again if crashed else set()
    assert {*publisher.acked} == {*subscriber.got}
    assert [number for number in dict.fromkeys(subscriber.got) if number not in late] == [
        number for number in publisher.acked if number not in late
    ]
    if not crashed and not publisher.repeated:  # on a busy machine an acknowledgement may come too late
        assert numbers == subscriber.got == publisher.acked


class Rehearsal:
    """One round of leaving: publisher and subscriber go on, while everything else is killed and started again.

    Args:
        folder: For everything.
        server: The server with JetStream.
        seed: Decides what is killed when.
    """

    def __init__(self, folder: Path, server: NatsServer, seed: int) -> None:
        self.rng = random.Random(seed)
        self.server = server
        self.streaming = broker(folder / "broker")
        self.migration = Migration(folder, self.streaming.folder / "store", server.url)
        self.publisher, self.subscriber = Publisher(self.streaming.url), Subscriber(self.streaming.url)
        self.over = self.crashed = False

    async def run(
        self, faults: Sequence[str], follow: Sequence[str] = ("--follow",), cutover: Sequence[str] = ("--cutover",)
    ) -> str:
        """Goes through it, with faults on the way; returns what the migration said in the end.

        Args:
            faults: What is killed and started again, one after the other; `cutover` is a kill in the end.
            follow: The words that follow.
            cutover: Those that end it.
        """
        self._follow = follow
        with self.streaming:
            try:
                # Where one fails the others are cancelled, as long as the server is there for their good-bye.
                async with asyncio.TaskGroup() as group:
                    users = [
                        group.create_task(self.publisher.to_streaming(lambda: self.over)),
                        group.create_task(self.subscriber.of_streaming(self.is_drained)),
                    ]
                    return await self._leave(faults, cutover, users)
            finally:
                if self.migration.running:
                    self.migration.kill()

    async def _leave(self, faults: Sequence[str], cutover: Sequence[str], users: Sequence[asyncio.Task[None]]) -> str:
        await eventually(lambda: len(self.publisher.acked) > 100)
        self.migration.start(*self._follow)
        for fault in faults:
            await asyncio.sleep(self.rng.uniform(0.1, 2.5))
            await asyncio.to_thread(self.happen, fault)
        self.migration.kill()
        self.migration.start(*cutover)
        async with natsclient.connected(self.server.url) as client:
            js = client.jetstream(timeout=WAIT)
            await self.is_carried(js)  # by loading, perhaps
            await self.is_carried(js)
            self.over = True
            async with asyncio.timeout(WAIT):
                await asyncio.gather(*users)
            await asyncio.to_thread(self.streaming.stop)
            if "cutover" in faults:
                await asyncio.sleep(self.rng.uniform(0.0, 1.0))
                if self.migration.running:
                    self.migration.kill()
                    self.migration.start(*cutover)
            code, out, err = await self.migration.finish()
            if code == ExitCode.REFUSED and "cutover" in faults and "are finished" in err:
                out = ""  # it had come to its end before it was killed
            else:
                assert code == ExitCode.CLEAN, out + err
            await self.publisher.to_stream(js, 30)
            await self.subscriber.of_stream(js, self.publisher.number)
            check(self.publisher, self.subscriber, await in_stream(js), crashed=self.crashed)
        return out

    def is_drained(self) -> bool:
        """The publisher has stopped, and the subscriber has got its last message."""
        return self.over and self.publisher.idle and self.publisher.acked[-1] in self.subscriber.got[-5:]

    def happen(self, fault: str) -> None:
        if fault == "migration":
            self.migration.kill()
            self.migration.start(*self._follow)
        elif fault == "target":
            self.server.kill()
            self.server.start()
        elif fault == "source":
            self.crashed = True
            self.streaming.kill()
            self.streaming.start()

    async def is_carried(self, js: JetStreamContext) -> None:
        """Waits until the next message of the publisher is in the stream."""
        mark = self.publisher.number + 1

        async def carried() -> bool:
            await self.migration.check_running()
            with contextlib.suppress(NatsError):
                found = await js.get_last_msg(CHANNEL, CHANNEL)
                return int(found.data or b"0") >= mark
            return False

        await eventually(carried)
