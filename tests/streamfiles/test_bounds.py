"""The compiled kernels touch nothing outside of the buffers that they are given, and which kernels are used."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import ModuleType

import numpy as np
import pytest

from stantools.streamfiles.layout import OpenBlock, RecordColumns, RecordFlaw, WriteStop
from tests.fences import fenced
from tests.streamfiles.making import TIME, Item, batch
from tests.streamfiles.test_records import KEY, RECORD_5, RECORD_6, SKIP_7

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="protects pages with mprotect")


@pytest.mark.parametrize("at_end", [False, True])
def test_hashing(compiled: ModuleType, at_end: bool) -> None:
    for size in range(100):
        with fenced(bytes(range(size)), at_end=at_end) as view:
            for portable in (False, True):
                assert compiled.hash64(view, KEY, portable) == compiled.hash64(bytes(range(size)), KEY, portable)
            assert compiled.crc32c(view) == compiled.crc32c(bytes(range(size)))


@pytest.mark.parametrize("at_end", [False, True])
def test_reading(compiled: ModuleType, at_end: bool) -> None:
    """Damage that claims to be longer than it is included."""
    columns = RecordColumns(9)
    block = RECORD_5 + RECORD_6 + SKIP_7
    with fenced(block, at_end=at_end) as view:
        assert compiled.scan_records(view, 0, KEY, columns) == (3, 133, RecordFlaw.NONE)
    blocks = [block[:size] for size in range(len(block))]
    for place in (0, 1, 2, 3, 20, 21, 42, 45, 62, 63, 71, 72, 73, 74, 103, 106, 123, 124):
        for value in (0, 1, 0x20, 0x7F, 0x80, 0x82, 0xFF):
            blocks.append(block[:place] + bytes([value]) + block[place + 1 :])
    for bad in blocks:
        with fenced(bad, at_end=at_end) as view:
            rows, position, flaw = compiled.scan_records(view, 0, KEY, columns)
            assert (rows, position, flaw) == compiled.scan_records(bad, 0, KEY, columns)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("origin", [False, True])
def test_writing(compiled: ModuleType, at_end: bool, origin: bool) -> None:
    """Source and block are exactly as large as they must be."""
    of = batch([Item(3, TIME, b"a", b"reply"), Item(6, -TIME, b"b" * 77), Item(7, 0, b"", b"r")])
    whole = OpenBlock(np.zeros(10_000 + 60, np.uint8), 10_000, KEY)
    row, live, stop = compiled.encode_records(of, 0, whole, origin)
    end = whole.position
    assert (row, stop) == (3, WriteStop.DONE)
    with fenced(bytes(of.buffer), at_end=at_end) as source, fenced(bytes(end), at_end=at_end) as content:
        target = np.frombuffer(content, np.uint8)
        of.buffer = source
        block = OpenBlock(target, 10_000, KEY)
        assert compiled.encode_records(of, 0, block, origin) == (row, live, stop)
        assert block.position == end
        assert target.tobytes() == whole.content[:end].tobytes()
        for room in range(30, end):
            with suppress(ValueError):  # the skip records do not fit
                assert (
                    compiled.encode_records(of, 0, OpenBlock(target[:room], 10_000, KEY), origin)[2] is WriteStop.FULL
                )
                behind = whole.content[room:end].tobytes()
                assert target[room:].tobytes() == behind, "something was written behind the end"
        del block, target, of
    with fenced(bytes(300), at_end=at_end) as content:
        block = OpenBlock(np.frombuffer(content, np.uint8), 300, KEY)
        compiled.encode_skips(block, 1, 10, 0)
        assert block.position == 300
        del block
    with fenced(b"hello" * 20_000, at_end=at_end) as data, fenced(bytes(100_016), at_end=at_end) as block:
        target = np.frombuffer(block, np.uint8)
        assert compiled.frame(data, target, 0) == 100_016
        del target
