"""S2 as real servers write it: all that snappy knows, and copies that repeat an offset."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.streamfiles.kernels import decompress_s2
from stantools.streamfiles.s2 import decompress
from tests.oracles import s2 as oracle

repetitive = st.lists(st.sampled_from((b"a", b"bc", b"orders.new", bytes(70), b"x" * 300)), max_size=60).map(b"".join)


@given(st.binary(max_size=300) | repetitive)
def test_snappy_is_s2(data: bytes) -> None:
    cramjam = pytest.importorskip("cramjam")
    assert decompress(bytes(cramjam.snappy.compress_raw(data)), len(data)) == data


def test_a_copy_repeats_the_last_offset() -> None:
    rows: list[tuple[bytes, int]] = [
        (b"\x01\x00", 4),
        (b"\x11\x00", 8),
        (b"\x15\x00\x02", 10),
        (b"\x19\x00\x01\x00", 261),
        (b"\x1d\x00\x01\x00\x00", 65541),
    ]
    for copy, length in rows:
        size = 3 + 4 + length
        head = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
        data = head + b"\x08abc" + b"\x01\x03" + copy
        assert decompress(data, size) == (b"abc" * size)[:size], (copy, length)


def test_damage_is_said() -> None:
    rows: list[bytes] = [
        b"",
        b"\x80" * 6,
        b"\x05\x08abc",
        b"\x04\x08abc\x01\x09",
        b"\x07\x01\x00",
        b"\x04\x0cab",
        b"\x03\x08abc\x00d",
        b"\xff\xff\xff\x7f",
    ]
    for data in rows:
        with pytest.raises(ValueError, match="it "):
            decompress(data, 1 << 16)
            pytest.fail(f"accepted: {data!r}")


@given(st.binary(max_size=60) | repetitive.map(lambda data: bytes((len(data) & 0x7F,)) + data))
def test_the_kernel_agrees_with_the_oracle(data: bytes) -> None:
    content, complete = decompress_s2(data, 1000)
    assert len(content) <= 1000
    try:
        expected = oracle.decompress(data, 1000)
    except ValueError:
        assert not complete
    else:
        assert (content, complete) == (expected, True)


@given(st.binary(max_size=60))
def test_nothing_else_comes_of_garbage(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert len(decompress(data, 1000)) <= 1000
