"""Fields that are added to encoded messages: in protobuf, bytes at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.format.fieldscan import encode_varint
from stantools.nats.frames import Payloads

if TYPE_CHECKING:
    from collections.abc import Sequence

_REDELIVERED = b"\x30\x01\x38"
#: most bytes that a redelivery adds to a message
REDELIVERED_SIZE: Final = len(_REDELIVERED) + 5


def redelivered(payload: bytes, count: int) -> bytes:
    """Returns the redelivered form of a stored message (streaming-protocol.md section 2, MsgProto).

    `count` is 1 for the first redelivery; 0 sets only the flag.
    """
    return payload + (_REDELIVERED + encode_varint(count) if count else _REDELIVERED[:-1])


def redelivered_block(block: Payloads, rows: Sequence[int], counts: Sequence[int]) -> Payloads:
    """Returns the redelivered form of rows of a block, with one count per row."""
    pieces = [redelivered(block.payload(row), count) for row, count in zip(rows, counts, strict=True)]
    sizes = np.array([len(piece) for piece in pieces], np.uint32)
    return Payloads(b"".join(pieces), np.cumsum(sizes, dtype=np.int64) - sizes, sizes)


def publish_ack(guid: bytes, error: bytes = b"") -> bytes:
    return failed(b"\x0a" + encode_varint(len(guid)) + guid if guid else b"", error)


def failed(ack: bytes, error: bytes) -> bytes:
    """Adds an error to an encoded PubAck without one."""
    return ack + b"\x12" + encode_varint(len(error)) + error if error else ack
