"""The headers that a migrated message carries: what JetStream has no field for, and what guards its publishing.

    Nats-Streaming-Channel: orders          origin: channel, sequence there and time there, for users who want them or
    Nats-Streaming-Sequence: 42             where the stream has other ones. The same names and formats that the
    Nats-Streaming-Timestamp: 1600000…      known live migration tool writes (time in nanoseconds since 1970).
    Nats-Streaming-Reply: inbox.7           reply subject, where the message has one

A message without any of them has no header block. The order is fixed, so that blocks can be compared byte by byte.
A message that is published carries two more:

    Nats-Msg-Id: orders:1:42                channel, generation and sequence there: what it is
    Nats-Expected-Last-Sequence: 41         where it goes: the server stores it as 42 or not at all

With the second it can be sent any number of times and is stored once, at its own place; unlike the first it does not
depend on how long the server remembers. A sequence that the source lacks is taken by a filler, a message without
payload that is deleted again:

    Nats-Streaming-Filler: 1
    Nats-Expected-Last-Sequence: 42
"""

from __future__ import annotations

from typing import Final

from stantools.notation import format_moment

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
    """Returns whether bytes come back unchanged as a header value: no control characters, no space around them."""
    return value == value.strip(b" ") and not any(byte < 0x20 or byte == 0x7F for byte in value)


def safe_value(value: bytes) -> bytes:
    """Returns bytes that can be a header value: what is not fit for one is written as percent and two digits."""
    if is_safe_value(value):
        return value
    return b"".join(b"%%%02X" % b if b <= 0x20 or b in b"\x7f%" else bytes([b]) for b in value)


MESSAGE_ID: Final = b"Nats-Msg-Id"
EXPECTED_LAST: Final = b"Nats-Expected-Last-Sequence"
FILLER: Final = b"Nats-Streaming-Filler"

#: Lines that publishing adds to a message's own header block.
_ADDED: Final = tuple(name + b": " for name in (MESSAGE_ID, EXPECTED_LAST))
FILLER_START: Final = VERSION_LINE + FILLER + b": 1\r\n"


def identity(channel: bytes, generation: int) -> bytes:
    """Returns what the ids of a channel's messages begin with."""
    return b"%b:%d:" % (safe_value(channel), generation)


def guarded(block: bytes, identity: bytes, channel_sequence: int, expected_last: int) -> bytes:
    """Returns a message's header block with the lines that publishing adds.

    Args:
        block: Its own one, from `header_block`; empty if it needs none.
        identity: From `identity`.
        channel_sequence: Its sequence in the channel.
        expected_last: The stream's last sequence before it.
    """
    own = block[: -len(END_LINE)] if block else VERSION_LINE
    return b"%b%b: %b%d\r\n%b: %d\r\n\r\n" % (own, MESSAGE_ID, identity, channel_sequence, EXPECTED_LAST, expected_last)


def filler(expected_last: int) -> bytes:
    """Returns the header block of a filler behind the stream's last sequence."""
    return b"%b%b: %d\r\n\r\n" % (FILLER_START, EXPECTED_LAST, expected_last)


def is_filler(block: bytes, data: bytes) -> bool:
    """Returns whether a message with this header block and payload is a filler."""
    return not data and block.startswith(FILLER_START)


def own_block(block: bytes) -> bytes:
    """Returns a header block without the lines that publishing adds: empty if nothing is left."""
    if not block:
        return b""
    lines = block.split(b"\r\n")
    kept = [line for line in lines if not line.startswith(_ADDED)]
    return b"" if len(kept) == 3 else b"\r\n".join(kept)


def located(block: bytes, stream: bytes, subject: bytes, sequence: int, time: int) -> bytes:
    """Returns a header block, which may be empty, with lines that say where its message is, as servers add them.

    Facts: jetstream-server.md section 6.

    Args:
        block: The message's own one.
        stream: Name of the stream.
        subject: The message's subject.
        sequence: Its sequence there.
        time: When it was stored, in nanoseconds since 1970.
    """
    own = block[: -2 * len(END_LINE)] if block.endswith(END_LINE + END_LINE) else VERSION_LINE[: -len(END_LINE)]
    return b"%b\r\nNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n\r\n" % (
        own,
        stream,
        subject,
        sequence,
        format_moment(time).encode(),
    )
