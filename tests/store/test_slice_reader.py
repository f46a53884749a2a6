"""Scanning slices: batches stay small, whatever the sizes of the messages, and damage ends up the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.format import kernels
from stantools.format.crc import IEEE, Crc
from stantools.format.message_batch import MessageBatch
from stantools.store.mapping import WINDOW
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile

CRC = Crc(IEEE)


def events(data: bytes, most: int = WINDOW) -> tuple[list[int], list[tuple[int, int, str, int]], list[int]]:
    """Scans and returns the offsets of good records, the damages, and the bytes of each batch."""
    good: list[int] = []
    bad: list[tuple[int, int, str, int]] = []
    sizes: list[int] = []
    for event in SliceFile(memoryview(data), b"a", CRC).records(max_bytes=most):
        if isinstance(event, DamagedRange):
            bad.append((event.offset, event.length, event.kind.value, event.stop))
        else:
            assert isinstance(event, MessageBatch)
            good += event.offset.tolist()
            size = int(event.size.sum(dtype=np.int64)) + 8 * event.capacity
            sizes.append(size if event.capacity > 1 else 0)
    return good, bad, sizes


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_small_batches_find_the_same(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 30, 500]), max_size=40))
    payloads = [b"p" * size for size in sizes]
    numbers = list(range(1, len(sizes) + 1))
    encoded, _ = kernels.encode_messages(b"a", numbers, numbers, None, payloads, CRC)
    content = bytearray(b"\1\0\0\0" + bytes(encoded))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(4, len(content)))
        blow = data.draw(st.one_of(st.binary(min_size=1, max_size=12), st.integers(1, 40).map(bytes)))
        content[place : place + len(blow)] = blow
    del content[data.draw(st.integers(max(len(content) - 60, 4), len(content))) :]
    good, bad, _ = events(bytes(content))
    most = data.draw(st.integers(1, 700))
    again = events(bytes(content), most)
    assert again[:2] == (good, bad)
    assert max(again[2], default=0) <= most
