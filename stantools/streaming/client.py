"""A client of NATS Streaming servers for asyncio.

    async with await connect("nats://localhost:4222", "test-cluster", "me") as client:
        await client.publish("orders", b"first")          # returns when the server has stored it
        await client.publish_async("orders", b"second")   # returns when it is sent
        await client.settled()                            # waits for all acks

        async def handle(message: Message) -> None:
            print(message.sequence, message.data)

        await client.subscribe("orders", handle, SubscriptionOptions(start=Start.first(), durable="printer"))
        ...

Guarantees: an awaited `publish` is stored at least once; a message is acknowledged after its handler has returned
without an exception; a handler gets one message at a time, in order of arrival. The client survives reconnections to
NATS: meanwhile publishers wait, and no message is sent a second time. When the server does not know the client any
more, all pending operations fail, `connection_lost` is called, and the client is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from stantools.errors import UsageError
from stantools.streaming.errors import (
    AckTimeoutError,
    ClosedError,
    RefusedByServerError,
    SessionLostError,
    StreamingError,
)
from stantools.streaming.link import NatsLink, open_link
from stantools.streaming.streaming_protocol import DISCOVER_PREFIX, SessionState, StreamingProtocol
from stantools.streaming.subscription import Handler, Message, Subscription
from stantools.streaming.subscription_protocol import Start, SubscriptionOptions

if TYPE_CHECKING:
    from stantools.nats.client import NatsMessage
    from stantools.nats.connection import NatsConnection

__all__ = ["Client", "ClientOptions", "Message", "Start", "Subscription", "SubscriptionOptions", "connect"]

#: Called with the result of a message: None if it was stored, otherwise the error; after an AckTimeoutError the result
#: is unknown.
Acked = Callable[[StreamingError | None], None]

_LOG: Final = logging.getLogger(__name__)
#: inbox of acks of the official clients; users may have no permission for other subjects
_ACKS: Final = "_STAN.acks"
#: seconds between two checks of timeouts
_TICK: Final = 0.5

Lost = Callable[[StreamingError], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Settings of a client. Times are seconds."""

    discover_prefix: str = DISCOVER_PREFIX  #: the server's `discover_prefix`
    timeout: float = 2.0  #: maximum time for answers to requests
    ack_timeout: float = 30.0  #: maximum time for the ack of a message, and for a reconnection before it is sent
    max_outstanding: int = 16384  #: maximum number of messages without an ack
    ping_interval: int = 5  #: time between two pings, whole seconds
    ping_max_out: int = 88  #: number of consecutive unanswered pings before the client is considered lost


