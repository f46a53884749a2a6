"""Comparing messages: kernel and oracle agree, and mark what differs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.format.message_batch import MessageBatch
from stantools.migration.proof import kernels
from stantools.migration.proof.stream_proof import Difference
from stantools.nats import kernels as nats
from stantools.nats.columns import FrameColumns
from stantools.nats.frames import frame_table
from stantools.streamfiles.headers import header_block
from tests.kernelpairs import KernelPair
from tests.oracles import proof as oracle
from tests.oracles.proof import is_extended
from tests.streamfiles.making import Item, batch

KERNELS = KernelPair(kernels, oracle)
both = pytest.mark.parametrize("kernel", KERNELS.each)

#: Stream sequence, channel sequence, time, reply, payload.
Row = tuple[int, int, int, bytes, bytes]
#: Subject, stream sequence, time, header block, payload.
Frame = tuple[bytes, int, int, bytes, bytes]


def batch_of(rows: list[Row], subject: bytes = b"s", channel: bytes = b"c") -> MessageBatch:
    return batch([Item(own, time, data, reply, at) for at, own, time, reply, data in rows], channel, subject)


def received_of(frames: list[Frame]) -> tuple[bytes, FrameColumns]:
    data = b""
    for subject, sequence, time, block, payload in frames:
        ack = b"$JS.ACK.S.c.1.%d.1.%d.0" % (sequence, time)
        if block:
            sizes = b"%d %d" % (len(block), len(block) + len(payload))
            data += b"HMSG %b 1 %b %b\r\n%b%b\r\n" % (subject, ack, sizes, block, payload)
        else:
            data += b"MSG %b 1 %b %d\r\n%b\r\n" % (subject, ack, len(payload), payload)
    columns = FrameColumns(len(frames))
    table = frame_table(len(frames))
    rows, at, *_ = nats.parse_messages(data, 0, len(data), table, 1 << 20, -1)
    nats.read_deliveries(data, table, 0, rows, columns)
    assert (rows, at) == (len(frames), len(data))
    return data, columns


def compare(
    kernel: ModuleType, batch: MessageBatch, frames: list[Frame], *, origin: bool = False, published: bool = False
) -> tuple[Any, ...]:
    data, columns = received_of(frames)
    marks, other = np.full(len(batch), 99, np.uint8), np.full(len(frames), 99, np.uint8)
    ends = kernel.compare_messages(
        batch, 0, data, columns, 0, origin=origin, published=published, marks=marks, other_marks=other
    )
    return (*ends, marks.tolist(), other.tolist())


@both
def test_marks(kernel: ModuleType) -> None:
    rows = [(n, n, n * 10, b"", b"data%d" % n) for n in (1, 2, 4, 5, 6, 7, 8)]
    frames = [
        (b"s", 1, 10, b"", b"data1"),
        (b"s", 3, 30, b"", b"data3"),
        (b"other", 4, 40, b"", b"data4"),
        (b"s", 5, 51, b"", b"data5"),
        (b"s", 6, 60, b"NATS/1.0\r\nA: b\r\n\r\n", b"data6"),
        (b"s", 7, 70, b"", b"DATA7"),
        (b"x", 8, 81, b"NATS/1.0\r\nA: b\r\n\r\n", b""),
    ]
    everything = Difference.SUBJECT | Difference.TIME | Difference.HEADER | Difference.DATA
    assert compare(kernel, batch_of(rows), frames) == (
        7,
        7,
        [0, Difference.ABSENT, Difference.SUBJECT, Difference.TIME, Difference.HEADER, Difference.DATA, everything],
        [0, Difference.ABSENT, 0, 0, 0, 0, 0],
    )


@both
def test_the_side_that_ends_first(kernel: ModuleType) -> None:
    rows = [(n, n, 0, b"", b"") for n in (1, 2, 3)]
    frames = [(b"s", n, 0, b"", b"") for n in (1, 2)]
    assert compare(kernel, batch_of(rows), frames) == (2, 2, [0, 0, 99], [0, 0])
    assert compare(kernel, batch_of(rows[:1]), frames) == (1, 1, [0], [0, 99])
    assert compare(kernel, batch_of(rows), []) == (0, 0, [99] * 3, [])


@both
def test_headers(kernel: ModuleType) -> None:
    rows = [(1, 41, 7, b"re.ply", b"x")]
    with_origin = header_block(b"c", 41, 7, b"re.ply", origin=True)
    with_reply = header_block(b"c", 41, 7, b"re.ply", origin=False)

    def mark(block: bytes, time: int = 7, **options: bool) -> int:
        return int(compare(kernel, batch_of(rows), [(b"s", 1, time, block, b"x")], **options)[2][0])

    assert mark(with_origin, origin=True) == mark(with_reply) == 0
    assert mark(with_origin) == mark(with_reply, origin=True) == mark(b"") == Difference.HEADER
    added = with_reply[:-2] + b"Nats-Msg-Id: c:1:41\r\nNats-Expected-Last-Sequence: 0\r\n\r\n"
    assert mark(added) == Difference.HEADER
    assert mark(added, published=True) == 0
    # A published message has a time of its own; one that was restored among published ones has not.
    assert mark(added, 8, published=True) == 0
    assert mark(with_reply, 8, published=True) == Difference.TIME
    assert mark(with_reply[:-2] + b"A: b\r\n\r\n", published=True) == Difference.HEADER
    assert mark(added + b"\r\n", published=True) == Difference.HEADER


@both
def test_what_publishing_adds_to_nothing(kernel: ModuleType) -> None:
    def mark(block: bytes) -> int:
        frames = [(b"s", 1, 9, block, b"x")]
        return int(compare(kernel, batch_of([(1, 1, 7, b"", b"x")]), frames, published=True)[2][0])

    assert mark(b"NATS/1.0\r\nNats-Msg-Id: c:1:1\r\n\r\n") == 0
    assert mark(b"NATS/1.0\r\n\r\n") == Difference.HEADER | Difference.TIME
    assert mark(b"NATS/1.0\r\nNats-Msg-Idx: 1\r\n\r\n") == Difference.HEADER | Difference.TIME
    assert mark(b"") == Difference.TIME


@both
def test_columns_that_point_outside(kernel: ModuleType) -> None:
    for name, value in (("data_size", 99), ("data_start", -1), ("data_start", 2**62), ("reply_size", 2**31)):
        batch = batch_of([(1, 1, 1, b"", b"x")])
        getattr(batch, name)[0] = value
        with pytest.raises(ValueError, match="outside"):
            compare(kernel, batch, [(b"s", 1, 1, b"", b"x")])


lines = st.sampled_from(
    [
        b"",
        *(b"Nats-Msg-Id: a", b"Nats-Msg-Id:a", b"Nats-Expected-Last-Sequence: 4", b"Nats-Expected-X:4"),
        *(b"Nats-Expected-: ", b"Nats-Expected-X", b"A: b", b"Nats-Streaming-Reply: r"),
        *(b"\r", b"\n", b"Nats-Msg-Id: a\rb"),
    ]
)
endings = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b""])
blocks = st.builds(
    lambda start, parts: start + b"".join(line + end for line, end in parts),
    st.sampled_from([b"NATS/1.0\r\n", b"NATS/1.0\r\nNats-Streaming-Reply: r\r\n", b""]),
    st.lists(st.tuples(lines, endings), max_size=4),
)


@given(blocks)
def test_what_counts_as_extended(block: bytes) -> None:
    """As one would say it line by line."""
    for expected in (b"", b"NATS/1.0\r\nNats-Streaming-Reply: r\r\n\r\n"):
        start = expected[:-2] or b"NATS/1.0\r\n"
        rest = block[len(start) :].split(b"\r\n") if block.startswith(start) else []
        added = [
            line.startswith(b"Nats-Msg-Id: ")
            or (line.startswith(b"Nats-Expected-") and line.partition(b":")[2][:1] == b" ")
            for line in rest[:-2]
        ]
        clean = not any(b"\r" in line or b"\n" in line for line in rest)
        assert is_extended(expected, block) == (rest[-2:] == [b"", b""] and bool(added) and all(added) and clean)


@st.composite
def both_sides(draw: st.DrawFn) -> tuple[list[Row], list[Frame]]:
    """Two sides that are mostly the same."""
    rows, frames = [], []
    for sequence in sorted(draw(st.sets(st.integers(1, 30), max_size=12))):
        own, time = draw(st.sampled_from([sequence, 2**64 - 1])), draw(st.sampled_from([0, 7, -5, 2**62]))
        reply, data = draw(st.sampled_from([b"", b"", b"r"])), draw(st.binary(max_size=6))
        block = header_block(b"c", own, time, reply, origin=draw(st.booleans()))
        kind = draw(st.integers(0, 9))
        if kind == 1:
            block = draw(blocks)
        elif kind == 2:
            block = (block[:-2] or b"NATS/1.0\r\n") + draw(lines) + b"\r\n\r\n"
        elif kind == 3:
            data += b"x"
        if kind != 4:
            rows.append((sequence, own, time, reply, data[: 3 if kind == 5 else 9]))
        if kind != 6:
            frames.append((b"s" if kind != 7 else b"t", sequence, time + (kind == 8), block, data))
    return rows, frames


@settings(max_examples=200)
@given(both_sides(), st.booleans(), st.booleans())
def test_both_kernels_agree(sides: tuple[list[Row], list[Frame]], origin: bool, published: bool) -> None:
    rows, frames = sides
    results = [compare(k, batch_of(rows), frames, origin=origin, published=published) for k in KERNELS.both]
    assert results[0] == results[1]
