"""The connection to NATS that a client uses: nats-py, with failures as errors of ours."""

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
#: Seconds between two attempts to connect again.
_RECONNECT_WAIT: Final = 0.25
#: Seconds until what was cancelled is cancelled again.
_CANCELLING: Final = 0.2


class Link:
    """A connection to NATS.

    Args:
        nats: The connection.
        own: Whether it is closed in the end.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, nats: NatsClient, own: bool, timeout: float) -> None:
        self._nats = nats
        self._own = own
        self._timeout = timeout
        self._inboxes: list[NatsSubscription] = []

    @property
    def broken(self) -> bool:
        """Whether it was closed for good."""
        return bool(self._nats.is_closed)

    def new_inbox(self) -> str:
        """Returns a subject that nobody else uses."""
        return str(self._nats.new_inbox())

    async def listen(self, subject: str, handler: Callable[[Msg], Awaitable[None]]) -> NatsSubscription:
        """Subscribes; how much may wait is up to the caller. Raises StreamingError."""
        try:
            inbox = await self._nats.subscribe(subject, cb=handler, pending_msgs_limit=-1, pending_bytes_limit=-1)
        except nats_errors.Error as problem:
            raise StreamingError(f"cannot listen on {subject}: {problem}") from problem
        self._inboxes.append(inbox)
        return inbox

    async def unlisten(self, inbox: NatsSubscription) -> None:
        """Ends a subscription."""
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

    async def request(self, subject: str, payload: bytes, what: str) -> bytes:
        """Asks and returns the answer.

        Args:
            subject: Where to ask.
            payload: What.
            what: Names it, for messages.

        Raises:
            NoServerError: Nobody answered.
            StreamingError: It could not be sent.
        """
        try:
            answer = await self._nats.request(subject, payload, timeout=self._timeout)
        except nats_errors.NoRespondersError:
            raise NoServerError(f"no streaming server answers {what}: nothing listens on {subject}") from None
        except TimeoutError:
            raise NoServerError(f"no streaming server answered {what} within {self._timeout:g} s") from None
        except nats_errors.Error as problem:
            raise StreamingError(f"a request could not be sent ({what}): {problem}") from problem
        return bytes(answer.data)

    async def close(self) -> None:
        """Ends everything that was begun here, and the connection if it is ours."""
        if self._own:
            await _close(self._nats, self._timeout)
            return
        for inbox in tuple(self._inboxes):
            await self.unlisten(inbox)


async def open_link(
    url: str | Sequence[str] | NatsClient, name: str, timeout: float, nats_options: dict[str, Any]
) -> Link:
    """Connects, or takes a connection that is there.

    Args:
        url: Where to, or the connection.
        name: What the server's monitoring shows.
        timeout: Seconds until this counts as failed, and for requests later.
        nats_options: More for `connect` of nats-py.

    Raises:
        NoServerError: It did not work; the message says why.
    """
    if isinstance(url, NatsClient):
        return Link(url, False, timeout)
    said: list[Exception] = []

    async def note(problem: Exception) -> None:
        said[:] = [problem]
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
        # The library itself would try for ever.
        await _at_most(nats.connect(servers, **settings | nats_options), timeout)
    except (TimeoutError, OSError, nats_errors.Error) as problem:
        await _close(nats, timeout)
        why = said[-1] if said else problem
        where = ", ".join(server.rpartition("@")[2] for server in servers)
        raise NoServerError(f"no connection to NATS at {where}: {str(why) or type(why).__name__}") from problem
    return Link(nats, True, timeout)


def is_nobody(message: Msg) -> bool:
    """Returns whether the NATS server says that nobody listened to a message with this reply subject."""
    return not message.data and (message.headers or {}).get("Status") == "503"


async def _at_most(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Ends work that takes too long, as `asyncio.wait_for`, also if it overlooks that it was cancelled.

    The library does now and then, when what it waits for fails at the same moment.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        late = not task.done()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCELLING)
    if late and task.cancelled():
        raise TimeoutError
    task.result()


async def _close(nats: NatsClient, timeout: float) -> None:
    # Before the first connection the library has no transport, and close stumbles over that.
    with contextlib.suppress(TimeoutError, OSError, nats_errors.Error, AttributeError):
        await asyncio.wait_for(nats.close(), timeout)
