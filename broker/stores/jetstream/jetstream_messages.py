"""The messages of a channel: stored by a chain into its stream, read from the copy in files."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.log import STREAMING
from broker.stores.blocklist import joined, part_of
from broker.stores.interface import Flush, FlushOutcome, StorageError, first_sequence
from broker.stores.jetstream.exact_publisher import Chain, ChainLink
from stantools.format.quoting import quote
from stantools.nats.errors import NatsError

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer
    from broker.stores.jetstream.copy import ChannelCopy, CopySet

#: Bytes of the header block at most, without channel and reply.
HEADER: Final = 320
#: Seconds between two attempts, the first ones and the later ones, and between two purges.
_PAUSES: Final = (0.1, 2.0)
_PURGES: Final = 1.0


class JetStreamMessages:
    """See `MessageStore`.

    Args:
        copy: The copy of the channel.
        copies: Where that is.

    Attributes:
        limits: What the channel may hold.
        last: The last sequence, that of messages included that are not stored yet.
    """

    def __init__(self, copy: ChannelCopy, copies: CopySet) -> None:
        self._channel = channel = copy.channel
        self.limits = channel.limits
        self.last = 0
        self._last = 0  # the last sequence that was found in the stream
        self._copies = copies
        self._streams = copies.streams
        self._copy = copy
        self._chain = Chain(copies.streams, channel.stream, copies.writer, self, leads=copies.leads)
        self._fresh: list[MessageRecordBuffer] = []
        self._flushes: deque[tuple[Flush, int]] = deque()  # under way, each with its first sequence
        self._waiting: deque[MessageRecordBuffer] = deque()  # what the chain has
        self._proven: deque[Flush] = deque()  # stored, and soon in the copy
        self._behind = ""  # why the copy lacks what is stored
        self._spoiled = ""  # why what was appended cannot be stored where it should be
        self._made = False
        self._task: asyncio.Task[None] | None = None
        self._purging: asyncio.TimerHandle | None = None
        self._purged = 0
        self._closed = False

    # What there is

    @property
    def first(self) -> int:
        """See `MessageStore.first`."""
        if self._copy.files.count:
            return self._copy.files.first
        return self._chain.proven + 1 if self.last else 0

    @property
    def count(self) -> int:
        """Messages that are stored."""
        return self._copy.files.count

    @property
    def bytes(self) -> int:
        """What they take in the copy."""
        return self._copy.files.bytes

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._flushes or self._proven or self._task)

    def read(self, first: int, count: int, size: int = 1 << 20) -> MessageRecordBuffer:
        """Returns messages in order; see `MessageStore.read`."""
        return self._copy.files.read(first, count, size)

    def end_reading(self) -> None:
        """Gives back what reading holds; see `MessageStore.end_reading`."""
        self._copy.files.end_reading()

    def sequence_at(self, timestamp: int) -> int:
        """Returns the first sequence whose timestamp is not lower; see `MessageStore.sequence_at`."""
        if self._copy.files.count:
            return self._copy.files.sequence_at(timestamp)
        return self._chain.proven + 1 if self.last else 0

    def expire(self, now: int) -> int | None:
        """Removes messages that are too old; see `MessageStore.expire`."""
        return self._copy.files.expire(now)

    # Storing

    def append(self, records: MessageRecordBuffer) -> None:
        """Adds messages; see `MessageStore.append`."""
        if not len(records):
            return
        first_sequence(records, self.last)
        largest = int(records.sizes.max())
        if largest + HEADER > self._streams.max_payload:
            raise StorageError(f"a message of {largest} bytes is too large for the NATS server, with its headers")
        self._fresh.append(records)
        self.last = int(records.sequences[-1])

    def flush(self) -> Flush | None:
        """Hands over what was appended; see `MessageStore.flush`."""
        if self._spoiled:
            problem, self._spoiled = self._spoiled, ""
            self._fresh.clear()
            self.last = self._chain.proven
            raise StorageError(problem)
        if not self._fresh:
            return self._flushes[-1][0] if self._flushes else self._copies.completing(self._channel.name)
        fresh, self._fresh = self._fresh, []
        records = joined(fresh) if len(fresh) > 1 else fresh[0]
        flush = Flush()
        first, last = int(records.sequences[0]), int(records.sequences[-1])
        self._flushes.append((flush, first))
        self._waiting.append(records)
        self._chain.submit(ChainLink(self._copy.batch(records), first, last, self._stored))
        if not self._made and self._task is None:
            self.make()
        return flush

    def _stored(self) -> None:
        """The chain has proven the next piece."""
        records = self._waiting.popleft()
        flush, _ = self._flushes.popleft()
        self._proven.append(flush)
        if self._behind or self._task is not None:
            self._behind = self._behind or "it follows soon"
            return
        have = self._copy.files.last - int(records.sequences[0]) + 1
        if have >= len(records):
            return
        try:
            self._copy.keep(part_of(records, have, len(records), 1 << 62) if have > 0 else records)
        except StorageError as problem:
            self._behind = str(problem)

    def answered(self) -> None:
        """Is called by the chain: pieces were stored."""
        if not self._behind:
            try:
                self._copy.files.flush()
            except StorageError as problem:
                self._behind = str(problem)
        if self._behind:
            if self._task is None:
                self._spawn(self._catch_up_soon(self._behind))
            return
        self._complete()
        if self.limits.max_bytes > 0 and self._copy.files.first > self._purged + 1 and self._purging is None:
            self._purging = asyncio.get_running_loop().call_later(_PURGES, self._purge)

    def _complete(self) -> None:
        while self._proven:
            self._copies.completed_flush(self._proven.popleft(), channel=self._channel.name)

    # What goes wrong

    def refused(self, error: str, *, certain: bool) -> None:
        """Is called by the chain: nothing more is stored."""
        outcome = FlushOutcome.REFUSED if certain else FlushOutcome.UNKNOWN
        self._last = proven = self._chain.proven
        if self._flushes and self._flushes[0][1] <= proven:
            # A part of it is.
            outcome = FlushOutcome.UNKNOWN
            records = self._waiting[0]
            try:
                self._copy.keep(part_of(records, 0, proven - self._flushes[0][1] + 1, 1 << 62))
                self._copy.files.flush()
            except StorageError as problem:
                self._behind = str(problem)
        if self._behind:
            self._spawn(self._catch_up_soon(self._behind, outcome, error))
        else:
            self._give_up(outcome, error)

    def astray(self, reason: str, *, certain: bool, lost: bool = False) -> None:
        """Is called by the chain: the stream does not hold what it should."""
        STREAMING.error(
            "Stream %s of channel %s: %s; only the broker may write to it. It is read again",
            self._channel.stream,
            quote(self._channel.name),
            reason,
        )
        begun = bool(self._flushes) and self._flushes[0][1] <= self._chain.proven
        outcome = FlushOutcome.REFUSED if certain and not begun else FlushOutcome.UNKNOWN
        self._spawn(self._catch_up_soon("", outcome, f"somebody else has written to the channel's stream: {reason}"))

    def _give_up(self, outcome: FlushOutcome, error: str) -> None:
        """Has what is under way end with an outcome that is none of storing."""
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
            # The server has not asked yet for it to be stored.
            self._fresh, self.last = fresh, last
            self._spoiled = error if int(fresh[0].sequences[0]) != self._last + 1 else ""

    def _take_back(self) -> None:
        """Forgets what is not stored, when the server learns of it."""
        self._fresh.clear()
        self._flushes.clear()
        self._waiting.clear()
        self._spoiled = ""
        self.last = self._last
        self._chain.forget()
        if self._made:
            self._chain.restart(self._last)

    def _spawn(self, work: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    async def _catch_up_soon(self, why: str, outcome: FlushOutcome | None = None, error: str = "") -> None:
        """Makes the copy follow the stream, as often as it takes, and resumes then."""
        if why:
            STREAMING.error("The copy of channel %s is behind: %s", quote(self._channel.name), why)
        pause, most = _PAUSES
        said = ""
        while True:
            self._behind = ""
            try:
                self._last = await self._copy.catch_up(self._chain.proven if outcome is None else 0)
                await self._copies.make_durable((self._channel.name,))
            except (StorageError, NatsError) as problem:
                if str(problem) != said:
                    said = str(problem)
                    STREAMING.error("Channel %s cannot be gone on with yet: %s", quote(self._channel.name), problem)
                await asyncio.sleep(pause)
                pause = min(2 * pause, most)
                continue
            if not self._behind:
                break
        self._task = None
        if outcome is None:
            self._complete()
        else:
            self._give_up(outcome, error)

    # Life of the stream

    def make(self, after: asyncio.Task[None] | None = None, made: Callable[[], None] = lambda: None) -> None:
        """Has the stream made, for a new channel.

        Args:
            after: What has to be over before.
            made: Called when it is there.
        """
        self._spawn(self._make(after, made))

    async def _make(self, after: asyncio.Task[None] | None, made: Callable[[], None]) -> None:
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
            self.astray("it was there before", certain=True)
        else:
            self._chain.restart(0)

    async def open(self, least: int) -> None:
        """Makes the copy follow the stream, which is there, when the server starts. May be tried again.

        Args:
            least: A sequence that was delivered before.

        Raises:
            StorageError: It cannot be gone on with.
            NatsError: It cannot be determined, or not yet.
        """
        self._made = True
        self.last = self._last = await self._copy.catch_up(least=least, opening=True)
        self._chain.restart(self.last)

    async def look_again(self) -> bool:
        """Looks whether somebody else has written to the stream while nothing was published here; returns it."""
        try:
            info = await self._streams.stream_info(self._channel.stream)
        except NatsError:
            return False
        if info is None or int(info["state"]["last_seq"]) <= self._chain.proven or not self.idle:
            return False
        STREAMING.info(
            "Channel %s: whoever had the lease before has written; it is read again", quote(self._channel.name)
        )
        self._chain.forget()
        self._spawn(self._catch_up_soon("", FlushOutcome.REFUSED, "the channel's stream is read again"))
        while self._task is not None and not self._closed:
            await asyncio.sleep(_PAUSES[0])
        return not self._closed

    def _purge(self) -> None:
        """Has the stream remove what the limit of bytes has removed here."""

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
        """Ends it."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._purging is not None:
            self._purging.cancel()
        self._chain.close()
