"""Both kernels write the same frames, and read answers alike."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.nats.columns import FrameColumns
from stantools.nats.publishing import kernels
from stantools.streamfiles import headers
from tests.kernelpairs import KernelPair
from tests.oracles import publishing as oracle
from tests.streamfiles.making import TIME, Item, batch

KERNELS = KernelPair(kernels, oracle)
kernel = KERNELS.fixture()

LARGEST = 1 << 20
FRAME = re.compile(rb"HPUB (\S+) (\S+) (\d+) (\d+)\r\n")
REPLY = b"_INBOX.x.1."


def split(frames: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Subject, reply, header block and payload of each frame."""
    found = []
    while frames:
        match = FRAME.match(frames)
        assert match, frames[:80]
        block, total = int(match[3]), int(match[4])
        body = frames[match.end() : match.end() + total]
        assert frames[match.end() + total :][:2] == b"\r\n"
        found.append((match[1], match[2], body[:block], body[block:]))
        frames = frames[match.end() + total + 2 :]
    return found


def encode(kernel: ModuleType, batch: Any, row: int = 0, rows: int | None = None, **more: Any) -> tuple[int, bytes]:
    out = bytearray(more.pop("room", 1 << 16))
    done, size = kernel.encode_publishes(
        batch,
        row,
        len(batch) - row if rows is None else rows,
        REPLY,
        b"orders:1:",
        more.get("origin", True),
        more.get("exact", True),
        more.get("shift", 0),
        more.get("largest", LARGEST),
        out,
    )
    assert not any(out[size:])
    return done, bytes(out[:size])


def test_a_frame_byte_by_byte(kernel: ModuleType) -> None:
    of = batch([Item(42, data=b"\r\n\0hello", reply=b"back")], b"orders", b"old.orders")
    done, frames = encode(kernel, of)
    block = (
        b"NATS/1.0\r\nNats-Streaming-Channel: orders\r\nNats-Streaming-Sequence: 42\r\n"
        b"Nats-Streaming-Timestamp: 1600000000123456789\r\nNats-Streaming-Reply: back\r\n"
        b"Nats-Msg-Id: orders:1:42\r\nNats-Expected-Last-Sequence: 41\r\n\r\n"
    )
    assert done == 1
    assert frames == b"HPUB old.orders _INBOX.x.1.42 %d %d\r\n%b\r\n\0hello\r\n" % (len(block), len(block) + 8, block)
    assert headers.own_block(block) == headers.header_block(b"orders", 42, TIME, b"back", origin=True)


def test_without_headers_of_its_own(kernel: ModuleType) -> None:
    _, frames = encode(kernel, batch([Item(1, data=b"")], b"orders"), origin=False)
    ((_, _, block, data),) = split(frames)
    assert block == b"NATS/1.0\r\nNats-Msg-Id: orders:1:1\r\nNats-Expected-Last-Sequence: 0\r\n\r\n"
    assert data == b"" and headers.own_block(block) == b""


def test_without_a_place(kernel: ModuleType) -> None:
    of = batch([Item(7, data=b"x"), Item(9, data=b"y")], b"orders")
    of.stream_sequence[:] = [1, 2]
    done, frames = encode(kernel, of, origin=False, exact=False)
    assert done == 2
    assert split(frames) == [
        (b"orders", REPLY + b"1", b"NATS/1.0\r\nNats-Msg-Id: orders:1:7\r\n\r\n", b"x"),
        (b"orders", REPLY + b"2", b"NATS/1.0\r\nNats-Msg-Id: orders:1:9\r\n\r\n", b"y"),
    ]


def test_ends_before_a_gap_and_before_what_does_not_fit(kernel: ModuleType) -> None:
    of = batch([Item(3, data=b"a"), Item(4, data=b"b"), Item(6, data=b"c"), Item(7, data=b"d" * 500)], b"orders")
    assert encode(kernel, of)[0] == 2
    assert encode(kernel, of, 1, 3)[0] == 1
    assert encode(kernel, of, 2)[0] == 2
    assert encode(kernel, of, 2, 1)[0] == 1
    size = len(encode(kernel, of, 0, 1)[1])
    assert encode(kernel, of, 0, 2, room=size * 2)[0] == 2
    assert encode(kernel, of, 0, 2, room=size * 2 - 1)[0] == 1
    assert encode(kernel, of, 0, 2, room=size - 1) == (0, b"")
    block = len(split(encode(kernel, of, 3)[1])[0][2])
    assert encode(kernel, of, 3, largest=block + 500)[0] == 1
    assert encode(kernel, of, 3, largest=block + 499)[0] == 0


