"""Messages and fillers into a stream, a window of them at a time, until the source is at its end or something fails.

Servers before 2.10 go by a wrong last sequence for `Nats-Expected-Last-Sequence` in a stream that was purged to begin
at a later sequence: they count from 0, until they are started again (seen: 2.9.10). How far behind they are follows
from their answer to the first message, which therefore is sent alone; the guards work with that number just as well.
With several replicas nothing can be stored in such a stream at all; there the sequences before the first message are
filled, and the fillers purged.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stantools.errors import StantoolsError
from stantools.migration.publish.resume import AT_ONCE, delete_fillers
from stantools.migration.tasks import OutOfStepError
from stantools.nats.errors import ApiError, ConnectionLostError, NatsError
from stantools.nats.jetstream import read_answer
from stantools.nats.publishing.guarded import MAX_WINDOW, encode_fillers, encode_message
from stantools.nats.publishing.kernels import check_answers, encode_publishes
from stantools.nats.subjects import subject_problem
from stantools.streamfiles import headers

if TYPE_CHECKING:
    import asyncio

    from stantools.nats.connection import Connection
    from stantools.nats.inbox import Inbox, Received
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.batch import Batch, Messages

#: As `MAX_WINDOW`, in bytes; a larger message is sent alone. When a run was killed, only a stream's last window may
#: hold something else than the source: all before it was answered.
MAX_WINDOW_BYTES: Final = 16 << 20

#: So many fillers take some minutes: each is stored and then deleted.
FILLER_LIMIT: Final = 1_000_000

#: From this version on servers know the last sequence of a stream that was purged.
CERTAIN_FROM: Final = (2, 10, 0)


@dataclass(frozen=True)
class Window:
    """How much is on its way."""

    messages: int = MAX_WINDOW  #: messages that are sent and not answered, at most; up to `MAX_WINDOW`
    bytes: int = 8 << 20  #: the same in bytes, up to `MAX_WINDOW_BYTES`; a larger message is sent alone
    chunk: int = 512  #: messages that are written in one go
    seconds: float = 10.0  #: how long to wait for the next answer

    def __post_init__(self) -> None:
        fits = 1 <= self.messages <= MAX_WINDOW and 1 <= self.bytes <= MAX_WINDOW_BYTES
        if not fits or self.chunk < 1:
            raise ValueError(f"{self} is not a window")


@dataclass(frozen=True)
class Publishing:
    """How messages are published."""

    origin: bool = True  #: messages carry channel, sequence and time as headers
    generation: int = 1  #: part of the ids (`Nats-Msg-Id`) that messages have: channel, generation and sequence
    window: Window = field(default_factory=Window)  #: how much is on its way
    filler_limit: int = FILLER_LIMIT  #: the most sequences without a message that may be filled, and emptied again
    patience: float = 60.0  #: seconds without any progress after which a server that does not answer is given up


class Acks:
    """An inbox for the answers to messages of one stream; made by `open`."""

    def __init__(self, connection: Connection, stream: str, inbox: Inbox) -> None:
        self._connection = connection
        self._stream = stream
        self._inbox = inbox
        self._run = 0
        self.expected = 0  #: the sequence that is to be answered next: every one before it is stored
        self.reply = b""  #: what the reply subjects of messages begin with; their sequence follows

    @classmethod
    def open(cls, connection: Connection, stream: str) -> Acks:
        """Subscribes to a new inbox; the server knows of it when it has answered any later request."""
        return cls(connection, stream, connection.open_inbox(connection.new_inbox() + b".>"))

    def close(self) -> None:
        """Unsubscribes."""
        self._connection.close_inbox(self._inbox)

    async def begin(self, first: int) -> None:
        """Begins anew: answers that are still under way do not count any more, nor does a connection that broke before.

        Args:
            first: Sequence of the message that will be sent first.
        """
        with contextlib.suppress(TimeoutError):
            while True:
                with contextlib.suppress(ConnectionLostError):
                    await self._inbox.receive(0)
        self._run += 1
        self.expected = first
        self.reply = b"%b%d." % (self._inbox.subject[:-1], self._run)

    async def receive(self, failed: asyncio.Future[NatsError], timeout: float) -> None:
        """Waits for answers, and takes what has come.

        Args:
            failed: From `Connection.watch`.
            timeout: Seconds to wait.

        Raises:
            ApiError: The server did not store a message.
            OutOfStepError: An answer does not belong to the message that is to be answered next.
            NoAnswerError: No answer came.
            ConnectionLostError: The connection broke.
            NatsError: What `failed` says.
        """
        what = f"message {self.expected} of stream {self._stream}"
        received = await self._connection.receive(self._inbox, failed, timeout, what)
        row, self.expected = check_answers(received.buffer, received.columns, 0, self.reply, self.expected)
        if row < len(received):
            raise self._problem(received, row)

    def _problem(self, received: Received, row: int) -> NatsError:
        """What an answer says that is not the one expected."""
        token, data = received.subject(row)[len(self.reply) :], received.data(row)
        what = f"message {token.decode()} of stream {self._stream}"
        if not data:
            return ApiError(what, 503, 0, "no stream takes it")
        try:
            answer = read_answer(what, data)
        except NatsError as problem:
            return problem
        stored = answer.get("seq")
        if str(stored) == token.decode():
            return OutOfStepError(f"{what} was answered before message {self.expected}", "run the command again")
        return NatsError(
            f"{what} was stored by {answer.get('stream')} at sequence {stored}",
            "the server does not know Nats-Expected-Last-Sequence: use nats-server 2.9 or newer",
        )


@dataclass
class Chunk:
    """What was written in one go."""

    end: int  #: the sequence behind its last message
    messages: int  #: how many there are
    size: int  #: bytes
    fillers: bool  #: they are fillers


@dataclass
class Loader:
    """Sends what a stream lacks."""

    js: JetStream
    name: str  #: the stream
    source: Messages  #: what the stream should hold
    subject: bytes  #: a subject of the stream, for fillers
    how: Publishing  #: how messages are published
    progress: Callable[[int], None]  #: told how many more messages are stored
    messages: int = 0  #: how many were stored by this run
    fillers: list[int] = field(default_factory=list)  #: sequences at which there are fillers
    filled: int = 0  #: how many fillers were stored by this run
    reported: int = 0  #: the last sequence that is counted in all this
    replicated: bool = False  #: the stream has more than one replica

    _leading = False

    async def run(self, acks: Acks, after: int) -> None:
        """Sends all messages and fillers behind a sequence, and waits until they are stored.

        Args:
            acks: Where their answers come.
            after: The last sequence of the stream.

        Raises:
            StantoolsError: Something failed. Messages before `acks.expected` are stored, later ones may be.
        """
        # With several replicas such a stream is not purged before there is a message.
        certain = self.js.connection.version >= CERTAIN_FROM or self.source.first <= 1 or self.replicated
        async with self._begun(acks, after):
            for batch in self.source.read(after=after):
                check_names(batch, origin=self.how.origin)
                self._watch(batch.subject)
                if not certain:
                    await self._send_first(batch)
                    certain = True
                await self._send(batch)
            if not certain and self._next <= self.source.last:
                await self._send_first(None)
            await self._fill(self.source.last + 1)
            await self._receive_all()

    async def lead(self, acks: Acks, after: int, until: int) -> None:
        """Sends fillers, for them to be purged, not deleted.

        Args:
            acks: Where their answers come.
            after: The last sequence of the stream.
            until: The sequence of the first message.

        Raises:
            StantoolsError: Something failed.
        """
        self._leading = True
        try:
            async with self._begun(acks, after):
                await self._fill(until)
                await self._receive_all()
        finally:
            self._leading = False

    @contextlib.asynccontextmanager
    async def _begun(self, acks: Acks, after: int) -> AsyncIterator[None]:
        await acks.begin(after + 1)
        self._acks = acks
        self._next = after + 1
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._shift = 0
        self._out = bytearray(1 << 20)
        with contextlib.ExitStack() as self._stack:
            self._watched: set[str] = set()
            self._watch(self.subject)
            yield

    def _watch(self, subject: bytes) -> None:
        """Has failures to publish to a subject told."""
        text = subject.decode()
        if text in self._watched:
            return
        if self._watched and self._failed.done():
            raise self._failed.result()
        self._watched.add(text)
        self._stack.close()
        connection = self.js.connection
        self._failed: asyncio.Future[NatsError] = self._stack.enter_context(connection.watch(*self._watched))

    async def _send(self, batch: Batch) -> None:
        identity = headers.identity(batch.channel, self.how.generation)
        largest = self.js.connection.max_payload
        row = 0
        # What is sent alone already is not sent again.
        while row < len(batch) and int(batch.sequence[row]) < self._next:
            row += 1
        while row < len(batch):
            await self._fill(int(batch.sequence[row]))
            rows = min(self.how.window.chunk, self.how.window.messages, len(batch) - row)
            done, size = encode_publishes(
                batch, row, rows, self._acks.reply, identity, self.how.origin, self._shift, largest, self._out
            )
            if not done:
                self._make_room(batch, row)
                continue
            await self._write(bytes(memoryview(self._out)[:size]), done, fillers=False)
            row += done

    def _make_room(self, batch: Batch, row: int) -> None:
        """Grows the buffer for a message that does not fit into it."""
        frame = self._frame(batch, row, int(batch.sequence[row]) - 1 - self._shift)
        self._out = bytearray(max(len(self._out), len(frame)))

    def _frame(self, batch: Batch, row: int, expected_last: int) -> bytes:
        """Returns the frame of one message."""
        identity = headers.identity(batch.channel, self.how.generation)
        frame, size = encode_message(batch, row, self._acks.reply, identity, self.how.origin, expected_last)
        largest = self.js.connection.max_payload
        if size > largest:
            channel = batch.channel.decode(errors="replace")
            raise StantoolsError(
                f"stream {self.name}: message {batch.columns.sequence[row]} of channel {channel} has {size} bytes with "
                f"its headers, and the server takes {largest}",
                "raise max_payload on the server, or restore an archive, which has no such limit",
            )
        return frame

    async def _send_first(self, batch: Batch | None) -> None:
        """Sends one message, or filler, and waits until it is stored; finds out how far behind the server is."""
        try:
            await self.send_one(batch, self._next - 1)
        except ApiError as problem:
            counted = problem.last_counted
            if counted is None or counted >= self._next:
                raise
            info = await self.js.stream_info(self.name)
            if info is None or int(info["state"]["last_seq"]) != self._next - 1:
                raise  # Another writer was faster, which says nothing about how the server counts.
            self._shift = self._next - 1 - counted
            await self.send_one(batch, counted)

    async def send_one(self, batch: Batch | None, expected_last: int) -> None:
        """Sends the next message, or a filler in its place, and waits for what the server says of it.

        Args:
            batch: Where the message is, if it is the next one.
            expected_last: The last sequence that the server is to have.

        Raises:
            ApiError: It was refused, and is not stored.
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
            # It is not stored.
            self._chunks.clear()
            self._bytes = 0
            self._next -= 1
            raise

    async def _fill(self, until: int) -> None:
        """Sends fillers up to before a sequence."""
        while self._next < until:
            count = min(until - self._next, self.how.window.chunk, self.how.window.messages)
            frames = encode_fillers(self.subject, self._acks.reply, self._shift, self._next, count)
            await self._write(frames, count, fillers=True)

    async def _write(self, frames: bytes, messages: int, *, fillers: bool) -> None:
        """Sends frames when the window has room for them."""
        while self._chunks and (
            self._next + messages - self._acks.expected > self.how.window.messages
            or self._bytes + len(frames) > self.how.window.bytes
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
            await self._acks.receive(self._failed, self.how.window.seconds)
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
        """Deletes the fillers that are stored."""
        await delete_fillers(self.js, self.name, self.fillers)
        self.fillers.clear()


def check_names(batch: Batch, *, origin: bool) -> None:
    """Checks that channel and subject can be written into the protocol.

    Raises:
        StantoolsError: They cannot.
    """
    subject = batch.subject
    if subject_problem(subject) or (origin and not headers.is_safe_value(batch.channel)):
        raise StantoolsError(
            f"channel {batch.channel!r}: nothing can be published to the subject {subject!r}",
            "give the channel another subject in the plan, or restore an archive",
        )
