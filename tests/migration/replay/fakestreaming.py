"""A streaming server for the tests, on a real NATS server: what a publisher sees of one, and a little more.

Written from the streaming-protocol.md sections 4, 6 to 9, 11 and 14: connect with the probe of a client
that is registered already, heartbeats, pings, publishing with acks, close, and subscriptions from the first message
on without redelivery, so that real client libraries can be held against it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from nats import errors

from stantools.format.proto import protocol_pb2 as pb
from stantools.format.proto import store_pb2
from tests import natsclient

_CLIENT_ID = re.compile(rb"[a-zA-Z0-9_-]+")


@dataclass
class Registered:
    inbox: str
    connection: bytes
    misses: int = 0


@dataclass
class FakeStreaming:
    """Serves one cluster id. An asynchronous context manager.

    Attributes:
        channels: Channel -> what was stored: payload, reply subject.
        clients: Who is registered.
        heartbeats_answered: How many answers to heartbeats came.
        refuse: Channel -> error that is answered instead of storing.
        silent_after: So many publishes are answered; the rest is stored, and nobody learns of it.
        deaf_after: So many publishes are taken, the rest is thrown away.
        login: Options of its own connection to NATS.
    """

    url: str
    cluster_id: str = "test-cluster"
    discover_prefix: str = "_STAN.discover"
    heartbeat_seconds: float = 0.2
    protocol: int = 1
    channels: dict[bytes, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    clients: dict[bytes, Registered] = field(default_factory=dict)
    heartbeats_answered: int = 0
    pings: int = 0
    closed: list[bytes] = field(default_factory=list)
    refuse: dict[bytes, bytes] = field(default_factory=dict)
    silent_after: int | None = None
    deaf_after: int | None = None
    login: dict[str, Any] = field(default_factory=dict)
    published: int = 0

    async def __aenter__(self) -> FakeStreaming:
        self._nats = await natsclient.connect(
            self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, **self.login
        )
        self._subscriptions: list[tuple[bytes, bytes, str, int]] = []
        cid = self.cluster_id
        discover = f"{self.discover_prefix}.{cid}"
        for subject, handler in (
            (discover, self._connect),
            (f"{discover}.pings", self._ping),
            (f"_STAN.pub.{cid}.>", self._publish),
            (f"_STAN.sub.{cid}", self._subscribe),
            (f"_STAN.unsub.{cid}", self._unsubscribe),
            (f"_STAN.subclose.{cid}", self._unsubscribe),
            (f"_STAN.close.{cid}", self._close),
        ):
            await self._nats.subscribe(subject, cb=handler, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self._nats.flush()
        self._beating = asyncio.ensure_future(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        with contextlib.suppress(OSError):  # of a connection that is broken
            await self._nats.close()

    def payloads(self, channel: bytes) -> list[bytes]:
        return [data for data, _ in self.channels.get(channel, [])]

    async def _connect(self, message: Any) -> None:
        request = _decoded(store_pb2.ConnectRequest, message.data)
        if request is None or not request.heartbeat_inbox:
            return await self._refuse_connect(message, b"stan: invalid connection request")
        if not _CLIENT_ID.fullmatch(request.client_id):
            text = b"stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
            return await self._refuse_connect(message, text)
        known = self.clients.get(request.client_id)
        if known and await self._alive(known, 0.5):
            return await self._refuse_connect(message, b"stan: clientID already registered")
        self.clients[request.client_id] = Registered(request.heartbeat_inbox.decode(), request.conn_id)
        cid = self.cluster_id.encode()
        answer = pb.ConnectResponse(
            pub_prefix=b"_STAN.pub." + cid,
            sub_requests=b"_STAN.sub." + cid,
            unsub_requests=b"_STAN.unsub." + cid,
            close_requests=b"_STAN.close." + cid,
            sub_close_requests=b"_STAN.subclose." + cid,
            protocol=1,
        )
        if request.protocol >= 1 and self.protocol >= 1:
            answer.ping_requests = f"{self.discover_prefix}.{self.cluster_id}.pings".encode()
            answer.ping_interval = request.ping_interval
            answer.ping_max_out = request.ping_max_out
        return await self._nats.publish(message.reply, answer.SerializeToString())

    async def _refuse_connect(self, message: Any, text: bytes) -> None:
        await self._nats.publish(message.reply, pb.ConnectResponse(error=text).SerializeToString())

    async def _alive(self, client: Registered, timeout: float) -> bool:
        try:
            await self._nats.request(client.inbox, b"", timeout=timeout)
        except (errors.Error, TimeoutError):
            return False
        return True

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.heartbeat_seconds)
            for name, client in list(self.clients.items()):
                if await self._alive(client, 0.5):
                    self.heartbeats_answered += 1
                    client.misses = 0
                    continue
                client.misses += 1
                if client.misses > 10:
                    self.clients.pop(name, None)

    async def _ping(self, message: Any) -> None:
        request = _decoded(pb.Ping, message.data)
        if request is None or not message.data:
            return
        self.pings += 1
        known = any(client.connection == request.conn_id for client in self.clients.values())
        error = b"" if known else b"client has been replaced or is no longer registered"
        await self._nats.publish(message.reply, pb.PingResponse(error=error).SerializeToString())

    async def _publish(self, message: Any) -> None:
        request = _decoded(pb.PubMsg, message.data)
        self.published += 1
        if self.deaf_after is not None and self.published > self.deaf_after:
            return
        error = self._store(request) if request is not None else b"stan: invalid publish request"
        if self.silent_after is not None and self.published > self.silent_after:
            return
        guid = request.guid if request is not None else b""
        if message.reply:
            await self._nats.publish(message.reply, pb.PubAck(guid=guid, error=error).SerializeToString())

    def _store(self, request: pb.PubMsg) -> bytes:
        name = request.subject
        tokens = name.split(b".")
        if not request.guid or b"" in tokens or any(byte in name for byte in b"/*>"):
            return b"stan: invalid publish request"
        if request.conn_id:
            known = any(client.connection == request.conn_id for client in self.clients.values())
        else:
            known = request.client_id in self.clients
        if not known:
            return b"stan: invalid publish request"
        if name in self.refuse:
            return self.refuse[name]
        stored = self.channels.setdefault(name, [])
        stored.append((request.data, request.reply))
        for channel, _, inbox, _ in self._subscriptions:
            if channel == name:
                self._deliver(inbox, name, len(stored))
        return b""

    def _deliver(self, inbox: str, name: bytes, sequence: int) -> None:
        data, reply = self.channels[name][sequence - 1]
        message = store_pb2.MsgProto(sequence=sequence, subject=name, reply=reply, data=data, timestamp=time.time_ns())
        sending = asyncio.ensure_future(self._nats.publish(inbox, message.SerializeToString()))
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _subscribe(self, message: Any) -> None:
        request = _decoded(store_pb2.SubscriptionRequest, message.data)
        if request is None or request.client_id not in self.clients:
            answer = pb.SubscriptionResponse(error=b"stan: unknown clientID")
            await self._nats.publish(message.reply, answer.SerializeToString())
            return
        inbox = self._nats.new_inbox()
        self._subscriptions.append((request.subject, request.client_id, request.inbox.decode(), len(inbox)))
        await self._nats.publish(message.reply, pb.SubscriptionResponse(ack_inbox=inbox.encode()).SerializeToString())
        if request.start_position == store_pb2.FIRST:
            for sequence in range(1, len(self.channels.get(request.subject, [])) + 1):
                self._deliver(request.inbox.decode(), request.subject, sequence)

    async def _unsubscribe(self, message: Any) -> None:
        request = _decoded(store_pb2.UnsubscribeRequest, message.data)
        if request is not None:
            self._subscriptions = [
                each for each in self._subscriptions if each[:2] != (request.subject, request.client_id)
            ]
        await self._nats.publish(message.reply, b"")

    async def _close(self, message: Any) -> None:
        request = _decoded(store_pb2.CloseRequest, message.data)
        error = b""
        if request is None:
            error = b"stan: invalid close request"
        elif self.clients.pop(request.client_id, None) is None:
            error = b"stan: unknown clientID"
        else:
            self.closed.append(request.client_id)
        await self._nats.publish(message.reply, pb.CloseResponse(error=error).SerializeToString())


def _decoded(kind: Any, payload: bytes) -> Any:
    try:
        return kind.FromString(payload)
    except Exception:  # DecodeError, whichever implementation of protobuf raises it
        return None
