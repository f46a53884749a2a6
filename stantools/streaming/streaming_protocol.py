"""A client's session with a streaming server as a state machine: bytes and a clock in, messages to send out.

    NEW --connect()--> CONNECTING --connect_answered()--> OPEN --close()--> CLOSING --close_answered()--> CLOSED
                            |                              |
                            +--(refused)--> CLOSED         +--(unknown to the server, or pings unanswered)--> LOST

Facts: streaming-protocol.md sections 2, 4, 6 to 9 and 11. In OPEN, any number of messages may be outstanding; each
ack names the guid of one, in any order. The server sends heartbeats, which must be answered, and the client sends
pings (protocol 1) to detect that it is no longer registered. A session outlives its connection: it continues after a
reconnect, unless a ping is answered with an error. Subscriptions are handled by `subscribing`; the session knows the
subjects of their requests.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import ClassVar

from google.protobuf.message import DecodeError

from stantools.errors import StantoolsError
from stantools.format.proto import protocol_pb2 as pb
from stantools.format.proto import store_pb2
from stantools.streaming.errors import StreamingError

#: the servers' default
DISCOVER_PREFIX = "_STAN.discover"
_PROTOCOL = 1
_NO_SUBJECT = re.compile(rb"[\x00-\x20\x7f*>]")


class SessionState(enum.Enum):
    """States of a session; see the module."""

    NEW = "new"
    CONNECTING = "connecting"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Send:
    subject: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Acked:
    """The server's answer to a message."""

    number: int  #: the number under which it was published
    error: str  #: reason why it was not stored, empty if it was


def shown(name: bytes) -> str:
    """Decodes a name; bytes that are not UTF-8 survive a round trip."""
    return name.decode("utf-8", "surrogateescape")


def is_subject(name: bytes) -> bool:
    """Returns whether a name from a server can be sent as a subject, or the prefix of one."""
    return not _NO_SUBJECT.search(name) and shown(name).isprintable()


