"""The client's side: what a client of a NATS server reads and sends.

`parse_messages` reads whole batches of messages; where it stops with OTHER, `parse_answer` goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from broker.wire.kernels import encode_publishes, parse_messages
from broker.wire.operations import parse_answer

__all__ = [
    "MAX_LINE",
    "PING",
    "PONG",
    "connect",
    "encode_publishes",
    "parse_answer",
    "parse_messages",
    "publish",
    "subscribe",
    "unsubscribe",
]

#: Most bytes of a line of a server that is believed: INFO lists the addresses of a whole cluster.
MAX_LINE: Final = 1 << 20

PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


def connect(options: Mapping[str, object]) -> bytes:
    """Returns CONNECT."""
    return b"CONNECT " + json.dumps(options, separators=(",", ":")).encode() + b"\r\n"


def subscribe(subject: bytes, sid: int, queue: bytes = b"") -> bytes:
    """Returns SUB."""
    return b"SUB %b %b %d\r\n" % (subject, queue, sid) if queue else b"SUB %b %d\r\n" % (subject, sid)


def unsubscribe(sid: int, maximum: int = 0) -> bytes:
    """Returns UNSUB: after `maximum` messages in all, or at once for 0."""
    return b"UNSUB %d %d\r\n" % (sid, maximum) if maximum else b"UNSUB %d\r\n" % sid


def publish(subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> bytes:
    """Returns one publish; the header block, if any, with its empty line."""
    if reply:
        reply += b" "
    if header:
        size = len(header) + len(payload)
        return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (subject, reply, len(header), size, header, payload)
    return b"PUB %b %b%d\r\n%b\r\n" % (subject, reply, len(payload), payload)
