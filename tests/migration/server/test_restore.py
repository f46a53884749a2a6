"""Restoring archives into real servers: exact, or nothing."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import RefusedError, StoreUnreadableError
from stantools.migration.server import restore as module
from stantools.migration.server import transfer
from stantools.migration.server.restore import RestoreError, restore
from stantools.migration.server.transfer import TransferFlow
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.errors import ApiError, PermissionDeniedError
from stantools.nats.jetstream import JetStream
from tests import servers
from tests.conftest import others_slow
from tests.migration.server.archives import Archive, build, payload
from tests.natsclient import jetstream


async def put(js: JetStream, archive: Archive, pieces: Iterable[Any] | None = None, **options: Any) -> dict[str, Any]:
    parts = archive.parts() if pieces is None else pieces
    return await restore(js, archive.name, archive.config, archive.state, parts, **options)


async def test_restores_on_every_version(each_server: Any) -> None:
    archive = build(messages=5000, size=300, first=77, consumers=("one", "two"))

    async with jetstream(each_server.url) as js:
        # Small pieces and a small window: it must slide many times.
        state = await put(js, archive, flow=TransferFlow(piece_bytes=20_000, window=100_000))
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (5000, 77, 5076)
        info = await js.stream_info("ORDERS")
        assert info is not None
        assert info["state"]["bytes"] == archive.state["bytes"]
        assert await servers.consumer_names(js, "ORDERS") == ["one", "two"]
        message = await js.message("ORDERS", {"seq": 4000})
        assert message is not None
        assert message["time"] == "2020-09-13T12:26:40.123460789Z"
        assert base64.b64decode(message["data"]) == payload(4000, 300)


async def test_refuses_a_stream_that_is_there(start_server: Callable[..., Any]) -> None:
    archive = build()

    async with jetstream(start_server().url) as js:
        await put(js, archive)
        with pytest.raises(RefusedError, match="ORDERS already exists"):
            await put(js, archive)
        info = await js.stream_info("ORDERS")
        assert info is not None
        assert info["state"]["messages"] == 100


async def test_refuses_two_restores_of_one_stream_at_once(start_server: Callable[..., Any]) -> None:
    archive = build()
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Any]:
        begun.set()
        go_on.wait(10)
        yield archive.framed

    async with jetstream(start_server().url) as js:
        first = asyncio.ensure_future(put(js, archive, slow()))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        with pytest.raises(RefusedError, match="being restored already"):
            await put(js, archive)
        go_on.set()
        assert (await first)["messages"] == 100


async def test_deletes_what_the_server_restored_incompletely(each_server: Any) -> None:
    archive = build(corrupt=40)

    async with jetstream(each_server.url) as js:
        with pytest.raises(RestoreError, match=r"messages is 40 instead of 100.* deleted again") as caught:
            await put(js, archive)
        assert caught.value.left == "nothing"
        assert not caught.value.retriable
        assert await js.stream_names() == []


async def test_says_what_a_damaged_piece_led_to(each_server: Any) -> None:
    archive = build(messages=4000)
    broken = bytearray(archive.framed)
    broken[100_000] ^= 1

    async with jetstream(each_server.url) as js:
        with pytest.raises(RestoreError, match=r"corrupt input, crc mismatch \(error 500/10062\); nothing") as caught:
            await put(js, archive, [bytes(broken)], flow=TransferFlow(piece_bytes=8000))
        assert caught.value.left == "nothing"
        assert await js.stream_names() == []
        assert (await put(js, archive))["messages"] == 4000


async def test_limits_that_apply_at_once_are_a_difference_unless_they_are_expected(
    start_server: Callable[..., Any],
) -> None:
    archive = build(max_msgs=10)

    async with jetstream(start_server().url) as js:
        with pytest.raises(RestoreError, match="messages is 10 instead of 100"):
            await put(js, archive)
        state = await put(js, archive, limits_apply=True)
        assert (state["messages"], state["last_seq"]) == (10, 100)


async def test_an_error_of_the_source_leaves_nothing(start_server: Callable[..., Any]) -> None:
    archive = build(messages=4000)

    def failing() -> Iterator[Any]:
        yield archive.parts(50_000)[0]
        raise StoreUnreadableError("msgs.1.dat: changed while it was read", "stop the server")

    server = start_server()
    async with jetstream(server.url) as js:
        with pytest.raises(RestoreError, match=r"msgs.1.dat: changed .* nothing of it is left") as caught:
            await put(js, archive, failing())
        assert caught.value.remedy == "stop the server"
        assert await js.stream_names() == []
    server.kill()


@pytest.mark.slow
async def test_a_source_that_stalls_does_not_lose_the_restore(start_server: Callable[..., Any]) -> None:
    """The server waits for 5 s. On all versions at the same time, and once without our signs of life."""
    archive = build(messages=2000)

    def stalling() -> Iterator[Any]:
        yield archive.framed[:60_000]
        time.sleep(3)
        yield archive.framed[60_000:100_000]
        time.sleep(6)
        yield archive.framed[100_000:]

    def between_chunks() -> Iterator[Any]:
        time.sleep(6)
        yield archive.framed

    async def patient(server: Any) -> None:
        async with jetstream(server.url) as js:
            assert (await put(js, archive, between_chunks()))["messages"] == 2000

    async def impatient(server: Any) -> None:
        """Inside of a chunk there can be no sign of life, and what happens then is told."""
        async with jetstream(server.url) as js:
            with pytest.raises(RestoreError, match=r"no longer listens .* nothing of it is left") as caught:
                await put(js, archive, stalling())
            assert caught.value.retriable
            assert await js.stream_names() == []
        server.kill()

    running = [start_server(version) for version in servers.available()]
    await asyncio.gather(impatient(start_server()), *map(patient, running))


@pytest.mark.parametrize(
    "version", others_slow([servers.OLDEST, "2.12.8", servers.NEWEST], {servers.OLDEST, servers.NEWEST})
)
async def test_a_server_killed_half_way_leaves_nothing(start_server: Callable[..., Any], version: str) -> None:
    archive = build(messages=4000, size=1000)
    server = start_server(version)

    def killing() -> Iterator[Any]:
        parts = archive.parts(500_000)
        yield from parts[:4]
        server.kill()
        server.start()
        yield from parts[4:]

    async with jetstream(server.url) as js:
        with pytest.raises(RestoreError, match=r"the connection broke.*; nothing of it is left") as caught:
            await put(js, archive, killing())
        assert caught.value.retriable
        assert await js.stream_names() == []
        assert (await put(js, archive))["messages"] == 4000


async def test_a_server_that_stays_away_is_said_so(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stantools.migration.server.restore.SETTLE_SECONDS", 0.3)
    monkeypatch.setattr("stantools.migration.server.restore._ASK_SECONDS", 0.3)
    archive = build(messages=4000, size=1000)
    server = start_server()

    def killing() -> Iterator[Any]:
        parts = archive.parts(500_000)
        yield from parts[:4]
        server.kill()
        yield from parts[4:]

    async with jetstream(server.url) as js:
        with pytest.raises(RestoreError, match="its remains could not be determined") as caught:
            await put(js, archive, killing())
        assert caught.value.left == "unknown"
        assert caught.value.retriable


@pytest.mark.parametrize("restored", [True, False])
async def test_finds_out_what_became_of_it_when_the_answer_is_lost(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    """The connection breaks between the end of the archive and the server's answer."""
    monkeypatch.setattr("stantools.migration.server.restore.SETTLE_SECONDS", 0.5)
    archive = build(messages=2000)
    end = transfer.Transfer.end

    async def interrupted(self: transfer.Transfer) -> bytes:
        if restored:
            await end(self)
        raise module.NoAnswerError("the answer was lost", "")

    monkeypatch.setattr(transfer.Transfer, "end", interrupted)

    server = start_server()
    async with jetstream(server.url) as js:
        if restored:
            assert (await put(js, archive))["messages"] == 2000
        else:
            with pytest.raises(RestoreError, match="it does not exist, unless the server is still unpacking") as caught:
                await put(js, archive, archive.parts(50_000)[:1])
            assert caught.value.left == "unknown"
    server.kill()


