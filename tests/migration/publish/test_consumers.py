"""Consumers get their exact state by receiving and acknowledging, on every server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from stantools.errors import StantoolsError
from stantools.migration.publish.consumers import UNFINISHED
from stantools.migration.publish.stream_publish import publish_stream
from stantools.nats.errors import PermissionDeniedError
from stantools.nats.jetstream import JetStream
from tests.conftest import others_slow
from tests.migration.publish.conftest import CONFIG, FakeSource, numbered, peer
from tests.natsclient import jetstream
from tests.streamfiles.making import batch

SECOND = 10**9
SETTINGS = {
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "ack_wait": 3 * SECOND,
    "max_deliver": -1,
    "max_ack_pending": 500,
    "replay_policy": "instant",
}
#: 10 to 120 without some; 130 was the last.
SOURCE = FakeSource(numbered(*(n for n in range(10, 121) if n not in (50, 51, 90))), last=130)


@dataclass
class Durable:
    name: str
    config: dict[str, Any]


@dataclass
class Place:
    delivered: int
    ack_floor: int
    pending: tuple[int, ...] = field(default=())


def durable(name: str, **more: Any) -> Durable:
    return Durable(name, {"durable_name": name, **SETTINGS, **more})


def place(delivered: int, *pending: int) -> Place:
    return Place(delivered, pending[0] - 1 if pending else delivered, pending)


PLACES = {
    "new": place(0),
    "behind": place(60),
    "done": place(130),
    "one": place(10),
    "gap": place(90),
    "pending": place(60, 20, 33, 60),
    "pending_first": place(30, 10, 11, 30),
    "pending_all": place(30, *range(10, 31)),
    "pending_last": place(120, 120),
    "pending_after_gap": place(60, 52),
    "pending_up_to_gap": place(90, 80),
}


async def take(js: JetStream, name: str, count: int) -> list[tuple[int, int, bytes]]:
    """Fetches so many: sequence, number of deliveries, payload."""
    async with peer(js) as client:
        subscription = await client.jetstream().pull_subscribe("orders", name, stream="ORDERS")
        messages = await subscription.fetch(count, timeout=20)
        while len(messages) < count:
            messages += await subscription.fetch(count - len(messages), timeout=20)
    # nats-py asks twice for one fetch, and may then get more than was asked for.
    return [(m.metadata.sequence.stream, m.metadata.num_delivered, m.data) for m in messages[:count]]


async def test_every_position_on_every_server(each_server: Any) -> None:
    exact_floor = each_server.version >= "2.14"  # as text: 2.9.10 is the only one that is out of order
    old = each_server.version == "2.9.10" or not exact_floor

    async with jetstream(each_server.url) as js:
        consumers = [(durable(name), position) for name, position in PLACES.items()]
        result = await publish_stream(js, "ORDERS", CONFIG, SOURCE, consumers)
        assert result.consumers == list(PLACES)
        existing = [item.sequence for item in SOURCE.items]
        for name, position in PLACES.items():
            info = await js.consumer_info("ORDERS", name)
            assert info
            config = info["config"]
            assert {key: config.get(key) for key in SETTINGS if key != "deliver_policy"} == {
                key: value for key, value in SETTINGS.items() if key != "deliver_policy"
            }, name
            assert not config.get("headers_only") and not config.get("description"), name
            # A sequence without a message is only reached where nothing has to be delivered to get there.
            reached = max((s for s in existing if s <= position.delivered), default=0)
            shown = info["delivered"]["stream_seq"]
            assert shown in (position.delivered, reached) or (name == "new" and shown == 9), name
            assert info["num_ack_pending"] == len(position.pending), name
            assert info["num_redelivered"] == 0, name
            assert info["num_pending"] == sum(s > position.delivered for s in existing), name
            floor = info["ack_floor"]["stream_seq"]
            before = [s for s in existing if s <= position.ack_floor]
            if name != "new" and before:
                assert floor in (position.ack_floor, before[-1]), name
            elif not old:
                assert floor in (position.ack_floor, 9), name
        for name, position in PLACES.items():
            following = [s for s in existing if s > position.delivered]
            count = len(position.pending) + min(len(following), 3)
            if not count:
                continue
            wanted = [(s, 2) for s in position.pending] + [(s, 1) for s in following[:3]]
            # What is pending comes first, and at once, as STAN does when a durable resumes.
            got = await take(js, name, count)
            assert [(s, n) for s, n, _ in got] == wanted, name
            assert all(data == b"payload %d" % s for s, _, data in got), name


@pytest.mark.parametrize(
    ("version", "group"),
    [
        ("2.9.10", ""),
        ("2.15.1", "workers"),
        pytest.param("2.9.10", "workers", marks=pytest.mark.slow),
        pytest.param("2.15.1", "", marks=pytest.mark.slow),
    ],
)
async def test_push_consumers(start_server: Callable[..., Any], version: str, group: str) -> None:
    more = {"deliver_subject": "to.workers", **({"deliver_group": group} if group else {})}
    source = FakeSource(numbered(*(n for n in range(1, 12_001) if n % 100)))
    position = place(11_000, 1, 50, 5_001, 10_999)

    async with jetstream(start_server(version).url) as js:
        wanted = [
            (durable("pushed", **more), position),
            (durable("fresh", **more | {"deliver_subject": "b"}), place(0)),
        ]
        await publish_stream(js, "ORDERS", CONFIG, source, wanted)
        info = await js.consumer_info("ORDERS", "pushed")
        assert info and info["config"]["deliver_subject"] == "to.workers"
        assert info["config"].get("deliver_group", "") == group
        assert info["config"]["max_ack_pending"] == 500 and not info["config"].get("headers_only")
        assert info["delivered"]["stream_seq"] == 10_999
        assert info["num_ack_pending"] == 4 and info["num_pending"] == 990
        async with peer(js) as client:
            subscription = await client.subscribe("to.workers", queue=group)
            got = [(await subscription.next_msg(5)).metadata for _ in range(6)]
        assert [(m.sequence.stream, m.num_delivered) for m in got] == [
            *((s, 2) for s in position.pending),
            (11_001, 1),
            (11_002, 1),
        ]


@pytest.mark.parametrize("version", others_slow(["2.9.10", "2.12.8", "2.15.1"], {"2.15.1"}))
async def test_many_pending(start_server: Callable[..., Any], version: str) -> None:
    source = FakeSource(numbered(*range(1, 20_001)))
    pending = tuple(range(7, 19_000, 3))

    async with jetstream(start_server(version).url) as js:
        wanted = durable("slow", max_ack_pending=10_000, ack_wait=300 * SECOND)
        await publish_stream(js, "ORDERS", CONFIG, source, [(wanted, place(19_500, *pending))])
        info = await js.consumer_info("ORDERS", "slow")
        assert info and info["num_ack_pending"] == len(pending)
        assert info["delivered"]["stream_seq"] == 19_500 and info["ack_floor"]["stream_seq"] == 6
        # Which ones they are.
        got = await take(js, "slow", len(pending))
        assert [s for s, _, _ in got] == list(pending)


async def test_one_that_is_not_finished_is_made_anew_and_a_finished_one_is_left_alone(
    start_server: Callable[..., Any],
) -> None:
    async with jetstream(start_server().url) as js:
        await publish_stream(js, "ORDERS", CONFIG, SOURCE)
        wanted, position = durable("work"), place(60, 20, 33)
        half = {**wanted.config, "description": UNFINISHED, "headers_only": True}
        await js.consumer_create("ORDERS", half)
        await take(js, "work", 5)
        result = await publish_stream(js, "ORDERS", CONFIG, SOURCE, [(wanted, position)], resume=True)
        assert result.consumers == ["work"]
        info = await js.consumer_info("ORDERS", "work")
        assert info and info["num_ack_pending"] == 2 and info["delivered"]["stream_seq"] == 60
        # Its users have gone on.
        await take(js, "work", 5)
        before = await js.consumer_info("ORDERS", "work")
        result = await publish_stream(js, "ORDERS", CONFIG, SOURCE, [(wanted, position)], resume=True)
        assert result.consumers == [] and result.messages == 0
        after = await js.consumer_info("ORDERS", "work")
        assert before and after and before["delivered"] == after["delivered"]


async def test_only_one_subject_of_several(start_server: Callable[..., Any]) -> None:
    class Two(FakeSource):
        def read(self, *, after: int = 0, until: int | None = None) -> Any:
            for read in super().read(after=after, until=until):
                for sequence in read.stream_sequence.tolist():
                    part = numbered(sequence)
                    subject = b"a" if part[0].sequence % 2 else b"b"
                    yield batch(part, b"orders", subject)

    source = Two(numbered(*range(1, 101)), batch_rows=1000)
    config = {**CONFIG, "subjects": ["a", "b"]}

    async with jetstream(start_server().url) as js:
        wanted = [
            (durable("odd", filter_subject="a"), place(51, 11, 51)),
            (durable("even", filter_subject="b"), place(50, 50)),
        ]
        await publish_stream(js, "ORDERS", config, source, wanted)
        for name, pending, left in (("odd", 2, 24), ("even", 1, 25)):
            info = await js.consumer_info("ORDERS", name)
            assert info and (info["num_ack_pending"], info["num_pending"]) == (pending, left)


async def test_pending_messages_that_are_not_there(start_server: Callable[..., Any]) -> None:
    async with jetstream(start_server().url) as js:
        with pytest.raises(StantoolsError, match="consumer work of stream ORDERS: 1 pending messages are not in"):
            await publish_stream(js, "ORDERS", CONFIG, SOURCE, [(durable("work"), place(60, 20, 51))])


async def test_acknowledging_is_not_permitted(start_server: Callable[..., Any]) -> None:
    allowed = ["orders", "$JS.API.>", "_INBOX.>"]
    users = [{"user": "u", "password": "p", "permissions": {"publish": allowed, "subscribe": ["_INBOX.>"]}}]
    server = start_server(config={"authorization": {"users": users}})

    async with jetstream(server.url, user="u", password="p") as js:
        with pytest.raises(PermissionDeniedError, match=r"may not publish to \$JS.ACK.ORDERS.work") as caught:
            await publish_stream(js, "ORDERS", CONFIG, SOURCE, [(durable("work"), place(60, 20))])
        assert "filled up to sequence 130 of 130" in caught.value.message
