"""Both kernels do the same, whatever the bytes are, and what they do is what the server's decoder does."""

from __future__ import annotations

import tempfile
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stantools.format import crc, fieldscan, gogo
from stantools.format.columns import LogColumns, MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import Flag, ScanStop
from stantools.format.proto import store_pb2
from tests.conftest import GOLDEN, KINDS_OF_STORES
from tests.format.conftest import KERNELS
from tests.oracles import format as oracle

CRCS = [Crc(), Crc(crc.CASTAGNOLI), Crc(0x12345678)]
CHANNELS = [b"", b"f", b"foo", b"foo.bar", b"c" * 130]

numbers = st.one_of(
    st.integers(0, 3),
    st.integers(0, 2**64 - 1),
    st.sampled_from([127, 128, 2**14, 2**32, 2**63]),
    st.integers(2**59, 2**61),
)


def encoded(value: int, excess: int = 0) -> bytes:
    """A varint, with that many bytes more than needed."""
    data = bytearray(fieldscan.encode_varint(value))
    for _ in range(excess):
        data[-1] |= 0x80
        data.append(0)
    return bytes(data)


@st.composite
def varints(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 30)) == 0:
        return draw(st.binary(max_size=12))
    return encoded(draw(numbers), draw(st.sampled_from([0] * 12 + [1, 2, 5])))


@st.composite
def values(draw: st.DrawFn, wire: int, depth: int = 0) -> bytes:
    if wire == 0:
        return draw(varints())
    if wire == 1:
        return draw(st.binary(min_size=8, max_size=8))
    if wire == 2:
        data = draw(st.one_of(st.sampled_from(CHANNELS), st.binary(max_size=40), st.binary(min_size=120, max_size=140)))
        size = len(data) + draw(st.sampled_from([0] * 20 + [1, -1, 2**31, 2**63, 2**64 - 1 - len(data)]))
        return encoded(max(size, 0), draw(st.sampled_from([0] * 12 + [1]))) + data
    if wire == 3 and depth < 3:
        inner = [draw(fields(depth + 1)) for _ in range(draw(st.integers(0, 3)))]
        return b"".join(inner) + encoded(draw(st.integers(0, 20)) << 3 | 4)
    if wire == 5:
        return draw(st.binary(min_size=4, max_size=4))
    return b""


@st.composite
def fields(draw: st.DrawFn, depth: int = 0) -> bytes:
    number = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 10, 1, 2, 4, 5, 8, 9, 11, 1000]))
    usual = 2 if number in (2, 3, 4) else 0
    wire = draw(st.sampled_from([usual] * 20 + [0, 1, 2, 3, 4, 5, 6, 7]))
    tag = number << 3 | wire
    if draw(st.integers(0, 40)) == 0:
        tag += draw(st.sampled_from([2**35, 2**34, 2**63, 2**31, -tag + wire]))
    return encoded(tag, draw(st.sampled_from([0] * 30 + [1]))) + draw(values(wire, depth))


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Payloads as servers write them, others that a decoder takes, and others still."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        data = b"\x08" + encoded(draw(numbers)) + b"\x12" + draw(values(2))
        if draw(st.booleans()):
            data += b"\x1a" + draw(values(2))
        if draw(st.booleans()):
            data += b"\x22" + draw(values(2))
        return data + b"\x28" + encoded(draw(numbers))
    if kind == 3:
        return draw(st.binary(max_size=30))
    return b"".join(draw(st.lists(fields(), max_size=7)))