async def test_a_server_that_takes_nothing_any_more(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "NUDGE_SECONDS", 0.2)
    archive = build(messages=4000, size=1000)

    server = start_server()
    async with jetstream(server.url) as js:
        # Nobody sees the answers.
        async def deaf(self: transfer.Transfer, message: Any) -> None:
            return

        monkeypatch.setattr(transfer.Transfer, "on_answer", deaf)
        with pytest.raises(RestoreError, match=r"has accepted no piece of the archive for 1 s.*nothing of it is left"):
            await put(js, archive, flow=TransferFlow(window=500_000, chunk_timeout=0.8))
    server.kill()


def users(*permissions: dict[str, Any]) -> dict[str, Any]:
    """Configuration with users u0, u1, … whose password is p."""
    return {
        "authorization": {
            "users": [
                {"user": f"u{number}", "password": "p", "permissions": each} for number, each in enumerate(permissions)
            ]
        }
    }


@pytest.mark.parametrize("version", others_slow([servers.OLDEST, servers.NEWEST], {servers.NEWEST}))
async def test_the_least_permissions_are_enough(start_server: Callable[..., Any], version: str) -> None:
    least = {"publish": ["$JS.API.STREAM.RESTORE.*", "$JS.SNAPSHOT.RESTORE.*.*"], "subscribe": ["_INBOX.>"]}
    server = start_server(version, users(least))
    async with jetstream(server.url, user="u0", password="p") as js:
        await put(js, build(consumers=("one",)))


