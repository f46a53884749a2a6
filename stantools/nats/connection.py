"""A client that waits: requests with their answers, inboxes, and every failure as an error of ours.

What happens when the connection breaks: the client tries all servers it knows again and again, each once in
`RECONNECT_WAIT` seconds, at least a minute long. Whatever waits for an answer at that moment fails at once
(`ConnectionLostError`) instead of running into its timeout; whether to ask again is for the caller to decide.

What the server refuses: it answers a publish or a subscription that is not permitted with an error that belongs to
no request. `watch` connects the two, so that this too is raised at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stantools import __version__
from stantools.errors import UsageError
from stantools.nats import encoding
from stantools.nats.client import Client, Manners, Message, UnreachableError, one_by_one
from stantools.nats.credentials import tls_context
from stantools.nats.errors import (
    CannotConnectError,
    ConnectionLostError,
    LoginError,
    NatsError,
    NoAnswerError,
    NobodyListensError,
    NotEncryptedError,
    PermissionDeniedError,
)
from stantools.nats.inbox import Inbox
from stantools.nats.login import Server
from stantools.nats.options import EMBEDDED, ConnectOptions

if TYPE_CHECKING:
    from stantools.nats.client import Failure
    from stantools.nats.inbox import Received

_T = TypeVar("_T")

#: Seconds between two attempts to connect to the same server again.
RECONNECT_WAIT: Final = 0.5
#: Attempts for each server until we give up.
RECONNECT_ATTEMPTS: Final = 120
_PING_SECONDS = 20
_AGAIN = "check the server, then run the command again"
_DEFAULT_INBOX = "_INBOX"
_NOBODY = 503
_VIOLATION = re.compile(r'permissions violation for (publish|subscription)[^"]*"([^"]*)"', re.IGNORECASE)
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class Connection(Client):
    """A connection, made by `connect`.

    Args:
        options: How, as `ConnectOptions.checked` returns them.
        name: What the server's monitoring shows.
    """

    def __init__(self, options: ConnectOptions, name: str) -> None:
        context = None
        if options.wants_tls:
            context = tls_context(options.tls_ca, options.tls_cert, options.tls_key, verify=not options.tls_insecure)
        manners = Manners(
            name,
            options.login,
            context,
            options.tls_hostname or "",
            options.tls_first,
            timeout=options.timeout,
            pause=RECONNECT_WAIT,
            attempts=RECONNECT_ATTEMPTS,
            ping=_PING_SECONDS,
            inbox=options.inbox_prefix or _DEFAULT_INBOX,
        )
        super().__init__([Server.parse(server) for server in options.servers], manners)
        self.options = options
        # What is waited for -> the subjects that it takes.
        self._watches: dict[asyncio.Future[NatsError], frozenset[str]] = {}
        self._inboxes: dict[Inbox, int] = {}
        self._no_inbox = False
        self._reason = ""

    @property
    def version(self) -> tuple[int, int, int]:
        """The server's version; zeros if it is none that we know how to read."""
        found = _VERSION.match(str(self.info.get("version", "")))
        return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)

    @property
    def server_name(self) -> str:
        """The server's name."""
        return str(self.info.get("server_name") or self.info.get("server_id") or "unknown")

    @property
    def cluster(self) -> str | None:
        """Name of the cluster that the server belongs to, if it does."""
        name = self.info.get("cluster")
        return str(name) if name else None

    @property
    def url(self) -> str:
        """Where we are connected, or were before the connection broke, without user and password."""
        return self.server.url

    # Waiting

    @contextlib.contextmanager
    def watch(self, *subjects: bytes | str) -> Iterator[asyncio.Future[NatsError]]:
        """Watches for what makes waiting useless; the future's result is the error to raise.

        Args:
            subjects: What is published or subscribed to meanwhile, as it is sent to the server.
        """
        failed: asyncio.Future[NatsError] = asyncio.get_running_loop().create_future()
        texts = (subject if isinstance(subject, str) else subject.decode(errors="replace") for subject in subjects)
        self._watches[failed] = frozenset(texts)
        if self.closed:
            failed.set_result(self._given_up())
        try:
            yield failed
        finally:
            del self._watches[failed]

    async def wait_for(self, wanted: Awaitable[_T], failed: asyncio.Future[NatsError], timeout: float, what: str) -> _T:
        """Waits for one of three: what is wanted, a failure seen by `watch`, or the timeout.

        Args:
            wanted: What should come; it is cancelled if it does not.
            failed: From `watch`.
            timeout: Seconds.
            what: Names it in the message: "the server did not answer <what> within 5 s".

        Raises:
            NatsError: Something else came, or nothing.
        """
        coming = asyncio.ensure_future(wanted)
        # Its end must have been looked at, or asyncio complains about it later.
        coming.add_done_callback(lambda future: future.cancelled() or future.exception())
        either: set[asyncio.Future[Any]] = {coming, failed}
        try:
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                return coming.result()
        finally:
            coming.cancel()
        if failed.done():
            raise failed.result()
        raise NoAnswerError(
            f"{self.url} did not answer {what} within {timeout:g} s",
            "see the server's log, or allow more time with --timeout",
        )

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Waits until the client is connected, which it normally is.

        Raises:
            ConnectionLostError: It was not in time, or has given up.
        """
        timeout = self.options.timeout if timeout is None else timeout
        if not self.connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._settled.wait()
        if self.closed:
            raise self._given_up()
        if not self.connected:
            raise ConnectionLostError(
                f"{self.url}: the connection broke and did not come back within {timeout:g} s", _AGAIN
            )

    # Sending

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", header: bytes = b"") -> None:
        """Publishes one message on this connection, or not at all. Who publishes many calls `drain` now and then.

        Args:
            subject: Where to.
            payload: What.
            reply: Reply subject.
            header: Header block.

        Raises:
            ConnectionLostError: There is no connection.
        """
        self._must_send(encoding.publish(subject, payload, reply, header))

    async def write(self, frames: bytes) -> None:
        """Sends whole frames at once on this connection, or not at all, and waits while too much is to be sent already.

        Raises:
            ConnectionLostError: The connection broke.
        """
        self._must_send(frames)
        await self.drain()

    def _must_send(self, frames: bytes) -> None:
        if not self.send(frames):
            raise ConnectionLostError(f"{self.url}: the connection broke", _AGAIN)

    async def drain(self) -> None:
        """Sends what was published, and waits until the server has read so much of it that more can be sent.

        Raises:
            ConnectionLostError: The connection broke.
        """
        session = self._session
        try:
            if session is None:
                raise ConnectionResetError
            await session.drain()
        except ConnectionResetError as problem:
            raise ConnectionLostError(f"{self.url}: the connection broke", _AGAIN) from problem

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until the server has read, and answered with its errors, everything that was published so far.

        Raises:
            NoAnswerError: It did not in time.
            ConnectionLostError: The connection broke.
        """
        timeout = self.options.timeout if timeout is None else timeout
        await self.wait_connected(timeout)
        session = self._session
        with self.watch() as failed:
            if session is None or not await self.wait_for(session.pong(), failed, timeout, "a ping"):
                raise ConnectionLostError(f"{self.url}: the connection broke", _AGAIN)

    async def request(self, subject: str, payload: bytes = b"", timeout: float | None = None) -> bytes:
        """Sends a request and waits for its answer.

        Args:
            subject: Where to.
            payload: What.
            timeout: Seconds; None for that of the options.

        Raises:
            NobodyListensError: The server knows nobody who could answer.
            NoAnswerError: No answer came in time. Old servers let it come to that if nobody listens.
            PermissionDeniedError: The user may not send it, or may not receive answers.
            ConnectionLostError: The connection broke; whether the request was carried out is not known.
            NatsError: The request is too large.
        """
        timeout = self.options.timeout if timeout is None else timeout
        await self.wait_connected(timeout)
        if len(payload) > self.max_payload:
            raise NatsError(
                f"a request of {len(payload)} bytes is larger than the {self.max_payload} bytes that {self.url} takes",
                "raise max_payload on the server",
            )
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def answered(message: Message) -> None:
            if not answer.done():
                answer.set_result(message)

        with self.watch(subject) as failed:
            if self._no_inbox:
                raise self._inbox_denied()
            asked = self.ask(subject.encode(), payload, answered)
            try:
                message = await self.wait_for(answer, failed, timeout, subject)
            finally:
                self.forget(asked)
        if not message.data and message.status == _NOBODY:
            raise NobodyListensError(
                f"nothing listens on {subject} at {self.url}", "check account, JetStream domain and API prefix"
            )
        return message.data

    # Receiving

    def listen(self, subject: bytes, take: Callable[[Message], None], queue: bytes = b"") -> int:
        """Subscribes, for where few messages come; `take` is called with each. Returns what `unsubscribe` needs."""
        return self.subscribe(subject, one_by_one(take), queue)

    def open_inbox(self, subject: bytes, queue: bytes = b"") -> Inbox:
        """Subscribes to a subject, or to all of a wildcard, to receive in bulk; `new_inbox` makes one.

        The server knows of it when it has answered any later request.
        """
        inbox = Inbox(subject)
        self._inboxes[inbox] = self.subscribe(subject, inbox.take, queue)
        return inbox

    def close_inbox(self, inbox: Inbox) -> None:
        """Unsubscribes."""
        if (sid := self._inboxes.pop(inbox, None)) is not None:
            self.unsubscribe(sid)

    async def receive(self, inbox: Inbox, failed: asyncio.Future[NatsError], timeout: float, what: str) -> Received:
        """Returns what has come to an inbox since the last call, and waits for something if nothing has.

        Args:
            inbox: The inbox.
            failed: From `watch`.
            timeout: Seconds to wait.
            what: What is waited for, for the message.

        Raises:
            NoAnswerError: Nothing came.
            ConnectionLostError: The connection broke since the last call.
            NatsError: What `failed` says.
        """
        if failed.done():
            raise failed.result()
        return await self.wait_for(inbox.receive(None), failed, timeout, what)

    # What the client reports

    def on_lost(self, reason: str) -> None:
        """Is called by the client."""
        self._reason = reason
        self._tell(ConnectionLostError(f"{self.url}: the connection broke", _AGAIN))
        for inbox in self._inboxes:
            inbox.interrupt()

    def on_unreachable(self, failure: Failure) -> None:
        """Is called by the client."""
        self._reason = _why(failure.problem, self.options, failure.info)[0]

    def on_given_up(self) -> None:
        """Is called by the client."""
        self._tell(self._given_up())

    def on_refused(self, text: str) -> None:
        """Is called by the client."""
        if not (found := _VIOLATION.search(text)):
            return
        kind, subject = found.groups()
        action = "publish to" if kind.lower() == "publish" else "subscribe to"
        for failed, subjects in self._watches.items():
            if not failed.done() and subject in subjects:
                failed.set_result(PermissionDeniedError(subject, action, self.options.user))
        if action == "subscribe to" and subject.startswith(f"{self.manners.inbox}."):
            # No answer to anything can come any more.
            self._no_inbox = True
            self._tell(self._inbox_denied())

    def on_failed(self, problem: Exception) -> None:
        """Is called by the client."""
        self._tell(NatsError(f"what {self.url} sent could not be handled: {problem!r}"))

    def _tell(self, error: NatsError) -> None:
        for failed in self._watches:
            if not failed.done():
                failed.set_result(error)

    def _inbox_denied(self) -> PermissionDeniedError:
        remedy = "let the user subscribe to it, or name an inbox that it may use with --inbox-prefix"
        return PermissionDeniedError(f"{self.manners.inbox}.>", "subscribe to", self.options.user, remedy)

    def _given_up(self) -> ConnectionLostError:
        said = f": {self._reason}" if self._reason else ""
        return ConnectionLostError(f"{self.url}: the connection broke and could not be made again{said}", _AGAIN)


