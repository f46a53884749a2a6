"""A client with waiting calls: requests with their answers, inboxes, and every failure as an exception.

When the connection breaks, the client tries all known servers repeatedly, each once in `RECONNECT_WAIT` seconds, until
the attempts of the options are used up. Operations that wait for an answer at that moment fail at once
(`ConnectionLostError`) instead of running into their timeout; the caller decides whether to repeat a request.

The server answers a forbidden publish or subscription with an error that belongs to no request. `watch` connects the
two, so that this also raises at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stantools import __version__
from stantools.errors import UsageError
from stantools.nats import encoding
from stantools.nats.client import ClientSettings, NatsClient, NatsMessage, UnreachableError
from stantools.nats.connect_options import EMBEDDED, ConnectOptions
from stantools.nats.credentials import tls_context
from stantools.nats.errors import (
    CannotConnectError,
    ConnectionLostError,
    LoginError,
    NatsError,
    NoAnswerError,
    NoResponderError,
    NotEncryptedError,
    PermissionDeniedError,
)
from stantools.nats.inbox import Inbox
from stantools.nats.login import NatsAddress

if TYPE_CHECKING:
    from stantools.nats.client import ConnectFailure
    from stantools.nats.inbox import Received

_T = TypeVar("_T")

#: seconds between two attempts to reconnect to the same server
RECONNECT_WAIT: Final = 0.25
_PING_SECONDS = 20
_CHECK_SERVER = "check the server, then run the command again"
_DEFAULT_INBOX = "_INBOX"
_NO_SUBSCRIBER = 503
_VIOLATION = re.compile(r'permissions violation for (publish|subscription)[^"]*"([^"]*)"', re.IGNORECASE)
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class NatsConnection(NatsClient):
    """A connection, made by `connect` or `open_connection`; `name` is shown in the server's monitoring."""

    def __init__(self, options: ConnectOptions, name: str) -> None:
        context = None
        if options.wants_tls:
            context = tls_context(options.tls_ca, options.tls_cert, options.tls_key, verify=not options.tls_insecure)
        settings = ClientSettings(
            name,
            options.login,
            context,
            options.tls_hostname or "",
            options.tls_first,
            timeout=options.timeout,
            pause=RECONNECT_WAIT,
            attempts=options.reconnect_attempts,
            ping=_PING_SECONDS,
            inbox=options.inbox_prefix or _DEFAULT_INBOX,
        )
        super().__init__([NatsAddress.parse(server) for server in options.servers], settings)
        self.options = options
        # pending waits, with the subjects that they depend on
        self._watches: dict[asyncio.Future[NatsError], frozenset[str]] = {}
        self._inboxes: dict[Inbox, int] = {}
        self._inbox_forbidden = False
        self._reason = ""

    @property
    def version(self) -> tuple[int, int, int]:
        """The server's version; zeros if it has an unknown notation."""
        found = _VERSION.match(str(self.info.get("version", "")))
        return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)

    @property
    def server_name(self) -> str:
        return str(self.info.get("server_name") or self.info.get("server_id") or "unknown")

    @property
    def cluster(self) -> str | None:
        name = self.info.get("cluster")
        return str(name) if name else None

    @property
    def url(self) -> str:
        """The current or last server, without user and password."""
        return self.server.url

    # Waiting.

    @contextlib.contextmanager
    def watch(self, *subjects: bytes | str) -> Iterator[asyncio.Future[NatsError]]:
        """Watches for events that make waiting useless; the future's result is the error to raise.

        `subjects` are those of the publishes and subscriptions meanwhile, as sent to the server.
        """
        failed: asyncio.Future[NatsError] = asyncio.get_running_loop().create_future()
        texts = (subject if isinstance(subject, str) else subject.decode(errors="replace") for subject in subjects)
        self._watches[failed] = frozenset(texts)
        if self.closed:
            failed.set_result(self._reconnect_error())
        try:
            yield failed
        finally:
            del self._watches[failed]

    async def wait_for(
        self, wanted: Awaitable[_T], failed: asyncio.Future[NatsError], timeout: float, result_name: str
    ) -> _T:
        """Waits for the first of: the wanted result, a failure seen by `watch`, the timeout in seconds.

        `result_name` names the result in the message: "the server did not answer <name> within 5 s". Without a result,
        `wanted` is cancelled and a NatsError raised.
        """
        coming = asyncio.ensure_future(wanted)
        # asyncio complains later about an exception that was never retrieved
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
            f"{self.url} did not answer {result_name} within {timeout:g} s",
            "see the server's log, or allow more time with --timeout",
        )

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Waits until the client is connected, which it normally is."""
        timeout = self.options.timeout if timeout is None else timeout
        if not self.connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._settled.wait()
        if self.closed:
            raise self._reconnect_error()
        if not self.connected:
            raise ConnectionLostError(
                f"{self.url}: the connection broke and did not come back within {timeout:g} s", _CHECK_SERVER
            )

    # Sending.

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", header: bytes = b"") -> None:
        """Publishes one message, or raises ConnectionLostError, or NatsError if it is too large for the server.

        Callers with many call `drain` regularly, or `wait_writable` before each one that is not `writable`.
        """
        self._check_size(len(header) + len(payload), "message")
        self._must_send(encoding.publish(subject, payload, reply, header))

    def _check_size(self, size: int, kind: str) -> None:
        if size > self.max_payload:
            raise NatsError(
                f"a {kind} of {size} bytes is larger than the {self.max_payload} bytes that {self.url} takes",
                "raise max_payload on the server",
            )

    @property
    def writable(self) -> bool:
        """Whether the client is connected and the server keeps up with reading."""
        return self._session is not None and self._session.keeps_up

    async def wait_writable(self, timeout: float | None = None) -> None:
        """Waits until the client is connected (as `wait_connected`) and the server has read enough for more."""
        while not self.writable:
            await self.wait_connected(timeout)
            with contextlib.suppress(ConnectionLostError):
                await self.drain()
            await asyncio.sleep(0)  # answers are read meanwhile

    async def write(self, frames: bytes) -> None:
        """Sends whole frames at once on this connection, and waits while too many bytes are buffered."""
        if not self.send(frames):
            await self.drain()
            self._must_send(frames)
        await self.drain()

    def _must_send(self, frames: bytes) -> None:
        if not self.send(frames):
            raise ConnectionLostError(f"{self.url}: the connection broke", _CHECK_SERVER)

    async def drain(self) -> None:
        """Sends buffered messages, and waits until the server has read enough for more."""
        session = self._session
        try:
            if session is None:
                raise ConnectionResetError
            await session.drain()
        except ConnectionResetError as problem:
            await asyncio.sleep(0)  # callers that try again at once let the loop reconnect
            raise ConnectionLostError(f"{self.url}: the connection broke", _CHECK_SERVER) from problem

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until the server has read all publishes so far, and answered with its errors.

        Raises NoAnswerError after the timeout, and ConnectionLostError if the connection broke.
        """
        timeout = self.options.timeout if timeout is None else timeout
        await self.wait_connected(timeout)
        session = self._session
        with self.watch() as failed:
            if session is None or not await self.wait_for(session.pong(), failed, timeout, "a ping"):
                raise ConnectionLostError(f"{self.url}: the connection broke", _CHECK_SERVER)

    async def request(self, subject: str, payload: bytes = b"", timeout: float | None = None) -> bytes:
        """Sends a request and waits for its answer; `timeout` in seconds, None for that of the options.

        Raises NoAnswerError (NobodyListensError if the server knows no subscriber), PermissionDeniedError, or
        ConnectionLostError, after which it is unknown whether the request was executed.
        """
        timeout = self.options.timeout if timeout is None else timeout
        await self.wait_connected(timeout)
        self._check_size(len(payload), "request")
        answer: asyncio.Future[NatsMessage] = asyncio.get_running_loop().create_future()

        def answered(message: NatsMessage) -> None:
            if not answer.done():
                answer.set_result(message)

        with self.watch(subject) as failed:
            if self._inbox_forbidden:
                raise self._inbox_denied()
            asked = self.ask(subject.encode(), payload, answered)
            try:
                message = await self.wait_for(answer, failed, timeout, subject)
            finally:
                self.forget(asked)
        if not message.data and message.status == _NO_SUBSCRIBER:
            raise NoResponderError(
                f"nothing listens on {subject} at {self.url}", "check account, JetStream domain and API prefix"
            )
        return message.data

    # Receiving.

    def open_inbox(self, subject: bytes, queue: bytes = b"") -> Inbox:
        """Subscribes to a subject or wildcard, to receive in bulk; `new_inbox` makes a unique subject.

        The subscription is certainly active when a later request has been answered.
        """
        inbox = Inbox(subject)
        self._inboxes[inbox] = self.subscribe(subject, inbox.take, queue)
        return inbox

    def close_inbox(self, inbox: Inbox) -> None:
        if (sid := self._inboxes.pop(inbox, None)) is not None:
            self.unsubscribe(sid)

    async def receive(
        self, inbox: Inbox, failed: asyncio.Future[NatsError], timeout: float, result_name: str
    ) -> Received:
        """Returns the messages of an inbox since the last call, and waits for one if there are none.

        `failed` comes from `watch`; `result_name` names the messages in errors. Raises NoAnswerError after `timeout`
        seconds, ConnectionLostError if the connection broke since the last call, and the NatsError of `failed`.
        """
        if failed.done():
            raise failed.result()
        return await self.wait_for(inbox.receive(None), failed, timeout, result_name)

    # Events.

    def on_lost(self, reason: str) -> None:
        self._reason = reason
        self._tell(ConnectionLostError(f"{self.url}: the connection broke", _CHECK_SERVER))
        for inbox in self._inboxes:
            inbox.interrupt()

    def on_unreachable(self, failure: ConnectFailure) -> None:
        self._reason = _diagnose(failure.problem, self.options, failure.info)[0]

    def on_given_up(self) -> None:
        self._tell(self._reconnect_error())

    def on_refused(self, text: str) -> None:
        if not (found := _VIOLATION.search(text)):
            return
        kind, subject = found.groups()
        action = "publish to" if kind.lower() == "publish" else "subscribe to"
        for failed, subjects in self._watches.items():
            if not failed.done() and subject in subjects:
                failed.set_result(PermissionDeniedError(subject, action, self.options.user))
        if action == "subscribe to" and subject.startswith(f"{self.settings.inbox}."):
            # no answer to anything can arrive
            self._inbox_forbidden = True
            self._tell(self._inbox_denied())

    def on_failed(self, problem: Exception) -> None:
        self._tell(NatsError(f"a message from {self.url} could not be handled: {problem!r}"))

    def _tell(self, error: NatsError) -> None:
        for failed in self._watches:
            if not failed.done():
                failed.set_result(error)

    def _inbox_denied(self) -> PermissionDeniedError:
        remedy = "let the user subscribe to it, or name an inbox that it may use with --inbox-prefix"
        return PermissionDeniedError(f"{self.settings.inbox}.>", "subscribe to", self.options.user, remedy)

    def _reconnect_error(self) -> ConnectionLostError:
        reason = f": {self._reason}" if self._reason else ""
        return ConnectionLostError(f"{self.url}: the connection broke and could not be restored{reason}", _CHECK_SERVER)