async def test_missing_permissions_are_told_at_once(start_server: Callable[..., Any]) -> None:
    inbox = {"subscribe": ["_INBOX.>"]}
    server = start_server(
        config=users(
            {"publish": ["$JS.API.STREAM.INFO.*"], **inbox},
            {"publish": ["$JS.API.STREAM.*.*"], **inbox},
            {"publish": ["$JS.>"], "subscribe": ["own.>"]},
        )
    )
    archive = build()

    async def no_request(js: JetStream) -> None:
        with pytest.raises(PermissionDeniedError, match=r"u0 may not publish to \$JS.API.STREAM.RESTORE.ORDERS"):
            await put(js, archive)

    async def no_pieces(js: JetStream) -> None:
        with pytest.raises(RestoreError, match=r"may not publish to \$JS.SNAPSHOT.RESTORE.ORDERS.*nothing of it"):
            await put(js, archive)
        assert await js.stream_info("ORDERS") is None

    async def no_inbox(js: JetStream) -> None:
        with pytest.raises(PermissionDeniedError, match=r"u2 may not subscribe to _INBOX.>") as caught:
            await put(js, archive)
        assert "--inbox-prefix" in caught.value.remedy

    # Each is told at once: nobody waits for the answer to a request, ten seconds.
    for work, who, more in (
        (no_request, "u0", {}),
        (no_pieces, "u1", {}),
        (no_inbox, "u2", {}),
        (lambda js: put(js, archive), "u2", {"inbox_prefix": "own"}),
    ):
        begun = time.monotonic()
        async with jetstream(server.url, user=who, password="p", **more) as js:
            await work(js)
        assert time.monotonic() - begun < 9
    server.kill()


async def test_limits_of_the_account_are_told_before_anything_is_made(start_server: Callable[..., Any]) -> None:
    account = {
        "jetstream": {"max_mem": 0, "max_file": 100_000, "max_streams": 1},
        "users": [{"user": "a", "password": "p"}],
    }
    server = start_server(config={"accounts": {"A": account}})

    async with jetstream(server.url, user="a", password="p") as js:
        with pytest.raises((ApiError, RestoreError), match=r"insufficient storage|resource limits|exceeded"):
            await put(js, build(messages=4000))
        assert await js.stream_names() == []
        await put(js, build("FIRST", "first"))
        with pytest.raises(ApiError, match="maximum number of streams"):
            await put(js, build("SECOND", "second"))


