"""A streaming client on a bare socket: knows exactly which publishes were sent and which were acknowledged."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from typing import Self

from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as store

_TIMEOUT = 60.0


class NoRespondersError(ConnectionError):
    """Nobody listens to what was asked."""


class RawClient:
    """One NATS connection with a streaming client on it.

    Args:
        port: Port of the broker on loopback.
        client_id: The client's id.
        cluster: The cluster's id.
        subjects: What an earlier connection of this client was told: only NATS is connected to again then.
        receive_buffer: Bytes of the socket's buffer for what comes; the system's default if 0.
    """

    def __init__(
        self,
        port: int,
        client_id: str,
        cluster: str = "test-cluster",
        *,
        subjects: protocol.ConnectResponse | None = None,
        receive_buffer: int = 0,
    ) -> None:
        self.client_id = client_id.encode()
        self.connection_id = b"conn-" + self.client_id
        self._socket = socket.socket()
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(_TIMEOUT)
        self._socket.connect(("127.0.0.1", port))
        self._buffer = b""
        self.header = b""  #: of the last message
        self._sids = 0
        self._guids = 0
        self.skipped: deque[tuple[bytes, bytes, bytes]] = deque(maxlen=10_000)
        self._line()  # INFO
        self.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n')
        self.acks = b"_STAN.acks." + self.client_id
        self.inbox = b"_INBOX.raw." + self.client_id
        self.subscribe(self.acks)
        self.subscribe(self.inbox + b".>")
        if subjects is not None:
            self.subjects = subjects
            return
        wanted = store.ConnectRequest(
            client_id=self.client_id, heartbeat_inbox=self.inbox + b".hb", conn_id=self.connection_id, protocol=1
        )
        try:
            answered = self.request(b"_STAN.discover." + cluster.encode(), wanted.SerializeToString())
        except NoRespondersError:
            self.close()
            raise
        answer = protocol.ConnectResponse.FromString(answered)
        if answer.error:
            self.close()
            raise ConnectionError(answer.error.decode())
        self.subjects = answer

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def subscribe(self, subject: bytes) -> None:
        self._sids += 1
        self.send(b"SUB %s %d\r\n" % (subject, self._sids))

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(payload), payload))

    def request(self, subject: bytes, payload: bytes) -> bytes:
        reply = self.inbox + b".answer"
        self.publish(subject, payload, reply)
        while True:
            got, _, data = self.message()
            if got == reply:
                if self.unheard:
                    raise NoRespondersError(subject.decode())
                return data

    def message(self) -> tuple[bytes, bytes, bytes]:
        """Waits for a message: subject, reply, payload. Answers pings and heartbeats by itself."""
        while True:
            words = self._line().split()
            if words[0] == b"PING":
                self.send(b"PONG\r\n")
            elif words[0] in (b"MSG", b"HMSG"):
                data = self._bytes(int(words[-1]) + 2)[:-2]
                size = int(words[-2]) if words[0] == b"HMSG" else 0
                self.header, data = data[:size], data[size:]
                reply = words[3] if len(words) == 5 + (words[0] == b"HMSG") else b""
                if words[1] == self.inbox + b".hb":
                    self.publish(reply, b"")
                    continue
                return words[1], reply, data
            elif words[0] == b"-ERR":
                raise ConnectionError(b" ".join(words).decode())

    @property
    def unheard(self) -> bool:
        """Whether the last message says that nobody listens."""
        return self.header.startswith(b"NATS/1.0 503")

    def gather(self, seconds: float) -> list[tuple[bytes, bytes, bytes]]:
        """Returns the messages that come in some time."""
        got, deadline = [], time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                got.append(self.message())
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(_TIMEOUT)
        return got

    def stored(self, channel: bytes, data: bytes = b"") -> protocol.PubAck:
        """Publishes one message and waits for what the broker says to it. Other messages go to `skipped`."""
        self._guids += 1
        guid = b"%d" % self._guids
        self.send(self.publication(channel, guid, data))
        while True:
            subject, reply, payload = self.message()
            if subject == self.acks and (ack := protocol.PubAck.FromString(payload)).guid == guid:
                return ack
            self.skipped.append((subject, reply, payload))

    def listen(self, channel: bytes, inbox: bytes, **options: int | bytes) -> bytes:
        """Subscribes to a channel, from the beginning; returns the ack inbox. The inbox is below that of the client."""
        wanted = store.SubscriptionRequest(client_id=self.client_id, subject=channel, inbox=inbox)
        fields: dict[str, int | bytes] = {"max_in_flight": 1 << 20, "ack_wait_in_secs": 60, "start_position": 4}
        for name, value in (fields | options).items():
            setattr(wanted, name, value)
        answer = protocol.SubscriptionResponse.FromString(
            self.request(self.subjects.sub_requests, wanted.SerializeToString())
        )
        if answer.error:
            raise RuntimeError(answer.error.decode())
        return bytes(answer.ack_inbox)

    def acknowledge(self, ack_inbox: bytes, channel: bytes, sequence: int) -> None:
        self.publish(ack_inbox, protocol.Ack(subject=channel, sequence=sequence).SerializeToString())

    def publication(self, channel: bytes, guid: bytes, data: bytes) -> bytes:
        """The bytes of a publish."""
        message = protocol.PubMsg(
            client_id=self.client_id, guid=guid, subject=channel, data=data, conn_id=self.connection_id
        ).SerializeToString()
        subject = self.subjects.pub_prefix + b"." + channel
        return b"PUB %s %s %d\r\n%s\r\n" % (subject, self.acks, len(message), message)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    @property
    def unread(self) -> bytes:
        """What came with the last bytes that were waited for, and is still to be looked at."""
        return self._buffer

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._more()
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _bytes(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        self._buffer += data


class Publisher(threading.Thread):
    """Publishes numbered messages until the connection breaks or it is told to stop.

    Attributes:
        sent: Payloads in the order in which they were sent.
        acked: Payloads that were acknowledged, in the order of the acknowledgements.
        refused: Texts of error acknowledgements, by payload.
    """

    def __init__(self, port: int, name: str, channels: list[bytes], *, window: int = 64, size: int = 100) -> None:
        super().__init__(daemon=True)
        self.client = RawClient(port, name)
        self.client_name = name
        self.channels = channels
        self.window = window
        self.padding = b"." * size
        self.sent: list[tuple[bytes, bytes]] = []
        self.acked: list[bytes] = []
        self.refused: dict[bytes, str] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(OSError), self.client as client:
            under_way = 0
            while not self.stopping.is_set() or under_way:
                burst = bytearray()
                while under_way < self.window and not self.stopping.is_set():
                    number = len(self.sent)
                    channel = self.channels[number % len(self.channels)]
                    data = b"%s-%d" % (self.client_name.encode(), number)
                    burst += client.publication(channel, data, data + self.padding)
                    self.sent.append((channel, data))
                    under_way += 1
                client.send(burst)
                subject, _, payload = client.message()
                if subject != client.acks:
                    continue
                under_way -= 1
                if client.unheard:
                    continue
                ack = protocol.PubAck.FromString(payload)
                if ack.error:
                    self.refused[ack.guid] = ack.error.decode()
                else:
                    self.acked.append(ack.guid)

    def wait_for(self, acks: int, timeout: float = 60) -> None:
        """Waits until so many publishes were acknowledged."""
        deadline = time.monotonic() + timeout
        while len(self.acked) < acks:
            if time.monotonic() > deadline:
                last = [*self.refused.values()][-1:]
                raise TimeoutError(f"{len(self.acked)} of {acks} publishes were acknowledged; last refusal: {last}")
            time.sleep(0.005)


def stored(port: int, client_id: str, channel: bytes, timeout: float = 60) -> list[tuple[int, bytes]]:
    """Everything that a channel has: sequence and payload, through a subscription from the beginning."""
    with RawClient(port, client_id) as client:
        inbox = client.inbox + b".messages"
        client.listen(channel, inbox)
        # The end of it: a message of our own.
        marker = b"the end of it %d" % time.time_ns()
        client.send(client.publication(channel, b"end", marker))
        seen: list[tuple[int, bytes]] = []
        while True:
            subject, _, payload = client.message()
            if subject != inbox:
                continue
            message = store.MsgProto.FromString(payload)
            if message.data == marker:
                return seen
            seen.append((message.sequence, message.data))
