"""Blocks in memory against a list of sequences."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.stores import blocklist
from broker.stores.blocklist import BlockList, joined, part_of
from tests.broker.stores.making import block, message

NAME = b"foo"

operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("add"), st.integers(1, 6)),
        st.tuples(st.just("before"), st.integers(0, 60)),
        st.tuples(st.just("after"), st.integers(0, 60)),
        st.tuples(st.just("shrink"), st.integers(0, 600)),
        st.tuples(st.just("read"), st.integers(0, 60)),
    ),
    max_size=60,
)


@given(
    operations,
    st.sampled_from([1, 2, 4, 128]),
    st.sampled_from([2, 4, 128]),
    st.sampled_from([10, 1 << 14]),
    st.sampled_from([0, 2, 256]),
)
@settings(deadline=None)
def test_against_a_list(steps, small, run, small_size, slack):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocklist, "_SMALL", small)
        patch.setattr(blocklist, "_RUN", run)
        patch.setattr(blocklist, "_SMALL_SIZE", small_size)
        patch.setattr(blocklist, "_SLACK", slack)
        found = BlockList()
        model: list[int] = []
        following = 1
        for kind, value in steps:
            if kind == "append":
                found.append(block(NAME, following, [b"%d" % each for each in range(following, following + value)]))
                model += range(following, following + value)
                following += value
            elif kind == "add":
                for sequence in range(following, following + value):
                    one = block(NAME, sequence, [b"%d" % sequence])
                    size = found.add((bytes(one.data), sequence, int(one.timestamps[0])))
                    assert size == one.sizes[0]
                model += range(following, following + value)
                following += value
            elif kind == "before":
                found.drop_before(value)
                model = [each for each in model if each >= value]
            elif kind == "after":
                found.drop_after(value)
                if model and value < model[-1]:
                    model = [each for each in model if each <= value]
                    following = model[-1] + 1 if model else following
            elif kind == "shrink" and model:
                found.shrink(value)
                assert len(found) and (found.size <= value or len(found.blocks()) == 1)
                model = model[len(model) - len(found) :]
            elif kind == "read" and model:
                first = model[value % len(model)]
                part = found.read(first, 3, 1 << 20)
                assert 1 <= len(part) <= 3
                assert part.sequences.tolist() == [*range(first, first + len(part))]
                assert [message(part, row).data for row in range(len(part))] == [
                    b"%d" % each for each in part.sequences.tolist()
                ]
            assert (
                (found.first, found.last, len(found)) == (model[0], model[-1], len(model)) if model else not found.first
            )
            assert found.size == sum(int(each.sizes.sum()) for _, each in found.blocks())


def test_many_small_blocks_become_few():
    found = BlockList()
    for sequence in range(1, 5001):
        found.append(block(NAME, sequence, [b"x"]))
    assert len(found.blocks()) < 200
    assert len(found) == 5000


def test_blocks_of_some_size_are_put_together_for_whoever_is_behind():
    found = BlockList()
    for sequence in range(1, 5001, 50):
        found.append(block(NAME, sequence, [b"x"] * 50))
    assert len(found.blocks()) == 100
    assert len(found.read(4951, 1000, 1 << 20)) == 50  # the last one
    assert len(found.read(1, 10, 1 << 20)) == 10
    assert len(found.blocks()) == 100
    assert len(found.read(1, 10_000, 1 << 20)) == 5000
    assert len(found.blocks()) == 1


def test_large_messages_are_not_copied():
    found = BlockList()
    large = [block(NAME, sequence, [b"x" * 300_000]) for sequence in range(1, 301)]
    for each in large[:150]:
        found.append(each)
    for each in large[150:]:
        found.add((bytes(each.data), int(each.sequences[0]), 0))
    assert len(found.blocks()) == 300
    assert len(found.read(1, 300, 1 << 20)) == 1
    assert len(found.blocks()) == 300


def test_gaps_within_a_block_are_refused():
    one, two = block(NAME, 1, [b"x"]), block(NAME, 3, [b"y"])
    with pytest.raises(ValueError, match="2 messages with the sequences 1 to 3"):
        BlockList().append(joined([one, two]))


def test_parts_are_bounded_by_size():
    whole = block(NAME, 1, [b"x" * 100] * 50)
    assert len(part_of(whole, 0, 1000, 0)) == 1
    assert part_of(whole, 0, 1000, 1 << 20) is whole
    assert len(part_of(whole, 10, 5, 1 << 20)) == 5
    assert int(part_of(whole, 0, 1000, 1000).sizes.sum()) <= 1000
