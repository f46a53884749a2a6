"""nats-py for the tests: on a busy machine a peer does not answer within the half second that it waits by itself."""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js import JetStreamContext

#: How long an answer is waited for where a test does not say it, in seconds.
PATIENCE = 60


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
