"""Whole archives: what is built is read back, with both kernels; sizes, gaps, state and errors."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.errors import RefusedError, UsageError
from stantools.format.columns import MessageColumns
from stantools.format.message_batch import MessageBatch
from stantools.streamfiles.framing import unframe
from stantools.streamfiles.layout import MAX_RECORD_SIZE, MAX_SEQUENCE, MAX_SKIPS
from stantools.streamfiles.meta import ConsumerState
from stantools.streamfiles.reader import ArchiveReader
from stantools.streamfiles.writer import ArchiveState, ConsumerEntry, StreamArchive, measure
from tests.streamfiles.conftest import KERNELS
from tests.streamfiles.making import TIME, Item, batch, contents, numbered, record_content

CREATED = 1_500_000_000_000_000_001


def archive(**options: Any) -> StreamArchive:
    options = {"origin": False, **options}
    return StreamArchive("ORDERS", {"subjects": ["foo.bar"]}, CREATED, **options)


def build(
    of: StreamArchive, batches: Iterable[MessageBatch], last: int = 0, consumers: Sequence[ConsumerEntry] = ()
) -> bytes:
    return b"".join(bytes(piece) for piece in of.pieces(batches, lambda: consumers, last))


def files(data: bytes) -> dict[str, bytes]:
    plain = io.BytesIO(b"".join(bytes(part) for part in unframe([data], "x")))
    with tarfile.open(fileobj=plain, mode="r:") as opened:
        return {member.name: opened.extractfile(member).read() for member in opened.getmembers()}  # type: ignore[union-attr]


def expected_skips(places: Sequence[int], last: int) -> list[int]:
    """Every missing sequence, but not those of a wide gap, and of a stream without messages only the last one."""
    if not places:
        return [last] if last else []
    skips: list[int] = []
    for before, behind in pairwise(places):
        if behind - before - 1 <= MAX_SKIPS:
            skips += range(before + 1, behind)
    if last - places[-1] > MAX_SKIPS:
        return [*skips, last]
    return [*skips, *range(places[-1] + 1, last + 1)]


def check(messages: Sequence[Item], last: int, *, parts: int = 1, **options: Any) -> dict[int, int]:
    """Builds an archive, reads it back, and compares all of it; returns how many records each block has."""
    size = -(-len(messages) // parts) or 1
    batches = [batch(messages[begin : begin + size]) for begin in range(0, len(messages), size)]
    of = archive(**options)
    reader = ArchiveReader([build(of, batches, last)])
    found, skips, blocks = contents(reader)
    origin = options.get("origin", False)
    assert found == [record_content(message, b"foo.bar", b"foo.bar", origin) for message in messages]
    assert reader.state == of.state == measure(batches, origin=origin, last=last)
    places = [message.place for message in messages]
    state = of.state
    assert (state.messages, state.last_seq) == (len(messages), max(last, *places, 0))
    if messages:
        assert (state.first_seq, state.first_ts) == (places[0], messages[0].timestamp)
        assert state.last_ts == messages[-1].timestamp
    assert skips == expected_skips(places, last)
    return blocks


class TestContents:
    def test_files(self, used_kernel: ModuleType) -> None:
        consumers = [ConsumerEntry("dur1", {}, ConsumerState((1, 1), (2, 2), {2: (2, TIME)})), ConsumerEntry("new", {})]
        found = files(build(archive(block_bytes=100), [batch(numbered([1, 2, 3]))], 3, consumers))
        names = ["meta.inf", "meta.sum", "msgs/1.blk", "msgs/2.blk"]
        names += ["obs/dur1/meta.inf", "obs/dur1/meta.sum", "obs/dur1/o.dat", "obs/new/meta.inf", "obs/new/meta.sum"]
        assert list(found) == names
        assert len(found["msgs/1.blk"]) == 98
        assert b'"Created":"2017-07-14T02:40:00.000000001Z"' in found["meta.inf"]

    def test_consumers(self, used_kernel: ModuleType) -> None:
        state = ConsumerState((1, 1), (3, 3), {2: (2, TIME // 10**9 * 10**9)}, {2: 1})
        consumers = [ConsumerEntry("d" * 200, {"ack_wait": 7}, state), ConsumerEntry("é", {})]
        reader = ArchiveReader([build(archive(), [batch(numbered([1, 2, 3]))], 3, consumers)])
        contents(reader)
        assert [(entry.name, entry.state) for entry in reader.consumers] == [("d" * 200, state), ("é", None)]
        assert reader.consumers[0].config["ack_wait"] == 7
        assert (reader.stream, reader.config["subjects"]) == ("ORDERS", ["foo.bar"])

    @pytest.mark.parametrize("created", [-(1 << 63), 0, (1 << 63) - 1])
    def test_any_time_of_creation(self, created: int) -> None:
        of = StreamArchive("ORDERS", {}, created, origin=False)
        found = ArchiveReader([build(of, [batch(numbered([1]))], 1, [ConsumerEntry("c", {})])])
        assert len(contents(found)[0]) == 1

    def test_consumers_are_asked_for_when_the_messages_are_through(self) -> None:
        asked: list[int] = []

        def some() -> Iterator[MessageBatch]:
            yield batch(numbered([1]))
            asked.append(1)

        def consumers() -> list[ConsumerEntry]:
            asked.append(2)
            return []

        assert list(archive().pieces(some(), consumers, 1))
        assert asked == [1, 2]

    def test_several_channels(self, used_kernel: ModuleType) -> None:
        batches = [
            batch([Item(7, 5, b"x", at=1)], b"one", b"pre.one"),
            batch([Item(1, 6, b"y", at=2), Item(2, 7, b"z", b"re", at=3)], b"two", b"pre.two"),
        ]
        found, skips, _ = contents(ArchiveReader([build(archive(origin=True), batches, 3)]))
        assert [message[:3] for message in found] == [(1, 5, b"pre.one"), (2, 6, b"pre.two"), (3, 7, b"pre.two")]
        assert b"Channel: one\r\nNats-Streaming-Sequence: 7\r\n" in bytes(found[0][3])  # type: ignore[call-overload]
        assert b"Channel: two\r\nNats-Streaming-Sequence: 2\r\n" in bytes(found[2][3])  # type: ignore[call-overload]
        assert not skips

    @pytest.mark.parametrize("origin", [False, True])
    def test_headers(self, used_kernel: ModuleType, origin: bool) -> None:
        messages = [
            Item(1, TIME, b"data", b"_INBOX.reply"),
            Item(2, 0, b"", b"r"),
            Item(3, -(1 << 63), b"\0\xff" * 99),
            Item(9_999_999_999, (1 << 63) - 1, b"x"),
        ]
        check(messages, 9_999_999_999, origin=origin)

    def test_compressed(self) -> None:
        pytest.importorskip("cramjam")
        check(numbered(range(1, 2000), 100), 2005, compression="snappy", block_bytes=10_000)

    def test_as_json(self) -> None:
        assert ArchiveState(2, 90, 5, 7, TIME, 0).as_json() == {
            "messages": 2,
            "bytes": 90,
            "first_seq": 5,
            "last_seq": 7,
            "first_ts": "2020-09-13T12:26:40.123456789Z",
        }


class TestBlocksAndGaps:
    @pytest.mark.parametrize("parts", [1, 3, 60])
    @pytest.mark.parametrize("block_bytes", [1, 49, 50, 490, 8_000_000])
    def test_blocks(self, used_kernel: ModuleType, parts: int, block_bytes: int) -> None:
        blocks = check(numbered(range(1, 61)), 60, parts=parts, block_bytes=block_bytes)
        each = max(1, block_bytes // 49)
        assert list(blocks.values()) == [min(each, 60 - begin) for begin in range(0, 60, each)]
        assert list(blocks) == list(range(1, len(blocks) + 1))

    def test_large_messages(self, used_kernel: ModuleType) -> None:
        sizes = [10, 5000, 70_000, 1, 70_001, 3_000_000 if used_kernel is KERNELS.compiled else 10]
        check([Item(2 * n, TIME, bytes([n]) * size) for n, size in enumerate(sizes, 1)], 20, block_bytes=1000)

    @pytest.mark.parametrize("block_bytes", [60, 8_000_000])
    def test_gaps(self, used_kernel: ModuleType, block_bytes: int) -> None:
        check(numbered([3, 4, 9, 10, 11, 60, 61, 300]), 300, parts=3, block_bytes=block_bytes)

    def test_first_sequence(self, used_kernel: ModuleType) -> None:
        assert check(numbered([10**12, 10**12 + 1]), 10**12 + 1) == {1: 2}

    def test_wide_gap(self, used_kernel: ModuleType) -> None:
        assert check(numbered([1, MAX_SKIPS + 2]), MAX_SKIPS + 2) == {1: MAX_SKIPS + 2}
        assert check(numbered([1, MAX_SKIPS + 3]), MAX_SKIPS + 3) == {1: 1, 2: 1}
        assert check(numbered([1, 10**15]), 10**15, parts=2) == {1: 1, 2: 1}

    def test_trailing_gap(self, used_kernel: ModuleType) -> None:
        assert check(numbered([1, 2]), 3) == {1: 3}
        assert check(numbered([1, 2]), 500, block_bytes=60) == {1: 1, 2: 499}
        assert check(numbered([1, 2]), MAX_SKIPS + 2) == {1: MAX_SKIPS + 2}

    def test_wide_trailing_gap(self, used_kernel: ModuleType) -> None:
        assert check(numbered([1, 2]), MAX_SKIPS + 3) == {1: 2, 2: 1}
        assert check(numbered([7]), MAX_SEQUENCE, block_bytes=1) == {1: 1, 2: 1}

    @pytest.mark.parametrize("last", [1, 2, 1 << 40, MAX_SEQUENCE])
    def test_no_messages(self, used_kernel: ModuleType, last: int) -> None:
        for batches in ([], [batch([])]):
            of = archive()
            reader = ArchiveReader([build(of, batches, last)])
            assert contents(reader) == ([], [last], {1: 1})
            assert of.state == reader.state == measure(batches, origin=False, last=last)
            assert of.state == ArchiveState(0, 0, last + 1, last, 0, 0)

    def test_nothing_at_all(self, used_kernel: ModuleType) -> None:
        of = archive()
        assert list(files(build(of, []))) == ["meta.inf", "meta.sum"]
        assert of.state == ArchiveState()

    def test_last_before_the_last_message(self, used_kernel: ModuleType) -> None:
        assert check(numbered([5, 6]), 2) == {1: 2}


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(
    steps=st.lists(st.tuples(st.integers(1, 30), st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=80))),
    replies=st.binary(max_size=5),
    options=st.fixed_dictionaries({"origin": st.booleans(), "block_bytes": st.integers(1, 3000)}),
    parts=st.integers(1, 5),
    behind=st.integers(0, 40),
)
def test_whatever_is_built_is_read(
    steps: list[tuple[int, int, bytes]], replies: bytes, options: dict[str, Any], parts: int, behind: int
) -> None:
    messages: list[Item] = []
    for step, time, data in steps:
        number = messages[-1].sequence + step if messages else step
        messages.append(Item(number, time if messages else time or 1, data, replies[: number % 7]))
    check(messages, (messages[-1].sequence if messages else 0) + behind, parts=parts, **options)


class TestPieces:
    def test_whole_frames(self) -> None:
        pieces = list(map(bytes, archive(block_bytes=500).pieces([batch(numbered(range(1, 60)))], list, 60)))
        assert len(pieces) > 4
        plain = [b"".join(bytes(part) for part in unframe([pieces[0][:10] + piece], "x")) for piece in pieces[1:]]
        assert all(len(part) % 512 == 0 for part in plain)

    def test_memory_stays_flat(self) -> None:
        """Two blocks, whatever the stream's size."""

        def many() -> Iterator[MessageBatch]:
            columns = MessageColumns(1000)
            columns.data_size[:] = 5000
            columns.timestamp[:] = TIME
            buffer = memoryview(bytes(5000))
            for begin in range(1, 20_000, 1000):
                columns.sequence[:] = np.arange(begin, begin + 1000)
                yield MessageBatch(columns, buffer, b"c")

        of = archive(block_bytes=2_000_000)
        tracemalloc.start()
        try:
            total = sum(len(piece) for piece in of.pieces(many(), list, 20_000))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert total > 20_000 * 5000
        assert peak < 2 * (2_000_000 + 30 * MAX_SKIPS) + (1 << 20)


