"""Messages of a table to records and back, many at once."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.notation import format_moment
from stantools.streamfiles import highwayhash
from stantools.streamfiles.headers import located
from stantools.streamfiles.layout import MAX_RECORD_SIZE, SKIPPED, MessagePlaces
from tests.oracles.streamfiles import decode_record, encode_record
from tests.streamfiles.conftest import KERNELS

KEY = highwayhash.block_key("ORDERS", 1)
TIME = 1_600_000_000_000_000_001

messages = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=20),
        st.sampled_from((b"", b"NATS/1.0\r\n\r\n", b"x" * 90)),
        st.binary(max_size=99),
    ),
    max_size=8,
)


def table(rows: int) -> MessagePlaces:
    return MessagePlaces(*np.zeros((5, rows), np.int32))


@settings(max_examples=100, deadline=None)
@given(messages, st.integers(1, 1 << 61))
def test_records_are_found_where_they_were_put(of: list[tuple[bytes, bytes, bytes]], first: int) -> None:
    expected = [encode_record(first + row, TIME, *each, KEY) for row, each in enumerate(of)]
    records = b"".join(expected)
    sizes = np.array([len(each) for each in expected], np.uint32)
    starts = (np.cumsum(sizes) - sizes).astype(np.uint32)
    for kernel in KERNELS.both:
        assert [kernel.encode_record(first + row, TIME, *each, KEY) for row, each in enumerate(of)] == expected
        assert [kernel.decode_record(each, KEY) for each in expected] == of
        found = table(len(of))
        assert kernel.find_messages(records, starts, sizes, KEY, found) == len(of)
        for row, parts in enumerate(of):
            subject, subject_size, header, start, size = (int(column[row]) for column in found)
            body = records[start : start + size]
            assert (records[subject : subject + subject_size], body[:header], body[header:]) == parts


@settings(max_examples=300, deadline=None)
@given(
    messages,
    st.lists(st.tuples(st.integers(0, 500), st.binary(max_size=2), st.integers(0, 2)), max_size=2),
    st.lists(st.tuples(st.integers(0, 7), st.integers(-3, 40), st.integers(-3, 40)), max_size=1),
)
def test_a_damaged_record_ends_the_search(of: Any, damages: Any, shifts: Any) -> None:
    block = b"".join(encode_record(row, TIME, *each, KEY) for row, each in enumerate(of, 1))
    sizes = np.array([len(encode_record(1, TIME, *each, KEY)) for each in of], np.int64)
    starts = np.cumsum(sizes) - sizes
    for at, put, cut in damages:
        block = block[:at] + put + block[at + cut :]
    for row, place, size in shifts:
        starts[row : row + 1] += place
        sizes[row : row + 1] += size
    starts, sizes = np.maximum(starts, 0).astype(np.uint32), np.maximum(sizes, 0).astype(np.uint32)
    good = 0
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        record = block[start : start + size]
        assert len({kernel.decode_record(record, KEY) for kernel in KERNELS.both}) == 1
        if start + size > len(block) or decode_record(block[start : start + size], KEY) is None:
            break
        good += 1
    results = []
    for kernel in KERNELS.both:
        found = table(len(of))
        assert kernel.find_messages(block, starts, sizes, KEY, found) == good
        results.append([column.tolist() for column in found])
    assert all(each == results[0] for each in results)


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=20),
    st.sampled_from((b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n", b"no end", b"\r\n\r\n", b"\r\n")),
    st.binary(max_size=40),
    st.sampled_from((1, 1 << 61, (1 << 61) | SKIPPED)),
    st.one_of(
        st.sampled_from((0, -1, TIME, TIME // 10 * 10, TIME // 10**9 * 10**9, (1 << 63) - 1, -(1 << 63))),
        st.integers(-(1 << 63), (1 << 63) - 1),
    ),
)
def test_a_record_answers_a_direct_get(subject: bytes, header: bytes, payload: bytes, sequence: int, time: int) -> None:
    record = encode_record(sequence, time, subject, header, payload, KEY)
    block = located(header, b"ORDERS", subject, sequence & ~SKIPPED, time)
    expected = (block + payload, len(block))
    for kernel in KERNELS.both:
        assert kernel.direct_answer(record, KEY, b"ORDERS") == expected
        assert kernel.direct_answer(record[:-1], KEY, b"ORDERS") is None
        assert kernel.direct_answer(record[:-1] + bytes([record[-1] ^ 1]), KEY, b"ORDERS") is None
    assert block.startswith(b"NATS/1.0") or header.endswith(b"\r\n\r\n")
    assert block.endswith(b"\r\nNats-Time-Stamp: %b\r\n\r\n" % format_moment(time).encode())


def test_what_is_too_large_is_refused(kernel: ModuleType) -> None:
    for subject, payload in ((bytes(1 << 16), b""), (b"", bytes(MAX_RECORD_SIZE - 29))):
        with pytest.raises(ValueError, match=f"a record of {30 + len(subject) + len(payload)} bytes"):
            kernel.encode_record(1, TIME, subject, b"", payload, KEY)
    with pytest.raises(ValueError, match="a key of 3 bytes"):
        kernel.decode_record(b"", b"key")
