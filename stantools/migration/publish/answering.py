"""Acknowledging what a consumer delivered, until the consumer says so itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stantools.migration.publish.writing import send_frames
from stantools.migration.target.errors import NoAnswerError

if TYPE_CHECKING:
    from stantools.migration.target.jetstream import JetStream


async def acknowledge(js: JetStream, stream: str, name: str, replies: Sequence[bytes], pending: int) -> None:
    """Acknowledges messages, and waits until the consumer has taken that.

    Args:
        js: JetStream.
        stream: The stream.
        name: The consumer.
        replies: Reply subjects of the messages.
        pending: How many messages will be pending then.

    Raises:
        NoAnswerError: The consumer still has another number of pending messages.
        PermissionDeniedError: The user may not acknowledge.
    """
    connection = js.connection
    watched = [reply.decode() for reply in replies[:1]]
    with connection.watch(*watched) as failed:
        await send_frames(connection.client, b"".join(b"PUB %b 4\r\n+ACK\r\n" % reply for reply in replies))
        deadline = asyncio.get_running_loop().time() + connection.options.timeout
        pause = 0.001
        while int((info := await consumer_info(js, stream, name))["num_ack_pending"]) != pending:
            if failed.done():
                raise failed.result()
            if asyncio.get_running_loop().time() > deadline:
                raise NoAnswerError(
                    f"consumer {name} of stream {stream} has {info['num_ack_pending']} pending messages, not {pending}",
                    f"let the user publish to $JS.ACK.{stream}.{name}.>, where messages are acknowledged",
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)


async def keep_pending(js: JetStream, replies: Sequence[bytes]) -> None:
    """Leaves messages pending, to be delivered again as soon as somebody asks, as STAN does when a durable resumes.

    Args:
        js: JetStream.
        replies: Reply subjects of the messages.
    """
    await send_frames(js.connection.client, b"".join(b"PUB %b 4\r\n-NAK\r\n" % reply for reply in replies))


async def consumer_info(js: JetStream, stream: str, name: str) -> dict[str, Any]:
    """Returns configuration and state of a consumer that must be there."""
    return await js.api(f"CONSUMER.INFO.{stream}.{name}", asks=True)
