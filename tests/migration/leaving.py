"""Leaving a streaming server without downtime, with real processes: who publishes, who subscribes, and a checker.

The streaming server is the broker, on a file store. Publisher and subscriber use it until it stops, then JetStream. The
checker has the last word: every message that was acknowledged is in the stream, once and in order, and the subscriber
got each of them once and in order, over both servers.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
from nats.js import JetStreamContext

from stantools.streaming.client import ClientOptions, Message, Start, SubscriptionOptions, connect
from tests.brokers import Broker

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

    def stop(self) -> int:
        assert self.process
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=WAIT)
        return self.process.returncode

    async def finish(self) -> tuple[int, str, str]:
        """Waits until it ends; returns exit code, output and what it told."""
        assert self.process
        out, err = await asyncio.to_thread(self.process.communicate, timeout=WAIT)
        return self.process.returncode, out, err


@dataclass
class Publisher:
    """Publishes numbered messages without end, first to the streaming server, then to JetStream.

    Attributes:
        acked: Numbers that a server has acknowledged, in order.
        pause: The longest time between two acknowledgements, in seconds.
    """

    url: str
    channel: str = CHANNEL
    acked: list[int] = field(default_factory=list)
    number: int = 0
    pause: float = 0.0
    _last: float = 0.0

    def _took(self) -> None:
        now = time.monotonic()
        self.pause = max(self.pause, now - self._last if self._last else 0.0)
        self._last = now
        self.acked.append(self.number)

    async def to_streaming(self, stop: Callable[[], bool], every: float = 0.002) -> None:
        """Publishes until told to stop; the last message was acknowledged."""
        async with await connect(self.url, CLUSTER, f"pub-{self.channel}") as client:
            while not stop():
                self.number += 1
                await client.publish(self.channel, b"%d" % self.number)
                self._took()
                await asyncio.sleep(every)

    async def to_stream(self, js: JetStreamContext, count: int) -> None:
        """Publishes so many to the stream, as soon as there is one that takes them."""
        for _ in range(count):
            self.number += 1
            await js.publish(self.channel, b"%d" % self.number, timeout=WAIT)
            self._took()


@dataclass
class Subscriber:
    """A durable that acknowledges each message, first at the streaming server, then at its consumer.

    Attributes:
        got: Numbers of the messages, in order.
    """

    url: str
    channel: str = CHANNEL
    durable: str = "worker"
    got: list[int] = field(default_factory=list)

    async def of_streaming(self, stop: Callable[[], bool]) -> None:
        async def take(message: Message) -> None:
            self.got.append(int(message.data))

        options = SubscriptionOptions(start=Start.first(), durable=self.durable)
        async with await connect(self.url, CLUSTER, f"sub-{self.channel}", ClientOptions()) as client:
            subscription = await client.subscribe(self.channel, take, options)
            while not stop():
                await asyncio.sleep(0.01)
            await subscription.close()

    async def of_stream(self, js: JetStreamContext, until: int) -> None:
        subscription = await js.pull_subscribe_bind(self.durable, self.channel)
        deadline = time.monotonic() + WAIT
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


def outcome(out: str) -> dict[str, Any]:
    """The result as json."""
    found: dict[str, Any] = json.loads(out)
    return found


def connected(url: str) -> Any:
    """A connection to a server, closed by its block."""
    return nats.connect(url, connect_timeout=WAIT)
