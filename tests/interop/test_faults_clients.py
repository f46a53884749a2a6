"""Clients that stop reading, vanish, fall asleep, send half of something, or nothing; and very many of them."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stantools.format.proto import store_pb2 as store
from tests.brokers import Broker
from tests.interop.rawclient import Publisher, RawClient
from tests.interop.watching import Plain, Watch, resident
from tests.waiting import until

_QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
_MEGABYTE = 1 << 20


def config(folder: Path, text: str) -> Path:
    path = folder / "broker.conf"
    path.write_text(text)
    return path


# Slow clients.


def test_a_subscriber_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    words = ("-c", config(tmp_path, 'max_pending: 4MB\nwrite_deadline: "30s"\n'))
    with (
        Broker(tmp_path, *words) as broker,
        Watch(broker, growth=64 * _MEGABYTE) as watch,
        Plain(broker.port, receive_buffer=4096) as slow,
        Plain(broker.port) as good,
        Plain(broker.port) as publisher,
    ):
        for client in (slow, good):
            client.throw(_QUIET + b"SUB data 1\r\nPING\r\n")
            client.until(b"PONG\r\n")
        publisher.throw(_QUIET)
        size, count, seen = 64 * 1024, 1600, 0
        frame = b"PUB data %d\r\n%b\r\n" % (size, b"x" * size)
        for number in range(count):
            publisher.throw(frame)
            # The good one keeps up.
            wanted = (number + 1) * (size + len(b"MSG data 1 65536\r\n\r\n")) if number % 16 == 15 else 0
            while seen < wanted:
                data = good.socket.recv(1 << 18)
                assert data
                seen += len(data)
        assert "Slow Consumer Detected: MaxPending of 4194304 Exceeded" in broker.said()
        watch.check()
        # The end comes after what the kernel still holds.
        slow.socket.settimeout(20)
        with contextlib.suppress(ConnectionError):
            while slow.socket.recv(1 << 18):
                pass


def test_a_streaming_subscriber_that_does_not_read(tmp_path: Path) -> None:
    words = ("-c", config(tmp_path, 'max_pending: 2MB\nwrite_deadline: "1s"\n'), "-mb", 0, "-mm", 400)
    with (
        Broker(tmp_path, *words, "-hbi", "100ms", "-hbt", "300ms", "-hbf", 15) as broker,
        Watch(broker, growth=96 * _MEGABYTE) as watch,
    ):
        slow = RawClient(broker.port, "slow", receive_buffer=4096)
        slow.listen(b"data", slow.inbox + b".data")
        with RawClient(broker.port, "good") as good:
            good.listen(b"data", good.inbox + b".data")
            # They fill the buffers of its connection before it is missed for its heartbeats; a batch is no MaxPending.
            publisher = Publisher(broker.port, "loud", [b"data"], window=8, size=100_000)
            publisher.start()
            # What it does not take stays in the store. Not too much ends it, but that it takes nothing at all.
            line = "Slow Consumer Detected: WriteDeadline of 1s exceeded"
            until(lambda: (good.message(), watch.client.gather(0), line in broker.said())[2], "slow consumer")
            publisher.stopping.set()
            publisher.join(90)
        assert not publisher.refused
        assert "MaxPending" not in broker.said()
        watch.check()
        # Its client is removed, as no heartbeat is answered any more.
        line = "[Client:slow] Timed out on heartbeats"
        until(lambda: (watch.client.gather(0.05), line in broker.said())[1], "removal")
        with RawClient(broker.port, "slow") as again:
            assert not again.stored(b"data").error
        slow.close()


def test_a_client_that_vanishes_is_removed_by_heartbeats(tmp_path: Path) -> None:
    words = ("-hbi", "100ms", "-hbt", "100ms", "-hbf", 10, "-SD")
    with Broker(tmp_path, *words) as broker, Watch(broker) as watch, RawClient(broker.port, "answers") as answers:
        # One whose connection stays open with nobody behind it, and one whose connection is gone.
        silent, gone = RawClient(broker.port, "silent"), RawClient(broker.port, "gone")
        for client in (silent, gone):
            client.listen(b"data", client.inbox + b".data", durable_name=b"d")
            client.listen(b"data", client.inbox + b".data", max_in_flight=1)
        answers.stored(b"data", b"x")
        gone.close()
        start = time.monotonic()
        for name in ("gone", "silent"):
            line = f"[Client:{name}] Timed out on heartbeats"
            while line not in broker.said():
                assert time.monotonic() - start < 20, line
                answers.gather(0.05)
                watch.client.gather(0.05)
        # The others have answered.
        assert "[Client:answers] Timed out" not in broker.said()
        assert not answers.stored(b"data", b"y").error
        # Both can come again and go on where they were.
        for name in (b"silent", b"gone"):
            with RawClient(broker.port, name.decode()) as again:
                again.listen(b"data", again.inbox + b".data", durable_name=b"d")
                deadline, got = time.monotonic() + 10, b""
                while b"y" not in got and time.monotonic() < deadline:
                    got += b"".join(data for _, _, data in again.gather(0.1))
                assert b"y" in got
        silent.close()


def test_connections_that_break_in_all_ways_leave_nothing_behind(tmp_path: Path) -> None:
    with Broker(tmp_path, http=True) as broker, Watch(broker) as watch:

        def subscriptions() -> int:
            return int(broker.figures("subsz")["num_subscriptions"])

        before = subscriptions()
        for number in range(200):
            client = Plain(broker.port)
            client.throw(
                _QUIET + b"SUB a.%d 1\r\nSUB b.* 2\r\nSUB c q 3\r\nPUB b.x 3\r\nabc\r\nPUB a 100\r\nhalf" % number
            )
            if number % 2:
                # A reset instead of an end.
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.socket.close()
        until(lambda: subscriptions() == before, "subscriptions of connections that are gone are gone")
        watch.check()


def test_half_frames_wait_without_harm(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Watch(broker, growth=64 * _MEGABYTE) as watch:
        halves = [Plain(broker.port) for _ in range(200)]
        for number, client in enumerate(halves):
            # They say that much is to come, and send a bit of it.
            client.throw(_QUIET + b"PUB _STAN.pub.test-cluster.foo a 1000000\r\n" + b"x" * (number * 200))
        watch.check()
        watch.check_memory()
        for client in halves[::2]:
            client.socket.close()
        good = halves[1]
        good.throw(b"x" * (1_000_000 - 200) + b"\r\nPING\r\n")
        good.until(b"PONG\r\n")
        watch.check()
        for client in halves:
            client.socket.close()


def test_a_client_that_says_nothing(tmp_path: Path) -> None:
    text = "authorization {\n  user: alice\n  password: secret\n  timeout: 0.5\n}\n"
    with Broker(tmp_path, "-c", config(tmp_path, text), "-user", "alice", "-pass", "secret") as broker:
        silent = [Plain(broker.port) for _ in range(5)]
        pinging = Plain(broker.port)
        pinging.throw(b"PING\r\n")
        pinging.until(b"-ERR 'Authorization Violation'\r\n")
        start = time.monotonic()
        for client in silent:
            client.until(b"-ERR 'Authentication Timeout'\r\n")
            assert client.socket.recv(100) == b""
            client.socket.close()
        assert time.monotonic() - start < 15
        with Plain(broker.port) as good:
            good.throw(b'CONNECT {"user":"alice","pass":"secret","verbose":false}\r\nPING\r\n')
            good.until(b"PONG\r\n")
            time.sleep(0.8)
            good.throw(b"PING\r\n")
            good.until(b"PONG\r\nPONG\r\n")


# Clients that are stopped for a while, and a broker that is.

_SLEEPER = """
import sys
from tests.interop.rawclient import RawClient
from stantools.format.proto import store_pb2
client = RawClient(int(sys.argv[1]), "sleeper")
ack = client.listen(b"data", client.inbox + b".data", ack_wait_in_secs=60, max_in_flight=100)
print("ready", flush=True)
while True:
    subject, _, payload = client.message()
    if subject.endswith(b".data"):
        message = store_pb2.MsgProto.FromString(payload)
        client.acknowledge(ack, b"data", message.sequence)
        print(message.sequence, int(message.redelivered), flush=True)
