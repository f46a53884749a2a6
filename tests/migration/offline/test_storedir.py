from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import RefusedError, StoreUnwritableError
from stantools.migration.plan.migration_plan import Remark, RemarkLevel
from stantools.migration.targets import in_use
from stantools.migration.targets.directories import StoreDirectory
from stantools.migration.targets.file_destination import PlacedStream, prove_stream_directory
from tests import natsclient, servers
from tests.conftest import EACH_VERSION, load_expected, others_slow
from tests.migration.facts import facts_of
from tests.migration.offline.streams import (
    PENDING,
    REPLACE,
    ROWS,
    facts,
    prepared,
    prepared_golden,
    small_store,
    wanted,
)
from tests.migration.reading import consumers_of, read_stream, state_of
from tests.migration.test_golden import compare, compare_consumers
from tests.trees import tree

pytestmark = pytest.mark.usefixtures("only_our_servers")

GOLDEN = [
    "basic",
    "durables",
    "gap_filled",
    "gap_truncated_slice",
    "limits_msgs",
    "encrypted_aes",
    "dmg_payload_flip_noidx",
]
RUNNABLE = [version for version in servers.VERSIONS if servers.binary(version).exists()]


async def _fill(url: str, stream: str = "OTHER", subject: str = "other.>", **connect: Any) -> None:
    async with natsclient.connected(url, **connect) as client:
        js = client.jetstream()
        await js.add_stream(name=stream, subjects=[subject])
        for number in range(5):
            await js.publish(subject.replace(">", "x"), b"%d" % number)
        await js.pull_subscribe("", "worker", stream=stream)


def _warnings(server: Any) -> list[str]:
    """Returns what a server has complained of, but for what 2.9 says of itself when it starts on a busy machine."""
    lines = (line for line in server.text().splitlines() if "[WRN]" in line or "[ERR]" in line)
    return [line for line in lines if "Advisory could not be sent" not in line]


def _problems(notes: list[Remark]) -> list[str]:
    return [f"{note.about}: {note.text}" for note in notes if note.level is RemarkLevel.PROBLEM]


async def _stopped(start_server: Callable[..., Any], version: str = servers.NEWEST, **more: Any) -> Any:
    """A server that has a stream and was stopped."""
    server = start_server(version, **more)
    await _fill(server.url)
    server.stop()
    return server


async def _exact(url: str, rows: dict[str, Any] = ROWS) -> None:
    for channel in rows:
        assert facts(await read_stream(url, channel.replace(".", "_"))) == wanted(channel, rows[channel])
    consumer = (await consumers_of(url, "orders"))["dur"]
    assert consumer.delivered.stream_seq == 300
    assert consumer.ack_floor.stream_seq == PENDING[0] - 1
    assert consumer.num_ack_pending == len(PENDING)
    assert consumer.config.max_ack_pending == 10


