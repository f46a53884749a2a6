"""From subscriptions to consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.format.proto import store_pb2 as pb
from stantools.migration.plan.consumers import ChannelDurables, Durable, plan_consumers, sort_subscriptions
from stantools.migration.plan.migration_plan import ConsumerKind, ConsumerPlan, ConsumerProgress
from stantools.store.ranges import Ranges
from stantools.store.sublog import StoredSubscription
from tests.migration.plan.stores import SECOND, durable, queue, sub

PULL, PUSH = ConsumerKind.PULL, ConsumerKind.PUSH


def sort(*subs: tuple[pb.SubState, Iterable[int]], last: int = 100, present: Ranges | None = None) -> ChannelDurables:
    sequences = Ranges.of([(1, last)]) if present is None else present
    return sort_subscriptions("ch", [StoredSubscription(state, set(p)) for state, p in subs], sequences, last)


def only(result: ChannelDurables) -> Durable:
    (one,) = result.durables
    return one


def test_a_durable() -> None:
    one = only(sort(durable(1, "d", sent=10, pending=[4, 7], max_in_flight=5, ack_wait_in_secs=60)))
    assert one == Durable("ch", "d", "c1", "", 5, 60 * SECOND, ConsumerProgress(10, 3, (4, 7)))


def test_a_durable_of_an_old_store_is_not_marked() -> None:
    assert only(sort(sub(1, 3, durable_name="d", client_id="c"))).position == ConsumerProgress(3, 3)


def test_nothing_sent_yet() -> None:
    assert only(sort(durable(1, "d"))).position == ConsumerProgress(0, 0, ())


def test_members_of_a_group_become_one() -> None:
    result = sort(
        queue(1, "dq:g", "c1", 10, [3, 9], max_in_flight=4, ack_wait_in_secs=5),
        queue(2, "dq:g", "c2", 12, [9, 12], max_in_flight=6, ack_wait_in_secs=50),
        # A shadow keeps the position only; its in flight is that of a member that left.
        queue(3, "dq:g", "", 11, [2], max_in_flight=1000),
    )
    assert only(result) == Durable("ch", "dq", "", "g", 10, 50 * SECOND, ConsumerProgress(12, 1, (2, 3, 9, 12)), 3)
    assert result.notes == []


def test_a_shadow_alone_keeps_what_it_has() -> None:
    one = only(sort(queue(3, "dq:g:h", "", 11, [2], max_in_flight=7)))
    assert (one.name, one.group, one.max_in_flight) == ("dq", "g:h", 7)


def test_a_member_that_is_not_durable_belongs_to_the_group_that_it_names() -> None:
    result = sort(queue(1, "dq:g", sent=5), queue(2, "dq:g", "c2", 9, [8], is_durable=False))
    assert only(result).position == ConsumerProgress(9, 7, (8,))
    assert result.left_out == []


def test_what_is_not_durable_is_left_out() -> None:
    result = sort(
        sub(1, 9, [9], client_id="c1"),
        queue(2, "g", "c1", 4, [1, 2], is_durable=False),
        queue(3, "g", "c2", 7, [2, 3], is_durable=False),
    )
    assert result.durables == []
    assert [(left.what, left.count, left.loss) for left in result.left_out] == [
        ("subscription", 1, False),
        ("queue group", 2, False),
    ]
    assert "'c1'" in result.left_out[0].detail
    assert "last sent 7, 3 not acknowledged" in result.left_out[1].detail


def test_a_durable_that_is_stored_twice_loses_nothing() -> None:
    result = sort(durable(1, "d", sent=10), durable(2, "d", sent=5, pending=[2]))
    assert only(result).position == ConsumerProgress(5, 1, (2,))
    assert "stored 2 times" in result.notes[0].text


def test_positions_end_with_the_channel() -> None:
    result = sort(durable(1, "d", sent=30, pending=[5, 25]), last=20)
    assert only(result).position == ConsumerProgress(20, 4, (5,))
    assert "up to 30" in result.notes[0].text


def test_pending_messages_that_are_gone_are_dropped() -> None:
    result = sort(durable(1, "d", sent=9, pending=[1, 2, 8]), last=10, present=Ranges.of([(2, 2), (5, 10)]))
    assert only(result).position == ConsumerProgress(9, 1, (2, 8))
    assert "1 message unacknowledged" in result.notes[0].text
    # Nothing but gone ones: everything is done with.
    assert only(sort(durable(1, "d", sent=9, pending=[1]), present=Ranges())).position == ConsumerProgress(9, 9)


def test_odd_numbers() -> None:
    one = only(sort(durable(1, "d", sent=2**64 - 1, pending=[2**64 - 1], ack_wait_in_secs=-5, max_in_flight=-1)))
    assert (one.ack_wait_ns, one.position) == (30 * SECOND, ConsumerProgress(100, 100))
    (consumer,) = plan_consumers([(one, PULL)], "S", [""], "deliver")
    assert consumer.settings["max_ack_pending"] == 1


_subs = st.lists(
    st.tuples(
        st.sampled_from(["plain", "queue", "shadow", "other"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 40),
        st.sets(st.integers(1, 40), max_size=6),
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(_subs, st.integers(0, 30), st.sets(st.integers(1, 30)))
def test_positions_hold_what_a_server_demands(subs: list[Any], last: int, present: set[int]) -> None:
    there = Ranges.of([(n, n) for n in present if n <= last])
    made = []
    for number, (kind, name, sent, pending) in enumerate(subs, 1):
        held = {n for n in pending if n <= sent}
        if kind == "plain":
            made.append(durable(number, name, f"c{number % 2}", sent, held))
        elif kind == "other":
            made.append(sub(number, sent, held, client_id="c"))
        else:
            made.append(queue(number, f"q:{name}", "" if kind == "shadow" else "c", sent, held))
    result = sort(*made, last=last, present=there)
    for each in result.durables:
        p = each.position
        assert p.ack_floor <= p.delivered <= last
        assert all(p.ack_floor < n <= p.delivered and n in there for n in p.pending)
        assert p.pending == tuple(sorted(set(p.pending)))
        assert p.ack_floor == (p.pending[0] - 1 if p.pending else p.delivered)
    # Whatever some subscription of a group was sent and did not acknowledge is still to come, or pending.
    for state, pending in made:
        for each in result.durables:
            mine = (state.durable_name, state.q_group) in [
                (each.name.encode(), b""),
                (b"", f"{each.name}:{each.group}".encode()),
            ]
            if mine and each.client in ("", state.client_id.decode()):
                assert all(n in each.position.pending or n > each.position.delivered for n in pending if n in there)
    names = [consumer.name for consumer in consumers(*result.durables)]
    assert len({name.casefold() for name in names}) == len(result.durables)


def consumers(*durables: Durable, kind: ConsumerKind = PULL, subject: str = "") -> list[ConsumerPlan]:
    return plan_consumers([(each, kind) for each in durables], "S", [subject] * len(durables), "to")


def plain(
    name: str, client: str = "c1", channel: str = "ch", flight: int = 4, pending: tuple[int, ...] = ()
) -> Durable:
    return Durable(channel, name, client, "", flight, SECOND, ConsumerProgress.of(9, pending))


def group(name: str, group_: str, channel: str = "ch") -> Durable:
    return Durable(channel, name, "", group_, 4, SECOND, ConsumerProgress())


def test_names_of_consumers() -> None:
    def names(*durables: Durable) -> list[str]:
        return [consumer.name for consumer in consumers(*durables)]

    assert names(plain("d"), plain("e")) == ["d", "e"]
    assert names(plain("d", "c1"), plain("d", "c2")) == ["c1_d", "c2_d"]
    assert names(plain("d.1 x")) == ["d_1_x"]
    assert names(group("d", "g"), group("e", "h")) == ["g", "h"]
    assert names(group("d", "g"), group("e", "g")) == ["d_g", "e_g"]
    assert names(plain("g"), group("d", "g")) == ["c1_g", "d_g"]
    # Several channels in one stream.
    assert names(plain("d", channel="a.b"), plain("d", channel="c")) == ["a_b_c1_d", "c_c1_d"]
    assert names(plain("d.x"), plain("d_x"))[0].startswith("d_x-")


def test_the_configuration_of_a_pull_consumer() -> None:
    (one,) = consumers(plain("d", flight=1, pending=(2, 3)))
    assert one.config == {
        "durable_name": "d",
        "description": "NATS Streaming durable 'd' of client 'c1' on 'ch'",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "max_deliver": -1,
        "ack_wait": SECOND,
        "max_ack_pending": 2,
    }
    assert one.kind is PULL


def test_push_consumers_have_documented_subjects() -> None:
    (one,) = consumers(plain("d"), kind=PUSH, subject="ch")
    assert (one.config["deliver_subject"], one.config["filter_subject"]) == ("to.S.d", "ch")
    assert "deliver_group" not in one.config
    (one,) = consumers(group("d", "g.1"), kind=PUSH)
    assert (one.config["deliver_subject"], one.config["deliver_group"], one.name) == ("to.S.g_1", "g_1", "g_1")


def test_positions_are_translated() -> None:
    moved = ConsumerProgress.of(9, [4, 6]).translated(lambda sequences: [n * 10 for n in sequences])
    assert moved == ConsumerProgress(90, 39, (40, 60))
    assert ConsumerProgress().translated(lambda sequences: [0 for _ in sequences]) == ConsumerProgress()
