"""What was observed on the real server, against the running broker, byte by byte.

Facts: streaming-protocol.md section 27, by number.

Times have their exact lower bounds; upper ones only where a wrong answer would be seconds away, or the best of
several attempts counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as store
from tests.brokers import Broker
from tests.interop.talker import Client, Message, NobodyAnsweredError, RefusedError, Talker
from tests.waiting import PATIENCE, until

#: A server may redeliver what is due within this time, too (streaming-protocol.md section 16).
EARLY = 0.020

CONFIG = """
streaming {
  any_publish_subject: true  # as the original
  store: file
  store_limits {
    channels {
      "five" { max_msgs: 5 }
      "short.*" { max_age: "1s" }
      "idle.*" { max_inactivity: "1s" }
    }
  }
}
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("traces")
    (folder / "config").write_text(CONFIG)
    with Broker(folder, "-sc", folder / "config", "-dir", folder / "store", http=True) as broker:
        yield broker


@pytest.fixture
def talk(shared: Broker) -> Iterator[Callable[[], Talker]]:
    """Opens connections to the shared broker."""
    opened: list[Talker] = []

    def connect() -> Talker:
        opened.append(Talker(shared.port))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def nats(talk: Callable[[], Talker]) -> Talker:
    return talk()


def shape(messages: list[Message]) -> list[tuple[int, int]]:
    """Sequences with their redelivery counts; the flag has to agree."""
    assert all(message.redelivered == (message.count > 0) for message in messages)
    return [(message.sequence, message.count) for message in messages]


def test_1_the_response_to_a_connect(nats: Talker) -> None:
    names = {
        "pub_prefix": b"_STAN.pub.test-cluster",
        "sub_requests": b"_STAN.sub.test-cluster",
        "unsub_requests": b"_STAN.unsub.test-cluster",
        "close_requests": b"_STAN.close.test-cluster",
        "sub_close_requests": b"_STAN.subclose.test-cluster",
        "protocol": 1,
    }
    pings = {"ping_requests": b"_STAN.discover.test-cluster.pings", "ping_interval": 5, "ping_max_out": 88}
    assert Client(nats, "t1-new").subjects == protocol.ConnectResponse(**names, **pings)
    old = Client(nats, "t1-old", protocol=0, conn_id=b"")
    assert old.subjects == protocol.ConnectResponse(**names)
    assert old.publish(b"t1", conn_id=b"").error == b""
    # The successful answers are empty payloads.
    assert old.close() == ""
    request = store.CloseRequest(client_id=b"t1-new").SerializeToString()
    assert nats.request(b"_STAN.close.test-cluster", request) == b""
    assert protocol.CloseResponse.FromString(nats.request(b"_STAN.close.test-cluster", request)).error == (
        b"stan: unknown clientID"
    )
    assert protocol.CloseResponse.FromString(nats.request(b"_STAN.close.test-cluster", b"\xff")).error == (
        b"stan: invalid close request"
    )


def test_2_client_ids(nats: Talker) -> None:
    for bad in ("a.b", "a b", "", "a/b", "é", "a\n"):
        with pytest.raises(RefusedError) as caught:
            Client(nats, bad)
        assert str(caught.value) == "stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
    Client(nats, "a" * 300)
    with pytest.raises(RefusedError, match=r"^stan: invalid connection request$"):
        Client(nats, "t2", heartbeat_inbox=b"")
    for garbage in (b"", b"\xff\xff\xff"):
        answer = protocol.ConnectResponse.FromString(nats.request(b"_STAN.discover.test-cluster", garbage))
        assert answer == protocol.ConnectResponse(error=b"stan: invalid connection request")


def test_3_channel_names(nats: Talker) -> None:
    client = Client(nats, "t3")
    for bad in (b"foo.", b".foo", b"foo..bar", b"foo.*", b"foo.>", b"foo>", b"foo/bar", b""):
        ack = client.publish(bad, guid=b"g")
        assert (ack.guid, ack.error) == (b"g", b"stan: invalid publish request"), bad
        with pytest.raises(RefusedError, match=r"^stan: invalid subject$"):
            client.subscribe(bad)
    for good in (b"foo bar", b"f\\oo", "ä".encode()):
        client.store(good, b"x")
        assert client.subscribe(good).wait(1)[0].channel == good
    assert client.publish(b"T3-Case").error == b""
    assert client.publish(b"t3-case").error == (
        b'rejecting channel "t3-case" because channel "T3-Case" alreay exists (different cases not allowed)'
    )
    # The name in the message counts, not the NATS subject.
    message = client.publication(b"t3-real", b"x").SerializeToString()
    assert protocol.PubAck.FromString(nats.request(b"_STAN.pub.test-cluster.t3.other", message)).error == b""
    assert client.subscribe(b"t3-real").wait(1)[0].data == b"x"
    assert client.subscribe(b"t3.other").settled(0) == []


