"""Limits of a channel that is being written: the same as removing message by message."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.format.crc import Crc
from stantools.store.limits import UNLIMITED, ChannelLimits, SliceLimits
from stantools.store.retention import Retention
from stantools.store.slice_output import remove_slice
from stantools.store.slicestate import SliceState
from stantools.store.slicewriter import SliceWriter, WriteOptions
from tests.store.slices import all_messages

IEEE = Crc()
TIME = 1 << 55


@dataclass
class Model:
    """The rules as the specification words them, one message at a time."""

    limits: ChannelLimits
    messages: list[tuple[int, int, int]] = field(default_factory=list)  # sequence, timestamp, cost

    def enforce(self, now: int) -> int:
        removed = 0
        limits, messages = self.limits, self.messages
        while len(messages) > 1 and (
            0 < limits.max_msgs < len(messages) or 0 < limits.max_bytes < sum(cost for _, _, cost in messages)
        ):
            messages.pop(0)
            removed += 1
        while limits.max_age_ns and messages and now - messages[0][1] >= limits.max_age_ns:
            messages.pop(0)
            removed += 1
        return removed


def keeping(writer: SliceWriter, limits: ChannelLimits, slices: Iterable[SliceState] = ()) -> Retention:
    """Makes a retention that removes files at once."""
    return Retention(writer, limits, slices, drop=partial(remove_slice, writer.directory))


def put(writer: SliceWriter, first: int, sizes: list[int]) -> list[tuple[int, int, int]]:
    sequences = list(range(first, first + len(sizes)))
    times = [TIME + 10 * n for n in sequences]
    costs = writer.append(sequences, times, None, [b"x" * size for size in sizes]).tolist()
    return [(n, time, cost + 40) for n, time, cost in zip(sequences, times, costs, strict=True)]


@given(
    batches=st.lists(st.tuples(st.lists(st.integers(0, 90), max_size=12), st.integers(0, 300)), max_size=12),
    slices=st.builds(SliceLimits, st.integers(0, 5), st.sampled_from([0, 200])),
    limits=st.builds(
        ChannelLimits, st.sampled_from([0, 1, 2, 7]), st.sampled_from([0, 1, 70, 500]), st.sampled_from([0, 35, 100])
    ),
    restart=st.integers(0, 12),
)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_as_the_specification_words_it(tmp_path, batches, slices, limits, restart):
    directory = tmp_path / "c"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    model = Model(limits)
    writer = SliceWriter(directory, b"c", IEEE, WriteOptions(slices, sync=False))
    retention = keeping(writer, limits)
    last, now = 0, TIME
    for number, (sizes, later) in enumerate(batches):
        if number == restart:
            # The server forgets what was removed logically and removes it again.
            writer.close()
            states = [*retention.slices]
            current = states.pop() if states else None
            writer = SliceWriter(directory, b"c", IEEE, WriteOptions(slices, sync=False), current=current)
            retention = keeping(writer, limits, states)
        model.messages += put(writer, last + 1, sizes)
        last += len(sizes)
        now = max(now, TIME + 10 * last) + later
        removed, expected = retention.enforce(now), model.enforce(now)
        assert removed == expected or number == restart
        assert (retention.count, retention.bytes) == (len(model.messages), sum(cost for _, _, cost in model.messages))
        if last:
            assert retention.first_sequence == (model.messages[0][0] if model.messages else last + 1)
        # The files of a slice are made with its first messages.
        writer.flush()
        numbers = {int(path.name.split(".")[1]) for path in directory.glob("msgs.*.dat")}
        assert numbers == {state.number for state in retention.slices}
    writer.close()
    have = [sequence for sequence, *_ in all_messages(directory, b"c", IEEE)]
    assert have[len(have) - len(model.messages) :] == [sequence for sequence, *_ in model.messages]
    assert bool(have) == bool(last)


def test_the_newest_message_stays_even_if_too_big_alone(tmp_path):
    with SliceWriter(tmp_path, b"c", IEEE) as writer:
        retention = keeping(writer, ChannelLimits(max_msgs=0, max_bytes=1000))
        put(writer, 1, [10] * 5)
        assert retention.enforce(TIME) == 0
        put(writer, 6, [5000])
        assert retention.enforce(TIME) == 5
        assert retention.first_sequence == 6
        put(writer, 7, [10])
        assert retention.enforce(TIME) == 1


def test_without_limits_nothing_is_read(tmp_path, monkeypatch):
    with SliceWriter(tmp_path, b"c", IEEE) as writer:
        retention = keeping(writer, UNLIMITED)
        put(writer, 1, [1] * 8)
        monkeypatch.setattr("stantools.store.retention.mapped", lambda _: pytest.fail("no need to look"))
        assert retention.enforce(TIME) == 0
        assert (retention.count, retention.first_sequence) == (8, 1)


def test_more_messages_than_are_looked_at_together(tmp_path):
    with SliceWriter(tmp_path, b"c", IEEE, WriteOptions(sync=False)) as writer:
        retention = keeping(writer, ChannelLimits(max_msgs=10))
        put(writer, 1, [1] * 10_000)
        assert retention.enforce(TIME) == 9990
        assert retention.first_sequence == 9991


def test_slices_of_before(tmp_path):
    with SliceWriter(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(max_msgs=2))) as writer:
        put(writer, 1, [1] * 4)
    writer_again = SliceWriter.resume(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(max_msgs=2)))
    before = [state for state in writer.finished if state.number == 1]
    assert isinstance(before[0], SliceState)
    retention = keeping(writer_again, ChannelLimits(max_msgs=3), before)
    assert (retention.count, retention.first_sequence) == (4, 1)
    assert retention.enforce(TIME) == 1
    assert retention.first_sequence == 2
    writer_again.close()
