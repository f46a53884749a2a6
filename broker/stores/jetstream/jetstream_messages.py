"""The messages of a channel: a publisher stores them in the channel's stream, reads come from the copy in files."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.log import STREAMING
from broker.stores.blocklist import joined, part_of
from broker.stores.interface import Flush, FlushOutcome, StorageError, first_sequence
from broker.stores.jetstream.exact_publisher import ExactPublisher, PublishRange
from stantools.format.quoting import quote
from stantools.nats.errors import NatsError

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer
    from broker.stores.jetstream.copy import ChannelCopy, CopySet

#: bytes of the header block at most, without channel and reply
HEADER: Final = 320
#: seconds between two attempts (first, later), and between two purges
_PAUSES: Final = (0.1, 2.0)
_PURGES: Final = 1.0


class JetStreamMessages:
    """A `MessageStore`. `last` includes messages that are not stored yet."""

    def __init__(self, copy: ChannelCopy, copies: CopySet) -> None:
        self._channel = channel = copy.channel
        self.limits = channel.limits
        self.last = 0
        self._last = 0  # the last sequence found in the stream
        self._copies = copies
        self._streams = copies.streams
        self._copy = copy
        self._publisher = ExactPublisher(copies.streams, channel.stream, copies.writer, self, leads=copies.leads)
        self._fresh: list[MessageRecordBuffer] = []
        self._flushes: deque[tuple[Flush, int]] = deque()  # in progress, each with its first sequence
        self._waiting: deque[MessageRecordBuffer] = deque()  # submitted to the publisher
        self._proven: deque[Flush] = deque()  # stored, and soon in the copy
        self._copy_problem = ""  # why the copy lacks stored messages
        self._spoiled = ""  # why the appended messages can no longer be stored at their sequences
        self._made = False
        self._task: asyncio.Task[None] | None = None
        self._purging: asyncio.TimerHandle | None = None
        self._purged = 0
        self._closed = False

    @property
    def first(self) -> int:
        if self._copy.files.count:
            return self._copy.files.first
        return self._publisher.confirmed + 1 if self.last else 0

    @property
    def count(self) -> int:
        """Stored messages."""
        return self._copy.files.count

    @property
    def bytes(self) -> int:
        """Bytes of the stored messages in the copy."""
        return self._copy.files.bytes

    @property
    def idle(self) -> bool:
        """Whether no write is in progress."""
        return not (self._flushes or self._proven or self._task)

    def read(self, first: int, count: int, size: int = 1 << 20) -> MessageRecordBuffer:
        return self._copy.files.read(first, count, size)

    def end_reading(self) -> None:
        self._copy.files.end_reading()

    def sequence_at(self, timestamp: int) -> int:
        if self._copy.files.count:
            return self._copy.files.sequence_at(timestamp)
        return self._publisher.confirmed + 1 if self.last else 0

    def expire(self, now: int) -> int | None:
        return self._copy.files.expire(now)

    # Writes

    def append(self, records: MessageRecordBuffer) -> None:
        if not len(records):
            return
        first_sequence(records, self.last)
        largest = int(records.sizes.max())
        if largest + HEADER > self._streams.max_payload:
            raise StorageError(f"a message of {largest} bytes with its headers is too large for the NATS server")
        self._fresh.append(records)
        self.last = int(records.sequences[-1])

    def flush(self) -> Flush | None:
        if self._spoiled:
            problem, self._spoiled = self._spoiled, ""
            self._fresh.clear()
            self.last = self._publisher.confirmed
            raise StorageError(problem)
        if not self._fresh:
            return self._flushes[-1][0] if self._flushes else self._copies.completing(self._channel.name)
        fresh, self._fresh = self._fresh, []
        records = joined(fresh) if len(fresh) > 1 else fresh[0]
        flush = Flush()
        first, last = int(records.sequences[0]), int(records.sequences[-1])
        self._flushes.append((flush, first))
        self._waiting.append(records)
        self._publisher.submit(PublishRange(self._copy.batch(records), first, last, self._stored))
        if not self._made and self._task is None:
            self.make()
        return flush

    def _stored(self) -> None:
        records = self._waiting.popleft()
        flush, _ = self._flushes.popleft()
        self._proven.append(flush)
        if self._copy_problem or self._task is not None:
            self._copy_problem = self._copy_problem or "it is being updated"
            return
        have = self._copy.files.last - int(records.sequences[0]) + 1
        if have >= len(records):
            return
        try:
            self._copy.keep(part_of(records, have, len(records), 1 << 62) if have > 0 else records)
        except StorageError as problem:
            self._copy_problem = str(problem)

    def answered(self) -> None:
        if not self._copy_problem:
            try:
                self._copy.files.flush()
            except StorageError as problem:
                self._copy_problem = str(problem)
        if self._copy_problem:
            if self._task is None:
                self._spawn(self._catch_up_soon(self._copy_problem))
            return
        self._complete()
        if self.limits.max_bytes > 0 and self._copy.files.first > self._purged + 1 and self._purging is None:
            self._purging = asyncio.get_running_loop().call_later(_PURGES, self._purge)

    def _complete(self) -> None:
        while self._proven:
            self._copies.completed_flush(self._proven.popleft(), channel=self._channel.name)

    # Failures

    def refused(self, error: str, *, certain: bool) -> None:
        """Called by the publisher: it stores no more messages."""
        outcome = FlushOutcome.REFUSED if certain else FlushOutcome.UNKNOWN
        self._last = confirmed = self._publisher.confirmed
        if self._flushes and self._flushes[0][1] <= confirmed:
            # Some of its messages are stored.
            outcome = FlushOutcome.UNKNOWN
            records = self._waiting[0]
            try:
                self._copy.keep(part_of(records, 0, confirmed - self._flushes[0][1] + 1, 1 << 62))
                self._copy.files.flush()
            except StorageError as problem:
                self._copy_problem = str(problem)
        if self._copy_problem:
            self._spawn(self._catch_up_soon(self._copy_problem, outcome, error))
        else:
            self._give_up(outcome, error)

    def diverged(self, reason: str, *, certain: bool, lost: bool = False) -> None:
        """Called by the publisher: the stream holds unexpected messages, or too few."""
        STREAMING.error(
            "Stream %s of channel %s: %s; only the broker may write to it. It is read again",
            self._channel.stream,
            quote(self._channel.name),
            reason,
        )
        begun = bool(self._flushes) and self._flushes[0][1] <= self._publisher.confirmed
        outcome = FlushOutcome.REFUSED if certain and not begun else FlushOutcome.UNKNOWN
        self._spawn(self._catch_up_soon("", outcome, f"another writer has used the channel's stream: {reason}"))

    def _give_up(self, outcome: FlushOutcome, error: str) -> None:
        """Ends the flushes in progress with an outcome other than stored."""
        self._complete()
        if self._flushes:
            flush = self._flushes[0][0]
            flush.outcome, flush.error = outcome, error
            self._copies.completed_flush(flush, self._take_back, self._channel.name)
            return
        fresh, last = self._fresh, self.last
        self._fresh = []
        self._take_back()
        if fresh:
            # These messages are appended, and not flushed yet.
            self._fresh, self.last = fresh, last
            self._spoiled = error if int(fresh[0].sequences[0]) != self._last + 1 else ""

    def _take_back(self) -> None:
        """Drops the messages that are not stored. The server has learned their outcome."""
        self._fresh.clear()
        self._flushes.clear()
        self._waiting.clear()
        self._spoiled = ""
        self.last = self._last
        self._publisher.forget()
        if self._made:
            self._publisher.restart(self._last)

    def _spawn(self, work: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    async def _catch_up_soon(self, why: str, outcome: FlushOutcome | None = None, error: str = "") -> None:
        """Makes the copy follow the stream, with retries; then ends the flushes in progress, or resumes."""
        if why:
            STREAMING.error("The copy of channel %s lags: %s", quote(self._channel.name), why)
        pause, most = _PAUSES
        logged = ""
        while True:
            self._copy_problem = ""
            try:
                self._last = await self._copy.catch_up(self._publisher.confirmed if outcome is None else 0)
                await self._copies.make_durable((self._channel.name,))
            except (StorageError, NatsError) as problem:
                if str(problem) != logged:
                    logged = str(problem)
                    STREAMING.error("Channel %s cannot be gone on with yet: %s", quote(self._channel.name), problem)
                await asyncio.sleep(pause)
                pause = min(2 * pause, most)
                continue
            if not self._copy_problem:
                break
        self._task = None
        if outcome is None:
            self._complete()
        else:
            self._give_up(outcome, error)

    # The stream

    def make(self, after: asyncio.Task[None] | None = None, made: Callable[[], object] = lambda: None) -> None:
        """Creates the stream of a new channel, after a task; `made` is called when the stream exists."""
        self._spawn(self._make(after, made))

    async def _make(self, after: asyncio.Task[None] | None, made: Callable[[], object]) -> None:
        if after is not None:
            await asyncio.wait([after])
        pause, most = _PAUSES
        while True:
            try:
                info = await self._streams.create_stream(self._channel.config)
                break
            except NatsError as problem:
                if not problem.retriable:
                    STREAMING.error("Stream %s cannot be made: %s", self._channel.stream, problem)
                    self._task = None
                    self._give_up(FlushOutcome.REFUSED, problem.message)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, most)
        self._task = None
        self._made = True
        made()
        if int(info["state"]["last_seq"]):
            self.diverged("it existed before the channel", certain=True)
        else:
            self._publisher.restart(0)

    async def open(self, least: int) -> None:
        """Makes the copy follow an existing stream when the server starts. May be called again.

        `least` is a sequence that was delivered before. Raises StorageError if the channel cannot be served,
        NatsError if the state of the stream cannot be determined yet.
        """
        self._made = True
        self.last = self._last = await self._copy.catch_up(least=least, opening=True)
        self._publisher.restart(self.last)

    async def update_if_changed(self) -> bool:
        """Returns whether the stream has messages of other writers; if so, the copy has been made to follow it."""
        try:
            info = await self._streams.stream_info(self._channel.stream)
        except NatsError:
            return False
        if info is None or int(info["state"]["last_seq"]) <= self._publisher.confirmed or not self.idle:
            return False
        STREAMING.info(
            "Channel %s: the former leader has written to its stream, which is read again", quote(self._channel.name)
        )
        self._publisher.forget()
        self._spawn(self._catch_up_soon("", FlushOutcome.REFUSED, "the channel's stream is read again"))
        while self._task is not None and not self._closed:
            await asyncio.sleep(_PAUSES[0])
        return not self._closed

    def _purge(self) -> None:
        """Removes from the stream the messages that the limit of bytes has removed from the copy."""

        async def purge(below: int) -> None:
            try:
                await self._streams.purge_stream(self._channel.stream, below=below)
                self._purged = below - 1
            except NatsError as problem:
                STREAMING.debug("Stream %s was not purged: %s", self._channel.stream, problem)
            self._purging = None

        if not self._closed:
            self._purger = asyncio.get_running_loop().create_task(purge(self._copy.files.first))

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._purging is not None:
            self._purging.cancel()
        self._publisher.close()
