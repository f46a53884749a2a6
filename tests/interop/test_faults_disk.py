"""The disk is full, or fails: publishers are told, nothing that was acknowledged is lost, all goes on afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.signals import PATIENCE
from broker.streaming.backlog import CHANNEL_BOUND
from stantools.cli.main import cli
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as store
from tests.brokers import Broker
from tests.interop.rawclient import Publisher, RawClient, stored
from tests.interop.talker import Client, Talker
from tests.interop.watching import BAD_SIGNS
from tests.waiting import until

_FILE = ("-st", "FILE", "-mm", 0, "-mb", 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


class FailingBroker(Broker):
    """A broker whose disk fails on demand."""

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    def command(self) -> list[str]:
        words = super().command()
        at = words.index("broker")
        return [*words[:at], "tests.interop.failing", str(self.orders), *words[at + 1 :]]

    @contextlib.contextmanager
    def failing(self, *orders: str) -> Iterator[None]:
        """Lets calls fail: `<call> <error name> <part of the path>`."""
        partial = self.orders.with_suffix(".new")
        partial.write_text("\n".join(orders))
        partial.replace(self.orders)
        try:
            yield
        finally:
            self.orders.unlink()

    def wait_until_it_hangs(self, part: str) -> None:
        """Waits until a call hangs on a file whose path has a part."""
        found = Path(f"{self.orders}.hanging")
        deadline = time.monotonic() + 60
        while not (found.exists() and any(part in line for line in found.read_text().splitlines())):
            assert time.monotonic() < deadline, "nothing hangs"
            time.sleep(0.005)
        found.unlink()


#: What a process that is killed while it writes may leave behind: messages that it had not acknowledged yet, which no
#: index names, and under whose sequences others are stored later.
LEFT_BEHIND = frozenset(("index-orphans", "sequence-disorder", "sequence-superseded", "slice-torn"))


def verified(directory: Path, *, except_for: frozenset[str] = frozenset()) -> None:
    """Fails if `stantools verify` finds anything, with exceptions."""
    done = CliRunner().invoke(cli, ["verify", str(directory), "-o", "ndjson"])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    bad = [each for each in found if each["severity"] != "info" and each["code"] not in except_for]
    assert not bad, bad
    assert done.exit_code in (0, 1), done.stderr


def calm(broker: Broker) -> None:
    said = broker.said()
    for sign in BAD_SIGNS:
        assert sign not in said, said[max(said.index(sign) - 500, 0) :][:3000]


def check_all_there(broker: Broker, publishers: list[Publisher]) -> None:
    """Every acknowledged message is there exactly once, in order, and none that was refused."""
    for channel in sorted({channel for each in publishers for channel in each.channels}):
        got = stored(broker.port, f"reader-{os.urandom(4).hex()}", channel)
        assert [sequence for sequence, _ in got] == list(range(1, len(got) + 1))
        payloads = [data.partition(b".")[0] for _, data in got]
        assert len(set(payloads)) == len(payloads)
        for each in publishers:
            acked = set(each.acked)
            wanted = [data for to, data in each.sent if to == channel and data in acked]
            mine = [data for data in payloads if data.startswith(each.client_name.encode() + b"-")]
            assert mine == wanted


def end(publishers: list[Publisher]) -> None:
    for each in publishers:
        each.stopping.set()
    for each in publishers:
        each.join(90)
        assert not each.is_alive()
        assert len(each.acked) + len(each.refused) == len(each.sent), "every publish was answered"


@pytest.mark.parametrize(
    "words",
    [
        ("--file_slice_max_bytes", "1MB"),
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("--file_sync=false",), marks=pytest.mark.slow),
        pytest.param(("--encrypt", "--encryption_key", "secret"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_full_disk(small_disk: Path, tmp_path: Path, words: tuple[object, ...]) -> None:
    directory, filler = small_disk / "store", small_disk / "filler"
    filler.write_bytes(b"x" * (3 << 20))
    last_room = small_disk / "last_room"
    last_room.write_bytes(b"x" * (256 << 10))
    with Broker(tmp_path, *_FILE, "-dir", directory, *words) as broker:
        # Channels of their own: who publishes more meets the end first.
        publishers = [Publisher(broker.port, f"p{n}", [b"c%d" % n, b"all"], window=16, size=3000) for n in range(3)]
        with RawClient(broker.port, "reader") as reader:
            reader.listen(b"all", reader.inbox + b".all", durable_name=b"d")
            for each in publishers:
                each.start()
            deadline = time.monotonic() + 60
            while not all(each.refused for each in publishers):
                assert time.monotonic() < deadline, "the disk is never full"
                time.sleep(0.01)
            texts = {text for each in publishers for text in each.refused.values()}
            assert all("No space left on device" in text for text in texts), texts
            # There is no room for new ones, or there is; the answer is one or the other.
            with contextlib.suppress(ConnectionError):
                RawClient(broker.port, "newcomer").close()
            filler.unlink()
            acked_before = sum(len(each.acked) for each in publishers)
            # One may take all the room before the others are scheduled.
            until(lambda: sum(len(each.acked) for each in publishers) >= acked_before + 60)
            end(publishers)
            last_room.unlink()
            with RawClient(broker.port, "last") as last:
                for channel in (b"c0", b"c1", b"c2"):
                    last.send(last.publication(channel, b"last", b"last"))
                    subject, _, answer = last.message()
                    assert (subject, protocol.PubAck.FromString(answer).error) == (last.acks, b"")
            # The reader has got all that is there, and nothing else.
            got = [
                store.MsgProto.FromString(data).data.partition(b".")[0]
                for to, _, data in reader.gather(1)
                if to.endswith(b".all")
            ]
            acked = {data for each in publishers for data in each.acked}
            assert set(got) == {data for each in publishers for to, data in each.sent if to == b"all" and data in acked}
        check_all_there(broker, publishers)
        broker.stop()
        verified(directory)
        broker.start()
        check_all_there(broker, publishers)
        assert broker.stop() == 0
        verified(directory)
        calm(broker)


def test_a_full_disk_and_a_crash(small_disk: Path, tmp_path: Path) -> None:
    directory, filler = small_disk / "store", small_disk / "filler"
    filler.write_bytes(b"x" * (4 << 20))
    with Broker(tmp_path, *_FILE, "-dir", directory) as broker:
        publishers = [Publisher(broker.port, f"p{n}", [b"one", b"two"], size=3000) for n in range(2)]
        for each in publishers:
            each.start()
        deadline = time.monotonic() + 60
        while not all(each.refused for each in publishers):
            assert time.monotonic() < deadline, "the disk is never full"
            time.sleep(0.01)
        time.sleep(0.1)
        broker.kill()
        for each in publishers:
            each.join(90)
        filler.unlink()
        broker.start()
        for channel in (b"one", b"two"):
            got = stored(broker.port, f"reader-{channel.decode()}", channel)
            payloads = [data.partition(b".")[0] for _, data in got]
            assert len(set(payloads)) == len(payloads)
            for each in publishers:
                acked = set(each.acked)
                assert {data for to, data in each.sent if to == channel and data in acked} <= set(payloads)
                assert not set(each.refused) & set(payloads)
        assert broker.stop() == 0
        verified(directory)
        calm(broker)


def test_files_that_must_not_grow(tmp_path: Path) -> None:
    """One channel meets the limit for the size of a file; the others do not notice."""
    directory = tmp_path / "store"
    with Broker(tmp_path, *_FILE, "-dir", directory) as broker:
        assert broker.process is not None
        large = Publisher(broker.port, "large", [b"large"], size=5000)
        small = Publisher(broker.port, "small", [b"small"], window=4, size=10)
        limit = 1 << 20
        hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (limit, hard))
        large.start()
        small.start()
        deadline = time.monotonic() + 60
        while not large.refused:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        small.wait_for(len(small.acked) + 200)
        assert not small.refused
        assert all("File too large" in text for text in list(large.refused.values()))
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        large.wait_for(len(large.acked) + 50)
        end([large, small])
        check_all_there(broker, [large, small])
        broker.kill()
        broker.start()
        check_all_there(broker, [large, small])
        broker.stop()
        verified(directory)
        calm(broker)


@pytest.mark.parametrize(
    ("orders", "text"),
    [
        (("fsync EIO /bad/",), "Input/output error"),
        pytest.param(("writev ENOSPC /bad/", "write ENOSPC /bad/"), "No space left on device", marks=pytest.mark.slow),
        (("writev EIO /bad/", "write EIO /bad/", "ftruncate EIO /bad/"), "Input/output error"),
        pytest.param(("fsync EIO /bad/", "ftruncate EIO /bad/"), "Input/output error", marks=pytest.mark.slow),
        pytest.param(
            ("writev EDQUOT /bad/msgs", "write EDQUOT /bad/msgs"), "Disk quota exceeded", marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_one_channel_fails(tmp_path: Path, orders: tuple[str, ...], text: str) -> None:
    directory = tmp_path / "store"
    words = (*_FILE, "-dir", directory, "--file_slice_max_msgs", 300)
    with FailingBroker(tmp_path, *words) as broker, RawClient(broker.port, "reader") as reader:
        reader.listen(b"bad", reader.inbox + b".bad", durable_name=b"d")
        both = Publisher(broker.port, "both", [b"bad", b"good"], window=16)
        good = Publisher(broker.port, "good", [b"good"], window=16)
        for each in (both, good):
            each.start()
            each.wait_for(50)
        for _ in range(2):
            with broker.failing(*orders):
                refused = len(both.refused)
                deadline = time.monotonic() + 60
                while len(both.refused) < refused + 20:
                    assert time.monotonic() < deadline, "it is not refused"
                    time.sleep(0.005)
                both.wait_for(len(both.acked) + 20)
                good.wait_for(len(good.acked) + 20)
            both.wait_for(len(both.acked) + 100)
        end([both, good])
        assert not good.refused
        channels = {data: channel for channel, data in both.sent}
        assert {channels[data] for data in both.refused} == {b"bad"}
        assert all(text in each for each in both.refused.values()), set(both.refused.values())
        got = [
            store.MsgProto.FromString(data).data.partition(b".")[0]
            for to, _, data in reader.gather(0.5)
            if to.endswith(b".bad")
        ]
        assert got == [data for channel, data in both.sent if channel == b"bad" and data not in both.refused]
        check_all_there(broker, [both, good])
        broker.kill()
        broker.start()
        check_all_there(broker, [both, good])
        assert broker.stop() == 0
        verified(directory)
        calm(broker)


def test_what_is_not_a_message_fails_too(tmp_path: Path) -> None:
    """Channels, clients and subscriptions that cannot be stored are refused, with the words of the system."""
    directory = tmp_path / "store"
    with FailingBroker(tmp_path, *_FILE, "-dir", directory) as broker, RawClient(broker.port, "me") as me:
        assert not me.stored(b"there").error
        with broker.failing("mkdir ENOSPC /new"):
            assert b"no space left on device" in me.stored(b"new").error.lower()
            with pytest.raises(RuntimeError, match=r"(?i)no space left on device"):
                me.listen(b"new", me.inbox + b".a")
            assert not me.stored(b"there").error
        for what in ("open EIO /new", "open EMFILE /new", "write ENOSPC /new"):
            with broker.failing(what):
                assert me.stored(b"new").error
                assert not me.stored(b"there").error
        assert not me.stored(b"new").error
        with broker.failing("write ENOSPC clients.dat", "fsync EIO clients.dat", "writev ENOSPC clients.dat"):
            with pytest.raises(ConnectionError, match=r"(?i)no space left on device|input/output error"):
                RawClient(broker.port, "you")
            assert not me.stored(b"there").error
        with RawClient(broker.port, "you") as you:
            assert not you.stored(b"there").error
        for what in ("write ENOSPC subs.dat", "fsync EIO subs.dat"):
            with broker.failing(what, what.replace("write", "writev")):
                with pytest.raises(RuntimeError, match=r"(?i)no space left on device|input/output error"):
                    me.listen(b"there", me.inbox + b".b", durable_name=b"d")
                # Deliveries that cannot be recorded do not keep messages from being stored.
                assert not me.stored(b"there").error
        inbox = me.inbox + b".c"
        ack_inbox = me.listen(b"there", inbox, durable_name=b"d")
        with broker.failing("write ENOSPC subs.dat", "writev ENOSPC subs.dat", "ftruncate EIO subs.dat"):
            assert not me.stored(b"there", b"x").error
            for sequence in range(1, 6):
                me.acknowledge(ack_inbox, b"there", sequence)
            assert not me.stored(b"there", b"y").error
        last = 0
        for _ in range(3):
            assert not me.stored(b"there", b"z").error
        for to, _, data in [*me.skipped, *me.gather(0.3)]:
            if to == inbox:
                sequence = store.MsgProto.FromString(data).sequence
                assert sequence == last + 1
                last = sequence
        assert last > 8
        broker.kill()
        broker.start()
        # The durable is where it was, and what was acknowledged is not pending.
        with RawClient(broker.port, "me", subjects=me.subjects) as again:
            again.publish(
                again.subjects.sub_close_requests,
                store.UnsubscribeRequest(client_id=b"me", subject=b"there", inbox=ack_inbox).SerializeToString(),
            )
            again.listen(b"there", inbox, durable_name=b"d")
            got = [
                store.MsgProto.FromString(data).sequence
                for to, _, data in [*again.skipped, *again.gather(0.5)]
                if to == inbox
            ]
            assert got == list(range(6, last + 1))
        assert broker.stop() == 0
        verified(directory)
        calm(broker)


def test_the_disk_fails_at_the_end(tmp_path: Path) -> None:
    """A store that cannot be closed well: the process ends with its code all the same, and all is there."""
    directory = tmp_path / "store"
    with FailingBroker(tmp_path, *_FILE, "-dir", directory, "--file_sync=false") as broker:
        publisher = Publisher(broker.port, "p", [b"one"])
        publisher.start()
        publisher.wait_for(200)
        end([publisher])
        with broker.failing("fsync EIO store", "write ENOSPC store", "writev ENOSPC store", "ftruncate EIO store"):
            broker.stop()
        assert "Traceback" not in broker.said()
        broker.start()
        check_all_there(broker, [publisher])
        assert broker.stop() == 0
        verified(directory)


def test_messages_that_cannot_be_read(tmp_path: Path) -> None:
    """Who wants them waits; the others do not, and when they can be read again all goes on."""
    directory = tmp_path / "store"
    # A start looks at both ends of a channel: the first messages are then neither in the slice that it leaves open, nor
    # in memory.
    words = ("--file_slice_max_msgs", 50, "--file_read_buffer_size", 0)
    with FailingBroker(tmp_path, *_FILE, *words, "-dir", directory) as broker:
        publisher = Publisher(broker.port, "p", [b"bad", b"good"])
        publisher.start()
        publisher.wait_for(200)
        end([publisher])
        broker.stop()
        broker.start()
        with RawClient(broker.port, "reader") as reader:
            inboxes = {name: reader.inbox + b"." + name for name in (b"bad", b"good")}
            with broker.failing("open EIO /bad/msgs"):
                for name, inbox in inboxes.items():
                    reader.listen(name, inbox)
                assert not reader.stored(b"good").error
                got = {to for to, _, _ in [*reader.skipped, *reader.gather(0.3)]}
                assert got == {inboxes[b"good"]}
                assert "Error looking up message bad:1 (" in broker.said()
            reader.skipped.clear()
            assert not reader.stored(b"bad").error
            wanted = sum(channel == b"bad" for channel, _ in publisher.sent) + 1
            came = [*reader.skipped]
            deadline = time.monotonic() + 60
            while len(came) < wanted and time.monotonic() < deadline:
                came += reader.gather(0.1)
            assert [store.MsgProto.FromString(data).sequence for _, _, data in came] == list(range(1, wanted + 1))
        assert broker.stop() == 0
        verified(directory)
        calm(broker)


def served(broker: Broker, talker: Talker, other: Client, count: int) -> float:
    """Fails if the broker does not serve what has nothing to do with the channel `slow`.

    Returns:
        Seconds that /healthz takes, in the middle.
    """
    times = []
    for number in range(count):
        begin = time.perf_counter()
        with urllib.request.urlopen(f"{broker.monitoring}/healthz", timeout=20) as page:
            assert page.status == 200
        times.append(time.perf_counter() - begin)
        talker.flush(20)
        other.store(b"fast", b"%d" % number)
    return statistics.median(times)


def test_a_disk_that_hangs(tmp_path: Path) -> None:
    """While a sync of one channel hangs all else is served; what waits for it is stored and told afterwards."""
    directory = tmp_path / "store"
    with FailingBroker(tmp_path, *_FILE, "-dir", directory, http=True) as broker:
        with Talker(broker.port) as one, Talker(broker.port) as two:
            slow, fast = Client(one, "slow"), Client(two, "fast")
            slow.store(b"slow", b"first")
            fast.store(b"fast", b"first")
            subscription = fast.subscribe(b"slow")
            assert subscription.wait(1)
            usual = served(broker, two, fast, 9)
            with broker.failing("fsync HANG /slow/msgs"):
                for number in range(3):
                    for channel in (b"slow", b"fast"):
                        message = slow.publication(channel, b"%d" % number).SerializeToString()
                        one.publish(slow.subjects.pub_prefix + b"." + channel, message, slow.ack_inbox)
                broker.wait_until_it_hangs("/slow/msgs")
                # On a machine that has more to do than it can it is slow anyway.
                assert served(broker, two, fast, 20) < max(0.05, 4 * usual)
                # What a subscriber sees is stored, and no acknowledgement overtakes another.
                assert len(subscription.messages) == 1
                assert len(slow.acks) == 0
            acks = [protocol.PubAck.FromString(each.data) for each in slow.acks.wait(6)]
            assert [(each.guid, each.error) for each in acks] == [(b"g%d" % n, b"") for n in range(2, 8)]
            assert [each.sequence for each in subscription.wait(4)] == [1, 2, 3, 4]
            served(broker, two, fast, 3)
        assert broker.stop() == 0
        verified(directory)
        calm(broker)


def test_who_publishes_to_a_disk_that_hangs_is_read_more_slowly(tmp_path: Path) -> None:
    """What waits for a disk is bounded; beyond that, the rest waits where it comes from, and all of it is stored."""
    directory = tmp_path / "store"
    data, count, sent = bytes(64 << 10), 1024, 0
    with FailingBroker(tmp_path, *_FILE, "-dir", directory, http=True) as broker:
        with Talker(broker.port) as one, Talker(broker.port) as two:
            slow, fast = Client(one, "slow"), Client(two, "fast")
            slow.store(b"slow", b"first")
            fast.store(b"fast", b"first")

            def publish() -> None:
                nonlocal sent
                for _ in range(count):
                    message = slow.publication(b"slow", data).SerializeToString()
                    one.publish(slow.subjects.pub_prefix + b".slow", message, slow.ack_inbox)
                    sent += len(data)

            publisher = threading.Thread(target=publish, daemon=True)
            with broker.failing("fsync HANG /slow/msgs"):
                publisher.start()
                broker.wait_until_it_hangs("/slow/msgs")
                until(lambda: sent > CHANNEL_BOUND)
                served(broker, two, fast, 5)
                publisher.join(1)
                # Buffers of the system hold some more.
                assert sent < CHANNEL_BOUND + (24 << 20)
                assert len(slow.acks) == 0
            acks = [protocol.PubAck.FromString(each.data) for each in slow.acks.wait(count)]
            assert [(each.guid, each.error) for each in acks] == [(b"g%d" % n, b"") for n in range(2, count + 2)]
            served(broker, two, fast, 3)
        assert broker.stop() == 0
        verified(directory)
        calm(broker)


def test_logs_that_hang(tmp_path: Path) -> None:
    """While a sync of subscriptions or clients hangs, only those who change subscriptions wait."""
    directory = tmp_path / "store"
    words = (*_FILE, "-dir", directory, "--file_auto_sync", "200ms")
    with FailingBroker(tmp_path, *words, http=True) as broker:
        with Talker(broker.port) as one, Talker(broker.port) as two:
            slow, fast = Client(one, "slow"), Client(two, "fast")
            for client in (slow, fast):
                client.store(client.id, b"first")
            with broker.failing("fsync HANG clients.dat"):
                broker.wait_until_it_hangs("clients.dat")
                served(broker, two, fast, 5)
                Client(two, "another")
            with broker.failing("fsync HANG /slow/subs.dat"):
                wanted = store.SubscriptionRequest(
                    client_id=slow.id, subject=b"slow", inbox=one.inbox + b".s", durable_name=b"d",
                    max_in_flight=10, ack_wait_in_secs=30, start_position=4,
                )  # fmt: skip
                reply = one.inbox + b".r"
                answers, messages = one.listen(reply), one.listen(wanted.inbox)
                one.publish(slow.subjects.sub_requests, wanted.SerializeToString(), reply)
                broker.wait_until_it_hangs("/slow/subs.dat")
                served(broker, two, fast, 5)
                slow.store(b"slow", b"second")
                assert len(answers) == 0
            assert not protocol.SubscriptionResponse.FromString(answers.wait(1)[0].data).error
            assert len(messages.wait(2)) == 2
        assert broker.stop() == 0
        verified(directory)
        calm(broker)


def test_a_compaction_that_hangs(tmp_path: Path) -> None:
    """While logs are rewritten everything is served, the channel whose log it is, too; a kill loses nothing."""
    directory = tmp_path / "store"
    rules = ("--file_compact_frag", 1, "--file_compact_interval", 1, "--file_compact_min_size", 1)
    with FailingBroker(tmp_path, *_FILE, "-dir", directory, *rules, http=True) as broker:
        with Talker(broker.port) as one, Talker(broker.port) as two:
            slow, fast = Client(one, "slow"), Client(two, "fast")
            for client in (slow, fast):
                client.store(client.id, b"first")
            with broker.failing("fsync HANG store/subs"):
                subscription = slow.subscribe(b"slow")
                subscription.ack(subscription.wait(1)[0].sequence)
                broker.wait_until_it_hangs("store/subs")
                served(broker, two, fast, 5)
                slow.store(b"slow", b"second")
                subscription.ack(subscription.wait(2)[1].sequence)
            with broker.failing("fsync HANG store/clients.dat"):
                Client(two, "short").close()
                broker.wait_until_it_hangs("store/clients.dat")
                served(broker, two, fast, 5)
                Client(two, "another")
                broker.kill()
        verified(directory)
        calm(broker)


def test_the_end_does_not_wait_for_a_disk_for_ever(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with FailingBroker(tmp_path, *_FILE, "-dir", directory) as broker:
        with Talker(broker.port) as talker:
            client = Client(talker, "me")
            client.store(b"slow", b"first")
            with broker.failing("fsync HANG /slow/msgs"):
                message = client.publication(b"slow", b"second").SerializeToString()
                talker.publish(client.subjects.pub_prefix + b".slow", message, client.ack_inbox)
                broker.wait_until_it_hangs("/slow/msgs")
                # The store itself would wait for longer.
                assert broker.stop(signal.SIGTERM, timeout=PATIENCE + 3) == 143
                assert len(client.acks) == 0, "nobody can tell"
        assert f"The end in order takes longer than {PATIENCE} s, so the process ends now" in broker.said()
        broker.start()
        assert [data for _, data in stored(broker.port, "reader", b"slow")][:1] == [b"first"]
