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

import numpy as np

from stantools.errors import StantoolsError
from stantools.migration.publish.resume import AT_ONCE, delete_fillers
from stantools.nats.errors import ApiError, ConnectionLostError, NatsError
from stantools.nats.publishing.publish_run import PublishRun, PublishWindow
from stantools.nats.subjects import subject_problem
from stantools.streamfiles import headers

if TYPE_CHECKING:
    import asyncio

    from stantools.format.message_batch import MessageBatch
    from stantools.nats.inbox import Inbox
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.messages import Messages

#: fillers; each is stored and deleted, so that this many take minutes
FILLER_LIMIT: Final = 1_000_000

#: first version that knows the last sequence of a purged stream
CERTAIN_FROM: Final = (2, 10, 0)


@dataclass(frozen=True)
class PublishOptions:
    origin: bool = True  #: messages have headers with channel, sequence and time
    generation: int = 1  #: part of message ids (`Nats-Msg-Id`), which are channel, generation and sequence
    window: PublishWindow = field(default_factory=PublishWindow)
    filler_limit: int = FILLER_LIMIT  #: limit of sequences that are filled and emptied again
    patience: float = 60.0  #: seconds without progress until an unresponsive server is given up


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

    def __post_init__(self) -> None:
        self._run = PublishRun(self.name, self.options.window, 1 << 20)
        self._inbox: Inbox | None = None
        self._runs = 0
        self._leading = False

    def open(self) -> Inbox:
        """Subscribes to an inbox for answers; the subscription is certain after any later answer of the server."""
        if self._inbox is None:
            connection = self.js.connection
            self._inbox = connection.open_inbox(connection.new_inbox() + b".>")
        return self._inbox

    def close(self) -> None:
        if self._inbox is not None:
            self.js.connection.close_inbox(self._inbox)

    @property
    def confirmed(self) -> int:
        """The last sequence that the server has confirmed."""
        return self._run.confirmed

    async def run(self, after: int) -> None:
        """Sends all messages and fillers after a sequence and waits until they are stored.

        After an error, all messages up to `confirmed` are stored; later ones may be.
        """
        # With several replicas such a stream is not purged before it has a message.
        certain = self.js.connection.version >= CERTAIN_FROM or self.source.first <= 1 or self.replicated
        async with self._begun(after):
            for batch in self.source.read(after=after):
                check_names(batch, origin=self.options.origin)
                self._watch(batch.subject)
                if not certain:
                    await self._send_first(batch)
                    certain = True
                await self._send(batch)
            if not certain and self._run.sent < self.source.last:
                await self._send_first(None)
            await self._fill(self.source.last + 1)
            await self._receive_all()

    async def lead(self, after: int, until: int) -> None:
        """Sends fillers after sequence `after` up to before `until`; the caller purges them."""
        self._leading = True
        try:
            async with self._begun(after):
                await self._fill(until)
                await self._receive_all()
        finally:
            self._leading = False

    @contextlib.asynccontextmanager
    async def _begun(self, after: int) -> AsyncIterator[None]:
        inbox = self.open()
        with contextlib.suppress(TimeoutError):
            while True:
                # Answers to earlier runs, and earlier failures of the connection, do not count.
                with contextlib.suppress(ConnectionLostError):
                    await inbox.receive(0)
        self._runs += 1
        self._run.begin(b"%b%d." % (inbox.subject[:-1], self._runs), after)
        self.reported = after
        self._fillers_sent: deque[int] = deque()
        self._shift = 0
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
        largest, window = self.js.connection.max_payload, self.options.window
        # A message that was sent alone is not sent again.
        row = int(np.searchsorted(batch.stream_sequence, np.uint64(self._run.sent), "right"))
        while row < len(batch):
            await self._fill(int(batch.stream_sequence[row]))
            rows = min(window.chunk, window.messages, len(batch) - row)
            frames, done = self._run.encode(
                batch, row, rows, identity, origin=self.options.origin, shift=self._shift, largest=largest
            )
            if not done:
                size = self._run.size(batch, row, identity, origin=self.options.origin, shift=self._shift)
                raise self._too_large(batch, row, size)
            await self._write(frames, done)
            row += done

    def _too_large(self, batch: MessageBatch, row: int, size: int) -> StantoolsError:
        return StantoolsError(
            f"stream {self.name}: message {batch.sequence[row]} of channel "
            f"{batch.channel.decode(errors='replace')} has {size} bytes with its headers; the server accepts "
            f"{self.js.connection.max_payload}",
            "raise max_payload on the server, or restore an archive, which has no such limit",
        )

    async def _send_first(self, batch: MessageBatch | None) -> None:
        """Sends one message or filler and waits until it is stored, to learn the server's offset."""
        after = self._run.sent
        try:
            await self.send_one(batch)
        except ApiError as problem:
            counted = problem.last_counted
            if counted is None or counted > after:
                raise
            info = await self.js.stream_info(self.name)
            if info is None or int(info["state"]["last_seq"]) != after:
                raise  # Another writer was faster, which reveals nothing about the server's offset.
            self._shift = after - counted
            await self.send_one(batch)

    async def send_one(self, batch: MessageBatch | None) -> None:
        """Sends the next message, or a filler in its place (`batch` is None), and waits for the answer.

        After ApiError the message is not stored.
        """
        try:
            if batch and int(batch.stream_sequence[0]) == self._run.sent + 1:
                await self._send(batch.part(0, 1))
            else:
                await self._fill(self._run.sent + 2)
            await self._receive_all()
        except ApiError:
            # not stored
            self._run.drop()
            self._fillers_sent.clear()
            raise

    async def _fill(self, until: int) -> None:
        """Sends fillers up to before a sequence."""
        while (first := self._run.sent + 1) < until:
            count = min(until - first, self.options.window.chunk, self.options.window.messages)
            frames = self._run.encode_fillers(self.subject, count, self._shift)
            await self._write(frames, count, fillers=True)

    async def _write(self, frames: bytes, messages: int, *, fillers: bool = False) -> None:
        """Sends frames as soon as the window allows."""
        while not self._run.fits(messages, len(frames)):
            await self._receive()
        if len(self.fillers) >= AT_ONCE:
            await self.delete_fillers()
        await self.js.connection.write(frames)
        if fillers:
            self._fillers_sent.extend(range(self._run.sent + 1, self._run.sent + 1 + messages))
        self._run.add(messages, len(frames))

    async def _receive_all(self) -> None:
        while self._run.in_flight:
            await self._receive()

    async def _receive(self) -> None:
        run, connection = self._run, self.js.connection
        awaited = f"message {run.confirmed + 1} of stream {self.name}"
        received = await connection.receive(self.open(), self._failed, self.options.window.seconds, awaited)
        row = run.take(received.buffer, received.columns)
        self._count_confirmed()
        for answer in run.unexpected(received.buffer, received.columns, row):
            raise answer.problem

    def _count_confirmed(self) -> None:
        fillers = []
        while self._fillers_sent and self._fillers_sent[0] <= self.confirmed:
            fillers.append(self._fillers_sent.popleft())
        if not self._leading:
            self.fillers += fillers
        self.filled += len(fillers)
        messages = self.confirmed - self.reported - len(fillers)
        self.reported = self.confirmed
        if messages:
            self.messages += messages
            self.progress(messages)

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