async def _goes_on(url: str) -> None:
    """New messages get the next sequences, and the durable gets what is pending, at once, and what is new."""
    async with natsclient.connected(url) as client:
        js = client.jetstream()
        for channel, rows in ROWS.items():
            assert (await js.publish(channel, b"new")).seq == rows[-1][0] + 1
        subscription = await js.pull_subscribe("orders", "dur", stream="orders")
        got = []
        while len(got) < 4:
            for message in await subscription.fetch(4, timeout=natsclient.PATIENCE):
                got.append(message.metadata.sequence.stream)
                await message.ack_sync()
        assert sorted(got) == [*PENDING, 301]


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_server_opens_what_was_placed(version: str, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = await _stopped(start_server, version)
    before = tree(server.store_dir)
    streams = prepared(small_store(tmp_path / "store"))
    store = StoreDirectory(server.store_dir)
    assert _problems(store.check([stream.plan for stream in streams], quiet=0)) == []
    assert tree(server.store_dir) == before
    for stream in streams:
        placed = store.place(stream)
        assert placed.directory == server.store_dir / "jetstream/$G/streams" / stream.name
        for path in (placed.directory, *placed.directory.rglob("*")):
            like = server.store_dir / "jetstream/$G/streams/OTHER" / ("meta.inf" if path.is_file() else "")
            assert path.stat().st_mode == like.stat().st_mode, path
    assert {name: content for name, content in tree(server.store_dir).items() if name in before} == before
    for _ in range(2):
        server.log.unlink()
        server.start()
        await _exact(server.url)
        server.stop()
        assert _warnings(server) == []
        for stream in streams:
            # The server has added its indexes, and this is still what was placed.
            assert (
                prove_stream_directory(server.store_dir / "jetstream/$G/streams" / stream.name, stream).findings == []
            )
            assert StoreDirectory(server.store_dir).place(stream).present
    server.start()
    await _goes_on(server.url)
    for end in (server.stop, server.kill):
        end()
        server.start()
        state = (await state_of(server.url, "orders")).state
        assert (state.messages, state.last_seq) == (len(ROWS["orders"]) + 1, 301)
        assert (await state_of(server.url, "OTHER")).state.messages == 5
        assert (await consumers_of(server.url, "orders"))["dur"].ack_floor.stream_seq == 301


@pytest.mark.skipif(servers.OLDEST not in RUNNABLE, reason="the oldest server is not here")
async def test_a_store_of_the_oldest_server_is_opened_by_newer_ones(
    golden_copy: Callable[[str], Path], start_server: Callable[..., Any], tmp_path: Path
) -> None:
    server = await _stopped(start_server, servers.OLDEST)
    store = StoreDirectory(server.store_dir)
    golden = {
        case: prepared_golden(golden_copy(case), case, stream_prefix=case, subject_prefix=f"{case}.") for case in GOLDEN
    }
    for streams in [prepared(small_store(tmp_path / "store")), *golden.values()]:
        for stream in streams:
            store.place(stream)

    async def check(url: str) -> None:
        await _exact(url)
        for case, streams in golden.items():
            known = facts_of(load_expected(case))
            for stream in streams:
                name = stream.plan.parts[0].channel
                await compare_consumers(url, stream.plan, known[name])
                await compare(url, stream.plan, known[name], f"{case}.{name}")

    for version in RUNNABLE:
        copy = tmp_path / version
        shutil.copytree(server.store_dir, copy / "store")
        other = servers.NatsServer(copy, version)
        with other:
            await check(other.url)
        assert _warnings(other) == []


async def test_a_store_that_no_server_has_used_yet(start_server: Callable[..., Any], tmp_path: Path) -> None:
    streams = prepared(small_store(tmp_path / "store"))
    store = StoreDirectory(tmp_path / "new")
    assert store.check([stream.plan for stream in streams], quiet=0) == []
    for stream in streams:
        store.place(stream)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    server = start_server(config={"jetstream": {"store_dir": str(tmp_path / "new")}})
    await _exact(server.url)
    assert _warnings(server) == []


async def test_another_account(start_server: Callable[..., Any], tmp_path: Path) -> None:
    accounts = {"APP": {"jetstream": "enabled", "users": [{"user": "u", "password": "p"}]}}
    server = start_server(config={"accounts": accounts, "no_auth_user": "u"})
    server.stop()
    streams = prepared(small_store(tmp_path / "store"))
    store = StoreDirectory(server.store_dir, "APP")
    [note] = store.check([streams[0].plan], quiet=0)
    assert note.level is RemarkLevel.WARNING
    assert "account APP has no directory there yet" in note.text
    for stream in streams:
        store.place(stream)
    server.start()
    await _exact(server.url)
    for name in ("$SYS", "a/b", "..", "", "a b"):
        assert _problems(StoreDirectory(server.store_dir, name).check([], quiet=0)), name


async def test_a_running_server_is_refused(start_server: Callable[..., Any], tmp_path: Path) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    server = start_server()
    for busy in (False, True):
        if busy:
            await _fill(server.url)
        before = tree(server.store_dir)
        [problem] = _problems(StoreDirectory(server.store_dir).check([stream.plan], quiet=0))
        assert f"is in use: process {server.process.pid}" in problem
        with pytest.raises(RefusedError, match="is in use") as raised:
            StoreDirectory(server.store_dir).place(stream)
        assert raised.value.exit_code == 4
        assert "stop it first" in raised.value.remedy
        assert tree(server.store_dir) == before
    server.stop()
    assert _problems(StoreDirectory(server.store_dir).check([stream.plan], quiet=0)) == []


async def test_force_goes_on_beside_a_running_server(start_server: Callable[..., Any], tmp_path: Path) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    server = start_server()
    store = StoreDirectory(server.store_dir, force=True)
    [note] = store.check([stream.plan], quiet=0)
    assert note.level is RemarkLevel.WARNING
    store.place(stream)
    server.stop()
    server.start()
    assert (await state_of(server.url, "one")).state.messages == 1


async def test_a_server_that_was_started_meanwhile(
    start_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    server = await _stopped(start_server)
    before = tree(server.store_dir)
    entries = type(stream).entries
    monkeypatch.setattr("stantools.migration.targets.directories.RECHECK_SECONDS", 0)

    def start(self: Any) -> Any:
        server.start()
        return entries(self)

    monkeypatch.setattr(type(stream), "entries", start)
    with pytest.raises(RefusedError, match=r"is in use.*; nothing was placed"):
        StoreDirectory(server.store_dir).place(stream)
    server.stop()
    left = tree(server.store_dir)
    assert left.keys() - before.keys() == set()
    monkeypatch.undo()
    monkeypatch.setattr(in_use, "running_servers", lambda: iter(()))
    assert not StoreDirectory(server.store_dir).place(stream).present


@pytest.mark.parametrize("version", others_slow([servers.OLDEST, servers.NEWEST], {servers.NEWEST}))
async def test_a_cluster_is_refused(version: str, tmp_path: Path) -> None:
    if version not in RUNNABLE:
        pytest.skip("no nats-server here (python tests/servers.py)")
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    async with servers.Cluster(tmp_path / "cluster", version, usable=False) as cluster:
        place = cluster.servers[0].store_dir
    [problem] = _problems(StoreDirectory(place).check([stream.plan], quiet=0))
    assert "belongs to a server of a cluster" in problem
    with pytest.raises(RefusedError, match="cluster"):
        StoreDirectory(place).place(stream)


@pytest.mark.parametrize("version", others_slow([servers.OLDEST, servers.NEWEST], {servers.NEWEST}))
async def test_an_encrypted_store_is_refused(version: str, start_server: Callable[..., Any], tmp_path: Path) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    place = tmp_path / "encrypted"
    server = start_server(version, config={"jetstream": {"store_dir": str(place), "key": "secret", "cipher": "aes"}})
    await _fill(server.url)
    server.stop()
    [problem] = _problems(StoreDirectory(place).check([stream.plan], quiet=0))
    assert "is encrypted" in problem
    with pytest.raises(RefusedError, match="is encrypted"):
        StoreDirectory(place).place(stream)
    assert not (place / "jetstream/$G/streams/one").exists()


async def test_streams_and_subjects_that_are_there_are_refused(
    start_server: Callable[..., Any], tmp_path: Path
) -> None:
    server = start_server()
    await _fill(server.url, "one", "other.>")
    await _fill(server.url, "WIDE", "far.*")
    server.stop()
    streams = prepared(small_store(tmp_path / "store"))
    store = StoreDirectory(server.store_dir)
    assert _problems(store.check([stream.plan for stream in streams], quiet=0)) == [
        "far_away: subject far.away overlaps far.* of the existing stream WIDE",
        f"one: already exists ({server.store_dir / 'jetstream/$G/streams/one'})",
    ]
    before = tree(server.store_dir)
    with pytest.raises(RefusedError, match=r"far_away: subject far\.away overlaps"):
        store.place(streams[0])
    with pytest.raises(RefusedError, match=r"stream one already exists .* and is different"):
        store.place(streams[1])
    assert tree(server.store_dir) == before
    # Replacing does not help against the subjects of another stream.
    assert len(_problems(store.check([streams[0].plan], replace=True, quiet=0))) == 1
    assert _problems(store.check([streams[1].plan], replace=True, quiet=0)) == []
    assert _problems(store.check([streams[1].plan], begun=["one"], quiet=0)) == []


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_replaced_streams_are_kept(version: str, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server(version)
    await _fill(server.url, "one", "other.>")
    server.stop()
    account = server.store_dir / "jetstream/$G"
    old = tree(account / "streams/one")
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    placed = StoreDirectory(server.store_dir).place(stream, REPLACE)
    assert placed.replaced == account / "one.replaced"
    assert tree(account / "one.replaced") == old
    assert StoreDirectory(server.store_dir).place(stream, REPLACE) == PlacedStream(
        "one", placed.directory, placed.state, present=True
    )
    server.log.unlink()
    server.start()
    assert facts(await read_stream(server.url, "one")) == wanted("one", ROWS["one"])
    server.stop()
    assert _warnings(server) == []
    assert tree(account / "one.replaced") == old
    [other] = prepared(small_store(tmp_path / "other", {"one": ROWS["one"] * 1 + [(9, 1, b"", b"x")]}))
    assert StoreDirectory(server.store_dir).place(other, REPLACE).replaced == account / "one.replaced-2"


def test_a_name_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    streams = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    object.__setattr__(streams[0].plan, "name", "../x")
    [problem] = _problems(StoreDirectory(tmp_path / "new").check([streams[0].plan], quiet=0))
    assert "a name must not hold '.'" in problem
    with pytest.raises(RefusedError, match="must not hold"):
        StoreDirectory(tmp_path / "new").place(streams[0])
    assert not (tmp_path / "new").exists()


def test_a_store_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    (tmp_path / "new/jetstream").mkdir(parents=True)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 4711)
    [problem] = _problems(StoreDirectory(tmp_path / "new").check([stream.plan], quiet=0))
    assert f"belongs to user {os.getuid()}; this process cannot create files for that user" in problem


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_files_belong_to_the_owner_of_the_store(tmp_path: Path) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    root = tmp_path / "new/jetstream"
    root.mkdir(parents=True)
    root.chmod(0o750)
    os.chown(root, 4711, 4712)
    placed = StoreDirectory(tmp_path / "new").place(stream)
    for path in (root / "$G", root / "$G/streams", placed.directory, *placed.directory.rglob("*")):
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (4711, 4712), path
        assert status.st_mode & 0o777 == (0o640 if path.is_file() else 0o750), path


def test_too_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    [problem] = _problems(StoreDirectory(tmp_path / "new").check([stream.plan], quiet=0))
    assert "10 bytes are free" in problem


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    written = []

    def full(descriptor: int, data: bytes) -> None:
        written.append(len(data))
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("stantools.migration.targets.layout.write_all", full)
    with pytest.raises(StoreUnwritableError, match="No space left on device; nothing was placed"):
        StoreDirectory(tmp_path / "new").place(stream)
    assert not (tmp_path / "new").exists()


async def test_what_clients_did_since_is_never_overwritten(start_server: Callable[..., Any], tmp_path: Path) -> None:
    streams = prepared(small_store(tmp_path / "store"))
    server = start_server()
    server.stop()
    for stream in streams:
        StoreDirectory(server.store_dir).place(stream)
    server.start()
    await _goes_on(server.url)
    server.stop()
    before = tree(server.store_dir)
    for stream in streams:
        with pytest.raises(RefusedError, match="already exists"):
            StoreDirectory(server.store_dir).place(stream)
    assert tree(server.store_dir) == before


def test_leftovers_of_a_killed_run(tmp_path: Path) -> None:
    """A run that was killed while it built a stream; `tests.migration.offline.crashes` kills it at every point."""
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    account = tmp_path / "new/jetstream/$G"
    for present in (False, True):
        left = account / ".one.stantools-partial"
        (left / "content").mkdir(parents=True)
        (left / "state.json").write_text('{"made_by": "stantools"}')
        placed = StoreDirectory(tmp_path / "new").place(stream)
        assert (placed.present, placed.replaced) == (present, None)
        assert [path.name for path in account.iterdir()] == ["streams"]