class Client:
    """A client that is registered with a streaming server, made by `connect`. An asynchronous context manager."""

    def __init__(
        self, link: NatsLink, session: StreamingProtocol, options: ClientOptions, connection_lost: Lost | None
    ) -> None:
        self.client_id = session.client_id
        self.options = options
        self._link = link
        self._session = session
        self._connection_lost = connection_lost
        self._outstanding = UnackedPublishes(options.max_outstanding, options.ack_timeout)
        self._subscriptions: set[Subscription] = set()
        self._acks = self._pings = ""
        self._tick_task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._problem: StreamingError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session.state is not SessionState.OPEN:
            return
        try:
            await self.close()
        except StreamingError as problem:
            # The error of the block counts, above all that it was cancelled.
            if error is None:
                raise
            _LOG.warning("the client %r was not closed in order: %s", self.client_id, problem)

    @property
    def closed(self) -> bool:
        """Whether the client is closed, by the caller or because the server does not know it any more."""
        return self._session.state is not SessionState.OPEN

    @property
    def outstanding(self) -> int:
        """Number of messages sent without an ack yet."""
        return len(self._outstanding)

    async def publish(self, channel: str, data: bytes, reply: str = "") -> None:
        """Publishes a message and waits until the server has stored it.

        Args:
            channel: Name of the channel.
            data: The payload.
            reply: Reply subject, stored with the message.

        Raises:
            RefusedByServerError: The server did not store it.
            AckTimeoutError: No ack came in time; the message may be stored.
            SessionLostError: The server does not know the client any more.
            StreamingError: It could not be sent.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def acked(problem: StreamingError | None) -> None:
            if stored.done():
                return
            if problem is None:
                stored.set_result(None)
            else:
                stored.set_exception(problem)

        await self.publish_async(channel, data, acked, reply)
        await stored

    async def publish_async(self, channel: str, data: bytes, acked: Acked | None = None, reply: str = "") -> None:
        """Sends a message.

        Waits only while the maximum number of messages without an ack is reached, NATS is not connected or does not
        keep up with reading.

        Args:
            channel: Name of the channel.
            data: The payload.
            acked: Called once, with None when it was stored, otherwise with the error. Without it, failures are
                logged.
            reply: Reply subject, stored with the message.

        Raises:
            StreamingError: It could not be sent; `acked` is not called.
        """
        name = _checked(channel)
        await self._outstanding.room()
        while not self._link.writable and not self.closed:
            try:
                await self._link.wait_writable(self.options.ack_timeout)
            except StreamingError:
                self._check_lost()
                self._check()
                raise
            await self._outstanding.room()
        self._check()
        sent = self._session.publish(self._outstanding.next, name, reply.encode(), data)
        self._link.send(sent.subject, sent.payload, self._acks)
        self._outstanding.add(asyncio.get_running_loop().time(), acked or self._log_failure)

    async def settled(self) -> None:
        """Waits until every sent message has its ack, or has failed."""
        await self._outstanding.none()

    async def subscribe(
        self, channel: str, handler: Handler, options: SubscriptionOptions | None = None
    ) -> Subscription:
        """Subscribes to a channel.

        Args:
            channel: Name of the channel.
            handler: Called with one message after the other; an awaitable result is awaited.
            options: The start position, and settings.

        Raises:
            RefusedByServerError: The server refused.
            NoServerError: It did not answer.
        """
        _checked(channel)
        self._check()
        subscription = Subscription(
            self._link,
            self._session,
            channel,
            handler,
            options or SubscriptionOptions(),
            self._subscriptions.discard,
        )
        await subscription.start()
        self._subscriptions.add(subscription)
        return subscription

    async def close(self) -> None:
        """Waits for outstanding acks (up to `timeout`), unregisters from the server and closes everything.

        Subscriptions end as by `Subscription.close`. Has no effect on a closed client.

        Raises:
            StreamingError: The server did not answer, or answered with an error; everything is closed all the
                same.
        """
        if self.closed:
            if self._ending is not None and self._ending is not asyncio.current_task():
                await asyncio.shield(self._ending)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.settled(), self.options.timeout)
        if self._session.state is not SessionState.OPEN:  # closed or lost meanwhile
            return
        request = self._session.close()
        try:
            error = self._session.close_answered(await self._link.request(request.subject, request.payload, "to close"))
            if error:
                raise RefusedByServerError("to close", error)
        finally:
            self._session.state = SessionState.CLOSED
            await self._end(ClosedError("the client is closed"))

    # Messages from NATS.

    async def _begin(self) -> None:
        session, link = self._session, self._link
        self._acks = f"{_ACKS}.{link.new_inbox().rpartition('.')[2]}"
        self._pings = link.new_inbox()
        link.listen(session.heartbeat_inbox, self._on_heartbeat)
        link.listen(self._pings, self._on_ping_answer)
        link.listen(self._acks, self._on_ack)
        request = session.connect()
        what = f"as cluster {session.cluster_id!r}"
        answer = await link.request(request.subject, request.payload, what, self._acks)
        session.connect_answered(answer, asyncio.get_running_loop().time())
        self._tick_task = asyncio.create_task(self._tick())

    def _on_heartbeat(self, message: NatsMessage) -> None:
        if message.reply:
            with contextlib.suppress(StreamingError):
                self._link.send(message.reply.decode(), self._session.heartbeat())

    def _on_ping_answer(self, message: NatsMessage) -> None:
        if message.status:
            return  # from NATS: nothing listens there; the ping stays unanswered
        try:
            self._session.ping_answered(message.data)
        except StreamingError as problem:
            _LOG.warning("%s", problem)
        self._check_lost()

    def _on_ack(self, message: NatsMessage) -> None:
        if message.status:
            return  # from NATS: nothing listens there. It does not name the message; its ack will time out.
        try:
            ack = self._session.ack(message.data)
        except StreamingError as problem:
            _LOG.error("%s", problem)
            return
        if ack is not None:
            refused = RefusedByServerError("a message", ack.error) if ack.error else None
            self._outstanding.settle(ack.number, refused)

    async def _tick(self) -> None:
        pause = min(_TICK, self.options.ack_timeout / 2)
        while True:
            await asyncio.sleep(pause)
            now = asyncio.get_running_loop().time()
            self._outstanding.expire(now)
            ping = self._session.tick(now)
            if ping is not None:
                with contextlib.suppress(StreamingError):
                    self._link.send(ping.subject, ping.payload, self._pings)
            self._check_lost()

    def _check_lost(self) -> None:
        """Starts to close the client if the session is lost."""
        if self._link.broken and not self.closed:
            self._session.lost("the connection to NATS was closed")
        if self._session.state is SessionState.LOST and self._ending is None:
            self._problem = SessionLostError(
                f"the streaming server does not know the client {self.client_id!r} any more: {self._session.why_lost}"
            )
            self._ending = asyncio.create_task(self._end_lost(self._problem))

    async def _end_lost(self, problem: SessionLostError) -> None:
        await self._end(problem)
        if self._connection_lost is None:
            _LOG.error("%s", problem)
            return
        try:
            done = self._connection_lost(problem)
            if inspect.isawaitable(done):
                await done
        except Exception as error:  # it may raise anything, and no caller awaits this task
            _LOG.error("the handler of lost connections failed: %r", error)

    async def _end(self, problem: StreamingError) -> None:
        self._problem = problem
        if self._tick_task is not None and self._tick_task is not asyncio.current_task():
            self._tick_task.cancel()
            await asyncio.gather(self._tick_task, return_exceptions=True)
        self._outstanding.fail(problem)
        for subscription in tuple(self._subscriptions):
            await subscription.stop()
        self._subscriptions.clear()
        await self._link.close()

    def _check(self) -> None:
        if self._session.state is not SessionState.OPEN:
            raise self._problem or ClosedError("the client is being closed")

    @staticmethod
    def _log_failure(problem: StreamingError | None) -> None:
        if problem is not None:
            _LOG.error("a message may be lost: %s", problem)


async def connect(
    url: str | Sequence[str] | NatsConnection,
    cluster_id: str,
    client_id: str,
    options: ClientOptions | None = None,
    connection_lost: Lost | None = None,
    **nats_options: Any,
) -> Client:
    """Connects to a NATS server and registers with the streaming server on it.

    Args:
        url: URL of a NATS server, several of them, or an existing connection, which stays open at the end.
        cluster_id: The streaming server's cluster id.
        client_id: The name to register: letters, digits, `-` and `_`. Only one client may have it at a time.
        options: Settings.
        connection_lost: Called once if the server does not know the client any more.
        nats_options: Fields of `stantools.nats.connect_options.ConnectOptions`: `user`, `password`, `token`, `nkey`,
            `creds`, `tls_ca`, `tls_cert`, `tls_key`, …

    Raises:
        NoServerError: NATS cannot be reached, or no streaming server with this cluster id answers.
        StreamingError: The server refused.
        UsageError: An option does not exist or makes no sense.
        StoreUnreadableError: A file of credentials or certificates cannot be used.
    """
    options = options or ClientOptions()
    if min(options.ping_interval, options.ping_max_out, options.max_outstanding) < 1:
        raise UsageError("ping_interval, ping_max_out and max_outstanding must be at least 1")
    link = await open_link(url, client_id, options.timeout, nats_options)
    session = StreamingProtocol(
        cluster_id,
        client_id,
        secrets.token_hex(11),
        link.new_inbox(),
        discover_prefix=options.discover_prefix,
        ping_interval=options.ping_interval,
        ping_max_out=options.ping_max_out,
    )
    client = Client(link, session, options, connection_lost)
    try:
        await client._begin()
    except BaseException:
        await client._end(ClosedError("the client is not connected"))
        raise
    return client


def _checked(channel: str) -> bytes:
    """Returns a channel's name as bytes. The server checks the rest."""
    if not channel or any(character <= " " or character == "\x7f" for character in channel):
        raise UsageError(f"{channel!r} is not a name of a channel that can be sent over NATS")
    try:
        return channel.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{channel!r} is not UTF-8") from None