def test_4_payloads_that_are_no_messages(nats: Talker) -> None:
    client = Client(nats, "t4")
    subject = client.subjects.pub_prefix + b".t4"
    for garbage in (b"", b"\xff\xff\xff"):
        ack = protocol.PubAck.FromString(nats.request(subject, garbage))
        assert ack == protocol.PubAck(error=b"stan: invalid publish request")
    control = protocol.CtrlMsg(msg_type=protocol.CtrlMsg.PARTITIONING, server_id=b"x", data=b"\xff\xff")
    box = nats.listen(b"t4-acks")
    nats.publish(subject, control.SerializeToString(), b"t4-acks")
    assert client.publish(b"t4", guid=b"").error == b"stan: invalid publish request"
    assert not box.got


def test_4_who_may_publish(nats: Talker) -> None:
    client = Client(nats, "t4-who")
    assert client.publish(b"t4", client_id=b"somebody").error == b""
    assert client.publish(b"t4", client_id=b"").error == b""
    assert client.publish(b"t4", conn_id=b"").error == b""
    for wrong in ({"conn_id": b"wrong"}, {"conn_id": b"", "client_id": b"nobody"}):
        assert client.publish(b"t4", **wrong).error == b"stan: invalid publish request"


def test_5_a_client_id_that_is_taken(talk: Callable[[], Talker]) -> None:
    one, two = talk(), talk()
    first = Client(one, "t5")
    taken = []
    for _ in range(5):
        began = time.monotonic()
        with pytest.raises(RefusedError, match=r"^stan: clientID already registered$"):
            Client(two, "t5")
        taken.append(time.monotonic() - began)
    assert min(taken) < 0.25
    # Who is silent has half a second; whoever else comes meanwhile is refused at once.
    first.answering = False
    subscription = first.subscribe(b"t5", start_position=0)
    request = store.ConnectRequest(client_id=b"t5", heartbeat_inbox=b"t5-inbox", conn_id=b"new", protocol=1)
    answers = one.listen(b"t5-answer")
    one.flush()
    began = time.monotonic()
    two.publish(b"_STAN.discover.test-cluster", request.SerializeToString(), b"t5-answer")
    for _ in range(3):
        two.publish(b"_STAN.discover.test-cluster", request.SerializeToString(), b"t5-answer")
    came = answers.wait(4)
    errors = [protocol.ConnectResponse.FromString(got.data).error for got in came]
    assert errors == [b"stan: clientID already registered"] * 3 + [b""]
    assert came[-1].at - began >= 0.5
    # The old instance is no longer known.
    assert first.publish(b"t5").error == b"stan: invalid publish request"
    assert first.ping() == "client has been replaced or is no longer registered"
    assert subscription.unsubscribe() == "stan: invalid subscription"
    # Who has gone is replaced at once: nobody listens to t5-inbox.
    taken = []
    for _ in range(5):
        began = time.monotonic()
        Client(two, "t5", heartbeat="gone")
        taken.append(time.monotonic() - began)
    assert min(taken) < 0.25


def test_6_heartbeats(tmp_path: Path) -> None:
    words = ("-hbi", "600ms", "-hbt", "300ms", "-hbf", 2)
    with Broker(tmp_path, *words, http=True) as broker, Talker(broker.port) as nats:
        silent = Client(nats, "silent", heartbeat="silent")
        gone = Client(nats, "gone", heartbeat="gone")
        asked = gone.asked_at
        alive = Client(nats, "alive")
        removed: dict[str, float] = {}
        while len(removed) < 2:
            # What is said after a moment cannot have been so before it.
            there = {each["id"] for each in broker.figures("streaming/clientsz")["clients"]}
            for name in {"silent", "gone"} - there - set(removed):
                removed[name] = time.monotonic()
            assert time.monotonic() - asked < PATIENCE
            time.sleep(0.02)
        assert removed["gone"] - asked >= 1.8
        assert removed["silent"] - silent.asked_at >= 2.7
        assert removed["gone"] < removed["silent"]
        beats = [got.at - silent.asked_at for got in silent.heartbeats.got]
        assert len(beats) == 3
        assert all(at >= least for at, least in zip(beats, (0.6, 1.5, 2.4), strict=True))
        assert all(got.data == b"" for got in silent.heartbeats.got)
        assert alive.ping() == ""
        assert silent.ping() == "client has been replaced or is no longer registered"
        said = broker.said()
        assert "[ERR] STREAM: [Client:silent] Timed out on heartbeats" in said
        assert "[ERR] STREAM: [Client:gone] Timed out on heartbeats" in said
        assert "[Client:alive] Timed out" not in said


