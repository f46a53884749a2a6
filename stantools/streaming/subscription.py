"""A subscription of a client: requests it, passes its messages to a handler, acknowledges them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stantools.streaming import subscription_protocol
from stantools.streaming.errors import ClosedError, RefusedByServerError, StreamingError
from stantools.streaming.link import NatsLink
from stantools.streaming.streaming_protocol import StreamingProtocol
from stantools.streaming.subscription_protocol import DeliveredMessage, SubscriptionOptions

if TYPE_CHECKING:
    from stantools.nats.client import NatsMessage

_LOG: Final = logging.getLogger(__name__)
#: Messages that may wait for a handler; more are discarded, and redelivered when the server gets no acks.
_MAX_WAITING: Final = 65536

Handler = Callable[["Message"], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Message(DeliveredMessage):
    """A message for a handler; see `DeliveredMessage` for its fields."""

    subscription: Subscription | None = field(default=None, repr=False, compare=False)

    async def ack(self) -> None:
        """Acknowledges the message; has an effect only with `manual_acks`. Raises StreamingError if closed."""
        if self.subscription is not None:
            await self.subscription.ack(self)


class Subscription:
    """A subscription, made by `Client.subscribe`."""

    def __init__(
        self,
        link: NatsLink,
        session: StreamingProtocol,
        channel: str,
        handler: Handler,
        options: SubscriptionOptions,
        ended: Callable[[Subscription], None],
    ) -> None:
        self.channel = channel
        self.options = options
        self._link = link
        self._session = session
        self._handler = handler
        self._ended = ended
        self._inbox: int | None = None
        self._ack_inbox = ""
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(max(_MAX_WAITING, 2 * options.max_in_flight))
        self._task: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        """Whether it is closed; its handler is not called any more then."""
        return self._task is None

    async def ack(self, message: DeliveredMessage) -> None:
        """Acknowledges a message. Raises StreamingError if the subscription is closed."""
        self._check()
        if not self._link.writable:
            await self._link.wait_writable(self.options.ack_wait)
            self._check()
        self._link.send(self._ack_inbox, subscription_protocol.ack(message))

    async def close(self) -> None:
        """Ends it; the server keeps the position of a durable. Raises StreamingError."""
        if not self._session.leave_subject:
            raise StreamingError("the streaming server is too old to close a subscription")
        await self._leave(self._session.leave_subject)

    async def unsubscribe(self) -> None:
        """Ends it; the server deletes the position of a durable. Raises StreamingError."""
        await self._leave(self._session.unsubscribe_subject)

    async def _leave(self, subject: str) -> None:
        self._check()
        what = f"to end the subscription to {self.channel}"
        try:
            subscription_protocol.read_answer(
                await self._link.request(subject, self._leaving(self._ack_inbox), what), what
            )
        finally:
            self._ended(self)
            await self.stop()

    async def start(self) -> None:
        """Requests the subscription; messages may come before the answer has been read. Raises StreamingError."""
        inbox = self._link.new_inbox()
        self._inbox = self._link.listen(inbox, self._on_message)
        what = f"a subscription to {self.channel}"
        request = subscription_protocol.subscribe_request(self._session.client_id, self.channel, inbox, self.options)
        try:
            answer = await self._link.request(self._session.subscribe_subject, request, what)
            self._ack_inbox = subscription_protocol.read_answer(answer, what)
        except BaseException as problem:
            await self.stop()
            if not isinstance(problem, RefusedByServerError) and self._session.leave_subject:
                # The subscription may exist: the server finds it by the inbox (streaming-protocol.md section 12, note
                # 8).
                with suppress(StreamingError):
                    self._link.send(self._session.leave_subject, self._leaving(inbox))
            raise
        self._task = asyncio.create_task(self._handle())

    async def stop(self) -> None:
        """Stops calling the handler; the server gets no notice."""
        task, self._task = self._task, None
        # A handler may close its own subscription.
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            self._link.unlisten(inbox)

    def _leaving(self, inbox: str) -> bytes:
        return subscription_protocol.leave_request(self._session.client_id, self.channel, inbox, self.options.durable)

    def _check(self) -> None:
        if self.closed:
            raise ClosedError(f"the subscription to {self.channel} is closed")

    def _on_message(self, message: NatsMessage) -> None:
        try:
            self._waiting.put_nowait(message.data)
        except asyncio.QueueFull:
            _LOG.warning("%s: messages come faster than they are handled", self.channel)

    async def _handle(self) -> None:
        while not self.closed:
            payload = await self._waiting.get()
            try:
                message = subscription_protocol.read_message(payload, Message, subscription=self)
                done = self._handler(message)
                if inspect.isawaitable(done):
                    await done
                if not self.options.manual_acks and not self.closed:
                    await self.ack(message)
            except Exception as problem:  # a handler may raise anything; the message is redelivered
                _LOG.error("%s: a message was not handled: %r", self.channel, problem)
