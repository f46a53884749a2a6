"""What one request about streams may cost: bounds that are checked before the work is done, and counts of the work."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from broker.streams import requests
from broker.streams.api_errors import RequestError
from broker.streams.requests import parse
from broker.streams.subject_mapping import MOST_DESTINATION, MappingError, SubjectMapping
from stantools.nats import subjects
from tests.broker.streams.world import World


def refused(body: bytes) -> str:
    unread = mock.patch.object(requests.json, "loads", side_effect=AssertionError("it was read"))
    with unread, pytest.raises(RequestError) as wrong:
        parse(body)
    return wrong.value.text


def test_json_is_bounded_before_it_is_read() -> None:
    assert "at most 1048576 are allowed" in refused(b'{"a":"%b"}' % (b"x" * (1 << 20)))
    assert "more than 100000 values" in refused(b'{"a":[%b]}' % b",".join([b"1"] * 100_000))
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        for depth in (65, 1000, 50_000):
            assert "exceeded max depth" in refused(opening * depth + b"1" + closing * depth)
            assert "exceeded max depth" in refused(opening * depth)
    # What is within a text is no depth.
    assert parse(b'{"a":"%b\\"[[[","b":"\\\\"}' % (b"[{" * 1000)) == {"a": "[{" * 1000 + '"[[[', "b": "\\"}
    assert len(parse(b'{"a":[%b]}' % b",".join([b'"kv.*.%d"' % number for number in range(50_000)]))["a"]) == 50_000
    assert parse(b'{"a":' * 64 + b"1" + b"}" * 64)


def test_every_request_survives_deep_nesting() -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    deep = b'{"config":{"placement":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}}"
    for call in (
        "INFO", "STREAM.LIST", "STREAM.NAMES", "STREAM.CREATE.X", "STREAM.UPDATE.S", "STREAM.INFO.S", "STREAM.PURGE.S",
        "STREAM.MSG.GET.S", "STREAM.MSG.DELETE.S", "STREAM.SNAPSHOT.S", "STREAM.RESTORE.X", "CONSUMER.CREATE.S",
        "CONSUMER.LIST.S", "CONSUMER.NAMES.S", "CONSUMER.PAUSE.S.c", "CONSUMER.UNPIN.S.c", "DIRECT.GET.S",
        "CONSUMER.DURABLE.CREATE.S.c", "STREAM.DELETE.S", "CONSUMER.DELETE.S.c",
    ):  # fmt: skip
        assert world.api(call, deep) is not None, call


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sources": [{}] * 20_000}, "too many sources"),
        ({"sources": [{"name": f"S{number}"} for number in range(1001)]}, "too many sources"),
        ({"sources": [{"name": "S", "subject_transforms": [{"src": "a", "dest": "b"}] * 1001}]}, "too many subject"),
        ({"mirror": {"name": "S", "subject_transforms": [{"src": "a", "dest": "b"}] * 1001}}, "too many subject"),
        ({"subjects": [f"s.{number}" for number in range(10_001)]}, "too many subjects"),
        ({"republish": {"src": "s.*", "dest": "y." + ".".join(["{{wildcard(1)}}"] * 3000)}}, "not valid"),
        ({"subject_transform": {"src": "s.*", "dest": ".".join(["{{wildcard(1)}}"] * 3000)}}, "more than 4096"),
    ],
)
def test_streams_are_bounded(config: dict[str, Any], said: str) -> None:
    world = World()
    answer = world.create("X", **{"subjects": ["s.*"], "storage": "memory", **config})
    if "mirror" in config or "sources" in config:
        answer = world.create("X", **{"storage": "memory", **config})
    assert said in answer["error"]["description"]


def test_subjects_that_become_too_long_stay_as_they_are() -> None:
    destination = "y." + ".".join(["{{wildcard(1)}}"] * 250)
    assert len(destination) <= MOST_DESTINATION
    mapping = SubjectMapping("b.*", destination)
    assert mapping.of(b"b.q") == b"y" + b".q" * 250
    assert mapping.of(b"b." + b"q" * 3000) == b"b." + b"q" * 3000
    with pytest.raises(MappingError, match="4096"):
        SubjectMapping("b.*", "y." * MOST_DESTINATION + "y")


@pytest.mark.parametrize("subject", ["b.---", "b." + "q" * 3000])
def test_what_cannot_be_published_again_is_not_published_as_it_was(subject: str) -> None:
    """Otherwise the stream would get it again, and again."""
    world = World()
    destination = "{{split(1,-)}}" if subject == "b.---" else "y." + ".".join(["$1"] * 1000)
    assert "error" not in world.create(
        "B", subjects=["b.*"], storage="memory", republish={"src": "b.*", "dest": destination}
    )
    assert world.publish(subject)["seq"] == 1
    assert [to for to, *_ in world.bus.said if to == subject.encode()] == []


def test_filters_and_subjects_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts calls of the comparisons of two subjects: they would be millions."""
    calls = 0

    def counted(function: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*args)

        return call

    from broker.stores.streams import channels
    from broker.streams import account, configuration, consumerconfig, consumers

    for module in (account, configuration, consumerconfig, consumers, channels, subjects):
        for name in ("overlap", "matches"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, counted(getattr(module, name)))
    world = World()
    world.create("KV", subjects=["kv.>"], storage="memory", allow_direct=True)
    for number in range(2000):
        world.bus.send(b"kv.%d.%d" % (number % 7, number), b"")
    patterns = [f"kv.*.{number}" for number in range(1000)]
    consumer = world.consumer("KV", "c", ack_policy="explicit", filter_subjects=patterns)
    assert consumer["num_pending"] == 1000
    assert world.api("DIRECT.GET.KV", {"multi_last": patterns[:50], "batch": 1}) is not None
    assert world.api("STREAM.INFO.KV", {"subjects_filter": "kv.*.777"})["total"] == 1
    assert world.api("STREAM.PURGE.KV", {"filter": "kv.*.1999"})["purged"] == 1
    assert "error" not in world.create("M", subjects=[f"m.{number}.*.a" for number in range(1000)], storage="memory")
    assert world.create("N", subjects=["m.5.b.>"], storage="memory")["error"]["err_code"] == 10065
    assert calls < 5000


def test_consumers_that_have_left_messages_behind_do_not_count_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages go by age every second; a thousand consumers that are further on need not look."""
    from broker.stores.streams.contents import Contents

    world = World()
    world.create("S", subjects=["s.>"], storage="memory", max_msgs=50)
    for number in range(50):
        world.publish(f"s.{number % 2}")
    for number in range(5):
        world.consumer("S", f"c{number}", ack_policy="none", filter_subjects=["s.0", "s.1"], deliver_policy="new")
    world.consumer("S", "behind", ack_policy="none", filter_subjects=["s.0", "s.1"])
    counted = mock.Mock(wraps=Contents.count)
    monkeypatch.setattr(Contents, "count", lambda *args: counted(*args))
    counted.reset_mock()
    world.api("STREAM.PURGE.S", {"seq": 41})
    assert counted.call_count <= 2  # of the one that is behind
    assert world.api("CONSUMER.INFO.S.behind")["num_pending"] == 10