"""


def test_a_client_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    words = ("-hbi", "100ms", "-hbt", "100ms", "-hbf", 1000)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with Broker(tmp_path, *words) as broker, Watch(broker) as watch:
        command = [sys.executable, "-c", _SLEEPER, str(broker.port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as sleeper:
            assert sleeper.stdout is not None
            try:
                assert sleeper.stdout.readline() == b"ready\n"
                sleeper.send_signal(signal.SIGSTOP)
                publisher = Publisher(broker.port, "p", [b"data"])
                publisher.start()
                publisher.wait_for(1000)
                publisher.stopping.set()
                publisher.join(90)
                # Some heartbeats are missed meanwhile.
                time.sleep(0.5)
                watch.check()
                sleeper.send_signal(signal.SIGCONT)
                got = [sleeper.stdout.readline().split() for _ in publisher.acked]
                assert got == [[b"%d" % each, b"0"] for each in range(1, len(publisher.acked) + 1)]
            finally:
                sleeper.kill()


def test_the_broker_is_stopped_and_goes_on(tmp_path: Path) -> None:
    words = ("-st", "FILE", "-dir", tmp_path / "store", "-hbi", "200ms", "-hbt", "200ms", "-hbf", 30)
    with Broker(tmp_path, *words) as broker, Watch(broker) as watch:
        assert broker.process is not None
        publisher = Publisher(broker.port, "p", [b"data"])
        publisher.start()
        publisher.wait_for(100)
        broker.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        broker.process.send_signal(signal.SIGCONT)
        publisher.wait_for(len(publisher.acked) + 500)
        publisher.stopping.set()
        publisher.join(90)
        assert not publisher.refused
        assert publisher.acked == [data for _, data in publisher.sent]
        watch.check()


# Many.


def crowd(folder: Path, wanted: int, *words: object) -> None:
    """Connects as many as the limits allow, lets some of them work, and reports what each costs the broker."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    count = min(wanted, limit - 300)
    if count < wanted:
        print(f"only {count} connections: this process may have {limit} files open")
    with Broker(folder, *words) as broker, Watch(broker, growth=count * 20_000 + 32 * _MEGABYTE) as watch:
        assert broker.process is not None
        before = resident(broker.process.pid)
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            selector = stack.enter_context(selectors.DefaultSelector())
            answers: dict[socket.socket, bytes] = dict.fromkeys(sockets, b"")
            # In portions, as the queue of the listener is short.
            for start in range(0, count, 100):
                portion = sockets[start : start + 100]
                for number, each in enumerate(portion, start):
                    each.settimeout(30)
                    each.connect(("127.0.0.1", broker.port))
                    each.sendall(_QUIET + b"SUB one.%d 1\r\nSUB all 2\r\nPING\r\n" % number)
                for each in portion:
                    while not answers[each].endswith(b"PONG\r\n"):
                        data = each.recv(4096)
                        assert data, "refused"
                        answers[each] += data
            cost = (resident(broker.process.pid) - before) / count
            print(f"{count} connections, {cost / 1024:.1f} KiB each in the broker")
            assert cost < 20_000
            watch.check("all connected", within=15)
            # Everyone gets what is for all, and only one of them what is for one.
            for _ in range(3):
                sockets[0].sendall(b"PUB all 5\r\nhello\r\n")
            for number in range(0, count, 7):
                sockets[-1].sendall(b"PUB one.%d 2\r\nhi\r\n" % number)
            for each in sockets:
                each.setblocking(False)
                selector.register(each, selectors.EVENT_READ)
            expected = {
                each: 3 * len(b"MSG all 2 5\r\nhello\r\n")
                + (len(b"MSG one.%d 1 2\r\nhi\r\n" % number) if number % 7 == 0 else 0)
                for number, each in enumerate(sockets)
            }
            deadline = time.monotonic() + 60
            while any(expected.values()) and time.monotonic() < deadline:
                for key, _ in selector.select(1):
                    each = key.fileobj
                    assert isinstance(each, socket.socket)
                    data = each.recv(1 << 16)
                    assert data, "closed"
                    expected[each] -= len(data.replace(b"PING\r\n", b""))
            assert set(expected.values()) == {0}
            watch.check("all served", within=15)
        until(lambda: resident_connections(broker) <= 1, "all are gone", 60)
        watch.check("all gone", within=15)