class TestRefused:
    def failing(self, run: Callable[[], object]) -> str:
        with pytest.raises(RefusedError) as caught:
            run()
        assert caught.value.remedy
        return caught.value.message

    def test_message_too_large(self, used_kernel: ModuleType) -> None:
        batches = [batch([Item(5), Item(6, data=bytes(MAX_RECORD_SIZE))], b"the.channel")]
        said = self.failing(lambda: build(archive(), batches, 6))
        assert "the.channel: message 6" in said
        assert "33554473 bytes" in said
        assert "ORDERS" in said

    def test_sequence_that_a_stream_cannot_have(self, used_kernel: ModuleType) -> None:
        for number in (MAX_SEQUENCE + 1, (1 << 64) - 1):
            assert str(number) in self.failing(lambda n=number: build(archive(), [batch([Item(n)])], n))
        assert str(1 << 62) in self.failing(lambda: build(archive(), [], 1 << 62))

    def test_sequences_that_do_not_rise(self, used_kernel: ModuleType) -> None:
        for batches in ([batch(numbered([5, 5]))], [batch(numbered([5])), batch(numbered([4]))]):
            assert "after 5" in self.failing(lambda b=batches: build(archive(), b, 9))
        assert "sequence 0 after 0" in self.failing(lambda: build(archive(), [batch([Item(0)])], 9))

    def test_first_message_without_time(self) -> None:
        messages = [Item(7, 0), Item(8, 1)]
        assert "message 7 has no time" in self.failing(lambda: build(archive(), [batch([]), batch(messages)], 9))
        check([Item(6, -1), *messages], 9)

    def test_state_of_a_consumer(self) -> None:
        entry = ConsumerEntry("c", {}, ConsumerState((2, 2), (1, 1)))
        with pytest.raises(UsageError, match="ack floor 2"):
            build(archive(), [], 9, [entry])

    def test_stream(self) -> None:
        assert "memory" in self.failing(lambda: StreamArchive("S", {"storage": "memory"}, 0, origin=False))
        with pytest.raises(UsageError, match="zstd"):
            StreamArchive("S", {}, 0, origin=False, compression="zstd")
