"""Fault-tolerant groups of real processes on one store and one NATS server (high-availability.md section A)."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.format.proto import protocol_pb2 as protocol
from stantools.store.locks import ft_lock_holder
from tests import servers
from tests.brokers import READY, Broker, alone
from tests.interop.follower import Follower, wait_until_served
from tests.interop.rawclient import Publisher, stored
from tests.interop.talker import Talker
from tests.interop.test_faults_disk import LEFT_BEHIND, calm, verified
from tests.interop.test_other_clients import command
from tests.servers import NatsServer
from tests.waiting import PATIENCE, until

SUBJECT = b"_STAN.ft.test-cluster.pair"
WAITS = "[INF] STREAM: ft: unable to get store lock at this time, going back to standby"
CHANNELS = [b"one", b"two"]
#: Seconds for which a publisher waits for an ack.
_SILENCE = 0.25
_numbers = itertools.count(1)


class Member(Broker):
    """A server of a group."""

    def __init__(self, group: Group, *words: object) -> None:
        folder = group.folder / f"member{next(_numbers)}"
        shared = ("-st", "FILE", "-dir", group.store, "-ft_group", "pair", "-mm", 0, "-mb", 0)
        nats = ("-ns", group.nats.url) if group.nats else ()
        super().__init__(folder, *nats, *shared, *words, http=True)
        self.began = 0

    def launch(self) -> Member:
        """Starts it and waits until it is on standby."""
        self.began = self.log.stat().st_size if self.log.exists() else 0
        self.start(wait=False)
        until(lambda: self.process is None or self.process.poll() is not None or "standby mode" in self.now)
        return self

    @property
    def now(self) -> str:
        """What it has said since it was started."""
        return self.said(self.began)

    @property
    def active(self) -> bool:
        return READY in self.now

    def wait_until_active(self) -> None:
        until(lambda: self.active)

    def state(self) -> tuple[str, int]:
        """What monitoring says: the state, and the status of isFTActive."""
        state = self.figures("streaming/serverz")["state"]
        with urllib.request.urlopen(f"{self.monitoring}/streaming/isFTActive", timeout=10) as answer:
            assert answer.read() == b""
            return state, answer.status


class Group:
    """Servers on one directory."""

    def __init__(self, folder: Path, nats: NatsServer | None) -> None:
        self.folder = folder
        self.nats = nats
        self.store = folder / "store"
        self.members: list[Member] = []

    def member(self, *words: object) -> Member:
        self.members.append(Member(self, *words))
        return self.members[-1]


@contextlib.contextmanager
def members_of(folder: Path, nats: NatsServer | None) -> Iterator[Group]:
    made = Group(folder, nats)
    try:
        yield made
    finally:
        for each in made.members:
            each.__exit__()
    for each in made.members:
        calm(each)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    if servers.NEWEST not in servers.available():
        pytest.skip("there is no nats-server (python tests/servers.py fetches it)")
    with NatsServer(tmp_path / "nats", jetstream=False) as nats, members_of(tmp_path, nats) as made:
        yield made


class Persistent(Publisher):
    """A publisher that takes what was not acknowledged in time for lost, and goes on with the next message."""

    def run(self) -> None:
        under_way: dict[bytes, float] = {}
        with contextlib.suppress(OSError), self.client as client:
            while not self.stopping.is_set() or under_way:
                now = time.monotonic()
                under_way = {guid: since for guid, since in under_way.items() if now - since < _SILENCE}
                burst = bytearray()
                while len(under_way) < self.window and not self.stopping.is_set():
                    number = len(self.sent)
                    channel = self.channels[number % len(self.channels)]
                    data = b"%s-%d" % (self.client_name.encode(), number)
                    burst += client.publication(channel, data, data + self.padding)
                    self.sent.append((channel, data))
                    under_way[data] = now
                client.send(burst)
                for subject, _, payload in client.gather(0.02):
                    if subject != client.acks:
                        continue
                    ack = protocol.PubAck.FromString(payload)
                    if ack.error:
                        self.refused[ack.guid] = ack.error.decode()
                    elif ack.guid:
                        self.acked.append(ack.guid)
                        under_way.pop(ack.guid, None)
                    else:
                        # NATS itself: nobody is there at present. Publishing faster would not help.
                        time.sleep(0.01)
                        under_way.clear()


def checked(group: Group, publishers: list[Publisher], followers: list[Follower]) -> None:
    """What was acknowledged is in the log, once, in order; and subscribers get everything."""
    assert group.nats is not None
    for each in publishers:
        each.stopping.set()
    for each in publishers:
        each.join(90)
        assert not each.is_alive()
        assert not each.refused
    for channel in CHANNELS:
        name = f"reader-{next(_numbers)}"
        got = stored(group.nats.port, name, channel)
        assert [sequence for sequence, _ in got] == list(range(1, len(got) + 1))
        payloads = [data.partition(b".")[0] for _, data in got]
        places = {data: place for place, data in enumerate(payloads)}
        assert len(places) == len(payloads), "a message is there twice"
        for each in publishers:
            acked = set(each.acked)
            wanted = [data for to, data in each.sent if to == channel and data in acked]
            assert wanted
            lost = [data for data in wanted if data not in places]
            assert not lost, f"{len(lost)} of {len(wanted)} acknowledged messages are lost: {lost[:5]}"
            assert [places[data] for data in wanted] == sorted(places[data] for data in wanted), "out of order"
        here = [each for each in followers if each.channel == channel]
        for each in here:
            each.ack_everything = True
        wait_until_served(here, len(got))
        for each in here:
            assert not each.problems
            assert all(each.got[number].partition(b".")[0] == payloads[number - 1] for number in each.got
                       if number <= len(got))  # fmt: skip


@contextlib.contextmanager
def at_work(group: Group) -> Iterator[list[Publisher]]:
    """Publishers and subscribers, who know nothing of what befalls the servers; everything is checked at the end."""
    assert group.nats is not None
    publishers: list[Publisher] = [Persistent(group.nats.port, f"p{name}", CHANNELS, window=2) for name in range(3)]
    followers = [Follower(group.nats.port, f"follower-{n}", channel, n) for n, channel in enumerate(CHANNELS)]
    for each in (*followers, *publishers):
        each.start()
    publishers[0].wait_for(20)
    yield publishers
    publishers[0].wait_for(len(publishers[0].acked) + 20)
    checked(group, publishers, followers)


def takeovers(group: Group, number: int, seed: int) -> list[float]:
    """Kills the active server again and again; returns the seconds until somebody was served again."""
    chance = random.Random(seed)
    active, standby = group.member().launch(), group.member()
    active.wait_until_active()
    seconds = []
    with at_work(group) as publishers:
        for _ in range(number):
            standby.launch()
            # It has to know the others' heartbeats first.
            time.sleep(chance.uniform(1, 1.5))
            assert not standby.active
            active.kill()
            began = time.monotonic()
            acked = len(publishers[0].acked)
            standby.wait_until_active()
            publishers[0].wait_for(acked + 1)
            seconds.append(time.monotonic() - began)
            assert standby.state() == ("FT_ACTIVE", 200)
            active, standby = standby, active
        assert active.process is not None
        assert ft_lock_holder(group.store) == active.process.pid
    assert active.stop() == 0
    verified(group.store, except_for=LEFT_BEHIND)
    return seconds


def test_the_active_server_is_killed(group: Group) -> None:
    takeovers(group, 1, 1)


@pytest.mark.slow
def test_the_active_server_is_killed_a_hundred_times(group: Group) -> None:
    seconds = sorted(takeovers(group, 100, 2))
    assert seconds[50] < 1, seconds


@pytest.mark.slow
def test_rolling_restart(group: Group) -> None:
    """One after the other is ended in good order and started again, while clients go on working."""
    active, standby = group.member().launch(), group.member()
    active.wait_until_active()
    standby.launch()
    with at_work(group):
        for turn in range(3):
            if turn % 2:
                assert standby.stop(signal.SIGTERM) == 143
                assert "Shutting down." in standby.now
            else:
                assert active.stop(signal.SIGTERM) == 143
                standby.wait_until_active()
                active, standby = standby, active
            standby.launch()
    assert active.stop(signal.SIGINT) == standby.stop(signal.SIGINT) == 0
    verified(group.store)


def test_both_start_at_once(group: Group) -> None:
    pair = [group.member(), group.member()]
    for each in pair:
        each.start(wait=False)
    until(lambda: any(each.active for each in pair))
    active, standby = sorted(pair, key=lambda each: not each.active)
    until(lambda: standby.now and active.state() == ("FT_ACTIVE", 200) and standby.state() == ("FT_STANDBY", 204))
    lines = [line.partition("STREAM: ")[2] for line in active.now.splitlines() if "STREAM: " in line]
    begin = lines.index("Starting in standby mode")
    assert lines[begin : begin + 6] == [
        "Starting in standby mode",
        "Server is active",
        "Recovering the state...",
        "No recovered state",
        "Message store is FILE",
        f"Store location: {group.store}",
    ]
    assert "STREAM: Starting in standby mode" in standby.now and not standby.active
    active.kill()
    standby.wait_until_active()
    assert "Recovered 0 channel(s)" in standby.now
    active.launch()
    assert active.stop(signal.SIGTERM) == 143
    assert "Shutting down." in active.now and not active.active
    assert standby.stop(signal.SIGINT) == 0
    verified(group.store)


@pytest.mark.slow
def test_a_stopped_server_keeps_the_lock(group: Group) -> None:
    """Nobody takes over, because nobody knows what it does when it goes on."""
    active, standby = group.member().launch(), group.member()
    active.wait_until_active()
    with at_work(group):
        standby.launch()
        assert active.process is not None
        active.process.send_signal(signal.SIGSTOP)
        until(lambda: WAITS in standby.now)
        assert standby.state() == ("FT_STANDBY", 204)
        active.process.send_signal(signal.SIGCONT)
    assert not standby.active
    assert active.stop() == 0


def _server_id(broker: Broker) -> str:
    return broker.said().partition("ServerID: ")[2].partition("\n")[0]


#: An active server of the original's kind: has its lock, and sends what it sends.
_ORIGINAL = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
while True:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except OSError:
        if not sys.stdin.readline():
            sys.exit("never")
print("locked", flush=True)
sys.stdin.read()
"""
_HEARTBEAT = bytes.fromhex("08031216") + b"I8z7y1431Us74RybhLAJX7" + bytes.fromhex(
    "1a0f010000000ee294fedf20ea71ba0000"
)  # fmt: skip


