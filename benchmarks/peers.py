"""What scripts do with nats-py alone: the ways that ours are compared with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import nats

if TYPE_CHECKING:
    from nats.aio.msg import Msg

#: What is on its way at most.
_WINDOW = 8192
_OUTSTANDING = 2000
_FETCH = 5000
#: Messages between two looks at the window.
_STEP = 256


async def publish_one_by_one(url: str, stream: str, subject: str, payloads: Sequence[bytes], count: int) -> None:
    """`js.publish`, each one awaited: what stan2js does."""
    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name=stream, subjects=[subject])
    for number in range(count):
        await jetstream.publish(subject, payloads[number % len(payloads)])
    await client.close()


async def publish_async(url: str, stream: str, subject: str, payloads: Sequence[bytes], count: int) -> None:
    """`js.publish_async`, the window that nats-py itself has."""
    client = await nats.connect(url)
    jetstream = client.jetstream(publish_async_max_pending=_OUTSTANDING)
    await jetstream.add_stream(name=stream, subjects=[subject])
    for number in range(count):
        await jetstream.publish_async(subject, payloads[number % len(payloads)])
    await jetstream.publish_async_completed()
    await client.close()


async def publish_windowed(url: str, stream: str, subject: str, payloads: Sequence[bytes], count: int) -> None:
    """`nc.publish` with one reply inbox for all, answers counted: the fastest that nats-py's own functions allow."""
    client = await nats.connect(url, pending_size=64 << 20)
    await client.jetstream().add_stream(name=stream, subjects=[subject])
    inbox, answered, news = client.new_inbox(), 0, asyncio.Event()

    async def count_answer(_message: Msg) -> None:
        nonlocal answered
        answered += 1
        news.set()

    await client.subscribe(inbox, cb=count_answer, pending_msgs_limit=0, pending_bytes_limit=0)

    async def wait_for(number: int) -> None:
        while answered < number:
            news.clear()
            await asyncio.wait_for(news.wait(), 30)

    for number in range(count):
        await client.publish(subject, payloads[number % len(payloads)], reply=inbox)
        if number % _STEP == 0:
            await wait_for(number - _WINDOW)
    await client.flush(30)
    await wait_for(count)
    await client.close()


async def read_back(url: str, stream: str, expected: Iterator[bytes], count: int) -> None:
    """Reads a stream through an ephemeral pull consumer, two requests outstanding, and compares every payload.

    Raises:
        RuntimeError: A payload differs.
    """
    client = await nats.connect(url, pending_size=64 << 20)
    config = {"ack_policy": "none", "deliver_policy": "all", "mem_storage": True, "inactive_threshold": 60_000_000_000}
    body = json.dumps({"stream_name": stream, "config": config}).encode()
    answer = json.loads((await client.request(f"$JS.API.CONSUMER.CREATE.{stream}", body, timeout=10)).data)
    request = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{answer['name']}"
    inbox, got, wrong, done = client.new_inbox(), 0, 0, asyncio.Event()
    ask = json.dumps({"batch": _FETCH, "expires": 30_000_000_000}).encode()

    async def take(message: Msg) -> None:
        nonlocal got, wrong
        if not message.headers:
            wrong += message.data != next(expected)
            got += 1
            if got == count:
                done.set()
            elif got % _FETCH == 0:
                await client.publish(request, ask, reply=inbox)

    await client.subscribe(inbox, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
    for _ in range(2):
        await client.publish(request, ask, reply=inbox)
    await asyncio.wait_for(done.wait(), 600)
    await client.close()
    if wrong:
        raise RuntimeError(f"{wrong} payloads differ")