def resident_connections(broker: Broker) -> int:
    """Returns how many sockets the broker has beside its listener, roughly."""
    assert broker.process is not None
    found = 0
    for path in Path(f"/proc/{broker.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(path.readlink()).startswith("socket:")
    return max(found - 8, 0)


def test_many_connections(tmp_path: Path) -> None:
    crowd(tmp_path, 1500)


@pytest.mark.slow
def test_very_many_connections(tmp_path: Path) -> None:
    crowd(tmp_path, 10_000)


def test_more_connections_than_the_broker_may_have(tmp_path: Path) -> None:
    """Out of file descriptors: those who are in are served, and when some leave, others can come."""
    with Broker(tmp_path, "-st", "FILE", "-dir", tmp_path / "store") as broker, Watch(broker) as watch:
        assert broker.process is not None
        pid = broker.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        with RawClient(broker.port, "early") as early, contextlib.ExitStack() as stack:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 20, limits[1]))
            for _ in range(60):
                stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), 5))
            until(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) == used + 20, "no descriptors left")
            watch.check("no descriptors left")
            # A new channel needs files.
            error = early.stored(b"new").error
            assert b"oo many open files" in error
            watch.check("no files left")
            stack.close()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            until(lambda: resident_connections(broker) <= 4, "room again")
            with RawClient(broker.port, "late") as late:
                assert not late.stored(b"new").error
            assert not early.stored(b"new").error
            watch.check()
        size = broker.log.stat().st_size
        assert size < 100_000, "it does not fill the disk with complaints"


