"""The bus to the NATS server in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.nats import tls
from broker.nats.auth import Credentials
from broker.nats.auth import nonce as new_nonce
from broker.nats.client import NatsSubscription
from broker.nats.internal import InternalClient
from broker.reserved import ReservedSubjects
from broker.stores.interface import ANY_SIZE
from broker.streaming.ports import Answer, Outcome, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from broker.config.options import ConnectionOptions
    from broker.nats.options import TLSOptions
    from broker.nats.server import NatsServer
    from broker.streaming.options import StreamingOptions
    from stantools.nats.frames import Handler, Payloads, Taker

#: Every server has these connections (streaming-protocol.md section 1.3).
ROLES: Final = (Role.SEND, Role.GENERAL, Role.ACKS, Role.HEARTBEATS)

_SECOND: Final = 1_000_000_000


def roles_of(options: StreamingOptions) -> tuple[Role, ...]:
    """Returns the connections that a server with these options has, in the order in which they are opened."""
    wanted = {Role.FAULT_TOLERANCE: bool(options.ft_group), Role.PARTITIONS: options.partitioning}
    return tuple(role for role in Role if wanted.get(role, True))


def client_name(cluster_id: bytes, role: Role) -> str:
    """Returns what the streaming server's connections are called."""
    return f"_NSS-{cluster_id.decode(errors='replace')}-{role.value}"


def credentials_of(connection: ConnectionOptions, server: TLSOptions | None) -> Credentials | None:
    """Returns who the streaming server is to its own NATS server; None for whoever is configured there.

    Args:
        connection: What was configured about its connections.
        server: TLS of the NATS server.
    """
    if connection.nkey_seed_file:
        from stantools.nats.login import Login

        nonce = new_nonce()
        signed = Login.read(nkey=Path(connection.nkey_seed_file)).signature(nonce)
        return Credentials(nkey=signed["nkey"], signature=signed["sig"], nonce=nonce)
    if server is not None and server.verify_and_map:
        # There is no handshake within this process, so the certificate is read instead.
        certificate = connection.tls.cert if connection.tls is not None else None
        names = tls.file_names(certificate) if certificate is not None else ()
        names = (connection.user, *names) if connection.user else names
        return Credentials(names=names) if names else None
    if not (connection.user or connection.token):
        return None
    return Credentials(user=connection.user, password=connection.password, token=connection.token)


class EmbeddedBus:
    """A `broker.streaming.ports.Bus` on clients that live in the server.

    Args:
        server: The server; it need not listen yet.
        cluster_id: Names the connections.
        roles: The connections, in the order in which they are opened.
        credentials: Who the connections are, where the server asks.
        discover_prefix: Prefix of the subject for connect requests.

    Raises:
        AuthorizationError: The server refuses them.
    """

    def __init__(
        self,
        server: NatsServer,
        cluster_id: bytes,
        *,
        roles: Iterable[Role] = ROLES,
        credentials: Credentials | None = None,
        discover_prefix: bytes = b"",
    ) -> None:
        self.server = server  #: the server that the clients live in
        self._clients: dict[Role, InternalClient] = {}
        #: Returns whether much waits for a client that gets messages of a subject.
        self.congested: Final = server.subscriptions.congested
        self._is_inbox: Final = ReservedSubjects(discover_prefix).is_inbox
        self.has_receiver: Final = server.subscriptions.reaches  #: whether anybody gets messages of a subject
        for role in roles:
            self._clients[role] = server.internal_client(client_name(cluster_id, role), credentials)

    @property
    def max_payload(self) -> int:
        """Bytes that a message of a client may have."""
        return self.server.options.max_payload

    @property
    def deliverable(self) -> int:
        """Bytes that a message of ours may have: the server is the same process, and delivers any."""
        return ANY_SIZE

    def publish(
        self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"", *, to_servers: bool = False
    ) -> bool:
        """Publishes one message. An inbox that is not a subject is as good as one where nobody listens."""
        if to_servers or self._is_inbox(subject):
            self._clients[role].publish(subject, payload, reply)
        return True

    def publish_block(self, role: Role, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        """Publishes rows of a block, one message each."""
        if self._is_inbox(subject):
            self._clients[role].publish_block(subject, block, begin, end)
        return True

    def publish_runs(self, role: Role, runs: Iterable[tuple[bytes, int, int]], block: Payloads) -> None:
        """Publishes rows of a block to several subjects."""
        self._clients[role].publish_runs([run for run in runs if self._is_inbox(run[0])], block)

    def publish_each(self, role: Role, messages: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
        """Publishes messages, each with its subject, to those who keep up. Returns the places of the others."""
        for subject, _ in messages:
            if not self._is_inbox(subject):
                messages = [each if self._is_inbox(each[0]) else (b"", each[1]) for each in messages]
                break
        return self._clients[role].publish_each(messages)

    def slow_down(self) -> None:
        """Reads more slowly from whoever has sent what a handler is given at the moment."""
        self._clients[Role.GENERAL].full = True

    def go_on(self) -> None:
        """Reads from all as fast as they send."""
        self._clients[Role.GENERAL].release_stalled()

    def request(
        self,
        role: Role,
        subject: bytes,
        payload: bytes,
        timeout: int,
        answer: Callable[[Answer], None],
        *,
        to_servers: bool = False,
    ) -> None:
        """Publishes with a reply subject of its own and reports what comes of it, later than this call."""

        def answered(found: bytes | None, no_responders: bool) -> None:
            if found is not None:
                answer(Answer(Outcome.REPLY, found))
            else:
                answer(Answer(Outcome.NO_RESPONDERS if no_responders else Outcome.TIMEOUT))

        if not (to_servers or self._is_inbox(subject)):
            subject = b""  # nobody can be there
        self._clients[role].request(subject, payload, timeout / _SECOND, answered)

    def listen(
        self, role: Role, subject: bytes, handler: Handler, *, gathered: bool = False, taker: Taker | None = None
    ) -> object:
        """Subscribes. Of what is gathered, acknowledgements come first: they make room for what is published with them.

        Raises:
            ValueError: The subject is not valid.
            PermissionError: The server does not allow it.
        """
        rank = 0 if not gathered else 1 if role is Role.ACKS else 2
        return self._clients[role].subscribe(subject, handler, rank=rank, taker=taker)

    def unlisten(self, subscription: object) -> None:
        """Unsubscribes."""
        assert isinstance(subscription, NatsSubscription)
        assert isinstance(subscription.client, InternalClient)
        subscription.client.unsubscribe(subscription)

    def barrier(self, done: Callable[[], None]) -> None:
        """Calls `done` when what reached the server before has been handed over: mostly at once."""
        self._clients[Role.GENERAL].barrier(done)

    def close(self) -> None:
        """Disconnects."""
        for client in self._clients.values():
            client.close()
