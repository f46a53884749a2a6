"""Message stores against a simple model: everything that was promised is there, nothing else, whatever fails."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.stores import open_store
from broker.stores.interface import MessageStore, StateStore, StorageError
from broker.stores.store_options import FileOptions
from stantools.inspection.verify import verify
from stantools.store.directory import open_datastore
from stantools.store.limits import UNLIMITED, ChannelLimits, SliceLimits, StoreLimits
from stantools.store.serverinfo import new_server_info
from tests.broker.stores.faults import faults
from tests.broker.stores.making import IEEE, SECOND, START, block, everything, flush, made

NAME = b"foo"


class Model:
    """What a channel should hold: (sequence, timestamp, data) of each message."""

    def __init__(self, limits: ChannelLimits, overhead: int) -> None:
        self.limits = limits
        self.overhead = overhead
        self.kept: list[tuple[int, int, bytes, int]] = []
        self.staged: list[tuple[int, int, bytes, int]] = []
        self.flushed_last = self.last = 0

    def append(self, records, payloads: list[bytes]) -> None:
        for row, data in enumerate(payloads):
            size = int(records.sizes[row]) + self.overhead
            self.staged.append((int(records.sequences[row]), int(records.timestamps[row]), data, size))
        self.last = self.staged[-1][0]

    def flush(self) -> None:
        self.kept += self.staged
        self.staged = []
        self.flushed_last = self.last
        limits = self.limits
        while len(self.kept) > 1 and (
            0 < limits.max_msgs < len(self.kept) or 0 < limits.max_bytes < sum(each[3] for each in self.kept)
        ):
            del self.kept[0]

    def expire(self, now: int) -> None:
        while self.kept and now - self.kept[0][1] >= self.limits.max_age_ns > 0:
            del self.kept[0]

    def take_back(self) -> None:
        self.staged = []
        self.last = self.flushed_last

    def check(self, store: MessageStore) -> None:
        there = self.kept + self.staged
        assert store.last == self.last
        assert store.first == (there[0][0] if there else self.last + 1 if self.last else 0)
        assert store.count == len(there)
        assert store.bytes == sum(each[3] for each in there)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 300), min_size=1, max_size=12)),
        st.tuples(st.just("add"), st.integers(0, 300)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("read"), st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(0, 2000))),
        st.tuples(st.just("time"), st.integers(-3, 60)),
        st.tuples(st.just("expire"), st.integers(0, 60)),
        st.tuples(st.just("fail"), st.tuples(st.integers(0, 12), st.booleans())),
        st.tuples(st.just("forget"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=40,
)
limits = st.builds(
    ChannelLimits,
    st.sampled_from([0, 1, 7, 25]),
    st.sampled_from([0, 500, 3000]),
    st.sampled_from([0, 20 * SECOND]),
)
slices = st.builds(SliceLimits, st.sampled_from([0, 3, 10]), st.sampled_from([0, 400, 1 << 20]))


def run(make: Callable[[], StateStore], allowed: ChannelLimits, steps, *, overhead: int, lasting: bool) -> None:
    """Does the same to a store and to the model, and compares them after every step."""
    with faults() as broken:
        store = make()
        store.recover()
        store.init(new_server_info("test-cluster"))
        channel = made(store, NAME)
        model = Model(allowed, overhead)
        clean = True
        for kind, value in steps:
            messages, failures = channel.messages, broken.happened
            try:
                if kind == "append":
                    payloads = [b"%d" % size * size for size in value]
                    records = block(NAME, messages.last + 1, payloads, crc=store.crc or IEEE)
                    messages.append(records)
                    model.append(records, payloads)
                elif kind == "add" and channel.single_store is not None and not model.staged:
                    payloads = [b"%d" % value * value]
                    records = block(NAME, messages.last + 1, payloads, crc=store.crc or IEEE)
                    record = bytes(records.data), int(records.sequences[0]), int(records.timestamps[0])
                    if channel.single_store.add(record):
                        model.append(records, payloads)
                        model.flush()
                        if broken.happened > failures:
                            flush(store, messages)
                elif kind == "flush":
                    flush(store, messages)
                    model.flush()
                    if broken.happened > failures:
                        # Stored; only what limits remove could not be removed.
                        flush(store, messages)
            except StorageError:
                model.take_back()
                clean = False
            if kind == "fail" and lasting:
                broken.after, broken.lasting = value
            elif kind == "forget":
                messages.end_reading()
            broken_now = broken.after is not None
            if broken_now:
                continue
            if kind == "expire":
                if not model.staged:
                    soon = messages.expire(START + value * SECOND)
                    model.expire(START + value * SECOND)
                    assert (soon is None) == (not model.kept or not allowed.max_age_ns)
                    if soon is not None:
                        assert soon == model.kept[0][1] + allowed.max_age_ns
            elif kind == "read":
                first, count, size = value
                # What is not flushed may be there or not.
                there = [each for each in model.kept + model.staged if each[0] >= first]
                found = messages.read(first, count, size)
                assert len(found) <= count
                assert there if len(found) else not any(each[0] >= first for each in model.kept)
                assert found.sequences.tolist() == [each[0] for each in there[: len(found)]]
                assert found.sizes.sum() <= size or len(found) == 1 or not len(found)
            elif kind == "time":
                there = model.kept + model.staged
                wanted = START + value * SECOND
                expected = next((each[0] for each in there if each[1] >= wanted), model.last + 1 if model.last else 0)
                assert min(messages.sequence_at(wanted), model.flushed_last + 1) == min(
                    expected, model.flushed_last + 1
                )
            elif kind == "reopen" and lasting and not model.staged:
                store.close()
                store = make()
                recovered = store.recover()
                assert recovered is not None
                channel = recovered.channels[NAME][0]
                messages = channel.messages
                # What limits removed and is still in a file comes back, as far as limits allow.
                before = model.kept
                model.kept = [
                    (each.sequence, each.timestamp, each.data, each.ByteSize() + overhead)
                    for each in everything(messages)
                ]
                assert before == model.kept[len(model.kept) - len(before) :]
            model.check(messages)
            seen = [(each.sequence, each.timestamp, each.data) for each in everything(messages, count=5)]
            assert seen == [each[:3] for each in model.kept + model.staged][: len(seen)]
            assert len(seen) >= len(model.kept)
        broken.after = None
        broken.lasting = False
        messages = channel.messages
        flush(store, messages)
        model.flush()
        model.check(messages)
        store.close()
    if clean:
        again = make()
        again.recover()
        again.close()


@given(operations, limits)
@settings(max_examples=60, deadline=None)
def test_memory(steps, allowed):
    run(
        lambda: open_store("MEMORY", None, StoreLimits(0, allowed)),
        allowed,
        [step for step in steps if step[0] not in ("fail", "reopen")],
        overhead=0,
        lasting=False,
    )


@given(
    operations,
    limits,
    slices,
    st.sampled_from([0, 100, 1 << 20]),
    st.booleans(),
    st.sampled_from([0, 200, 1 << 20]),
)
@settings(max_examples=60, deadline=None)
@example(
    [("append", [1]), ("flush", 0), ("fail", (0, True)), ("append", [1, 2, 3, 4]), ("flush", 0)],
    UNLIMITED,
    SliceLimits(3, 0),
    0,
    True,
    0,
)
def test_file(steps, allowed, parts, buffer_size, sync, read_buffer):
    directory = Path(tempfile.mkdtemp())
    try:
        options = FileOptions(
            directory / "store", buffer_size=buffer_size, slices=parts, sync=sync, read_buffer_size=read_buffer
        )
        run(
            lambda: open_store(
                "FILE", options, StoreLimits(0, allowed), cluster_id=b"test-cluster", wall=lambda: START
            ),
            allowed,
            steps,
            overhead=40,
            lasting=True,
        )
        assert not [
            each for each in verify(open_datastore(directory / "store", IEEE)).findings if each.severity != "info"
        ]
    finally:
        shutil.rmtree(directory)
