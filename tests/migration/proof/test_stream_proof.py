"""Streams on real servers against stores: equal ones, and every kind of difference."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.plan.migration_plan import ConsumerPlan, ConsumerProgress
from stantools.migration.proof.stream_proof import ExpectedStream, Proof
from stantools.migration.stream_source import SingleSource
from stantools.nats import readback
from stantools.nats.jetstream import JetStream
from stantools.progress import Progress
from stantools.streamfiles.headers import header_block
from tests import servers
from tests.conftest import others_slow
from tests.migration.publish.conftest import peer
from tests.migration.stores import Record, fill, records, single, stored, write_store
from tests.natsclient import jetstream


def plain_messages(count: int, subject: str = "foo", size: int = 10) -> list[tuple[str, bytes, dict[str, str]]]:
    return [(subject, b"%d" % n * size, {}) for n in range(1, count + 1)]


async def stream_of(server: Any, count: int = 200, **config: Any) -> list[Record]:
    """A stream FOO on the server, and the records that a store with the same content has."""
    await fill(server.url, "FOO", plain_messages(count), subjects=["foo"], **config)
    return await stored(server.url, "FOO")


async def prove(
    server: Any,
    source: SingleSource,
    origin: bool = False,
    via_publish: bool = False,
    consumers: Sequence[tuple[ConsumerPlan, ConsumerProgress]] = (),
    progress: Progress | None = None,
) -> Proof:
    expected = ExpectedStream("FOO", source, origin, via_publish, consumers)
    async with jetstream(server.url) as js:
        return await expected.prove(js, progress=progress)


def codes(proof: Proof) -> dict[str, str]:
    return {each.code: each.detail for each in proof.findings}


async def test_equal_on_every_version(each_server: Any, tmp_path: Path) -> None:
    rows = await stream_of(each_server, 300)
    seen: list[int] = []
    proof = await prove(each_server, single(write_store(tmp_path / "a", {"foo": rows}), "foo"), progress=seen.append)
    assert proof.findings == []
    assert proof.clean
    assert proof.messages == sum(seen) == 300
    assert proof.bytes == sum(len(row[3]) for row in rows)
    assert proof.seconds > 0
    # Nothing of ours is left behind.
    async with jetstream(each_server.url) as js:
        assert await servers.consumer_names(js, "FOO") == []


async def test_gaps(each_server: Any, tmp_path: Path) -> None:
    """Leading, inner and trailing gaps, as the server makes them."""
    await fill(each_server.url, "FOO", plain_messages(60), subjects=["foo"])
    async with jetstream(each_server.url) as js:
        await js.purge_stream("FOO", below=11)
        for sequence in (20, 21, 35, 60, 59):
            await js.delete_message("FOO", sequence)
    rows = await stored(each_server.url, "FOO")
    root = write_store(tmp_path / "a", {"foo": rows})
    source = single(root, "foo")
    proof = await prove(each_server, source)
    # A store without its last messages ends earlier; everything else is equal.
    assert set(codes(proof)) == {"stream-state"}
    assert codes(proof)["stream-state"].startswith("stream FOO: its last sequence is 60 instead of 58")
    assert proof.messages == 45


async def test_an_emptied_stream(each_server: Any, tmp_path: Path) -> None:
    await stream_of(each_server, 5)
    async with jetstream(each_server.url) as js:
        await js.purge_stream("FOO")
    proof = await prove(each_server, single(write_store(tmp_path / "a", {"foo": []}), "foo"))
    assert codes(proof) == {"stream-state": "stream FOO: its last sequence is 5 instead of 0"}
    proof = await prove(each_server, single(write_store(tmp_path / "b", {"foo": records(2, first=4)}), "foo"))
    assert {code: text.split(":")[-1].strip() for code, text in codes(proof).items()} == {
        "stream-state": "it has 0 messages instead of 2",
        "message-missing": "4-5",
    }


async def test_no_stream(start_server: Any, tmp_path: Path) -> None:
    server = start_server()
    proof = await prove(server, single(write_store(tmp_path / "a", {"foo": []}), "foo"))
    assert codes(proof) == {"stream-missing": "stream FOO does not exist"}


async def test_every_kind_of_difference(start_server: Any, tmp_path: Path) -> None:
    server = start_server()
    rows = await stream_of(server, 100)
    changed = dict(enumerate(rows))
    del changed[9], changed[10], changed[50]  # sequences 10, 11 and 51
    changed[19] = (20, rows[19][1] + 1, b"", rows[19][3])
    changed[29] = (30, rows[29][1], b"", b"other")
    changed[30] = (31, rows[30][1], b"", b"")
    changed[39] = (40, rows[39][1], b"reply.to", rows[39][3])
    changed[100] = (101, rows[99][1], b"", b"lost")
    proof = await prove(server, single(write_store(tmp_path / "a", {"foo": list(changed.values())}), "foo"))
    found = codes(proof)
    assert set(found) == {
        "stream-state",
        "message-missing",
        "message-extra",
        "message-payload",
        "message-headers",
        "message-timestamp",
    }
    assert found["message-missing"] == "1 message of stream FOO: 101"
    assert found["message-extra"] == "3 messages of stream FOO: 10-11, 51"
    assert found["message-payload"].startswith("2 messages of stream FOO: 30-31 (sequence 30: 20 bytes with SHA-256 ")
    assert f"{rows[19][1]} instead of {rows[19][1] + 1}" in found["message-timestamp"]
    assert "reply.to" in found["message-headers"]
    assert {each.code: each.seq for each in proof.findings if each.seq}["message-extra"] == 10
    assert proof.messages == 97


async def test_everything_differs(start_server: Any, tmp_path: Path) -> None:
    server = start_server()
    rows = [(n, t + 1, b"r", b"x") for n, t, _, _ in await stream_of(server, 3000)]
    source = single(write_store(tmp_path / "a", {"foo": rows}), "foo", b"other")
    found = codes(await prove(server, source))
    assert set(found) == {"message-payload", "message-headers", "message-subject", "message-timestamp"}
    assert all(text.startswith("3000 messages of stream FOO: 1-3000 (sequence 1: ") for text in found.values())
    assert "'foo' instead of 'other'" in found["message-subject"]


@pytest.mark.parametrize("published", [False, True])
async def test_headers(start_server: Any, tmp_path: Path, published: bool) -> None:
    """Reply and origin, with and without what publishing adds."""
    server = start_server()
    times = {n: 1_500_000_000_000_000_000 + n for n in range(1, 41)}
    messages = []
    for n, time in times.items():
        own = header_block(b"foo", n, time, b"in.%d" % n if n % 2 else b"", origin=True)
        pairs = [line.split(": ", 1) for line in own.decode().split("\r\n")[1:-2]]
        added = {"Nats-Msg-Id": f"foo:1:{n}", "Nats-Expected-Last-Sequence": str(n - 1)} if published else {}
        messages.append(("foo", b"x", dict(pairs) | added))
    await fill(server.url, "FOO", messages, subjects=["foo"])
    rows = [(n, time, b"in.%d" % n if n % 2 else b"", b"x") for n, time in times.items()]
    source = single(write_store(tmp_path / "a", {"foo": rows}), "foo")
    found = set(codes(await prove(server, source, origin=True, via_publish=published)))
    assert found == (set() if published else {"message-timestamp"})
    found = set(codes(await prove(server, source, origin=True, via_publish=False)))
    assert found == ({"message-headers", "message-timestamp"} if published else {"message-timestamp"})
    # What was appended to a restored stream has its origin in headers, where the messages before it have not.
    found = codes(await prove(server, source, origin=False, via_publish=published))
    assert ("message-headers" in found) == (not published)
    # Another time in the store is another time in the header.
    rows[6] = (7, 5, rows[6][2], b"x")
    source = single(write_store(tmp_path / "b", {"foo": rows}), "foo")
    assert "message-headers" in codes(await prove(server, source, origin=True, via_publish=published))


async def test_large_messages_in_between(start_server: Any, tmp_path: Path) -> None:
    """More bytes than a request asks for, and messages that clients may not send any more."""
    server = start_server("2.15.1", {"max_payload": 12 << 20, "max_pending": 64 << 20})
    big = {5: 9 << 20, 6: 9 << 20, 20: 3 << 20, 21: 3 << 20, 22: 3 << 20, 40: 10 << 20}
    messages = [("foo", bytes([n]) * big.get(n, 50), {}) for n in range(1, 41)]
    await fill(server.url, "FOO", messages, subjects=["foo"])
    server.stop()
    server.settings["max_payload"] = 1 << 20
    server.start()
    store = [(n, 1, b"", bytes([n]) * big.get(n, 50)) for n in range(1, 41)]
    proof = await prove(server, single(write_store(tmp_path / "a", {"foo": store}), "foo"))
    assert set(codes(proof)) == {"message-timestamp"}
    assert proof.messages == 40


async def _proof_while(server: Any, source: SingleSource, disturb: Any) -> Proof:

    async with jetstream(server.url) as js:
        disturbed = False

        def progress(_: int) -> None:
            nonlocal disturbed
            if not disturbed:
                disturbed = True
                disturb(js)

        return await ExpectedStream("FOO", source, False, False).prove(js, progress=progress)


@pytest.mark.parametrize("version", others_slow(["2.9.10", "2.15.1"], {"2.15.1"}))
async def test_a_server_that_restarts(
    start_server: Any, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(version)
    rows = await stream_of(server, 3000)
    monkeypatch.setattr(readback, "_BATCH_MESSAGES", 50)

    def restart(_: JetStream) -> None:
        server.kill()
        server.start()

    proof = await _proof_while(server, single(write_store(tmp_path / "a", {"foo": rows}), "foo"), restart)
    assert proof.findings == []
    assert proof.messages == 3000


async def test_a_consumer_that_somebody_deletes(
    start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    rows = await stream_of(server, 3000)
    monkeypatch.setattr(readback, "_BATCH_MESSAGES", 50)
    tasks = []

    def delete(js: JetStream) -> None:
        async def work() -> None:
            for name in await servers.consumer_names(js, "FOO"):
                await js.consumer_delete("FOO", name)

        tasks.append(asyncio.ensure_future(work()))

    proof = await _proof_while(server, single(write_store(tmp_path / "a", {"foo": rows}), "foo"), delete)
    assert proof.findings == []
    assert proof.messages == 3000


async def test_a_stream_that_grows_meanwhile(
    start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    rows = await stream_of(server, 2000)
    monkeypatch.setattr(readback, "_BATCH_MESSAGES", 50)

    def publish(js: JetStream) -> None:
        js.connection.publish(b"foo", b"new")

    proof = await _proof_while(server, single(write_store(tmp_path / "a", {"foo": rows}), "foo"), publish)
    assert proof.findings == []
    assert proof.messages == 2000


async def test_consumers(each_server: Any, tmp_path: Path) -> None:
    rows = await stream_of(each_server, 50)
    source = single(write_store(tmp_path / "a", {"foo": rows}), "foo")
    settings = {"ack_policy": "explicit", "ack_wait": 30_000_000_000, "max_ack_pending": 100}
    async with jetstream(each_server.url) as js:
        await js.consumer_create("FOO", {"durable_name": "d", "deliver_policy": "all", **settings})
        async with peer(js) as client:
            inbox = client.new_inbox()
            subscription = await client.subscribe(inbox)
            await client.publish(f"{js.prefix}.CONSUMER.MSG.NEXT.FOO.d", b"20", reply=inbox)
            for number in range(1, 21):
                message = await subscription.next_msg(5)
                if number not in (8, 12):
                    await message.ack_sync()

    async def check(position: ConsumerProgress, name: str = "d", **changed: Any) -> dict[str, str]:
        plan = ConsumerPlan(name, channel="foo", settings={**settings, **changed})
        return codes(await prove(each_server, source, consumers=[(plan, position)]))

    assert await check(ConsumerProgress(20, 7, (8, 12))) == {}
    assert await check(ConsumerProgress(20, 20), "other") == {
        "consumer-missing": "consumer other of stream FOO does not exist"
    }
    wrong = (await check(ConsumerProgress(21, 8, (9, 12, 13))))["consumer-position"]
    assert "has delivered up to 20 instead of 21" in wrong
    assert "acknowledged up to 7 instead of 8" in wrong
    assert "2 messages wait for acknowledgement, instead of 3" in wrong
    wrong = (await check(ConsumerProgress(20, 7, (8, 12)), ack_wait=5, description="x"))["consumer-config"]
    assert wrong == (
        "consumer d of stream FOO: ack_wait is 30000000000 instead of 5; description is None instead of 'x'"
    )