class UnackedPublishes:
    """The published messages without an ack: callbacks and deadlines.

    At most `limit` at a time; `timeout` is the number of seconds until an ack counts as lost.
    """

    def __init__(self, limit: int, timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout
        # in order of their deadlines, as all timeouts are equal
        self._waiting: dict[int, tuple[float, Acked]] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._none = asyncio.Event()
        self._none.set()
        self.next = 1  #: the number of the next message

    def __len__(self) -> int:
        return len(self._waiting)

    async def room(self) -> None:
        """Waits until one more may be sent."""
        while len(self._waiting) >= self._limit:
            self._room.clear()
            await self._room.wait()

    async def none(self) -> None:
        """Waits until no message is outstanding."""
        while self._waiting:
            self._none.clear()
            await self._none.wait()

    def add(self, now: float, acked: Acked) -> None:
        """Adds the next message; `now` is in seconds of the clock of `expire`; `acked` is called once."""
        self._waiting[self.next] = (now + self._timeout, acked)
        self.next += 1

    def settle(self, number: int, problem: StreamingError | None) -> None:
        """Reports the result of a message; has no effect if that was done before."""
        found = self._waiting.pop(number, None)
        if found is None:
            return
        if len(self._waiting) < self._limit:
            self._room.set()
        if not self._waiting:
            self._none.set()
        found[1](problem)

    def expire(self, now: float) -> None:
        """Fails the messages past their deadlines."""
        late = itertools.takewhile(lambda item: item[1][0] <= now, self._waiting.items())
        for number in [number for number, _ in late]:
            self.settle(number, AckTimeoutError(f"no ack came within {self._timeout:g} s; the message may be stored"))

    def fail(self, problem: StreamingError) -> None:
        """Fails all messages."""
        for number in list(self._waiting):
            self.settle(number, problem)
