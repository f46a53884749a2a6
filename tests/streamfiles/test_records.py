"""Records of message blocks: the vectors of the migration spec, gaps and limits, and both kernels alike."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stantools.format.message_batch import MessageBatch
from stantools.streamfiles import highwayhash
from stantools.streamfiles.layout import (
    MAX_RECORD_SIZE,
    MAX_SEQUENCE,
    MAX_SKIPS,
    OpenBlock,
    RecordColumns,
    RecordFlaw,
    WriteStop,
)
from tests.oracles import streamfiles as oracle
from tests.streamfiles.conftest import KERNELS
from tests.streamfiles.making import TIME, Item, batch, numbered, record_content

KEY = highwayhash.block_key("ORDERS", 1)
SLACK = 30 * MAX_SKIPS

RECORD_5 = bytes.fromhex(
    "2a000000 0500000000000000 15cdfbdf85573416 0700 666f6f2e626172 68656c6c6f 042ee76929aba80b".replace(" ", "")
)
RECORD_6 = bytes.fromhex(
    "3d000080 0600000000000000 16cdfbdf85573416 0700 666f6f2e626172 12000000"
    "4e4154532f312e300d0a413a20620d0a0d0a 6869 bf7bcc979a5fd48d".replace(" ", "")
)
SKIP_7 = bytes.fromhex("1e000000 0700000000000080 17cdfbdf85573416 0000 97e976deee9d948a".replace(" ", ""))


def encode(
    kernel: ModuleType,
    of: MessageBatch,
    *,
    first: int = 0,
    origin: bool = False,
    key: bytes = KEY,
    previous: int = 0,
    time: int = 0,
    room: int = 1 << 20,
    position: int = 0,
    size: int = -1,
) -> tuple[int, int, int, WriteStop, bytes]:
    """Encodes the rows of a batch into a block of its own; returns the block up to the end as well."""
    out = np.full(size if size >= 0 else room + SLACK, 0xAA, np.uint8)
    block = OpenBlock(out, room, key, position, previous, time)
    row, live, stop = kernel.encode_records(of, first, block, origin)
    end = block.position
    if row > first:
        # a message without a place has its skip records
        last = of.stream_sequence[row] - 1 if stop is WriteStop.FULL else of.stream_sequence[row - 1]
        assert (block.last, block.last_time) == (last, of.timestamp[row - 1])
    assert isinstance(stop, WriteStop)
    assert (out[:position] == 0xAA).all()
    assert (out[end:] == 0xAA).all(), "something was written behind the end"
    return row, end, live, stop, out[position:end].tobytes()


def scan(
    kernel: ModuleType, block: bytes, *, position: int = 0, capacity: int = 5000, key: bytes = KEY
) -> tuple[int, int, RecordFlaw, dict[str, list[int]]]:
    columns = RecordColumns(capacity)
    rows, end, flaw = kernel.scan_records(block, position, key, columns)
    assert isinstance(flaw, RecordFlaw)
    if not position and flaw is not RecordFlaw.FULL:
        assert kernel.end_of_records(block, key) == end
    part = columns.take(rows)
    return rows, end, flaw, {n: getattr(part, n).tolist() for n in RecordColumns.names}


class TestVectors:
    """Section 16."""

    def test_a_record(self, kernel: ModuleType) -> None:
        found = encode(kernel, batch([Item(5, TIME, b"hello")]))
        assert found == (1, 42, 42, WriteStop.DONE, RECORD_5)

    def test_a_skip_record(self, kernel: ModuleType) -> None:
        out: NDArray[np.uint8] = np.zeros(40, np.uint8)
        block = OpenBlock(out, 40, KEY, 5)
        kernel.encode_skips(block, 7, 1, TIME + 2)
        assert block.position == 35
        assert out[5:35].tobytes() == SKIP_7

    def test_a_block(self, kernel: ModuleType) -> None:
        rows, end, flaw, found = scan(kernel, RECORD_5 + RECORD_6 + SKIP_7)
        assert (rows, end, flaw) == (3, 133, RecordFlaw.NONE)
        assert found["sequence"] == [5, 6, 7]
        assert found["flags"] == [0, 0, 2]
        assert found["timestamp"] == [TIME, TIME + 1, TIME + 2]
        assert found["length"] == [42, 61, 30]
        assert found["subject_start"] == [22, 64, 125]
        assert found["subject_size"] == [7, 7, 0]
        assert found["header_start"] == [0, 75, 0]
        assert found["header_size"] == [0, 18, 0]
        assert found["data_start"] == [29, 93, 125]
        assert found["data_size"] == [5, 2, 0]


class TestGaps:
    """Section 5.3: a skip record for each missing sequence, but not at the beginning of a block."""

    def test_filled_within_a_block(self, kernel: ModuleType) -> None:
        row, _, live, stop, block = encode(kernel, batch(numbered([3, 6, 7])))
        assert (row, stop) == (3, WriteStop.DONE)
        found = scan(kernel, block)[3]
        assert found["sequence"] == [3, 4, 5, 6, 7]
        assert found["flags"] == [0, 2, 2, 0, 0]
        assert found["timestamp"] == [TIME + 3, TIME + 3, TIME + 3, TIME + 6, TIME + 7]
        assert live == len(block) - 60

    def test_from_the_batch_before(self, kernel: ModuleType) -> None:
        _, _, _, _, block = encode(kernel, batch(numbered([5])), previous=2, time=99, position=7)
        found = scan(kernel, block)[3]
        assert found["sequence"] == [3, 4, 5]
        assert found["timestamp"] == [99, 99, TIME + 5]

    def test_not_at_the_beginning(self, kernel: ModuleType) -> None:
        assert scan(kernel, encode(kernel, batch(numbered([1000])), previous=2)[4])[3]["sequence"] == [1000]

    def test_widest(self, kernel: ModuleType) -> None:
        row, end, _, stop, block = encode(kernel, batch(numbered([1, MAX_SKIPS + 2])), room=4 << 20)
        assert (row, stop) == (2, WriteStop.DONE)
        assert end == 30 * MAX_SKIPS + 2 * 49
        rows, _, flaw, found = scan(kernel, block, capacity=MAX_SKIPS + 9)
        assert (rows, flaw) == (MAX_SKIPS + 2, RecordFlaw.NONE)
        assert found["sequence"] == list(range(1, MAX_SKIPS + 3))

    def test_too_wide(self, kernel: ModuleType) -> None:
        of = batch(numbered([1, MAX_SKIPS + 3, MAX_SKIPS + 4]))
        row, end, _, stop, _ = encode(kernel, of)
        assert (row, end, stop) == (1, 49, WriteStop.GAP)
        assert encode(kernel, of, first=1, previous=1)[:2] == (3, 98)

    def test_filled_although_the_message_has_no_room(self, kernel: ModuleType) -> None:
        row, end, live, stop, block = encode(kernel, batch(numbered([1, 4])), room=100)
        assert (row, end, live, stop) == (1, 49 + 60, 49, WriteStop.FULL)
        assert scan(kernel, block)[3]["sequence"] == [1, 2, 3]


class TestLimits:
    def test_full(self, kernel: ModuleType) -> None:
        of = batch(numbered(range(1, 11)))
        assert encode(kernel, of, room=49 * 4)[:4] == (4, 196, 196, WriteStop.FULL)
        assert encode(kernel, of, room=49 * 4 - 1)[:4] == (3, 147, 147, WriteStop.FULL)
        assert encode(kernel, of, first=4, previous=4, room=1000, position=951)[:4] == (5, 1000, 49, WriteStop.FULL)
        assert encode(kernel, of, first=9, room=1000)[:4] == (10, 49, 49, WriteStop.DONE)

    def test_a_first_record_may_be_larger_than_the_room(self, kernel: ModuleType) -> None:
        of = batch(numbered([1, 2, 3], 1000))
        assert encode(kernel, of, room=100)[:4] == (1, 1037, 1037, WriteStop.FULL)

    def test_a_block_that_is_too_small_is_full_while_it_is_empty(self, kernel: ModuleType) -> None:
        assert encode(kernel, batch(numbered([1], 1000)), room=100, size=500)[:4] == (0, 0, 0, WriteStop.FULL)

    def test_record_too_large(self, kernel: ModuleType) -> None:
        of = batch([Item(1), Item(2, data=bytes(MAX_RECORD_SIZE - 36))])
        assert encode(kernel, of, room=MAX_RECORD_SIZE + 100)[:4] == (1, 37, 37, WriteStop.TOO_LARGE)
        assert encode(kernel, of, first=1, room=MAX_RECORD_SIZE + 100)[:4] == (1, 0, 0, WriteStop.TOO_LARGE)

    def test_largest_record(self, compiled: ModuleType) -> None:
        of = batch([Item(1, data=bytes(MAX_RECORD_SIZE - 37))])
        found = encode(compiled, of, size=MAX_RECORD_SIZE)
        assert found[:4] == (1, MAX_RECORD_SIZE, MAX_RECORD_SIZE, WriteStop.DONE)

    def test_sequences_that_a_stream_cannot_have(self, kernel: ModuleType) -> None:
        rows: list[tuple[list[int], int]] = [
            ([3, 3], 0),
            ([3, 2], 0),
            ([3, MAX_SEQUENCE + 1], 0),
            ([3, (1 << 64) - 1], 0),
            ([3, 1], 0),
        ]
        for sequences, previous in rows:
            found = encode(kernel, batch([Item(n) for n in sequences]), previous=previous)
            assert (found[0], found[3]) == (1, WriteStop.BAD_SEQUENCE), (sequences, previous)

    @pytest.mark.parametrize(("sequence", "previous"), [(0, 0), (5, 5), (4, 5)])
    def test_first_sequence(self, kernel: ModuleType, sequence: int, previous: int) -> None:
        for position in (0, 9):
            found = encode(kernel, batch([Item(sequence)]), previous=previous, position=position)
            assert (found[0], found[1], found[3]) == (0, position, WriteStop.BAD_SEQUENCE)

    def test_the_greatest_sequence(self, kernel: ModuleType) -> None:
        block = encode(kernel, batch([Item(MAX_SEQUENCE)]))[4]
        assert scan(kernel, block)[3]["sequence"] == [MAX_SEQUENCE]

    def test_no_rows(self, kernel: ModuleType) -> None:
        assert encode(kernel, batch([]), position=7, previous=3) == (0, 7, 0, WriteStop.DONE, b"")


class TestWrongUse:
    """ValueError, and nothing is read or written outside."""

    def test_places_outside_of_the_buffer(self, kernel: ModuleType) -> None:
        rows: list[tuple[str, int]] = [
            ("data_start", -1),
            ("data_start", 1 << 62),
            ("data_size", (1 << 25) - 100),
            ("reply_start", -5),
            ("reply_start", 25),
            ("reply_size", 1 << 20),
        ]
        for column, value in rows:
            of = batch([Item(1, data=b"data", reply=b"reply")])
            getattr(of, column)[0] = value
            with pytest.raises(ValueError, match="beyond"):
                encode(kernel, of, room=1 << 26)
                pytest.fail(f"accepted: {(column, value)!r}")

    def test_arguments(self, kernel: ModuleType) -> None:
        of = batch(numbered([1, 70]))
        out: NDArray[np.uint8] = np.zeros(1000, np.uint8)
        for first, key, room, content, position in [
            (3, KEY, 500, out, 0),
            (-1, KEY, 500, out, 0),
            (0, KEY[1:], 500, out, 0),
            (0, KEY, 500, out, -1),
            (0, KEY, 500, out, 1001),
            (0, KEY, 500, out[:0], 0),
            (0, KEY, 500, out, 0),  # no room for the skip records
        ]:
            with pytest.raises(ValueError):
                kernel.encode_records(of, first, OpenBlock(content, room, key, position), False)
        with pytest.raises(ValueError, match="subject"):
            kernel.encode_records(batch([Item(1)], subject=bytes(65536)), 0, OpenBlock(out, 500, KEY), False)
        for count, position in [(34, 0), (1, 971), (1, -1)]:
            with pytest.raises(ValueError, match="fit"):
                kernel.encode_skips(OpenBlock(out, 1000, KEY, position), 1, count, 0)
        with pytest.raises(ValueError, match="position"):
            kernel.scan_records(b"", 1, KEY, RecordColumns(1))
        with pytest.raises(ValueError, match="key"):
            kernel.scan_records(RECORD_5, 0, b"", RecordColumns(1))


class TestDamage:
    """Reading stops at the first record that is not good, as a server does."""

    BLOCK = RECORD_5 + RECORD_6 + SKIP_7

    def test_cut(self, kernel: ModuleType) -> None:
        ends = {0: 0, 42: 1, 103: 2, 133: 3}
        for size in range(len(self.BLOCK) + 1):
            rows, end, flaw, _ = scan(kernel, self.BLOCK[:size])
            whole = max(place for place in ends if place <= size)
            assert (rows, end) == (ends[whole], whole)
            assert flaw is (RecordFlaw.NONE if size in ends else RecordFlaw.CUT)

    def test_every_byte_counts(self, kernel: ModuleType) -> None:
        """But for sizes within a record: they are not hashed, and may move a border unnoticed."""
        unguarded = {20, 21, 62, 63, 71, 72, 73, 74}
        for place in set(range(len(self.BLOCK))) - unguarded:
            bad = bytearray(self.BLOCK)
            bad[place] ^= 0x10
            rows, _, flaw, _ = scan(kernel, bytes(bad))
            assert flaw in (RecordFlaw.CUT, RecordFlaw.BAD_LENGTH, RecordFlaw.BAD_HASH)
            assert rows == (place >= 42) + (place >= 103)

    def test_sizes_that_contradict_each_other(self, kernel: ModuleType) -> None:
        rows: list[tuple[dict[int, int], RecordFlaw]] = [
            ({0: 29}, RecordFlaw.BAD_LENGTH),
            ({3: 0x02, 2: 1}, RecordFlaw.BAD_LENGTH),
            ({20: 13}, RecordFlaw.BAD_LENGTH),
            ({3: 0x80, 29: 2, 30: 0, 31: 0, 32: 0}, RecordFlaw.BAD_LENGTH),
            ({3: 0x80, 20: 9}, RecordFlaw.BAD_LENGTH),
            ({3: 0x80, 29: 1, 30: 0, 31: 0, 32: 0}, RecordFlaw.BAD_HASH),
            ({3: 0x80, 20: 7, 29: 255, 30: 255, 31: 255, 32: 255}, RecordFlaw.BAD_LENGTH),
            ({20: 12, 30: 0}, RecordFlaw.BAD_HASH),
            ({0: 43}, RecordFlaw.CUT),
        ]
        for change, flaw in rows:
            bad = bytearray(RECORD_5)
            for place, value in change.items():
                bad[place] = value
            assert scan(kernel, bytes(bad))[:3] == (0, 0, flaw), (change, flaw)

    def test_another_key(self, kernel: ModuleType) -> None:
        assert scan(kernel, self.BLOCK, key=highwayhash.block_key("ORDERS", 2))[:3] == (0, 0, RecordFlaw.BAD_HASH)

    def test_capacity(self, kernel: ModuleType) -> None:
        assert scan(kernel, self.BLOCK, capacity=2)[:3] == (2, 103, RecordFlaw.FULL)
        assert scan(kernel, self.BLOCK, capacity=2, position=103)[:3] == (1, 133, RecordFlaw.NONE)
        assert scan(kernel, self.BLOCK, capacity=0)[:3] == (0, 0, RecordFlaw.FULL)
        assert scan(kernel, b"", capacity=0)[:3] == (0, 0, RecordFlaw.NONE)


times = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([0, -1, 9, -9, TIME]))
replies = st.one_of(st.just(b""), st.binary(min_size=1, max_size=20))
# Large enough for the two ways in which the plain kernel copies.
payloads = st.one_of(st.binary(max_size=70), st.binary(min_size=200, max_size=600))


@st.composite
def batches(draw: st.DrawFn) -> MessageBatch:
    places = draw(st.lists(st.integers(1, 60), max_size=25))
    messages, at, origin = [], 0, 0
    for step in places:
        at += step if step < 10 else 1
        origin = draw(st.one_of(st.just(at), st.integers(0, (1 << 64) - 1)))
        messages.append(Item(origin, draw(times), draw(payloads), draw(replies), at))
    return batch(messages, draw(st.binary(max_size=40)), draw(st.binary(min_size=1, max_size=40)))


quick = settings(
    max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


@quick
@given(batches(), st.booleans(), st.integers(30, 4000), st.binary(min_size=32, max_size=32), st.data())
def test_both_write_the_same(of: MessageBatch, origin: bool, room: int, key: bytes, data: st.DataObject) -> None:
    compiled = KERNELS.compiled
    first = data.draw(st.integers(0, len(of)))
    where: dict[str, Any] = {"first": first, "origin": origin, "key": key, "room": room, "size": room + 20000}
    where["position"] = data.draw(st.integers(0, room))
    where["previous"] = data.draw(st.integers(0, int(of.stream_sequence[first]) if first < len(of) else 9))
    where["time"] = data.draw(times)
    assert encode(oracle, of, **where) == encode(compiled, of, **where)


@quick
@given(batches(), st.booleans())
def test_what_is_written_is_read(of: MessageBatch, origin: bool) -> None:
    rows = len(of)
    for kernel in KERNELS.both:
        row, _, live, stop, block = encode(kernel, of, origin=origin)
        assert (row, stop) == (rows, WriteStop.DONE)
        for reader in KERNELS.both:
            count, end, flaw, found = scan(reader, block)
            assert (end, flaw) == (len(block), RecordFlaw.NONE)
            parts = []
            for index in range(count):
                if found["flags"][index] == 0:
                    piece = {
                        name: block[found[f"{name}_start"][index] :][: found[f"{name}_size"][index]]
                        for name in ("subject", "header", "data")
                    }
                    facts = (found["sequence"][index], found["timestamp"][index])
                    parts.append((*facts, piece["subject"], piece["header"], piece["data"]))
            assert parts == [
                record_content(
                    Item(
                        int(of.sequence[index]),
                        int(of.timestamp[index]),
                        of.data(index),
                        of.reply(index),
                        int(of.stream_sequence[index]),
                    ),
                    of.channel,
                    of.subject,
                    origin,
                )
                for index in range(rows)
            ]
            assert live == sum(n for n, flags in zip(found["length"], found["flags"], strict=True) if not flags)


@quick
@given(batches(), st.integers(0, 1 << 30))
def test_both_read_damage_alike(of: MessageBatch, seed: int) -> None:
    compiled = KERNELS.compiled
    block = bytearray(encode(compiled, of)[4])
    chance = random.Random(seed)
    for _ in range(chance.randrange(4)):
        if block:
            place = chance.randrange(len(block))
            block[place] = chance.choice([0, 0xFF, 0x80, block[place] ^ 1, chance.randrange(256)])
    cut = bytes(block[: chance.randrange(len(block) + 1)]) if chance.random() < 0.3 else bytes(block)
    capacity = chance.choice([0, 1, 3, 5000])
    assert scan(oracle, cut, capacity=capacity) == scan(compiled, cut, capacity=capacity)


@quick
@given(st.binary(max_size=200), st.integers(0, 200))
def test_both_read_anything_alike(block: bytes, position: int) -> None:
    compiled = KERNELS.compiled
    start = min(position, len(block))
    assert scan(oracle, block, position=start) == scan(compiled, block, position=start)