def test_the_stream_may_number_differently(kernel: ModuleType) -> None:
    of = batch([Item(100, data=b"a"), Item(200, data=b"b")], b"orders")
    of.stream_sequence[:] = [8, 9]
    done, frames = encode(kernel, of)
    assert done == 2
    for number, own, (_, reply, block, _) in zip((8, 9), (100, 200), split(frames), strict=True):
        assert reply == REPLY + b"%d" % number
        assert b"Nats-Msg-Id: orders:1:%d\r\nNats-Expected-Last-Sequence: %d\r\n\r\n" % (own, number - 1) in block


def test_a_row_that_points_outside(kernel: ModuleType) -> None:
    names: list[str] = ["data_start", "reply_start"]
    values: list[int] = [-1, 2**62, 2**63 - 1, 24]
    for name in names:
        for value in values:
            of = batch(
                [Item(1, data=b"12345678", reply=b"87654321"), Item(2, data=b"12345678", reply=b"87654321")], b"orders"
            )
            getattr(of, name)[1] = value if value != 24 else len(of.buffer) - 7
            with pytest.raises(ValueError, match="row 1"):
                encode(kernel, of)
                pytest.fail(f"accepted: {(name, value)!r}")


def test_rows_that_are_not_there(kernel: ModuleType) -> None:
    all_rows: list[tuple[int, int]] = [(-1, 1), (0, 3), (2, 1), (0, -1), (3, 0), (1, 2**63 - 1)]
    for row, rows in all_rows:
        with pytest.raises(ValueError, match="rows"):
            encode(kernel, batch([Item(1, data=b"a"), Item(2, data=b"b")], b"orders"), row, rows)
            pytest.fail(f"accepted: {(row, rows)!r}")


items = st.builds(
    Item,
    st.integers(1, 2**64 - 1) | st.integers(1, 12),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=30),
    st.binary(max_size=12).map(headers.safe_value),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(items, min_size=1, max_size=12),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 2**63),
    st.integers(0, 12),
    st.integers(0, 4000),
    st.integers(0, 400),
)
def test_both_write_the_same(
    listed: list[Item], contiguous: bool, origin: bool, exact: bool, first: int, row: int, room: int, largest: int
) -> None:
    of = batch(listed, b"orders")
    if contiguous:
        of.stream_sequence[:] = np.arange(len(listed), dtype=np.uint64) + np.uint64(first)
    row = min(row, len(listed))
    options = {"room": room, "origin": origin, "exact": exact, "largest": largest}
    results = [encode(kernel, of, row, **options) for kernel in KERNELS.both]
    assert results[0] == results[1]
    for at, (subject, reply, block, data) in enumerate(split(results[0][1]), row):
        item, number = listed[at], int(of.stream_sequence[at])
        assert (subject, reply, data) == (b"orders", REPLY + b"%d" % number, item.data)
        own = headers.header_block(b"orders", item.sequence, item.timestamp, item.reply, origin=origin)
        assert block == headers.guarded(own, b"orders:1:", item.sequence, number - 1 if exact else None)
        assert headers.own_block(block) == own


def answers(*listed: tuple[bytes, bytes]) -> tuple[bytes, FrameColumns]:
    """Frames with these subjects and payloads."""
    frames = FrameColumns(len(listed))
    buffer = bytearray()
    for row, (subject, data) in enumerate(listed):
        frames.subject_start[row], frames.subject_size[row] = len(buffer), len(subject)
        buffer += subject
        frames.data_start[row], frames.data_size[row] = len(buffer), len(data)
        buffer += data
    return bytes(buffer), frames


GOOD = [
    b'{"stream":"ORDERS","seq":7}',
    b'{"stream":"ORDERS", "seq":7}',
    b'{"stream":"ORDERS", "seq":7,"duplicate": true}',
    b'{"stream":"ORDERS","domain":"hub","seq":7}',
    b'{"stream":"ORDERS","seq": 7 }',
]
BAD = [
    b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 2"},"stream":"ORDERS","seq":7}',
    b'{"stream":"ORDERS","seq":8}',
    b'{"stream":"ORDERS","seq":70}',
    b'{"stream":"ORDERS","seq":07}',
    b'{"stream":"ORDERS","seq":}',
    b'{"stream":"ORDERS","seq":',
    b'{"stream":"ORDERS"}',
    b'{"stream":"',
    b"",
    b"{}",
]


