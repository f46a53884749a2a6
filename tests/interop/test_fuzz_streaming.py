"""Garbage and odd requests on every streaming subject of a live broker: the right answer, or none, and no harm."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as store
from tests.brokers import Broker
from tests.interop.corpus.payloads import BROKEN
from tests.interop.rawclient import RawClient
from tests.interop.watching import Watch, without_extras

CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, SUB_CLOSE, CLOSE, PINGS = SUBJECTS = (
    *(b"_STAN.discover.test-cluster", b"_STAN.pub.test-cluster.foo", b"_STAN.sub.test-cluster"),
    *(b"_STAN.unsub.test-cluster", b"_STAN.subclose.test-cluster", b"_STAN.close.test-cluster"),
    b"_STAN.discover.test-cluster.pings",
)
#: What is asked for on a subject, what the answer is, and what it says if the payload does not decode.
KINDS: dict[bytes, tuple[type[Message], type[Message], str]] = {
    CONNECT: (store.ConnectRequest, protocol.ConnectResponse, "stan: invalid connection request"),
    PUBLISH: (protocol.PubMsg, protocol.PubAck, "stan: invalid publish request"),
    SUBSCRIBE: (store.SubscriptionRequest, protocol.SubscriptionResponse, "stan: invalid subscription request"),
    UNSUBSCRIBE: (store.UnsubscribeRequest, protocol.SubscriptionResponse, "stan: invalid unsubscribe request"),
    SUB_CLOSE: (store.UnsubscribeRequest, protocol.SubscriptionResponse, "stan: invalid unsubscribe request"),
    CLOSE: (store.CloseRequest, protocol.CloseResponse, "stan: invalid close request"),
    PINGS: (protocol.Ping, protocol.PingResponse, ""),
}
CONTROL = b"\x08\x03\x12\x02id\x1a\x04data"


class Station:
    """A broker, its watch, and a client that asks for odd things.

    Attributes:
        ack_inbox: Of a subscription of the client, to a channel with some messages.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.client = RawClient(watch.broker.port, "odd")
        self.client.subscribe(b"answers.>")
        for _ in range(3):
            self.client.stored(b"mine", b"x")
        self.ack_inbox = self.client.listen(b"mine", self.client.inbox + b".mine")
        self._numbers = itertools.count()

    def ask(self, subject: bytes, payload: bytes, *, seconds: float = 0, twice: bool = False) -> list[bytes]:
        """Sends a request and returns all answers that come; later ones are waited for if there is none.

        Args:
            subject: Where to.
            payload: The request.
            seconds: How long to wait for an answer that does not come at once.
            twice: Send it again, without asking for an answer.
        """
        reply = b"answers.%d" % next(self._numbers)
        self.client.publish(subject, payload, reply)
        if twice:
            self.client.publish(subject, payload)
        got: list[bytes] = []
        # Requests are answered in the read that brings them, publishes at its end; a connect may take a probe.
        for _ in range(2 if seconds == 0 else int(seconds / 0.1)):
            self.client.stored(b"settled")
            got += [data for to, _, data in self.client.skipped if to == reply]
            self.client.skipped.clear()
            if got or seconds == 0:
                break
            got += [data for to, _, data in self.client.gather(0.1) if to == reply]
        return got


