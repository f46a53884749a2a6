"""`stantools migrate` onto servers as they are met: clusters, encrypted stores, tight accounts, restarts, no room."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest

from stantools.errors import ExitCode
from stantools.store.sample import SampleOptions, write_sample
from tests import natsclient, servers
from tests.brokers import Broker
from tests.conftest import others_slow
from tests.migration.reading import consumers_of, state_of
from tests.migration.stores import fill
from tests.migration.test_migrate import (
    COMMAND,
    big_store,
    channels_of,
    check_all,
    count_streams,
    run,
    store,
    stored,
    stream_of,
    streamed,
)
from tests.natsclient import with_jetstream

__all__ = ["big_store", "store"]


def jetstream(directory: Path, **more: Any) -> dict[str, Any]:
    return {"store_dir": str(directory), "max_mem": 1 << 28, "max_file": 10 << 30, **more}


@pytest.mark.parametrize(
    "version", others_slow([servers.OLDEST, "2.12.8", servers.NEWEST], {servers.OLDEST, servers.NEWEST})
)
def test_an_encrypted_jetstream(version: str, store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    config = {"jetstream": jetstream(tmp_path / "sealed", key="a very secret key", cipher="aes")}
    server = start_server(version, config=config)
    run(tmp_path / "work", "migrate", store, "--server", server.url, "--yes")
    check_all(store, server.url)
    server.stop()
    server.start()
    check_all(store, server.url)
    marker = b'"customer"'
    assert any(marker in path.read_bytes() for path in store.rglob("*.dat"))
    assert not any(marker in path.read_bytes() for path in (tmp_path / "sealed").rglob("*") if path.is_file())


_RESTORER = {
    "user": "restorer",
    "password": "secret",
    "permissions": {
        "publish": [
            "$JS.API.STREAM.RESTORE.*",
            "$JS.SNAPSHOT.RESTORE.*.*",
            "$JS.API.STREAM.INFO.*",
            "$JS.API.STREAM.NAMES",
            "$JS.API.INFO",
        ],
        "subscribe": ["_INBOX.>"],
    },
}
_PUBLISHER = {
    "user": "publisher",
    "password": "secret",
    "permissions": {"publish": {"allow": [">"], "deny": ["$JS.API.STREAM.RESTORE.>"]}, "subscribe": ["_INBOX.>"]},
}


def test_tight_permissions(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    users = [_RESTORER, _PUBLISHER, {"user": "admin", "password": "secret"}]
    server = start_server(config={"authorization": {"users": users}})
    place = tmp_path / "work"
    place.mkdir()
    (place / "password").write_text("secret\n")
    words = ["migrate", store, "--server", server.url, "--yes", "--password-file", "password"]
    denied = run(place, *words, "--user", "publisher", expect=ExitCode.REFUSED)
    assert "may not publish to $JS.API.STREAM.RESTORE" in denied.stdout + denied.stderr
    admin = server.url.replace("nats://", "nats://admin:secret@")
    assert count_streams(admin) == 0
    run(place, *words, "--user", "restorer", "--proof", "counts")
    check_all(store, admin)
    run(place, *words, "--user", "publisher", "--via", "publish", "--plan", "p.yaml", "--subject-prefix", "p.",
        "--stream-prefix", "p_")  # fmt: skip
    channel = channels_of(store)[0]
    assert len(streamed(admin, f"p_{stream_of(channel)}")) == len(stored(store, channel))
    (place / "password").write_text("wrong")
    wrong = run(place, *words, "--user", "restorer", expect=ExitCode.UNREACHABLE)
    assert "wrong" not in wrong.stderr.replace("wrong user", "")


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"max_streams": 2}, "streams"),
        ({"max_store": 20_000}, "bytes of storage"),
        ({"max_consumers": 1}, "consumers"),
    ],
)
def test_limits_of_the_account(
    limits: dict[str, Any], says: str, store: Path, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    accounts = {"A": {"jetstream": {"max_mem": 1 << 20, **limits}, "users": [{"user": "a", "password": "a"}]}}
    server = start_server(config={"accounts": accounts})
    url = server.url.replace("nats://", "nats://a:a@")
    refused = run(tmp_path / "w", "migrate", store, "--server", url, "--yes", expect=ExitCode.REFUSED)
    assert says in refused.stdout + refused.stderr
    assert "a:a" not in refused.stdout + refused.stderr
    assert count_streams(url) == 0


def test_jetstream_is_off(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server(jetstream=False)
    refused = run(tmp_path / "w", "migrate", store, "--server", server.url, "--yes", expect=ExitCode.REFUSED)
    assert "JetStream is not enabled on the server" in refused.stdout + refused.stderr


def test_messages_over_max_payload(
    golden_copy: Callable[[str], Path], start_server: Callable[..., Any], tmp_path: Path
) -> None:
    root, server = golden_copy("basic"), start_server(config={"max_payload": 1 << 18})
    words = ["migrate", root, "--server", server.url, "--yes"]
    refused = run(tmp_path / "a", *words, "--via", "publish", expect=ExitCode.REFUSED)
    assert "max_payload" in refused.stdout + refused.stderr
    assert count_streams(server.url) == 0
    warned = run(tmp_path / "b", *words, "--proof", "counts")
    assert "max_payload" in warned.stdout


def test_messages_that_expire_at_once(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server()
    done = run(tmp_path / "w", "migrate", store, "--server", server.url, "--yes", "--max-age", "24h")
    assert done.stdout.count("are older than max_age 1d") == 3
    for channel in channels_of(store):
        assert asyncio.run(state_of(server.url, stream_of(channel))).state.last_seq == max(stored(store, channel))


def test_a_domain(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server(config={"jetstream": jetstream(tmp_path / "js", domain="hub")})
    words = ["migrate", store, "--server", server.url, "--yes"]
    run(tmp_path / "w", *words, "--js-domain", "hub")
    check_all(store, server.url)
    lost = run(tmp_path / "v", *words, "--js-domain", "nowhere", "--timeout", "1", expect=ExitCode.REFUSED)
    assert "domain" in lost.stdout + lost.stderr


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("version", others_slow([servers.OLDEST, servers.NEWEST], {servers.NEWEST}))
def test_the_servers_disk_is_full(
    version: str, big_store: Path, start_server: Callable[..., Any], full_disk: Path, tmp_path: Path
) -> None:
    # Old servers stage archives in the directory for temporary files, which is on another disk here.
    server = start_server(version, config={"jetstream": jetstream(full_disk)})
    place = tmp_path / "work"
    words = ["migrate", big_store, "--server", server.url, "--yes", "--parallel", 1, "--restore-timeout", 30]
    failed = run(place, *words, expect=ExitCode.UNREACHABLE)
    assert failed.stderr.count("error: ") == 1
    assert "not begun; after removing the cause, continue with:\n  stantools migrate apply" in failed.stdout
    assert failed.stdout.count("not begun") >= 1


@pytest.fixture(scope="module")
def heavy_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few messages, of which one channel has more bytes than a server that others have filled has room for."""
    options = SampleOptions(channels=3, messages=2500, size=1000, seed=6, gaps=True)
    return write_sample(tmp_path_factory.mktemp("heavy") / "store", options).path


