"""The messages of a channel: a chain into its stream, and a copy in files that is read.

The copy gets what is proven to be in the stream, and nothing else. Whenever both may differ, when the server starts and
when somebody else has written to the stream, the copy is made to follow: the last message that both have is compared;
what the copy lacks is fetched; a copy with other messages is thrown away. Only where the stream has less than the copy,
and agrees with it up to its own end, messages that were acknowledged have been lost by the servers: they are published
again.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from broker.blocks import Records
from broker.log import STREAMING
from broker.stores.blocklist import joined, part_of
from broker.stores.interface import Flush, MessageStore, Outcome, StorageError, first_sequence
from broker.stores.jetstream.chain import Chain, Piece
from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.quoting import quote
from stantools.nats.errors import NatsError
from stantools.streamfiles import headers
from stantools.streamfiles.batch import Batch

if TYPE_CHECKING:
    from broker.stores.jetstream.ports import Streams
    from stantools.nats.inbox import Received
    from stantools.store.limits import ChannelLimits

#: Bytes of the header block at most, without channel and reply.
_HEADER: Final = 320
#: Seconds between two attempts, the first ones and the later ones, and between two purges.
_PAUSES: Final = (0.1, 2.0)
_PURGES: Final = 1.0
#: Seconds for which a stream has to be said to have less than it had.
_CERTAIN: Final = 10.0
#: What is read of a copy at once to be published again.
_ROWS: Final = 2048
_TIME = re.compile(rb"\r\n%b: (\d+)\r\n" % headers.TIMESTAMP.encode())
_REPLY = re.compile(rb"\r\n%b: ([^\r]*)\r\n" % headers.REPLY.encode())

_Bytes = bytes


class HolesError(StorageError):
    """Somebody has deleted messages in the middle of a stream."""


@dataclass(slots=True)
class Channel:
    """What a channel is called here and there, and what it may hold."""

    name: _Bytes
    stream: str
    subject: _Bytes
    config: Mapping[str, Any]  #: configuration of the stream
    limits: ChannelLimits


class Copies(Protocol):
    """The copy of a channel in files, and what is shared by all channels."""

    streams: Streams
    writer: _Bytes
    crc: Crc | None

    def leads(self) -> bool:
        """Returns whether messages may be sent: no other server does."""

    def copy_of(self, name: _Bytes) -> MessageStore:
        """Returns the copy of a channel."""

    def new_copy(self, name: _Bytes, *, keep: bool) -> MessageStore:
        """Returns an empty copy of a channel instead of the one that there is, which is kept aside or removed."""

    def completed_flush(self, flush: Flush, settle: Callable[[], None] | None = None) -> None:
        """Takes note of a flush whose outcome is known; `settle` is called when the server learns of it."""


class JetStreamMessages:
    """See `MessageStore`.

    Args:
        channel: The channel.
        copies: Where the copy is.

    Attributes:
        limits: What the channel may hold.
        last: The last sequence, that of messages included that are not stored yet.
    """

    def __init__(self, channel: Channel, copies: Copies) -> None:
        self.limits = channel.limits
        self.last = 0
        self._last = 0  # the last sequence that was found in the stream
        self._channel = channel
        self._copies = copies
        self._streams = copies.streams
        self._crc = copies.crc or Crc()
        self._copy = copies.copy_of(channel.name)
        self._chain = Chain(copies.streams, channel.stream, copies.writer, self, leads=copies.leads)
        self._fresh: list[Records] = []
        self._flushes: deque[tuple[Flush, int]] = deque()  # under way, each with its first sequence
        self._waiting: deque[Records] = deque()  # what the chain has
        self._proven: deque[Flush] = deque()  # stored, and soon in the copy
        self._behind = ""  # why the copy lacks what is stored
        self._spoiled = ""  # why what was appended cannot be stored where it should be
        self._end, self._since = -1, 0.0  # where the stream is said to end, before where it did, and since when
        self._made = False
        self._task: asyncio.Task[None] | None = None
        self._purging: asyncio.TimerHandle | None = None
        self._purged = 0
        self._closed = False

    # What there is

    @property
    def first(self) -> int:
        """See `MessageStore.first`."""
        if self._copy.count:
            return self._copy.first
        return self._chain.proven + 1 if self.last else 0

    @property
    def count(self) -> int:
        """Messages that are stored."""
        return self._copy.count

    @property
    def bytes(self) -> int:
        """What they take in the copy."""
        return self._copy.bytes

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._flushes or self._proven or self._task)

    def read(self, first: int, count: int, size: int = 1 << 20) -> Records:
        """Returns messages in order; see `MessageStore.read`."""
        return self._copy.read(first, count, size)

    def sequence_at(self, timestamp: int) -> int:
        """Returns the first sequence whose timestamp is not lower; see `MessageStore.sequence_at`."""
        if self._copy.count:
            return self._copy.sequence_at(timestamp)
        return self._chain.proven + 1 if self.last else 0

    def expire(self, now: int) -> int | None:
        """Removes messages that are too old; see `MessageStore.expire`."""
        return self._copy.expire(now)

    # Storing

    def append(self, records: Records) -> None:
        """Adds messages; see `MessageStore.append`."""
        if not len(records):
            return
        first_sequence(records, self.last)
        largest = int(records.sizes.max())
        if largest + _HEADER > self._streams.max_payload:
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
            return self._flushes[-1][0] if self._flushes else None
        fresh, self._fresh = self._fresh, []
        records = joined(fresh) if len(fresh) > 1 else fresh[0]
        flush = Flush()
        first, last = int(records.sequences[0]), int(records.sequences[-1])
        self._flushes.append((flush, first))
        self._waiting.append(records)
        self._chain.submit(Piece(self._batch(records), first, last, self._stored))
        if not self._made and self._task is None:
            self.make()
        return flush

    def _batch(self, records: Records) -> Batch:
        """Returns messages as they are published."""
        count = len(records)
        columns, stops = MessageColumns(count), np.zeros(count, np.uint8)
        places = records.starts - RECORD_HEADER_SIZE
        buffer: Any = records.data
        kernels.read_messages_at(buffer, len(buffer), places, self._crc.unchecked, self._channel.name, columns, stops)
        batch = Batch(self._channel.name, self._channel.subject, memoryview(buffer), columns, columns.sequence)
        if columns.reply_size.any():
            batch = _with_safe_replies(batch)
        return batch

    def _stored(self) -> None:
        """The chain has proven the next piece."""
        records = self._waiting.popleft()
        flush, _ = self._flushes.popleft()
        self._proven.append(flush)
        if self._behind or self._task is not None:
            self._behind = self._behind or "it follows soon"
            return
        have = self._copy.last - int(records.sequences[0]) + 1
        if have >= len(records):
            return
        try:
            self._keep(part_of(records, have, len(records), 1 << 62) if have > 0 else records)
        except StorageError as problem:
            self._behind = str(problem)

    def _keep(self, records: Records) -> None:
        """Adds messages to the copy, which starts over where they do not follow.

        Raises:
            StorageError: They cannot be written.
        """
        if self._copy.last and int(records.sequences[0]) != self._copy.last + 1:
            self._copy = self._copies.new_copy(self._channel.name, keep=False)
        self._copy.append(records)

    def answered(self) -> None:
        """Is called by the chain: pieces were stored."""
        if not self._behind:
            try:
                self._copy.flush()
            except StorageError as problem:
                self._behind = str(problem)
        if self._behind:
            if self._task is None:
                self._spawn(self._catch_up_soon(self._behind))
            return
        self._complete()
        if self.limits.max_bytes > 0 and self._copy.first > self._purged + 1 and self._purging is None:
            self._purging = asyncio.get_running_loop().call_later(_PURGES, self._purge)

    def _complete(self) -> None:
        while self._proven:
            self._copies.completed_flush(self._proven.popleft())

    # What goes wrong

    def refused(self, error: str, *, certain: bool) -> None:
        """Is called by the chain: nothing more is stored."""
        outcome = Outcome.REFUSED if certain else Outcome.UNKNOWN
        self._last = proven = self._chain.proven
        if self._flushes and self._flushes[0][1] <= proven:
            # A part of it is.
            outcome = Outcome.UNKNOWN
            records = self._waiting[0]
            try:
                self._keep(part_of(records, 0, proven - self._flushes[0][1] + 1, 1 << 62))
                self._copy.flush()
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
        outcome = Outcome.REFUSED if certain and not begun else Outcome.UNKNOWN
        self._spawn(self._catch_up_soon("", outcome, f"somebody else has written to the channel's stream: {reason}"))

    def _give_up(self, outcome: Outcome, error: str) -> None:
        """Has what is under way end with an outcome that is none of storing."""
        self._complete()
        if self._flushes:
            flush = self._flushes[0][0]
            flush.outcome, flush.error = outcome, error
            self._copies.completed_flush(flush, self._take_back)
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

    async def _catch_up_soon(self, why: str, outcome: Outcome | None = None, error: str = "") -> None:
        """Makes the copy follow the stream, as often as it takes, and resumes then."""
        if why:
            STREAMING.error("The copy of channel %s is behind: %s", quote(self._channel.name), why)
        pause, most = _PAUSES
        said = ""
        while True:
            self._behind = ""
            try:
                self._last = await self.catch_up(self._chain.proven if outcome is None else 0)
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
                if not problem.passing:
                    STREAMING.error("Stream %s cannot be made: %s", self._channel.stream, problem)
                    self._task = None
                    self._give_up(Outcome.REFUSED, problem.message)
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
        self.last = self._last = await self.catch_up(least=least, opening=True)
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
        self._spawn(self._catch_up_soon("", Outcome.REFUSED, "the channel's stream is read again"))
        while self._task is not None and not self._closed:
            await asyncio.sleep(_PAUSES[0])
        return not self._closed

    async def catch_up(self, until: int = 0, *, least: int = 0, opening: bool = False) -> int:
        """Makes the copy follow the stream.

        Args:
            until: The last sequence that is known to be in the stream.
            least: A sequence that was in it, unless the servers have lost it.
            opening: Nothing is read from the copy yet.

        Returns:
            The last sequence.

        Raises:
            StorageError: It does not work.
            NatsError: It cannot be determined yet.
        """
        name, stream = self._channel.name, self._channel.stream
        info = await self._streams.stream_info(stream)
        if info is None:
            raise StorageError(f"stream {stream} of channel {quote(name)} is gone")
        state = info["state"]
        last = int(state["last_seq"])
        if holes := _holes(state):
            raise HolesError(
                f"stream {stream} of channel {quote(name)} has holes, {holes} messages: somebody has "
                f"deleted them; purge it up to the last one (nats stream purge {stream} --seq=N), or restore it"
            )
        copy = self._copy
        if last < max(until, least, copy.last):
            # A server may be behind, or not know yet that it does not lead any more.
            now = asyncio.get_running_loop().time()
            if last != self._end:
                self._end, self._since = last, now
            if until or now - self._since < _CERTAIN:
                raise NatsError(f"stream {stream} is said to end at {last}, and had {max(until, least, copy.last)}")
        await self._fill(state, opening=opening)
        if self._copy.last > last:
            await self._publish_again(last)
        return max(self._copy.last, last)

    async def follow(self, state: Mapping[str, Any]) -> None:
        """Fetches what the copy lacks while another server writes to the stream.

        Args:
            state: Of the stream.

        Raises:
            StorageError: The copy cannot be written.
            NatsError: Not all of it could be read.
        """
        # A server may report an old state, and what is wrong with a stream is for the leader to mend.
        if int(state["last_seq"]) >= self._copy.last and not _holes(state):
            await self._fill(state, opening=True)

    async def _fill(self, state: Mapping[str, Any], *, opening: bool) -> None:
        """Fetches what the copy lacks, or all if it is of something else."""
        first, last = int(state["first_seq"]), int(state["last_seq"])
        if int(state["messages"]) == 0:
            first = last + 1
        copy = self._copy
        if not self._fits(first, last, opening=opening):
            copy = self._copy = self._copies.new_copy(self._channel.name, keep=copy.last > last)
        common = min(copy.last, last) if copy.count else 0
        after = max(copy.last, first - 1)
        if max(first, copy.first) <= common:
            after = common - 1
        if after < last:
            await self._fetch(self._channel.stream, state, after, common if after < common else 0)

    def _fits(self, first: int, last: int, *, opening: bool) -> bool:
        """Returns whether the copy can be continued, as far as the numbers say."""
        copy = self._copy
        if not copy.last:
            return True
        if copy.last > last and not (copy.count and max(copy.first, first) <= last):
            STREAMING.error(
                "Channel %s: the stream ends at sequence %d, the copy in files at %d, and they have nothing in common",
                quote(self._channel.name),
                last,
                copy.last,
            )
            return False
        if copy.last < first - 1:
            return False
        # What somebody has purged is not to be read from the copy either.
        return not (opening and copy.count and copy.first < first and not self.limits.max_age_ns)

    async def _fetch(self, stream: str, state: Mapping[str, Any], after: int, compared: int) -> None:
        """Reads messages into the copy; one that it has is compared first, unless that is 0."""
        at, last = after, int(state["last_seq"])
        async for received in self._streams.read(stream, state, after):
            records = records_of(self._channel.name, received, self._crc)
            if compared:
                if not _same(records, self._copy.read(compared, 1)):
                    STREAMING.warning(
                        "Channel %s: the copy in files has another message at sequence %d than the stream, and is made "
                        "anew",
                        quote(self._channel.name),
                        compared,
                    )
                    self._copy = self._copies.new_copy(self._channel.name, keep=self._copy.last > last)
                    await self._fetch(stream, state, max(int(state["first_seq"]) - 1, 0), 0)
                    return
                compared, at = 0, after + 1
                if len(records) == 1:
                    continue
                records = part_of(records, 1, len(records), 1 << 62)
            first = int(records.sequences[0])
            if first != at + 1 and self._copy.count:
                raise NatsError(f"sequence {at + 1} of {stream} is missing")
            self._keep(records)
            self._copy.flush()
            at = int(records.sequences[-1])
        if at < last:
            raise NatsError(f"stream {stream} could be read up to sequence {at} only, of {last}")

    async def _publish_again(self, last: int) -> None:
        """Publishes what the stream has lost."""
        until = self._copy.last
        STREAMING.error(
            "Channel %s: the stream has lost %d messages that were stored, from sequence %d on; they are published "
            "again from the copy in files",
            quote(self._channel.name),
            until - last,
            last + 1,
        )
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        chain = Chain(
            self._streams, self._channel.stream, self._copies.writer + b"r", _Again(outcome), leads=self._copies.leads
        )
        try:
            chain.restart(last)
            while last < until:
                records = self._copy.read(last + 1, min(_ROWS, until - last))
                if not len(records):
                    raise StorageError(f"sequence {last + 1} cannot be read from the copy")
                first, last = last + 1, int(records.sequences[-1])
                done = partial(_settle, outcome) if last == until else _nothing
                chain.submit(Piece(self._batch(records), first, last, done))
            if problem := await outcome:
                raise NatsError(problem)
        finally:
            chain.close()

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
            self._purger = asyncio.get_running_loop().create_task(purge(self._copy.first))

    def close(self) -> None:
        """Ends it."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._purging is not None:
            self._purging.cancel()
        self._chain.close()


