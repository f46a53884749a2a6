"""Connect requests, and who may take over an id that is in use (streaming-protocol.md section 6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.stores.interface import StorageError
from broker.streaming import errors
from broker.streaming.errors import text_of
from broker.streaming.names import text, valid_client_id
from broker.streaming.ports import Answer, Outcome, Role
from broker.streaming.requests import decode
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from broker.streaming.clients import Client, Clients
    from broker.streaming.context import Context
    from broker.streaming.heartbeats import Heartbeats
    from broker.streaming.names import Subjects
    from broker.streaming.requests import Request

#: How long a client may take to say that it is still there, when another one wants its id.
PROBE_TIMEOUT: Final = 500_000_000
#: What a server says about itself.
_PROTOCOL: Final = 1


class Connecting:
    """Registers clients.

    Args:
        context: The world.
        subjects: What clients are told.
        clients: All clients.
        heartbeats: Begin with the registration.
        close: Ends a client.
    """

    def __init__(
        self,
        context: Context,
        subjects: Subjects,
        clients: Clients,
        heartbeats: Heartbeats,
        close: Callable[[Client], None],
    ) -> None:
        self._bus = context.bus
        self._subjects = subjects
        self._clients = clients
        self._heartbeats = heartbeats
        self._close = close
        self._probed: set[bytes] = set()

    def receive(self, request: Request) -> None:
        """Takes a request from the discovery subject."""
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
            self._refuse(request, errors.INVALID_CONNECT)
            return
        if not valid_client_id(message.client_id):
            log.STREAMING.error(
                "[Client:%s] Invalid ClientID, only alphanumeric and `-` or `_` characters allowed",
                text(message.client_id),
            )
            self._refuse(request, errors.INVALID_CLIENT_ID)
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

    def _probe_ended(self, request: Request, message: pb.ConnectRequest, answer: Answer) -> None:
        self._probed.discard(message.client_id)
        if answer.outcome is Outcome.REPLY:
            self._refuse_registered(request, message)
            return
        known = self._clients.get(message.client_id)
        if known is not None:
            self._close(known)
        self._register(request, message, replaces=known is not None)

    def _register(self, request: Request, message: pb.ConnectRequest, *, replaces: bool) -> None:
        info = pb.ClientInfo(
            id=message.client_id,
            hb_inbox=message.heartbeat_inbox,
            conn_id=message.conn_id,
            protocol=message.protocol,
            ping_interval=message.ping_interval,
            ping_max_out=message.ping_max_out,
        )
        try:
            client = self._clients.register(info)
        except StorageError as error:
            log.STREAMING.error("[Client:%s] Error registering client: %s", text(message.client_id), error)
            self._refuse(request, text_of(error))
            return
        self._heartbeats.start(client)
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
        log.STREAMING.debug("[Client:%s] %s (Inbox=%s)", text(client.id), what, text(info.hb_inbox))

    def _refuse_registered(self, request: Request, message: pb.ConnectRequest) -> None:
        log.STREAMING.debug("[Client:%s] Connect failed; already connected", text(message.client_id))
        self._refuse(request, errors.CLIENT_REGISTERED)

    def _refuse(self, request: Request, error: bytes) -> None:
        self._bus.publish(Role.GENERAL, request.reply, protocol.ConnectResponse(error=error).SerializeToString())
