"""The bus to the NATS server in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.nats import tls
from broker.nats.auth import ClientCredentials
from broker.nats.auth import nonce as new_nonce
from broker.nats.client import NatsSubscription
from broker.nats.internal import InternalClient
from broker.reserved import ReservedSubjects
from broker.stores.interface import ANY_SIZE
from broker.streaming.ports import RequestAnswer, RequestOutcome, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from broker.config.broker_options import ConnectionOptions
    from broker.nats.nats_options import TLSOptions
    from broker.nats.nats_server import NatsServer
    from broker.streaming.streaming_options import StreamingOptions
    from stantools.nats.frames import FrameHandler, Handler, Payloads

#: connections of every server (streaming-protocol.md section 1.3)
ROLES: Final = (Role.SEND, Role.GENERAL, Role.ACKS, Role.HEARTBEATS)

_SECOND: Final = 1_000_000_000


def roles_of(options: StreamingOptions) -> tuple[Role, ...]:
    """Returns the connections of a server with these options, in the order of opening."""
    wanted = {Role.FAULT_TOLERANCE: bool(options.ft_group), Role.PARTITIONS: options.partitioning}
    return tuple(role for role in Role if wanted.get(role, True))


def client_name(cluster_id: bytes, role: Role) -> str:
    return f"_NSS-{cluster_id.decode(errors='replace')}-{role.value}"


def credentials_of(connection: ConnectionOptions, server: TLSOptions | None) -> ClientCredentials | None:
    """Returns the identity of the streaming server at its own NATS server; None for the default."""
    if connection.nkey_seed_file:
        from stantools.nats.login import Login

        nonce = new_nonce()
        signed = Login.read(nkey=Path(connection.nkey_seed_file)).signature(nonce)
        return ClientCredentials(nkey=signed["nkey"], signature=signed["sig"], nonce=nonce)
    if server is not None and server.verify_and_map:
        # Within a process there is no handshake, so the certificate is read instead.
        certificate = connection.tls.cert if connection.tls is not None else None
        names = tls.file_names(certificate) if certificate is not None else ()
        names = (connection.user, *names) if connection.user else names
        return ClientCredentials(names=names) if names else None
    if not (connection.user or connection.token):
        return None
    return ClientCredentials(user=connection.user, password=connection.password, token=connection.token)


class EmbeddedBus:
    """A `broker.streaming.ports.StreamingBus` on clients inside of the server, which need not listen yet.

    `roles` are the connections in the order of opening. Raises AuthorizationError if the server refuses
    `credentials`.
    """

    def __init__(
        self,
        server: NatsServer,
        cluster_id: bytes,
        *,
        roles: Iterable[Role] = ROLES,
        credentials: ClientCredentials | None = None,
        discover_prefix: bytes = b"",
    ) -> None:
        self.server = server
        #: largest message of this server, in bytes: unlimited within the process
        self.deliverable: Final = ANY_SIZE
        self._router: Final = server.router
        self._clients: dict[Role, InternalClient] = {}
        #: returns whether much data waits for a subscriber of a subject
        self.congested: Final = server.subscriptions.congested
        self._is_inbox: Final = ReservedSubjects(discover_prefix).is_inbox
        self.has_receiver: Final = server.subscriptions.reaches  #: returns whether a subject has a subscriber
        for role in roles:
            self._clients[role] = server.internal_client(client_name(cluster_id, role), credentials)

    @property
    def max_payload(self) -> int:
        """Largest message of a client, in bytes."""
        return self.server.options.max_payload

    def publish(
        self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"", *, to_servers: bool = False
    ) -> bool:
        """Publishes one message. An inbox that is not a valid subject counts as one without subscribers."""
        if to_servers or self._is_inbox(subject):
            self._clients[role].publish(subject, payload, reply)
        return True

    def publish_block(self, role: Role, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        if self._is_inbox(subject):
            self._router.publish_runs(self._clients[role], [(subject, begin, end)], block)
        return True

    def publish_runs(self, role: Role, runs: Sequence[tuple[bytes, int, int]], block: Payloads) -> None:
        for subject, _, _ in runs:
            if not self._is_inbox(subject):
                runs = [run for run in runs if self._is_inbox(run[0])]
                break
        self._router.publish_runs(self._clients[role], runs, block)

    def publish_each(self, role: Role, messages: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
        for subject, _ in messages:
            if not self._is_inbox(subject):
                messages = [each if self._is_inbox(each[0]) else (b"", each[1]) for each in messages]
                break
        return self._router.publish_each(self._clients[role], messages)

    def slow_down(self) -> None:
        """Reads more slowly from the client whose messages are being handled."""
        self._clients[Role.GENERAL].full = True

    def end_slowdown(self) -> None:
        """Reads from all clients at full speed again."""
        self._clients[Role.GENERAL].release_stalled()

    def request(
        self,
        role: Role,
        subject: bytes,
        payload: bytes,
        timeout: int,
        answer: Callable[[RequestAnswer], None],
        *,
        to_servers: bool = False,
    ) -> None:
        """Publishes with a unique reply subject and reports the answer, or its absence, after this call."""

        def answered(found: bytes | None, no_responders: bool) -> None:
            if found is not None:
                answer(RequestAnswer(RequestOutcome.REPLY, found))
            else:
                answer(RequestAnswer(RequestOutcome.NO_RESPONDERS if no_responders else RequestOutcome.TIMEOUT))

        if not (to_servers or self._is_inbox(subject)):
            subject = b""  # an invalid subject has no subscriber
        self._clients[role].request(subject, payload, timeout / _SECOND, answered)

    def listen(
        self, role: Role, subject: bytes, handler: Handler, *, gathered: bool = False, taker: FrameHandler | None = None
    ) -> object:
        """Subscribes. Gathered acknowledgements come before other gathered messages, as they make room for them.

        Raises ValueError for an invalid subject, PermissionError if the server does not permit it.
        """
        rank = 0 if not gathered else 1 if role is Role.ACKS else 2
        return self._clients[role].subscribe(subject, handler, rank=rank, taker=taker)

    def unlisten(self, subscription: object) -> None:
        assert isinstance(subscription, NatsSubscription)
        assert isinstance(subscription.client, InternalClient)
        subscription.client.unsubscribe(subscription)

    def barrier(self, done: Callable[[], None]) -> None:
        """Calls `done` when all messages received before have been handed over: mostly at once."""
        self._clients[Role.GENERAL].barrier(done)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
