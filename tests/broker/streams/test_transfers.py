"""Streams that leave and come as a whole: to ourselves, to real servers and from them, and by the migration."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.stores.streams import archives
from broker.streams.quota import QuotaLimits
from stantools.streamfiles.framing import END, SNAPPY, Framer, whole_file
from tests import servers
from tests.broker.streams.world import World
from tests.brokers import Broker
from tests.migration.test_migrate import run
from tests.natsclient import connect

SECOND = 1_000_000_000
TO = b"snapshot.here"


def filled(world: World) -> None:
    """A stream with everything: erased, deleted and purged messages, headers, a consumer in the middle of its work."""
    world.create("S", subjects=["s.>"], description="before")
    for i in range(30):
        world.publish(f"s.{i % 3}", b"%d" % i * 4000, **({"Nats_Msg_Id": f"id-{i}"} if i % 2 else {}))
    world.api("STREAM.MSG.DELETE.S", {"seq": 4})
    world.api("STREAM.MSG.DELETE.S", {"seq": 7, "no_erase": True})
    world.api("STREAM.PURGE.S", {"filter": "s.1", "keep": 2})
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", filter_subject="s.2")
    for reply, _, _ in world.pull("S", "c", {"batch": 4})[:2]:
        world.ask(reply, b"")


def snapshot(world: World, **more: Any) -> bytes:
    """Takes a snapshot, answering every piece."""
    world.bus.present.add(TO)
    said = world.api("STREAM.SNAPSHOT.S", {"deliver_subject": TO.decode(), **more})
    assert "error" not in said, said
    archive, at = b"", 0
    while True:
        pieces = [each for each in world.bus.said if each[0] == TO][at:]
        if not pieces:
            raise AssertionError("the snapshot has stopped")
        for _, _, payload, reply, header in pieces:
            at += 1
            if header:
                assert header.startswith(b"NATS/1.0 204")
                return archive
            archive += payload
            world.bus.send(reply, b"")
        world.settle()


def restore(world: World, archive: bytes, config: dict[str, Any]) -> Any:
    """Restores an archive. Returns the last answer."""
    said = world.api(f"STREAM.RESTORE.{config['name']}", {"config": config, "state": {}})
    if "error" in said:
        return said
    for begin in range(0, len(archive), 50_000):
        world.ask(said["deliver_subject"], archive[begin : begin + 50_000])
    return world.ask(said["deliver_subject"], b"")


def look(world: World) -> Any:
    """All that there is to see of the stream."""
    messages = [world.api("STREAM.MSG.GET.S", {"seq": n}).get("message") for n in range(1, 33)]
    consumer = {
        name: value
        for name, value in world.api("CONSUMER.INFO.S.c").items()
        if name in ("config", "ack_floor", "num_ack_pending", "num_pending", "created")
    }
    consumer["ack_floor"].pop("last_active", None)
    return world.state("S"), messages, consumer


def test_a_restore_is_bounded_as_a_whole(tmp_path: Path) -> None:
    """Bytes that come, bytes when they are unpacked, and files; a small archive may hold much."""
    pytest.importorskip("cramjam")
    config = {"name": "S", "subjects": ["s.>"], "storage": "file"}

    def archive(files: int, size: int) -> bytes:
        framer = Framer(SNAPPY)
        parts = [whole_file(f"msgs/{n}.blk", bytes(size), 0) for n in range(1, files + 1)]
        return b"".join(bytes(framer.frame(part)) for part in (*parts, END))

    for limit, files, size, said in (
        (4_000_000, 5, 1_000_000, "has more than the remaining 4000000 bytes"),
        (4_000_000_000, 12, 0, "has more than 10 files"),
    ):
        world = World(tmp_path / f"{files}", limits=QuotaLimits(1 << 20, limit))
        with mock.patch.object(archives, "_MOST_FILES", 10):
            packed = archive(files, size)
            assert len(packed) < 1_000_000
            answer = restore(world, packed, config)
        assert said in answer["error"]["description"], answer
        assert "error" in world.api("STREAM.INFO.S")
        assert not list((tmp_path / f"{files}").rglob(".restore-*"))


def test_restores_share_what_is_left(tmp_path: Path) -> None:
    world = World(tmp_path, limits=QuotaLimits(1 << 20, 100_000))
    places = [
        world.api(f"STREAM.RESTORE.{name}", {"config": {"name": name}, "state": {}})["deliver_subject"] for name in "AB"
    ]
    world.ask(places[0], bytes(60_000))
    refused = world.ask(places[1], bytes(60_000))
    assert "insufficient resources" in refused["error"]["description"]


def test_a_snapshot_is_what_the_stream_was_when_it_was_asked_for(tmp_path: Path) -> None:
    one, other = World(tmp_path / "one"), World(tmp_path / "other")
    filled(one)
    before = look(one)
    archive = snapshot(one, chunk_size=2000)
    config = one.api("STREAM.INFO.S")["config"]
    said = restore(other, archive, {**config, "description": "after"})
    assert "error" not in said, said
    assert said["config"]["description"] == "after"
    assert said["created"] == one.api("STREAM.INFO.S")["created"]
    assert look(other) == before
    other.crash()
    assert look(other) == before
    # It goes on where it was, as what it was.
    assert other.publish("s.1", b"new")["seq"] == 31
    assert other.publish("s.1", b"new", Nats_Msg_Id="id-29")["duplicate"]
    assert not list(tmp_path.rglob(".snapshot-*")) and not list(tmp_path.rglob(".restore-*"))


def test_what_changes_while_a_snapshot_is_sent_is_not_in_it(tmp_path: Path) -> None:
    one, other = World(tmp_path / "one"), World(tmp_path / "other")
    filled(one)
    before = look(one)
    one.bus.present.add(TO)
    one.api("STREAM.SNAPSHOT.S", {"deliver_subject": TO.decode(), "chunk_size": 1 << 20})
    pieces = [each for each in one.bus.said if each[0] == TO]
    one.publish("s.1", b"later")
    one.api("STREAM.PURGE.S")
    archive = b"".join(payload for _, _, payload, _, _ in pieces)
    assert "error" not in restore(other, archive, {"name": "S", "subjects": ["s.>"]})
    assert look(other)[1:] == before[1:]


def test_what_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    filled(world)
    archive = snapshot(world)
    config = {"name": "S", "subjects": ["s.>"]}
    assert restore(world, archive, config)["error"]["err_code"] == 10130
    assert world.api("STREAM.RESTORE.S", b"")["error"]["err_code"] == 10003
    assert world.api("STREAM.RESTORE.T", {"config": config})["error"]["err_code"] == 10056
    assert restore(world, archive, {"name": "T", "subjects": ["s.1"]})["error"]["err_code"] == 10065
    wrong = {"name": "T", "subjects": ["t"]}
    assert restore(world, archive, {**wrong, "storage": "memory"})["error"]["err_code"] == 10062
    for data, text in (
        (archive, "stream names do not match"),
        (b"garbage", "does not begin like a framed archive"),
        (archive[:-2000], "ends at byte"),
        (b"", "is missing"),
    ):
        said = restore(world, data, wrong)
        assert said["error"]["err_code"] == 10062, said
        assert text in said["error"]["description"] or not data
    assert world.api("STREAM.SNAPSHOT.S", b"")["error"]["err_code"] == 10003
    assert world.api("STREAM.SNAPSHOT.S", {"deliver_subject": "a.*"})["error"]["err_code"] == 10015
    world.create("M", subjects=["m"], storage="memory")
    assert world.api("STREAM.SNAPSHOT.M", {"deliver_subject": "a"})["error"]["err_code"] == 10064
    assert world.api("STREAM.NAMES")["streams"] == ["M", "S"]
    assert not list(tmp_path.rglob(".restore-*"))


def test_who_says_nothing_is_given_up(tmp_path: Path) -> None:
    world = World(tmp_path)
    filled(world)
    world.bus.present.add(TO)
    # Nobody answers the pieces, so not all of them are sent.
    for i in range(300):
        world.publish("s.1", bytes(8000) + b"%d" % i)
    world.api("STREAM.SNAPSHOT.S", {"deliver_subject": TO.decode()})
    said = world.api("STREAM.RESTORE.T", {"config": {"name": "T", "subjects": ["t"]}})
    world.ask(said["deliver_subject"], b"x")
    assert len(list(tmp_path.rglob(".restore-*"))) == len(list(tmp_path.rglob(".snapshot-*"))) == 1
    world.bus.said.clear()
    world.pass_time(8 * SECOND)
    assert [header for to, _, _, _, header in world.bus.said if to == TO] == [b"NATS/1.0 408 No Flow Response\r\n\r\n"]
    assert not list(tmp_path.rglob(".restore-*")) and not list(tmp_path.rglob(".snapshot-*"))


async def _fetch(client: Any) -> tuple[dict[str, Any], bytes]:
    inbox = client.new_inbox()
    pieces: asyncio.Queue[Any] = asyncio.Queue()
    await client.subscribe(inbox, cb=pieces.put)
    said = json.loads(
        (await client.request("$JS.API.STREAM.SNAPSHOT.S", json.dumps({"deliver_subject": inbox}).encode())).data
    )
    assert "error" not in said, said
    archive = b""
    while (message := await asyncio.wait_for(pieces.get(), 60)).data:
        archive += message.data
        if message.reply:
            await client.publish(message.reply, b"")
    return said["config"], archive


async def _bring(client: Any, config: dict[str, Any], archive: bytes) -> None:
    known = ("name", "subjects", "retention", "storage", "discard", "num_replicas")
    body = {"config": {name: config[name] for name in known}, "state": {}}
    said = json.loads((await client.request("$JS.API.STREAM.RESTORE.S", json.dumps(body).encode())).data)
    for begin in range(0, len(archive), 100_000):
        await client.request(said["deliver_subject"], archive[begin : begin + 100_000])
    done = json.loads((await client.request(said["deliver_subject"], b"")).data)
    assert "error" not in done, done


async def _state(client: Any) -> Any:
    js = client.jetstream()
    state = (await js.stream_info("S")).state
    consumer = await js.consumer_info("S", "d")
    found = (
        state.messages,
        state.first_seq,
        state.last_seq,
        state.bytes,
        consumer.num_pending,
        consumer.ack_floor.stream_seq,
    )
    return found, [(await js.get_msg("S", n)).data for n in (1, 200)]


#: Those whose archives are of the first format, compressed.
OLDER = [version for version in servers.available() if version not in (servers.OLDEST, servers.NEWEST)]


@pytest.mark.skipif(not OLDER, reason="no real server is here")
@pytest.mark.parametrize("ours_first", [True, False])
async def test_between_a_real_server_and_ours(tmp_path: Path, ours_first: bool) -> None:
    real = servers.NatsServer(tmp_path / "real", servers.NEWEST if ours_first else OLDER[-1])
    with real, Broker(tmp_path / "ours", "-js", "-sd", tmp_path / "store") as broker:
        one, other = [await connect(each.url) for each in ((broker, real) if ours_first else (real, broker))]
        try:
            js = one.jetstream()
            await js.add_stream(name="S", subjects=["s.>"])
            for i in range(200):
                await js.publish(f"s.{i % 3}", b"%d" % i * 1000)
            await js.delete_msg("S", 5)
            worker = await js.pull_subscribe("s.>", "d")
            for message in await worker.fetch(10, timeout=60):
                await message.ack_sync()
            await _bring(other, *await _fetch(one))
            # Real servers write the state of a consumer down when they find the time.
            known = None if ours_first else 4
            assert (await _state(other))[0][:known] == (await _state(one))[0][:known]
            assert (await _state(other))[1] == (await _state(one))[1]
            assert (await other.jetstream().publish("s.1", b"next")).seq == 201
        finally:
            await one.close()
            await other.close()


@pytest.mark.parametrize("way", ["restore", "publish"])
def test_a_migration_into_the_broker_is_exact(golden: Path, tmp_path: Path, way: str) -> None:
    store = golden / "durables" / "datastore"
    with Broker(tmp_path, "-js", "-sd", tmp_path / "streams") as broker:
        plan = tmp_path / "plan.toml"
        done = run(tmp_path, "migrate", store, "--server", broker.url, "--via", way, "--plan", plan, "--yes")
        assert "are as planned" in done.stdout
        assert "are as planned" in run(tmp_path, "migrate", "verify", plan, "--server", broker.url).stdout
        if way == "restore":
            assert "no difference" in run(tmp_path, "diff", store, f"{broker.url}#events").stdout
        # It is still so after the next start.
        broker.stop()
        broker.start()
        assert "are as planned" in run(tmp_path, "migrate", "verify", plan, "--server", broker.url).stdout