@contextlib.contextmanager
def original(group: Group) -> Iterator[subprocess.Popen[str]]:
    group.store.mkdir(exist_ok=True)
    words = [sys.executable, "-c", _ORIGINAL, str(group.store / ".rootdir.lck")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def _tree(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (root, *root.rglob("*"))
        if path.name != ".rootdir.lck"
    }


def test_standby_behind_another_implementation(group: Group) -> None:
    """Its lock and its heartbeats count, and nothing in its directory is touched, whatever it looks like."""
    assert group.nats is not None
    with original(group) as active, Talker(group.nats.port) as nats:
        assert active.stdout is not None
        assert active.stdout.readline() == "locked\n"
        (group.store / "foo").mkdir()
        for name in ("server.dat", "clients.dat", ".truncate.lck", "foo/msgs.1.dat", "foo/msgs.1.idx", "foo/subs.dat"):
            (group.store / name).write_bytes(b"\1\0\0\0not yet")
        before = _tree(group.store)
        standby = group.member("--file_truncate_bad_eof")
        standby.start(wait=False)
        until(lambda: "standby mode" in standby.said())
        heard = nats.listen(SUBJECT)
        for _ in range(3):
            nats.publish(SUBJECT, _HEARTBEAT)
            time.sleep(0.9)
        assert WAITS not in standby.now
        until(lambda: WAITS in standby.now)
        assert standby.state() == ("FT_STANDBY", 204)
        assert _tree(group.store) == before
        assert len(heard) == 3, "who stands by says nothing"
        for name in before:
            if name not in (".", "foo"):
                (group.store / name).unlink()
        (group.store / "foo").rmdir()
        active.kill()
        standby.wait_until_active()
        beats = [protocol.CtrlMsg.FromString(got.data) for got in heard.wait(4)[3:]]
        assert {(each.msg_type, each.server_id.decode(), len(each.data)) for each in beats} == {
            (protocol.CtrlMsg.FT_HEARTBEAT, _server_id(standby), 15)
        }


def test_two_active_servers(group: Group) -> None:
    """The lock file was removed while the active server did not get a word out: the younger one ends."""
    assert group.nats is not None
    with original(group) as active, Talker(group.nats.port) as nats:
        assert active.stdout is not None
        assert active.stdout.readline() == "locked\n"
        (group.store / ".rootdir.lck").unlink()
        younger = group.member().launch()
        younger.wait_until_active()
        later = protocol.CtrlMsg.FromString(_HEARTBEAT)
        later.data = later.data.replace(b"\x0e", b"\x0f", 1)
        nats.publish(SUBJECT, later.SerializeToString())
        claim = 'ft: serverID "I8z7y1431Us74RybhLAJX7" claims to be active'
        until(lambda: f"[ERR] STREAM: {claim}\n" in younger.now)
        nats.publish(SUBJECT, _HEARTBEAT)
        assert younger.process is not None
        assert younger.process.wait(PATIENCE) == 2
        assert younger.now.endswith(f"[FTL] STREAM: panic: {claim}, aborting\n")


def test_another_implementation_takes_over(group: Group) -> None:
    active = group.member().launch()
    active.wait_until_active()
    with original(group) as standby:
        assert standby.stdin is not None
        assert standby.stdout is not None
        # It tries, and does not get it as long as the broker lives; the broker is not disturbed by that.
        print("again", file=standby.stdin, flush=True)
        assert active.process is not None
        assert ft_lock_holder(group.store) == active.process.pid
        active.kill()
        print("again", file=standby.stdin, flush=True)
        assert standby.stdout.readline() == "locked\n"
        assert ft_lock_holder(group.store) == standby.pid


@pytest.mark.parametrize("library", [pytest.param("python", marks=pytest.mark.slow), "node"])
def test_published_clients_do_not_notice(group: Group, library: str) -> None:
    assert group.nats is not None
    active, standby = group.member().launch(), group.member()
    active.wait_until_active()
    standby.launch()
    words = command(library, group.nats.url, "takeover")
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        active.kill()
        standby.wait_until_active()
        assert active.launch().state() == ("FT_STANDBY", 204)
        assert standby.stop(signal.SIGTERM) == 143
        active.wait_until_active()
        time.sleep(0.5)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    seen: dict[str, Any] = json.loads(output.splitlines()[-1])
    texts = [text for _, text in sorted(seen["first"])]
    assert set(seen["acked"]) <= set(texts)
    assert len(texts) == len(set(texts))
    assert texts == sorted(texts, key=int)


def test_without_a_common_nats_server(tmp_path: Path) -> None:
    """The lock alone decides, as with the original; a warning says what does not work."""
    with members_of(tmp_path, None) as group:
        active, standby = group.member().launch(), group.member()
        active.wait_until_active()
        assert "[WRN] STREAM: ft: this server's embedded NATS server is linked to no other" in active.now
        standby.launch()
        until(lambda: WAITS in standby.now)
        active.kill()
        standby.wait_until_active()
        assert standby.state() == ("FT_ACTIVE", 200)
        assert standby.stop() == 0


def test_refusals(group: Group) -> None:
    assert group.nats is not None
    here = ("-a", "127.0.0.1", "-p", -1)
    done = alone(*here, "-ft_group", "pair")
    assert done.returncode == 1
    assert "[FTL] STREAM: Failed to start: ft: only FILE or SQL stores supported in FT mode" in done.stderr
    file = ("-st", "FILE", "-dir", group.store)
    done = alone(*here, "-ft_group", "pair", "-clustered", *file)
    assert done.returncode == 1
    assert done.stdout == "stan: clustering mode not supported in FT mode (ft_group)\n"
    done = alone(*here, "-ft_group", "pair", *file, "-ns", "nats://127.0.0.1:1")
    assert done.returncode == 1
    assert "[FTL] STREAM: Failed to start: nats: no servers available for connection" in done.stderr
    done = alone(*here, "-ft_group", "a b", *file, "-ns", group.nats.url)
    assert done.returncode == 1
    assert "[FTL] STREAM: Failed to start: nats: invalid subject" in done.stderr
    done = alone(*here, "-ft_group", "pair", "-st", "FILE", "-dir", __file__)
    assert done.returncode == 1
    assert f"Failed to start: unable to create the root directory [{__file__}]" in done.stderr
    active = group.member().launch()
    active.wait_until_active()
    # A server of another cluster sees nothing of the group but its store, when it gets it.
    stranger = group.member("-cid", "other")
    stranger.start(wait=False)
    done = alone(*here, "-ft_group", "other", *file, "-ns", group.nats.url)
    assert done.returncode == 1
    reason = 'ft: the store is in use by the group "pair", this server belongs to the group "other"'
    assert f"[FTL] STREAM: Failed to start: {reason}" in done.stderr
    until(lambda: WAITS in stranger.said())
    active.kill()
    assert stranger.process is not None
    assert stranger.process.wait(PATIENCE) == 1
    assert 'cluster ID "other" does not match recovered value of "test-cluster"' in stranger.said()