class StreamingProtocol:
    """One client of a streaming server. Not thread-safe.

    `unique` is a text that no other session has, for connection id and guids. The driver listens for heartbeats on
    `heartbeat_inbox`. `ping_interval` is in seconds; after `ping_max_out` consecutive unanswered pings the session
    is lost. `subscribe_subject`, `unsubscribe_subject` and `leave_subject` are known once it is open; the last one,
    to close a subscription, is empty for servers before 0.3.4.
    """

    #: class of the exceptions; users of the session may need another one
    failure: ClassVar[type[StantoolsError]] = StreamingError
    #: remedies for a client id that is taken, and for invalid answers
    remedies: ClassVar[dict[str, str]] = {
        "client": "choose another client id",
        "cluster": "check the cluster id and the discover prefix: another service may be listening there",
    }

    def __init__(
        self,
        cluster_id: str,
        client_id: str,
        unique: str,
        heartbeat_inbox: str,
        *,
        discover_prefix: str = DISCOVER_PREFIX,
        ping_interval: int = 5,
        ping_max_out: int = 12,
    ) -> None:
        self.state = SessionState.NEW
        self.cluster_id = cluster_id
        self.client_id = client_id
        self.why_lost = ""  #: reason why the session is lost
        self._discover = f"{discover_prefix}.{cluster_id}"
        self._client = client_id.encode()
        self._connection = unique.encode()
        self.heartbeat_inbox = heartbeat_inbox
        self._interval = ping_interval
        self._max_out = ping_max_out
        self._publish_prefix = self._close_subject = self._ping_subject = ""
        self.subscribe_subject = self.unsubscribe_subject = self.leave_subject = ""
        self._next_ping = 0.0
        self._pings_out = 0

    def connect(self) -> Send:
        """Starts the session; the answer to this request goes to `connect_answered`."""
        self._require(SessionState.NEW)
        self.state = SessionState.CONNECTING
        request = store_pb2.ConnectRequest(
            client_id=self._client,
            heartbeat_inbox=self.heartbeat_inbox.encode(),
            protocol=_PROTOCOL,
            conn_id=self._connection,
            ping_interval=self._interval,
            ping_max_out=self._max_out,
        )
        return Send(self._discover, request.SerializeToString())

    def connect_answered(self, payload: bytes, now: float) -> None:
        """Takes the answer to `connect`; `now` is in seconds of any steady clock, the same as for `tick`."""
        self._require(SessionState.CONNECTING)
        self.state = SessionState.CLOSED
        answer = pb.ConnectResponse()
        self._read(answer, payload, "the connect request")
        if answer.error:
            raise self.failure(
                f"the streaming server {self.cluster_id!r} refused the client {self.client_id!r}: "
                f"{shown(answer.error)}",
                self.remedies["client"] if b"clientID" in answer.error else "see the log of the server",
            )
        if not answer.pub_prefix or not answer.close_requests:
            raise self.failure(
                f"the service on {self._discover} is not a streaming server: it names no subject for publishing",
                self.remedies["cluster"],
            )
        names = (
            answer.pub_prefix,
            answer.close_requests,
            answer.sub_requests,
            answer.unsub_requests,
            answer.sub_close_requests,
            answer.ping_requests,
        )
        if invalid := [name for name in names if not is_subject(name)]:
            raise self.failure(
                f"the service on {self._discover} is not a streaming server: {shown(invalid[0])!r} is no subject",
                self.remedies["cluster"],
            )
        subjects = [shown(name) for name in names]
        # servers before 0.10.0 know no pings, the last subject
        self._publish_prefix, self._close_subject, self.subscribe_subject, self.unsubscribe_subject = subjects[:4]
        self.leave_subject, self._ping_subject = subjects[4:]
        self._next_ping = now + self._interval
        self.state = SessionState.OPEN

    def publish(self, number: int, channel: bytes, reply: bytes, data: bytes) -> Send:
        """Returns the message that publishes to a channel; its ack goes to `ack`, which returns `number`."""
        self._require(SessionState.OPEN)
        message = pb.PubMsg(
            client_id=self._client,
            guid=b"%b.%d" % (self._connection, number),
            subject=channel,
            reply=reply,
            data=data,
            conn_id=self._connection,
        )
        return Send(f"{self._publish_prefix}.{shown(channel)}", message.SerializeToString())

    def ack(self, payload: bytes) -> Acked | None:
        """Takes a message of the ack inbox; returns its result, None if it belongs to another session.

        Raises StreamingError if the server could not read a message, which it does not name then.
        """
        answer = pb.PubAck()
        self._read(answer, payload, "a message")
        unique, dot, number = answer.guid.rpartition(b".")
        if answer.guid and (unique != self._connection or not dot or not number.isdigit()):
            return None
        if not answer.guid:
            raise self.failure(
                f"the streaming server {self.cluster_id!r} could not read a message: {shown(answer.error)}",
                "this is a mistake in stantools or in the server: please report it",
            )
        return Acked(int(number), shown(answer.error))

    def heartbeat(self) -> bytes:
        """Returns the answer to a heartbeat, for its reply subject."""
        return b""

    def tick(self, now: float) -> Send | None:
        """Returns a ping if one is due; its answer goes to `ping_answered`. `now` as for `connect_answered`."""
        if self.state is not SessionState.OPEN or not self._ping_subject or now < self._next_ping:
            return None
        if self._pings_out >= self._max_out:
            self.lost(f"{self._pings_out} pings were not answered")
            return None
        self._pings_out += 1
        self._next_ping = now + self._interval
        return self.ping()

    def ping(self) -> Send | None:
        """Returns an extra ping; None if the server knows none. Its answer goes to `ping_answered`."""
        if self.state is not SessionState.OPEN or not self._ping_subject:
            return None
        return Send(self._ping_subject, pb.Ping(conn_id=self._connection).SerializeToString())

    def ping_answered(self, payload: bytes) -> None:
        """Takes the answer to a ping; an error in it ends the session."""
        answer = pb.PingResponse()
        self._read(answer, payload, "a ping")
        self._pings_out = 0
        if answer.error and self.state is SessionState.OPEN:
            self.lost(shown(answer.error))

    def close(self) -> Send:
        """Ends the session; the answer goes to `close_answered`."""
        self._require(SessionState.OPEN)
        self.state = SessionState.CLOSING
        return Send(self._close_subject, store_pb2.CloseRequest(client_id=self._client).SerializeToString())

    def close_answered(self, payload: bytes) -> str:
        """Takes the answer to `close`. Returns the server's error, empty if there is none."""
        self._require(SessionState.CLOSING)
        self.state = SessionState.CLOSED
        answer = pb.CloseResponse()
        self._read(answer, payload, "the close request")
        return shown(answer.error)

    def lost(self, reason: str) -> None:
        """Sets the state to LOST: the server does not know the session any more, for this reason."""
        self.state = SessionState.LOST
        self.why_lost = reason

    def _require(self, state: SessionState) -> None:
        if self.state is not state:
            raise RuntimeError(f"the session is {self.state.value}, not {state.value}")

    def _read(
        self,
        answer: pb.ConnectResponse | pb.PubAck | pb.PingResponse | pb.CloseResponse,
        payload: bytes,
        request: str,
    ) -> None:
        try:
            answer.ParseFromString(payload)
        except DecodeError as problem:
            raise self.failure(
                f"the answer of the streaming server {self.cluster_id!r} to {request} cannot be read",
                self.remedies["cluster"],
            ) from problem
