"""A connection to a NATS server that costs next to nothing: prepared bytes go out, frames that come in are counted.

Set up with plain blocking calls; under load the socket does not block, and nothing is made for a single message.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable
from typing import Any

from stantools.format.proto.protocol_pb2 import ConnectResponse, SubscriptionResponse
from stantools.format.proto.store_pb2 import ConnectRequest, SubscriptionRequest
from stantools.nats import encoding
from stantools.nats import frames as columns
from stantools.nats.frames import Frames, ParseStop, frame_table
from stantools.nats.kernels import parse_messages
from stantools.nats.operations import MAX_LINE, Err, InfoOperation, Ping, Pong, parse_answer

_BUFFER = 1 << 20
_MAX_MESSAGE = 64 << 20
_HEARTBEATS, _ANSWERS = 1, 2

#: Takes rows of a table of frames, as the handlers of the broker do.
Taker = Callable[[bytearray, Frames, int, int], None]


class RawClient:
    """A connection.

    Args:
        host: Of the server.
        port: Of the server.

    Attributes:
        socket: To wait for.
        inbox: What requests and acknowledged publishes of this connection are answered at.
    """

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._frames = frame_table(4096)
        self._takers: dict[int, Taker] = {}
        self._todo: memoryview = memoryview(b"")
        self._answer: bytes | None = None
        self._pongs = 0
        self.info: dict[str, Any] = {}
        self.inbox = b"_INBOX." + secrets.token_hex(11).encode()
        self._requests = self.inbox + b".R"
        while not self.info:
            self.receive()
        options = {"verbose": False, "pedantic": False, "lang": "raw", "version": "1", "protocol": 1}
        self.send(encoding.connect({**options, "headers": True, "no_responders": True}))
        self.subscribe(self.inbox + b".H", _HEARTBEATS, self._take_heartbeats)
        self.subscribe(self._requests, _ANSWERS, self._take_answer)
        self.flush()

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()

    # Setting up, blocking

    def send(self, data: bytes) -> None:
        """Sends all of it."""
        self.socket.sendall(data)

    def subscribe(self, subject: bytes, sid: int, taker: Taker) -> None:
        """Subscribes."""
        self._takers[sid] = taker
        self.send(encoding.subscribe(subject, sid))

    def flush(self) -> None:
        """Waits until the server has taken everything."""
        wanted = self._pongs + 1
        self.send(encoding.PING)
        while self._pongs < wanted:
            self.receive()

    def request(self, subject: bytes, payload: bytes) -> bytes:
        """Sends a request and waits for the answer."""
        self._answer = None
        self.send(encoding.publish(subject, payload, self._requests))
        while self._answer is None:
            self.receive()
        return self._answer

    def connect(self, cluster: bytes, client_id: bytes, connection_id: bytes) -> bytes:
        """Connects to a streaming server. Returns the prefix of its publish subjects."""
        request = ConnectRequest(client_id=client_id, heartbeat_inbox=self.inbox + b".H", protocol=1)
        request.conn_id = connection_id
        answer = ConnectResponse.FromString(self.request(b"_STAN.discover." + cluster, request.SerializeToString()))
        if answer.error:
            raise RuntimeError(f"connect: {answer.error.decode()}")
        self._subscribe_at, self._client_id, self._close_at = answer.sub_requests, client_id, answer.close_requests
        return answer.pub_prefix

    def disconnect(self) -> None:
        """Takes leave of the streaming server."""
        from stantools.format.proto.store_pb2 import CloseRequest

        self.request(self._close_at, CloseRequest(client_id=self._client_id).SerializeToString())

    def stream_subscribe(self, channel: bytes, in_flight: int, start: int, durable: bytes = b"") -> bytes:
        """Subscribes at a streaming server; messages come to `<inbox>.M`. Returns the subject for acks."""
        request = SubscriptionRequest(
            client_id=self._client_id,
            subject=channel,
            inbox=self.inbox + b".M",
            max_in_flight=in_flight,
            ack_wait_in_secs=120,
            start_position=start,
            durable_name=durable,
        )
        answer = SubscriptionResponse.FromString(self.request(self._subscribe_at, request.SerializeToString()))
        if answer.error:
            raise RuntimeError(f"subscribe: {answer.error.decode()}")
        return answer.ack_inbox

    # Under load

    @property
    def writing(self) -> bool:
        """Whether something prepared has not left yet."""
        return bool(self._todo)

    def put(self, data: memoryview) -> None:
        """Sends as much as the socket takes; `write` goes on with the rest."""
        assert not self._todo
        self._todo = data
        self.write()

    def write(self) -> None:
        """Sends more of what was put."""
        try:
            while self._todo:
                self._todo = self._todo[self.socket.send(self._todo) :]
        except BlockingIOError:
            pass

    def receive(self) -> None:
        """Reads what is there, and hands it to those who subscribed.

        Raises:
            ConnectionError: The server has closed the connection, or sent an error.
        """
        try:
            count = self.socket.recv_into(self._view[self._end :])
        except BlockingIOError:
            return
        if not count:
            raise ConnectionError("the server has closed the connection")
        self._hand_out(self._end + count)

    def receive_only(self, expected: bytes) -> bool:
        """Reads what is there. Returns True if it is what is expected; anything else is handed out as usual."""
        end = self._end + self.socket.recv_into(self._view[self._end :])
        if end == len(expected) and self._buffer.startswith(expected):
            self._end = 0
            return True
        if end == self._end:
            raise ConnectionError("the server has closed the connection")
        self._hand_out(end)
        return False

    def _hand_out(self, end: int) -> None:
        at = 0
        while at < end:
            _, at, stop, spans, _ = parse_messages(self._buffer, at, end, self._frames, MAX_LINE, _MAX_MESSAGE)
            for sid, first, behind in spans:
                self._takers[sid](self._buffer, self._frames, first, behind)
            if stop is ParseStop.PARTIAL:
                break
            if stop is ParseStop.OTHER:
                before = at
                event, at = parse_answer(self._buffer, at, end, MAX_LINE)
                self._take(event)
                if at == before:
                    break
            elif stop not in (ParseStop.END, ParseStop.FULL):
                raise ConnectionError(f"these are no frames: {bytes(self._view[at : at + 60])!r}")
        left = end - at
        if at and left:
            self._buffer[:left] = self._buffer[at:end]
        self._end = left

    def _take(self, event: object) -> None:
        match event:
            case InfoOperation(fields):
                self.info |= fields
            case Ping():
                # Between two prepared pieces only; a server waits minutes for this.
                if not self._todo:
                    self.socket.send(encoding.PONG)
            case Pong():
                self._pongs += 1
            case Err(text):
                raise ConnectionError(text)

    def _take_heartbeats(self, buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        for row in range(begin, end):
            at, size = frames[row, columns.REPLY : columns.REPLY_SIZE + 1].tolist()
            if not self._todo:
                self.socket.send(encoding.publish(bytes(buffer[at : at + size]), b""))

    def _take_answer(self, buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        _, _, _, _, header, at, size, _ = frames[begin].tolist()
        if header:
            raise RuntimeError(f"no subscriber: {bytes(buffer[at : at + header])!r}")
        self._answer = bytes(buffer[at : at + size])

    def request_json(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request of the JetStream API."""
        answer: dict[str, Any] = json.loads(self.request(subject.encode(), json.dumps(request).encode()))
        if "error" in answer:
            raise RuntimeError(f"{subject}: {answer['error']}")
        return answer