@st.composite
def files(draw: st.DrawFn, *, typed: bool = False) -> tuple[bytes, Crc]:
    """Mostly records with the right CRC, with damage here and there."""
    function = draw(st.sampled_from(CRCS))
    data = bytearray(draw(st.binary(max_size=6)))
    for payload in draw(st.lists(payloads(), max_size=5)):
        header = bytearray(len(payload).to_bytes(4, "little") + function(payload).to_bytes(4, "little"))
        if typed:
            header[3] = draw(st.integers(0, 6))
        data += header + payload
        if draw(st.integers(0, 7)) == 0:
            data += draw(st.one_of(st.binary(max_size=20), st.integers(1, 40).map(bytes)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.sampled_from([0, 0, 0, 1, 7, 9]))
    return bytes(data[: max(len(data) - cut, 0)]), function


def messages(kernel: ModuleType, arguments: tuple[Any, ...], capacity: int, row: int) -> tuple[Any, ...]:
    columns = MessageColumns(capacity)
    result = kernel.scan_messages(*arguments, columns, row)
    return result, {name: getattr(columns, name).tolist() for name in MessageColumns.names}


def log(kernel: ModuleType, arguments: tuple[Any, ...], capacity: int, row: int) -> tuple[Any, ...]:
    columns = LogColumns(capacity)
    result = kernel.scan_log(*arguments, columns, row)
    return result, {name: getattr(columns, name).tolist() for name in LogColumns.names}


def at(kernel: ModuleType, data: bytes, limit: int, offsets: list[int], rest: tuple[Any, ...]) -> tuple[Any, ...]:
    columns, stops = MessageColumns(len(offsets) + 1), np.full(len(offsets) + 1, 77, np.uint8)
    kernel.read_messages_at(data, limit, np.array(offsets, np.int64), *rest, columns, stops)
    return stops.tolist(), {name: getattr(columns, name).tolist() for name in MessageColumns.names}


def assert_twins(data: bytes, function: Crc, channel: bytes, starts: list[int], limit: int, capacity: int) -> None:
    """Everything that reads gives the same from both kernels."""
    compiled = KERNELS.compiled
    for used in (function, function.unchecked):
        for start in starts:
            scan = (data, start, limit, used)
            for row in {0, capacity // 2, capacity}:
                assert messages(compiled, (*scan, channel), capacity, row) == messages(
                    oracle, (*scan, channel), capacity, row
                )
                assert log(compiled, scan, capacity, row) == log(oracle, scan, capacity, row)
            assert compiled.scan_index(*scan) == oracle.scan_index(*scan)
            run = (*scan, channel, None, 0, 0, capacity)
            assert compiled.scan_run(*run) == oracle.scan_run(*run)
        offsets = [*range(-2, min(len(data), 400) + 3), 2**63 - 1, -(2**63)]
        rest = (used, channel)
        assert at(compiled, data, limit, offsets, rest) == at(oracle, data, limit, offsets, rest)
    for start in starts:
        assert compiled.find_record(data, start, limit, function, channel) == oracle.find_record(
            data, start, limit, function, channel
        )
        for kind in (1, 2, 5, 255):
            assert compiled.find_log_record(data, start, limit, function, kind) == oracle.find_log_record(
                data, start, limit, function, kind
            )


@given(files(), st.sampled_from(CHANNELS), st.integers(0, 9), st.integers(0, 300), st.integers(0, 6))
@settings(max_examples=250)
def test_twins_on_message_files(file: tuple[bytes, Crc], channel: bytes, start: int, cut: int, capacity: int) -> None:
    data, function = file
    limit = max(len(data) - cut, 0) if cut < 100 else len(data) + cut
    assert_twins(data, function, channel, [0, 4, start], limit, capacity)


@given(files(typed=True), st.integers(0, 9), st.integers(0, 6))
@settings(max_examples=150)
def test_twins_on_logs(file: tuple[bytes, Crc], start: int, capacity: int) -> None:
    data, function = file
    assert_twins(data, function, b"foo", [0, start], len(data), capacity)


@given(st.binary(max_size=200), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_twins_on_anything(data: bytes, start: int) -> None:
    assert_twins(data, CRCS[0], b"foo", [start], len(data), 4)


@given(
    st.lists(
        st.tuples(numbers, numbers, st.sampled_from([b"", b"reply", b"r" * 200]), st.binary(max_size=300)), max_size=6
    ),
    st.sampled_from(CHANNELS),
    st.sampled_from(CRCS),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_twins_that_encode(
    rows: list[tuple[int, int, bytes, bytes]], channel: bytes, function: Crc, replies: bool
) -> None:
    compiled = KERNELS.compiled
    sequences = np.array([row[0] for row in rows], np.uint64)
    times = np.array([row[1] for row in rows], np.uint64).view(np.int64)
    answers = [row[2] for row in rows] if replies else None
    arguments = (channel, sequences, times, answers, [row[3] for row in rows], function)
    data, sizes = compiled.encode_messages(*arguments)
    again, again_sizes = oracle.encode_messages(*arguments)
    assert data == again
    assert sizes.tolist() == again_sizes.tolist()
    # The official library agrees about the bytes.
    expected = b"".join(
        store_pb2.MsgProto(
            sequence=sequence,
            subject=channel,
            reply=reply if replies else b"",
            data=payload,
            timestamp=time - (1 << 64) if time >> 63 else time,
        ).SerializeToString()
        for sequence, time, reply, payload in rows
    )
    payload_bytes = bytearray()
    position = 0
    for size in sizes.tolist():
        payload_bytes += data[position + 8 : position + 8 + size]
        position += 8 + size
    assert payload_bytes == expected
    index = (sequences, times, times, sizes, function)
    assert compiled.encode_index(*index) == oracle.encode_index(*index)
    assert oracle.scan_index(oracle.encode_index(*index), 0, 10**6, function)[:2] == (len(rows), ScanStop.END)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2**32 - 1)), max_size=40),
    st.lists(st.tuples(st.integers(0, 41 * 32), st.sampled_from([b"\0" * 32, b"x", b""])), max_size=2),
    st.binary(max_size=40),
    st.sampled_from([32, 64, 96, 1 << 16]),
    st.integers(-33, 1),
    st.sampled_from(CRCS),
)
def test_an_index_is_read_as_it_is_scanned(
    rows: list[tuple[int, int]],
    damages: list[tuple[int, bytes]],
    tail: bytes,
    part: int,
    beyond: int,
    function: Crc,
) -> None:
    sequences, sizes = [row[0] for row in rows], [row[1] for row in rows]
    data = bytearray(b"head" + oracle.encode_index(sequences, sequences, sequences, sizes, function) + tail)
    for at, wrong in damages:
        data[4 + at : 4 + at + len(wrong)] = wrong[: max(len(data) - 4 - at, 0)]
    limit = max(len(data) + beyond, 0)
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(data)
        for used in (function, function.unchecked):
            reading = (file.fileno(), 4, limit, used, part)
            scanned, read = oracle.scan_index(data, 4, limit, used), oracle.read_index(*reading)
            assert KERNELS.compiled.read_index(*reading) == read
            assert read == scanned or (read is None and limit > len(data))
        assert oracle.read_index(file.fileno(), 0, len(data) + 1, function, 1 << 16) is None


