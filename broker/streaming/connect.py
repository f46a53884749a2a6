"""Connect requests, takeover of client ids in use, and heartbeats.

Facts: streaming-protocol.md sections 6 and 8.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.stores.interface import StorageError
from broker.streaming import request_errors
from broker.streaming.names import text, valid_client_id
from broker.streaming.ports import RequestAnswer, RequestOutcome, Role
from broker.streaming.request_errors import text_of
from broker.streaming.requests import decode
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from broker.streaming.commits import Commits
    from broker.streaming.context import Context
    from broker.streaming.names import Subjects
    from broker.streaming.registry import Clients
    from broker.streaming.requests import StreamingRequest
    from broker.streaming.state import StreamingSession
    from broker.streaming.unsubscribe import UnsubscribeRules

#: time (ns) for the answer of a client whose id another client wants
PROBE_TIMEOUT: Final = 500_000_000
#: protocol version in connect responses
_PROTOCOL: Final = 1
#: delay (ns) of the next heartbeat after a ping of a client with a failed one
_SOON: Final = 1_000_000


class Heartbeats:
    """Sends heartbeats to all clients and closes those without an answer."""

    def __init__(self, context: Context, clients: Clients, unsubscribing: UnsubscribeRules) -> None:
        self._bus = context.bus
        self._timers = context.timers
        self._options = context.options
        self._clients = clients
        self._close = unsubscribing.close_client

    def start(self, client: StreamingSession) -> None:
        self._arm(client, self._options.heartbeat_interval)

    def receive_ping(self, request: StreamingRequest) -> None:
        """Answers a client's ping (streaming-protocol.md section 8.2)."""
        if not request.payload:
            return
        try:
            ping = decode(protocol.Ping, request.payload)
        except gogo.DecodeError:
            return
        client = self._clients.by_connection(ping.conn_id)
        response = protocol.PingResponse()
        if client is None:
            response.error = request_errors.CLIENT_REPLACED
        elif client.failed_heartbeat and client.heartbeat is not None:
            self._timers.cancel(client.heartbeat)
            self._arm(client, _SOON)
        self._bus.publish(Role.HEARTBEATS, request.reply, response.SerializeToString())

    def _arm(self, client: StreamingSession, delay: int) -> None:
        client.heartbeat = self._timers.after(delay, partial(self._ask, client))

    def _ask(self, client: StreamingSession) -> None:
        client.heartbeat = None
        self._bus.request(
            Role.HEARTBEATS,
            client.info.hb_inbox,
            b"",
            self._options.heartbeat_timeout,
            partial(self._answered, client),
        )

    def _answered(self, client: StreamingSession, answer: RequestAnswer) -> None:
        if not client.registered:
            return
        if answer.outcome is RequestOutcome.REPLY:
            client.failures = 0
        else:
            client.failures += 1
            if client.failures > self._options.heartbeat_fail_count:
                log.STREAMING.error("[Client:%s] Timed out on heartbeats", text(client.id))
                self._close(client)
                return
        self._arm(client, self._options.heartbeat_interval)


class ConnectRules:
    def __init__(
        self,
        context: Context,
        subjects: Subjects,
        clients: Clients,
        heartbeats: Heartbeats,
        unsubscribing: UnsubscribeRules,
        commits: Commits,
    ) -> None:
        self._bus = context.bus
        self._subjects = subjects
        self._commits = commits
        self._clients = clients
        self._heartbeats = heartbeats
        self._close = unsubscribing.close_client
        self._probed: set[bytes] = set()

    def receive(self, request: StreamingRequest) -> None:
        """Handles a request from the discovery subject."""
        failure: gogo.DecodeError | None = None
        try:
            message = decode(pb.ConnectRequest, request.payload)
        except gogo.DecodeError as error:
            failure = error
            message = pb.ConnectRequest()
        if not message.heartbeat_inbox:
            log.STREAMING.error(
                "[Client:?] Invalid conn request: ClientID=%s, Inbox=%s, err=%s",
                text(message.client_id),
                text(message.heartbeat_inbox),
                failure or "<nil>",
            )
            self._refuse(request, request_errors.INVALID_CONNECT)
            return
        if not valid_client_id(message.client_id):
            log.STREAMING.error(
                "[Client:%s] Invalid ClientID, only alphanumeric and `-` or `_` characters allowed",
                text(message.client_id),
            )
            self._refuse(request, request_errors.INVALID_CLIENT_ID)
            return
        known = self._clients.get(message.client_id)
        if message.client_id in self._probed:
            self._refuse_registered(request, message)
        elif known is not None:
            self._probed.add(message.client_id)
            self._bus.request(
                Role.GENERAL, known.info.hb_inbox, b"", PROBE_TIMEOUT, partial(self._probe_ended, request, message)
            )
        else:
            self._register(request, message, replaces=False)

    def _probe_ended(self, request: StreamingRequest, message: pb.ConnectRequest, answer: RequestAnswer) -> None:
        self._probed.discard(message.client_id)
        if answer.outcome is RequestOutcome.REPLY:
            self._refuse_registered(request, message)
            return
        known = self._clients.get(message.client_id)
        if known is not None:
            self._close(known)
        self._register(request, message, replaces=known is not None)

    def _register(self, request: StreamingRequest, message: pb.ConnectRequest, *, replaces: bool) -> None:
        info = pb.ClientInfo(
            id=message.client_id,
            hb_inbox=message.heartbeat_inbox,
            conn_id=message.conn_id,
            protocol=message.protocol,
            ping_interval=message.ping_interval,
            ping_max_out=message.ping_max_out,
        )
        try:
            client, flush = self._clients.register(info)
        except StorageError as error:
            log.STREAMING.error("[Client:%s] Error registering client: %s", text(message.client_id), error)
            self._refuse(request, text_of(error))
            return
        self._heartbeats.start(client)
        self._commits.when_durable([flush], partial(self._registered, request, message, client, replaces))

    def _registered(
        self,
        request: StreamingRequest,
        message: pb.ConnectRequest,
        client: StreamingSession,
        replaces: bool,
        error: str,
    ) -> None:
        if error:
            log.STREAMING.error("[Client:%s] Error registering client: %s", text(client.id), error)
            if client.registered:
                self._close(client)
            self._refuse(request, error.encode(errors="surrogateescape"))
            return
        subjects = self._subjects
        response = protocol.ConnectResponse(
            pub_prefix=subjects.publish,
            sub_requests=subjects.subscribe,
            unsub_requests=subjects.unsubscribe,
            close_requests=subjects.close,
            sub_close_requests=subjects.sub_close,
            protocol=_PROTOCOL,
        )
        if message.protocol >= 1:
            response.ping_requests = subjects.pings
            response.ping_interval = message.ping_interval
            response.ping_max_out = message.ping_max_out
        self._bus.publish(Role.GENERAL, request.reply, response.SerializeToString())
        what = "Replaced old client" if replaces else "Connected"
        log.STREAMING.debug("[Client:%s] %s (Inbox=%s)", text(client.id), what, text(client.info.hb_inbox))

    def _refuse_registered(self, request: StreamingRequest, message: pb.ConnectRequest) -> None:
        log.STREAMING.debug("[Client:%s] Connect failed; already connected", text(message.client_id))
        self._refuse(request, request_errors.CLIENT_REGISTERED)

    def _refuse(self, request: StreamingRequest, error: bytes) -> None:
        self._bus.publish(Role.GENERAL, request.reply, protocol.ConnectResponse(error=error).SerializeToString())
