"""What a published message carries besides its own headers, and how it is told from any other message.

    Nats-Msg-Id: orders:1:42                   channel, generation and sequence there: what it is
    Nats-Expected-Last-Sequence: 41            where it goes: the server stores it as 42 or not at all

With the second a message can be sent any number of times and is stored once, at its own place; unlike the first it does
not depend on how long the server remembers. A sequence that the source lacks is taken by a filler, a message without
payload that is deleted again:

    Nats-Streaming-Filler: 1
    Nats-Expected-Last-Sequence: 42
"""

from __future__ import annotations

from typing import Final

from stantools.migration import headers

MESSAGE_ID: Final = b"Nats-Msg-Id"
EXPECTED_LAST: Final = b"Nats-Expected-Last-Sequence"
FILLER: Final = b"Nats-Streaming-Filler"

#: Lines that publishing adds to a message's own header block.
_ADDED: Final = tuple(name + b": " for name in (MESSAGE_ID, EXPECTED_LAST))
FILLER_START: Final = headers.VERSION_LINE + FILLER + b": 1\r\n"


def identity(channel: bytes, generation: int) -> bytes:
    """Returns what the ids of a channel's messages begin with."""
    return b"%b:%d:" % (headers.safe_value(channel), generation)


def guarded(block: bytes, identity: bytes, channel_sequence: int, expected_last: int) -> bytes:
    """Returns a message's header block with the lines that publishing adds.

    Args:
        block: Its own one, from `headers.header_block`; empty if it needs none.
        identity: From `identity`.
        channel_sequence: Its sequence in the channel.
        expected_last: The stream's last sequence before it.
    """
    own = block[: -len(headers.END_LINE)] if block else headers.VERSION_LINE
    return b"%b%b: %b%d\r\n%b: %d\r\n\r\n" % (own, MESSAGE_ID, identity, channel_sequence, EXPECTED_LAST, expected_last)


def filler(expected_last: int) -> bytes:
    """Returns the header block of a filler behind the stream's last sequence."""
    return b"%b%b: %d\r\n\r\n" % (FILLER_START, EXPECTED_LAST, expected_last)


def is_filler(block: bytes, data: bytes) -> bool:
    """Tells whether a message with this header block and payload is a filler."""
    return not data and block.startswith(FILLER_START)


def own_block(block: bytes) -> bytes:
    """Returns a header block without the lines that publishing adds: empty if nothing is left."""
    if not block:
        return b""
    lines = block.split(b"\r\n")
    kept = [line for line in lines if not line.startswith(_ADDED)]
    return b"" if len(kept) == 3 else b"\r\n".join(kept)
