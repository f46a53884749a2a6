"""Acknowledging what a consumer delivered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from stantools.migration.target.errors import NoAnswerError

if TYPE_CHECKING:
    from stantools.migration.target.jetstream import JetStream


def acknowledgement(reply: bytes, *, keep: bool) -> bytes:
    """Returns the frame that acknowledges a message, or keeps it pending, to be delivered again at once."""
    return b"PUB %b 4\r\n%b\r\n" % (reply, b"-NAK" if keep else b"+ACK")


async def settled(js: JetStream, stream: str, name: str, pending: int) -> dict[str, Any]:
    """Waits until a consumer has taken all acknowledgements.

    Args:
        js: JetStream.
        stream: The stream.
        name: The consumer.
        pending: How many messages will be pending then.

    Returns:
        The consumer's info.

    Raises:
        NoAnswerError: It did not.
        PermissionDeniedError: The user may not acknowledge.
    """
    subject = f"$JS.ACK.{stream}.{name}"
    deadline = asyncio.get_running_loop().time() + js.connection.options.timeout
    pause = 0.001
    while True:
        info = await js.api(f"CONSUMER.INFO.{stream}.{name}", asks=True)
        if int(info["num_ack_pending"]) == pending:
            return info
        if asyncio.get_running_loop().time() > deadline:
            raise NoAnswerError(
                f"consumer {name} of stream {stream} has {info['num_ack_pending']} pending messages, not {pending}",
                f"let the user publish to {subject}.>, where messages are acknowledged",
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.1)
