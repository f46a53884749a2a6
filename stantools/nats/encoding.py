"""Single commands as bytes, of clients and of servers. `kernels` encodes messages in bulk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

OK: Final = b"+OK\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
#: header block of the server's answer to a request without a subscriber
NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"


def connect(options: Mapping[str, object]) -> bytes:
    return b"CONNECT " + json.dumps(options, separators=(",", ":")).encode() + b"\r\n"


def subscribe(subject: bytes, sid: int, queue: bytes = b"") -> bytes:
    return b"SUB %b %b %d\r\n" % (subject, queue, sid) if queue else b"SUB %b %d\r\n" % (subject, sid)


def unsubscribe(sid: int, maximum: int = 0) -> bytes:
    """Returns UNSUB: after `maximum` messages in total, or at once for 0."""
    return b"UNSUB %d %d\r\n" % (sid, maximum) if maximum else b"UNSUB %d\r\n" % sid


def publish(subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> bytes:
    """Returns one publish; the header block, if any, with its empty line."""
    if reply:
        reply += b" "
    if header:
        size = len(header) + len(payload)
        return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (subject, reply, len(header), size, header, payload)
    return b"PUB %b %b%d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def header_block(fields: Mapping[str, str]) -> bytes:
    if not fields:
        return b""
    lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def message(subject: bytes, sid: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> bytes:
    """Returns one message for one subscription; the header block, if any, with its empty line."""
    if reply:
        reply += b" "
    if header:
        size = len(header) + len(payload)
        return b"HMSG %b %b %b%d %d\r\n%b%b\r\n" % (subject, sid, reply, len(header), size, header, payload)
    return b"MSG %b %b %b%d\r\n%b\r\n" % (subject, sid, reply, len(payload), payload)


def error(text: str) -> bytes:
    return f"-ERR '{text}'\r\n".encode()


def info(fields: Mapping[str, object]) -> bytes:
    return b"INFO " + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b" \r\n"
