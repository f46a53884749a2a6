"""Queue groups and durable queue groups: streaming-protocol.md sections 18 and 19, and trace 9 of section 27."""

from __future__ import annotations

import pytest

from broker.stores.memory import MemoryStore, MemorySubscriptions
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import ChannelLimits, StoreLimits
from tests.broker.streaming.world import Subscriber, World, everything


@pytest.fixture
def world() -> World:
    world = World()
    world.connect()
    return world


def number(world: World, count: int) -> None:
    for _ in range(count):
        world.publish(b"foo", b"x")


def member(world: World, client: bytes = b"me", **more: object) -> Subscriber:
    return world.subscribe(b"foo", client, q_group=b"g", **more)


def durable(world: World, client: bytes = b"me", **more: object) -> Subscriber:
    return world.subscribe(b"foo", client, q_group=b"g", durable_name=b"d", **more)


class TestSharing:
    @pytest.mark.parametrize("one_batch", [False, True])
    def test_round_robin_for_those_who_acknowledge(self, world: World, one_batch: bool) -> None:
        members = [member(world) for _ in range(3)]
        if one_batch:
            world.publish(b"foo", *[b"x"] * 9)
        else:
            for _ in range(9):
                number(world, 1)
                for each in members:
                    each.ack(*each.sequences())
                    each.at = 0
        assert [each.sequences() for each in members] == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]

    def test_a_burst_is_shared_though_one_member_is_read_first(self, world: World) -> None:
        """What one member has acknowledged comes in one read, before the others': it must not get all that follows."""
        members = [member(world) for _ in range(5)]
        got: dict[int, list[int]] = {}
        for turn in range(8):
            world.publish(b"foo", *[b"x"] * 256)
            for position, each in enumerate(members):
                got.setdefault(position, []).extend(each.sequences())
            read_first = turn % 2
            members[read_first].ack(*got[read_first])
            world.advance(0.002)
        assert sum(len(sequences) for sequences in got.values()) == 2048
        assert all(abs(len(sequences) - 2048 / 5) < 0.2 * 2048 / 5 for sequences in got.values())

    def test_a_silent_member_gets_little_after_a_while(self, world: World) -> None:
        silent, *prompt = [member(world) for _ in range(3)]
        got: dict[int, list[int]] = {}
        for _ in range(20):
            world.publish(b"foo", *[b"x"] * 30)
            for position, each in enumerate(prompt):
                got.setdefault(position, []).extend(new := each.sequences())
                each.ack(*new)
            world.advance(0.05)
        assert len(silent.sequences()) <= 15
        assert sum(len(sequences) for sequences in got.values()) >= 585

    def test_silent_members(self, world: World) -> None:
        members = [member(world, max_in_flight=2) for _ in range(3)]
        number(world, 9)
        assert [each.sequences() for each in members] == [[1, 4], [2, 5], [3, 6]]
        members[1].ack(2)
        assert [each.sequences() for each in members] == [[], [7], []]
        assert members[0].unsubscribe() == b""
        world.advance(0.09)
        assert [each.sequences() for each in members] == [[], [], []]
        world.advance(0.02)
        again = [[(each.sequence, each.count) for each in one.new()] for one in members]
        assert again[0] == []
        assert sorted(again[1] + again[2]) == [(1, 1), (4, 1)]

    def test_in_order_over_the_group(self, world: World) -> None:
        members = [member(world, max_in_flight=size) for size in (1, 5, 50)]
        inboxes = [each.request.inbox for each in members]
        world.publish(b"foo", *[b"x"] * 40)
        sent = [pb.MsgProto.FromString(each.payload).sequence for each in world.bus.sent if each.subject in inboxes]
        assert sent == list(range(1, 41))

    def test_a_group_with_one_member(self, world: World) -> None:
        only = member(world, max_in_flight=2)
        number(world, 5)
        assert only.sequences() == [1, 2]
        only.ack(1, 2)
        assert only.sequences() == [3, 4]
        later = member(world)
        assert later.sequences() == [5]

    def test_a_late_member_gets_nothing_old(self, world: World) -> None:
        first = member(world)
        number(world, 2)
        late = member(world, start_position=pb.FIRST)
        assert (first.sequences(), late.sequences()) == ([1, 2], [])
        number(world, 2)
        assert sorted(first.sequences() + late.sequences()) == [3, 4]

    def test_groups_are_independent(self, world: World) -> None:
        one, other, plain = member(world), world.subscribe(b"foo", q_group=b"h"), world.subscribe(b"foo")
        of_durable = durable(world)
        number(world, 2)
        assert [each.sequences() for each in (one, other, plain, of_durable)] == [[1, 2]] * 4

    def test_those_without_heartbeat_come_last(self) -> None:
        world = World(heartbeat_interval=10**9, heartbeat_timeout=10**8)
        world.connect(b"dead", alive=None)
        world.connect(b"live")
        dead, live = member(world, b"dead"), member(world, b"live", max_in_flight=3)
        world.advance(1.2)
        world.publish(b"foo", *[b"x"] * 3, client=b"live")
        assert (dead.sequences(), live.sequences()) == ([], [1, 2, 3])
        world.publish(b"foo", b"x", client=b"live")
        assert dead.sequences() == [4]

    def test_while_nats_is_away(self, world: World) -> None:
        members = [member(world) for _ in range(3)]
        world.bus.connected = False
        world.publish(b"foo", *[b"x"] * 5)
        world.bus.connected = True
        assert not any(each.sequences() for each in members)
        number(world, 1)
        assert everything(members) == [1, 2, 3, 4, 5, 6]

    def test_messages_that_are_gone_are_left_out(self) -> None:
        world = World(store=MemoryStore(StoreLimits(channel=ChannelLimits(max_msgs=4))))
        world.connect()
        members = [member(world, max_in_flight=1) for _ in range(2)]
        number(world, 10)
        assert everything(members) == [1, 2]
        members[0].ack(1)
        assert everything(members) == [7]
        assert members[0].unsubscribe() == b""
        members[1].ack(2, 7)
        assert members[1].sequences() == [8]


