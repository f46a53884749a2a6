"""A connection to a NATS server: nats-py, with bounded waiting, and every failure as an error of ours.

What happens when the connection breaks: the client tries all servers it knows again and again, each once in
`RECONNECT_WAIT` seconds, at least a minute long. Whatever waits for an answer at that moment is told at once
(`ConnectionLostError`) instead of running into its timeout; whether to ask again is for the caller to decide.

What the server refuses: it answers a publish or a subscription that is not permitted with an error that belongs to
no request. `watch` connects the two, so that this too is told at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nats import errors as nats_errors
from nats.aio.client import Client, RawCredentials

from stantools import __version__
from stantools.errors import UsageError
from stantools.migration.target.errors import (
    CannotConnectError,
    ConnectionLostError,
    NoAnswerError,
    NobodyListensError,
    PermissionDeniedError,
    TargetError,
)
from stantools.migration.target.options import EMBEDDED, ConnectOptions
from stantools.migration.target.reasons import why
from stantools.nats.credentials import read_creds, read_nkey, tls_context

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_T = TypeVar("_T")

#: Seconds between two attempts to connect to the same server again.
RECONNECT_WAIT: Final = 0.5
#: Attempts for each server until we give up.
RECONNECT_ATTEMPTS: Final = 120
_PING_SECONDS = 20
_AGAIN = "check the server, then run the command again"
_DEFAULT_INBOX = "_INBOX"
#: The client library hands these texts over in lower case.
#: A credentials file as the client library reads it.
_CREDS = (
    "-----BEGIN NATS USER JWT-----\n%s\n------END NATS USER JWT------\n"
    "-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n"
)
_VIOLATION = re.compile(r'permissions violation for (publish|subscription)[^"]*"([^"]*)"')
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class Connection:
    """A connection, made by `connect`.

    Attributes:
        client: The client library's object, for publishing and subscribing.
        options: How it was made.
    """

    def __init__(self, client: Client, options: ConnectOptions) -> None:
        self.client = client
        self.options = options
        # What is waited for -> subjects as the library hands them over in errors -> as they really are.
        self._watches: dict[asyncio.Future[TargetError], dict[str, str]] = {}
        self._no_inbox = False
        self._last_error: Exception | None = None
        self._last_url = " ".join(options.servers)

    @property
    def info(self) -> dict[str, Any]:
        """What the server that we are connected to says about itself."""
        # The library keeps it, but offers only some of its members.
        info = getattr(self.client, "_server_info", None)
        return info if isinstance(info, dict) else {}

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
    def max_payload(self) -> int:
        """The largest message in bytes, headers included, that the server takes and hands out."""
        return int(self.client.max_payload)

    @property
    def url(self) -> str:
        """Where we are connected, or were before the connection broke, without user and password."""
        self.note_url()
        return self._last_url

    def note_url(self) -> None:
        """Keeps in mind where we are connected, if we are."""
        parsed = self.client.connected_url
        if parsed is not None:
            host = f"[{parsed.hostname}]" if parsed.hostname and ":" in parsed.hostname else parsed.hostname
            self._last_url = f"{parsed.scheme}://{host}:{parsed.port}"

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted."""
        return bool(self.info.get("tls_required")) or self.options.tls_first

    @contextlib.contextmanager
    def watch(self, *subjects: str) -> Iterator[asyncio.Future[TargetError]]:
        """Watches for what makes waiting useless; the future's result is the error to raise.

        Args:
            subjects: What is published or subscribed to meanwhile, as it is sent to the server.
        """
        failed: asyncio.Future[TargetError] = asyncio.get_running_loop().create_future()
        self._watches[failed] = {subject.lower(): subject for subject in subjects}
        if self.client.is_closed:
            failed.set_result(self._given_up())
        try:
            yield failed
        finally:
            del self._watches[failed]

    async def wait_for(
        self, wanted: asyncio.Future[_T], failed: asyncio.Future[TargetError], timeout: float, what: str
    ) -> _T:
        """Waits for one of three: what is wanted, a failure seen by `watch`, or the timeout.

        Args:
            wanted: What should come.
            failed: From `watch`.
            timeout: Seconds.
            what: Names it in the message: "the server did not answer <what> within 5 s".

        Raises:
            TargetError: Something else came, or nothing.
        """
        either: set[asyncio.Future[Any]] = {wanted, failed}
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if wanted.done():
            return wanted.result()
        if failed.done():
            raise failed.result()
        raise NoAnswerError(
            f"{self.url} did not answer {what} within {timeout:g} s",
            "see the server's log, or allow more time with --timeout",
        )

    async def request(self, subject: str, payload: bytes = b"", timeout: float | None = None) -> Msg:
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
            TargetError: The request is too large.
        """
        timeout = self.options.timeout if timeout is None else timeout
        await self.wait_connected(timeout)
        with self.watch(subject) as failed:
            if self._no_inbox:
                raise self._inbox_denied()
            answer = asyncio.ensure_future(self.client.request(subject, payload, timeout=timeout + 1))
            try:
                return await self.wait_for(answer, failed, timeout, subject)
            except nats_errors.NoRespondersError:
                raise NobodyListensError(
                    f"nobody listens on {subject} at {self.url}", "check account, JetStream domain and API prefix"
                ) from None
            except nats_errors.MaxPayloadError:
                raise TargetError(
                    f"a request of {len(payload)} bytes is larger than the {self.max_payload} bytes that {self.url} "
                    "takes",
                    "raise max_payload on the server",
                ) from None
            except nats_errors.Error as problem:
                raise ConnectionLostError(f"{self.url}: {subject} could not be sent: {problem}", _AGAIN) from problem
            finally:
                answer.cancel()
                # Its end must have been looked at, or asyncio complains about it later.
                await asyncio.gather(answer, return_exceptions=True)

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until the server has read, and answered with its errors, everything that was published so far.

        Raises:
            NoAnswerError: It did not in time.
            ConnectionLostError: The connection broke.
        """
        timeout = self.options.timeout if timeout is None else timeout
        await self.wait_connected(timeout)
        with self.watch() as failed:
            flushed = asyncio.ensure_future(self.client.flush(timeout + 1))  # type: ignore[arg-type]
            try:
                await self.wait_for(flushed, failed, timeout, "a ping")
            except nats_errors.Error as problem:
                raise ConnectionLostError(f"{self.url}: the connection broke: {problem}", _AGAIN) from problem
            finally:
                flushed.cancel()
                await asyncio.gather(flushed, return_exceptions=True)

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Waits until the client is connected, which it normally is.

        Raises:
            ConnectionLostError: It was not in time, or has given up.
        """
        timeout = self.options.timeout if timeout is None else timeout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not self.client.is_connected:
            if self.client.is_closed:
                raise self._given_up()
            if loop.time() > deadline:
                raise ConnectionLostError(
                    f"{self.url}: the connection broke and did not come back within {timeout:g} s",
                    _AGAIN,
                )
            await asyncio.sleep(0.02)

    def _tell(self, error: TargetError) -> None:
        for failed in self._watches:
            if not failed.done():
                failed.set_result(error)

    def _tell_denied(self, subject: str, action: str) -> None:
        for failed, subjects in self._watches.items():
            if not failed.done() and subject in subjects:
                failed.set_result(PermissionDeniedError(subjects[subject], action, self.options.user))

    def _inbox_denied(self) -> PermissionDeniedError:
        remedy = "let the user subscribe to it, or name an inbox that it may use with --inbox-prefix"
        return PermissionDeniedError(f"{self._inbox}.>", "subscribe to", self.options.user, remedy)

    @property
    def _inbox(self) -> str:
        return self.options.inbox_prefix or _DEFAULT_INBOX

    def _given_up(self) -> ConnectionLostError:
        last = self.client.last_error
        if isinstance(last, nats_errors.NoServersError):  # which says nothing
            last = self._last_error
        said = f": {why(last, self.options, self.info)[0]}" if last else ""
        return ConnectionLostError(f"{self.url}: the connection broke and could not be made again{said}", _AGAIN)

    async def _on_error(self, problem: Exception) -> None:
        found = _VIOLATION.search(str(problem).lower())
        if not found:
            self._last_error = problem
            return
        kind, subject = found.groups()
        if kind == "publish":
            self._tell_denied(subject, "publish to")
            return
        self._tell_denied(subject, "subscribe to")
        if subject.startswith(f"{self._inbox.lower()}."):
            # No answer to anything can come any more.
            self._no_inbox = True
            self._tell(self._inbox_denied())

    async def _on_disconnect(self) -> None:
        self._tell(ConnectionLostError(f"{self.url}: the connection broke", _AGAIN))

    async def _on_close(self) -> None:
        self._tell(self._given_up())


class _Client(Client):
    """The library's client, but for one thing: it sends no credentials in clear text if TLS is wanted."""

    must_encrypt = False

    def _connect_command(self) -> bytes:
        if self.must_encrypt and not self._server_info.get("tls_required"):
            raise nats_errors.SecureConnWantedError
        return super()._connect_command()


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
    client = _Client()
    connection = Connection(client, options)
    await _open(client, connection, name)
    try:
        yield connection
    finally:
        await _close(client, options.timeout)


