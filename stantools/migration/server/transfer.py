"""Sends the pieces of an archive to a server that restores it (jetstream-migration.md section 4).

Every piece is answered, with an empty message if all is well; the window limits the unanswered bytes. A server drops
the restore silently after five seconds without a piece. So while the next part of the archive is being built, in
another thread, the sender repeats a stream identifier, which has no meaning.

Every chunk of an archive begins with its type, one byte, and the length of the rest, three bytes little-endian
(jetstream-migration.md section 7); a stream identifier may stand only between two chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stantools.nats.errors import ConnectionLostError, NatsError, NoAnswerError
from stantools.nats.jetstream import read_answer

if TYPE_CHECKING:
    from stantools.nats.client import NatsMessage
    from stantools.nats.connection import NatsConnection
    from stantools.store.mapping import Buffer

#: seconds without a piece before a sign of life; the server gives up after 5
IDLE_SECONDS: Final = 1.5
#: seconds without an answer before one piece beyond the window is sent: if the restoring server is gone, the connected
#: server reports at once that there is no listener
NUDGE_SECONDS: Final = 4.0

#: seconds to wait for the reason after the server stops listening
REASON_SECONDS: Final = 1.0


STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_HEAD: Final = 4


class DroppedError(NatsError):
    """The server has given up the restore."""


@dataclass(frozen=True)
class TransferFlow:
    window: int = 8 << 20  #: limit of unanswered bytes
    piece_bytes: int = 128 << 10  #: bytes of one message; at most the server's max_payload
    chunk_timeout: float = 30.0  #: seconds to wait for the next answer
    final_timeout: float = 3600.0  #: seconds to wait at the end; old servers unpack only then


class FrameTracker:
    """Follows the chunks of a framed stream in pieces of any size."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    @property
    def between(self) -> bool:
        """The last piece ended at the end of a chunk."""
        return not self._head and not self._left

    def feed(self, piece: bytes) -> None:
        position, size = 0, len(piece)
        while position < size:
            if self._left:
                step = min(self._left, size - position)
                self._left -= step
                position += step
                continue
            taken = piece[position : position + _HEAD - len(self._head)]
            self._head += taken
            position += len(taken)
            if len(self._head) == _HEAD:
                self._left = int.from_bytes(self._head[1:], "little")
                self._head = b""