def test_no_more_than_max_connections(tmp_path: Path) -> None:
    with Broker(tmp_path, "-c", config(tmp_path, "max_connections: 20\n")) as broker, Watch(broker) as watch:
        clients = []
        refused = 0
        for _ in range(40):
            client = Plain(broker.port)
            client.throw(b"PING\r\n")
            try:
                client.until(b"PONG\r\n")
            except ConnectionError:
                assert b"-ERR 'maximum connections exceeded'\r\n" in client.got
                refused += 1
            clients.append(client)
        assert 20 <= refused <= 30
        watch.check()
        for client in clients:
            client.socket.close()
        watch.check()
        until(lambda: _gets_in(broker.port), "room again")


def _gets_in(port: int) -> bool:
    with Plain(port) as client:
        client.throw(b"PING\r\n")
        with contextlib.suppress(ConnectionError):
            return b"PONG" in client.until(b"PONG\r\n")
    return False


def test_much_for_one_who_reads(tmp_path: Path) -> None:
    """More than may wait for a client is owed to it, at first and again: it gets all, as fast as it reads."""
    words = ("-c", config(tmp_path, "max_pending: 4MB\n"), "-mb", 0)
    with Broker(tmp_path, *words) as broker, Watch(broker, growth=64 * _MEGABYTE) as watch:
        publisher = Publisher(broker.port, "p", [b"data"], size=100_000, window=8)
        publisher.start()
        publisher.wait_for(400)
        publisher.stopping.set()
        publisher.join(90)
        count = len(publisher.acked)
        watch.growth += 2 * count * 100_000
        with RawClient(broker.port, "reader", receive_buffer=4096) as reader:
            inbox = reader.inbox + b".data"
            reader.listen(b"data", inbox, max_in_flight=2**31 - 1, ack_wait_in_secs=1)
            times = dict.fromkeys(range(1, count + 1), 0)
            deadline = time.monotonic() + 60
            while min(times.values()) < 2 and time.monotonic() < deadline:
                to, _, data = reader.message()
                if to == inbox:
                    times[store.MsgProto.FromString(data).sequence] += 1
            assert min(times.values()) >= 2
        assert "Slow Consumer" not in broker.said()
