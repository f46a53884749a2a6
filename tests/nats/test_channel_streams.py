"""Records of subscriptions: what is written is read back, and one that is too large says less, nothing wrong."""

from __future__ import annotations

import random

import pytest

from stantools.format.proto import store_pb2 as pb
from stantools.nats.channel_streams import decode_members, encode_members
from stantools.store.sublog import StoredSubscription


def member(number: int, pending: set[int]) -> StoredSubscription:
    state = pb.SubState(id=number, client_id=b"c%d" % number, inbox=b"i", ack_inbox=b"a", is_durable=True)
    return StoredSubscription(state, pending)


def test_written_and_read() -> None:
    chance = random.Random(1)
    members = [member(number, set(chance.sample(range(1, 5000), 300))) for number in range(3)]
    members.append(member(9, set()))
    found = decode_members(encode_members(members, 5000, 1 << 20))
    assert [each.pending for each in found] == [each.pending for each in members]
    assert [each.state.id for each in found] == [0, 1, 2, 9]
    assert {each.state.last_sent for each in found} == {5000}


def test_one_that_is_too_large_ends_earlier() -> None:
    """What is pending behind its end was not sent as far as it says, and is sent again."""
    chance = random.Random(2)
    pending = [set(chance.sample(range(1, 10**6), 2000)) for _ in range(4)]
    record = encode_members([member(number, each) for number, each in enumerate(pending)], 10**6, 4000)
    assert len(record) <= 4000
    found = decode_members(record)
    [last] = {each.state.last_sent for each in found}
    assert 0 < last < 10**6
    assert [each.pending for each in found] == [{one for one in each if one <= last} for each in pending]


def test_too_many_members() -> None:
    members = [member(number, set()) for number in range(1000)]
    with pytest.raises(ValueError, match="too many members"):
        encode_members(members, 1, 1000)


@pytest.mark.parametrize("record", [b"", b"x", encode_members([member(1, {1, 2})], 2, 1 << 20)[:-3]])
def test_what_is_no_record(record: bytes) -> None:
    with pytest.raises(ValueError):
        decode_members(record)