class TestAgain:
    def test_messages_move_between_members(self, world: World) -> None:
        a, b = (member(world, ack_wait_in_secs=1) for _ in range(2))
        number(world, 2)
        assert (a.sequences(), b.sequences()) == ([1], [2])
        counts: dict[int, list[int]] = {1: [], 2: []}
        for _ in range(4):
            world.advance(1.05)
            for each in a.new() + b.new():
                counts[each.sequence].append(each.count)
        assert counts[1][:3] == counts[2][:3] == [1, 2, 3], "the count is the group's"

    def test_a_late_ack_counts_after_the_message_has_moved(self, world: World) -> None:
        first = member(world, ack_wait_in_secs=1)
        number(world, 1)
        second = member(world, ack_wait_in_secs=1)
        world.advance(1.05)
        assert [(each.sequence, each.redelivered) for each in second.new()] == [(1, True)]
        first.ack(1)
        world.advance(5)
        assert second.sequences() == []
        assert first.sequences() == [1]

    def test_who_has_lost_its_messages_gets_new_ones(self, world: World) -> None:
        first = member(world, max_in_flight=1, ack_wait_in_secs=1)
        number(world, 3)
        assert first.sequences() == [1]
        second = member(world, max_in_flight=3, ack_wait_in_secs=30)
        assert second.sequences() == [2, 3]
        second.ack(2, 3)
        world.advance(1.05)
        assert second.sequences() == [1], "it has fewer pending"
        number(world, 1)
        assert first.sequences() == [4]

    def test_a_stalled_group_goes_on_sending_again(self, world: World) -> None:
        members = [member(world, max_in_flight=1, ack_wait_in_secs=1) for _ in range(2)]
        number(world, 3)
        assert [each.sequences() for each in members] == [[1], [2]]
        world.advance(1.05)
        assert everything(members) == [1, 2]

    def test_nothing_is_lost_when_members_come_and_go(self, world: World) -> None:
        members = [member(world, max_in_flight=3, ack_wait_in_secs=1) for _ in range(4)]
        number(world, 30)
        seen: set[int] = set()
        for leaver in (members.pop(), members.pop()):
            seen.update(*[each.sequences() for each in members])
            leaver.close()
        for _ in range(40):
            world.advance(0.3)
            for each in members:
                sequences = each.sequences()
                seen.update(sequences)
                each.ack(*sequences)
        assert seen == set(range(1, 31))


