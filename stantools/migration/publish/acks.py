"""The answers to published messages: each must say that its message is stored where it should be, in order."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from stantools.migration.publish import kernels
from stantools.migration.publish.receiving import receive
from stantools.migration.target.errors import ApiError, TargetError
from stantools.migration.target.jetstream import read_answer
from stantools.nats.receive import Inbox, InterruptedConnectionError, open_inbox

if TYPE_CHECKING:
    import asyncio

    from stantools.migration.target.connection import Connection
    from stantools.nats.assembler import Received


class OutOfStepError(TargetError):
    """Answers did not come in the order in which the messages were sent; what is stored has to be looked at."""


class Acks:
    """An inbox for the answers to messages of one stream; made by `open`.

    Attributes:
        expected: The sequence that is to be answered next: every one before it is stored.
        reply: What the reply subjects of messages begin with; their sequence follows.
    """

    def __init__(self, connection: Connection, stream: str, inbox: Inbox) -> None:
        self._connection = connection
        self._stream = stream
        self._inbox = inbox
        self._run = 0
        self.expected = 0
        self.reply = b""

    @classmethod
    async def open(cls, connection: Connection, stream: str) -> Acks:
        """Subscribes to a new inbox; the server knows of it when it has answered any later request."""
        client = connection.client
        return cls(connection, stream, await open_inbox(client, f"{client.new_inbox()}.>"))

    async def close(self) -> None:
        """Unsubscribes."""
        await self._inbox.close()

    async def begin(self, first: int) -> None:
        """Begins anew: answers that are still under way do not count any more, nor does a connection that broke before.

        Args:
            first: Sequence of the message that will be sent first.
        """
        with contextlib.suppress(TimeoutError):
            while True:
                with contextlib.suppress(InterruptedConnectionError):
                    await self._inbox.receive(0)
        self._run += 1
        self.expected = first
        self.reply = b"%b%d." % (self._inbox.subject[:-1].encode(), self._run)

    async def receive(self, failed: asyncio.Future[TargetError], timeout: float) -> None:
        """Waits for answers, and takes what has come.

        Args:
            failed: From `Connection.watch`.
            timeout: Seconds to wait.

        Raises:
            ApiError: The server did not store a message.
            OutOfStepError: An answer does not belong to the message that is to be answered next.
            NoAnswerError: No answer came.
            TargetError: What `failed` says.
            InterruptedConnectionError: The connection broke.
        """
        what = f"message {self.expected} of stream {self._stream}"
        received = await receive(self._connection, self._inbox, failed, timeout, what)
        row, self.expected = kernels.check_answers(received.buffer, received.columns, 0, self.reply, self.expected)
        if row < len(received):
            raise self._problem(received, row)

    def _problem(self, received: Received, row: int) -> TargetError:
        """What an answer says that is not the one expected."""
        token, data = received.subject(row)[len(self.reply) :], received.data(row)
        what = f"message {token.decode()} of stream {self._stream}"
        if not data:
            return ApiError(what, 503, 0, "no stream takes it")
        try:
            answer = read_answer(what, data)
        except TargetError as problem:
            return problem
        stored = answer.get("seq")
        if str(stored) == token.decode():
            return OutOfStepError(f"{what} was answered before message {self.expected}", "run the command again")
        return TargetError(
            f"{what} was stored by {answer.get('stream')} at sequence {stored}",
            "the server does not know Nats-Expected-Last-Sequence: use nats-server 2.9 or newer",
        )
