"""What is wrong with a plan that was edited."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stantools.migration.plan.checks import find_problems
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import (
    ChannelPart,
    ConsumerKind,
    ConsumerPlan,
    ConsumerProgress,
    MigrationPlan,
    RemarkLevel,
    SourceRef,
    StreamPlan,
    TargetKind,
    TargetRef,
)

SECOND = 1_000_000_000


def consumer(name: str = "d", **values: Any) -> ConsumerPlan:
    values = {"channel": "a", "settings": {}, "position": ConsumerProgress(5, 2, (3, 4))} | values
    return ConsumerPlan(name, **values)


def stream(name: str = "A", channel: str = "a", **values: Any) -> StreamPlan:
    values = {"parts": (ChannelPart(channel, channel, 9, 1, 9),), "subjects": (channel,)} | values
    return StreamPlan(name, **values)


def merged(**values: Any) -> StreamPlan:
    parts = (ChannelPart("a", "a", 9, 1, 9), ChannelPart("b", "b", 2, 1, 2))
    values = {"parts": parts, "subjects": ("a", "b"), "renumbered": True, "origin_headers": True} | values
    return StreamPlan("M", **values)


def plan(*streams: StreamPlan, **values: Any) -> MigrationPlan:
    return MigrationPlan(SourceRef("/store"), streams=streams, **values)


GOOD = stream(consumers=(consumer(),))


def test_a_good_plan_has_none() -> None:
    two = stream("B", "b")
    filtered = consumer(settings={"filter_subject": "a"})
    assert find_problems(plan(GOOD, two)) == []
    assert find_problems(plan(merged(consumers=(filtered,)))) == []
    wide = stream(subjects=("*",), consumers=(filtered,))
    assert find_problems(plan(wide)) == []


def push(**settings: Any) -> StreamPlan:
    given = {"deliver_subject": "to.d"} | settings
    return stream(consumers=(consumer(kind=ConsumerKind.PUSH, settings={k: v for k, v in given.items() if v}),))


def test_problems() -> None:
    rows: list[tuple[MigrationPlan, str]] = [
        (plan(), "no channel is selected"),
        (plan(GOOD, way=LoadMethod.PUBLISH, target=TargetRef(TargetKind.BACKUP)), "publishing needs a running server"),
        (plan(stream("a.b")), "cannot be the name of a stream"),
        (plan(stream(parts=())), "the stream has no channel"),
        (plan(stream(renumbered=True)), "renumbered"),
        (plan(merged(renumbered=False)), "renumbered"),
        (plan(stream(subjects=("a b",))), "is not a subject"),
        (plan(stream(channel="$JS.x")), "a subject of the system"),
        (plan(stream(subjects=(">",))), "a subject of the system"),
        (plan(stream(subjects=("a", "a"))), "subject 'a' is used 2 times"),
        (plan(stream(subjects=("a", "*"))), "'a' and '*' overlap"),
        (plan(merged(parts=(ChannelPart("a", "a"), ChannelPart("a", "b")))), "channel 'a' is used 2 times"),
        (plan(merged(parts=(ChannelPart("a", "a"), ChannelPart("b", "a")))), "subject of a channel 'a' is used 2"),
        (plan(stream(subjects=("x",))), "is not one of the stream's subjects"),
        (plan(stream(parts=(ChannelPart("a", "a b"),), subjects=("a b",))), "is not a subject"),
        (plan(stream(settings={"storage": "memory"})), "cannot be restored into memory"),
        (
            plan(stream(settings={"num_replicas": 3}), target=TargetRef(TargetKind.STORE)),
            "a running cluster makes replicas",
        ),
        (plan(stream(settings={"max_age": 5})), "below 100ms"),
        (plan(stream(settings={"max_age": SECOND, "duplicate_window": 2 * SECOND})), "longer than max_age 1s"),
        (plan(stream(settings={"max_consumers": 1}, consumers=(consumer("a"), consumer("b")))), "2 consumers"),
        (plan(stream(consumers=(consumer("a.b"),))), "cannot be the name of a consumer"),
        (plan(stream(consumers=(consumer(channel="x"),))), "is not in this stream"),
        (plan(merged(consumers=(consumer(),))), "also get messages of other channels"),
        (plan(stream(consumers=(consumer(settings={"filter_subject": "x"}),))), "does not match 'a'"),
        (
            plan(stream(consumers=(consumer(position=ConsumerProgress(10, 10)),))),
            "beyond the channel's last sequence 9",
        ),
        (plan(stream(consumers=(consumer(position=ConsumerProgress(5, 1, (3,))),))), "contradicts its pending"),
        (plan(stream(consumers=(consumer(position=ConsumerProgress(5, 6, (7,))),))), "`delivered` is only 5"),
        (plan(stream(consumers=(consumer(settings={"max_ack_pending": 1}),))), "2 messages are pending"),
        (plan(stream(consumers=(consumer(settings={"num_replicas": 3}),))), "more replicas than its stream"),
        (plan(stream(consumers=(consumer(), consumer()))), "consumer 'd' is used 2 times"),
        (plan(push(deliver_subject="")), "needs a subject to deliver to"),
        (plan(push(flow_control=True)), "needs a heartbeat"),
        (plan(push(flow_control=True, deliver_group="g", idle_heartbeat=1)), "does not work with a deliver group"),
        (plan(push(max_waiting=5)), "for pull consumers"),
        (plan(push(deliver_subject="a")), "which stream A would store again"),
        (plan(stream("W", "to.x", subjects=("to.*",)), push()), "which stream W would store again"),
        (plan(stream(consumers=(consumer(settings={"deliver_group": "g"}),))), "a pull consumer has no deliver_group"),
        (plan(stream(), stream()), "stream 'A' is used 2 times"),
        (plan(stream(), stream("B", parts=(ChannelPart("a", "x"),), subjects=("x",))), "is in several streams"),
        (plan(stream(), stream("B", "b", subjects=("*",))), "'a' of stream A and '*' of stream B overlap"),
        (
            plan(push(), replace(push(), name="B", parts=(ChannelPart("b", "b"),), subjects=("b",))),
            "same subject 'to.d'",
        ),
    ]
    for made, said in rows:
        problems = [note for note in find_problems(made) if note.level is RemarkLevel.PROBLEM]
        assert any(said in note.text for note in problems), problems
        assert all(note.remedy for note in problems), (made, said)


def test_warnings() -> None:
    rows: list[tuple[MigrationPlan, str]] = [
        (plan(stream("x" * 201)), "more than 200 bytes"),
        (plan(stream(), way=LoadMethod.PUBLISH), "the old ones are lost"),
        (plan(merged(origin_headers=False)), "their channel sequences are lost"),
        (plan(stream(), stream("a", "b")), "differ only in case"),
        (plan(stream(consumers=(consumer("d"), consumer("D")))), "differ only in case"),
        (
            plan(stream(settings={"compression": "s2"}), target=TargetRef(version=(2, 9, 10))),
            "compression needs server 2.10, the target has 2.9.10",
        ),
        (
            plan(*(stream(f"S{n}", f"s{n}", settings={"num_replicas": 3}) for n in range(501))),
            "501 streams with several replicas",
        ),
    ]
    for made, said in rows:
        notes = find_problems(made)
        assert any(said in note.text for note in notes), notes
        assert all(note.level is RemarkLevel.WARNING for note in notes), (made, said)


def test_many_streams_are_checked_quickly() -> None:
    streams = [stream(f"S{n}", f"x.s{n}") for n in range(3000)]
    wild = stream("W", "y.1", subjects=("y.>",))
    assert find_problems(plan(*streams, wild)) == []
