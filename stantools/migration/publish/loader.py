"""Messages and fillers into a stream, a window of them at a time, until the source is at its end or something fails."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stantools.errors import StantoolsError
from stantools.migration import headers
from stantools.migration.publish import guards, kernels, plain
from stantools.migration.publish.acks import Acks
from stantools.migration.publish.fillers import AT_ONCE, delete_fillers
from stantools.migration.publish.writing import write_frames
from stantools.migration.target.errors import ApiError

if TYPE_CHECKING:
    import asyncio

    from stantools.migration.batches import Batch
    from stantools.migration.publish.source import Source
    from stantools.migration.target.errors import TargetError
    from stantools.migration.target.jetstream import JetStream

#: The most messages that may be sent without being answered. The last so many of a stream may hold something else than
#: the source when a run was killed; all before them were answered.
MAX_WINDOW: Final = 4096

_WRONG_LAST: Final = 10071


@dataclass(frozen=True)
class Window:
    """How much is on its way.

    Attributes:
        messages: Messages that are sent and not answered, at most; up to `MAX_WINDOW`.
        bytes: The same in bytes; a single message may be larger.
        chunk: Messages that are written in one go.
        seconds: How long to wait for the next answer.
    """

    messages: int = MAX_WINDOW
    bytes: int = 8 << 20
    chunk: int = 512
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.messages <= MAX_WINDOW or self.bytes < 1 or self.chunk < 1:
            raise ValueError(f"{self} is no window")


@dataclass
class Chunk:
    """What was written in one go.

    Attributes:
        end: The sequence behind its last message.
        messages: How many there are.
        size: Bytes.
        fillers: They are fillers.
    """

    end: int
    messages: int
    size: int
    fillers: bool


@dataclass
class Loader:
    """Sends what a stream lacks.

    Attributes:
        js: JetStream.
        name: The stream.
        source: What the stream should hold.
        subject: A subject of the stream, for fillers.
        generation: Part of the ids that messages have.
        origin: Messages carry channel, sequence and time as headers.
        window: How much is on its way.
        progress: Told how many more messages are stored.
        messages: How many were stored by this run.
        fillers: Sequences at which there are fillers.
        filled: How many fillers were stored by this run.
    """

    js: JetStream
    name: str
    source: Source
    subject: bytes
    generation: int
    origin: bool
    window: Window
    progress: Callable[[int], None]
    messages: int = 0
    fillers: list[int] = field(default_factory=list)
    filled: int = 0

    async def run(self, acks: Acks, after: int, *, offset: bool) -> None:
        """Sends all messages and fillers behind a sequence, and waits until they are stored.

        Args:
            acks: Where their answers come.
            after: The last sequence of the stream.
            offset: The stream is empty, but does not begin at 1.

        Raises:
            StantoolsError: Something failed. Messages before `acks.expected` are stored, later ones may be.
        """
        acks.begin(after + 1)
        self._acks = acks
        self._next = after + 1
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._out = bytearray(1 << 20)
        with contextlib.ExitStack() as self._stack:
            self._watched: set[str] = set()
            self._watch(self.subject)
            for batch in self.source.read(after=after):
                self._watch(batch.subject)
                check_names(batch, origin=self.origin)
                if offset:
                    await self._send_first(batch)
                    offset = False
                await self._send(batch)
            await self._fill(self.source.last + 1)
            while self._chunks:
                await self._receive()

    def _watch(self, subject: bytes) -> None:
        """Has failures to publish to a subject told."""
        text = subject.decode()
        if text in self._watched:
            return
        self._watched.add(text)
        self._stack.close()
        connection = self.js.connection
        self._failed: asyncio.Future[TargetError] = self._stack.enter_context(connection.watch(*self._watched))

    async def _send(self, batch: Batch) -> None:
        identity = guards.identity(batch.channel, self.generation)
        largest = self.js.connection.max_payload
        row = 0
        # What is sent alone already is not sent again.
        while row < len(batch) and int(batch.sequence[row]) < self._next:
            row += 1
        while row < len(batch):
            await self._fill(int(batch.sequence[row]))
            rows = min(self.window.chunk, self.window.messages, len(batch) - row)
            done, size = kernels.encode_publishes(
                batch, row, rows, self._acks.reply, identity, self.origin, largest, self._out
            )
            if not done:
                self._make_room(batch, row, largest)
                continue
            await self._write(bytes(memoryview(self._out)[:size]), done, fillers=False)
            row += done

    def _make_room(self, batch: Batch, row: int, largest: int) -> None:
        """Grows the buffer for a message that does not fit into it.

        Raises:
            StantoolsError: It does not fit into the server.
        """
        columns = batch.columns
        own, time = int(columns.sequence[row]), int(columns.timestamp[row])
        block = headers.header_block(batch.channel, own, time, batch.reply(row), origin=self.origin)
        identity = guards.identity(batch.channel, self.generation)
        size = len(guards.guarded(block, identity, own, int(batch.sequence[row]))) + int(columns.data_size[row])
        if size > largest:
            raise StantoolsError(
                f"stream {self.name}: message {own} of channel {batch.channel.decode(errors='replace')} is {size} bytes "
                f"with its headers, and the server takes {largest}",
                "raise max_payload on the server, or restore an archive, which has no such limit",
            )
        self._out = bytearray(max(2 * len(self._out), size + len(batch.subject) + len(self._acks.reply) + 100))

    async def _send_first(self, batch: Batch) -> None:
        """Sends the first message of an emptied stream and waits for its answer.

        Old servers say that the last sequence is 0 there, until there is a message (seen: 2.9.10).
        """
        identity = guards.identity(batch.channel, self.generation)
        self._out = bytearray(len(self._out) + int(batch.columns.data_size[0]))
        largest = self.js.connection.max_payload
        done, size = plain.encode_publishes(
            batch, 0, 1, self._acks.reply, identity, self.origin, largest, self._out
        )
        if not done:
            self._make_room(batch, 0, largest)
        frame = bytes(memoryview(self._out)[:size])
        try:
            await self._write(frame, 1, fillers=False)
            while self._chunks:
                await self._receive()
        except ApiError as problem:
            if problem.err_code != _WRONG_LAST:
                raise
            self._chunks.clear()
            self._bytes = 0
            self._next -= 1
            zero = guards.expecting_nothing(frame)
            await self._write(zero, 1, fillers=False)
            while self._chunks:
                await self._receive()

    async def _fill(self, until: int) -> None:
        """Sends fillers up to before a sequence."""
        while self._next < until:
            count = min(until - self._next, self.window.chunk, self.window.messages)
            frames = plain.encode_fillers(self.subject, self._acks.reply, self._next, count)
            await self._write(frames, count, fillers=True)

    async def _write(self, frames: bytes, messages: int, *, fillers: bool) -> None:
        """Sends frames when the window has room for them."""
        while self._chunks and (
            self._next + messages - self._acks.expected > self.window.messages
            or self._bytes + len(frames) > self.window.bytes
        ):
            await self._receive()
        if len(self.fillers) >= AT_ONCE:
            await self.delete_fillers()
        await write_frames(self.js.connection.client, frames)
        self._next += messages
        self._bytes += len(frames)
        self._chunks.append(Chunk(self._next, messages, len(frames), fillers))

    async def _receive(self) -> None:
        try:
            await self._acks.receive(self._failed, self.window.seconds)
        finally:
            while self._chunks and self._chunks[0].end <= self._acks.expected:
                chunk = self._chunks.popleft()
                self._bytes -= chunk.size
                if chunk.fillers:
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
    tokens = subject.split(b".")
    bad = any(byte <= 0x20 or byte == 0x7F for byte in subject) or not all(tokens) or b"*" in tokens or b">" in tokens
    if bad or (origin and not headers.is_safe_value(batch.channel)):
        raise StantoolsError(
            f"channel {batch.channel!r}: nothing can be published to the subject {subject!r}",
            "give the channel another subject in the plan, or restore an archive",
        )
