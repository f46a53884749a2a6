"""Stores with a channel whose messages have chosen sequences and times."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.store.serverinfo import encode_server_file, new_server_info

CRC = Crc()
VERSION = b"\1\0\0\0"
SECOND, DAY, YEAR = 10**9, 86400 * 10**9, 365 * 86400 * 10**9
NOW = 1_795_000_000 * SECOND


def write_channel(
    root: Path,
    times: Sequence[int],
    sequences: Sequence[int] | None = None,
    *,
    channel: str = "c",
    payloads: Sequence[bytes] | None = None,
    each: int = 1 << 30,
    index: bool = True,
) -> Path:
    """Writes a store with one channel, `each` messages in a slice, and returns the store."""
    folder = root / channel
    folder.mkdir(parents=True, exist_ok=True)
    (root / "server.dat").write_bytes(encode_server_file(new_server_info("test-cluster"), CRC))
    (root / "clients.dat").write_bytes(VERSION)
    (folder / "subs.dat").write_bytes(VERSION)
    numbers = list(sequences or range(1, len(times) + 1))
    data = list(payloads or [b"payload"] * len(times))
    for number, low in enumerate(range(0, max(len(times), 1), each), 1):
        part = slice(low, low + each)
        records, sizes = kernels.encode_messages(
            os.fsencode(channel), numbers[part], list(times[part]), None, data[part], CRC
        )
        (folder / f"msgs.{number}.dat").write_bytes(VERSION + bytes(records))
        if index:
            steps = sizes.astype(np.int64) + RECORD_HEADER_SIZE
            offsets = len(VERSION) + np.cumsum(steps) - steps
            entries = kernels.encode_index(numbers[part], offsets, list(times[part]), sizes, CRC)
            (folder / f"msgs.{number}.idx").write_bytes(VERSION + bytes(entries))
    return root
