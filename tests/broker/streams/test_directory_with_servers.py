"""One directory, two servers: what ours wrote a real one opens, and what a real one wrote ours opens."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, StoreCompression, StreamConfig
from nats.js.errors import NotFoundError

from tests import natsclient, servers
from tests.brokers import Broker
from tests.conftest import others_slow

#: Those that know tombstones.
VERSIONS = [version for version in servers.available() if version != servers.OLDEST]
STREAMS = {
    "plain": {},
    "gaps": {},
    "erased": {},
    "filtered": {},
    "below": {},
    "empty": {},
    "beyond": {},
    "headers": {},
    "most": {"max_msgs": 5},
    "bytes": {"max_bytes": 500, "discard": DiscardPolicy.OLD},
    "keyed": {"max_msgs_per_subject": 1},
    "rolled": {"allow_rollup_hdrs": True},
    "big": {},
    "packed": {"compression": StoreCompression.S2},
}


CONSUMERS = {"plain": ("durable",), "gaps": ("filtered",)}


async def fill(url: str) -> None:
    """Makes streams with all kinds of removal."""
    async with natsclient.connected(url) as client:
        js = client.jetstream()
        for name, config in STREAMS.items():
            await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **config))
            await asyncio.gather(*(js.publish(f"{name}.{i % 3}", b"%d" % i) for i in range(20)))
        for sequence in (1, 2, 7, 19, 20):
            await client.request("$JS.API.STREAM.MSG.DELETE.gaps", b'{"seq":%d,"no_erase":true}' % sequence)
            await js.delete_msg("erased", sequence)
        await js.purge_stream("filtered", subject="filtered.1")
        await js.purge_stream("filtered", subject="filtered.0", keep=2)
        await js.purge_stream("below", seq=12)
        await js.purge_stream("empty")
        await js.purge_stream("beyond", seq=100)
        for i in range(3):
            await js.publish("headers.x", b"y", headers={"Nats-Msg-Id": f"m{i}", "X": "cödé"})
        await js.publish("rolled.1", b"only", headers={"Nats-Rollup": "sub"})
        # One after the other: without compiled kernels their hashes take long.
        for i in range(30):
            await js.publish("big.x", bytes([i]) * 700_000)
        for i in range(10):
            await js.publish("packed.x", b"%03d" % i * 300_000)
        # In the block that is not full: 2.10 spoils one that is compressed when it erases a message in it.
        await js.delete_msg("packed", 30)
        await js.purge_stream("big", seq=30)
        await js.delete_msg("big", 40)
        pull = await js.pull_subscribe("plain.>", "durable")
        for message in (await pull.fetch(6, timeout=60))[:5:2]:
            await message.ack_sync()
        await js.pull_subscribe("gaps.1", "filtered", config=ConsumerConfig(ack_policy=AckPolicy.ALL))


async def look(url: str, more: bool) -> dict[str, Any]:
    """What a server says of the streams: state, and each message; then it gets one more each."""
    async with natsclient.connected(url) as client:
        js = client.jetstream()
        found: dict[str, Any] = {}
        for name in STREAMS:
            reply = await client.request(
                f"$JS.API.STREAM.INFO.{name}", b'{"subjects_filter":">","deleted_details":true}'
            )
            said = json.loads(reply.data)["state"]
            # Servers differ in what they count of what is missing, and say of times when nothing is there.
            state = {key: value for key, value in said.items() if key in ("messages", "bytes", "first_seq", "last_seq")}
            sequences = range(state["first_seq"], state["last_seq"] + 1)
            got = await asyncio.gather(*(js.get_msg(name, each) for each in sequences), return_exceptions=True)
            messages = [each for each in got if not isinstance(each, NotFoundError)]
            found[name] = (
                state,
                [(each.seq, each.subject, each.headers, each.data[:9], str(each.time)) for each in messages],
            )
            for consumer in CONSUMERS.get(name, ()):
                said = await js.consumer_info(name, consumer)
                found[consumer] = (
                    said.delivered.consumer_seq, said.delivered.stream_seq, said.ack_floor.consumer_seq,
                    said.ack_floor.stream_seq, said.num_ack_pending, said.num_pending,
                )  # fmt: skip
            if more:
                ack = await js.publish(f"{name}.more", b"more")
                assert ack.seq == state["last_seq"] + 1
    return found


def ours(folder: Path, store: Path) -> Broker:
    return Broker(folder, "-js", "-sd", store)


def theirs(folder: Path, store: Path, version: str) -> servers.NatsServer:
    return servers.NatsServer(folder, version, {"jetstream": {"store_dir": str(store)}})


@pytest.mark.parametrize("version", others_slow(VERSIONS, (*VERSIONS[:1], servers.NEWEST)))
async def test_a_real_server_opens_ours_and_we_its(tmp_path: Path, version: str) -> None:
    store = tmp_path / "store"
    with ours(tmp_path / "a", store) as broker:
        await fill(broker.url)
        first = await look(broker.url, more=False)
        broker.kill()
    with ours(tmp_path / "a", store) as broker:
        again = await look(broker.url, more=False)
        # What consumers did in the last second may be forgotten: it is done again.
        assert {name: again[name] for name in STREAMS} == {name: first[name] for name in STREAMS}, "after kill -9"
        second = await look(broker.url, more=True) and await look(broker.url, more=False)
        broker.stop()
    with theirs(tmp_path / "b", store, version) as server:
        assert await look(server.url, more=True) == second
        third = await look(server.url, more=False)
    with ours(tmp_path / "c", store) as broker:
        assert await look(broker.url, more=True) == third


@pytest.mark.parametrize("version", others_slow(servers.available(), (servers.OLDEST, servers.NEWEST)))
async def test_we_open_what_a_real_server_made(tmp_path: Path, version: str) -> None:
    store = tmp_path / "store"
    with theirs(tmp_path / "b", store, version) as server:
        await fill(server.url)
        live = await look(server.url, more=False)
    blocks = [path.read_bytes() for path in store.rglob("packed/msgs/*.blk")]
    assert any(each.startswith(b"cmp") for each in blocks) == (version != servers.OLDEST)
    shutil.copytree(store, tmp_path / "copy")
    # What old servers keep in an index only, they lose themselves if it was not written.
    with theirs(tmp_path / "c", tmp_path / "copy", version) as server:
        again = await look(server.url, more=False)
    with ours(tmp_path / "a", store) as broker:
        for name, found in (await look(broker.url, more=True)).items():
            assert found in (live[name], again[name])
        second = await look(broker.url, more=False)
    with ours(tmp_path / "a", store) as broker:
        assert await look(broker.url, more=False) == second