class Transfer:
    """One archive in transit; created by `transfer`.

    `operation` names the request in messages; `subject` for the pieces comes from the server.
    """

    def __init__(
        self,
        connection: NatsConnection,
        operation: str,
        subject: str,
        flow: TransferFlow,
    ) -> None:
        self._connection = connection
        self._operation = operation
        self._subject = subject.encode()
        self._flow = flow
        self._piece_bytes = max(1, min(flow.piece_bytes, connection.max_payload))
        self._inbox = connection.new_inbox()
        self._unanswered: deque[int] = deque()
        self._unanswered_bytes = 0
        self._frames = FrameTracker()
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self._last_answer = self._last_piece = self._clock()
        self._answered = asyncio.Event()
        self._final: asyncio.Future[bytes] = loop.create_future()
        self._failed: asyncio.Future[NatsError] = loop.create_future()
        #: the whole archive was sent
        self.complete = False

    @property
    def answers(self) -> bytes:
        return self._inbox + b".*"

    async def send_all(self, parts: Iterable[Buffer]) -> None:
        """Sends an archive, part by part; each part has to be valid until the next one is requested."""
        loop = asyncio.get_running_loop()
        iterator: Iterator[Buffer] = iter(parts)
        builder = ThreadPoolExecutor(1, thread_name_prefix="archive")
        building = loop.run_in_executor(builder, next, iterator, None)
        try:
            while True:
                await self._wait_alive(building)
                part = building.result()
                if part is None:
                    self.complete = True
                    return
                content = memoryview(part).cast("B")
                for start in range(0, len(content), self._piece_bytes):
                    piece = bytes(content[start : start + self._piece_bytes])
                    await self._wait_for_room(len(piece))
                    await self._publish(piece, b"piece")
                building = loop.run_in_executor(builder, next, iterator, None)
        finally:
            # The builder reads files that may be closed after this function.
            await asyncio.wait({building})
            builder.shutdown(wait=False)

    async def end(self) -> bytes:
        """Sends the end of the archive and returns the server's answer."""
        await self._publish(b"", b"end")
        either: set[asyncio.Future[Any]] = {self._final, self._failed}
        await asyncio.wait(either, timeout=self._flow.final_timeout, return_when=asyncio.FIRST_COMPLETED)
        self._check()
        if self._final.done():
            return self._final.result()
        raise NoAnswerError(
            f"the server did not say within {self._flow.final_timeout:g} s whether it could restore the stream",
            "see the server's log, then run the command again: it finds out whether the stream exists",
        )

    async def _wait_alive(self, next_part: asyncio.Future[Any]) -> None:
        """Waits for the next part, with signs of life to the server."""
        while not next_part.done():
            either: set[asyncio.Future[Any]] = {next_part, self._failed}
            await asyncio.wait(either, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            self._check()
            idle = self._clock() - self._last_piece
            if not next_part.done() and idle >= IDLE_SECONDS and self._frames.between:
                await self._publish(STREAM_IDENTIFIER, b"piece")

    async def _wait_for_room(self, size: int) -> None:
        while self._unanswered and self._unanswered_bytes + size > self._flow.window:
            self._answered.clear()
            with contextlib.suppress(TimeoutError):  # the time of the last answer decides
                async with asyncio.timeout(NUDGE_SECONDS):
                    await self._answered.wait()
            self._check()
            silent = self._clock() - self._last_answer
            if silent > self._flow.chunk_timeout:
                raise NoAnswerError(
                    f"the server has accepted no piece of the archive for {silent:.0f} s",
                    "see the server's log: its disk may be full or slow",
                )
            if silent >= NUDGE_SECONDS:
                return
        self._check()

    async def _publish(self, piece: bytes, kind: bytes) -> None:
        if not self._unanswered:
            self._last_answer = self._clock()
        try:
            self._connection.publish(self._subject, piece, self._inbox + b"." + kind)
            await self._connection.drain()
        except ConnectionLostError:
            self._check()
            raise
        self._frames.feed(piece)
        self._last_piece = self._clock()
        if kind == b"piece":
            self._unanswered.append(len(piece))
            self._unanswered_bytes += len(piece)

    def on_answer(self, message: NatsMessage) -> None:
        if status := message.status:
            # The connected server reports "no listener". The reason, sent by the restoring server, may take longer to
            # arrive.
            dropped = DroppedError(
                f"the server no longer listens to the archive (status {status})",
                "see the server's log for the reason, then run the command again",
            )
            asyncio.get_running_loop().call_later(REASON_SECONDS, self.fail, dropped)
        elif message.subject.endswith(b".end"):
            if not self._final.done():
                self._final.set_result(message.data)
        elif message.data:
            self._take_refusal(message.data)
        elif self._unanswered:
            size = self._unanswered.popleft()
            self._unanswered_bytes -= size
            self._last_answer = self._clock()
            self._answered.set()

    def _take_refusal(self, answer: bytes) -> None:
        try:
            read_answer(self._operation, answer)
        except NatsError as problem:
            self.fail(problem)
        else:
            self.fail(NatsError(f"the server ended the restore early: {answer[:200]!r}", "see the server's log"))

    def fail(self, error: NatsError) -> None:
        """Records the failure that ends the transfer; the first one counts."""
        if not self._failed.done():
            self._failed.set_result(error)
        self._answered.set()

    def _check(self) -> None:
        if self._failed.done():
            raise self._failed.result()


@contextlib.asynccontextmanager
async def transfer(
    connection: NatsConnection, operation: str, subject: str, flow: TransferFlow
) -> AsyncIterator[Transfer]:
    """Prepares to send an archive. The arguments are those of `Transfer`."""
    sending = Transfer(connection, operation, subject, flow)
    with connection.watch(subject, sending.answers) as lost:
        lost.add_done_callback(lambda future: None if future.cancelled() else sending.fail(future.result()))
        subscription = connection.listen(sending.answers, sending.on_answer)
        try:
            yield sending
        finally:
            connection.unsubscribe(subscription)
