"""Records that are copied into another block are those that would have been written there."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.layout import MAX_SKIPS, OpenBlock, RecordColumns, WriteStop
from stantools.streamfiles.record_batch import RecordBatch
from tests.streamfiles.making import TIME, Item, batch

OLD, NEW = highwayhash.block_key("ORDERS", 3), highwayhash.block_key("ORDERS", 1)
ITEMS = st.lists(
    st.builds(
        Item,
        st.integers(1, 400),
        st.integers(TIME, TIME + 10**12),
        st.binary(max_size=60),
        st.sampled_from((b"", b"re")),
    ),
    max_size=30,
    unique_by=lambda each: each.sequence,
).map(lambda items: sorted(items, key=lambda each: each.sequence))


def block(key: bytes, room: int) -> OpenBlock:
    return OpenBlock(np.zeros(room + 30 * MAX_SKIPS + 4096, np.uint8), room, key)


def written(items: list[Item], key: bytes, room: int) -> tuple[OpenBlock, int, int, WriteStop]:
    out = block(key, room)
    return out, *kernels.encode_records(batch(items), 0, out, origin=True)


def records(out: OpenBlock, key: bytes) -> RecordBatch:
    data = out.content[: out.position].tobytes()
    return RecordBatch.read(data, 0, key)[0].messages


@given(ITEMS, st.integers(200, 4000))
@settings(deadline=None, max_examples=60)
def test_a_copy_is_as_if_written_there(items: list[Item], room: int) -> None:
    source = records(written(items, OLD, 1 << 20)[0], OLD)
    wanted, *ended = written(items, NEW, room)
    copy = block(NEW, room)
    assert kernels.copy_records(source, 0, copy) == tuple(ended)
    assert copy.content[: copy.position].tobytes() == wanted.content[: wanted.position].tobytes()
    assert (copy.last, copy.last_time, copy.position) == (wanted.last, wanted.last_time, wanted.position)


@pytest.mark.parametrize("copied", [False, True])
def test_a_full_block_has_the_skip_records_before_the_next_message_once(kernel: ModuleType, copied: bool) -> None:
    items = [Item(1), Item(9)]
    source = records(written(items, OLD, 1 << 20)[0], OLD)

    def write(first: int, out: OpenBlock) -> tuple[int, int, WriteStop]:
        if copied:
            return kernels.copy_records(source, first, out)
        result: tuple[int, int, WriteStop] = kernel.encode_records(batch(items), first, out, True)
        return result

    out = block(NEW, 200)
    assert write(0, out)[::2] == (1, WriteStop.FULL)
    assert out.last == 8
    out.room = 1 << 20
    assert write(1, out)[::2] == (2, WriteStop.DONE)
    assert records(out, NEW).sequence.tolist() == [1, 9]
    rows, _, _ = kernel.scan_records(out.content[: out.position].tobytes(), 0, NEW, columns := RecordColumns(20))
    assert columns.take(rows).sequence.tolist() == list(range(1, 10))


@given(ITEMS)
@settings(deadline=None, max_examples=30)
def test_hashes_of_contents_do_not_depend_on_the_block(items: list[Item]) -> None:
    source, other = (records(written(items, key, 1 << 20)[0], key) for key in (OLD, NEW))
    found = kernels.content_hashes(source.buffer, source, NEW)
    ends = (other.offset + other.length).tolist()
    assert [int.from_bytes(other.buffer[end - 8 : end], "little") for end in ends] == found.tolist()
