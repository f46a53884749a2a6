"""A client's connection to NATS: nats-py, with its failures as errors of this package."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from nats import errors as nats_errors
from nats.aio.client import Client as NatsClient

from stantools.streaming.errors import NoServerError, StreamingError

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as NatsSubscription

_LOG: Final = logging.getLogger(__name__)
#: seconds between two attempts to reconnect
_RECONNECT_WAIT: Final = 0.25
#: seconds until a cancelled task is cancelled again
_CANCEL_INTERVAL: Final = 0.2


class NatsLink:
    """A connection to NATS; `own` means that it is closed at the end, `timeout` is in seconds per answer."""

    def __init__(self, nats: NatsClient, own: bool, timeout: float) -> None:
        self._nats = nats
        self._own = own
        self._timeout = timeout
        self._inboxes: list[NatsSubscription] = []

    @property
    def broken(self) -> bool:
        return bool(self._nats.is_closed)

    def new_inbox(self) -> str:
        return str(self._nats.new_inbox())

    async def listen(self, subject: str, handler: Callable[[Msg], Awaitable[None]]) -> NatsSubscription:
        """Subscribes, without a limit of waiting messages. Raises StreamingError."""
        try:
            inbox = await self._nats.subscribe(subject, cb=handler, pending_msgs_limit=-1, pending_bytes_limit=-1)
        except nats_errors.Error as problem:
            raise StreamingError(f"cannot listen on {subject}: {problem}") from problem
        self._inboxes.append(inbox)
        return inbox

    async def unlisten(self, inbox: NatsSubscription) -> None:
        if inbox in self._inboxes:
            self._inboxes.remove(inbox)
        with contextlib.suppress(nats_errors.Error):
            await inbox.unsubscribe()

    async def send(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Publishes. Raises StreamingError."""
        try:
            await self._nats.publish(subject, payload, reply)
        except nats_errors.Error as problem:
            raise StreamingError(f"a message of {len(payload)} bytes could not be sent: {problem}") from problem

    async def request(self, subject: str, payload: bytes, request_name: str) -> bytes:
        """Sends a request, called `request_name` in messages, and returns the answer.

        Raises NoServerError if no answer came, and StreamingError if it could not be sent.
        """
        try:
            answer = await self._nats.request(subject, payload, timeout=self._timeout)
        except nats_errors.NoRespondersError:
            raise NoServerError(f"no streaming server answers {request_name}: nothing listens on {subject}") from None
        except TimeoutError:
            raise NoServerError(f"no streaming server answered {request_name} within {self._timeout:g} s") from None
        except nats_errors.Error as problem:
            raise StreamingError(f"a request could not be sent ({request_name}): {problem}") from problem
        return bytes(answer.data)

    async def close(self) -> None:
        """Ends all subscriptions, and closes the connection if it is its own."""
        if self._own:
            await _close(self._nats, self._timeout)
            return
        for inbox in tuple(self._inboxes):
            await self.unlisten(inbox)


async def open_link(
    url: str | Sequence[str] | NatsClient, name: str, timeout: float, nats_options: dict[str, Any]
) -> NatsLink:
    """Connects, or takes an existing connection.

    `name` is shown in the server's monitoring; `timeout` in seconds limits this call and later requests;
    `nats_options` go to `connect` of nats-py. Raises NoServerError with the reason.
    """
    if isinstance(url, NatsClient):
        return NatsLink(url, False, timeout)
    problems: list[Exception] = []

    async def note(problem: Exception) -> None:
        problems[:] = [problem]
        _LOG.debug("NATS: %r", problem)

    nats = NatsClient()
    servers = [url] if isinstance(url, str) else list(url)
    settings: dict[str, Any] = {
        "name": name,
        "error_cb": note,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": _RECONNECT_WAIT,
    }
    try:
        # the library itself would try for ever
        await _with_timeout(nats.connect(servers, **settings | nats_options), timeout)
    except (TimeoutError, OSError, nats_errors.Error) as problem:
        await _close(nats, timeout)
        why = problems[-1] if problems else problem
        where = ", ".join(server.rpartition("@")[2] for server in servers)
        raise NoServerError(f"no connection to NATS at {where}: {str(why) or type(why).__name__}") from problem
    return NatsLink(nats, True, timeout)


def is_nobody(message: Msg) -> bool:
    """Returns whether the NATS server reports that no subscriber got the request of this reply subject."""
    return not message.data and (message.headers or {}).get("Status") == "503"


async def _with_timeout(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Ends work that takes too long, as `asyncio.wait_for`, even if it ignores a cancellation.

    The library does so if an awaited operation fails at the same moment.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        late = not task.done()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_INTERVAL)
    if late and task.cancelled():
        raise TimeoutError
    task.result()


async def _close(nats: NatsClient, timeout: float) -> None:
    # Before the first connection the library has no transport, and its close fails.
    with contextlib.suppress(TimeoutError, OSError, nats_errors.Error, AttributeError):
        await asyncio.wait_for(nats.close(), timeout)
