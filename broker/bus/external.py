"""The bus to a NATS server somewhere else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.bus.embedded import ROLES, client_name, is_subject
from broker.bus.link import Link
from broker.bus.login import Login, servers
from broker.nats.identity import token
from broker.streaming.ports import Answer, Outcome, Role
from stantools.nats.subjects import valid_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.blocks import Payloads
    from broker.config.options import ConnectionOptions
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Handler

_SECOND: Final = 1_000_000_000
_NO_RESPONDERS: Final = b"NATS/1.0 503"


@dataclass(frozen=True, slots=True)
class _Subscription:
    link: Link
    sid: int


class _Requests:
    """Requests over one link: a wildcard inbox, and who waits for what."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._inbox = b""
        self._waiting: dict[bytes, tuple[Callable[[Answer], None], asyncio.TimerHandle]] = {}

    def send(self, subject: bytes, payload: bytes, timeout: int, answer: Callable[[Answer], None]) -> None:
        if not self._inbox:
            self._inbox = b"_INBOX." + token(22) + b"."
            self._link.subscribe(self._inbox + b"*", self._answered)
        word = token(8)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout / _SECOND, self._finish, word, Answer(Outcome.TIMEOUT))
        self._waiting[word] = answer, timer
        if not is_subject(subject):
            loop.call_soon(self._finish, word, Answer(Outcome.NO_RESPONDERS))
        else:
            # If it cannot be sent, the time runs out: nobody knows whether somebody is there.
            self._link.publish(subject, payload, self._inbox + word)

    def _answered(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        view = memoryview(buffer)
        for start, size, _, _, header_size, at, length, _ in frames[begin:end].tolist():
            word = bytes(view[start + len(self._inbox) : start + size])
            payload = bytes(view[at + header_size : at + length])
            nobody = not payload and bytes(view[at : at + header_size]).startswith(_NO_RESPONDERS)
            self._finish(word, Answer(Outcome.NO_RESPONDERS) if nobody else Answer(Outcome.REPLY, payload))

    def _finish(self, word: bytes, result: Answer) -> None:
        waiting = self._waiting.pop(word, None)
        if waiting:
            answer, timer = waiting
            timer.cancel()
            answer(result)

    def close(self) -> None:
        for _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()


class ExternalBus:
    """A `broker.streaming.ports.Bus` over TCP. Nothing is kept for later while a connection is lost.

    Args:
        options: Where and as whom to connect.
        cluster_id: Names the connections.
        partitions: Open the connection for partitioning, too.

    Raises:
        StantoolsError: A URL is malformed, or a file cannot be read.
    """

    def __init__(self, options: ConnectionOptions, cluster_id: bytes, *, partitions: bool = False) -> None:
        places, login = servers(options), Login(options)
        self._links = {
            role: Link(client_name(cluster_id, role), options, places, login)
            for role in ((*ROLES, Role.PARTITIONS) if partitions else ROLES)
        }
        #: Messages, and what has to be ahead of them, take one link: what is held back on it leaves in one write.
        self.hold_back: Final = self._links[Role.SEND].hold_back
        self.let_go: Final = self._links[Role.SEND].let_go
        self._requests = {role: _Requests(link) for role, link in self._links.items()}

    def on_discovered(self, discovered: Callable[[], None]) -> None:
        """Has `discovered` called whenever NATS tells about servers that were not known, if there are partitions."""
        if link := self._links.get(Role.PARTITIONS):
            link.on_discovered = discovered

    async def connect(self) -> None:
        """Opens the connections, one after the other.

        Raises:
            BusError: There is no server, or it refuses us; all connections are closed then.
        """
        try:
            for link in self._links.values():
                await link.connect()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Sends what waits, and disconnects."""
        for requests in self._requests.values():
            requests.close()
        for link in self._links.values():
            await link.close()

    @property
    def max_payload(self) -> int:
        """Bytes that a message may have."""
        return self._links[Role.SEND].max_payload

    def publish(self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"") -> bool:
        """Publishes one message. An inbox that is no subject is as good as one where nobody listens."""
        return not is_subject(subject) or self._links[role].publish(subject, payload, reply)

    def publish_block(self, role: Role, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        """Publishes rows of a block, one message each, in one write."""
        return not is_subject(subject) or self._links[role].publish_block(subject, block, begin, end)

    def congested(self, subject: bytes) -> bool:
        """Returns whether much waits for the NATS server, which looks after its clients itself."""
        return self._links[Role.SEND].congested

    def request(
        self, role: Role, subject: bytes, payload: bytes, timeout: int, answer: Callable[[Answer], None]
    ) -> None:
        """Publishes with a reply subject of its own and reports what comes of it, later than this call."""
        self._requests[role].send(subject, payload, timeout, answer)

    def listen(self, role: Role, subject: bytes, handler: Handler) -> object:
        """Subscribes, now and whenever the connection comes back.

        Raises:
            ValueError: The subject is not valid.
        """
        if not valid_pattern(subject):
            raise ValueError(f"nats: invalid subject {subject!r}")
        link = self._links[role]
        return _Subscription(link, link.subscribe(subject, handler))

    def unlisten(self, subscription: object) -> None:
        """Unsubscribes."""
        assert isinstance(subscription, _Subscription)
        subscription.link.unsubscribe(subscription.sid)

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
