"""Stores to measure with, written by the project's own writers."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast import ServerOptions
from stantools.store.limits import ONE_SLICE, UNLIMITED, SliceLimits, StoreLimits
from stantools.store.serverinfo import new_server_info
from stantools.store.storewriter import StoreWriter

SLICE_BYTES = 64 << 20
CLUSTER_ID = "bench-cluster"
#: The server that would start with these stores.
SERVER = ServerOptions(cluster_id=CLUSTER_ID, limits=StoreLimits(0, UNLIMITED))
#: The time of the first message, in nanoseconds.
TIME = 1795219649260503021
_BATCH = 4096
_TEXT = b'{"id":%d,"region":"%s","state":"open","amount":%d,"note":"%s"}'


def payloads(size: int) -> list[bytes]:
    """Makes different texts that look like JSON, all of one size."""
    source = random.Random(size)
    made = []
    for number in range(_BATCH):
        note = source.randbytes(size // 2 + 1).hex().encode()
        text = _TEXT % (number, source.choice((b"eu", b"us", b"asia")), source.randrange(1 << 30), note)
        made.append(text[:size])
    return made


def make_store(directory: Path, messages: int, size: int, *, channels: int = 1, slice_bytes: int = SLICE_BYTES) -> Path:
    """Writes a healthy store.

    Args:
        directory: Where; must not exist.
        messages: How many messages in all; every channel gets the same share.
        size: Bytes of each message.
        channels: How many channels; each has one durable that is a few messages behind.
        slice_bytes: When a slice is full.

    Returns:
        The directory.
    """
    store = _begin(directory)
    texts = payloads(size)
    for number in range(channels):
        _fill(
            store, b"orders.eu.%05d" % number, max(messages // channels, 1), texts, SliceLimits(max_bytes=slice_bytes)
        )
    return directory


def make_large_store(directory: Path, size: int) -> Path:
    """Writes a store of about `size` bytes: half in usual slices of 1 KiB messages, half in one slice of small ones."""
    store = _begin(directory)
    _fill(store, b"usual.slices", size // 2 // 1110, payloads(1024), SliceLimits(max_bytes=SLICE_BYTES))
    _fill(store, b"one.slice", size // 2 // 196, payloads(128), ONE_SLICE)
    return directory


def _begin(directory: Path) -> StoreWriter:
    directory.mkdir(parents=True)
    store = StoreWriter(directory, Crc())
    store.write_server(new_server_info(CLUSTER_ID))
    store.write_clients([pb.ClientInfo(id=b"bench", hb_inbox=b"_INBOX.bench")])
    return store


def _fill(store: StoreWriter, channel: bytes, messages: int, texts: list[bytes], limits: SliceLimits) -> None:
    state = pb.SubState(
        id=1, client_id=b"bench", inbox=b"_INBOX.1", ack_inbox=b"_INBOX.2", max_in_flight=1024,
        ack_wait_in_secs=30, durable_name=b"billing", last_sent=messages, is_durable=True,
    )  # fmt: skip
    store.write_subs(channel, [(state, range(max(1, messages - 9), messages + 1))])
    with store.slices(channel, limits) as writer:
        for first in range(1, messages + 1, _BATCH):
            sequences = np.arange(first, min(first + _BATCH, messages + 1), dtype=np.uint64)
            times = TIME + sequences.astype(np.int64) * 10_007
            writer.append(sequences, times, None, texts[: len(sequences)])


def linked(store: Path, directory: Path, wanted: Callable[[Path], bool]) -> Path:
    """Makes a store of some of the files of another one; they are the same files, linked."""
    directory.mkdir()
    for path in sorted(store.rglob("*")):
        target = directory / path.relative_to(store)
        if path.is_dir():
            target.mkdir()
        elif wanted(path):
            os.link(path, target)
    return directory


def without_indexes(store: Path, directory: Path) -> Path:
    """Makes a store without indexes, which a server would rebuild from all data."""
    return linked(store, directory, lambda path: path.suffix != ".idx")


def first_slices(store: Path, directory: Path, count: int) -> Path:
    """Makes a store of the first slices of each channel."""
    return linked(
        store, directory, lambda path: not path.name.startswith("msgs.") or int(path.name.split(".")[1]) <= count
    )


def first_channels(store: Path, directory: Path, count: int) -> Path:
    """Makes a store of the first channels of one that `make_store` has written."""
    linked(store, directory, lambda path: path.parent == store or int(path.parent.name.rpartition(".")[2]) < count)
    for channel in directory.iterdir():
        if channel.is_dir() and not any(channel.iterdir()):
            channel.rmdir()
    return directory


def with_torn_end(store: Path, directory: Path) -> Path:
    """Makes a store in which the last data file ends inside a record and has no index."""
    last = max(data_files(store))
    linked(store, directory, lambda path: path not in (last, last.with_suffix(".idx")))
    torn = directory / last.relative_to(store)
    shutil.copyfile(last, torn)
    os.truncate(torn, torn.stat().st_size - 5)
    return directory


def data_files(store: Path) -> list[Path]:
    """The data files of all slices."""
    return sorted(store.rglob("msgs.*.dat"))


def index_files(store: Path) -> list[Path]:
    """The indexes of all slices."""
    return sorted(store.rglob("msgs.*.idx"))


def all_files(store: Path) -> list[Path]:
    """Every file."""
    return sorted(path for path in store.rglob("*") if path.is_file())


def total_size(files: list[Path]) -> int:
    """Bytes of some files."""
    return sum(path.stat().st_size for path in files)
