"""The headers of a migrated message: data without a field in JetStream, and guards for its publishing.

    Nats-Streaming-Channel: orders          origin: channel, sequence and time there, for users who want them or where
    Nats-Streaming-Sequence: 42             the stream has other ones. The names and formats are those of the known
    Nats-Streaming-Timestamp: 1600000…      live migration tool (time in nanoseconds since 1970).
    Nats-Streaming-Reply: inbox.7           reply subject, if the message has one

A message without any of them has no header block. The order is fixed, so that blocks can be compared byte by byte. A
published message carries two more:

    Nats-Msg-Id: orders:1:42                identity: channel, generation and sequence there
    Nats-Expected-Last-Sequence: 41         place: the server stores it as 42 or not at all

The second lets it be sent any number of times and stored once, at its own place; unlike the first it does not depend
on the memory of the server. A sequence that the source lacks is taken by a filler, a message without payload that is
deleted afterwards:

    Nats-Streaming-Filler: 1
    Nats-Expected-Last-Sequence: 42
"""

from __future__ import annotations

import re
from typing import Final

from stantools.escaping import text
from stantools.notation import format_moment

CHANNEL = "Nats-Streaming-Channel"
SEQUENCE = "Nats-Streaming-Sequence"
TIMESTAMP = "Nats-Streaming-Timestamp"
REPLY = "Nats-Streaming-Reply"

#: first line of a header block
VERSION_LINE = b"NATS/1.0\r\n"
END_LINE = b"\r\n"


def header_block(channel: bytes, sequence: int, timestamp: int, reply: bytes, *, origin: bool) -> bytes:
    """Returns the header block of one message, empty if it needs none.

    `timestamp` is in nanoseconds since 1970. `reply` must be valid as a header value (see `safe_value`), empty for
    none. With `origin`, channel, sequence and timestamp are written.
    """
    lines = b""
    if origin:
        lines = b"Nats-Streaming-Channel: %b\r\nNats-Streaming-Sequence: %d\r\nNats-Streaming-Timestamp: %d\r\n" % (
            channel,
            sequence,
            timestamp,
        )
    if reply:
        lines += b"Nats-Streaming-Reply: %b\r\n" % reply
    return VERSION_LINE + lines + END_LINE if lines else b""


def is_safe_value(value: bytes) -> bool:
    """Returns whether bytes survive as a header value: no control characters, no space around them."""
    return value == value.strip(b" ") and not any(byte < 0x20 or byte == 0x7F for byte in value)


def safe_value(value: bytes) -> bytes:
    """Returns bytes as a valid header value: invalid ones become percent and two digits."""
    if is_safe_value(value):
        return value
    return b"".join(b"%%%02X" % b if b <= 0x20 or b in b"\x7f%" else bytes([b]) for b in value)


MESSAGE_ID: Final = b"Nats-Msg-Id"
EXPECTED_LAST: Final = b"Nats-Expected-Last-Sequence"
FILLER: Final = b"Nats-Streaming-Filler"

#: lines that publishing adds to a message's own header block
_PUBLISH_LINES: Final = tuple(name + b": " for name in (MESSAGE_ID, EXPECTED_LAST))
_ID: Final = re.compile(rb"\r\n%b:[ \t]*([^\r]*?)[ \t]*\r\n" % MESSAGE_ID, re.IGNORECASE)
FILLER_START: Final = VERSION_LINE + FILLER + b": 1\r\n"


def identity(channel: bytes, generation: int) -> bytes:
    """Returns the prefix of the ids of a channel's messages."""
    return b"%b:%d:" % (safe_value(channel), generation)


def message_id(block: bytes) -> bytes:
    """Returns the id in a header block, empty without one."""
    found = _ID.search(block)
    return found[1] if found else b""


def guarded(block: bytes, identity: bytes, channel_sequence: int, expected_last: int | None) -> bytes:
    """Returns a message's header block (of `header_block`) with the lines that publishing adds.

    `expected_last` is the stream's last sequence before it; None if it may be stored at any.
    """
    own = block[: -len(END_LINE)] if block else VERSION_LINE
    place = b"" if expected_last is None else b"%b: %d\r\n" % (EXPECTED_LAST, expected_last)
    return b"%b%b: %b%d\r\n%b\r\n" % (own, MESSAGE_ID, identity, channel_sequence, place)


def filler(expected_last: int) -> bytes:
    """Returns the header block of a filler after the stream's last sequence."""
    return b"%b%b: %d\r\n\r\n" % (FILLER_START, EXPECTED_LAST, expected_last)


def is_filler(block: bytes, data: bytes) -> bool:
    return not data and block.startswith(FILLER_START)


def own_block(block: bytes) -> bytes:
    """Returns a header block without the lines that publishing adds; empty if none is left."""
    if not block:
        return b""
    lines = block.split(b"\r\n")
    kept = [line for line in lines if not line.startswith(_PUBLISH_LINES)]
    return b"" if len(kept) == 3 else b"\r\n".join(kept)


def located(block: bytes, stream: bytes, subject: bytes, sequence: int, time: int) -> bytes:
    """Returns a header block, possibly empty, with the lines that servers add to locate its message.

    Facts: jetstream-server.md section 6. `sequence` is the one in the stream, `time` that of storage in nanoseconds
    since 1970.
    """
    own = block[: -2 * len(END_LINE)] if block.endswith(END_LINE + END_LINE) else VERSION_LINE[: -len(END_LINE)]
    return b"%b\r\nNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n\r\n" % (
        own,
        stream,
        subject,
        sequence,
        format_moment(time).encode(),
    )


def header_fields(block: bytes) -> dict[str, list[str]]:
    """Returns the values of each name in a header block, in their order; lines without a colon are left out."""
    fields: dict[str, list[str]] = {}
    for line in block.split(END_LINE)[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            fields.setdefault(text(name), []).append(text(value.strip(b" \t")))
    return fields
