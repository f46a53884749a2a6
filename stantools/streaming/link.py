"""A client's connection to NATS, with its failures as errors of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from stantools.errors import UsageError
from stantools.nats.client import NatsMessage
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import NatsConnection, open_connection
from stantools.nats.errors import CannotConnectError, ConnectionLostError, NatsError, NoAnswerError, NoResponderError
from stantools.streaming.errors import NoServerError, StreamingError

#: fields of ConnectOptions that are no options of a streaming client, or have another name there
_NOT_OFFERED: Final = frozenset({"servers", "context", "domain", "api_prefix", "timeout"})
_FILES: Final = frozenset({"nkey", "creds", "tls_ca", "tls_cert", "tls_key"})
#: names of nats-py, with the present ones
_RENAMED: Final = {
    "allow_reconnect": "reconnect_attempts",
    "connect_timeout": "ClientOptions.timeout",
    "max_reconnect_attempts": "reconnect_attempts",
    "nkeys_seed": "nkey",
    "tls": "tls_ca, tls_cert and tls_key",
    "tls_handshake_first": "tls_first",
    "user_credentials": "creds",
}


class NatsLink:
    """A connection to NATS; `own` means that it is closed at the end, `timeout` is in seconds per answer."""

    def __init__(self, nats: NatsConnection, own: bool, timeout: float) -> None:
        self._nats = nats
        self._own = own
        self._timeout = timeout
        self._subscriptions: set[int] = set()

    @property
    def broken(self) -> bool:
        return self._nats.closed

    @property
    def writable(self) -> bool:
        return self._nats.writable

    async def wait_writable(self, timeout: float) -> None:
        """Waits until a message can be sent. Raises StreamingError if there is no connection within the timeout."""
        try:
            await self._nats.wait_writable(timeout)
        except NatsError as problem:
            raise StreamingError(f"a message could not be sent: {problem.message}") from problem

    def new_inbox(self) -> str:
        return self._nats.new_inbox().decode()

    def listen(self, subject: str, take: Callable[[NatsMessage], None]) -> int:
        """Subscribes. Returns the argument of `unlisten`."""
        subscription = self._nats.listen(subject.encode(), take)
        self._subscriptions.add(subscription)
        return subscription

    def unlisten(self, subscription: int) -> None:
        self._subscriptions.discard(subscription)
        self._nats.unsubscribe(subscription)

    def send(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Publishes. Raises StreamingError."""
        try:
            self._nats.publish(subject.encode(), payload, reply.encode())
        except NatsError as problem:
            raise StreamingError(f"a message of {len(payload)} bytes could not be sent: {problem.message}") from problem

    async def request(self, subject: str, payload: bytes, request_name: str, *inboxes: str) -> bytes:
        """Sends a request, called `request_name` in messages, and returns the answer.

        Raises NoServerError if no answer came, and StreamingError if it could not be sent, or the user may not
        subscribe to one of the inboxes, to which `listen` has subscribed just before.
        """
        try:
            with self._nats.watch(*inboxes) as failed:
                answer = await self._nats.request(subject, payload, self._timeout)
                if failed.done():
                    raise failed.result()
        except NoResponderError:
            raise NoServerError(f"no streaming server answers {request_name}: nothing listens on {subject}") from None
        except NoAnswerError:
            raise NoServerError(f"no streaming server answered {request_name} within {self._timeout:g} s") from None
        except ConnectionLostError as problem:
            raise NoServerError(f"no streaming server answered {request_name}: {problem.message}") from problem
        except NatsError as problem:
            raise StreamingError(f"a request could not be sent ({request_name}): {problem.message}") from problem
        return answer

    async def close(self) -> None:
        """Ends all subscriptions, and closes the connection if it is its own."""
        for subscription in tuple(self._subscriptions):
            self.unlisten(subscription)
        if self._own:
            await self._nats.close()


async def open_link(
    url: str | Sequence[str] | NatsConnection, name: str, timeout: float, nats_options: dict[str, Any]
) -> NatsLink:
    """Connects, or takes an existing connection.

    `name` is shown in the server's monitoring; `timeout` in seconds limits each attempt to connect and later requests;
    `nats_options` are fields of `ConnectOptions`. Raises NoServerError with the reason.
    """
    if isinstance(url, NatsConnection):
        return NatsLink(url, False, timeout)
    servers = (url,) if isinstance(url, str) else tuple(url)
    try:
        nats = await open_connection(_connect_options(servers, timeout, nats_options), name)
    except CannotConnectError as problem:
        causes = problem.message.removeprefix("cannot connect to ")
        raise NoServerError(f"no connection to NATS at {causes}") from problem
    return NatsLink(nats, True, timeout)


def _connect_options(servers: tuple[str, ...], timeout: float, nats_options: dict[str, Any]) -> ConnectOptions:
    names = [field.name for field in fields(ConnectOptions) if field.name not in _NOT_OFFERED]
    for name in nats_options:
        if name not in names:
            new = _RENAMED.get(name)
            raise UsageError(
                f"connect has no option {name!r}",
                f"give {new} instead" if new else f"the options are {', '.join(names)}",
            )
    files = {name: Path(path) for name, path in nats_options.items() if name in _FILES and path is not None}
    return ConnectOptions(servers, timeout=timeout, **{"reconnect_attempts": None} | nats_options | files)
