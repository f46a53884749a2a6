"""Single records of a message block (jetstream-migration.md section 5.2), for those that come one by one.

Messages by the thousand are written by the kernels. A *tombstone* takes out a message that is stored elsewhere
(jetstream-server.md section 20); servers know it from 2.10 on.
"""

from __future__ import annotations

from stantools.streamfiles import kernels
from stantools.streamfiles.layout import EMPTY_RECORD_SIZE, SKIPPED, TOMBSTONE


def tombstone(sequence: int, time: int, key: bytes) -> bytes:
    """Returns the record that takes out a message; `time` is that of the message."""
    return kernels.encode_record(sequence | TOMBSTONE, time, b"", b"", b"", key)


def erased(sequence: int, size: int, random: bytes, key: bytes) -> bytes:
    """Returns the record of `size` bytes that a message is overwritten with.

    Args:
        sequence: The sequence of the message.
        size: The size of its record.
        random: What its content becomes, long enough.
        key: Of the block.
    """
    return kernels.encode_record(sequence | SKIPPED, 0, b"", b"", random[: size - EMPTY_RECORD_SIZE], key)
