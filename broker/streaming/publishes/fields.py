"""Encoded messages that get more fields: in protobuf, these are bytes at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.format.fieldscan import encode_varint
from stantools.nats.frames import Payloads

if TYPE_CHECKING:
    from collections.abc import Sequence

_REDELIVERED = b"\x30\x01\x38"
#: Bytes that a message gets at most when it is delivered again.
REDELIVERED_SIZE: Final = len(_REDELIVERED) + 5


def redelivered(payload: bytes, count: int) -> bytes:
    """Returns a stored message as it is delivered again (streaming-protocol.md section 2, MsgProto).

    Args:
        payload: The encoded message, with neither flag nor count.
        count: 1 for the first redelivery; 0 sets the flag only.
    """
    return payload + (_REDELIVERED + encode_varint(count) if count else _REDELIVERED[:-1])


def redelivered_block(block: Payloads, rows: Sequence[int], counts: Sequence[int]) -> Payloads:
    """Returns some messages of a block as they are delivered again; a count for each row."""
    pieces = [redelivered(block.payload(row), count) for row, count in zip(rows, counts, strict=True)]
    sizes = np.array([len(piece) for piece in pieces], np.uint32)
    return Payloads(b"".join(pieces), np.cumsum(sizes, dtype=np.int64) - sizes, sizes)


def publish_ack(guid: bytes, error: bytes = b"") -> bytes:
    """Returns an encoded PubAck."""
    return failed(b"\x0a" + encode_varint(len(guid)) + guid if guid else b"", error)


def failed(ack: bytes, error: bytes) -> bytes:
    """Returns an encoded PubAck without error as one with an error."""
    return ack + b"\x12" + encode_varint(len(error)) + error if error else ack