@contextlib.asynccontextmanager
async def connect(options: ConnectOptions, *, name: str = "stantools") -> AsyncIterator[NatsConnection]:
    """Connects as `open_connection`, and disconnects at the end."""
    connection = await open_connection(options, f"{name} {__version__}")
    try:
        yield connection
    finally:
        await connection.close()


async def open_connection(options: ConnectOptions, name: str) -> NatsConnection:
    """Connects to the first server that accepts the client.

    Raises CannotConnectError with the reason for each server; `name` is shown in the server's monitoring.
    """
    options = options.checked()
    if options.embedded:
        raise UsageError(f"the server {EMBEDDED} must be started before", "give the URL of a server")
    connection = NatsConnection(options, name)
    try:
        await connection.open()
    except UnreachableError as problem:
        reasons = [
            (failure.server.url, *_diagnose(failure.problem, options, failure.info)) for failure in problem.failures
        ]
        causes = "; ".join(f"{url}: {reason}" for url, reason, _ in reasons)
        raise CannotConnectError(f"cannot connect to {causes}", reasons[0][2]) from problem
    return connection


#: (reason, remedy), by the server's refusal in lower case
_REFUSALS = {
    "user authentication expired": ("the credentials have expired", "get new ones from the operator of the system"),
    "account authentication expired": ("the account has expired", "ask the operator of the system"),
    "maximum connections exceeded": ("its limit of connections is reached", "close some, or raise max_connections"),
    "maximum account active connections": ("the account's limit of connections is reached", "close some"),
    "secure connection - tls required": ("it demands TLS", "use tls:// in the URL"),
    "authentication timeout": ("it got no credentials in time", "try again, with a longer timeout"),
    "no responders requires headers support": ("it has no message headers", "use a server of version 2.2 or newer"),
}