def test_good_answers(kernel: ModuleType) -> None:
    for answer in GOOD:
        found = 1, 8, 7, int(b"duplicate" in answer)
        assert kernel.check_answers(*answers((REPLY + b"7", answer)), 0, REPLY, 7, True) == found, answer
        assert kernel.check_answers(*answers((REPLY + b"7", answer)), 0, REPLY, 7, False) == found, answer


def test_other_answers(kernel: ModuleType) -> None:
    for answer in BAD:
        assert kernel.check_answers(*answers((REPLY + b"7", answer)), 0, REPLY, 7, True) == (0, 7, 0, 0), answer


def test_answers_of_any_place(kernel: ModuleType) -> None:
    rows: list[tuple[bytes, tuple[int, int, int, int]]] = [
        (b'{"stream":"S","seq":8}', (1, 8, 8, 0)),
        (b'{"stream":"S","seq":18446744073709551615,"duplicate":true}', (1, 8, 2**64 - 1, 1)),
        (b'{"stream":"S","seq":18446744073709551616}', (0, 7, 0, 0)),
        (b'{"stream":"S","seq":100000000000000000000}', (0, 7, 0, 0)),
        (b'{"stream":"S","seq":08}', (0, 7, 0, 0)),
        (b'{"stream":"S","seq":8,"duplicate":false}', (1, 8, 8, 0)),
        (b'{"stream":"S","seq":8,"duplicate":', (1, 8, 8, 0)),
        (b'{"error":{"code":503,"err_code":10047},"stream":"S","seq":8}', (0, 7, 0, 0)),
    ]
    for answer, found in rows:
        assert kernel.check_answers(*answers((REPLY + b"7", answer)), 0, REPLY, 7, False) == found, (answer, found)


def test_an_answer_to_another_message(kernel: ModuleType) -> None:
    rows: list[bytes] = [b"8", b"07", b"7.", b"", b"x"]
    for token in rows:
        for exact in (True, False):
            assert kernel.check_answers(*answers((REPLY + token, GOOD[0])), 0, REPLY, 7, exact) == (0, 7, 0, 0), token


def test_answers_that_are_late_do_not_count(kernel: ModuleType) -> None:
    ack = b'{"stream":"S","seq":%d}'
    listed = [
        (REPLY + b"5", ack % 5),
        (b"_INBOX.x.0.6", ack % 6),
        (b"", b""),
        (REPLY + b"6", ack % 6),
        (REPLY + b"8", ack % 8),
    ]
    buffer, frames = answers(*listed)
    assert kernel.check_answers(buffer, frames, 0, REPLY, 5, True) == (4, 7, 6, 0)
    assert kernel.check_answers(buffer, frames, 4, REPLY, 8, True) == (5, 9, 8, 0)
    assert kernel.check_answers(buffer, frames, 5, REPLY, 9, True) == (5, 9, 0, 0)


def test_an_answer_with_a_header_is_no_good_one(kernel: ModuleType) -> None:
    buffer, frames = answers((REPLY + b"7", GOOD[0]))
    frames.header_size[0] = 16
    assert kernel.check_answers(buffer, frames, 0, REPLY, 7, True) == (0, 7, 0, 0)


def test_an_answer_that_points_outside(kernel: ModuleType) -> None:
    names: list[str] = ["subject_start", "data_start"]
    values: list[int] = [-1, 2**62, 2**63 - 1, 10**4]
    for name in names:
        for value in values:
            buffer, frames = answers((REPLY + b"7", GOOD[0]))
            getattr(frames, name)[0] = value
            with pytest.raises(ValueError, match="row 0"):
                kernel.check_answers(buffer, frames, 0, REPLY, 7, True)
                pytest.fail(f"accepted: {(name, value)!r}")
            with pytest.raises(ValueError, match="row 2"):
                kernel.check_answers(buffer, frames, 2, REPLY, 7, True)
                pytest.fail(f"accepted: {(name, value)!r}")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([REPLY, REPLY, b"", b"_INBOX.x.2."]),
            st.integers(1, 4) | st.integers(0, 2**64 - 1),
            st.sampled_from(
                [
                    b'{"stream":"S", "seq":%d}',
                    b'{"stream":"S","seq":%d,"x":1}',
                    b'{"stream":"S","seq": %d0,"duplicate": true}',
                    b'{"error"%d',
                    b"%d",
                ]
            ),
            st.integers(0, 60),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_both_read_the_same(listed: list[tuple[bytes, int, bytes, int]], exact: bool) -> None:
    cut = [(reply + b"%d" % n, (text % n)[: None if size > 50 else size]) for reply, n, text, size in listed]
    buffer, frames = answers(*cut)
    for expected in (1, 2, 2**64 - 2):
        found = [kernel.check_answers(buffer, frames, 0, REPLY, expected, exact) for kernel in KERNELS.both]
        assert found[0] == found[1]


