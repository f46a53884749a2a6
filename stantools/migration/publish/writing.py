"""Many frames in one go onto a connection of nats-py: the one place that goes around its `publish`.

nats-py has no public way to send bytes as they are. What is used of it here is looked for first: the buffer that its
own commands go through, and the transport below it. Without them every frame is published by itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from stantools.migration.target.errors import ConnectionLostError

if TYPE_CHECKING:
    from nats.aio.client import Client

_FRAME = re.compile(rb"HPUB (\S+) (\S+) (\d+) (\d+)\r\n|PUB (\S+) (?:(\S+) )?(\d+)\r\n")


async def send_frames(client: Client, frames: bytes) -> None:
    """Sends `HPUB` and `PUB` frames behind everything that the client has been told to send before.

    If the connection breaks they may be sent on the next one.

    Args:
        client: The connection.
        frames: Whole frames, one behind the other.
    """
    send, flush = getattr(client, "_send_command", None), getattr(client, "_flush_pending", None)
    if send is None or flush is None:
        await _publish_each(client, frames)
        return
    await send(frames)
    await flush()


async def write_frames(client: Client, frames: bytes) -> None:
    """Sends frames at once, before what the client still has in its buffer, on this connection or not at all.

    Waits while the transport has too much to send already.

    Args:
        client: The connection.
        frames: Whole frames, one behind the other.

    Raises:
        ConnectionLostError: The connection is broken.
    """
    transport: Any = getattr(client, "_transport", None)
    if not client.is_connected:
        raise ConnectionLostError("the connection broke", "run the command again")
    if not all(hasattr(transport, name) for name in ("write", "drain")):
        await _publish_each(client, frames)
        return
    try:
        transport.write(frames)
        await transport.drain()
    except (OSError, AttributeError) as problem:
        # The client closes a transport, and forgets what is in it, as soon as it notices that the connection broke.
        raise ConnectionLostError(f"the connection broke: {problem}", "run the command again") from problem


async def _publish_each(client: Client, frames: bytes) -> None:
    at = 0
    while at < len(frames):
        match = _FRAME.match(frames, at)
        if not match:
            raise ValueError(f"{frames[at : at + 40]!r} is no frame")
        at = match.end()
        subject, reply = match[1] or match[5], match[2] or match[6] or b""
        head, size = int(match[3] or 0), int(match[4] or match[7])
        block, data = frames[at : at + head], frames[at + head : at + size]
        at += size + 2
        lines = [line.partition(b": ") for line in block.split(b"\r\n")[1:-2]]
        fields = {name.decode(): value.decode() for name, _, value in lines}
        await client.publish(subject.decode(), data, reply.decode(), fields or None)