@contextlib.asynccontextmanager
async def connect(options: ConnectOptions, *, name: str = "stantools") -> AsyncIterator[Connection]:
    """Connects to the first server that takes us, and disconnects at the end.

    Args:
        options: How; they are checked first.
        name: What the server's monitoring shows.

    Raises:
        CannotConnectError: No server took us; the message says for each one why.
        UsageError: The options contradict each other.
        StoreUnreadableError: A file with a key or a certificate is not fit.
    """
    options = options.checked()
    if options.embedded:
        raise UsageError(f"the server {EMBEDDED} has to be started before", "give the URL of a server")
    connection = Connection(options, f"{name} {__version__}")
    try:
        await connection.open()
    except UnreachableError as problem:
        raise _cannot_connect(options, problem) from problem
    try:
        yield connection
    finally:
        await connection.close()


def _cannot_connect(options: ConnectOptions, problem: UnreachableError) -> CannotConnectError:
    reasons = [(failure.server.url, *_why(failure.problem, options, failure.info)) for failure in problem.failures]
    said = "; ".join(f"{url}: {reason}" for url, reason, _ in reasons)
    return CannotConnectError(f"cannot connect to {said}", reasons[0][2])


#: What the server says in a refusal, in lower case -> (reason, remedy).
_REFUSALS = {
    "user authentication expired": ("the credentials have expired", "get new ones from the operator of the system"),
    "account authentication expired": ("the account has expired", "ask the operator of the system"),
    "maximum connections exceeded": ("it has as many connections as it may", "close some, or raise max_connections"),
    "maximum account active connections": ("the account has as many connections as it may", "close some"),
    "secure connection - tls required": ("it demands TLS", "say tls:// in the URL"),
    "authentication timeout": ("it got no credentials in time", "try again, with a longer timeout"),
    "no responders requires headers support": ("it has no message headers", "take a server of version 2.2 or newer"),
}


