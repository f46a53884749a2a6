"""The protocol rules of one connection: authentication, operations other than publishing, and keep-alive."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from abc import abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from broker.log import NATS, TRACE
from broker.nats import tls, tracing
from broker.nats.auth import Check, ClientCredentials, Identity, nonce
from broker.nats.client import BrokerClient, ClientState, CloseReason, NatsSubscription
from broker.nats.subscriptions import SubjectTable
from stantools.nats import encoding, operations, subjects
from stantools.nats.frames import REPLY, REPLY_SIZE, SUBJECT, SUBJECT_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.nats.auth import Authenticator, SlowChecks
    from broker.nats.client_router import ClientRouter
    from broker.nats.fair_scheduler import FairScheduler, Mailbox
    from broker.nats.nats_options import NatsOptions
    from broker.nats.router import Router
    from broker.nats.subscriptions import Subscriptions
    from broker.rounds import LoopRounds
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

_REASONS: Final = {
    operations.CLOSED_VIOLATION: CloseReason.VIOLATION,
    operations.CLOSED_LINE: CloseReason.MAX_CONTROL_LINE,
    operations.CLOSED_PAYLOAD: CloseReason.MAX_PAYLOAD,
    operations.CLOSED_PARSE: CloseReason.PARSE_ERROR,
}
C = TypeVar("C", contravariant=True)

#: Maximum length of client names in views.
_MAX_NAME: Final = 256
#: Maximum number of reply subjects kept for permission to respond.
_MAX_REPLIES: Final = 65536
_NO_EXPIRY: Final = 1 << 63
_SECOND: Final = 1_000_000_000
#: Seconds between a client's first PONG and the first PING to measure its round trip; partly random.
FIRST_PING = 1.0


class SessionServer(Protocol[C]):
    """The server seen by its clients; `C` is its class of connections."""

    options: NatsOptions
    router: Router
    client_router: ClientRouter
    subscriptions: Subscriptions
    authenticator: Authenticator
    #: pending checks of hashed passwords
    slow_checks: SlowChecks
    #: turns on the event loop
    turns: FairScheduler
    rounds: LoopRounds
    #: messages between parts of this process
    mailbox: Mailbox
    #: log protocol messages
    tracing: bool
    #: connections closed because they were too slow
    slow_consumers: int
    #: read buffer and frame table of all connections
    read_buffer: bytearray
    read_view: memoryview
    frames: Frames

    def accept(self, connection: C) -> None: ...

    def dirty(self, connections: Iterable[C]) -> None: ...

    def ended(self, connection: C) -> None: ...

    def forget(self, client: BrokerClient) -> None: ...

    def apply_input(self) -> None:
        """Applies gathered input."""

    @property
    def has_undelivered(self) -> bool:
        """Whether earlier messages still wait for their delivery."""


def first_ping(interval: float) -> int:
    """Returns the delay in ns between a client's first PONG and its first PING."""
    return int(min(interval, FIRST_PING * (1 + random.random())) * _SECOND)


