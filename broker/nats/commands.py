"""What a client asks for besides publishing: to connect, to subscribe, to be answered. The rules of one connection."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Final

from broker.log import NATS, TRACE
from broker.nats.auth import Check, Credentials, Identity
from broker.nats.identity import nonce
from broker.nats.reasons import Reason
from broker.nats.subscription import Subscription
from stantools.nats import encoding, operations, subjects
from stantools.nats.frames import SUBJECT, SUBJECT_SIZE

if TYPE_CHECKING:
    from broker.nats.connection import Connection
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

_REASONS: Final = {
    operations.CLOSED_VIOLATION: Reason.VIOLATION,
    operations.CLOSED_LINE: Reason.MAX_CONTROL_LINE,
    operations.CLOSED_PAYLOAD: Reason.MAX_PAYLOAD,
    operations.CLOSED_PARSE: Reason.PARSE_ERROR,
}
#: Names that clients give themselves are shown up to this length.
_NAME: Final = 256


class Commands:
    """What one client said about itself, and what it wants.

    Attributes:
        authorized: It may do something.
        waiting: Its password is being checked; nothing is handled meanwhile.
        verbose: It wants +OK.
        pedantic: It wants its subjects checked.
        protocol: Whether it understands later INFO (1).
        nonce: What it has to sign; empty for nothing.
        identity: Who it is.
        credentials: What it said about that.
    """

    __slots__ = (
        "_connection",
        "_timer",
        "authorized",
        "credentials",
        "identity",
        "nonce",
        "options",
        "pedantic",
        "protocol",
        "verbose",
        "waiting",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        server = connection.server
        self.authorized = not server.authenticator.required
        self.waiting = False
        # Those who never say CONNECT get answers to everything.
        self.verbose = self.pedantic = True
        self.protocol = 0
        self.nonce = nonce() if server.authenticator.nkeys else ""
        self.identity = Identity()
        self.credentials = Credentials()
        self.options: dict[str, Any] = {}
        self._timer: asyncio.TimerHandle | None = None

    def greeted(self) -> None:
        """The client was sent INFO: the time to say who it is begins."""
        server = self._connection.server
        if server.authenticator.required:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(server.options.authorization.timeout, self._too_late)

    def ended(self) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if not self.authorized:
            NATS.debug("%s - %s", self._connection, Reason.AUTHENTICATION_TIMEOUT)
            self._connection.close(Reason.AUTHENTICATION_TIMEOUT, "Authentication Timeout")

    def who(self) -> str:
        """Returns the user, as logs show it."""
        if self.credentials.nkey:
            return f'Nkey "{self.credentials.nkey}"'
        return f'User "{self.credentials.user}"' if self.credentials.user else 'User "N/A"'

    # Operations

    def handle(self, event: operations.Event) -> None:
        """Does what the client asks for."""
        if self._connection.server.tracing:
            self._trace(event)
        if isinstance(event, operations.Connect):
            self._connect(event.options)
        elif not self.authorized:
            self.unauthorized()
        elif isinstance(event, operations.Sub):
            self._subscribe(event)
        elif isinstance(event, operations.Unsub):
            self._unsubscribe(event)
        elif isinstance(event, operations.Ping):
            self._connection.answer_ping()
            if self._connection.server.tracing:
                NATS.log(TRACE, "%s - ->> [PONG]", self._connection)
        elif isinstance(event, operations.Pong):
            self._pong()
        elif isinstance(event, operations.Err):
            NATS.error("%s - Client Error %s", self._connection, event.text)
            self._connection.close(Reason.PARSE_ERROR)

    def malformed(self, problem: operations.Malformed) -> None:
        """Ends the connection because of what the client sent."""
        if not self.authorized:
            self.unauthorized()
            return
        NATS.error("%s - %s", self._connection, problem.log)
        self._connection.close(_REASONS.get(problem.closed, Reason.VIOLATION), problem.answer)

    def unauthorized(self, text: str = "Authorization Violation") -> None:
        """Ends the connection: the client is not who it says, or said nothing."""
        NATS.error("%s - authentication error%s", self._connection, self._claim())
        self._connection.close(Reason.AUTHENTICATION_FAILURE, text)

    def _claim(self) -> str:
        said = self.credentials
        if self._connection.server.authenticator.nkeys:
            return f' - Nkey "{said.nkey}"'
        return f' - User "{said.user}"' if said.user else ""

    def before_publishes(self, data: Buffer, frames: Frames, rows: int) -> None:
        """Answers those who want every publish answered."""
        connection = self._connection
        permit = connection.permit
        view = memoryview(data)
        for row in range(rows):
            start, size = int(frames[row, SUBJECT]), int(frames[row, SUBJECT_SIZE])
            subject = bytes(view[start : start + size])
            if self.pedantic and not subjects.valid_subject(subject):
                connection.send_error("Invalid Publish Subject")
            if self.verbose and (permit is None or permit.may_publish(subject)):
                self._ok()

    def _ok(self) -> None:
        if self.verbose:
            self._connection.send(encoding.OK)
            if self._connection.server.tracing:
                NATS.log(TRACE, "%s - ->> [OK]", self._connection)

    def _connect(self, options: dict[str, Any]) -> None:
        connection = self._connection
        self.options = options
        names = connection.server.certificate_names(connection)
        self.credentials = Credentials.from_options(options, self.nonce, names)
        check = connection.server.authenticator.check(self.credentials)
        if not check.slow:
            self._checked(check, check.decide())
            return
        self.waiting = True
        connection.hold()

        def decided(passed: bool) -> None:
            self.waiting = False
            self._checked(check, passed)
            connection.resume()

        line = (connection.host, check.identity.name)
        connection.server.slow_checks.put(line, check, lambda: not connection.closed, decided)

    def _checked(self, check: Check, passed: bool) -> None:
        connection, options = self._connection, self.options
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
            NATS.error("%s - invalid client protocol", connection)
            connection.close(Reason.BAD_VERSION, "invalid client protocol")
            return
        connection.headers = bool(options.get("headers")) and not connection.server.options.no_header_support
        connection.no_responders = bool(options.get("no_responders"))
        if connection.no_responders and not connection.headers:
            NATS.error("%s - no responders requires headers support", connection)
            connection.close(Reason.NO_RESPONDERS, "no responders requires headers support")
            return
        connection.echo = bool(options.get("echo", True))
        connection.name = str(options.get("name", ""))[:_NAME]
        connection.lang = str(options.get("lang", ""))[:_NAME]
        connection.version = str(options.get("version", ""))[:_NAME]
        self.become(check.identity)
        self.authorized = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ok()

    def become(self, identity: Identity) -> None:
        """Gives the client the rights of a user."""
        connection = self._connection
        self.identity = identity
        connection.user = identity.name
        connection.permit = identity.permit
        connection.table = connection.server.router.table(identity.permit)

    def _subscribe(self, event: operations.Sub) -> None:
        connection = self._connection
        server = connection.server
        subject, queue, sid = event.subject, event.queue, event.sid
        if not subjects.valid_pattern(subject):
            connection.send_error("Invalid Subject")
            return
        permit = connection.permit
        if permit is not None and not permit.may_subscribe(subject, queue):
            self._subscribe_denied(subject, queue, sid)
            return
        limit = server.options.max_subscriptions
        if limit and len(connection.subscriptions) >= limit:
            NATS.error("%s - maximum subscriptions exceeded", connection)
            connection.send_error("maximum subscriptions exceeded")
            return
        if sid not in connection.subscriptions:
            subscription = Subscription(connection, sid, subject, queue)
            subscription.narrowed = permit is not None and permit.narrows(subject)
            server.router.subscribe(subscription)
        self._ok()

    def _subscribe_denied(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        text, group = subject.decode("utf-8", "replace"), queue.decode("utf-8", "replace")
        with_queue = f' using queue "{group}"' if queue else ""
        self._connection.send_error(f'Permissions Violation for Subscription to "{text}"{with_queue}')
        shown = f', Queue: "{group}"' if queue else ""
        name = sid.decode("utf-8", "replace")
        NATS.error(
            '%s - Subscription Violation - %s, Subject "%s"%s, SID %s', self._connection, self.who(), text, shown, name
        )

    def _unsubscribe(self, event: operations.Unsub) -> None:
        connection = self._connection
        subscription = connection.subscriptions.get(event.sid)
        if subscription is not None:
            if event.maximum > subscription.delivered:
                subscription.limit = event.maximum
            else:
                connection.server.router.unsubscribe(subscription)
        self._ok()

    def _pong(self) -> None:
        connection = self._connection
        connection.pings = 0
        if connection.ping_sent:
            connection.rtt = time.monotonic_ns() - connection.ping_sent
            connection.ping_sent = 0

    def recheck(self) -> None:
        """After a reload: the client goes if it may not stay, and loses what it may not have."""
        connection = self._connection
        if not self.authorized:
            return
        identity = connection.server.authenticator.still(self.identity, self.credentials)
        if identity is None:
            self.unauthorized()
            return
        self.become(identity)
        permit = connection.permit
        for subscription in list(connection.subscriptions.values()):
            subject, queue = subscription.subject, subscription.queue
            if permit is not None and not permit.may_subscribe(subject, queue):
                connection.server.router.unsubscribe(subscription)
                text = subject.decode("utf-8", "replace")
                sid = subscription.sid.decode("utf-8", "replace")
                connection.send_error(f'Permissions Violation for Subscription to "{text}" (sid "{sid}")')
                NATS.info('%s - Removed sub "%s" (sid "%s") for %s - not authorized', connection, text, sid, self.who())
            else:
                subscription.narrowed = permit is not None and permit.narrows(subject)

    def _trace(self, event: operations.Event) -> None:
        connection = self._connection
        if isinstance(event, operations.Connect):
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
        NATS.log(TRACE, "%s - <<- [%s]", connection, text)