def _diagnose(problem: BaseException, options: ConnectOptions, info: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the reason of a failed connection, which follows the server's URL, and a remedy."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {problem.verify_message or 'unknown reason'}",
            "give the file of the authority that signed it with --tls-ca, and the name in it if the URL has another",
        )
    if isinstance(problem, ssl.SSLError):
        reason = (problem.reason or str(problem)).replace("_", " ").lower()
        if any(word in reason for word in ("certificate required", "bad certificate", "unknown ca")):
            return _diagnose_certificate(options)
        return f"TLS failed: {reason}", "check that the server offers TLS on this port"
    if isinstance(problem, NotEncryptedError):
        return (
            "it does not offer TLS, so nothing was sent to it",
            "omit the TLS options and tls:// if an unencrypted connection is intended",
        )
    if isinstance(problem, TimeoutError):
        return (
            f"no answer within {options.timeout:g} s",
            "check host, port and firewall; a server that requires TLS at once needs tls_first in its context",
        )
    if isinstance(problem, socket.gaierror):
        return "no such host", "check the URL"
    if isinstance(problem, ConnectionRefusedError):
        return "nothing is listening there", "start the server, or check host and port"
    if isinstance(problem, OSError) and info.get("tls_verify"):
        # It closes the connection after the handshake; its reason is often lost.
        return _diagnose_certificate(options)
    if isinstance(problem, LoginError):
        return _diagnose_refusal(problem.message.removeprefix("nats: "), options)
    if isinstance(problem, ConnectionResetError) and problem.errno is None:  # closed by the client, or before INFO
        return (
            "it does not speak the NATS protocol",
            "check host and port; a server that requires TLS at once needs tls_first in its context",
        )
    if isinstance(problem, OSError):
        return f"{problem.strerror or problem}", "check host, port and network"
    return "it does not speak the NATS protocol", "check host and port"


def _diagnose_certificate(options: ConnectOptions) -> tuple[str, str]:
    if options.tls_cert:
        return "it does not accept the client certificate", "give one that the server's authority has signed"
    return "it requires a client certificate", "give one with --tls-cert and --tls-key"


def _diagnose_refusal(text: str, options: ConnectOptions) -> tuple[str, str]:
    words = text.lower()
    for start, answer in _REFUSALS.items():
        if words.startswith(start):
            return answer
    if "authorization" in words or "authentication" in words:
        if options.has_credentials:
            return "it does not accept the credentials", "check user, password, token, nkey or credentials file"
        return (
            "it requires credentials and none were given",
            "give --user, --token-env, --nkey, --creds or --context",
        )
    return f"it refused: {text}", "see the server's log"