@given(
    st.lists(st.tuples(st.sampled_from([0] * 9 + [1, 2**40]), st.integers(0, 99)), min_size=1, max_size=40),
    st.sampled_from(CRCS),
    st.lists(st.tuples(st.booleans(), st.integers(0, 5000), st.integers(1, 255)), max_size=2),
    st.integers(0, 5000),
    st.integers(1, 50),
)
@settings(max_examples=200, deadline=None)
def test_twins_that_scan_slices_beside_their_index(
    rows: list[tuple[int, int]], function: Crc, changes: list[tuple[bool, int, int]], until: int, most: int
) -> None:
    compiled = KERNELS.compiled
    sequences = np.cumsum([1 + gap for gap, _ in rows], dtype=np.uint64)
    times = np.arange(len(rows), dtype=np.int64) + 7
    data, sizes = oracle.encode_messages(b"foo", sequences, times, None, [bytes(size) for _, size in rows], function)
    starts = (sizes + np.int64(8)).cumsum() - sizes - 4
    files = [bytearray(b"\1\0\0\0" + data), bytearray(b"\1\0\0\0")]
    files[1] += oracle.encode_index(sequences, starts, times, sizes, function)
    for in_index, place, change in changes:
        files[in_index][4 + place % (len(files[in_index]) - 4)] ^= change
    for used in (function, function.unchecked):
        at, done, after = 4, 0, 0
        while at < min(until, len(files[0])):
            arguments = (files[0], at, until, used, b"foo", files[1], done, after, most)
            found = compiled.scan_run(*arguments)
            assert found == oracle.scan_run(*arguments)
            count, end, ranges, total, payload, largest, first, last = found
            if not count:
                break
            columns = MessageColumns(count)
            assert oracle.scan_messages(files[0], at, end, used, b"foo", columns)[:2] == (count, end)
            assert [each for low, high in ranges for each in range(low, high + 1)] == columns.sequence.tolist()
            assert [total, payload, largest] == [columns.size.sum(), columns.data_size.sum(), columns.data_size.max()]
            assert [first, last] == columns.timestamp[[0, -1]].tolist()
            at, done, after = end, done + count, ranges[-1][1]
        if not changes:
            assert at >= min(until, len(files[0]))