@pytest.mark.parametrize("version", others_slow([servers.OLDEST, servers.NEWEST], {servers.NEWEST}))
@pytest.mark.parametrize("parallel", [1, 2])
def test_a_server_that_others_have_filled(
    version: str, parallel: int, heavy_store: Path, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    """No client can know of it before: the first refusal ends the run, and the same command continues."""
    users = {"accounts": {each: {"jetstream": True, "users": [{"user": each, "password": "p"}]} for each in "ab"}}
    config = {**users, "jetstream": jetstream(tmp_path / "js", max_file=16 << 20)}
    server, work = start_server(version, config=config), tmp_path / "work"
    others = {name: server.url.replace("nats://", f"nats://{name}:p@") for name in "ab"}
    asyncio.run(fill(others["a"], "OTHERS", [("others", bytes(500_000), {})] * 28, subjects=["others"]))
    words = ["migrate", heavy_store, "--server", others["b"], "--yes", "--via", "publish", "--parallel", parallel]
    failed = run(work, *words, expect=ExitCode.UNREACHABLE)
    errors = [line for line in failed.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1 and "(error 503/10023)" in errors[0]
    assert "not begun; after removing the cause, continue with:\n  stantools migrate apply" in failed.stdout
    with_jetstream(others["a"], lambda js: js.delete_stream("OTHERS"))
    run(work, *words)
    for channel in channels_of(heavy_store):
        assert streamed(others["b"], stream_of(channel)).keys() == stored(heavy_store, channel).keys()


def test_a_server_without_room(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, work = start_server(config={"jetstream": jetstream(tmp_path / "js", max_file=50_000)}), tmp_path / "work"
    refused = run(work, "migrate", store, "--server", server.url, "--yes", expect=ExitCode.REFUSED)
    assert f"the server at {server.url} has room for about" in refused.stderr
    assert "raise max_file in the server's configuration" in refused.stderr
    assert count_streams(server.url) == 0 and not list(work.iterdir())


def test_a_disk_without_room_for_a_server_of_our_own(store: Path, full_disk: Path, tmp_path: Path) -> None:
    (full_disk / "most").write_bytes(bytes((2 << 20) - 50_000))
    words = ["migrate", store, "--server", "embedded", "--embedded-store", full_disk / "js", "--dry-run"]
    assert "bytes are free" in run(tmp_path / "w", *words, expect=ExitCode.REFUSED).stdout


def test_a_server_of_our_own(
    store: Path, start_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_server().stop()
    monkeypatch.setenv("PATH", str(servers.binary(servers.NEWEST).parent))
    work, kept = tmp_path / "work", tmp_path / "kept"
    words = ("migrate", store, "--server", "embedded", "--embedded-store", kept, "--yes")
    done = run(work, *words)
    assert "3 streams are as planned" in done.stdout
    assert re.search(rf"a nats-server runs at nats://127.0.0.1:\d+; its streams are in {kept}", done.stderr)
    assert run(work, *words).stdout.count("complete before") == 3
    # The server has gone; another one, and the broker, find the streams.
    server = start_server(config={"jetstream": jetstream(kept)})
    check_all(store, server.url)
    server.stop()
    with Broker(tmp_path / "broker", "-js", "-sd", kept) as broker:
        check_all(store, broker.url)


def test_what_is_waited_for_is_told(store: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        said = run(tmp_path / "w", "migrate", store, "--server", url, "--timeout", 3, expect=ExitCode.UNREACHABLE)
    assert f"waiting for an answer from {url}; at most 3 s for each" in said.stderr


def test_the_server_restarts_midway(big_store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    place.mkdir()
    words = ["migrate", big_store, "--server", server.url, "--yes", "--via", "publish", "--parallel", "1"]
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 60
    while count_streams(server.url) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    server.stop()
    time.sleep(0.3)
    server.start()
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output.decode()
    for channel in channels_of(big_store):
        assert streamed(server.url, stream_of(channel)).keys() == stored(big_store, channel).keys()


def when_begun(place: Path, act: Callable[[], None]) -> threading.Thread:
    """Does something as soon as the first stream is being made."""
    journal = place / "shop-store.migration.yaml.journal"

    def wait() -> None:
        deadline = time.monotonic() + 60
        while not (journal.exists() and "started" in journal.read_text()) and time.monotonic() < deadline:
            time.sleep(0.005)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def until_whole(urls: list[str], streams: list[str]) -> None:
    """Waits until every stream that is there has a leader and two followers that are up to date."""

    async def whole(url: str) -> bool:
        client = await natsclient.connect(url)
        try:
            js = client.jetstream(timeout=2)
            for stream in streams:
                with contextlib.suppress(nats.js.errors.NotFoundError):
                    found = (await js.stream_info(stream)).cluster
                    if not (found and found.leader and found.replicas):
                        return False
                    if len(found.replicas) < 2 or any(each.offline or not each.current for each in found.replicas):
                        return False
        except (nats.errors.Error, nats.js.errors.Error):
            return False
        finally:
            await client.close()
        return True

    deadline = time.monotonic() + 120
    while not all(asyncio.run(whole(url)) for url in urls):
        assert time.monotonic() < deadline, "the cluster does not become whole again"
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("version", [servers.OLDEST, servers.NEWEST])
def test_a_cluster_that_loses_a_node(version: str, big_store: Path, tmp_path: Path) -> None:
    """Three replicas; a node is killed while streams are restored.

    What is promised: the command ends, and either it is done or says how to go on; with the node back the same
    command finishes. That it finishes without the node is up to the cluster: old ones have been seen not to answer
    for minutes.
    """
    if not servers.binary(version).exists():
        pytest.skip(f"nats-server {version} is not here")
    place, streams = tmp_path / "work", [stream_of(channel) for channel in channels_of(big_store)]
    place.mkdir()
    with servers.Cluster(tmp_path / "cluster", version) as cluster:
        victim = cluster.servers[2]
        words = ["migrate", big_store, "--server", ",".join(cluster.urls), "--yes", "--replicas", 3]
        command = [*COMMAND, *map(str, words)]
        killing = when_begun(place, victim.kill)
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300)
        killing.join()
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, ExitCode.UNREACHABLE), done.stdout + done.stderr
        assert done.returncode == 0 or "continue with" in done.stdout, done.stdout + done.stderr
        victim.start()
        for _ in range(3):
            until_whole(cluster.urls, streams)
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300)
            assert "Traceback" not in done.stderr
            if done.returncode == 0:
                break
            if version == servers.OLDEST and done.returncode == ExitCode.FINDINGS:
                assert "has delivered up to 0 instead of" in done.stdout
                command = [*command, "--replace"] if "--replace" not in command else command
                continue
            assert done.returncode == ExitCode.UNREACHABLE and "continue with" in done.stdout, done.stdout + done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
        until_whole(cluster.urls, streams)
        check_all(big_store, cluster.servers[0].url)
        for stream in streams:
            assert asyncio.run(state_of(cluster.servers[1].url, stream)).config.num_replicas == 3


#: Waits a second for a server to come back where the command waits ten to sixty.
_IMPATIENT = """
import sys
from stantools.cli.main import main
from stantools.migration.targets import stream_load
from stantools.nats import readback
from stantools.migration.server import restore
stream_load._RECONNECT = readback._RECONNECT = restore.SETTLE_SECONDS = restore._ASK_SECONDS = 1.0
sys.exit(main())
"""


def test_the_server_dies_for_good(big_store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    place.mkdir()
    words = ["migrate", big_store, "--server", server.url, "--yes", "--timeout", 1]
    process = subprocess.Popen(
        [sys.executable, "-c", _IMPATIENT, *map(str, words)],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    killing = when_begun(place, server.kill)
    output, errors = process.communicate(timeout=120)
    killing.join()
    assert process.returncode == ExitCode.UNREACHABLE, output + errors
    assert "Traceback" not in errors and "continue with" in output
    server.start()
    run(place, *words)
    check_all(big_store, server.url)


#: Is interrupted by Ctrl-C when something is called for the first time, or has just been done.
_INTERRUPTED = """
import signal, sys
from stantools.cli.main import main
from stantools.nats.jetstream import JetStream
from stantools.nats.inbox import Inbox
place, name = {place}, {name!r}
called = getattr(place, name)
async def interrupted(*words, **more):
    setattr(place, name, called)
    # Several may be on their way here: then Ctrl-C comes again, as it does from a terminal and a parent.
    if {before}:
        signal.raise_signal(signal.SIGINT)
    result = await called(*words, **more)
    if not {before}:
        signal.raise_signal(signal.SIGINT)
    return result
setattr(place, name, interrupted)
main()
"""


def run_interrupted(work: Path, place: str, name: str, before: bool, *words: object) -> str:
    """Runs the command, which has to end as interrupted; returns what it said on stderr."""
    program = _INTERRUPTED.format(place=place, name=name, before=before)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)], cwd=work, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("place", "name"), [("JetStream", "consumer_create"), ("Inbox", "receive")])
def test_a_proof_that_is_interrupted_leaves_no_consumer(
    place: str, name: str, before: bool, store: Path, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    server, work = start_server(), tmp_path / "work"
    run(work, "migrate", store, "--server", server.url, "--yes", "--consumers", "none", "--plan", "p.yaml")
    run_interrupted(work, place, name, before, "migrate", "verify", "p.yaml")
    for channel in channels_of(store):
        assert not asyncio.run(consumers_of(server.url, stream_of(channel)))


def test_ctrl_c_says_how_to_go_on(big_store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, work = start_server(), tmp_path / "work"
    work.mkdir()
    words = ["migrate", big_store, "--server", server.url, "--yes", "--via", "publish", "--plan", "p.yaml"]
    errors = run_interrupted(work, "JetStream", "create_stream", False, *words)
    assert "stantools migrate apply p.yaml" in errors
    assert count_streams(server.url) == 1
    run(work, "migrate", "apply", "p.yaml", "--yes")
    published = [streamed(server.url, stream_of(channel)).keys() for channel in channels_of(big_store)]
    assert published == [stored(big_store, channel).keys() for channel in channels_of(big_store)]
