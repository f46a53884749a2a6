"""Single records of a message block (jetstream-migration.md section 5.2).

Messages in bulk are written by the kernels. A *tombstone* deletes a message that is stored elsewhere
(jetstream-server.md section 20); servers know it from 2.10 on.
"""

from __future__ import annotations

from stantools.streamfiles import kernels
from stantools.streamfiles.layout import EMPTY_RECORD_SIZE, SKIPPED, TOMBSTONE


def tombstone(sequence: int, time: int, key: bytes) -> bytes:
    """Returns the record that deletes a message; `time` is that of the message."""
    return kernels.encode_record(sequence | TOMBSTONE, time, b"", b"", b"", key)


def erased(sequence: int, size: int, random: bytes, key: bytes) -> bytes:
    """Returns the record of `size` bytes that overwrites a message of the same size.

    `random` provides its content and is at least as long; `key` is that of the block.
    """
    return kernels.encode_record(sequence | SKIPPED, 0, b"", b"", random[: size - EMPTY_RECORD_SIZE], key)
