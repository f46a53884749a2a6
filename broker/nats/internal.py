"""Clients in this process: the streaming server's own connections.

Messages from sockets are handed to handlers at once, within the read. Messages between clients of this process wait
in a mailbox until the end of that, so that no handler is called from within a handler.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from broker.log import NATS
from broker.nats.client import CLOSED, BrokerClient, ClientState, NatsSubscription
from broker.nats.client_session import SessionServer
from broker.nats.fair_scheduler import Mailbox
from broker.nats.nats_options import VERSION
from broker.reserved import ReservedSubjects
from stantools.nats import subjects
from stantools.nats.frames import HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE, for_each, frame_table, rows

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import FrameHandler, Frames, Handler, Payloads

#: Gets the payload of an answer, or None and whether there were no responders; otherwise the time was up.
Callback = Callable[[bytes | None, bool], None]


@dataclass(slots=True, eq=False)
class _PendingRequest:
    callback: Callback
    timer: asyncio.TimerHandle


@dataclass(slots=True, eq=False)
class InternalClient(BrokerClient):
    server: SessionServer[Any] = field(kw_only=True)
    mailbox: Mailbox = field(kw_only=True)  #: messages from this process
    #: Called if the server closes the client: it is no longer allowed after a reload.
    on_closed: Callable[[], None] | None = None
    _sids: int = 0
    _inbox: bytes = b""
    _requests: dict[bytes, _PendingRequest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.headers = True
        self.host = "127.0.0.1"
        self.lang = "python"
        self.version = VERSION
        self.state = ClientState.OPEN

    def __str__(self) -> str:
        return f"{self.name} - cid:{self.cid}"

    def subscribe(
        self,
        subject: bytes,
        handler: Handler,
        queue: bytes = b"",
        rank: int = 0,
        taker: FrameHandler | None = None,
        but: bytes = b"",
    ) -> NatsSubscription:
        """Subscribes. Messages from sockets are handed over within the read.

        Args:
            subject: Subject, possibly with wildcards.
            handler: Takes rows of a table; buffer and table are valid during the call only.
            queue: Queue group; empty for none.
            rank: 1 to 255: publishes of many clients may be gathered and handed over at the end of a round of
                the event
            loop, lower ranks first. 0: handed over at once.
            taker: Gets single gathered messages for all handlers that have it; it cannot ask for a pause.
            but: Subject of another subscription of this client whose messages are excluded here; empty for none.

        Raises:
            ValueError: The subject is not valid.
            PermissionError: The user may not subscribe to it.
        """
        if not subjects.valid_pattern(subject):
            raise ValueError(f"nats: invalid subject {subject!r}")
        if self.permit is not None and not self.permit.may_subscribe(subject, queue):
            text = subject.decode(errors="replace")
            NATS.error('%s - Subscription Violation - User "%s", Subject "%s"', self, self.user, text)
            raise PermissionError(f'nats: Permissions Violation for Subscription to "{text}"')
        self._sids += 1
        subscription = NatsSubscription(self, b"%d" % self._sids, subject, queue, handler, taker, rank)
        subscription.but = but
        subscription.narrowed = self.permit is not None and self.permit.narrows(subject)
        self.server.subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: NatsSubscription) -> None:
        """Ends a subscription; its handler is not called any more."""
        self.server.subscriptions.remove(subscription)

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> int:
        """Publishes one message; without a subject it does nothing.

        `header` is a header block with its empty line. Returns the number of receivers; 0 also for a message that is
        too large or not allowed.
        """
        size = len(header) + len(payload)
        if self.state is CLOSED or not subject or not self.may_publish(subject, size):
            return 0
        self.last_activity = time.time_ns()
        return self.server.router.publish_one(self, subject, reply, header + payload, len(header))

    def may_publish(self, subject: bytes, size: int) -> bool:
        if self.permit is not None and not self.permit.may_publish(subject):
            text = subject.decode(errors="replace")
            NATS.error('%s - Publish Violation - User "%s", Subject "%s"', self, self.user, text)
            return False
        if size > self.server.options.max_payload:
            NATS.error("%s - maximum payload exceeded: %d vs %d", self, size, self.server.options.max_payload)
            return False
        return True

    def request(self, subject: bytes, payload: bytes, timeout_seconds: float, callback: Callback) -> None:
        """Publishes with a reply subject of its own and reports the first answer, later than this call.

        `callback` gets the payload and False; None and True without responders; None and False after the timeout.
        """
        if not self._inbox:
            self._inbox = f"_INBOX.{secrets.token_hex(11)}.".encode()
            self.subscribe(self._inbox + b"*", self._answered)
        reply = secrets.token_hex(4).encode()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_seconds, self._time_out, reply)
        self._requests[reply] = _PendingRequest(callback, timer)
        if not self.publish(subject, payload, self._inbox + reply):
            self.mailbox.put(lambda: self._finish(reply, None, True))

    def _answered(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        for_each(rows(buffer, frames, begin, end), self._take_answer)

    def _take_answer(self, message: tuple[bytes, bytes, bytes, bytes]) -> None:
        subject, _, header, payload = message
        nobody = not payload and header.startswith(b"NATS/1.0 503")
        self._finish(subject[len(self._inbox) :], None if nobody else payload, nobody)

    def _time_out(self, reply: bytes) -> None:
        self.server.apply_input()
        self._finish(reply, None, False)

    def _finish(self, reply: bytes, payload: bytes | None, nobody: bool) -> None:
        request = self._requests.pop(reply, None)
        if request is not None:
            request.timer.cancel()
            request.callback(payload, nobody)

    def barrier(self, done: Callable[[], None]) -> None:
        """Calls `done` after all earlier messages between parts of this process have been handed over."""
        if self.server.has_undelivered:
            self.mailbox.barrier(done)
        else:
            done()

    def close(self) -> None:
        """Disconnects and drops pending requests silently."""
        if self.closed:
            return
        for subscription in list(self.subscriptions.values()):
            self.server.subscriptions.remove(subscription)
        self.advance(ClientState.CLOSED)
        for request in self._requests.values():
            request.timer.cancel()
        self._requests.clear()
        self.server.forget(self)

    def recheck(self) -> None:
        """Closes itself if it is no longer allowed after a reload; its subscriptions stay."""
        identity = self.server.authenticator.recheck(self.identity, self.credentials)
        if identity is None:
            NATS.error("%s - authentication error", self)
            self.close()
            if self.on_closed is not None:
                self.on_closed()
            return
        self.become(identity)

    # Messages to it

    def take_block(self, subscription: NatsSubscription, subject: bytes, block: Payloads, begin: int, end: int) -> None:
        for row in range(begin, end):
            self.take_one(subscription, subject, b"", block.payload(row), 0)

    def take_one(
        self, subscription: NatsSubscription, subject: bytes, reply: bytes, payload: bytes, header_size: int
    ) -> None:
        data = b"%b%b%b" % (subject, reply, payload)
        frames = frame_table(1)
        at = len(subject) + len(reply)
        frames[0] = np.array((0, len(subject), len(subject), len(reply), 0, at, len(payload), -1), np.int32)
        frames[0, HEADER_SIZE] = header_size
        assert frames[0, PAYLOAD] + frames[0, PAYLOAD_SIZE] == len(data)

        def hand_over() -> None:
            if not subscription.closed and subscription.handler is not None:
                subscription.handler(data, frames, 0, 1)

        self.mailbox.put(hand_over)


@dataclass(slots=True, eq=False)
class SystemClient(InternalClient):
    """The server itself: without permissions and invisible to views.

    Clients name most of its subjects, so it publishes nothing to reserved ones (`broker.reserved`).
    """

    reserved: ReservedSubjects = field(default_factory=ReservedSubjects)

    def publish_anything(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        if subject in self.reserved:
            return
        if header:
            payload = header + payload
        self.server.router.publish_one(self, subject, reply, payload, len(header))

    def send(
        self, to: bytes, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"", group: bytes = b""
    ) -> None:
        """Hands a message to the subscribers of `to`, who see `subject`.

        `header` is a header block with its empty line, or empty. With a `group`, only one member of that queue group
        gets it.
        """
        if to in self.reserved:
            return
        self.last_activity = time.time_ns()
        self.server.router.hand_to(self, to, subject, reply, header + payload, len(header), group)

    def publish_rows(self, buffer: Buffer, frames: Frames) -> None:
        """Publishes the rows of a table, each to its subject unless that is reserved."""
        self.last_activity = time.time_ns()
        self.server.router.publish_rows(self, buffer, frames, self.reserved)

    def send_rows(self, to: bytes, buffer: Buffer, frames: Frames) -> None:
        """Hands the rows of a table to the subscribers of `to`, which must be on sockets and without a limit."""
        if to in self.reserved:
            return
        self.last_activity = time.time_ns()
        self.server.router.hand_rows(self, to, buffer, frames)

    def recheck(self) -> None: ...