def test_6_a_ping_hurries_the_heartbeat(tmp_path: Path) -> None:
    with Broker(tmp_path, "-hbi", "1s", "-hbt", "300ms", "-hbf", "1000") as broker, Talker(broker.port) as nats:
        client = Client(nats, "sleepy", heartbeat="silent")
        for _ in range(3):
            before = len(client.heartbeats)
            client.heartbeats.wait(before + 1)
            time.sleep(0.5)
            # It has failed; between two heartbeats are 1.3 s.
            number = len(client.heartbeats)
            began = time.monotonic()
            assert client.ping() == ""
            client.heartbeats.wait(number + 1)
            if (waited := time.monotonic() - began) < 0.3:
                break
        assert waited < 0.3


def test_7_redelivery_of_what_is_in_flight(nats: Talker) -> None:
    client = Client(nats, "t7")
    began = time.monotonic()
    subscription = client.subscribe(b"t7", max_in_flight=2, ack_wait_in_secs=1)
    client.store(b"t7", b"a", b"b", b"c", b"d")
    got = subscription.wait(6)
    assert shape(got[:6]) == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]
    for n, message in enumerate(got[:6]):
        assert message.at - began >= n // 2 - EARLY
    subscription.ack(1)
    until(lambda: 3 in subscription.sequences)
    subscription.ack(2)
    subscription.ack(3)
    until(lambda: 4 in subscription.sequences)
    assert [message.sequence for message in subscription.messages if not message.redelivered] == [1, 2, 3, 4]
    # The payloads are what was published, with the time of the storage.
    assert [message.data for message in subscription.messages[:2]] == [b"a", b"b"]
    assert subscription.messages[0].timestamp == subscription.messages[2].timestamp


def test_8_each_message_has_a_time_of_its_own(nats: Talker) -> None:
    client = Client(nats, "t8")
    subscription = client.subscribe(b"t8", ack_wait_in_secs=1)
    published = []
    for n in range(4):
        published.append(time.monotonic())
        client.store(b"t8", b"%d" % n)
        time.sleep(0.2)
    got = subscription.wait(8)[:8]
    for sequence in range(1, 5):
        own = [message for message in got if message.sequence == sequence]
        for count, message in enumerate(own):
            assert message.count == count
            assert message.at - published[sequence - 1] >= count - EARLY
    # Deadlines move by the wait, whenever the timer ran: they keep their distance.
    assert [message.sequence for message in got if message.count == 1] == [1, 2, 3, 4]


def test_9_a_queue_of_silent_members(nats: Talker) -> None:
    client = Client(nats, "t9")
    options: dict[str, Any] = {"q_group": b"g", "max_in_flight": 2, "start_position": 0}
    members = [client.subscribe(b"t9", **options) for _ in range(3)]
    client.store(b"t9", *(b"%d" % n for n in range(1, 10)))
    until(lambda: sum(len(member.box) for member in members) == 6)
    assert [member.sequences for member in members] == [[1, 4], [2, 5], [3, 6]]
    members[1].ack(5)
    members[1].wait(3)
    assert members[1].sequences == [2, 5, 7]
    began = time.monotonic()
    assert members[0].unsubscribe() == ""
    until(lambda: sum(len(member.box) for member in members[1:]) == 7)
    again = [message for member in members[1:] for message in member.messages if message.redelivered]
    assert sorted(shape(again)) == [(1, 1), (4, 1)]
    assert all(message.at - began >= 0.1 - EARLY for message in again)
    assert members[0].sequences == [1, 4]