class TestEnds:
    def test_the_last_member_takes_the_group_with_it(self, world: World) -> None:
        number(world, 3)
        first = member(world)
        assert first.sequences() == [1, 2, 3]
        first.close()
        assert world.channel(b"foo").groups == {}
        assert member(world, start_position=pb.LAST_RECEIVED).sequences() == [3]

    def test_a_durable_group_is_kept(self, world: World) -> None:
        world.connect(b"other")
        number(world, 3)
        first = durable(world, max_in_flight=2)
        assert first.sequences() == [1, 2]
        first.close()
        number(world, 1)
        again = durable(world, b"other", start_position=pb.NEW_ONLY)
        assert [(each.sequence, each.count) for each in again.new()] == [(1, 1), (2, 1), (3, 0), (4, 0)]

    def test_it_survives_its_client(self, world: World) -> None:
        durable(world)
        world.close()
        world.connect()
        number(world, 1)
        assert durable(world, start_position=pb.NEW_ONLY).sequences() == [1]

    def test_unsubscribing_the_last_member_ends_it(self, world: World) -> None:
        number(world, 3)
        first, second = durable(world), durable(world)
        first.unsubscribe()
        assert world.channel(b"foo").groups
        second.unsubscribe()
        assert not world.channel(b"foo").groups
        assert durable(world, start_position=pb.NEW_ONLY).sequences() == []

    def test_a_member_that_is_not_durable_may_end_it(self, world: World) -> None:
        first = durable(world)
        same = world.subscribe(b"foo", q_group=b"d:g")
        number(world, 2)
        assert (first.sequences(), same.sequences()) == ([1], [2])
        first.close()
        assert b"d:g" in world.channel(b"foo").groups
        same.close()
        assert not world.channel(b"foo").groups

    def test_no_duplicates_in_queues(self, world: World) -> None:
        assert not durable(world).error
        assert not durable(world).error
        first = world.server.channels.get(b"foo")
        assert first is not None
        assert len(first.groups[b"d:g"].members) == 2


class TestEndOfAClient:
    """Its members of a group leave one after the other: what they have pending is handed over once."""

    @pytest.fixture
    def handed(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Sequences in the order in which they become pending somewhere."""
        found: list[int] = []
        monkeypatch.setattr(MemorySubscriptions, "recorded", True)
        monkeypatch.setattr(MemorySubscriptions, "sent", lambda _store, _number, sequences: found.extend(sequences))
        return found

    def test_the_members_of_others_get_it(self, world: World, handed: list[int]) -> None:
        world.connect(b"other")
        leaving = [member(world) for _ in range(4)]
        staying = [member(world, b"other") for _ in range(2)]
        number(world, 60)
        before = {each: each.sequences() for each in (*leaving, *staying)}
        handed.clear()
        assert world.close() == b""
        left = sorted(sequence for each in leaving for sequence in before[each])
        assert len(left) == 40
        assert sorted(handed) == left
        world.advance(0.11)
        assert everything(staying) == left

    def test_the_last_member_of_a_durable_group_gets_it(self, world: World, handed: list[int]) -> None:
        leaving = [durable(world) for _ in range(4)]
        number(world, 40)
        assert everything(leaving) == [*range(1, 41)]
        handed.clear()
        assert world.close() == b""
        assert len(handed) == len({*handed}) == 30
        (group,) = world.channel(b"foo").groups.values()
        assert sorted(group.shadow.pending) == [*range(1, 41)]
        world.connect()
        assert durable(world).sequences() == [*range(1, 41)]

    def test_nobody_gets_it_if_the_group_ends(self, world: World, handed: list[int]) -> None:
        for _ in range(4):
            member(world)
        number(world, 40)
        handed.clear()
        assert world.close() == b""
        assert not handed
        assert not world.channel(b"foo").groups
