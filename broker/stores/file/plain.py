"""The kernel in Python: always there, and the reference for the compiled one. Use it through `kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stantools.format import logencode
from stantools.format.crc import Crc

NAME: Final = "plain"


def encode_flow(kind: int, number: int, sequences: Sequence[int], crc: Crc) -> bytes:
    """Encodes that messages were sent to a subscription, or acknowledged by it (filestore.md sections 2.2 and 3.4).

    Args:
        kind: `SubRecord.MSG` or `SubRecord.ACK`.
        number: The subscription's id.
        sequences: Of the messages.
        crc: The store's CRC.

    Returns:
        The records one after the other.

    Raises:
        OverflowError: A number does not fit into 64 bits.
    """
    if number < 0 or number >> 64 or any(each < 0 or each >> 64 for each in sequences):
        raise OverflowError("a number does not fit into 64 bits")
    return logencode.encode_flow(kind, number, sequences, crc)
