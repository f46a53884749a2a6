"""The headers that a migrated message carries: what JetStream has no field for.

    Nats-Streaming-Channel: orders          origin: channel, sequence there and time there, for users who want them or
    Nats-Streaming-Sequence: 42             where the stream has other ones. The same names and formats that the
    Nats-Streaming-Timestamp: 1600000…      known live migration tool writes (time in nanoseconds since 1970).
    Nats-Streaming-Reply: inbox.7           reply subject, where the message has one

A message without any of them has no header block. The order is fixed, so that blocks can be compared byte by byte.
"""

from __future__ import annotations

CHANNEL = "Nats-Streaming-Channel"
SEQUENCE = "Nats-Streaming-Sequence"
TIMESTAMP = "Nats-Streaming-Timestamp"
REPLY = "Nats-Streaming-Reply"

#: What a header block begins and ends with.
VERSION_LINE = b"NATS/1.0\r\n"
END_LINE = b"\r\n"


def header_block(channel: bytes, sequence: int, timestamp: int, reply: bytes, *, origin: bool) -> bytes:
    """Returns the header block of one message, empty if it needs none.

    Args:
        channel: The channel's name.
        sequence: Its sequence in the channel.
        timestamp: Its time in nanoseconds since 1970.
        reply: Its reply subject, empty if it has none; must be fit for a header (see `safe_value`).
        origin: Write channel, sequence and timestamp.
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
    """Tells whether bytes come back unchanged as a header value: no control characters, no space around them."""
    return value == value.strip(b" ") and not any(byte < 0x20 or byte == 0x7F for byte in value)


def safe_value(value: bytes) -> bytes:
    """Returns bytes that can be a header value: what is not fit for one is written as percent and two digits."""
    if is_safe_value(value):
        return value
    return b"".join(b"%%%02X" % b if b <= 0x20 or b in b"\x7f%" else bytes([b]) for b in value)