def received(*blocks: bytes) -> tuple[bytes, FrameColumns]:
    """Frames with these header blocks."""
    frames = FrameColumns(len(blocks))
    buffer = bytearray(b"....")
    for row, block in enumerate(blocks):
        frames.header_start[row], frames.header_size[row] = len(buffer), len(block)
        buffer += block
    return bytes(buffer), frames


def origins(kernel: ModuleType, buffer: bytes, frames: FrameColumns) -> list[tuple[int, bytes]]:
    """Time and reply of each, as they are in the header block; the time is 7 where there is none."""
    count = len(frames)
    times, starts, sizes = np.full(count, 7), np.full(count, 99), np.full(count, 99, np.uint32)
    replies = kernel.read_origins(buffer, frames, times, starts, sizes)
    places = zip(starts.tolist(), sizes.tolist(), strict=True)
    found = [buffer[start : start + size] for start, size in places]
    assert replies == sum(map(bool, found))
    return list(zip(times.tolist(), found, strict=True))


def test_what_a_message_was(kernel: ModuleType) -> None:
    rows: list[tuple[bytes, int, bytes]] = [
        (b"Nats-Streaming-Timestamp: 1600000000123456789\r\nNats-Streaming-Reply: back\r\n", TIME, b"back"),
        (b"Nats-Streaming-Reply: a b\r\nOther: 1\r\nNats-Streaming-Timestamp: 5\r\n", 5, b"a b"),
        (b"Nats-Streaming-Reply: \r\nNats-Streaming-Reply: late\r\n", 7, b""),
        (b"Nats-Streaming-Reply: a\rb\r\nNats-Streaming-Reply: late\r\n", 7, b"late"),
        (b"Nats-Streaming-Timestamp: -5\r\nNats-Streaming-Timestamp: 12x\r\nNats-Streaming-Timestamp: 3\r\n", 3, b""),
        (b"Nats-Streaming-Timestamp: 8999999999999999999\r\n", 8999999999999999999, b""),
        (b"Nats-Streaming-Timestamp: 9000000000000000000\r\n", 7, b""),
        (b"Nats-Streaming-Timestamp: 00000000000000000005\r\n", 7, b""),
        (b"Nats-Streaming-Timestamp: \r\n", 7, b""),
        (b"nats-streaming-reply: x\r\nX-Nats-Streaming-Reply: y\r\n", 7, b""),
        (b"", 7, b""),
    ]
    for lines, time, reply in rows:
        block = b"NATS/1.0\r\n" + lines
        assert origins(kernel, *received(block + b"\r\n")) == [(time, reply)], (lines, time, reply)


def test_a_line_without_an_end(kernel: ModuleType) -> None:
    block = b"NATS/1.0\r\nNats-Streaming-Timestamp: 5\r"
    assert origins(kernel, *received(block, b"", block + b"\n")) == [(7, b""), (7, b""), (5, b"")]


@pytest.mark.parametrize("value", [-1, 2**62, 2**63 - 1, 10**4])
def test_a_header_block_that_points_outside(kernel: ModuleType, value: int) -> None:
    buffer, frames = received(b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\n\r\n")
    frames.header_start[1] = value
    with pytest.raises(ValueError, match="row 1"):
        origins(kernel, buffer, frames)
    with pytest.raises(ValueError, match="length"):
        kernel.read_origins(buffer, frames, np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(2, np.uint32))


@settings(max_examples=150, deadline=None)
@given(st.lists(items, min_size=1, max_size=12), st.booleans())
def test_what_was_written_is_read(listed: list[Item], origin: bool) -> None:
    _, frames = encode(KERNELS.oracle, batch(listed, b"orders"), origin=origin)
    blocks = [block for _, _, block, _ in split(frames)]
    wanted = [
        (item.timestamp if origin and 0 <= item.timestamp < 9 * 10**18 else 7, item.reply)
        for item in listed[: len(blocks)]
    ]
    for kernel in KERNELS.both:
        assert origins(kernel, *received(*blocks)) == wanted


PIECES = [
    b"\r\n", b"\r", b"\n", b"Nats-Streaming-Timestamp: ", b"Nats-Streaming-Reply: ", b"5", b"1234567890", b"9", b"x",
    b" ",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join), max_size=4))
def test_both_read_any_header_block_alike(blocks: list[bytes]) -> None:
    buffer, frames = received(*blocks)
    found = [origins(kernel, buffer, frames) for kernel in KERNELS.both]
    assert found[0] == found[1]