async def test_through_a_domain(start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server(config={"jetstream": {"store_dir": str(tmp_path / "js"), "domain": "hub"}})
    archive = build()

    async with jetstream(server.url, domain="hub") as js:
        assert js.prefix == "$JS.hub.API"
        assert (await put(js, archive))["messages"] == 100


@pytest.mark.parametrize("version", others_slow([servers.OLDEST, servers.NEWEST], {servers.NEWEST}))
async def test_into_an_encrypted_store(start_server: Callable[..., Any], tmp_path: Path, version: str) -> None:
    store = tmp_path / "js"
    settings = {"jetstream": {"store_dir": str(store), "key": "a secret key that is long enough"}}
    server = start_server(version, settings)
    archive = build(messages=1000, subject="very.distinct.subject")
    async with jetstream(server.url) as js:
        await put(js, archive)
    server.stop()
    assert not any(b"very.distinct.subject" in path.read_bytes() for path in store.rglob("*.blk"))
    server.start()
    async with jetstream(server.url) as js:
        info = await js.stream_info("ORDERS")
        assert info is not None
        assert info["state"]["messages"] == 1000


@pytest.mark.parametrize("found", [{}, {"state": {"last_seq": 0}}, {"state": {"last_seq": 5}}])
@pytest.mark.parametrize("begun", [True, False])
async def test_a_name_that_a_cluster_kept_of_an_earlier_restore(
    monkeypatch: pytest.MonkeyPatch, begun: bool, found: dict[str, Any]
) -> None:
    removed: list[str] = []

    async def find(*_: Any) -> dict[str, Any]:
        return found

    async def remove(js: Any, stream: str, subjects: Any) -> None:
        removed.append(stream)

    monkeypatch.setattr(module, "find_in_time", find)
    monkeypatch.setattr(module, "remove", remove)

    class Cluster:
        prefix, cluster, info, options = "$JS.API", "c", {}, ConnectOptions()

        @property
        def connection(self) -> Cluster:
            return self

        async def api(self, operation: str, *_: Any, **__: Any) -> dict[str, Any]:
            raise ApiError(operation, 400, 10052, "it was asked for, and that is enough")

    restoring = restore(Cluster(), "ORDERS", {}, {}, [], begun=begun)  # type: ignore[arg-type]
    if begun and found != {"state": {"last_seq": 5}}:
        with pytest.raises(ApiError, match="that is enough"):
            await restoring
        assert removed == ["ORDERS"]
        return
    with pytest.raises(RefusedError, match="ORDERS already exists"):
        await restoring
    assert not removed


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_cluster_that_loses_a_server_half_way(tmp_path: Path, victim: int) -> None:
    """Either it goes on, or what it left is removed, and it can be done again."""
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip("no server")
    archive = build(messages=10_000, size=1000, consumers=("one", "two"), num_replicas=3)
    async with servers.Cluster(tmp_path) as cluster:

        def killing() -> Iterator[Any]:
            parts = archive.parts(1 << 20)
            yield from parts[:5]
            cluster.servers[victim].kill()
            yield from parts[5:]

        async with jetstream(*cluster.urls) as js:
            pieces: Iterable[Any] = killing()
            for _ in range(20):
                try:
                    state = await put(js, archive, pieces, flow=TransferFlow(chunk_timeout=20))
                    break
                except RestoreError as problem:
                    assert problem.retriable
                    assert problem.left == "nothing"
                    pieces = archive.parts(1 << 20)
            assert state["messages"] == 10_000
            info = await js.stream_info("ORDERS")
            assert info is not None
            assert info["state"]["bytes"] == archive.state["bytes"]
            # The node that answers may learn of the consumers a moment later.
            for _ in range(100):
                if info["state"]["consumer_count"] == 2:
                    break
                await asyncio.sleep(0.2)
                info = await js.stream_info("ORDERS") or info
            assert info["state"]["consumer_count"] == 2
