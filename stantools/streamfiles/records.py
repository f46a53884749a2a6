"""Single records of a message block (jetstream-migration.md section 5.2), for those that come one by one.

Messages by the thousand are written by the kernels. A *tombstone* takes out a message that is stored elsewhere
(jetstream-server.md section 20); servers know it from 2.10 on.
"""

from __future__ import annotations

import struct
from typing import Final

from stantools.streamfiles import kernels
from stantools.streamfiles.layout import (
    EMPTY_RECORD_SIZE,
    HAS_HEADERS,
    HASH_SIZE,
    HEADER_LENGTH_SIZE,
    RECORD_HEAD_SIZE,
    SKIPPED,
    TOMBSTONE,
)

_HEAD: Final = struct.Struct("<IQqH")
_SIZE: Final = struct.Struct("<I")
assert _HEAD.size == RECORD_HEAD_SIZE


def record_size(subject: bytes, header: bytes, payload: bytes) -> int:
    """Returns the size of a message's record."""
    size = EMPTY_RECORD_SIZE + len(subject) + len(header) + len(payload)
    return size + HEADER_LENGTH_SIZE if header else size


def encode_record(sequence: int, time: int, subject: bytes, header: bytes, payload: bytes, key: bytes) -> bytes:
    """Returns a record.

    Args:
        sequence: Its sequence, with flags.
        time: Nanoseconds since 1970.
        subject: The subject.
        header: The header block; empty for none.
        payload: The payload.
        key: Of the block, 32 bytes.
    """
    size = record_size(subject, header, payload)
    head = _HEAD.pack(size | HAS_HEADERS if header else size, sequence, time, len(subject))
    digest = kernels.hash64(b"%b%b%b%b" % (head[4:20], subject, header, payload), key).to_bytes(HASH_SIZE, "little")
    if header:
        return b"%b%b%b%b%b%b" % (head, subject, _SIZE.pack(len(header)), header, payload, digest)
    return b"%b%b%b%b" % (head, subject, payload, digest)


def tombstone(sequence: int, time: int, key: bytes) -> bytes:
    """Returns the record that takes out a message; `time` is that of the message."""
    return encode_record(sequence | TOMBSTONE, time, b"", b"", b"", key)


def erased(sequence: int, size: int, random: bytes, key: bytes) -> bytes:
    """Returns the record of `size` bytes that a message is overwritten with.

    Args:
        sequence: The sequence of the message.
        size: The size of its record.
        random: What its content becomes, long enough.
        key: Of the block.
    """
    return encode_record(sequence | SKIPPED, 0, b"", b"", random[: size - EMPTY_RECORD_SIZE], key)


def decode_record(data: bytes, key: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Returns subject, header block and payload of a record; None if it is none, or its hash is another one."""
    if len(data) < EMPTY_RECORD_SIZE:
        return None
    word, _, _, subject_size = _HEAD.unpack_from(data)
    end = len(data) - HASH_SIZE
    begin = RECORD_HEAD_SIZE + subject_size
    if word & HAS_HEADERS - 1 != len(data) or begin > end:
        return None
    subject, header = data[RECORD_HEAD_SIZE:begin], b""
    if word & HAS_HEADERS:
        if begin + HEADER_LENGTH_SIZE > end:
            return None
        (size,) = _SIZE.unpack_from(data, begin)
        begin += HEADER_LENGTH_SIZE
        if size > end - begin:
            return None
        header = data[begin : begin + size]
        begin += size
    payload = data[begin:end]
    text = b"%b%b%b%b" % (data[4:20], subject, header, payload)
    if kernels.hash64(text, key) != int.from_bytes(data[end:], "little"):
        return None
    return subject, header, payload