def test_twins_that_tell_many_ranges() -> None:
    compiled = KERNELS.compiled
    count = oracle.MOST_RANGES + 5
    sequences, times = np.arange(1, 2 * count, 2, dtype=np.uint64), np.zeros(count, np.int64)
    data, _ = oracle.encode_messages(b"foo", sequences, times, None, [b""] * count, CRCS[0])
    arguments = (data, 0, len(data), CRCS[0], b"foo", None, 0, 0, 2 * count)
    found = compiled.scan_run(*arguments)
    assert found == oracle.scan_run(*arguments)
    assert found[0] == len(found[2]) == oracle.MOST_RANGES
    with pytest.raises(ValueError, match="index record -1"):
        compiled.scan_run(data, 0, 1, CRCS[0], b"foo", data, -1, 0, 1)


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    st.integers(0, 2**64 - 1),
    st.integers(0, 3),
    st.integers(0, 2**40),
    st.sampled_from(CRCS),
    st.sampled_from(["nothing", "sequence", "start", "size", "header", "after", "end"]),
    st.integers(0, 4),
)
@settings(max_examples=200, deadline=None)
def test_twins_that_index_runs(
    payloads: list[bytes], after: int, before: int, offset: int, function: Crc, change: str, place: int
) -> None:
    compiled = KERNELS.compiled
    count, row = len(payloads), place % len(payloads)
    sequences = np.arange(count, dtype=np.uint64) + np.uint64((after + 1) % 2**64)
    times = np.arange(count, dtype=np.int64)
    data, sizes = oracle.encode_messages(b"foo", sequences, times, None, payloads, function)
    starts = (sizes + np.int64(8)).cumsum() - sizes + before
    buffer = bytearray(bytes(before) + data + b"behind")
    if change == "sequence":
        sequences[row : row + 1] += np.uint64(1)  # an array wraps around without a warning
    elif change == "start":
        starts[row] += -1 if row % 2 else 1
    elif change == "size":
        sizes[row] += np.uint32(1)
    elif change == "header":
        buffer[int(starts[row]) - 8] ^= 1
    elif change == "after":
        after = (after + 1) % 2**64
    elif change == "end":
        del buffer[int(starts[-1]) + int(sizes[-1]) - 1 :]
    arguments = (buffer, starts, sizes, sequences, times, offset, after, function)
    found = oracle.index_run(*arguments)
    assert compiled.index_run(*arguments) == found
    if change != "nothing" or after > 2**64 - 1 - count:
        assert found is None
    else:
        one = int(sequences[row]), int(starts[row]) - 8 - before + offset, int(times[row]), int(sizes[row]), function
        assert compiled.index_record(*one) == oracle.index_record(*one) == found[0][32 * row : 32 * row + 32]
        expected = oracle.encode_index(sequences, starts - 8 - before + offset, times, sizes, function)
        assert found == (expected, before, before + len(data))


def rules(payload: bytes) -> tuple[Any, ...] | None:
    """What the general decoder says of a payload, None if it refuses it."""
    try:
        message = gogo.decode(store_pb2.MsgProto, payload)
    except gogo.DecodeError:
        return None
    flags = 0 if message.subject == b"foo" else Flag.FOREIGN_SUBJECT
    flags |= Flag.HAS_REPLY if message.reply else 0
    flags |= Flag.REDELIVERED if message.redelivered or message.redelivery_count or message.crc32 else 0
    flags |= 0 if message.SerializeToString() == payload else Flag.UNUSUAL
    return (message.sequence, message.timestamp, message.data, message.reply, int(flags))