@dataclass(slots=True, eq=False)
class ClientSession(BrokerClient):
    """A client that speaks the protocol: its options, its requests, its keep-alive.

    Attributes:
        verbose: It wants +OK.
    """

    server: SessionServer[Any] = field(kw_only=True)
    table: SubjectTable = field(init=False)  #: subjects that it may publish to
    nonce: str = field(init=False)  #: nonce to sign; empty for none
    # Clients without a CONNECT get all answers.
    verbose: bool = True
    pedantic: bool = True  #: checks of its subjects are requested
    protocol: int = 0  #: 1 if it supports later INFO
    pings: int = 0  #: unanswered pings
    ping_sent: int = 0  #: time of the last unanswered ping, monotonic ns; 0 for none
    ping_at: int = 0  #: time of the next ping, monotonic ns
    active: bool = False  #: input since the last check
    ponged: bool = False  #: a PONG was sent to it
    waits: bool = False  #: some of its input waits in the shared buffer
    tls: ssl.SSLObject | None = None  #: the TLS connection, if any
    _timer: asyncio.TimerHandle | None = None
    _replies: OrderedDict[bytes, list[int]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.table = self.server.subscriptions.table(None)
        self.nonce = nonce() if self.server.authenticator.nkeys else ""

    # Socket

    @abstractmethod
    def send(self, data: bytes) -> None: ...

    @abstractmethod
    def close(self, reason: CloseReason, error: str = "", *, abort: bool = False) -> None: ...

    @abstractmethod
    def hear(self, data: bytes) -> None: ...

    @abstractmethod
    def hold(self) -> None: ...

    @abstractmethod
    def resume(self) -> None: ...

    def send_error(self, text: str) -> None:
        if self.server.tracing:
            NATS.log(TRACE, "%s - ->> [-ERR %s]", self, text)
        self.send(encoding.error(text))

    # Authentication

    def start_authentication_timer(self) -> None:
        """Starts the time limit for authentication, after INFO."""
        server = self.server
        if server.authenticator.required:
            self.advance(ClientState.GREETED)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(server.options.authorization.timeout, self._on_timeout)
        else:
            self.advance(ClientState.OPEN)

    def stop_timer(self) -> None:
        """Ends the time limit: the client is authenticated, or gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        NATS.debug("%s - %s", self, CloseReason.AUTHENTICATION_TIMEOUT)
        self.close(CloseReason.AUTHENTICATION_TIMEOUT, "Authentication Timeout")

    def who(self) -> str:
        if self.credentials.nkey:
            return f'Nkey "{self.credentials.nkey}"'
        return f'User "{self.credentials.user}"' if self.credentials.user else 'User "N/A"'

    # Operations

    def handle(self, event: operations.Event) -> None:
        if self.server.tracing:
            self._trace(event)
        if isinstance(event, operations.ConnectOperation):
            self._connect(event.options)
        elif self.state is ClientState.GREETED:
            self.unauthorized()
        elif isinstance(event, operations.Sub):
            self._subscribe(event)
        elif isinstance(event, operations.Unsub):
            self._unsubscribe(event)
        elif isinstance(event, operations.Ping):
            self._answer_ping()
        elif isinstance(event, operations.Pong):
            self.pings = 0
            if self.ping_sent:
                self.rtt = time.monotonic_ns() - self.ping_sent
                self.ping_sent = 0
        elif isinstance(event, operations.Err):
            NATS.error("%s - Client Error %s", self, event.text)
            self.close(CloseReason.PARSE_ERROR)

    def malformed(self, problem: operations.MalformedOperation) -> None:
        if self.state is ClientState.GREETED:
            self.unauthorized()
            return
        NATS.error("%s - %s", self, problem.log)
        self.close(_REASONS.get(problem.closed, CloseReason.VIOLATION), problem.answer)

    def unauthorized(self) -> None:
        claim = ""
        if self.server.authenticator.nkeys:
            claim = f' - Nkey "{self.credentials.nkey}"'
        elif self.credentials.user:
            claim = f' - User "{self.credentials.user}"'
        NATS.error("%s - authentication error%s", self, claim)
        self.close(CloseReason.AUTHENTICATION_FAILURE, "Authorization Violation")

    def before_publishes(self, data: Buffer, frames: Frames, rows: int) -> None:
        """Answers each publish of verbose and pedantic clients."""
        permit = self.permit
        view = memoryview(data)
        for row in range(rows):
            start, size = int(frames[row, SUBJECT]), int(frames[row, SUBJECT_SIZE])
            subject = bytes(view[start : start + size])
            if self.pedantic and not subjects.valid_subject(subject):
                self.send_error("Invalid Publish Subject")
            if self.verbose and (permit is None or permit.may_publish(subject)):
                self._ok()

    def _ok(self) -> None:
        if self.verbose:
            self.send(encoding.OK)
            if self.server.tracing:
                NATS.log(TRACE, "%s - ->> [OK]", self)

    def _connect(self, options: dict[str, Any]) -> None:
        # the names in its certificate, if they matter
        names = tls.names(self.tls) if self.server.authenticator.map_certificates else None
        self.credentials = ClientCredentials.from_options(options, self.nonce, names)
        check = self.server.authenticator.check(self.credentials)
        if not check.slow:
            self._checked(check, check.decide(), options)
            return
        self.advance(ClientState.CHECKING)
        self.hold()

        def decided(passed: bool) -> None:
            self._checked(check, passed, options)
            self.resume()

        line = (self.host, check.identity.name)
        self.server.slow_checks.put(line, check, lambda: not self.closed, decided)

    def _checked(self, check: Check, passed: bool, options: dict[str, Any]) -> None:
        if not passed:
            self.unauthorized()
            return
        self.verbose = bool(options.get("verbose", True))
        self.pedantic = bool(options.get("pedantic", True))
        if options.get("account") or options.get("new_account"):
            self.unauthorized()
            return
        self.protocol = int(options.get("protocol", 0))
        if self.protocol not in (0, 1):
            NATS.error("%s - invalid client protocol", self)
            self.close(CloseReason.BAD_VERSION, "invalid client protocol")
            return
        self.headers = bool(options.get("headers")) and not self.server.options.no_header_support
        self.no_responders = bool(options.get("no_responders"))
        if self.no_responders and not self.headers:
            NATS.error("%s - no responders requires headers support", self)
            self.close(CloseReason.NO_RESPONDERS, "no responders requires headers support")
            return
        self.echo = bool(options.get("echo", True))
        self.name = str(options.get("name", ""))[:_MAX_NAME]
        self.lang = str(options.get("lang", ""))[:_MAX_NAME]
        self.version = str(options.get("version", ""))[:_MAX_NAME]
        self.become(check.identity)
        self.advance(ClientState.OPEN)
        self.stop_timer()
        self._ok()

    def become(self, identity: Identity) -> None:
        # super() would look for the class as it was before it got slots.
        BrokerClient.become(self, identity)
        self.table = self.server.subscriptions.table(identity.permit)

    def _subscribe(self, event: operations.Sub) -> None:
        server = self.server
        subject, queue, sid = event.subject, event.queue, event.sid
        if not subjects.valid_pattern(subject):
            self.send_error("Invalid Subject")
            return
        permit = self.permit
        if permit is not None and not permit.may_subscribe(subject, queue):
            self._subscribe_denied(subject, queue, sid)
            return
        limit = server.options.max_subscriptions
        if limit and len(self.subscriptions) >= limit:
            NATS.error("%s - maximum subscriptions exceeded", self)
            self.send_error("maximum subscriptions exceeded")
            return
        if sid not in self.subscriptions:
            subscription = NatsSubscription(self, sid, subject, queue)
            subscription.narrowed = permit is not None and permit.narrows(subject)
            server.subscriptions.add(subscription)
        self._ok()

    def _subscribe_denied(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        text, group = subject.decode("utf-8", "replace"), queue.decode("utf-8", "replace")
        with_queue = f' using queue "{group}"' if queue else ""
        self.send_error(f'Permissions Violation for Subscription to "{text}"{with_queue}')
        shown = f', Queue: "{group}"' if queue else ""
        name = sid.decode("utf-8", "replace")
        NATS.error('%s - Subscription Violation - %s, Subject "%s"%s, SID %s', self, self.who(), text, shown, name)

    def _unsubscribe(self, event: operations.Unsub) -> None:
        subscription = self.subscriptions.get(event.sid)
        if subscription is not None:
            if event.maximum > subscription.delivered:
                subscription.limit = event.maximum
            else:
                self.server.subscriptions.remove(subscription)
        self._ok()

    # Keep-alive

    def _answer_ping(self) -> None:
        """Sends PONG.

        Only from now on the client may get a PING: many clients take earlier input as the answer to their own.
        """
        self.send(encoding.PONG)
        if not self.ponged:
            self.ponged = True
            self.ping_at = min(self.ping_at, time.monotonic_ns() + first_ping(self.server.options.ping_interval))
        if self.server.tracing:
            NATS.log(TRACE, "%s - ->> [PONG]", self)

    def ping_if_due(self, now: int) -> None:
        """Pings the client when due (monotonic ns), or closes the connection after too many unanswered pings."""
        if self.ping_at > now:
            return
        options = self.server.options
        self.ping_at = now + int(options.ping_interval * _SECOND)
        if self.state is not ClientState.OPEN:
            return
        # An active client is alive; it is pinged only to measure the round trip.
        talks, self.active = self.active, False
        if talks and self.rtt:
            self.pings = 0
            return
        if self.pings >= options.ping_max:
            NATS.debug("%s - Stale Client Connection - Closing", self)
            self.close(CloseReason.STALE, "Stale Connection", abort=self.pending > 0)
            return
        self.pings += 1
        self.ping_sent = now
        self.send(encoding.PING)
        if self.server.tracing:
            NATS.log(TRACE, "%s - ->> [PING]", self)

    # Permissions

    def recheck(self) -> None:
        """Applies a reload: closes the connection or removes subscriptions that are no longer allowed."""
        if self.state is not ClientState.OPEN and not self.subscriptions:
            return
        identity = self.server.authenticator.recheck(self.identity, self.credentials)
        if identity is None:
            self.unauthorized()
            return
        self.become(identity)
        permit = self.permit
        for subscription in list(self.subscriptions.values()):
            subject, queue = subscription.subject, subscription.queue
            if permit is not None and not permit.may_subscribe(subject, queue):
                self.server.subscriptions.remove(subscription)
                text = subject.decode("utf-8", "replace")
                sid = subscription.sid.decode("utf-8", "replace")
                self.send_error(f'Permissions Violation for Subscription to "{text}" (sid "{sid}")')
                NATS.info('%s - Removed sub "%s" (sid "%s") for %s - not authorized', self, text, sid, self.who())
            else:
                subscription.narrowed = permit is not None and permit.narrows(subject)

    def report_no_responders(self, reply: bytes) -> None:
        for subscription in self.server.subscriptions.interest.match(reply).plain:
            if subscription.client is self:
                self.send(encoding.message(reply, subscription.sid, b"", b"", encoding.NO_RESPONDERS))
                if self.server.tracing:
                    tracing.delivery(self, subscription, reply, b"", 0, len(encoding.NO_RESPONDERS))
                return

    def publish_denied(self, subject: bytes) -> None:
        text = subject.decode("utf-8", "replace")
        self.send_error(f'Permissions Violation for Publish to "{text}"')
        NATS.error('%s - Publish Violation - %s, Subject "%s"', self, self.who(), text)

    def may_respond(self, subject: bytes) -> bool:
        """Returns whether the client may answer a received message with this reply subject; counts the answer."""
        entry = self._replies.get(subject)
        if entry is None:
            return False
        if entry[1] <= time.monotonic_ns():
            del self._replies[subject]
            return False
        entry[0] -= 1
        if entry[0] == 0:
            del self._replies[subject]
        return True

    def remember_replies(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        """Keeps the reply subjects of messages to the client, for permission to respond."""
        view = memoryview(buffer)
        for row in range(begin, end):
            size = int(frames[row, REPLY_SIZE])
            if size:
                start = int(frames[row, REPLY])
                self.remember_reply(bytes(view[start : start + size]))

    def remember_reply(self, reply: bytes) -> None:
        assert self.permit is not None and self.permit.responses is not None
        rule = self.permit.responses
        now = time.monotonic_ns()
        # Entries are in order of age, and all have the same lifetime.
        while self._replies:
            oldest = next(iter(self._replies))
            if self._replies[oldest][1] > now and len(self._replies) < _MAX_REPLIES:
                break
            del self._replies[oldest]
        self._replies.pop(reply, None)
        # Negative values mean unlimited.
        expires = now + int(rule.expires * 1e9) if rule.expires >= 0 else _NO_EXPIRY
        self._replies[reply] = [rule.max_msgs, expires]

    def _trace(self, event: operations.Event) -> None:
        if isinstance(event, operations.ConnectOperation):
            shown = {
                key: "[REDACTED]" if key in ("pass", "auth_token", "sig", "jwt") else value
                for key, value in event.options.items()
            }
            text = "CONNECT " + json.dumps(shown, separators=(",", ":"), ensure_ascii=False)
        elif isinstance(event, operations.Sub):
            words = [word for word in (event.subject, event.queue, event.sid) if word]
            text = "SUB " + b" ".join(words).decode("utf-8", "replace")
        elif isinstance(event, operations.Unsub):
            text = f"UNSUB {event.sid.decode('utf-8', 'replace')}" + (f" {event.maximum}" if event.maximum else "")
        else:
            text = type(event).__name__.upper()
        NATS.log(TRACE, "%s - <<- [%s]", self, text)
