"""Sends messages and fillers to a stream, one window at a time, until the end of the source or a failure.

Servers before 2.10 compare `Nats-Expected-Last-Sequence` with a wrong number in a stream that was purged to begin at
a later sequence: they count from 0 until they are restarted (seen: 2.9.10). Their answer to the first message, which
is therefore sent alone, reveals the offset; guards with that offset are equally exact. With several replicas such a
stream accepts no message at all; there the sequences before the first message are filled and the fillers purged.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stantools.errors import StantoolsError
from stantools.migration.publish.resume import AT_ONCE, delete_fillers
from stantools.migration.tasks import AckOrderError
from stantools.nats.errors import ApiError, ConnectionLostError, NatsError
from stantools.nats.jetstream import read_answer
from stantools.nats.publishing.expected_frames import MAX_WINDOW, encode_fillers, encode_message
from stantools.nats.publishing.kernels import check_answers, encode_publishes
from stantools.nats.subjects import subject_problem
from stantools.streamfiles import headers

if TYPE_CHECKING:
    import asyncio

    from stantools.nats.connection import NatsConnection
    from stantools.nats.inbox import Inbox, Received
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.batch import MessageBatch, Messages

#: as `MAX_WINDOW`, in bytes; a larger message is sent alone. After a killed run only the last window of a stream can
#: differ from the source: everything before it was acknowledged.
MAX_WINDOW_BYTES: Final = 16 << 20

#: fillers; each is stored and deleted, so that this many take minutes
FILLER_LIMIT: Final = 1_000_000

#: first version that knows the last sequence of a purged stream
CERTAIN_FROM: Final = (2, 10, 0)


@dataclass(frozen=True)
class PublishWindow:
    """Limits of unacknowledged messages."""

    messages: int = MAX_WINDOW  #: messages, up to `MAX_WINDOW`
    bytes: int = 8 << 20  #: bytes, up to `MAX_WINDOW_BYTES`; a larger message is sent alone
    chunk: int = 512  #: messages in one write
    seconds: float = 10.0  #: seconds to wait for the next acknowledgement

    def __post_init__(self) -> None:
        fits = 1 <= self.messages <= MAX_WINDOW and 1 <= self.bytes <= MAX_WINDOW_BYTES
        if not fits or self.chunk < 1:
            raise ValueError(f"{self} is not a window")


@dataclass(frozen=True)
class PublishOptions:
    origin: bool = True  #: messages have headers with channel, sequence and time
    generation: int = 1  #: part of message ids (`Nats-Msg-Id`), which are channel, generation and sequence
    window: PublishWindow = field(default_factory=PublishWindow)
    filler_limit: int = FILLER_LIMIT  #: limit of sequences that are filled and emptied again
    patience: float = 60.0  #: seconds without progress until an unresponsive server is given up


class AckCollector:
    """An inbox for the acknowledgements of one stream; created by `open`."""

    def __init__(self, connection: NatsConnection, stream: str, inbox: Inbox) -> None:
        self._connection = connection
        self._stream = stream
        self._inbox = inbox
        self._run = 0
        self.expected = 0  #: next sequence to be acknowledged; all before it are stored
        self.reply = b""  #: prefix of the reply subjects, before the sequence

    @classmethod
    def open(cls, connection: NatsConnection, stream: str) -> AckCollector:
        """Subscribes to a new inbox; the subscription is certain after any later answer of the server."""
        return cls(connection, stream, connection.open_inbox(connection.new_inbox() + b".>"))

    def close(self) -> None:
        self._connection.close_inbox(self._inbox)

    async def begin(self, first: int) -> None:
        """Starts again at a sequence: earlier acknowledgements and connection failures do not count any more."""
        with contextlib.suppress(TimeoutError):
            while True:
                with contextlib.suppress(ConnectionLostError):
                    await self._inbox.receive(0)
        self._run += 1
        self.expected = first
        self.reply = b"%b%d." % (self._inbox.subject[:-1], self._run)

    async def receive(self, failed: asyncio.Future[NatsError], timeout: float) -> None:
        """Waits up to `timeout` seconds for acknowledgements and processes them.

        `failed` comes from `NatsConnection.watch`. Raises ApiError for a refused message, OutOfStepError for an
        acknowledgement out of order, NoAnswerError without any.
        """
        what = f"message {self.expected} of stream {self._stream}"
        received = await self._connection.receive(self._inbox, failed, timeout, what)
        row, self.expected = check_answers(received.buffer, received.columns, 0, self.reply, self.expected)
        if row < len(received):
            raise self._problem(received, row)

    def _problem(self, received: Received, row: int) -> NatsError:
        """Returns the error for an unexpected answer."""
        token, data = received.subject(row)[len(self.reply) :], received.data(row)
        what = f"message {token.decode()} of stream {self._stream}"
        if not data:
            return ApiError(what, 503, 0, "no stream accepts it")
        try:
            answer = read_answer(what, data)
        except NatsError as problem:
            return problem
        stored = answer.get("seq")
        if str(stored) == token.decode():
            return AckOrderError(f"{what} was answered before message {self.expected}", "run the command again")
        return NatsError(
            f"{what} was stored by {answer.get('stream')} at sequence {stored}",
            "the server does not know Nats-Expected-Last-Sequence: use nats-server 2.9 or newer",
        )


@dataclass
class Chunk:
    end: int  #: sequence after its last message
    messages: int
    size: int  #: bytes
    fillers: bool


@dataclass
class Loader:
    """Sends the missing messages of a stream."""

    js: JetStream
    name: str  #: name of the stream
    source: Messages  #: expected messages
    subject: bytes  #: a subject of the stream, for fillers
    options: PublishOptions
    progress: Callable[[int], None]  #: called with numbers of newly stored messages
    messages: int = 0  #: messages stored by this run
    fillers: list[int] = field(default_factory=list)  #: sequences of fillers in the stream
    filled: int = 0  #: fillers stored by this run
    reported: int = 0  #: last sequence that the counts include
    replicated: bool = False  #: the stream has several replicas

    _leading = False

    async def run(self, acks: AckCollector, after: int) -> None:
        """Sends all messages and fillers after a sequence and waits until they are stored.

        After an error, all messages before `acks.expected` are stored; later ones may be.
        """
        # With several replicas such a stream is not purged before it has a message.
        certain = self.js.connection.version >= CERTAIN_FROM or self.source.first <= 1 or self.replicated
        async with self._begun(acks, after):
            for batch in self.source.read(after=after):
                check_names(batch, origin=self.options.origin)
                self._watch(batch.subject)
                if not certain:
                    await self._send_first(batch)
                    certain = True
                await self._send(batch)
            if not certain and self._next <= self.source.last:
                await self._send_first(None)
            await self._fill(self.source.last + 1)
            await self._receive_all()

    async def lead(self, acks: AckCollector, after: int, until: int) -> None:
        """Sends fillers after sequence `after` up to before `until`; the caller purges them."""
        self._leading = True
        try:
            async with self._begun(acks, after):
                await self._fill(until)
                await self._receive_all()
        finally:
            self._leading = False

    @contextlib.asynccontextmanager
    async def _begun(self, acks: AckCollector, after: int) -> AsyncIterator[None]:
        await acks.begin(after + 1)
        self._acks = acks
        self._next = after + 1
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._shift = 0
        self._buffer = bytearray(1 << 20)
        with contextlib.ExitStack() as self._stack:
            self._watched: set[str] = set()
            self._watch(self.subject)
            yield

    def _watch(self, subject: bytes) -> None:
        """Reports failures to publish to a subject."""
        text = subject.decode()
        if text in self._watched:
            return
        if self._watched and self._failed.done():
            raise self._failed.result()
        self._watched.add(text)
        self._stack.close()
        connection = self.js.connection
        self._failed: asyncio.Future[NatsError] = self._stack.enter_context(connection.watch(*self._watched))

    async def _send(self, batch: MessageBatch) -> None:
        identity = headers.identity(batch.channel, self.options.generation)
        largest = self.js.connection.max_payload
        row = 0
        # A message that was sent alone is not sent again.
        while row < len(batch) and int(batch.sequence[row]) < self._next:
            row += 1
        while row < len(batch):
            await self._fill(int(batch.sequence[row]))
            rows = min(self.options.window.chunk, self.options.window.messages, len(batch) - row)
            done, size = encode_publishes(
                batch, row, rows, self._acks.reply, identity, self.options.origin, self._shift, largest, self._buffer
            )
            if not done:
                # Grow the buffer for a large message.
                frame = self._frame(batch, row, int(batch.sequence[row]) - 1 - self._shift)
                self._buffer = bytearray(max(len(self._buffer), len(frame)))
                continue
            await self._write(bytes(memoryview(self._buffer)[:size]), done, fillers=False)
            row += done

    def _frame(self, batch: MessageBatch, row: int, expected_last: int) -> bytes:
        identity = headers.identity(batch.channel, self.options.generation)
        frame, size = encode_message(batch, row, self._acks.reply, identity, self.options.origin, expected_last)
        largest = self.js.connection.max_payload
        if size > largest:
            channel = batch.channel.decode(errors="replace")
            raise StantoolsError(
                f"stream {self.name}: message {batch.columns.sequence[row]} of channel {channel} has {size} bytes with "
                f"its headers; the server accepts {largest}",
                "raise max_payload on the server, or restore an archive, which has no such limit",
            )
        return frame

    async def _send_first(self, batch: MessageBatch | None) -> None:
        """Sends one message or filler and waits until it is stored, to learn the server's offset."""
        try:
            await self.send_one(batch, self._next - 1)
        except ApiError as problem:
            counted = problem.last_counted
            if counted is None or counted >= self._next:
                raise
            info = await self.js.stream_info(self.name)
            if info is None or int(info["state"]["last_seq"]) != self._next - 1:
                raise  # Another writer was faster, which reveals nothing about the server's offset.
            self._shift = self._next - 1 - counted
            await self.send_one(batch, counted)

    async def send_one(self, batch: MessageBatch | None, expected_last: int) -> None:
        """Sends the next message, or a filler in its place (`batch` is None), and waits for the answer.

        `expected_last` is the sequence for the guard. After ApiError the message is not stored.
        """
        if batch and int(batch.sequence[0]) == self._next:
            fillers, frame = False, self._frame(batch, 0, expected_last)
        else:
            fillers = True
            frame = encode_fillers(self.subject, self._acks.reply, self._shift, self._next, 1)
        try:
            await self._write(frame, 1, fillers=fillers)
            await self._receive_all()
        except ApiError:
            # not stored
            self._chunks.clear()
            self._bytes = 0
            self._next -= 1
            raise

    async def _fill(self, until: int) -> None:
        """Sends fillers up to before a sequence."""
        while self._next < until:
            count = min(until - self._next, self.options.window.chunk, self.options.window.messages)
            frames = encode_fillers(self.subject, self._acks.reply, self._shift, self._next, count)
            await self._write(frames, count, fillers=True)

    async def _write(self, frames: bytes, messages: int, *, fillers: bool) -> None:
        """Sends frames as soon as the window allows."""
        while self._chunks and (
            self._next + messages - self._acks.expected > self.options.window.messages
            or self._bytes + len(frames) > self.options.window.bytes
        ):
            await self._receive()
        if len(self.fillers) >= AT_ONCE:
            await self.delete_fillers()
        await self.js.connection.write(frames)
        self._next += messages
        self._bytes += len(frames)
        self._chunks.append(Chunk(self._next, messages, len(frames), fillers))

    async def _receive_all(self) -> None:
        while self._chunks:
            await self._receive()

    async def _receive(self) -> None:
        try:
            await self._acks.receive(self._failed, self.options.window.seconds)
        finally:
            while self._chunks and self._chunks[0].end <= self._acks.expected:
                chunk = self._chunks.popleft()
                self._bytes -= chunk.size
                self.reported = chunk.end - 1
                if chunk.fillers:
                    if not self._leading:
                        self.fillers += range(chunk.end - chunk.messages, chunk.end)
                    self.filled += chunk.messages
                else:
                    self.messages += chunk.messages
                    self.progress(chunk.messages)

    async def delete_fillers(self) -> None:
        await delete_fillers(self.js, self.name, self.fillers)
        self.fillers.clear()


def check_names(batch: MessageBatch, *, origin: bool) -> None:
    """Checks that channel and subject can be written into the protocol."""
    subject = batch.subject
    if subject_problem(subject) or (origin and not headers.is_safe_value(batch.channel)):
        raise StantoolsError(
            f"channel {batch.channel!r}: publishing to the subject {subject!r} is impossible",
            "give the channel another subject in the plan, or restore an archive",
        )