@pytest.fixture(scope="module", params=["as installed", pytest.param("without extras", marks=pytest.mark.slow)])
def station(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    folder: Path = tmp_path_factory.mktemp("fuzzed")
    environment = without_extras(folder) if request.param == "without extras" else {}
    # Any subject does, so that odd messages get as far as they can.
    words = ["-st", "FILE", "-dir", folder / "store", "--file_sync=false", "-mc", 0, "-any_publish_subject"]
    # The client answers no heartbeat while its process runs other tests.
    words += ["-hbi", "1h"]
    with (
        Broker(folder, *words, environment=environment) as broker,
        Watch(broker) as watch,
    ):
        found = Station(watch)
        yield found
        found.client.close()


@pytest.mark.parametrize("subject", SUBJECTS, ids=bytes.decode)
def test_what_is_no_message(station: Station, subject: bytes) -> None:
    for name, payload in BROKEN.items():
        _, answer, error = KINDS[subject]
        answers = station.ask(subject, payload, twice=True)
        if not error:
            assert answers == [], name
            continue
        assert len(answers) == 1, name
        assert answer.FromString(answers[0]).error == error.encode(), name  # type: ignore[attr-defined]
        station.watch.check((subject, name))


def test_garbage_does_not_keep_the_broker_busy(station: Station) -> None:
    """A megabyte that is not a message could take seconds to refuse, field by field, while all others wait."""
    process = station.watch.broker.process
    assert process is not None

    def used() -> float:
        words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    for subject in SUBJECTS:
        for payload in (b"\x78\x01" * 500_000 + b"\x7f", b"\x7b" * 1_000_000, b"\x0a\x00" * 500_000 + b"\x07"):
            station.ask(subject, payload)
    assert used() - before < 5, "twenty-one of them"


def test_garbage_as_acknowledgements(station: Station) -> None:
    for name, payload in {**BROKEN, "nothing": b"", "control": CONTROL}.items():
        assert station.ask(station.ack_inbox, payload) == []
        station.watch.check(name)
    for channel, sequence in ((b"mine", 0), (b"mine", 2**64 - 1), (b"mine", 99), (b"other", 1), (b"", 1), (b"\xff", 1)):
        ack = protocol.Ack(subject=channel, sequence=sequence).SerializeToString()
        assert station.ask(station.ack_inbox, ack) == []
        station.watch.check((channel, sequence))


def test_empty_payloads_and_control_messages(station: Station) -> None:
    for payload in (b"", b"\xff\xff\xff"):
        [answer] = station.ask(PUBLISH, payload)
        assert protocol.PubAck.FromString(answer) == protocol.PubAck(error=b"stan: invalid publish request")
    assert station.ask(PUBLISH, CONTROL) == []
    for subject, error in (
        (CONNECT, b"stan: invalid connection request"),
        (SUBSCRIBE, b"stan: clientID missing"),
        (UNSUBSCRIBE, b"stan: unknown channel"),
        (SUB_CLOSE, b"stan: unknown channel"),
        (CLOSE, b"stan: unknown clientID"),
    ):
        [answer] = station.ask(subject, b"")
        assert KINDS[subject][1].FromString(answer).error == error  # type: ignore[attr-defined]
    assert station.ask(PINGS, b"") == []
    [answer] = station.ask(PINGS, protocol.Ping(conn_id=b"x").SerializeToString())
    replaced = b"client has been replaced or is no longer registered"
    assert protocol.PingResponse.FromString(answer).error == replaced
    station.watch.check()


def test_names_of_channels(station: Station) -> None:
    """The bytes of a name are free within the rules; a file system may have others, which is no harm either."""

    def publish(channel: bytes) -> bytes:
        message = protocol.PubMsg(client_id=b"odd", guid=b"g", subject=channel, data=b"x")
        [answer] = station.ask(PUBLISH, message.SerializeToString())
        ack = protocol.PubAck.FromString(answer)
        assert ack.guid == b"g"
        return bytes(ack.error)

    for bad in (
        b"foo.",
        b".foo",
        b"foo..bar",
        b"foo.*",
        b"foo.>",
        b"foo>",
        b"foo/bar",
        b"",
        b".",
        b"..",
        b"/",
        b"../x",
    ):
        assert publish(bad) == b"stan: invalid publish request", bad
    for good in (b"foo bar", b"f\\oo", "été".encode(), b"tab\there", b"line\nbreak", b"\x01\x7f", b"x" * 200):
        assert publish(good) == b"", good
    # What the file system does not take is refused with its words; the names of the store's own files, too.
    for odd in (b"null\0byte", b"x" * 256, b"x" * 4096, b"server.dat", b"clients.dat"):
        error = publish(odd)
        assert error and not error.startswith(b"stan: "), (odd, error)
        station.watch.check(odd)
    for odd in (b"\xff\xfe", b"\xed\xa0\x80", b"a\xc3"):
        publish(odd)
        station.watch.check(odd)


def test_the_client_is_somebody_else(station: Station) -> None:
    subscription = store.SubscriptionRequest(
        client_id=b"odd", subject=b"mine", inbox=b"in", max_in_flight=1, ack_wait_in_secs=30
    )
    for change, error in (
        ({"client_id": b"stranger"}, b"stan: unknown clientID"),
        ({"client_id": b""}, b"stan: clientID missing"),
        ({"ack_wait_in_secs": 0}, b"stan: invalid ack wait time, should be >= 1s"),
        ({"ack_wait_in_secs": -(2**31)}, b"stan: invalid ack wait time, should be >= 1s"),
        ({"max_in_flight": 0}, b"stan: invalid MaxInflight, should be >= 1"),
        ({"max_in_flight": -1}, b"stan: invalid MaxInflight, should be >= 1"),
        ({"start_position": 5}, b"stan: invalid start position"),
        ({"start_position": -1}, b"stan: invalid start position"),
        ({"subject": b"mine.*"}, b"stan: invalid subject"),
        ({"subject": b""}, b"stan: invalid subject"),
        (
            {"q_group": b"g", "durable_name": b"a:b"},
            b"stan: durable name of a durable queue subscriber can't contain the character ':'",
        ),
    ):
        wanted = store.SubscriptionRequest()
        wanted.CopyFrom(subscription)
        for name, value in change.items():
            setattr(wanted, name, value)
        [answer] = station.ask(SUBSCRIBE, wanted.SerializeToString())
        assert protocol.SubscriptionResponse.FromString(answer).error == error
    for subject in (UNSUBSCRIBE, SUB_CLOSE):
        for owner, channel, inbox, error in (
            (b"stranger", b"mine", station.ack_inbox, b"stan: unknown clientID"),
            (station.watch.client.client_id, b"mine", station.ack_inbox, b"stan: unknown clientID"),
            (b"odd", b"mine", b"x", b"stan: invalid subscription"),
            (b"odd", b"not.there", station.ack_inbox, b"stan: unknown channel"),
        ):
            wrong = store.UnsubscribeRequest(client_id=owner, subject=channel, inbox=inbox)
            [answer] = station.ask(subject, wrong.SerializeToString())
            assert protocol.SubscriptionResponse.FromString(answer).error == error
    for identifier in (b"a.b", b"a b", b"", b"a/b", "é".encode(), b"a\n", b"\xff"):
        wanted = store.ConnectRequest(client_id=identifier, heartbeat_inbox=b"hb")
        [answer] = station.ask(CONNECT, wanted.SerializeToString())
        assert protocol.ConnectResponse.FromString(answer).error.startswith(b"stan: invalid clientID: only")
    station.watch.check()


def test_huge_numbers_and_odd_inboxes(station: Station) -> None:
    """What is valid, though nobody means it: taken, and no harm."""
    numbers = (1, 2**31 - 1)
    for most, wait, position in itertools.product(numbers, numbers, range(5)):
        for inbox in (b"", b"a..b", b">", b"x.*", b"\xff", b"with blank", b"in\r\nPUB a 0\r\n", b"i" * 5000, PUBLISH):
            wanted = store.SubscriptionRequest(
                client_id=b"odd",
                subject=b"mine",
                inbox=inbox,
                max_in_flight=most,
                ack_wait_in_secs=wait,
                start_position=position,
                start_sequence=2**64 - 1,
                start_time_delta=(2**63 - 1) * (-1) ** (position % 2),
            )
            [answer] = station.ask(SUBSCRIBE, wanted.SerializeToString())
            response = protocol.SubscriptionResponse.FromString(answer)
            assert not response.error
            ended = store.UnsubscribeRequest(client_id=b"odd", subject=b"mine", inbox=response.ack_inbox)
            assert station.ask(UNSUBSCRIBE, ended.SerializeToString()) == [b""]
    for inbox in (b"a..b", b">", b"\xff", b"with blank", b"h\r\nPUB a 0\r\n", b"h" * 5000, CONNECT, PUBLISH, PINGS):
        name = secrets.token_hex(8).encode()
        wanted = store.ConnectRequest(
            client_id=name, heartbeat_inbox=inbox, conn_id=b"\0\xff", protocol=-1, ping_interval=-(2**31)
        )
        [answer] = station.ask(CONNECT, wanted.SerializeToString())
        assert not protocol.ConnectResponse.FromString(answer).error
        # The second one of that name asks the first.
        again = station.ask(CONNECT, wanted.SerializeToString(), seconds=3)
        assert len(again) == 1
        assert station.ask(CLOSE, store.CloseRequest(client_id=name).SerializeToString()) == [b""]
    station.watch.check()


_TEXTS = st.one_of(
    st.sampled_from(
        [b"odd", b"mine", b"foo", b"g", b"", b"nobody", b"d:g", b"_INBOX.x", b"foo.*", b"\xff", b"a" * 300]
    ),
    st.binary(max_size=12),
)
_NUMBERS = st.one_of(st.sampled_from([0, 1, 2, 4, 5, 30, 2**31 - 1, -1, -(2**31)]), st.integers(-(2**31), 2**31 - 1))


@st.composite
def _requests(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A subject and a request for it, mostly with something changed in its bytes."""
    subject = draw(st.sampled_from(SUBJECTS))
    kind = KINDS[subject][0]
    message: Any = kind()
    for field in kind.DESCRIPTOR.fields:
        if draw(st.booleans()):
            number = field.cpp_type != field.CPPTYPE_STRING
            value = draw(_NUMBERS if number else _TEXTS)
            if field.name == "start_sequence":
                value = abs(value)
            setattr(message, field.name, value)
    data = bytearray(message.SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.integers(0, 3))
        if how == 0:
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=2))
        elif how == 1:
            del data[at:]
        elif how == 2:
            data[at:at] = draw(st.binary(max_size=4))
        else:
            data += data[at:]
    return subject, bytes(data)


def _decodes(kind: type[Message], payload: bytes) -> bool:
    try:
        gogo.decode(kind, payload)
    except gogo.DecodeError:
        return False
    return True


def _answered_as_the_rules_say(station: Station, asked: tuple[bytes, bytes]) -> None:
    subject, payload = asked
    kind, answer, error = KINDS[subject]
    if subject == CLOSE and _decodes(kind, payload):
        request = gogo.decode(store.CloseRequest, payload)
        if request.client_id == b"odd":
            return  # the client that asks is needed
    good = _decodes(kind, payload)
    expected = 1
    if (subject == PUBLISH and not good and _decodes(protocol.CtrlMsg, payload)) or (
        subject == PINGS and (not good or not payload)
    ):
        expected = 0
    # A client of that name may be there from before, and silent.
    seconds = 3 if subject == CONNECT and good and expected else 0
    answers = station.ask(subject, payload, seconds=seconds)
    assert len(answers) == expected, (subject, payload, answers)
    for each in answers:
        text = answer.FromString(each).error  # type: ignore[attr-defined]
        if not good:
            assert text == error.encode()
    station.watch.check(asked)


_LIVE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]


@settings(max_examples=250, deadline=None, suppress_health_check=_LIVE)
@given(_requests())
def test_requests(station: Station, asked: tuple[bytes, bytes]) -> None:
    _answered_as_the_rules_say(station, asked)


@pytest.mark.slow
@settings(max_examples=4000, deadline=None, suppress_health_check=_LIVE)
@given(_requests())
def test_many_requests(station: Station, asked: tuple[bytes, bytes]) -> None:
    _answered_as_the_rules_say(station, asked)
