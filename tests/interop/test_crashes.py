"""The broker is killed at random moments while several publishers and subscribers are at work.

Nothing that was acknowledged is lost, nothing is there twice, and subscribers get what they are owed.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from stantools.format.crc import Crc
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as store
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.store.directory import open_datastore
from stantools.store.limits import UNLIMITED, StoreLimits
from stantools.store.sublog import read_subs
from tests.brokers import Broker
from tests.interop.follower import Follower, wait_until_served
from tests.interop.rawclient import Publisher, RawClient, stored
from tests.interop.test_faults_disk import LEFT_BEHIND, verified
from tests.interop.watching import BAD_SIGNS
from tests.waiting import until

CHANNELS = [b"one", b"two", b"three.deep"]
_UNLIMITED = ("-mm", 0, "-mb", 0, "-mc", 0)
_SECRET = ("--encrypt", "--encryption_key", "secret")


def rounds(folder: Path, number: int, seed: int, *words: object) -> None:
    chance = random.Random(seed)
    directory = folder / "store"
    broker = Broker(folder, "-st", "FILE", "-dir", directory, *_UNLIMITED, *words)
    sent: dict[bytes, dict[str, list[bytes]]] = {channel: {} for channel in CHANNELS}
    acked: set[bytes] = set()
    with broker:
        alone = [Follower(broker.port, f"alone-{n}", channel, seed + n) for n, channel in enumerate(CHANNELS[:2])]
        group = [Follower(broker.port, f"member-{n}", CHANNELS[2], seed + 9 + n, b"group") for n in range(2)]
        followers = [*alone, *group]
        for follower in followers:
            follower.start()
        for turn in range(number):
            publishers = [Publisher(broker.port, f"p{turn}-{name}", CHANNELS) for name in range(3)]
            for each in publishers:
                each.start()
            publishers[0].wait_for(1)
            time.sleep(chance.uniform(0, 0.25))
            broker.kill()
            for each in publishers:
                each.join(90)
                assert not each.is_alive()
                assert not each.refused
                acked.update(each.acked)
                for channel, data in each.sent:
                    sent[channel].setdefault(each.client_name, []).append(data)
            broker.start()
            for follower in followers:
                follower.go_on()
        padding = len(publishers[0].padding)
        there: set[bytes] = set()
        for channel in CHANNELS:
            got = [
                (sequence, data[:-padding])
                for sequence, data in stored(broker.port, f"reader-{channel[:3].decode()}", channel)
            ]
            assert [sequence for sequence, _ in got] == list(range(1, len(got) + 1))
            payloads = [data for _, data in got]
            assert len(set(payloads)) == len(payloads), "a message is there twice"
            there.update(payloads)
            # Readers leave a marker behind.
            mine = {
                client: [data for data in payloads if data.startswith(f"{client}-".encode())]
                for client in sent[channel]
            }
            for name, all_sent in sent[channel].items():
                assert mine[name] == all_sent[: len(mine[name])], "order, and no holes among what one publisher sent"
            here = [each for each in followers if each.channel == channel]
            for each in here:
                each.ack_everything = True
            wait_until_served(here, len(got))
            for each in here:
                assert not each.problems
                assert all(each.got[sequence][:-padding] == data for sequence, data in got if sequence in each.got)
        assert acked <= there, f"{len(acked - there)} acknowledged messages are lost"
        assert broker.stop() == 0
    said = broker.said()
    for sign in BAD_SIGNS:
        assert sign not in said, said[said.index(sign) - 200 :][:2000]
    verified(directory, except_for=LEFT_BEHIND)


CONFIGURATIONS = [
    (),
    ("--file_sync=false",),
    ("--file_buffer_size", 0),
    ("--file_slice_max_msgs", 50),
    _SECRET,
]


# What is left out here is among what is killed often.
@pytest.mark.parametrize("words", [(*CONFIGURATIONS[3], *_SECRET)], ids=str)
def test_acknowledged_messages_survive(tmp_path: Path, words: tuple[object, ...]) -> None:
    rounds(tmp_path, 2, 1, *words)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(CONFIGURATIONS)))
def test_acknowledged_messages_survive_many_crashes(tmp_path: Path, seed: int) -> None:
    rounds(tmp_path, 45, seed, *CONFIGURATIONS[seed])


@pytest.mark.parametrize("turns", [2, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("words", [(), pytest.param(("--file_sync=false",), marks=pytest.mark.slow)], ids=str)
def test_new_channels_survive(tmp_path: Path, words: tuple[object, ...], turns: int) -> None:
    """Killed while it makes hundreds of channels: what was acknowledged has a channel, for the original as well."""
    chance = random.Random(turns)
    rules = ServerOptions(version="0.25.6", limits=StoreLimits(0, UNLIMITED))
    seen = 0
    for part in range(0, turns, 10):
        directory = tmp_path / f"store{part}"
        acked: Counter[bytes] = Counter()
        with Broker(tmp_path, "-st", "FILE", "-dir", directory, *_UNLIMITED, *words) as broker:
            for turn in range(part, min(part + 10, turns)):
                publishers = [
                    Publisher(broker.port, f"p{turn}-{n}", [b"c.%d.%d.%d" % (turn, n, each) for each in range(200)])
                    for n in range(2)
                ]
                for each in publishers:
                    each.start()
                publishers[0].wait_for(1)
                time.sleep(chance.uniform(0, 0.25))
                broker.kill()
                for each in publishers:
                    each.join(90)
                    assert not each.is_alive()
                    assert not each.refused
                    mine = set(each.acked)
                    acked.update(channel for channel, data in each.sent if data in mine)
                predicted = forecast(open_datastore(directory), rules, lookups=False)
                assert predicted.starts, predicted.error
                for channel, count in acked.items():
                    assert predicted.channels[channel.decode()].count >= count
                seen += len(predicted.channels)
                broker.start()
            assert broker.stop() == 0
        said = broker.said()
        for sign in BAD_SIGNS:
            assert sign not in said, said[said.index(sign) - 200 :][:2000]
        verified(directory, except_for=LEFT_BEHIND)
    assert seen > 10 * turns


def _drain(client: RawClient, inbox: bytes, seconds: float) -> list[store.MsgProto]:
    came = [*client.skipped, *client.gather(seconds)]
    client.skipped.clear()
    return [store.MsgProto.FromString(data) for to, _, data in came if to == inbox]


def test_what_subscribers_said_survives(tmp_path: Path) -> None:
    """Acknowledgements that were flushed count, positions stay, and what is owed comes again when it is due."""
    with Broker(tmp_path, "-st", "FILE", "-dir", tmp_path / "store", "--file_sync=false") as broker:
        me = RawClient(broker.port, "me")
        inboxes = {name: me.inbox + b"." + name for name in (b"plain", b"durable", b"offline", b"member")}
        acks = {
            b"plain": me.listen(b"foo", inboxes[b"plain"], ack_wait_in_secs=1),
            b"durable": me.listen(b"foo", inboxes[b"durable"], ack_wait_in_secs=1, durable_name=b"d"),
            b"offline": me.listen(b"foo", inboxes[b"offline"], durable_name=b"off", max_in_flight=4),
            b"member": me.listen(b"foo", inboxes[b"member"], ack_wait_in_secs=1, q_group=b"q", durable_name=b"q"),
        }
        for number in range(10):
            assert not me.stored(b"foo", b"%d" % number).error
        for name in acks:
            for sequence in (1, 2, 3, 5) if name != b"offline" else (1, 2, 3):
                me.acknowledge(acks[name], b"foo", sequence)
        assert not me.stored(b"foo", b"10").error
        close = store.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=acks[b"offline"])
        assert me.request(me.subjects.sub_close_requests, close.SerializeToString()) == b""
        assert not me.stored(b"foo", b"11").error
        # What was said about subscriptions is written before long, also if nothing more is published.
        me.acknowledge(acks[b"plain"], b"foo", 12)
        log = tmp_path / "store" / "foo" / "subs.dat"

        def noted() -> bool:
            subscriptions = read_subs(memoryview(log.read_bytes()), Crc()).subscriptions.values()
            (plain,) = (each for each in subscriptions if each.state.inbox == inboxes[b"plain"])
            return plain.state.last_sent == 12 and 12 not in plain.pending

        until(noted)
        broker.kill()
        me.close()
        broker.start()
        with RawClient(broker.port, "me", subjects=me.subjects) as again:
            came: list[tuple[bytes, store.MsgProto]] = []
            deadline = time.monotonic() + 60
            wanted = {(name, sequence) for name in (b"plain", b"durable", b"member") for sequence in (4, *range(6, 13))}
            wanted.remove((b"plain", 12))
            while {(name, message.sequence) for name, message in came} != wanted and time.monotonic() < deadline:
                for to, _, data in again.gather(0.1):
                    came.append((to.rpartition(b".")[2], store.MsgProto.FromString(data)))
            assert {(name, message.sequence) for name, message in came} == wanted
            assert all(message.redelivered and message.redelivery_count >= 1 for _, message in came)
            # Acknowledgements of messages from before the crash are taken at the same ack inbox.
            for name in (b"plain", b"durable", b"member"):
                for sequence in (4, *range(6, 13)):
                    again.acknowledge(acks[name], b"foo", sequence)
            assert not again.stored(b"foo", b"12").error
            again.skipped.clear()
            # The durable that was closed goes on where it was: up to 4 were in flight.
            again.listen(b"foo", inboxes[b"offline"], durable_name=b"off", max_in_flight=1 << 20, start_position=0)
            got = [(each.sequence, each.redelivered) for each in _drain(again, inboxes[b"offline"], 0.5)]
            pending = [sequence for sequence, redelivered in got if redelivered]
            assert pending[:1] == [4]
            assert sorted(sequence for sequence, _ in got) == list(range(4, 14))
            assert [sequence for sequence, redelivered in got if not redelivered] == list(range(max(pending) + 1, 14))
            # Who is registered still is, by id and by connection.
            ping = protocol.Ping(conn_id=again.connection_id).SerializeToString()
            assert again.request(again.subjects.ping_requests, ping) == b""
        assert broker.stop() == 0


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=lambda number: number.name
)
def test_a_signal_under_load(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "store"
    with Broker(tmp_path, "-st", "FILE", "-dir", directory, *_UNLIMITED, "--file_sync=false") as broker:
        publishers = [Publisher(broker.port, f"p{name}", CHANNELS) for name in range(3)]
        follower = Follower(broker.port, "follower", CHANNELS[0], 1)
        follower.start()
        for each in publishers:
            each.start()
        publishers[0].wait_for(200)
        assert broker.stop(number) == {signal.SIGTERM: 143, signal.SIGINT: 0}[number]
        verified(directory)
        for each in publishers:
            each.join(90)
        broker.start()
        there = {
            data.partition(b".")[0]
            for channel in CHANNELS
            for _, data in stored(broker.port, f"reader-{channel[:3].decode()}", channel)
        }
        for each in publishers:
            assert not each.refused
            assert set(each.acked) <= there
        follower.ack_everything = True
        follower.go_on()
        wait_until_served([follower], 60)
        assert broker.stop(number) == {signal.SIGTERM: 143, signal.SIGINT: 0}[number]
    said = broker.said()
    for sign in BAD_SIGNS:
        assert sign not in said
