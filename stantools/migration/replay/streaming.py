"""Publishing to channels of a streaming server: drives a `ReplaySession` on a NATS connection.

Promise: every message is stored at least once, in order. The server does not recognise duplicates: when the
connection breaks or the process is killed, unacknowledged messages are sent again and may be stored twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from stantools.errors import StantoolsError
from stantools.format.message_batch import MessageBatch
from stantools.migration.replay.publisher import NumberedPublisher
from stantools.migration.replay.replay_options import ReplayOptions
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.replay.state import ReplayState
from stantools.nats.connection import NatsConnection
from stantools.nats.errors import ConnectionLostError, NatsError, NoAnswerError, NoResponderError
from stantools.streaming import streaming_protocol as streaming
from stantools.streaming.streaming_protocol import DISCOVER_PREFIX, SessionState

if TYPE_CHECKING:
    from stantools.nats.client import NatsMessage

#: subject of acks in the official clients; users may have no permission for others
_ACKS = b"_STAN.acks"
#: the server's answer to an unregistered client (or an invalid channel name, which is checked before)
_NOT_REGISTERED = "stan: invalid publish request"


class ReplaySession(streaming.StreamingProtocol):
    """A session whose errors are `NatsError` and name options of a replay."""

    failure: ClassVar[type[StantoolsError]] = NatsError
    remedies: ClassVar[dict[str, str]] = {
        "client": "choose another --client-id",
        "cluster": "check --cluster-id and --discover-prefix: another application may listen there",
    }


class StreamingPublisher(NumberedPublisher):
    def __init__(
        self, connection: NatsConnection, plan: ReplayPlan, state: ReplayState, options: ReplayOptions
    ) -> None:
        super().__init__(connection, plan, state, options)
        self._cluster_id = options.streaming_id
        self._client_id = options.client_id or f"stantools-replay-{state.run}"
        self._run = state.run
        self._prefix = options.discover_prefix or DISCOVER_PREFIX
        self._sessions = 0
        self._session: ReplaySession | None = None
        self._heartbeats = self._pings = self._acks = b""

    async def _begin(self, *, resumed: bool) -> None:
        if not self._acks:
            await self._subscribe()
        if self._session is not None:
            await self._check_session(self._session)
        if self._session is None or self._session.state is not SessionState.OPEN:
            await self._connect()

    async def _subscribe(self) -> None:
        connection = self.connection
        self._heartbeats, self._pings = connection.new_inbox(), connection.new_inbox()
        self._acks = b"%b.%b" % (_ACKS, connection.new_inbox().rpartition(b".")[2])
        connection.listen(self._heartbeats, self._on_heartbeat)
        connection.listen(self._pings, self._on_ping_answer)
        connection.listen(self._acks, self._on_ack)
        await self.connection.flush()
        self.check()

    async def _connect(self) -> None:
        self._sessions += 1
        unique = f"{self._run}-{self._sessions}"
        heartbeats = self._heartbeats.decode()
        session = ReplaySession(self._cluster_id, self._client_id, unique, heartbeats, discover_prefix=self._prefix)
        request = session.connect()
        try:
            answer = await self.connection.request(request.subject, request.payload)
        except NoAnswerError as problem:
            raise type(problem)(
                f"no streaming server with cluster id {self._cluster_id!r} has answered at {self.connection.url} "
                f"(on {request.subject})",
                "check --cluster-id, and whether the streaming server uses this NATS server",
            ) from None
        session.connect_answered(answer, _now())
        self._session = session

    async def _check_session(self, session: ReplaySession) -> None:
        """Asks whether the server still knows the session; the session's state shows the answer."""
        ping = session.ping()
        if ping is None:
            return
        try:
            answer = await self.connection.request(ping.subject, ping.payload)
        except NoResponderError as problem:
            raise ConnectionLostError(f"the streaming server {self._cluster_id!r} is gone", "go on later") from problem
        session.ping_answered(answer)

    async def _send_numbered(self, batch: MessageBatch) -> None:
        session = self._session
        assert session is not None
        publish, most = self.connection.publish, self.connection.max_payload
        for sequence, _, reply, data in batch.messages():
            self.check()
            sent = session.publish(self.published, batch.subject, reply, data)
            if len(sent.payload) > most:
                raise self.too_large(batch.channel, sequence, len(sent.payload))
            publish(sent.subject.encode(), sent.payload, self._acks)
            self.published += 1
        await self.connection.drain()

    async def tick(self) -> None:
        self.check()
        session = self._session
        if session is None:
            return
        ping = session.tick(_now())
        if ping is not None:
            self.connection.publish(ping.subject.encode(), ping.payload, self._pings)
        self._look(session)

    async def end(self) -> None:
        """Closes the session, so that the server forgets the client."""
        session, self._session = self._session, None
        if session is None or session.state is not SessionState.OPEN:
            return
        request = session.close()
        answer = await self.connection.request(request.subject, request.payload)
        if error := session.close_answered(answer):
            self.note(f"the streaming server {self._cluster_id!r} did not close the session: {error}")

    def _on_heartbeat(self, message: NatsMessage) -> None:
        if message.reply and self._session is not None:
            self.connection.publish(message.reply, self._session.heartbeat())

    def _on_ping_answer(self, message: NatsMessage) -> None:
        session = self._session
        if session is None:
            return
        try:
            session.ping_answered(message.data)
        except NatsError as problem:
            self.fail(problem)
        self._look(session)

    def _on_ack(self, message: NatsMessage) -> None:
        session = self._session
        if session is None:
            return
        try:
            # A message with a status and without payload: the publish subject has no subscriber.
            acked = session.ack(message.data) if message.data else None
        except NatsError as problem:
            self.fail(problem)
            return
        if not message.data:
            self._connection_failed(f"the streaming server {self._cluster_id!r} is gone")
        if acked is None or not self.ledger.low <= acked.number < self.ledger.next:
            return
        if not acked.error:
            self.confirmed(acked.number)
        elif acked.error == _NOT_REGISTERED:
            session.lost(acked.error)
            self._look(session)
        else:
            remedy = "check the server's limits and log, then continue"
            self.fail(self.refused_message(self.ledger, acked.number, acked.error, remedy))

    def _look(self, session: ReplaySession) -> None:
        if session.state is SessionState.LOST:
            self._connection_failed(
                f"the streaming server {self._cluster_id!r} has dropped the client: {session.why_lost}"
            )

    def _connection_failed(self, text: str) -> None:
        self.fail(ConnectionLostError(text, "check the server, then continue"))


def _now() -> float:
    return asyncio.get_running_loop().time()