def test_10_a_durable_is_resumed_with_less_in_flight(nats: Talker) -> None:
    client = Client(nats, "t10")
    client.store(b"t10", *(b"%d" % n for n in range(1, 9)))
    first = client.subscribe(b"t10", durable_name=b"d", max_in_flight=5)
    first.wait(5)
    first.ack(1)
    assert [message.sequence for message in first.settled(6)] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(RefusedError, match=r"^stan: duplicate durable registration$"):
        client.subscribe(b"t10", durable_name=b"d")
    assert first.close() == ""
    second = client.subscribe(b"t10", durable_name=b"d", max_in_flight=2, start_position=0)
    assert shape(second.settled(5)) == [(2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
    # The old inbox is no longer heard.
    first.ack(2)
    for sequence in (2, 3, 4):
        second.ack(sequence)
    assert len(second.settled(5)) == 5
    second.ack(5)
    assert shape(second.settled(6))[5:] == [(7, 0)]
    assert second.unsubscribe() == ""


def test_11_a_message_that_the_limit_has_removed(shared: Broker, nats: Talker) -> None:
    client = Client(nats, "t11")
    began = time.monotonic()
    subscription = client.subscribe(b"five", max_in_flight=1, ack_wait_in_secs=2)
    client.store(b"five", *(b"%d" % n for n in range(1, 11)))
    got = subscription.wait(2)
    assert shape(got[:2]) == [(1, 0), (6, 0)]
    assert got[1].at - began >= 2 - EARLY
    channel = shared.figures("streaming/channelsz?channel=five")
    assert (channel["msgs"], channel["first_seq"], channel["last_seq"]) == (5, 6, 10)
    assert 'Reached limits for store "five" (msgs=6/5' in shared.said()


def test_12_a_channel_whose_messages_are_too_old(shared: Broker, nats: Talker) -> None:
    client = Client(nats, "t12")
    client.store(b"short.one", b"1", b"2", b"3")
    stored = time.monotonic()
    channel = shared.figures("streaming/channelsz?channel=short.one")
    if time.monotonic() - stored < 0.5:
        assert (channel["msgs"], channel["first_seq"], channel["last_seq"]) == (3, 1, 3)
    until(lambda: shared.figures("streaming/channelsz?channel=short.one")["msgs"] == 0)
    channel = shared.figures("streaming/channelsz?channel=short.one")
    assert (channel["bytes"], channel["first_seq"], channel["last_seq"]) == (0, 4, 3)
    ways: list[dict[str, int]] = [{"start_position": position} for position in (0, 1, 4)]
    ways += [{"start_position": 2, "start_time_delta": 3600 * 10**9}]
    ways += [{"start_position": 3, "start_sequence": sequence} for sequence in (1, 3, 4, 100)]
    subscriptions = [client.subscribe(b"short.one", **way) for way in ways]
    client.store(b"short.one", b"new")
    for subscription in subscriptions:
        assert [(message.sequence, message.data) for message in subscription.wait(1)] == [(4, b"new")]


def test_13_a_channel_that_nobody_uses(shared: Broker, nats: Talker) -> None:
    client = Client(nats, "t13")
    folder = shared.folder / "store"

    def gone(channel: bytes) -> bool:
        return not (folder / channel.decode()).exists()

    used = client.subscribe(b"idle.used")
    client.store(b"idle.used", b"1")
    offline = client.subscribe(b"idle.offline", durable_name=b"d")
    client.store(b"idle.offline", b"1")
    offline.wait(1)
    assert offline.close() == ""
    began = time.monotonic()
    client.store(b"idle.alone", b"1", b"2")
    assert not gone(b"idle.alone") or time.monotonic() - began >= 1
    until(lambda: gone(b"idle.alone"))
    assert time.monotonic() - began >= 1
    until(lambda: gone(b"idle.offline"))
    assert not gone(b"idle.used")
    until(lambda: 'Channel "idle.alone" has been deleted' in shared.said())
    client.store(b"idle.alone", b"again")
    assert [message.sequence for message in client.subscribe(b"idle.alone").wait(1)] == [1]
    assert used.sequences == [1]


def test_14_killed_and_started_again(tmp_path: Path) -> None:
    with Broker(tmp_path, "-st", "FILE", "-dir", tmp_path / "store") as broker:
        nats = Talker(broker.port)
        client = Client(nats, "t14")
        subscription = client.subscribe(b"t14", max_in_flight=1, ack_wait_in_secs=1)
        began = time.monotonic()
        client.store(b"t14", b"1", b"2", b"3")
        first = subscription.wait(1)[0]
        broker.kill()
        broker.start()
        nats.close()
        with Talker(broker.port) as nats:
            # The client goes on with the subjects that it was told, and its subscriptions of NATS.
            client.move(nats)
            subscription.box = nats.listen(subscription.inbox)
            nats.flush()
            assert client.ping() == ""
            assert client.publish(b"t14", b"4").error == b""
            again = subscription.wait(1)
            assert (again[0].sequence, again[0].data, again[0].timestamp) == (1, b"1", first.timestamp)
            # An earlier one may have gone nowhere.
            assert again[0].redelivered
            assert again[0].at - began >= 1 - EARLY
            subscription.ack(1)
            until(lambda: subscription.sequences[-1] == 2)
            with pytest.raises(RefusedError, match="already registered"):
                Client(nats, "t14")
            assert client.close() == ""


def test_14_a_memory_store_forgets(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with Talker(broker.port) as nats:
            client = Client(nats, "t14")
        broker.kill()
        broker.start()
        with Talker(broker.port) as nats:
            client.nats = nats
            assert client.ping() == "client has been replaced or is no longer registered"
            assert client.publish(b"t14").error == b"stan: invalid publish request"


def test_15_who_may_unsubscribe(nats: Talker) -> None:
    client, other = Client(nats, "t15"), Client(nats, "t15-other")
    subscription = client.subscribe(b"t15")
    assert subscription.unsubscribe(client_id=other.id) == "stan: unknown clientID"
    assert subscription.unsubscribe(client_id=b"nobody") == "stan: unknown clientID"
    assert subscription.unsubscribe(subject=b"t15-nowhere") == "stan: unknown channel"
    assert subscription.unsubscribe(inbox=subscription.inbox) == ""
    assert subscription.unsubscribe() == "stan: invalid subscription"
    assert subscription.close() == "stan: invalid subscription"
    for subject in (client.subjects.unsub_requests, client.subjects.sub_close_requests):
        answer = protocol.SubscriptionResponse.FromString(nats.request(subject, b"\xff"))
        assert answer.error == b"stan: invalid unsubscribe request"


def test_16_acks(nats: Talker) -> None:
    client = Client(nats, "t16")
    client.store(b"t16", b"1", b"2", b"3")
    client.store(b"t16-other", b"1")
    subscription = client.subscribe(b"t16", max_in_flight=1)
    subscription.wait(1)
    subscription.ack(1, b"t16-other")
    subscription.ack(1, b"t16-nowhere")
    subscription.ack(2)
    subscription.ack(0)
    nats.publish(subscription.ack_inbox, b"\xff\xff")
    nats.publish(subscription.ack_inbox)
    assert len(subscription.settled(1)) == 1
    subscription.ack(1)
    assert [message.sequence for message in subscription.settled(2)] == [1, 2]
    # Anybody may acknowledge who knows the inbox; once is enough.
    subscription.ack(2)
    subscription.ack(2)
    assert [message.sequence for message in subscription.settled(3)] == [1, 2, 3]


def test_17_a_store_of_an_old_server(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    directory = golden_copy("v038")
    with Broker(tmp_path, "-st", "FILE", "-dir", directory) as broker, Talker(broker.port) as nats:
        client = Client(nats, "t17")
        names = [
            bytes(getattr(client.subjects, field))
            for field in ("pub_prefix", "sub_requests", "unsub_requests", "close_requests", "sub_close_requests")
        ]
        for name, kind in zip(names, (b"pub", b"sub", b"unsub", b"close", b"subclose"), strict=True):
            head, _, word = name.rpartition(b".")
            assert head == b"_STAN." + kind
            assert word.isalnum()
            assert len(word) >= 20
        assert len({name.rpartition(b".")[2] for name in names}) == 5
        client.store(b"new", b"1")
        assert client.subscribe(b"new").wait(1)[0].data == b"1"
        with pytest.raises(NobodyAnsweredError):
            nats.request(b"_STAN.sub.test-cluster")


# More of what was run (sections 5, 11, 12, 13, 16-20).


def test_another_server_is_discovered(shared: Broker, tmp_path: Path) -> None:
    second = Broker(tmp_path, "-ns", shared.url)
    with pytest.raises(RuntimeError, match='discovered another streaming server with cluster ID "test-cluster"'):
        second.start()
    third = Broker(tmp_path / "third", "-ns", shared.url, "-cid", "another")
    with third:
        assert third.stop() == 0


def test_delivery_comes_before_the_ack(nats: Talker) -> None:
    client = Client(nats, "order")
    subscription = client.subscribe(b"order")
    log: list[str] = []
    subscription.box.on_message = lambda _: log.append("message")
    client.acks.on_message = lambda _: log.append("ack")
    message = client.publication(b"order", b"x").SerializeToString()
    nats.publish(client.subjects.pub_prefix + b".order", message, client.ack_inbox)
    client.acks.wait(1)
    assert log == ["message", "ack"]


def test_close_comes_after_all_publishes(talk: Callable[[], Talker]) -> None:
    nats = talk()
    client = Client(nats, "hasty")
    subject = client.subjects.pub_prefix + b".hasty"
    burst = b""
    for n in range(200):
        message = client.publication(b"hasty", b"%d" % n, guid=b"%d" % n).SerializeToString()
        burst += b"PUB %s %s %d\r\n%s\r\n" % (subject, client.ack_inbox, len(message), message)
    nats.send(burst)
    assert client.close() == ""
    acks = [protocol.PubAck.FromString(got.data) for got in client.acks.wait(200)]
    assert [(ack.guid, ack.error) for ack in acks] == [(b"%d" % n, b"") for n in range(200)]
    assert len(Client(talk(), "reader").subscribe(b"hasty").wait(200)) == 200


def test_errors_of_a_subscription_in_their_order(nats: Talker) -> None:
    client = Client(nats, "strict")
    wrong: dict[str, Any] = {
        "client_id": b"", "ack_wait_in_secs": 0, "max_in_flight": 0, "start_position": 5, "subject": b"a.*",
    }  # fmt: skip
    texts = [
        "stan: clientID missing",
        "stan: invalid ack wait time, should be >= 1s",
        "stan: invalid MaxInflight, should be >= 1",
        "stan: invalid start position",
        "stan: invalid subject",
    ]
    for key, text in zip(list(wrong), texts, strict=True):
        fields = {name: value for name, value in wrong.items() if name != "subject"}
        with pytest.raises(RefusedError) as caught:
            client.subscribe(wrong.get("subject", b"strict"), **fields)
        assert str(caught.value) == text
        del wrong[key]
    with pytest.raises(RefusedError, match=r"^stan: unknown clientID$"):
        client.subscribe(b"strict", client_id=b"nobody")
    with pytest.raises(RefusedError) as caught:
        client.subscribe(b"strict", q_group=b"g", durable_name=b"a:b")
    assert str(caught.value) == "stan: durable name of a durable queue subscriber can't contain the character ':'"
    answer = protocol.SubscriptionResponse.FromString(nats.request(client.subjects.sub_requests, b"\xff"))
    assert answer.error == b"stan: invalid subscription request"


def test_positions_beyond_the_end(nats: Talker) -> None:
    client = Client(nats, "beyond")
    client.store(b"beyond", *(b"%d" % n for n in range(1, 6)))
    subscription = client.subscribe(b"beyond", start_position=3, start_sequence=100)
    client.store(b"beyond", b"6")
    assert [message.sequence for message in subscription.settled(1)] == [6]


def test_a_durable_group_outlives_its_members(nats: Talker) -> None:
    client = Client(nats, "dq")
    options: dict[str, Any] = {"q_group": b"g", "durable_name": b"d", "max_in_flight": 10}
    client.store(b"dq", b"1", b"2", b"3")
    first = client.subscribe(b"dq", **options)
    first.wait(3)
    first.ack(1)
    assert client.close() == ""
    other = Client(nats, "dq-other")
    other.store(b"dq", b"4")
    second = other.subscribe(b"dq", **options, start_position=0)
    assert shape(second.settled(3)) == [(2, 1), (3, 1), (4, 0)]
    assert second.unsubscribe() == ""
    third = other.subscribe(b"dq", **options)
    assert shape(third.settled(4)) == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_a_late_ack_counts_for_whoever_has_the_message(nats: Talker) -> None:
    client = Client(nats, "late")
    one, two = (client.subscribe(b"late", q_group=b"g", ack_wait_in_secs=1) for _ in range(2))
    client.store(b"late", b"1")
    until(lambda: len(two.box) == 1)
    assert shape(one.messages) == [(1, 0)]
    assert two.messages[0].count == 1
    one.ack(1)
    before = len(one.settled(1)) + len(two.settled(1))
    time.sleep(1.2)
    assert len(one.settled(1)) + len(two.settled(1)) == before
