"""Every option of the command line that has an effect, on the running process.

Facts: server-operations.md sections 3, 4 and 13.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools import __version__
from tests.broker.nats.certificates import party
from tests.brokers import READY, Broker, alone
from tests.conftest import others_slow
from tests.interop.talker import Client, RefusedError, Talker
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
#: A line of the log: process, time, level, text.
LINE = re.compile(r"\[(\d+)\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} )?\[(INF|WRN|ERR|FTL|DBG|TRC)\] (.*)")


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


@contextlib.contextmanager
def quiet(broker: Broker, log: Callable[[], str]) -> Iterator[Broker]:
    """Starts a broker that says nothing on stderr; its log is elsewhere."""
    broker.start(wait=False)
    try:
        until(lambda: READY in log())
        yield broker
    finally:
        broker.__exit__()


# Limits.


def test_limits(tmp_path: Path) -> None:
    words = ("-mc", 4, "-msu", 2, "-mm", 5, "-mb", "1KB")
    with Broker(tmp_path, *words, http=True) as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        client.store(b"a", *(b"%d" % n for n in range(8)))
        client.store(b"bytes", *(b"x" * 300 for _ in range(4)))
        assert client.subscribe(b"a").wait(5)[0].sequence == 4
        assert client.subscribe(b"bytes").wait(3)[0].sequence == 2
        client.subscribe(b"a")
        with pytest.raises(RefusedError, match=r"^too many subscriptions per channel$"):
            client.subscribe(b"a")
        client.store(b"c", b"1")
        client.store(b"d", b"1")
        assert client.publish(b"e").error == b"too many channels"
        with pytest.raises(RefusedError, match=r"^too many channels$"):
            client.subscribe(b"f")
        limits = broker.figures("streaming/storez")["limits"]
        assert (limits["max_channels"], limits["max_msgs"], limits["max_bytes"]) == (4, 5, 1024)
        said = broker.said()
        for line in (
            "Channels:                    4",
            "  Subscriptions:             2",
            "  Messages     :             5",
            "  Bytes        :       1.00 KB",
            "  Age          :     unlimited *",
        ):
            assert f"[INF] STREAM: {line}\n" in said


def test_age_and_inactivity(tmp_path: Path) -> None:
    with Broker(tmp_path, "-ma", "300ms", "-mi", "3s", http=True) as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        began = time.monotonic()
        client.store(b"old", b"1", b"2")
        until(lambda: broker.figures("streaming/channelsz?channel=old")["msgs"] == 0)
        assert time.monotonic() - began >= 0.3
        until(lambda: 'Channel "old" has been deleted' in broker.said())
        assert time.monotonic() - began >= 3.0
        assert "  Age          :         300ms\n" in broker.said()
        assert "  Inactivity   :            3s\n" in broker.said()


# Publishing.


def test_waiting_for_more_messages(tmp_path: Path) -> None:
    with Broker(tmp_path, "--io_batch_size", 3, "--io_sleep_time", 400_000) as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        began = time.monotonic()
        client.store(b"a", b"1")
        assert time.monotonic() - began >= 0.4
        subject = client.subjects.pub_prefix + b".a"
        quick = []
        for turn in range(1, 6):
            burst = b""
            for n in range(3):
                message = client.publication(b"a", b"%d" % n).SerializeToString()
                burst += b"PUB %s %s %d\r\n%s\r\n" % (subject, client.ack_inbox, len(message), message)
            began = time.monotonic()
            nats.send(burst)
            client.acks.wait(3 * turn)
            quick.append(time.monotonic() - began)
        # The batch is full, nothing is waited for.
        assert min(quick) < 0.4


def test_batches_of_one(tmp_path: Path) -> None:
    with Broker(tmp_path, "--io_batch_size", 1) as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        subscription = client.subscribe(b"a")
        client.store(b"a", *(b"%d" % n for n in range(20)))
        assert [message.sequence for message in subscription.wait(20)] == list(range(1, 21))


# Names, files, lines.


def test_what_a_process_leaves_and_says(tmp_path: Path) -> None:
    words: list[object] = ["-cid", "mine", "-n", "called", "-P", tmp_path / "pid", "--ports_file_dir", tmp_path]
    words += ["--client_advertise", "example.org:4333", "-l", tmp_path / "log", "-SDV", "-DV", "--replace_durable"]
    log = tmp_path / "log"
    with quiet(Broker(tmp_path, *words, http=True), lambda: log.read_text() if log.exists() else "") as broker:
        assert broker.process
        pid = broker.process.pid
        assert (tmp_path / "pid").read_text() == str(pid)
        ports = next(tmp_path.glob(f"*_{pid}.ports"))
        assert json.loads(ports.read_text()) == {"nats": [broker.url], "monitoring": [broker.monitoring]}
        with Talker(broker.port) as nats:
            assert nats.info["server_name"] == "called"
            assert (nats.info["max_payload"], nats.info["version"]) == (1048576, "2.9.24")
            client = Client(nats, "me", cluster="mine")
            assert client.subjects.pub_prefix == b"_STAN.pub.mine"
            client.store(b"a", b"1")
            first = client.subscribe(b"a", durable_name=b"d")
            first.wait(1)
            second = client.subscribe(b"a", durable_name=b"d")
            assert second.wait(1)[0].redelivered
            assert first.close() == "stan: invalid subscription"
            second.ack(1)
            assert client.close() == ""
        assert broker.figures("streaming/serverz")["cluster_id"] == "mine"
        assert broker.stop() == 0
        assert not ports.exists()
        assert (tmp_path / "pid").exists()
    assert broker.said() == ""
    said = (tmp_path / "log").read_text()
    lines = [LINE.fullmatch(line) for line in said.splitlines()]
    assert all(lines)
    assert {int(line[1]) for line in lines if line} == {pid}
    texts = [(line[3], line[4]) for line in lines if line]
    for level, text in (
        ("INF", "STREAM: Starting nats-streaming-server[mine] version 0.25.6"),
        ("INF", "  Name:     called"),
        ("INF", f"Listening for client connections on 127.0.0.1:{broker.port}"),
        ("INF", f"Starting http monitor on 127.0.0.1:{broker.http_port}"),
        ("INF", "Server is ready"),
        ("DBG", "STREAM: Did not detect another server instance"),
        ("DBG", "STREAM: Discover subject:           _STAN.discover.mine"),
        ("DBG", "STREAM: Publish subject:            _STAN.pub.mine.>"),
        ("INF", "STREAM: Streaming Server is ready"),
        ("INF", 'STREAM: Channel "a" has been created'),
        ("TRC", "STREAM: [Client:me] Received message from publisher subj=a guid=g1"),
        ("TRC", "STREAM: [Client:me] Acking Publisher subj=a guid=g1"),
        ("TRC", "STREAM: [Client:me] Delivering msg to subid=1, subject=a, seq=1"),
        ("TRC", "STREAM: [Client:me] Processing ack for subid=1, subject=a, seq=1"),
        ("INF", "STREAM: Shutting down."),
        ("INF", "Initiating Shutdown..."),
        ("INF", "Server Exiting.."),
    ):
        assert (level, text) in texts
    for level, pattern in (
        ("INF", r"STREAM: ServerID: \w{22}"),
        ("DBG", r"STREAM: \[Client:me\] Connected \(Inbox=_INBOX\..*\)"),
        ("DBG", r"STREAM: \[Client:me\] Closed \(Inbox=_INBOX\..*\)"),
        ("DBG", r"STREAM: \[Client:me\] Started new durable subscription, subject=a, inbox=.*, durable=d, subid=1, .*"),
        ("DBG", r"STREAM: \[Client:me\] Suspended durable subscription, subject=a, inbox=.*, durable=d, subid=1.*"),
        ("DBG", r"127\.0\.0\.1:\d+ - cid:\d+ - Client connection created"),
        ("TRC", r"127\.0\.0\.1:\d+ - cid:\d+ .*<<- \[CONNECT .*\]"),
        ("TRC", r"127\.0\.0\.1:\d+ - cid:\d+ .*->> \[PONG\]"),
    ):
        assert any(each == level and re.fullmatch(pattern, text) for each, text in texts), pattern


def test_ports_of_an_ipv6_address_are_urls(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Broker(tmp_path, "-a", "::1", "--ports_file_dir", tmp_path, http=True) as broker:
        ports = json.loads(next(tmp_path.glob("*.ports")).read_text())
        assert ports == {"nats": [f"nats://[::1]:{broker.port}"], "monitoring": [f"http://[::1]:{broker.http_port}"]}
        assert fetch(f"{ports['monitoring'][0]}/streaming/serverz")["cluster_id"] == "test-cluster"


@pytest.mark.parametrize(
    ("words", "levels"),
    [
        (("-D",), {"DBG": False}),
        (("-V",), {"TRC": False}),
        (("-SD",), {"DBG": True}),
        (("-SV",), {"TRC": True}),
        (("-SDV", "-SDV=false"), {}),
    ],
    ids=str,
)
def test_levels_of_the_log(tmp_path: Path, words: tuple[str, ...], levels: dict[str, bool]) -> None:
    with Broker(tmp_path, *words, "-T=false") as broker:
        with Talker(broker.port) as nats:
            client = Client(nats, "me")
            client.store(b"a", b"1")
            client.subscribe(b"a").wait(1)
        assert broker.stop() == 0
    lines = [LINE.fullmatch(line) for line in broker.said().splitlines()]
    assert all(line and line[2] is None for line in lines)
    seen = {(line[3], line[4].startswith("STREAM: ")) for line in lines if line}
    assert seen - {("INF", True), ("INF", False)} == set(levels.items())


def test_how_much_of_a_message_is_traced(tmp_path: Path) -> None:
    with Broker(tmp_path, "-DVV", "--max_traced_msg_len", 5) as broker, Talker(broker.port) as nats:
        nats.publish(b"somewhere", b"0123456789")
        nats.flush()
        until(lambda: "<<- [PUB somewhere " in broker.said())
        assert "01234" in broker.said()
        assert "012345" not in broker.said()


def test_a_log_file_that_is_rotated_and_moved_away(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ("-l", log, "--log_size_limit", 3000, "-SDV", "--logtime_utc")
    with quiet(Broker(tmp_path, *words), lambda: "".join(each.read_text() for each in tmp_path.glob("log*"))) as broker:
        with Talker(broker.port) as nats:
            client = Client(nats, "me")
            client.store(b"a", *(b"%d" % n for n in range(60)))
        rotated = sorted(path for path in tmp_path.glob("log.*") if re.fullmatch(r"log(\.\d+){7}", path.name))
        assert rotated
        assert (
            "Rotated log, backup saved as" in rotated[-1].read_text().splitlines()[0] + log.read_text().splitlines()[0]
        )
        assert all(path.stat().st_size < 5000 for path in rotated)
        assert broker.process
        moved = tmp_path / "moved"
        log.rename(moved)
        assert alone("-sl", f"reopen={broker.process.pid}").returncode == 0
        until(lambda: log.exists() and "File log re-opened" in log.read_text())
        client_count = log.stat().st_size
        with Talker(broker.port) as nats:
            Client(nats, "you")
        assert log.stat().st_size > client_count or sorted(tmp_path.glob("log.*")) != rotated


def test_remote_syslog(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    got: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(PATIENCE)

        def listen() -> None:
            with contextlib.suppress(OSError):
                while not any(b"Server Exiting" in line for line in got):
                    got.append(receiver.recv(65536))

        thread = threading.Thread(target=listen)
        thread.start()
        with quiet(Broker(tmp_path, "-r", f"unix://{path}"), lambda: b"".join(got).decode()) as broker:
            assert broker.stop() == 0
        thread.join(PATIENCE)
        assert broker.said() == ""
    # Facility daemon, priority notice; neither process id nor time in the text.
    line = next(line for line in got if b"Streaming Server is ready" in line)
    assert line.startswith(b"<29>")
    assert line.rstrip().endswith(b": STREAM: Streaming Server is ready")


def test_syslog_that_is_not_there(tmp_path: Path) -> None:
    done = alone("-p", -1, "-a", "127.0.0.1", "-r", f"unix://{tmp_path}/none")
    assert done.returncode == 1
    assert "error connecting to syslog" in done.stderr


# Signals.


@pytest.mark.parametrize(("word", "code"), [("quit", 0), ("term", 143), ("stop", -signal.SIGKILL)])
def test_signals_that_end_it(tmp_path: Path, word: str, code: int) -> None:
    with Broker(tmp_path, "-P", tmp_path / "pid") as broker, Talker(broker.port) as nats:
        Client(nats, "me")
        done = alone("-sl", f"{word}={tmp_path / 'pid'}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert broker.process
        assert broker.process.wait(PATIENCE) == code
        assert ("STREAM: Shutting down." in broker.said()) == (word != "stop")


def test_reload_without_a_file(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        assert broker.process
        assert alone("-sl", f"reload={broker.process.pid}").returncode == 0
        text = "[ERR] STREAM: Reload: can only reload config when a file is provided using -c or --config"
        until(lambda: text in broker.said())
        broker.process.send_signal(signal.SIGUSR1)
        until(lambda: "[INF] File log re-open ignored, not a file logger" in broker.said())


def test_reload(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("debug: false\n")
    with Broker(tmp_path, "-c", config) as broker, Talker(broker.port) as nats:
        assert f"[INF] Using configuration file: {config}" in broker.said()
        assert broker.process
        client = Client(nats, "me")
        config.write_text("debug: true, max_payload: 2000\nauthorization { user: a, password: b }\n")
        broker.process.send_signal(signal.SIGHUP)
        until(lambda: "[INF] Reloaded server configuration" in broker.said())
        said = broker.said()
        for text in ("Reloaded: debug = true", "Reloaded: max_payload = 2000", "Reloaded: authorization username"):
            assert f"[INF] {text}" in said
        # Who is connected without the password is sent away.
        until(lambda: nats.closed)
        assert "Authorization Violation" in nats.errors
        with pytest.raises(ConnectionError):
            Talker(broker.port)
        with Talker(broker.port, user="a", **{"pass": "b"}) as allowed:
            assert allowed.info["max_payload"] == 2000
        assert client.id == b"me"
        config.write_text("port: 1\n")
        broker.process.send_signal(signal.SIGHUP)
        # The command line has the port, not the file.
        until(lambda: broker.said().count("Reloaded server configuration") == 2)
        config.write_text("nonsense {\n")
        broker.process.send_signal(signal.SIGHUP)
        until(lambda: "[ERR] STREAM: Reload: " in broker.said())
        assert broker.stop() == 0


def test_lame_duck(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text('lame_duck_duration: "30s", lame_duck_grace_period: "300ms"\n')
    with Broker(tmp_path, "-c", config) as broker, Talker(broker.port) as nats:
        Client(nats, "me")
        assert broker.process
        assert alone("-sl", f"ldm={broker.process.pid}").returncode == 0
        until(lambda: "Entering lame duck mode, stop accepting new clients" in broker.said())
        with pytest.raises(OSError):
            Talker(broker.port)
        until(lambda: nats.closed)
        assert broker.process.wait(PATIENCE) == 0


# The file store.


def test_slices_and_what_happens_to_them(tmp_path: Path) -> None:
    script, seen = tmp_path / "archive.sh", tmp_path / "archived"
    script.write_text(
        f'#!/bin/sh\necho "$1" "$(basename "$2")" "$(basename "$3")" >> {seen}\nrm "$2" "$3"\necho done\n'
    )
    script.chmod(0o755)
    store = tmp_path / "store"
    words: list[object] = ["-st", "file", "-dir", store, "-mm", 30, "--file_slice_max_msgs", 10]
    words += ["--file_slice_archive_script", script, "--file_sync=false", "--file_buffer_size", 0]
    words += ["--file_read_buffer_size", 0, "--file_auto_sync", "1s", "--file_parallel_recovery", 4]
    words += ["--file_fds_limit", 12, "-mc", 0]
    with Broker(tmp_path, *words, http=True) as broker:
        with Talker(broker.port) as nats:
            client = Client(nats, "me")
            client.store(b"a", *(b"%d" % n for n in range(45)))
            for n in range(30):
                client.store(b"many.%d" % n, b"x")
            until(lambda: seen.exists() and seen.read_text() == "a msgs.1.dat.bak msgs.1.idx.bak\n")
            until(lambda: "Output of archive script for a" in broker.said())
            assert client.close() == ""
        names = sorted(path.name for path in (store / "a").glob("msgs.*.dat"))
        assert names == ["msgs.2.dat", "msgs.3.dat", "msgs.4.dat", "msgs.5.dat"]
        assert broker.process
        opened = 0
        for file in Path(f"/proc/{broker.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                opened += str(file.readlink()).startswith(str(store))
        assert opened <= 20
        assert broker.stop() == 0
        broker.start()
        assert "Recovered 31 channel(s)" in broker.said()
        with Talker(broker.port) as nats:
            got = Client(nats, "me").subscribe(b"a").wait(30)
            assert [message.data for message in got] == [b"%d" % n for n in range(15, 45)]
        assert f"[INF] STREAM: Store location: {store}" in broker.said()


def test_slices_by_bytes_and_age(tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ("-st", "FILE", "-dir", store, "--file_slice_max_bytes", "1KB", "--file_slice_max_age", "500ms")
    with Broker(tmp_path, *words) as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        client.store(b"bytes", *(bytes(400) for _ in range(6)))
        assert len(list((store / "bytes").glob("msgs.*.dat"))) >= 2
        client.store(b"age", b"1")
        time.sleep(0.6)
        client.store(b"age", b"2")
        assert len(list((store / "age").glob("msgs.*.dat"))) == 2


def test_compaction(tmp_path: Path) -> None:
    store = tmp_path / "store"
    words: list[object] = ["-st", "FILE", "-dir", store, "--file_compact_interval", 1, "--file_compact_frag", 10]
    with Broker(tmp_path, *words, "--file_compact_min_size", "2KB") as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        client.store(b"a", b"1")
        subscription = client.subscribe(b"a", max_in_flight=1000)
        largest: dict[str, int] = {}

        def sizes() -> dict[str, int]:
            found = {name: (store / name).stat().st_size for name in ("clients.dat", "a/subs.dat")}
            for name, size in found.items():
                largest[name] = max(size, largest.get(name, 0))
            return found

        deadline = time.monotonic() + PATIENCE
        shrunk: set[str] = set()
        number = 0
        while len(shrunk) < 2:
            assert time.monotonic() < deadline, largest
            Client(nats, f"guest{number}").close()
            client.store(b"a", *(b"x" for _ in range(20)))
            for sequence in range(number * 20 + 1, number * 20 + 21):
                subscription.wait(sequence)
                subscription.ack(sequence)
            number += 1
            before = dict(largest)
            shrunk |= {name for name, size in sizes().items() if size < before.get(name, 0)}
        broker.kill()
        broker.start()
        assert "Recovered 1 channel(s)" in broker.said()


def test_no_compaction_and_no_checksums(tmp_path: Path) -> None:
    store = tmp_path / "store"
    words: list[object] = ["-st", "FILE", "-dir", store, "--file_compact_enabled=false", "--file_crc=false"]
    with Broker(tmp_path, *words) as broker:
        with Talker(broker.port) as nats:
            Client(nats, "me").store(b"a", b"here")
        assert broker.stop() == 0
        # Nobody looks at the checksum.
        file = store / "a" / "msgs.1.dat"
        file.write_bytes(file.read_bytes().replace(b"here", b"gone"))
        broker.start()
        with Talker(broker.port) as nats:
            assert Client(nats, "me").subscribe(b"a").wait(1)[0].data == b"gone"
        assert broker.stop() == 0


def test_another_polynomial(tmp_path: Path) -> None:
    store = tmp_path / "store"
    castagnoli = ("-st", "FILE", "-dir", store, "--file_crc_poly", 0x82F63B78)
    with Broker(tmp_path, *castagnoli) as broker, Talker(broker.port) as nats:
        Client(nats, "me").store(b"a", b"1")
        assert broker.stop() == 0
        with broker, Talker(broker.port) as again:
            assert Client(again, "you").subscribe(b"a").wait(1)[0].data == b"1"
            assert broker.stop() == 0
    done = alone("-a", "127.0.0.1", "-p", broker.port, "-st", "FILE", "-dir", store)
    assert done.returncode == 1
    assert "[FTL] STREAM: Failed to start: " in done.stderr


def test_a_store_that_is_cut_off(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Broker(tmp_path, "-st", "FILE", "-dir", store) as broker, Talker(broker.port) as nats:
        Client(nats, "me").store(b"a", b"1", b"2")
        broker.kill()
    file = store / "a" / "msgs.1.dat"
    file.write_bytes(file.read_bytes()[:-3])
    (store / "a" / "msgs.1.idx").unlink()
    plain = ("-a", "127.0.0.1", "-p", broker.port, "-st", "FILE", "-dir", store)
    done = alone(*plain)
    assert done.returncode == 1
    with Broker(tmp_path, "-st", "FILE", "-dir", store, "--file_truncate_bad_eof") as broker:
        assert "has been truncated to offset" in broker.said()
        with Talker(broker.port) as nats:
            assert [message.data for message in Client(nats, "you").subscribe(b"a").settled(1)] == [b"1"]
        assert broker.stop() == 0
    done = alone(*plain, "--file_truncate_bad_eof")
    assert done.returncode == 1
    text = "file store should not be opened consecutively with the TruncateUnexpectedEOF option set to true"
    assert text in done.stderr


# What CHACHA writes is among the golden stores.
@pytest.mark.parametrize(("cipher", "name"), others_slow([("AES", "cipher"), ("CHACHA", "chacha20poly1305")], ["AES"]))
def test_encryption(tmp_path: Path, cipher: str, name: str) -> None:
    store = tmp_path / "store"
    words = ("-st", "FILE", "-dir", store, "--encrypt", "--encryption_cipher", cipher)
    with Broker(tmp_path, *words, "--encryption_key", "secret") as broker:
        with Talker(broker.port) as nats:
            Client(nats, "me").store(b"a", b"a message in clear text")
        assert broker.stop() == 0
        assert b"in clear text" not in (store / "a" / "msgs.1.dat").read_bytes()
    # The environment goes before the command line.
    key = {"NATS_STREAMING_ENCRYPTION_KEY": "secret"}
    with Broker(tmp_path, *words, "--encryption_key", "wrong", environment=key) as broker:
        with Talker(broker.port) as nats:
            assert Client(nats, "me").subscribe(b"a").wait(1)[0].data == b"a message in clear text"
        assert broker.stop() == 0
    with Broker(tmp_path, *words, "--encryption_key", "wrong") as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        subscription = client.subscribe(b"a")
        until(lambda: f"Error looking up message a:1 ({name}: message authentication failed)" in broker.said())
        assert subscription.settled(0) == []
        assert broker.stop() == 0


@pytest.mark.parametrize("sealed", [False, True])
def test_a_start_without_encryption_says_what_the_messages_look_like(tmp_path: Path, sealed: bool) -> None:
    """A store that was written with encryption; and one of plain messages that begin with the byte of a cipher."""
    words = ("-st", "FILE", "-dir", tmp_path / "store")
    secret = ("--encrypt", "--encryption_key", "secret")
    with Broker(tmp_path, *words, *(secret if sealed else ())) as broker:
        with Talker(broker.port) as nats:
            client = Client(nats, "me")
            for channel in (b"a", b"b.c"):
                client.store(channel, *(b"\x01" + struct.pack(">IdH", n, 20.5, 7) + bytes(40) for n in range(1, 9)))
        assert broker.stop() == 0
    with Broker(tmp_path, *words) as broker:
        expected = "[WRN] STREAM: Messages of 2 channel(s) may be encrypted (a, b.c), encryption is off"
        assert (expected in broker.said()) is sealed
        assert ("may be encrypted" in broker.said()) is sealed
        assert broker.stop() == 0
    with Broker(tmp_path, *words, *secret) as broker:
        assert broker.said().count("may be encrypted") == sealed  # as before: the log is one
        assert broker.stop() == 0


# Monitoring, and TLS of it.


def test_monitoring_with_tls(tmp_path: Path) -> None:
    authority = party(tmp_path, "authority")
    server = party(tmp_path, "server", authority)
    words = ("--tls", "--tlscert", server.cert, "--tlskey", server.key, "--tls_client_cacert", authority.cert)
    broker = Broker(tmp_path, *words)
    port = Broker(tmp_path / "unused").port
    broker.words += ["-ms", str(port)]
    context = ssl.create_default_context(cafile=str(authority.cert))
    with broker:
        assert f"Starting https monitor on 127.0.0.1:{port}" in broker.said()
        for page in ("streaming/serverz", "varz", "connz"):
            with urllib.request.urlopen(f"https://127.0.0.1:{port}/{page}", timeout=10, context=context) as answer:
                assert json.load(answer)["server_id"]
        with Talker(broker.port, tls=context) as nats:
            assert nats.info["tls_required"]
            Client(nats, "me").store(b"a", b"1")


def test_endpoints(tmp_path: Path) -> None:
    with Broker(tmp_path, http=True) as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        client.store(b"a", b"1", b"2")
        client.subscribe(b"a").wait(2)
        server = broker.figures("streaming/serverz")
        assert (server["state"], server["clients"], server["channels"]) == ("STANDALONE", 1, 1)
        assert (server["total_msgs"], server["in_msgs"], server["out_msgs"]) == (2, 2, 2)
        assert f"ServerID: {server['server_id']}\n" in broker.said()
        assert broker.figures("streaming/channelsz?channel=a&subs=1")["subscriptions"][0]["last_sent"] == 2
        assert broker.figures("streaming/clientsz?client=me")["id"] == "me"
        assert broker.figures("varz")["connections"] == 5
        names = {each.get("name") for each in broker.figures("connz")["connections"]}
        assert names == {f"_NSS-test-cluster-{role}" for role in ("send", "general", "acks", "hb")} | {"talker"}
        for page in ("routez", "subsz", "healthz", "streaming/storez"):
            assert broker.figures(f"{page}")
        with urllib.request.urlopen(f"{broker.monitoring}/streaming/isFTActive", timeout=10) as answer:
            assert answer.status == 204
        with pytest.raises(urllib.error.HTTPError, match="404"):
            broker.figures("streaming/clientsz?client=nobody")


# Ends before it begins.


def test_version_and_help() -> None:
    command = [sys.executable, "-m", "broker", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "nats-streaming-server version 0.25.6, nats-server: v2.9.24",
        f"stan-broker {__version__}",
    ]
    done = alone("-no-such-option")
    assert (done.returncode, done.stderr) == (0, "flag provided but not defined: -no-such-option\n")
    assert "Usage: nats-streaming-server [options]" in done.stdout
    done = alone("nonsense")
    assert (done.returncode, done.stderr) == (1, 'unrecognized command: "nonsense"\n')


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        done = alone("-a", "127.0.0.1", "-p", broker.port)
        assert done.returncode == 1
        place = f"127.0.0.1:{broker.port}"
        text = f'[FTL] Error listening on port: {place}, "listen tcp {place}: bind: address already in use"'
        assert text in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-st", "FILE"), "Failed to start: for FILE stores, root directory must be specified"),
        (("-ns", "nats://127.0.0.1:1"), "Failed to start: nats: no servers available for connection"),
        (("-P", "/none/pid"), "[FTL] Could not write pidfile: open /none/pid: no such file or directory"),
        (("--encrypt",), "Failed to start: encryption key required"),
    ],
    ids=str,
)
def test_starts_that_fail(words: tuple[str, ...], text: str) -> None:
    done = alone("-a", "127.0.0.1", "-p", -1, *words)
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr
