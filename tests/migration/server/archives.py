"""Small stream archives for the tests of restoring, written straight from the format's description."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from stantools.format.crc import CASTAGNOLI, Crc
from stantools.streamfiles import highwayhash
from tests.oracles.highway import hash_padded
from tests.streamfiles.making import STREAM_DEFAULTS

_crc32c = Crc(CASTAGNOLI).function
START_NS = 1_600_000_000_123_456_789


def time_text(ns: int) -> str:
    """A time as servers write it."""
    moment = datetime.fromtimestamp(ns // 10**9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ns % 10**9:09d}Z"


@dataclass
class Archive:
    """What restoring needs.

    Attributes:
        name: The stream's name.
        config: Its configuration.
        state: The state that it must have afterwards.
        framed: The archive.
    """

    name: str
    config: dict[str, Any]
    state: dict[str, Any]
    framed: bytes = field(repr=False)

    def parts(self, size: int = 1 << 20) -> list[memoryview]:
        """The archive in parts."""
        view = memoryview(self.framed)
        return [view[start : start + size] for start in range(0, len(view), size)]


def build(
    name: str = "ORDERS",
    subject: str = "orders",
    messages: int = 100,
    size: int = 64,
    *,
    first: int = 1,
    block: int = 2000,
    consumers: tuple[str, ...] = (),
    corrupt: int | None = None,
    **config: Any,
) -> Archive:
    """An archive with messages of equal size, without gaps.

    Args:
        name: The stream.
        subject: The subject of all messages.
        messages: How many.
        size: Bytes of each payload.
        first: The first sequence.
        block: Messages in a block.
        consumers: Names of durable consumers that have received nothing yet.
        corrupt: The record with this number, counted from 0, gets a wrong hash.
        config: More members for the stream's configuration.
    """
    settings = {"name": name, "subjects": [subject], **STREAM_DEFAULTS, **config}
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add_meta(tar, "", {"Created": time_text(START_NS), **settings}, highwayhash.stream_key(name))
        for index, begin in enumerate(range(0, messages, block), 1):
            count = min(block, messages - begin)
            _add(tar, f"msgs/{index}.blk", _block(name, subject, index, first + begin, count, size, corrupt, begin))
        for consumer in consumers:
            meta = {
                "Created": time_text(START_NS),
                "Name": consumer,
                "durable_name": consumer,
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "ack_wait": 30_000_000_000,
                "max_deliver": -1,
                "max_ack_pending": 1000,
                "replay_policy": "instant",
                "num_replicas": 0,
            }
            _add_meta(tar, f"obs/{consumer}/", meta, highwayhash.consumer_key(name, consumer))
    state = {
        "messages": messages,
        "bytes": messages * (30 + len(subject) + size),
        "first_seq": first,
        "first_ts": time_text(START_NS + first),
        "last_seq": first + messages - 1,
        "last_ts": time_text(START_NS + first + messages - 1),
        "consumer_count": len(consumers),
    }
    return Archive(name, settings, state, frame(output.getvalue()))


def payload(sequence: int, size: int) -> bytes:
    """The payload of a message."""
    return (b"%d " % sequence * size)[:size]


def frame(data: bytes) -> bytes:
    """Stored chunks behind a stream identifier."""
    chunks = [b"\xff\x06\x00\x00sNaPpY"]
    for start in range(0, len(data), 65536):
        chunk = data[start : start + 65536]
        crc = _crc32c(chunk)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        chunks.append(b"\x01" + (len(chunk) + 4).to_bytes(3, "little") + struct.pack("<I", masked) + chunk)
    return b"".join(chunks)


def _block(
    name: str, subject: str, index: int, first: int, count: int, size: int, corrupt: int | None, begin: int
) -> bytes:
    topic = subject.encode()
    heads = [struct.pack("<Qq", sequence, START_NS + sequence) for sequence in range(first, first + count)]
    datas = [payload(sequence, size) for sequence in range(first, first + count)]
    length = 16 + len(topic) + size
    rows = -(-length // 32)
    padded = b"".join((head + topic + data).ljust(rows * 32, b"\0") for head, data in zip(heads, datas, strict=True))
    packets = np.frombuffer(padded, "<u8").reshape(-1, 4)
    hashes = hash_padded(
        packets, np.arange(count, dtype=np.int64) * rows, np.full(count, length), highwayhash.block_key(name, index)
    )
    if corrupt is not None and begin <= corrupt < begin + count:
        hashes[corrupt - begin] ^= np.uint64(1)
    record = struct.pack("<I", length + 14)
    return b"".join(
        record + head + struct.pack("<H", len(topic)) + topic + data + struct.pack("<Q", int(digest))
        for head, data, digest in zip(heads, datas, hashes, strict=True)
    )


def _add_meta(tar: tarfile.TarFile, folder: str, meta: dict[str, Any], key: bytes) -> None:
    text = json.dumps(meta, separators=(",", ":")).encode()
    padded = np.frombuffer(text.ljust(-(-len(text) // 32) * 32, b"\0"), "<u8").reshape(-1, 4)
    digest = hash_padded(padded, np.zeros(1, np.int64), np.array([len(text)]), key)[0]
    _add(tar, f"{folder}meta.inf", text)
    _add(tar, f"{folder}meta.sum", struct.pack("<Q", int(digest)).hex().encode())


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size = len(content)
    member.mode = 0o600
    tar.addfile(member, io.BytesIO(content))