class _Again:
    """The owner of a chain that publishes again."""

    def __init__(self, outcome: asyncio.Future[str]) -> None:
        self._outcome = outcome

    def answered(self) -> None:
        """There is nothing to do."""

    def refused(self, error: str, *, certain: bool) -> None:
        """It cannot be published."""
        _settle(self._outcome, error)

    def astray(self, reason: str, *, certain: bool, lost: bool = False) -> None:
        """Somebody else writes, or it had not been lost."""
        _settle(self._outcome, reason)


def _settle(outcome: asyncio.Future[str], problem: str = "") -> None:
    if not outcome.done():
        outcome.set_result(problem)


def _nothing() -> None:
    """Nobody waits for it."""


def records_of(channel: _Bytes, received: Received, crc: Crc) -> Records:
    """Returns messages of a stream as the channel has them."""
    columns = received.columns
    count = len(received)
    times = columns.timestamp.copy()
    replies: list[_Bytes] | None = None
    payloads = []
    for row in range(count):
        payloads.append(received.data(row))
        header = received.header(row)
        if (found := _TIME.search(header)) is not None:
            times[row] = int(found[1])
        if (found := _REPLY.search(header)) is not None:
            replies = replies or [b""] * count
            replies[row] = found[1]
    sequences = columns.sequence.copy()
    encoded, sizes = kernels.encode_messages(channel, sequences, times, replies, payloads, crc)
    ends = (sizes + np.int64(RECORD_HEADER_SIZE)).cumsum()
    total = len(encoded) - RECORD_HEADER_SIZE * count
    return Records(encoded, ends - sizes.astype(np.int64), sizes, sequences, times, total)


def _holes(state: Mapping[str, Any]) -> int:
    """Returns how many messages are missing in a stream; one without messages may count all that it ever had."""
    return int(state.get("num_deleted") or 0) if int(state["messages"]) else 0


def _same(records: Records, copy: Records) -> bool:
    """Returns whether the first messages of two blocks are the same."""
    return bool(len(copy)) and records.payload(0) == copy.payload(0)


def _with_safe_replies(batch: Batch) -> Batch:
    """Returns messages whose replies can be header values."""
    replies = [batch.reply(row) for row in range(len(batch))]
    if all(headers.is_safe_value(reply) for reply in replies):
        return batch
    columns = batch.columns
    buffer = bytearray(batch.buffer)
    for row, reply in enumerate(replies):
        if not headers.is_safe_value(reply):
            safe = headers.safe_value(reply)
            columns.reply_start[row], columns.reply_size[row] = len(buffer), len(safe)
            buffer += safe
    return Batch(batch.channel, batch.subject, memoryview(bytes(buffer)), columns, batch.sequence)