@given(payload=payloads())
@example(payload=bytes.fromhex("888080808001 01 2805"))
@example(payload=bytes.fromhex("3880808080f0ffffffff01"))
@settings(max_examples=500)
def test_decodes_as_the_general_decoder(payload: bytes) -> None:
    for kernel in KERNELS.both:
        decodes_as_the_general_decoder(kernel, payload)


def decodes_as_the_general_decoder(kernel: ModuleType, payload: bytes) -> None:
    data = len(payload).to_bytes(4, "little") + b"none" + payload
    columns = MessageColumns(1)
    rows, _, stop = kernel.scan_messages(data, 0, len(data), CRCS[0].unchecked, b"foo", columns)
    expected = rules(payload)
    assert stop == (ScanStop.BAD_DECODE if expected is None else ScanStop.END)
    if rows:
        body = data[columns.data_start[0] :][: columns.data_size[0]]
        reply = data[columns.reply_start[0] :][: columns.reply_size[0]]
        found = (int(columns.sequence[0]), int(columns.timestamp[0]), body, reply, int(columns.flags[0]))
        assert found == expected


@given(payload=payloads(), kind=st.sampled_from([3, 4, 5]))
@settings(max_examples=200)
def test_decodes_updates_as_the_general_decoder(payload: bytes, kind: int) -> None:
    for kernel in KERNELS.both:
        decodes_updates_as_the_general_decoder(kernel, payload, kind)


def decodes_updates_as_the_general_decoder(kernel: ModuleType, payload: bytes, kind: int) -> None:
    data = len(payload).to_bytes(3, "little") + bytes([kind]) + b"none" + payload
    columns = LogColumns(1)
    _, _, stop = kernel.scan_log(data, 0, len(data), CRCS[0].unchecked, columns)
    try:
        if kind == 3:
            expected = (gogo.decode(store_pb2.SubStateDelete, payload).id, 0)
        else:
            update = gogo.decode(store_pb2.SubStateUpdate, payload)
            expected = (update.id, update.seqno)
    except gogo.DecodeError:
        assert stop == ScanStop.BAD_DECODE
    else:
        assert stop == ScanStop.END
        assert (int(columns.id[0]), int(columns.seq[0])) == expected


@pytest.mark.golden
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(sorted(KINDS_OF_STORES), id="kinds"),
        pytest.param(sorted(path.name for path in GOLDEN.iterdir()), marks=pytest.mark.slow, id="all"),
    ],
)
def test_twins_on_golden_stores(cases: list[str]) -> None:
    compiled = KERNELS.compiled
    seen = set()
    for path in sorted(path for case in cases for path in (GOLDEN / case).glob("datastore/**/*")):
        if path.suffix not in (".dat", ".idx") or not path.is_file():
            continue
        data = path.read_bytes()
        if len(data) > 50_000 or data in seen:
            continue
        seen.add(data)
        function = Crc(crc.CASTAGNOLI) if "castagnoli" in str(path) else Crc()
        channel = path.parent.name.encode()
        for start in (0, 4, len(data) // 2):
            for used in (function, function.unchecked):
                scan = (data, start, len(data), used)
                assert messages(compiled, (*scan, channel), 500, 0) == messages(oracle, (*scan, channel), 500, 0)
                assert log(compiled, scan, 500, 0) == log(oracle, scan, 500, 0)
                assert compiled.scan_index(*scan) == oracle.scan_index(*scan)
            run = (*scan, channel, None, 0, 0, 500)
            assert compiled.scan_run(*run) == oracle.scan_run(*run)
            search = (data, start, len(data), function)
            assert compiled.find_record(*search, channel) == oracle.find_record(*search, channel)
            assert compiled.find_log_record(*search, 5) == oracle.find_log_record(*search, 5)
    assert len(seen) > 3 * len(cases)
