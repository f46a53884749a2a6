"""Clients of NATS servers for the tests.

nats-py waits half a second for an answer; on a busy machine that is too short, so it waits for a minute here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from stantools.nats import connection
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.jetstream import JetStream

#: The default timeout of a request, in seconds.
PATIENCE = 60
_T = TypeVar("_T")


class Client(NatsClient):
    async def connect(self, servers: str | list[str] = "nats://localhost:4222", *args: Any, **options: Any) -> None:
        await super().connect(servers, *args, **{"connect_timeout": PATIENCE, **options})

    async def request(self, subject: str, payload: bytes = b"", timeout: float = PATIENCE, **options: Any) -> Msg:
        return await super().request(subject, payload, timeout, **options)

    async def flush(self, timeout: float = PATIENCE) -> None:
        # The ping that it sends overtakes what is not written yet, as subscriptions that were just made.
        await self._flush_pending(force_flush=True)
        await super().flush(timeout)  # type: ignore[arg-type]

    def jetstream(self, **options: Any) -> JetStreamContext:
        return super().jetstream(**{"timeout": PATIENCE, **options})


async def connect(servers: str | list[str], **options: Any) -> Client:
    """`nats.connect`, with more patience."""
    client = Client()
    await client.connect(servers, **options)
    return client


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Client]:
    """nats-py, connected for the body."""
    client = await connect(url, **options)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def jetstream(*urls: str, **options: Any) -> AsyncIterator[JetStream]:
    """The JetStream client of stantools, connected for the body."""
    async with connection.connect(ConnectOptions(servers=urls, **options)) as link:
        yield JetStream(link)


def with_jetstream(url: str, work: Callable[[JetStream], Awaitable[_T]], **options: Any) -> _T:
    """The same for a test that is not a coroutine, as its command has an event loop of its own."""

    async def connected() -> _T:
        async with jetstream(url, **options) as js:
            return await work(js)

    return asyncio.run(connected())
