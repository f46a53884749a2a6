"""The bus to an external NATS server: connections that reconnect (streaming-protocol.md section 1.3)."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.bus.embedded import ROLES, client_name
from broker.log import NATS, STREAMING
from broker.reserved import ReservedSubjects
from broker.rounds import LoopRounds, nothing
from broker.streaming.ports import RequestAnswer, RequestOutcome, Role
from stantools.errors import StantoolsError, StoreUnreadableError, UsageError
from stantools.nats import encoding
from stantools.nats.client import ClientSettings, NatsClient, UnreachableError
from stantools.nats.credentials import tls_context
from stantools.nats.errors import NatsError
from stantools.nats.kernels import encode_publishes
from stantools.nats.login import Login, NatsAddress, redacted
from stantools.nats.subjects import valid_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from broker.config.broker_options import ConnectionOptions
    from stantools.nats.client import ConnectFailure, NatsMessage
    from stantools.nats.frames import FrameHandler, Handler, Payloads

_SECOND: Final = 1_000_000_000
#: bytes waiting for the server, beyond which senders from a store wait
_CONGESTED: Final = 8 << 20
#: longest pause of reading, in seconds, when there are too many requests; then one read is done
_PAUSE: Final = 1.0
_ONE_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+:[0-9]{1,5}/?\Z")


class BusError(StantoolsError):
    """No connection to NATS; the text is the original's."""


def servers(options: ConnectionOptions) -> list[NatsAddress]:
    if not ("@" in options.urls or "," in options.urls or _ONE_URL.match(options.urls)):
        raise BusError(f"malformed url: {redacted(options.urls)}")
    return [_server(url) for url in options.url_list]


def _server(url: str) -> NatsAddress:
    try:
        server = NatsAddress.parse(url)
    except UsageError as problem:
        why = f": {problem.message}: {problem.remedy}" if "@" in url else ""
        raise BusError(f"malformed url: {redacted(url)}{why}") from None
    if server.web:
        raise BusError(f"malformed url: {redacted(url)}")
    return server


