"""Channels as streams: what JetStream clients see of a channel is what the channel has, at any moment."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NoStreamResponseError, NotFoundError

from broker.bus.channels import ChannelStreams
from broker.stores.file import FileStore
from broker.stores.memory import MemoryStore
from broker.stores.store_options import FileOptions
from broker.streaming.state import Channel
from stantools.store.limits import ChannelLimits, StoreLimits
from stantools.store.serverinfo import new_server_info
from stantools.streaming.client import connect
from tests.broker.stores.making import SECOND, START, block
from tests.broker.streams.world import World
from tests.brokers import Broker
from tests.natsclient import PATIENCE
from tests.natsclient import connect as connect_nats
from tests.waiting import until


class Side:
    """A store of channels, and streams made of them, in simulated time."""

    def __init__(self, limits: ChannelLimits, folder: Path | None = None) -> None:
        every = StoreLimits(0, limits)
        self.store: Any = MemoryStore(every)
        if folder is not None:
            self.store = FileStore(FileOptions(folder / "channels", sync=False), every, wall=lambda: START)
        self.store.recover()
        self.store.init(new_server_info("test-cluster"))
        self.folder = folder
        self.world = World(folder)
        self.streams = self._streams()
        self.channels: dict[bytes, Channel] = {}
        self.time = START

    def _streams(self) -> ChannelStreams:
        return ChannelStreams(self.world.server, self.world.time, self.folder)

    def restart(self) -> None:
        """The streams end and begin again; the store of the channels stays."""
        self.world.restart()
        self.streams = self._streams()
        for channel in self.channels.values():
            self.streams.changed(channel)

    def create(self, name: bytes) -> Channel:
        made = self.store.create_channel(name)
        channel = self.channels[name] = Channel(name, made.messages, made.subscriptions)
        self.streams.changed(channel)
        return channel

    def publish(self, channel: Channel, *payloads: bytes, reply: bytes = b"") -> None:
        first = channel.messages.last + 1
        times = [self.time + i for i in range(len(payloads))]
        channel.messages.append(block(channel.name, first, payloads, times=times, replies=[reply] * len(payloads)))
        channel.messages.flush()
        self.store.settle()
        self.store.completed()
        channel.visible = channel.messages.last
        self.streams.changed(channel)
        self.world.settle()

    def delete(self, channel: Channel) -> None:
        self.store.delete_channel(channel.name)
        del self.channels[channel.name]
        self.streams.removed(channel)


steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 5)),
    st.tuples(st.just("pull"), st.integers(1, 7)),
    st.tuples(st.just("age"), st.integers(1, 8)),
    st.tuples(st.just("restart"), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=20), st.integers(0, 6), st.booleans(), st.booleans())
def test_a_stream_has_what_its_channel_has(
    tmp_path_factory: pytest.TempPathFactory, todo: list[tuple[str, int]], most: int, ages: bool, files: bool
) -> None:
    folder = tmp_path_factory.mktemp("both") if files else None
    side = Side(ChannelLimits(max_msgs=most, max_age_ns=10 * SECOND if ages else 0), folder)
    channel, world = side.create(b"c.d"), side.world
    made = world.consumer("c_d", "d", durable_name="d", ack_policy="explicit", filter_subject="c.d")
    assert made["num_pending"] == 0
    there: dict[int, tuple[int, bytes]] = {}
    last = seen = 0
    for what, number in todo:
        match what:
            case "publish":
                payloads = [b"%d" % (last + 1 + i) for i in range(number)]
                side.publish(channel, *payloads)
                there |= {last + 1 + i: (side.time + i, payload) for i, payload in enumerate(payloads)}
                last += number
                while most and len(there) > most:
                    del there[min(there)]
            case "age":
                side.time += number * SECOND
                channel.messages.expire(side.time)
                side.streams.changed(channel)
                world.settle()
                if ages:
                    there = {n: each for n, each in there.items() if each[0] > side.time - 10 * SECOND}
            case "restart" if files:
                world.pass_time(SECOND)
                side.restart()
            case "pull":
                wanted = [n for n in sorted(there) if n > seen][:number]
                came = world.pull("c_d", "d", {"batch": number, "no_wait": True})
                messages = [(reply.split("."), payload) for reply, payload, status in came if not status]
                assert [int(reply[5]) for reply, _ in messages] == wanted
                assert [payload for _, payload in messages] == [there[n][1] for n in wanted]
                left = sum(n > seen for n in there)
                assert [int(reply[8]) for reply, _ in messages] == [left - 1 - i for i in range(len(wanted))]
                for reply, _ in messages:
                    world.ask(".".join(reply), b"")
                seen = max([seen, *wanted])
        state = world.state("c_d")
        assert (state["messages"], state["last_seq"]) == (len(there), last)
        if there:
            assert state["first_seq"] == min(there) and "num_deleted" not in state
            assert state["subjects"] == {"c.d": len(there)}
            for n in (min(there), max(there)):
                said = world.api("STREAM.MSG.GET.c_d", {"seq": n})["message"]
                assert base64.b64decode(said["data"]) == there[n][1] and said["subject"] == "c.d"
            assert world.api("DIRECT.GET.c_d.c.d")[1] == there[max(there)][1]
    side.world.server.stop()


def test_what_cannot_be_done_with_it(tmp_path: Path) -> None:
    side = Side(ChannelLimits(), tmp_path)
    world = side.world
    world.create("other", subjects=["taken.>"])
    side.create(b"taken.c")
    channel = side.create(b"c")
    side.publish(channel, b"one", b"two", reply=b"answer here")
    assert world.api("STREAM.NAMES")["streams"] == ["c", "other"]
    assert world.api("STREAM.NAMES", {"subject": "c"})["streams"] == ["c"]
    refused = {
        "STREAM.DELETE.c": b"",
        "STREAM.UPDATE.c": {"name": "c", "subjects": ["c"]},
        "STREAM.PURGE.c": b"",
        "STREAM.MSG.DELETE.c": {"seq": 1},
    }
    for call, body in refused.items():
        assert world.api(call, body)["error"]["err_code"] == 10109, call
    assert world.create("c", subjects=["x"])["error"]["err_code"] == 10058
    assert world.create("x", subjects=["c"])["error"]["err_code"] == 10065
    # Nobody stores what is published to its subject.
    assert world.publish("c") is None
    assert world.api("INFO")["storage"] == 0
    message = world.api("STREAM.MSG.GET.c", {"seq": 2})["message"]
    assert base64.b64decode(message["hdrs"]) == b"NATS/1.0\r\nNats-Streaming-Reply: answer here\r\n\r\n"
    assert world.api("STREAM.MSG.GET.c", {"start_time": "1980-01-01T00:00:00Z"})["message"]["seq"] == 1
    world.consumer("c", "d", durable_name="d", ack_policy="explicit")
    (consumer,) = tmp_path.rglob("d/meta.inf")
    side.delete(channel)
    assert world.api("STREAM.NAMES")["streams"] == ["other"]
    until(lambda: not consumer.exists())  # files go in the background
    again = side.create(b"c")
    side.publish(again, b"new")
    assert world.state("c")["messages"] == 1
    assert world.api("CONSUMER.NAMES.c")["consumers"] == []


async def _both(url: str, check: Callable[[Any, Any, Any], Any]) -> None:
    old = await connect(url, cluster_id="test-cluster", client_id="old")
    client = await connect_nats(url)
    try:
        await check(old, client, client.jetstream())
    finally:
        await client.close()
        await old.close()


@pytest.mark.parametrize("store", ["FILE", "MEMORY"])
async def test_an_old_client_publishes_and_a_new_one_reads(tmp_path: Path, store: str) -> None:
    async def begin(old: Any, client: Any, js: Any) -> None:
        for i in range(3):
            await old.publish("orders.new", b"%d" % i)
        # Found by its subject, as any stream is.
        durable = await js.pull_subscribe("orders.new", "worker")
        for message in await durable.fetch(2, timeout=PATIENCE):
            await message.ack_sync()
        live = await js.subscribe("orders.new", ordered_consumer=True)
        await asyncio.gather(*(old.publish("orders.new", b"%d" % i) for i in range(3, 50)))
        seen = sorted([int((await live.next_msg(timeout=PATIENCE)).data) for _ in range(50)])
        assert seen == list(range(50))
        assert (await js.get_last_msg("orders_new", "orders.new")).seq == 50
        with pytest.raises(NoStreamResponseError):
            await js.publish("orders.new", b"x")

    async def go_on(old: Any, client: Any, js: Any) -> None:
        if store == "MEMORY":
            with pytest.raises(NotFoundError):
                await js.stream_info("orders_new")
            return
        durable = await js.pull_subscribe("orders.new", "worker")
        seen: list[int] = []
        while len(seen) < 48:
            for message in await durable.fetch(48, timeout=PATIENCE):
                seen.append(message.metadata.sequence.stream)
                await message.ack()
        assert seen == list(range(3, 51))
        config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST, ack_policy=AckPolicy.NONE)
        last = await js.subscribe("orders.new", config=config)
        assert (await last.next_msg(timeout=PATIENCE)).metadata.sequence.stream == 50

    folder = tmp_path / "channels"
    words = ["-js", "-sd", tmp_path / "streams", "-streams_from_channels", "-st", store, "-dir", folder]
    with Broker(tmp_path, *words) as broker:
        await _both(broker.url, begin)
        broker.stop()
        broker.start()
        await _both(broker.url, go_on)
        broker.stop()
        assert "ERR" not in broker.said()