async def _open(client: _Client, connection: Connection, name: str) -> None:
    options = connection.options
    reasons: list[tuple[str, str]] = []
    all_tried = asyncio.Event()
    connected = False

    async def note_error(problem: Exception) -> None:
        if connected:
            await connection._on_error(problem)
            return
        # Each server that was tried in vain is one error; the library itself would go round for ever.
        reasons.append(why(problem, options, connection.info))
        if len(reasons) >= len(options.servers):
            all_tried.set()

    client.must_encrypt = options.wants_tls and not options.tls_first
    settings: dict[str, Any] = {}
    if options.wants_tls:
        context = tls_context(options.tls_ca, options.tls_cert, options.tls_key, verify=not options.tls_insecure)
        settings = {"tls": context, "tls_handshake_first": options.tls_first}
    if options.tls_hostname:
        settings["tls_hostname"] = options.tls_hostname
    if options.user is not None:
        settings |= {"user": options.user, "password": options.password}
    if options.token is not None:
        settings["token"] = options.token
    if options.nkey:
        settings["nkeys_seed_str"] = read_nkey(options.nkey)
    if options.creds:
        settings["user_credentials"] = RawCredentials(_CREDS % read_creds(options.creds))
    if options.inbox_prefix:
        settings["inbox_prefix"] = options.inbox_prefix
    trying = asyncio.ensure_future(
        client.connect(
            list(options.servers),
            name=f"{name} {__version__}",
            error_cb=note_error,
            disconnected_cb=connection._on_disconnect,
            closed_cb=connection._on_close,
            dont_randomize=True,
            connect_timeout=options.timeout,  # type: ignore[arg-type]
            reconnect_time_wait=RECONNECT_WAIT,  # type: ignore[arg-type]
            max_reconnect_attempts=RECONNECT_ATTEMPTS,
            ping_interval=_PING_SECONDS,
            **settings,
        )
    )
    tried = asyncio.ensure_future(all_tried.wait())
    try:
        await asyncio.wait({trying, tried}, return_when=asyncio.FIRST_COMPLETED)
        if not trying.done():
            raise _cannot_connect(options, reasons)
        try:
            trying.result()
        # Whatever a stranger answers: the library checks little, and fails in many ways.
        except (nats_errors.Error, OSError, ImportError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise _cannot_connect(options, [*reasons, why(problem, options, connection.info)]) from problem
        connected = True
        connection.note_url()
    finally:
        tried.cancel()
        if not connected:
            trying.cancel()
            await asyncio.gather(trying, return_exceptions=True)
            await _close(client, options.timeout)


def _cannot_connect(options: ConnectOptions, reasons: list[tuple[str, str]]) -> CannotConnectError:
    said = [f"{server}: {reason}" for server, (reason, _) in zip(options.servers, reasons, strict=False)]
    return CannotConnectError(f"cannot connect to {'; '.join(said)}", reasons[0][1])


async def _close(client: Client, timeout: float) -> None:
    if client.is_closed or not getattr(client, "_transport", None):
        return
    try:
        await asyncio.wait_for(client.close(), timeout)
    except (TimeoutError, OSError, nats_errors.Error):
        # A server that takes nothing any more: the socket goes when the process ends, and nothing of ours is in it.
        return