class ExternalLink(NatsClient):
    """One of the streaming server's connections; logs its events."""

    def __init__(self, servers: list[NatsAddress], settings: ClientSettings) -> None:
        super().__init__(servers, settings)
        #: called when the server has announced unknown servers
        self.discovered: Callable[[], None] = lambda: None

    async def connect(self) -> None:
        try:
            await self.open()
        except UnreachableError as unreachable:
            problem = unreachable.failures[-1].problem
            if isinstance(problem, NatsError):
                raise BusError(problem.message) from problem
            if "certificate" in str(problem):
                raise BusError(f"x509: {problem}") from problem
            raise BusError(unreachable.message) from problem

    async def close(self) -> None:
        """Sends waiting data and disconnects for good."""
        await super().close()
        STREAMING.debug("connection %r has been closed", self.settings.name)

    def on_lost(self, reason: str) -> None:
        STREAMING.error('connection "%s" has been disconnected: %s', self.settings.name, reason)

    def on_back(self) -> None:
        STREAMING.info('connection "%s" reconnected to NATS Server at "%s"', self.settings.name, self.server)

    def on_unreachable(self, failure: ConnectFailure) -> None:
        STREAMING.debug("connection %r: no connection to %s: %s", self.settings.name, failure.server, failure.problem)

    def on_refused(self, text: str) -> None:
        STREAMING.error('connection "%s": %s', self.settings.name, text)

    def on_failed(self, problem: Exception) -> None:
        NATS.error("Error in a handler: %r", problem)
        NATS.debug("Details", exc_info=problem)

    def on_discovered(self) -> None:
        self.discovered()

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> bool:
        """Returns False if it could not be sent."""
        return not self._is_too_large(len(payload)) and self.send(encoding.publish(subject, payload, reply))

    def publish_block(self, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        """Publishes rows of a block; returns False if none was sent."""
        if begin >= end:
            return self.connected
        largest = int(block.sizes[begin]) if end - begin == 1 else int(block.sizes[begin:end].max())
        if not self.connected:
            return False
        if largest <= self.max_payload:
            return self.send(encode_publishes(block, begin, end, subject))
        # small messages do not wait for one that is too large
        sent = False
        for row in range(begin, end):
            if not self._is_too_large(int(block.sizes[row])):
                sent |= self.send(encode_publishes(block, row, row + 1, subject))
        return sent

    def _is_too_large(self, size: int) -> bool:
        if size > self.max_payload:
            STREAMING.error(
                'connection "%s": nats: maximum payload exceeded: a message of %d bytes is not sent, as max_payload of '
                "the NATS server is %d",
                self.settings.name,
                size,
                self.max_payload,
            )
            return True
        return False

    def request(self, subject: bytes, payload: bytes, timeout: int, answer: Callable[[RequestAnswer], None]) -> None:
        """Publishes with a unique reply subject and reports the answer, or its absence, after this call.

        If it cannot be sent, it ends with a timeout: whether there is a receiver is unknown.
        """
        loop = asyncio.get_running_loop()

        def answered(message: NatsMessage) -> None:
            timer.cancel()
            no_responder = not message.data and message.status == 503
            answer(
                RequestAnswer(RequestOutcome.NO_RESPONDERS)
                if no_responder
                else RequestAnswer(RequestOutcome.REPLY, message.data)
            )

        def too_late() -> None:
            if self.forget(asked):
                answer(RequestAnswer(RequestOutcome.TIMEOUT))

        asked = self.ask(subject, payload, answered)
        timer = loop.call_later(timeout / _SECOND, too_late)

    @property
    def congested(self) -> bool:
        """The server has not read much of the sent data."""
        return self._session is not None and self._session.pending > _CONGESTED

    def hold_back(self) -> None:
        """Buffers published data until `let_go`, which must be called in this or the next turn."""
        if self._session:
            self._session.hold_back()

    def let_go(self) -> None:
        if self._session:
            self._session.flush()

    def pause(self) -> None:
        """Reads no more from the server until `resume`, or until the connection is lost."""
        if self._session:
            self._session.pause_reading()

    def resume(self) -> None:
        if self._session:
            self._session.resume_reading()

    def flush(self, done: Callable[[], None]) -> None:
        """Calls `done` when both ends have received all data sent so far, or when the connection is lost."""
        if self._session:
            self._session.ping(lambda good: done())
        else:
            asyncio.get_running_loop().call_soon(done)


def _client_settings(options: ConnectionOptions) -> ClientSettings:
    nkey = Path(options.nkey_seed_file) if options.nkey_seed_file else None
    creds = Path(options.credentials) if options.credentials else None
    login = Login.read(user=options.user, password=options.password, token=options.token, nkey=nkey, creds=creds)
    tls = options.tls
    if tls is None:
        return ClientSettings("", login)
    try:
        context = tls_context(tls.ca, tls.cert, tls.key, verify=not tls.skip_verify)
    except StoreUnreadableError as problem:
        files = ", ".join(str(path) for path in (tls.ca, tls.cert, tls.key) if path)
        raise BusError(f"error parsing TLS files {files}: {problem.message}") from problem
    return ClientSettings("", login, context, tls.server_name)


class ExternalBus:
    """A `broker.streaming.ports.StreamingBus` over TCP. Nothing is buffered while a connection is lost.

    `roles` are the connections in the order of opening.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        cluster_id: bytes,
        *,
        roles: Iterable[Role] = ROLES,
        discover_prefix: bytes = b"",
    ) -> None:
        self._is_inbox: Final = ReservedSubjects(discover_prefix).is_inbox
        places, settings = servers(options), _client_settings(options)
        self._links = {
            role: ExternalLink(places, replace(settings, name=client_name(cluster_id, role))) for role in roles
        }
        self._pause: asyncio.TimerHandle | None = None
        #: Messages, and data that must precede them, use one connection: buffered data leaves in one write.
        sender = self._links[Role.SEND]
        self.rounds: Final = LoopRounds(nothing, sender.let_go, sender.hold_back)

    def on_discovered(self, discovered: Callable[[], None]) -> None:
        """Calls `discovered` when NATS announces unknown servers, if there are partitions."""
        if link := self._links.get(Role.PARTITIONS):
            link.discovered = discovered

    async def connect(self) -> None:
        """Opens the connections one after the other; after an error all are closed."""
        try:
            for link in self._links.values():
                await link.connect()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()

    @property
    def max_payload(self) -> int:
        """Largest message of any sender, in bytes."""
        return self._links[Role.SEND].max_payload

    @property
    def deliverable(self) -> int:
        """Largest message of this server, in bytes."""
        return self._links[Role.SEND].max_payload

    def publish(
        self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"", *, to_servers: bool = False
    ) -> bool:
        """Publishes one message. An inbox that is not a valid subject counts as one without subscribers."""
        return not (to_servers or self._is_inbox(subject)) or self._links[role].publish(subject, payload, reply)

    def publish_block(self, role: Role, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        """Publishes rows of a block, one message each, in one write."""
        return not self._is_inbox(subject) or self._links[role].publish_block(subject, block, begin, end)

    def publish_runs(self, role: Role, runs: Sequence[tuple[bytes, int, int]], block: Payloads) -> None:
        """Publishes rows of a block to several subjects."""
        for subject, begin, end in runs:
            self.publish_block(role, subject, block, begin, end)

    def publish_each(self, role: Role, messages: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
        """Publishes messages with their subjects while the NATS server keeps up; returns the indices of the others."""
        return [
            place
            for place, (subject, payload) in enumerate(messages)
            if self.congested(subject) or not self.publish(role, subject, payload)
        ]

    def congested(self, subject: bytes) -> bool:
        """Returns whether much data waits for the NATS server, which handles slow subscribers itself."""
        return self._links[Role.SEND].congested

    def has_receiver(self, subject: bytes) -> bool:
        """Returns True: only the NATS server knows the subscribers."""
        return True

    def slow_down(self) -> None:
        """Pauses reading of requests: the sender is unknown, so that no single client can be slowed down."""
        if self._pause is None:
            self._links[Role.GENERAL].pause()
            self._pause = asyncio.get_running_loop().call_later(_PAUSE, self.end_slowdown)

    def end_slowdown(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._links[Role.GENERAL].resume()

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
        if not (to_servers or self._is_inbox(subject)):
            asyncio.get_running_loop().call_soon(answer, RequestAnswer(RequestOutcome.NO_RESPONDERS))
            return
        self._links[role].request(subject, payload, timeout, answer)

    def listen(
        self, role: Role, subject: bytes, handler: Handler, *, gathered: bool = False, taker: FrameHandler | None = None
    ) -> object:
        """Subscribes, and again after each reconnect; raises ValueError for an invalid subject."""
        if not valid_pattern(subject):
            raise ValueError(f"nats: invalid subject {subject!r}")
        link = self._links[role]
        return link, link.subscribe(subject, handler)

    def unlisten(self, subscription: object) -> None:
        assert isinstance(subscription, tuple)
        link, sid = subscription
        link.unsubscribe(sid)

    def barrier(self, done: Callable[[], None]) -> None:
        """Calls `done` when every connection has answered a ping, or is lost."""
        left = len(self._links)

        def answered() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for link in self._links.values():
            link.flush(answered)
