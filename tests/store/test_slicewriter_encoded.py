"""Messages that are encoded already, and taking back what was not promised."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stantools.errors import StoreUnwritableError
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.store.limits import UNLIMITED, SliceLimits
from stantools.store.retention import Retention
from stantools.store.slicestate import last_slice
from stantools.store.slicewriter import SliceWriter, WriteOptions

CRC = Crc()
NAME = b"foo"


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def encoded(first: int, payloads: list[bytes], *, front: bytes = b"") -> tuple[bytes, ...]:
    """Columns of a block, as `append_encoded` takes them."""
    sequences = np.arange(first, first + len(payloads), dtype=np.uint64)
    times = np.arange(first, first + len(payloads), dtype=np.int64) * 1000
    data, sizes = kernels.encode_messages(NAME, sequences, times, None, payloads, CRC)
    ends = (sizes + np.int64(8)).cumsum()
    return front + data, ends - sizes.astype(np.int64) + len(front), sizes, sequences, times


def stored_alone(writer: SliceWriter, columns: tuple[Any, ...]) -> bool:
    """Stores the only message of a block by itself, if that is possible now."""
    data, starts, _, sequences, times = columns
    stored = writer.store_record(bytes(data[int(starts[0]) - 8 :]), int(sequences[0]), int(times[0]))
    if stored:
        state = last_slice(writer.directory, NAME, CRC)
        assert state is not None
        assert state.last_sequence == sequences[0]
    return stored


#: of a message with nine bytes in the server's accounting
COST = int(encoded(1, [bytes(9)])[2][0]) + MESSAGE_OVERHEAD

batches = st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=20), max_size=10)


@given(
    batches,
    st.builds(SliceLimits, st.sampled_from([0, 3, 7]), st.sampled_from([0, 300, 5000]), st.sampled_from([0, 9000])),
    st.sampled_from([0, 100, 1 << 20]),
    st.booleans(),
    st.sampled_from([0, 1, 20]),
    st.integers(0, 5),
)
@example([[9] * 12], SliceLimits(3), 0, True, 20, 0)
@example([[9] * 12], SliceLimits(0, 3 * COST), 0, True, 20, 0)
@settings(max_examples=60, deadline=None)
def test_as_if_encoded_here(tmp_path_factory, sizes, limits, buffer_size, flushed, alone, front):
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    options = {"sync": False, "buffer_size": buffer_size}
    with (
        SliceWriter(one, NAME, CRC, WriteOptions(limits, **options)) as plain,
        SliceWriter(two, NAME, CRC, WriteOptions(limits, **options)) as writer,
    ):
        # Batches of up to `alone` messages are stored one by one.
        for batch in chain.from_iterable([[size] for size in each] if len(each) <= alone else [each] for each in sizes):
            payloads = [bytes(size) for size in batch]
            columns = encoded(writer.last_sequence + 1, payloads, front=bytes(front))
            plain.append(columns[3], columns[4], None, payloads)
            if not (alone and len(batch) == 1 and stored_alone(writer, columns)):
                writer.append_encoded(*columns)
            if flushed:
                writer.flush()
    assert files(one) == files(two)


def test_records_that_do_not_follow_each_other(tmp_path):
    data, starts, sizes, sequences, times = encoded(1, [b"a", b"bb", b"ccc", b"dddd"])
    keep = np.array([0, 2, 3])
    with SliceWriter(tmp_path, NAME, CRC, WriteOptions(sync=False)) as writer:
        writer.append_encoded(data, starts[keep], sizes[keep], sequences[keep], times[keep])
        writer.append_encoded(b"", starts[:0], sizes[:0], sequences[:0], times[:0])
    state = last_slice(tmp_path, NAME, CRC)
    assert state is not None
    assert (state.first_sequence, state.last_sequence, state.count) == (1, 4, 3)


def test_blocks_without_headers_are_refused(tmp_path):
    data, starts, sizes, sequences, times = encoded(1, [b"a", b"b"])
    with SliceWriter(tmp_path, NAME, CRC, WriteOptions(sync=False)) as writer:
        with pytest.raises(ValueError, match="no record header"):
            writer.append_encoded(data[8:], starts - 8, sizes, sequences, times)
        with pytest.raises(ValueError, match="no record header"):
            writer.append_encoded(data, starts + 1, sizes - np.uint32(1), sequences, times)
        with pytest.raises(ValueError, match="sequences must increase"):
            writer.append_encoded(data, starts, sizes, sequences[::-1], times)
    assert files(tmp_path) == {}


@given(
    batches,
    batches,
    st.builds(SliceLimits, st.sampled_from([0, 3]), st.sampled_from([0, 300])),
    st.sampled_from([0, 99, 1 << 20]),
)
@settings(max_examples=60, deadline=None)
def test_going_back(tmp_path_factory, kept, taken_back, limits, buffer_size):
    directory, wanted = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("wanted")
    after = [[5, 6], [7]]
    options = {"sync": False, "buffer_size": buffer_size}
    with SliceWriter(wanted, NAME, CRC, WriteOptions(limits, **options)) as writer:
        for batch in (*kept, *after):
            writer.append_encoded(*encoded(writer.last_sequence + 1, [bytes(size) for size in batch]))
    with SliceWriter(directory, NAME, CRC, WriteOptions(limits, **options)) as writer:
        for batch in kept:
            writer.append_encoded(*encoded(writer.last_sequence + 1, [bytes(size) for size in batch]))
        writer.flush()
        mark, before = writer.mark(), files(directory)
        for batch in taken_back:
            writer.append_encoded(*encoded(writer.last_sequence + 1, [bytes(size) for size in batch]))
        writer.go_back(mark)
        assert files(directory) == before
        for batch in after:
            writer.append_encoded(*encoded(writer.last_sequence + 1, [bytes(size) for size in batch]))
    assert files(directory) == files(wanted)


def test_going_back_may_fail_and_be_tried_again(tmp_path, monkeypatch):
    with SliceWriter(tmp_path, NAME, CRC, WriteOptions(SliceLimits(3, 0), sync=False, buffer_size=0)) as writer:
        writer.append_encoded(*encoded(1, [b"x"] * 2))
        writer.flush()
        mark, before = writer.mark(), files(tmp_path)
        writer.append_encoded(*encoded(3, [b"x"] * 8))
        writer.flush()

        def fail(*arguments):
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", fail)
            with pytest.raises(StoreUnwritableError, match="could not be restored"):
                writer.go_back(mark)
        writer.go_back(mark)
        assert files(tmp_path) == before


def test_finished_slices_are_consumed(tmp_path):
    limits, remove = SliceLimits(2, 0), lambda number: pytest.fail(f"slice {number} is full of messages")
    with SliceWriter(tmp_path, NAME, CRC, WriteOptions(limits, sync=False)) as writer:
        retention = Retention(writer, UNLIMITED, drop=remove)
        for first in range(1, 20, 3):
            writer.append_encoded(*encoded(first, [b"x"] * 3))
            writer.flush()
            retention.catch_up()
            assert not writer.finished
        assert [state.number for state in retention.slices] == [*range(1, 12)]
        assert retention.count == 21
        assert retention.removed == 0