def _why(problem: BaseException, options: ConnectOptions, info: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the reason that goes behind the URL of a server, and a remedy."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {problem.verify_message or 'unknown reason'}",
            "give the file of the authority that signed it with --tls-ca, and the name in it if the URL has another",
        )
    if isinstance(problem, ssl.SSLError):
        return _why_tls(problem, options)
    if isinstance(problem, NotEncryptedError):
        return (
            "it does not offer TLS, so nothing was sent to it",
            "leave the TLS options and tls:// out if an unencrypted connection is meant",
        )
    if isinstance(problem, TimeoutError):
        return (
            f"no answer within {options.timeout:g} s",
            "check host, port and firewall; a server that wants TLS at once needs that in its context (tls_first)",
        )
    if isinstance(problem, socket.gaierror):
        return "no such host", "check the URL"
    if isinstance(problem, ConnectionRefusedError):
        return "nothing is listening there", "start the server, or check host and port"
    if isinstance(problem, OSError) and info.get("tls_verify"):
        # It closes the connection behind the handshake; its reason is often lost with it.
        return _why_certificate(options)
    if isinstance(problem, LoginError):
        return _why_refused(problem.message.removeprefix("nats: "), options)
    if isinstance(problem, ConnectionResetError) and problem.errno is None:  # by us, or before it said a word
        return (
            "it does not speak the NATS protocol",
            "check host and port; a server that wants TLS at once needs that in its context (tls_first)",
        )
    if isinstance(problem, OSError):
        return f"{problem.strerror or problem}", "check host, port and network"
    return "it does not speak the NATS protocol", "check host and port"


def _why_tls(problem: ssl.SSLError, options: ConnectOptions) -> tuple[str, str]:
    reason = (problem.reason or str(problem)).replace("_", " ").lower()
    if any(word in reason for word in ("certificate required", "bad certificate", "unknown ca")):
        return _why_certificate(options)
    return f"TLS failed: {reason}", "check that the server offers TLS on this port"


def _why_certificate(options: ConnectOptions) -> tuple[str, str]:
    if options.tls_cert:
        return "it does not accept client certificate", "give one that the server's authority has signed"
    return "it demands a certificate from us", "give one with --tls-cert and --tls-key"


def _why_refused(text: str, options: ConnectOptions) -> tuple[str, str]:
    said = text.lower()
    for start, answer in _REFUSALS.items():
        if said.startswith(start):
            return answer
    if "authorization" in said or "authentication" in said:
        if options.has_credentials:
            return "it does not accept the credentials", "check user, password, token, nkey or credentials file"
        return (
            "it wants credentials and none were given",
            "give --user, --token-env, --nkey, --creds or --context",
        )
    return f"it refused: {text}", "see the server's log"
