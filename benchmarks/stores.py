"""Stores to measure with, written by the project's own writers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import SliceLimits
from stantools.store.serverinfo import new_server_info
from stantools.store.storewriter import StoreWriter

SLICE_BYTES = 64 << 20
CLUSTER_ID = "bench-cluster"
#: The time of the first message, in nanoseconds.
TIME = 1795219649260503021
_BATCH = 4096
_TEXT = b'{"id":%d,"region":"%s","state":"open","amount":%d,"note":"%s"}'


def payloads(size: int, count: int = _BATCH) -> list[bytes]:
    """Makes different texts that look like JSON, all of one size."""
    source = random.Random(size)
    made = []
    for number in range(count):
        note = source.randbytes(size // 2 + 1).hex().encode()
        text = _TEXT % (number, source.choice((b"eu", b"us", b"asia")), source.randrange(1 << 30), note)
        made.append(text[:size])
    return made


def make_store(
    directory: Path, messages: int, size: int, *, channels: int = 1, slice_bytes: int = SLICE_BYTES, start: int = 1
) -> Path:
    """Writes a healthy store.

    Args:
        directory: Where; must not exist.
        messages: How many messages in all; every channel gets the same share.
        size: Bytes of each message.
        channels: How many channels; each has one durable that is a few messages behind.
        slice_bytes: When a slice is full.
        start: Sequence of the first message.

    Returns:
        The directory.
    """
    directory.mkdir(parents=True)
    crc = Crc()
    texts = payloads(size)
    store = StoreWriter(directory, crc)
    store.write_server(new_server_info(CLUSTER_ID))
    store.write_clients([pb.ClientInfo(id=b"bench", hb_inbox=b"_INBOX.bench")])
    share = max(messages // channels, 1)
    end = start + share
    for number in range(channels):
        name = b"orders.eu.%05d" % number
        state = pb.SubState(
            id=1, client_id=b"bench", inbox=b"_INBOX.1", ack_inbox=b"_INBOX.2", max_in_flight=1024,
            ack_wait_in_secs=30, durable_name=b"billing", last_sent=end - 1, is_durable=True,
        )  # fmt: skip
        store.write_subs(name, [(state, range(max(start, end - 10), end))])
        with store.slices(name, SliceLimits(max_bytes=slice_bytes), last_sequence=start - 1) as writer:
            for first in range(start, end, _BATCH):
                sequences = np.arange(first, min(first + _BATCH, end), dtype=np.uint64)
                times = TIME + sequences.astype(np.int64) * 10_007
                writer.append(sequences, times, None, texts[: len(sequences)])
    return directory


def first_slices(store: Path, directory: Path, count: int) -> Path:
    """Makes a store of the first slices of a store that has one channel; the files are the same ones, linked."""
    directory.mkdir()
    for path in sorted(store.rglob("*")):
        target = directory / path.relative_to(store)
        if path.is_dir():
            target.mkdir()
        elif not path.name.startswith("msgs.") or int(path.name.split(".")[1]) <= count:
            os.link(path, target)
    return directory


def data_files(store: Path) -> list[Path]:
    """The data files of all slices."""
    return sorted(store.rglob("msgs.*.dat"))


def index_files(store: Path) -> list[Path]:
    """The indexes of all slices."""
    return sorted(store.rglob("msgs.*.idx"))


def without_indexes(store: Path, directory: Path) -> Path:
    """Makes a store with the same files, linked, but for the indexes: a server would read all data."""
    directory.mkdir()
    for path in sorted(store.rglob("*")):
        target = directory / path.relative_to(store)
        if path.is_dir():
            target.mkdir()
        elif path.suffix != ".idx":
            os.link(path, target)
    return directory


def total_size(files: list[Path]) -> int:
    """Bytes of some files."""
    return sum(path.stat().st_size for path in files)
