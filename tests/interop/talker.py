"""A streaming client that hides nothing: every message with the time when it came, every request as it is on the wire.

A thread reads; the times are those of its reads, so what has happened is never later than what is noted here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as store
from stantools.nats.subjects import valid_subject
from tests.waiting import PATIENCE, is_readable

_NUMBERS = itertools.count(1)


class NobodyAnsweredError(Exception):
    """The server says that nobody listens to a request's subject."""


@dataclass(frozen=True)
class Got:
    """A NATS message. `at` is `time.monotonic()`."""

    at: float
    subject: bytes
    reply: bytes
    header: bytes
    data: bytes


@dataclass(frozen=True)
class Message:
    """A streaming message as it was delivered."""

    at: float
    sequence: int
    data: bytes
    redelivered: bool
    count: int
    timestamp: int
    channel: bytes
    reply: bytes


class Mailbox:
    """What came for one subscription."""

    def __init__(self, changed: threading.Condition, problem: Callable[[], str]) -> None:
        self._changed = changed
        self._problem = problem
        self.got: list[Got] = []
        self.on_message: Callable[[Got], None] | None = None

    def __len__(self) -> int:
        return len(self.got)

    def wait(self, number: int, seconds: float = PATIENCE) -> list[Got]:
        """Waits for so many messages."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.got) >= number, seconds)
            if not enough:
                raise TimeoutError(f"{len(self.got)} of {number} messages came {self._problem()}: {self.got[-5:]}")
            return list(self.got)


class Talker:
    """A NATS client.

    Args:
        port: On loopback.
        tls: Upgrades the connection.
        options: More members of CONNECT.
    """

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None, **options: Any) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._boxes: dict[int, Mailbox] = {}
        self._sids = 0
        self._pongs = 0
        self.errors: list[str] = []
        self.closed = ""
        self.inbox = b"_INBOX.talker%d" % next(_NUMBERS)
        self.info: dict[str, Any] = json.loads(self._line()[5:])
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._socket.settimeout(None)
        described = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "name": "talker"}
        self.send(b"CONNECT %s\r\n" % json.dumps(described | options).encode())
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.flush()

    def send(self, data: bytes) -> None:
        with self._sending:
            self._socket.sendall(data)

    def listen(self, subject: bytes, queue: bytes = b"") -> Mailbox:
        self._sids += 1
        box = self._boxes[self._sids] = Mailbox(self._changed, lambda: f"({self.closed}{self.errors})")
        self.send(b"SUB %s %s %d\r\n" % (subject, queue, self._sids))
        return box

    def forget(self, box: Mailbox) -> None:
        """Unsubscribes on the level of NATS."""
        sid = next(sid for sid, each in self._boxes.items() if each is box)
        self.send(b"UNSUB %d\r\n" % sid)

    def publish(self, subject: bytes, data: bytes = b"", reply: bytes = b"") -> None:
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(data), data))

    def request(self, subject: bytes, data: bytes = b"", seconds: float = PATIENCE) -> bytes:
        """Returns the first answer.

        Raises:
            NobodyAnsweredError: Nobody listens.
            TimeoutError: No answer came.
        """
        reply = b"%s.%d" % (self.inbox, next(_NUMBERS))
        box = self.listen(reply)
        self.publish(subject, data, reply)
        try:
            answer = box.wait(1, seconds)[0]
        finally:
            self.forget(box)
        if answer.header.startswith(b"NATS/1.0 503"):
            raise NobodyAnsweredError(subject.decode())
        return answer.data

    def flush(self, seconds: float = PATIENCE) -> None:
        """Waits until the server has seen everything so far."""
        with self._changed:
            before = self._pongs
        self.send(b"PING\r\n")
        with self._changed:
            came = self._changed.wait_for(lambda: self._pongs > before or self.closed, seconds)
        if self.closed or not came:
            raise ConnectionError(self.closed or "no PONG came")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    # Reading.

    def _read(self) -> None:
        try:
            while True:
                self._one()
        except (OSError, ValueError) as problem:
            with self._changed:
                self.closed = str(problem) or "closed"
                self._changed.notify_all()

    def _one(self) -> None:
        line = self._line()
        words = line.split()
        operation = words[0].upper() if words else b""
        if operation == b"PING":
            self.send(b"PONG\r\n")
        elif operation == b"PONG":
            with self._changed:
                self._pongs += 1
                self._changed.notify_all()
        elif operation == b"-ERR":
            with self._changed:
                self.errors.append(line[5:].strip().strip(b"'").decode())
                self._changed.notify_all()
        elif operation in (b"MSG", b"HMSG"):
            headed = operation == b"HMSG"
            size = int(words[-1])
            body = self._bytes(size + 2)[:-2]
            header_size = int(words[-2]) if headed else 0
            reply = words[3] if len(words) == 5 + headed else b""
            got = Got(time.monotonic(), words[1], reply, body[:header_size], body[header_size:])
            box = self._boxes[int(words[2])]
            with self._changed:
                box.got.append(got)
                self._changed.notify_all()
            if box.on_message:
                box.on_message(got)

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._more()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _bytes(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _more(self) -> None:
        data = self._secure_part() if isinstance(self._socket, ssl.SSLSocket) else self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("closed by the server")
        self._buffer += data

    def _secure_part(self) -> bytes:
        """Reads over TLS. Two threads must not be in one TLS connection at a time, so nobody waits inside."""
        assert isinstance(self._socket, ssl.SSLSocket)
        while True:
            if not self._socket.pending():
                is_readable(self._socket.fileno(), PATIENCE)
            with self._sending:
                self._socket.setblocking(False)
                try:
                    return self._socket.recv(1 << 16)
                except ssl.SSLWantReadError:
                    continue
                finally:
                    self._socket.setblocking(True)


class Subscription:
    """A subscription to a channel."""

    def __init__(self, client: Client, channel: bytes, box: Mailbox, inbox: bytes, ack_inbox: bytes) -> None:
        self.client = client
        self.channel = channel
        self.box = box
        self.inbox = inbox
        self.ack_inbox = ack_inbox

    def wait(self, number: int, seconds: float = PATIENCE) -> list[Message]:
        """Waits for so many messages, and returns all that came."""
        self.box.wait(number, seconds)
        return self.messages

    def settled(self, number: int) -> list[Message]:
        """Returns the messages once everything that is due has come: so many, as the caller expects."""
        self.box.wait(number)
        # The server answers this once everything before it is done, and on the connection of deliveries.
        client = self.client
        wanted = store.UnsubscribeRequest(client_id=client.id, subject=b"a.channel.that.is.not.there")
        client.nats.request(client.subjects.unsub_requests, wanted.SerializeToString())
        return self.messages

    @property
    def messages(self) -> list[Message]:
        found = []
        for got in list(self.box.got):
            each = store.MsgProto.FromString(got.data)
            found.append(
                Message(
                    got.at, each.sequence, each.data, each.redelivered, each.redelivery_count, each.timestamp,
                    each.subject, each.reply,
                )
            )  # fmt: skip
        return found

    @property
    def sequences(self) -> list[int]:
        return [message.sequence for message in self.messages]

    def ack(self, sequence: int, channel: bytes = b"") -> None:
        self.client.nats.publish(
            self.ack_inbox, protocol.Ack(subject=channel or self.channel, sequence=sequence).SerializeToString()
        )

    def unsubscribe(self, **fields: Any) -> str:
        return self._leave(self.client.subjects.unsub_requests, fields)

    def close(self, **fields: Any) -> str:
        return self._leave(self.client.subjects.sub_close_requests, fields)

    def _leave(self, subject: bytes, fields: dict[str, Any]) -> str:
        wanted = {"client_id": self.client.id, "subject": self.channel, "inbox": self.ack_inbox} | fields
        answer = self.client.nats.request(subject, store.UnsubscribeRequest(**wanted).SerializeToString())
        return protocol.SubscriptionResponse.FromString(answer).error.decode()


class RefusedError(Exception):
    """The streaming server answers with an error; its text."""


class Client:
    """A streaming client.

    Args:
        nats: Its connection.
        client_id: Its name.
        heartbeat: What it does with heartbeats: "answer", be "silent", or not even listen ("gone").
        cluster: Name of the cluster.
        fields: More fields of the request to connect.

    Raises:
        RefusedError: The server does not want it.
    """

    def __init__(
        self,
        nats: Talker,
        client_id: str,
        *,
        heartbeat: str = "answer",
        cluster: str = "test-cluster",
        seconds: float = PATIENCE,
        **fields: Any,
    ) -> None:
        self.nats = nats
        self.id = client_id.encode()
        self.connection = b"conn-%d" % next(_NUMBERS)
        self.heartbeat_inbox = b"%s.hb%d" % (nats.inbox, next(_NUMBERS))
        self.heartbeats = nats.listen(self.heartbeat_inbox)
        self.answering = heartbeat == "answer"
        self.heartbeats.on_message = self._beat
        if heartbeat == "gone":
            nats.forget(self.heartbeats)
        described = {
            "client_id": self.id, "heartbeat_inbox": self.heartbeat_inbox, "conn_id": self.connection, "protocol": 1,
            "ping_interval": 5, "ping_max_out": 88,
        }  # fmt: skip
        wanted = store.ConnectRequest(**(described | fields))
        self.asked_at = time.monotonic()
        data = nats.request(b"_STAN.discover." + cluster.encode(), wanted.SerializeToString(), seconds)
        self.subjects = protocol.ConnectResponse.FromString(data)
        if self.subjects.error:
            raise RefusedError(self.subjects.error.decode())
        self.ack_inbox = b"%s.acks%d" % (nats.inbox, next(_NUMBERS))
        self.acks = nats.listen(self.ack_inbox)
        self._guids = itertools.count(1)

    def move(self, nats: Talker) -> None:
        """Goes on on another connection, as a client does that has lost its own."""
        self.nats = nats
        self.heartbeats = nats.listen(self.heartbeat_inbox)
        self.heartbeats.on_message = self._beat
        self.acks = nats.listen(self.ack_inbox)

    def _beat(self, got: Got) -> None:
        if self.answering:
            self.nats.publish(got.reply)

    def publication(self, channel: bytes, data: bytes = b"", **fields: Any) -> protocol.PubMsg:
        wanted = {
            "client_id": self.id, "guid": b"g%d" % next(self._guids), "subject": channel, "data": data,
            "conn_id": self.connection,
        }  # fmt: skip
        return protocol.PubMsg(**(wanted | fields))

    def publish(self, channel: bytes, data: bytes = b"", **fields: Any) -> protocol.PubAck:
        """Publishes and returns the acknowledgement."""
        message = self.publication(channel, data, **fields)
        # Where no message can be published to, any subject is as good.
        name = message.subject if valid_subject(message.subject) else b"x"
        return protocol.PubAck.FromString(
            self.nats.request(self.subjects.pub_prefix + b"." + name, message.SerializeToString())
        )

    def store(self, channel: bytes, *texts: bytes) -> None:
        """Publishes messages, which have to be stored."""
        for text in texts:
            error = self.publish(channel, text).error
            if error:
                raise RefusedError(error.decode())

    def subscribe(self, channel: bytes, **fields: Any) -> Subscription:
        """Subscribes, from the first message on unless the fields say otherwise.

        Raises:
            RefusedError: The server does not want it.
        """
        inbox = b"%s.m%d" % (self.nats.inbox, next(_NUMBERS))
        box = self.nats.listen(inbox)
        wanted = {
            "client_id": self.id, "subject": channel, "inbox": inbox, "max_in_flight": 1024, "ack_wait_in_secs": 30,
            "start_position": 4,
        } | fields  # fmt: skip
        request = store.SubscriptionRequest(**wanted)
        answer = protocol.SubscriptionResponse.FromString(
            self.nats.request(self.subjects.sub_requests, request.SerializeToString())
        )
        if answer.error:
            raise RefusedError(answer.error.decode())
        return Subscription(self, channel, box, inbox, answer.ack_inbox)

    def ping(self) -> str:
        """Returns the error of the answer, or nothing."""
        data = self.nats.request(
            self.subjects.ping_requests, protocol.Ping(conn_id=self.connection).SerializeToString()
        )
        return protocol.PingResponse.FromString(data).error.decode()

    def close(self) -> str:
        request = store.CloseRequest(client_id=self.id)
        data = self.nats.request(self.subjects.close_requests, request.SerializeToString())
        return protocol.CloseResponse.FromString(data).error.decode()
