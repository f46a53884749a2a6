"""nats-py's JetStream as published: the same tests against real servers and against ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import nats.micro
import pytest
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    KeyValueConfig,
    ObjectStoreConfig,
    RePublish,
    StorageType,
    StreamSource,
    SubjectTransform,
)
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from tests import natsclient, servers
from tests.brokers import Broker

PATIENCE = 60
STORAGES = (StorageType.MEMORY, StorageType.FILE)


# That a real server does what is expected of ours is looked at in the slow run.
@pytest.fixture(scope="module", params=["ours", pytest.param(servers.NEWEST, marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("server")
    if request.param == "ours":
        with Broker(folder, "-js", "-sd", folder / "store") as broker:
            yield broker.url
            assert "rror" not in broker.said()
    elif not servers.binary(request.param).exists():
        pytest.skip(f"nats-server {request.param} is not here")
    else:
        with servers.NatsServer(folder, request.param) as server:
            yield server.url


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[Any, Any]]:
    async with natsclient.connected(url) as client:
        yield client, client.jetstream()


async def _pull(url: str, storage: StorageType) -> None:
    async with connected(url) as (_, js):
        name = f"pull-{storage.value}"
        await js.add_stream(name=name, subjects=[f"{name}.>"], storage=storage)
        await asyncio.gather(*(js.publish(f"{name}.{i % 3}", b"%d" % i) for i in range(100)))
        subscription = await js.pull_subscribe(f"{name}.>", "durable")
        seen = []
        while len(seen) < 100:
            for message in await subscription.fetch(30, timeout=PATIENCE):
                seen.append(message.metadata.sequence.stream)
                assert message.metadata.num_pending == 100 - len(seen)
                await message.ack_sync()
        assert seen == list(range(1, 101))
        with pytest.raises(nats.errors.TimeoutError):
            await subscription.fetch(1, timeout=0.2)
        info = await subscription.consumer_info()
        assert (info.ack_floor.stream_seq, info.num_pending, info.num_ack_pending) == (100, 0, 0)
        waiting = asyncio.create_task(subscription.fetch(1, timeout=PATIENCE))
        await js.publish(f"{name}.x", b"late")
        [late] = await waiting
        await late.nak()
        [again] = await subscription.fetch(1, timeout=PATIENCE)
        assert again.data == b"late" and again.metadata.num_delivered == 2


async def _push(url: str, storage: StorageType) -> None:
    async with connected(url) as (client, js):
        name = f"push-{storage.value}"
        await js.add_stream(name=name, subjects=[f"{name}.>"], storage=storage)
        got: dict[int, list[bytes]] = {0: [], 1: []}
        every = asyncio.Event()

        def taker(which: int) -> Any:
            async def take(message: Any) -> None:
                got[which].append(message.data)
                await message.ack()
                if sum(map(len, got.values())) == 200:
                    every.set()

            return take

        for which in got:
            await js.subscribe(f"{name}.>", queue="workers", cb=taker(which), manual_ack=True)
        for i in range(200):
            await client.publish(f"{name}.x", b"%d" % i)
        await asyncio.wait_for(every.wait(), PATIENCE)
        assert sorted(map(int, got[0] + got[1])) == list(range(200)) and got[0] and got[1]


async def _ordered(url: str, storage: StorageType) -> None:
    async with connected(url) as (_, js):
        name = f"ordered-{storage.value}"
        await js.add_stream(name=name, subjects=[name], storage=storage)
        # More than the window of flow control at its beginning.
        await asyncio.gather(*(js.publish(name, bytes([i]) * 100_000) for i in range(60)))
        subscription = await js.subscribe(name, ordered_consumer=True)
        for i in range(60):
            message = await subscription.next_msg(timeout=PATIENCE)
            assert message.data[0] == i and len(message.data) == 100_000
        await js.publish(name, b"more")
        assert (await subscription.next_msg(timeout=PATIENCE)).data == b"more"


async def _policies(url: str, storage: StorageType) -> None:
    async with connected(url) as (_, js):
        name = f"policies-{storage.value}"
        await js.add_stream(name=name, subjects=[f"{name}.>"], storage=storage)
        for i in range(9):
            await js.publish(f"{name}.{i % 3}", b"%d" % i)
        wanted = {
            DeliverPolicy.ALL: "012345678",
            DeliverPolicy.LAST: "8",
            DeliverPolicy.NEW: "",
            DeliverPolicy.LAST_PER_SUBJECT: "678",
            DeliverPolicy.BY_START_SEQUENCE: "45678",
        }
        for policy, text in wanted.items():
            config = ConsumerConfig(deliver_policy=policy, ack_policy=AckPolicy.NONE, filter_subject=f"{name}.>")
            if policy is DeliverPolicy.BY_START_SEQUENCE:
                config.opt_start_seq = 5
            subscription = await js.subscribe(f"{name}.>", config=config)
            found = "".join([(await subscription.next_msg(timeout=PATIENCE)).data.decode() for _ in text])
            assert found == text
            assert (await subscription.consumer_info()).num_pending == 0
            await subscription.unsubscribe()


async def _key_value(url: str, storage: StorageType) -> None:
    async with connected(url) as (_, js):
        bucket = await js.create_key_value(KeyValueConfig(bucket=f"kv-{storage.value}", history=5, storage=storage))
        assert [await bucket.put("a", b"1"), await bucket.put("b", b"2"), await bucket.put("a", b"3")] == [1, 2, 3]
        assert (await bucket.get("a")).value == b"3" and (await bucket.get("a", revision=1)).value == b"1"
        assert await bucket.update("b", b"4", last=2) == 4
        with pytest.raises(KeyWrongLastSequenceError):
            await bucket.update("b", b"5", last=2)
        with pytest.raises(KeyWrongLastSequenceError):
            await bucket.create("a", b"6")
        assert [entry.value for entry in await bucket.history("a")] == [b"1", b"3"]
        watcher = await bucket.watchall()
        seen = []
        while (entry := await watcher.updates(timeout=PATIENCE)) is not None:
            seen.append((entry.key, entry.value))
        assert seen == [("a", b"3"), ("b", b"4")]
        await bucket.delete("a")
        assert (await watcher.updates(timeout=PATIENCE)).operation == "DEL"
        with pytest.raises(KeyNotFoundError):
            await bucket.get("a")
        assert await bucket.create("a", b"7") == 6
        await bucket.purge("a")
        assert await bucket.keys() == ["b"]
        assert (await bucket.status()).values == 3


async def _objects(url: str, storage: StorageType) -> None:
    async with connected(url) as (_, js):
        store = await js.create_object_store(f"objects-{storage.value}", config=ObjectStoreConfig(storage=storage))
        data = bytes(range(256)) * 4000
        info = await store.put("name", data)
        assert info.chunks == 8 and (await store.get("name")).data == data
        await store.put("name", b"short")
        assert (await store.get("name")).data == b"short"
        assert [each.name for each in await store.list()] == ["name"]
        await store.delete("name")
        assert (await js.stream_info(f"OBJ_objects-{storage.value}")).state.messages == 1


async def _republish(url: str, storage: StorageType) -> None:
    """A stream publishes again; another one takes what it says, under other subjects."""
    async with connected(url) as (client, js):
        name = f"again-{storage.value}"
        to = RePublish(src=f"{name}.*", dest=f"copy-{name}.{{{{wildcard(1)}}}}")
        await js.add_stream(name=name, subjects=[f"{name}.>"], storage=storage, republish=to)
        mapping = SubjectTransform(src=f"copy-{name}.*", dest="copied.$1")
        await js.add_stream(name=f"{name}-2", subjects=[f"copy-{name}.>"], subject_transform=mapping)
        subscription = await client.subscribe(f"copy-{name}.>")
        await js.publish(f"{name}.a", b"one", headers={"X": "y"})
        await js.publish(f"{name}.a", b"two")
        for sequence, payload in ((1, b"one"), (2, b"two")):
            message = await subscription.next_msg(timeout=PATIENCE)
            assert (message.subject, message.data) == (f"copy-{name}.a", payload)
            where = (message.headers[f"Nats-{each}"] for each in ("Stream", "Subject", "Sequence", "Last-Sequence"))
            assert tuple(where) == (name, f"{name}.a", str(sequence), str(sequence - 1))
        # Each of the two gets it on its own.
        await _filled(js, f"{name}-2", 2)
        copy = await js.get_last_msg(f"{name}-2", "copied.a")
        assert copy.data == b"two" and copy.headers["Nats-Stream"] == name


async def _copies(url: str, storage: StorageType) -> None:
    """A mirror and a stream with sources; what is deleted at the origin stays away, what comes later follows."""
    async with connected(url) as (_, js):
        name = f"origin-{storage.value}"
        await js.add_stream(name=name, subjects=[f"{name}.>"], storage=storage)
        for i in range(9):
            await js.publish(f"{name}.{i % 3}", b"%d" % i)
        await js.delete_msg(name, 5)
        await js.add_stream(name=f"{name}-m", mirror=StreamSource(name=name), storage=storage)
        sources = [
            StreamSource(name=name, filter_subject=f"{name}.1"),
            StreamSource(name=name, subject_transforms=[SubjectTransform(src=f"{name}.2", dest="second")]),
        ]
        await js.add_stream(name=f"{name}-s", subjects=[f"own-{name}"], sources=sources, storage=storage)
        await _filled(js, f"{name}-m", 8)
        await _filled(js, f"{name}-s", 5)
        await js.publish(f"{name}.1", b"late")
        await _filled(js, f"{name}-m", 9)
        await js.publish(f"own-{name}", b"own")
        await _filled(js, f"{name}-s", 7)
        subscription = await js.subscribe(stream=f"{name}-m", ordered_consumer=True, subject="")
        seen = [(await subscription.next_msg(timeout=PATIENCE)).metadata.sequence.stream for _ in range(9)]
        assert seen == [1, 2, 3, 4, 6, 7, 8, 9, 10]
        info = await js.stream_info(f"{name}-m")
        assert (info.mirror.name, info.mirror.lag) == (name, 0)
        last = await js.get_last_msg(f"{name}-s", f"{name}.1")
        assert last.data == b"late" and last.headers["Nats-Stream-Source"].split()[:2] == [name, "10"]
        assert (await js.get_last_msg(f"{name}-s", "second")).data == b"8"
        with pytest.raises(nats.js.errors.NoStreamResponseError):
            await js.publish(f"{name}-m", b"x")


async def _filled(js: Any, stream: str, messages: int) -> None:
    """Waits until a stream has some messages."""
    async with asyncio.timeout(PATIENCE):
        while (await js.stream_info(stream)).state.messages < messages:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("test", [_pull, _push, _ordered, _policies, _key_value, _objects, _republish, _copies])
async def test_as_against_a_real_server(url: str, test: Any, storage: StorageType) -> None:
    await test(url, storage)


async def test_services(url: str) -> None:
    """Two of the same name share requests, and each says what it has done."""

    async def answer(request: Any) -> None:
        await request.respond(request.data.upper())

    async with connected(url) as (client, _):
        services = [await nats.micro.add_service(client, name="upper", version="1.0.0") for _ in range(2)]
        for service in services:
            await service.add_endpoint(name="turn", handler=answer)
        answers = await asyncio.gather(*(client.request("turn", b"%d a" % i) for i in range(50)))
        assert [each.data for each in answers] == [b"%d A" % i for i in range(50)]
        told = [json.loads((await client.request(f"$SRV.STATS.upper.{each.id}")).data) for each in services]
        assert sum(each["endpoints"][0]["num_requests"] for each in told) == 50
        assert json.loads((await client.request("$SRV.PING.upper")).data)["id"] in {each.id for each in services}
        for service in services:
            await service.stop()
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request("turn", b"")


async def test_a_durable_consumer_goes_on_after_the_end_of_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path, "-js", "-sd", tmp_path / "store") as broker:
        async with connected(broker.url) as (_, js):
            await js.add_stream(name="S", subjects=["s"])
            await asyncio.gather(*(js.publish("s", b"%d" % i) for i in range(20)))
            subscription = await js.pull_subscribe("s", "durable", config=ConsumerConfig(ack_wait=0.5))
            for message in (await subscription.fetch(10, timeout=PATIENCE))[:8]:
                await message.ack_sync()
        broker.stop()
        broker.start()
        async with connected(broker.url) as (_, js):
            subscription = await js.pull_subscribe("s", "durable", config=ConsumerConfig(ack_wait=0.5))
            seen: set[int] = set()
            while len(seen) < 12:
                for message in await subscription.fetch(20, timeout=PATIENCE):
                    seen.add(int(message.data))
                    await message.ack_sync()
        assert seen == set(range(8, 20))
