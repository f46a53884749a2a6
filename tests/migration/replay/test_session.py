"""The publishing side of a streaming client, without a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.errors import StantoolsError
from stantools.format.proto import protocol_pb2 as pb
from stantools.format.proto import store_pb2
from stantools.migration.replay.streaming import ReplaySession
from stantools.streaming.streaming_protocol import Acked, Send, SessionState

ANSWER = {
    "pub_prefix": b"_STAN.pub.c",
    "sub_requests": b"_STAN.sub.c",
    "unsub_requests": b"_STAN.unsub.c",
    "close_requests": b"_STAN.close.c",
    "sub_close_requests": b"_STAN.subclose.c",
    "ping_requests": b"_STAN.discover.c.pings",
    "ping_interval": 5,
    "ping_max_out": 2,
    "protocol": 1,
}


def new_session() -> ReplaySession:
    return ReplaySession("c", "me", "me-conn", "_INBOX.hb", ping_interval=5, ping_max_out=2)


def open_session(**answer: object) -> ReplaySession:
    session = new_session()
    session.connect()
    session.connect_answered(pb.ConnectResponse(**(ANSWER | answer)).SerializeToString(), 100.0)
    return session


def test_the_connect_request() -> None:
    session = new_session()
    sent = session.connect()
    assert sent.subject == "_STAN.discover.c"
    request = store_pb2.ConnectRequest.FromString(sent.payload)
    assert request == store_pb2.ConnectRequest(
        client_id=b"me",
        heartbeat_inbox=b"_INBOX.hb",
        protocol=1,
        conn_id=b"me-conn",
        ping_interval=5,
        ping_max_out=2,
    )
    assert session.state is SessionState.CONNECTING


def test_another_discover_prefix() -> None:
    assert ReplaySession("c", "me", "u", "i", discover_prefix="x.y").connect().subject == "x.y.c"


def test_messages_are_as_in_the_specification() -> None:
    """Section 2, wire samples: guid `g` there is `me-conn.7` here."""
    session = open_session()
    assert session.state is SessionState.OPEN
    sent = session.publish(7, b"foo", b"", b"hello")
    assert sent.subject == "_STAN.pub.c.foo"
    sample = bytes.fromhex("0a026d651201671a03666f6f2a0568656c6c6f32076d652d636f6e6e")
    assert pb.PubMsg.FromString(sample).guid == b"g"
    assert sent.payload == sample.replace(b"\x12\x01g", b"\x12\x09me-conn.7")
    assert pb.PubMsg.FromString(session.publish(8, b"foo", b"re.ply", b"").payload).reply == b"re.ply"


def test_acks() -> None:
    session = open_session()
    assert bytes.fromhex("0a0167") == pb.PubAck(guid=b"g").SerializeToString()
    assert session.ack(pb.PubAck(guid=b"me-conn.7").SerializeToString()) == Acked(7, "")
    assert session.ack(pb.PubAck(guid=b"me-conn.8", error=b"too many channels").SerializeToString()) == Acked(
        8, "too many channels"
    )
    for strange in (b"g", b"other.7", b"me-conn.x", b"me-conn7", b"me-conn.-7"):
        assert session.ack(pb.PubAck(guid=strange).SerializeToString()) is None
    with pytest.raises(StantoolsError, match="invalid publish request"):
        session.ack(pb.PubAck(error=b"stan: invalid publish request").SerializeToString())
    with pytest.raises(StantoolsError, match="cannot be read"):
        session.ack(b"\xff\xff\xff")


def test_pings_find_out_that_the_client_is_no_longer_registered() -> None:
    session = open_session()
    assert session.tick(104.9) is None
    assert session.tick(105.0) == Send("_STAN.discover.c.pings", pb.Ping(conn_id=b"me-conn").SerializeToString())
    assert session.tick(105.1) is None
    session.ping_answered(b"")
    assert session.state is SessionState.OPEN
    session.ping_answered(
        pb.PingResponse(error=b"client has been replaced or is no longer registered").SerializeToString()
    )
    assert session.state is SessionState.LOST
    assert "replaced" in session.why_lost
    assert session.tick(200.0) is None


def test_pings_that_stay_without_an_answer() -> None:
    session = open_session()
    assert session.tick(105.0)
    assert session.tick(110.0)
    session.ping_answered(b"")
    assert session.tick(115.0)
    assert session.tick(120.0)
    assert session.tick(125.0) is None
    assert session.state is SessionState.LOST
    assert "2 pings" in session.why_lost


def test_an_old_server_knows_no_pings() -> None:
    session = open_session(ping_requests=b"", ping_interval=0, ping_max_out=0, protocol=0)
    assert session.tick(10**9) is None
    assert session.state is SessionState.OPEN


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (pb.ConnectResponse(error=b"stan: clientID already registered").SerializeToString(), "already registered"),
        (b"", "not a streaming server"),
        (b"\xff", "cannot be read"),
        (pb.ConnectResponse(pub_prefix=b"x").SerializeToString(), "not a streaming server"),
    ],
)
def test_a_connect_that_fails(answer: bytes, says: str) -> None:
    session = new_session()
    session.connect()
    with pytest.raises(StantoolsError, match=says):
        session.connect_answered(answer, 0.0)
    assert session.state is SessionState.CLOSED


def test_closing() -> None:
    session = open_session()
    assert session.close() == Send("_STAN.close.c", store_pb2.CloseRequest(client_id=b"me").SerializeToString())
    assert session.close_answered(b"") == ""
    assert session.state is SessionState.CLOSED
    session = open_session()
    session.close()
    answer = pb.CloseResponse(error=b"stan: unknown clientID").SerializeToString()
    assert session.close_answered(answer) == "stan: unknown clientID"


def test_nothing_is_published_but_in_an_open_session() -> None:
    with pytest.raises(RuntimeError, match="new"):
        new_session().publish(1, b"a", b"", b"")
    session = open_session()
    session.close()
    with pytest.raises(RuntimeError, match="closing"):
        session.publish(1, b"a", b"", b"")


@given(st.binary(max_size=60))
def test_no_answer_does_harm(payload: bytes) -> None:
    for use in (
        lambda: new_session_connecting().connect_answered(payload, 0.0),
        lambda: open_session().ack(payload),
        lambda: open_session().ping_answered(payload),
        lambda: closing_session().close_answered(payload),
    ):
        try:
            use()
        except StantoolsError as error:
            assert error.message


def new_session_connecting() -> ReplaySession:
    session = new_session()
    session.connect()
    return session


def closing_session() -> ReplaySession:
    session = open_session()
    session.close()
    return session
