"""Receiving messages in bulk on a connection of nats-py.

nats-py makes an object of every message, at some 100 000 a second. Here, the bytes that its read loop has read are
parsed first by us: messages of our inboxes become columns, every other frame goes to nats-py's own parser. This module
is the only one that reaches into nats-py for that: `Client._ps`, which has `parse(data)` and `reset()` and keeps an
incomplete frame in `buf`, `state` and `needed`. Where these are missing, an ordinary subscription is used, with the
same results more slowly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from stantools.errors import StantoolsError
from stantools.nats.assembler import Assembler, FrameError, Received

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

_PARSER = ("parse", "reset", "buf", "state", "needed")


class InterruptedConnectionError(StantoolsError):
    """The connection was lost: what was under way to the inbox is gone. It works again on the next connection."""


class Inbox:
    """A subscription whose messages come in batches; made by `open_inbox`.

    Attributes:
        subject: What it is subscribed to.
    """

    def __init__(self, subject: str, tap: _Tap | None) -> None:
        self.subject = subject
        self._tap = tap
        self._subscription: Subscription | None = None
        self._batches: deque[Received | None] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._frames = Assembler()  # for an ordinary subscription only

    async def receive(self, timeout: float) -> Received:
        """Returns what has come since the last call, and waits for something if nothing has.

        Args:
            timeout: Longest wait in seconds.

        Raises:
            TimeoutError: Nothing came.
            InterruptedConnectionError: The connection was lost since the last call.
        """
        self._collect()
        if not self._batches:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with what is waited for.
                async with asyncio.timeout(timeout):
                    await self._waiting
            finally:
                self._waiting = None
            self._collect()
        batch = self._batches.popleft()
        if batch is None:
            raise InterruptedConnectionError("the connection to the server was lost", "run again")
        return batch

    async def close(self) -> None:
        """Unsubscribes."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        if self._tap:
            self._tap.remove(subscription._id)
        if not subscription._conn.is_closed:
            await subscription.unsubscribe()

    async def _open(self, client: Client) -> None:
        callback = None if self._tap else self._take_one
        self._subscription = await client.subscribe(self.subject, cb=callback, pending_bytes_limit=0)
        number = self._subscription._id
        if self._tap:
            self._tap.add(number, self)
        else:
            self._frames.want([number])

    def _collect(self) -> None:
        if self._tap:
            self._tap.distribute()
        else:
            self._batches += [batch for _, batch in self._frames.take()]

    def _put(self, batch: Received | None) -> None:
        self._batches.append(batch)
        self._wake()

    def _wake(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    @property
    def _is_waited_for(self) -> bool:
        # Not by one who is about to wake up: what comes until then is collected for him, in one batch.
        return self._waiting is not None and not self._waiting.done()

    async def _take_one(self, message: Msg) -> None:
        """Takes a message of an ordinary subscription."""
        self._frames.put(_frame(message))
        self._frames.advance()
        self._wake()


def _frame(message: Msg) -> bytes:
    """Writes a message as the server sent it."""
    words = [message.subject, str(message._sid), *([message.reply] if message.reply else [])]
    start = " ".join(words).encode()
    if not message.headers:
        return b"MSG %b %d\r\n%b\r\n" % (start, len(message.data), message.data)
    headers = dict(message.headers)
    status = " ".join(filter(None, (headers.pop("Status", ""), headers.pop("Description", ""))))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    block = f"NATS/1.0{' ' if status else ''}{status}\r\n{lines}\r\n".encode()
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (start, len(block), len(block) + len(message.data), block, message.data)


class _Tap:
    """Stands in front of nats-py's parser."""

    def __init__(self, client: Client) -> None:
        self._parser: Any = client._ps
        self._inboxes: dict[int, Inbox] = {}
        self._frames = Assembler()
        self._connection = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def add(self, number: int, inbox: Inbox) -> None:
        self._inboxes[number] = inbox
        self._frames.want(list(self._inboxes))

    def remove(self, number: int) -> None:
        self._inboxes.pop(number, None)
        self._frames.want(list(self._inboxes))

    async def parse(self, data: bytes = b"") -> None:
        """Is called by nats-py's read loop with every piece of bytes."""
        if not self._inboxes and self._frames.empty:
            await self._parser.parse(data)
            return
        connection = self._connection
        data = await self._finish_theirs(data)
        self._frames.put(data)
        while connection == self._connection:
            try:
                other = self._frames.advance()
            except FrameError as error:
                from nats.errors import ProtocolError

                raise ProtocolError from error
            if other is None:
                break
            await self._parser.parse(other)
        if any(inbox._is_waited_for for inbox in self._inboxes.values()):
            self.distribute()

    async def _finish_theirs(self, data: bytes) -> bytes:
        """Gives nats-py the rest of a frame that it had begun with before the first inbox was there."""
        from nats.protocol.parser import AWAITING_CONTROL_LINE

        if self._parser.state != AWAITING_CONTROL_LINE:
            missing = self._parser.needed + 2 - len(self._parser.buf)
            await self._parser.parse(data[:missing])
            return data[missing:]
        if self._parser.buf:
            data = bytes(self._parser.buf) + data
            self._parser.buf.clear()
        return data

    def reset(self) -> None:
        """Is called by nats-py when a connection ends and when one begins."""
        self._parser.reset()
        self.distribute()
        self._connection += 1
        self._frames.clear()
        for inbox in self._inboxes.values():
            if not inbox._batches or inbox._batches[-1] is not None:
                inbox._put(None)

    def distribute(self) -> None:
        """Hands out what was collected."""
        for number, batch in self._frames.take():
            inbox = self._inboxes.get(number)
            if inbox:
                inbox._put(batch)


async def open_inbox(client: Client, subject: str) -> Inbox:
    """Subscribes to a subject, or to all of a wildcard, to receive in bulk.

    Args:
        client: A connected client of nats-py.
        subject: What to subscribe to; `client.new_inbox()` makes one.
    """
    inbox = Inbox(subject, _tap(client))
    await inbox._open(client)
    return inbox


def _tap(client: Client) -> _Tap | None:
    parser: Any = getattr(client, "_ps", None)
    if isinstance(parser, _Tap):
        return parser
    if not all(hasattr(parser, name) for name in _PARSER):
        return None
    tap = _Tap(client)
    client._ps = tap  # type: ignore[assignment]
    return tap
