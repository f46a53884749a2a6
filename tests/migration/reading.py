"""Reading a stream with nats-py alone: what any client of the server sees. Nothing of ours is used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import nats
import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig

from tests import natsclient

_T = TypeVar("_T")


@dataclass(frozen=True)
class Seen:
    """A message as a client sees it."""

    sequence: int
    timestamp: int
    subject: str
    headers: dict[str, str]
    data: bytes


async def patiently(ask: Callable[[], Awaitable[_T]]) -> _T:
    """Asks again for a while: a cluster that has just lost a server, or got it back, does not answer everything."""
    for _ in range(5):
        try:
            return await ask()
        except (nats.errors.TimeoutError, nats.js.errors.ServiceUnavailableError):
            await asyncio.sleep(1)
    return await ask()


async def read_stream(url: str, stream: str, **connect: Any) -> list[Seen]:
    """Reads every message of a stream, in order."""
    async with natsclient.connected(url, **connect) as client:
        js = client.jetstream(timeout=10)
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=30)
        count = (await patiently(lambda: js.stream_info(stream))).state.messages
        subscription = await patiently(lambda: js.pull_subscribe("", stream=stream, config=config, durable=None))
        seen: list[Seen] = []
        while len(seen) < count:
            wanted = min(500, count - len(seen))
            for message in await patiently(lambda wanted=wanted: subscription.fetch(wanted, timeout=10)):  # type: ignore[misc]
                # Times as integers: floating point does not hold nanoseconds.
                tokens = message.reply.split(".")
                sequence, timestamp = int(tokens[5]), int(tokens[7])
                seen.append(Seen(sequence, timestamp, message.subject, dict(message.headers or {}), message.data))
        return seen


async def consumers_of(url: str, stream: str, **connect: Any) -> dict[str, Any]:
    """Returns nats-py's view of a stream's consumers, by name."""
    async with natsclient.connected(url, **connect) as client:
        return {info.name: info for info in await client.jetstream().consumers_info(stream)}


async def state_of(url: str, stream: str, **connect: Any) -> Any:
    """Returns nats-py's view of a stream."""
    async with natsclient.connected(url, **connect) as client:
        return await client.jetstream().stream_info(stream)


def reads(url: str, stream: str) -> list[Seen]:
    """`read_stream`, from code that is not asynchronous."""
    return asyncio.run(read_stream(url, stream))
