"""The kernels of streams: both do what adding and taking out one message after the other does."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.stores.streams import kernels
from broker.stores.streams.contents import Contents
from stantools.nats.frames import Frames, frame_table
from stantools.streamfiles import highwayhash
from stantools.streamfiles.layout import record_size
from stantools.streamfiles.records import tombstone
from tests.kernelpairs import KernelPair
from tests.oracles import streams as oracle
from tests.oracles.streamfiles import encode_record

KERNELS = KernelPair(kernels, oracle)
kernel = KERNELS.fixture()

KEY = highwayhash.block_key("ORDERS", 1)
TIME = 1_600_000_000_000_000_001

Message = tuple[bytes, bytes, bytes]

messages = st.tuples(
    st.sampled_from((b"a", b"a.b", b"c", b"d.e")),
    st.sampled_from((b"", b"", b"NATS/1.0\r\n\r\n", b"x" * 90)),
    st.binary(max_size=60),
)
batches = st.lists(
    st.tuples(st.lists(messages, min_size=1, max_size=12), st.integers(0, 600), st.booleans()), max_size=10
)


def laid_out(of: list[Message]) -> tuple[bytes, Frames]:
    """Messages one behind the other, and a table of them with a row before and one behind."""
    buffer, frames = b"", frame_table(len(of) + 2)
    frames[[0, -1]] = -5
    for row, (subject, header, payload) in enumerate(of, 1):
        start = len(buffer) + 1
        body = start + len(subject)
        frames[row] = (start, len(subject), 0, 0, len(header), body, len(header) + len(payload), -1)
        buffer += b"|" + subject + header + payload
    return buffer, frames


def state(contents: Contents) -> Any:
    """All there is to be known."""
    return (
        [
            [(name, getattr(each, name)) for name in each.__slots__]
            for each in (*contents.segments, *contents.subjects.values())
        ],
        list(contents.subjects),
        (contents.messages, contents.bytes, contents.first, contents.last, contents.first_time, contents.last_time),
    )


def one_by_one(contents: Contents, time: int, of: list[Message], place: int, most: int) -> tuple[bytes, Any]:
    """Adds messages, and then takes out those that are too many, each with the call for one."""
    records, gone = b"", []
    for each in of:
        size = record_size(*each)
        contents.add(contents.last + 1, time, each[0], size, place)
        records += encode_record(contents.last, time, *each, KEY)
        place += size
    for subject in dict.fromkeys(each[0] for each in of) if most else ():
        entry = contents.subjects[subject]
        while entry.count > most:
            gone.append((contents.first_of(entry), entry.number))
            found = contents.locate(gone[-1][0])
            assert found is not None
            contents.discard(*found)
    return records, gone


@settings(max_examples=300, deadline=None)
@given(batches, st.integers(0, 3), st.integers(1, 1 << 61), st.lists(st.integers(0, 60), max_size=6))
def test_messages_are_added_and_dropped_as_one_by_one(todo: Any, most: int, first: int, others: list[int]) -> None:
    kernels = KERNELS.both
    expected, found = Contents(first), [Contents(first) for _ in kernels]
    for number, (of, room, begins) in enumerate(todo):
        buffer, frames = laid_out(of)
        place = number * 10_000
        if begins or not expected.segments:
            for each in (expected, *found):
                each.begin(each.last + 1, number)
        sizes = [record_size(*each) for each in of]
        count = 1
        while count < len(of) and sum(sizes[: count + 1]) <= room:
            count += 1
        if number < len(others):
            # One that went by itself before.
            for each in (expected, *found):
                row = each.locate(each.first + others[number])
                if row is not None:
                    each.discard(*row)
        before = expected.last
        records, gone = one_by_one(expected, TIME + number, of[:count], place, most)
        answers: list[Any] = []
        for kernel, contents in zip(kernels, found, strict=True):
            lost = [each.live for each in contents.segments]
            arguments = (buffer, frames, 1, 1 + len(of), TIME + number, KEY, place, room, most)
            made, over = kernel.enter_rows(contents, *arguments)
            assert made == records
            assert contents.last == before + count
            lost[-1] += count
            times = {sequence: contents.locate(sequence) for sequence, _ in gone}
            graves = {sequence: found[0].times[found[1]] for sequence, found in times.items() if found}
            went, touched, tombstones, numbers = (
                kernel.drop_firsts(contents, over, most, KEY) if over else ([], [], b"", b"")
            )
            assert sorted(went) == sorted(gone)
            assert tombstones == b"".join(tombstone(sequence, graves[sequence], KEY) for sequence, _ in went)
            assert array("Q", numbers).tolist() == [sequence for sequence, _ in went]
            answers.append((went, [entry.name for entry in over], [many for _, many in touched]))
            lost = [was - each.live for was, each in zip(lost, contents.segments, strict=True)]
            totals = [sum(many for segment, many in touched if segment is each) for each in contents.segments]
            assert totals == lost
            assert state(contents) == state(expected)
        assert all(each == answers[0] for each in answers)


@given(st.lists(messages, min_size=1, max_size=9))
def test_measures(of: list[Message]) -> None:
    _, frames = laid_out(of)
    bodies = [len(header) + len(payload) for _, header, payload in of]
    names = [len(subject) for subject, _, _ in of]
    headers = sum(header != b"" for _, header, _ in of)
    for kernel in KERNELS.both:
        found = kernel.measure_rows(frames, 1, 1 + len(of))
        assert found == (headers, sum(bodies), sum(names), max(bodies), max(names))


@pytest.mark.parametrize(
    "row",
    [
        (-1, 1, 0, 0, 0, 0, 1, 0),
        (0, 9, 0, 0, 0, 0, 1, 0),
        (0, 1, 0, 0, 2, 0, 1, 0),
        (0, 1, 0, 0, -1, 0, 1, 0),
        (0, 1, 0, 0, 0, 8, 1, 0),
        (0, 1, 0, 0, 0, -1, 1, 0),
        (0, -1, 0, 0, 0, 0, 1, 0),
        (0, 1, 0, 0, 0, 0, -1, 0),
        ((1 << 31) - 1, (1 << 31) - 1, 0, 0, 0, 0, 1, 0),
    ],
)
def test_what_lies_outside_is_refused(kernel: ModuleType, row: tuple[int, ...]) -> None:
    frames = frame_table(2)
    frames[0] = (0, 1, 0, 0, 0, 0, 1, 0)
    frames[1] = row
    contents = Contents()
    contents.begin(1)
    before = state(contents)
    with pytest.raises(ValueError, match="reaches beyond"):
        kernel.enter_rows(contents, b"abcdefgh", frames, 0, 2, TIME, KEY, 0, 9999, 1)
    assert state(contents) == before


@pytest.mark.parametrize(("begin", "end"), [(-1, 1), (0, 3), (1, 1), (2, 1)])
def test_rows_that_are_not_there_are_refused(kernel: ModuleType, begin: int, end: int) -> None:
    contents = Contents()
    contents.begin(1)
    with pytest.raises(ValueError, match="lie outside"):
        kernel.enter_rows(contents, b"abcdefgh", frame_table(2), begin, end, TIME, KEY, 0, 9999, 1)
    with pytest.raises(ValueError, match="lie outside"):
        kernel.measure_rows(frame_table(2), begin, end)
    with pytest.raises(ValueError, match="lie outside"):
        kernel.measure_rows(frame_table(2)[:, :7].copy(), 0, 1)


def test_what_no_record_holds_is_refused(kernel: ModuleType) -> None:
    frames = frame_table(1)
    frames[0] = (0, 1 << 16, 0, 0, 0, 0, 1, 0)
    contents = Contents()
    contents.begin(1)
    with pytest.raises(ValueError, match="a record of 65567 bytes"):
        kernel.enter_rows(contents, bytes(1 << 17), frames, 0, 1, TIME, KEY, 0, 9999, 1)
    frames[0] = (0, 1, 0, 0, 0, 0, 1, 0)
    with pytest.raises(ValueError, match="a key of 3 bytes"):
        kernel.enter_rows(contents, bytes(8), frames, 0, 1, TIME, b"key", 0, 9999, 1)
    assert not contents.messages
