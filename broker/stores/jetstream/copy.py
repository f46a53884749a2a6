"""The copy of a channel in files, and how it is made to follow the stream.

The copy gets what is proven to be in the stream, and nothing else. Whenever both may differ, when the server starts and
when somebody else has written to the stream, the copy is made to follow: the last message that both have is compared;
what the copy lacks is fetched; a copy with other messages is thrown away. Only where the stream has less than the copy,
and agrees with it up to its own end, messages that were acknowledged have been lost by the servers: they are published
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from broker.log import STREAMING
from broker.record_buffer import MessageRecordBuffer
from broker.stores.blocklist import block_of, decoded, part_of
from broker.stores.interface import Flush, MessageStore, StorageError
from broker.stores.jetstream.exact_publisher import Chain, ChainLink
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.quoting import quote
from stantools.nats.errors import NatsError
from stantools.nats.publishing.kernels import read_origins
from stantools.streamfiles import headers
from stantools.streamfiles.batch import MessageBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from broker.stores.jetstream.jetstream_port import JetStreamPort
    from stantools.format.envelope import Buffer
    from stantools.nats.inbox import Received
    from stantools.store.limits import ChannelLimits

#: Seconds for which a stream has to be said to have less than it had.
_CERTAIN: Final = 10.0
#: What is read of a copy at once to be published again.
_ROWS: Final = 2048


@dataclass(slots=True)
class CopiedChannel:
    """What a channel is called here and there, and what it may hold."""

    name: bytes
    stream: str
    subject: bytes
    config: Mapping[str, Any]  #: configuration of the stream
    limits: ChannelLimits


class CopySet(Protocol):
    """The copies of all channels, and what else these share."""

    streams: JetStreamPort
    writer: bytes
    crc: Crc | None
    led: bool

    def leads(self) -> bool:
        """Returns whether messages may be sent: no other server does."""

    def copy_of(self, name: bytes) -> MessageStore:
        """Returns the copy of a channel, an empty one if there is none yet."""

    def new_copy(self, name: bytes, *, keep: bool) -> MessageStore:
        """Returns an empty copy of a channel instead of the one that there is, which is kept aside or removed."""

    async def make_durable(self, channels: Collection[bytes] | None = None) -> None:
        """Returns when the copies of some channels, or of all, are durable, where they have to be."""

    def completed_flush(self, flush: Flush, settle: Callable[[], None] | None = None, channel: bytes = b"") -> None:
        """Takes note of a flush whose outcome is known; `settle` is called when the server learns of it.

        That is when the copy of the channel is durable, where it has to be.
        """

    def completing(self, channel: bytes) -> Flush | None:
        """Returns the last flush of a channel that only waits for that."""


class ChannelCopy:
    """The copy of one channel.

    Args:
        channel: The channel.
        copies: Where the copy is.

    Attributes:
        channel: The channel.
        files: The messages that are in files; another store when the copy starts over.
    """

    def __init__(self, channel: CopiedChannel, copies: CopySet) -> None:
        self.channel = channel
        self.files = copies.copy_of(channel.name)
        self._copies = copies
        self._streams = copies.streams
        self._crc = copies.crc or Crc()
        self._end, self._since = -1, 0.0  # where the stream is said to end, before where it did, and since when

    def keep(self, records: MessageRecordBuffer) -> None:
        """Adds messages to the copy, which starts over where they do not follow.

        Raises:
            StorageError: They cannot be written.
        """
        if self.files.last and int(records.sequences[0]) != self.files.last + 1:
            self.files = self._copies.new_copy(self.channel.name, keep=False)
        self.files.append(records)

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
        name, stream = self.channel.name, self.channel.stream
        info = await self._streams.stream_info(stream)
        if info is None:
            raise StorageError(f"stream {stream} of channel {quote(name)} is gone")
        state = info["state"]
        last = int(state["last_seq"])
        if holes := _holes(state):
            raise StorageError(
                f"stream {stream} of channel {quote(name)} has holes, {holes} messages: somebody has "
                f"deleted them; purge it up to the last one (nats stream purge {stream} --seq=N), or restore it"
            )
        had = max(until, least, self.files.last)
        if last < had:
            # A server may be behind, or not know yet that it does not lead any more.
            now = asyncio.get_running_loop().time()
            if last != self._end:
                self._end, self._since = last, now
            if until or now - self._since < _CERTAIN:
                raise NatsError(f"stream {stream} is said to end at {last}, and had {had}")
        await self._fill(state, opening=opening)
        if self.files.last > last:
            await self._publish_again(last)
        return max(self.files.last, last)

    async def follow(self, state: Mapping[str, Any]) -> None:
        """Fetches what the copy lacks while another server writes to the stream.

        Args:
            state: Of the stream.

        Raises:
            StorageError: The copy cannot be written.
            NatsError: Not all of it could be read.
        """
        # A server may report an old state, and what is wrong with a stream is for the leader to mend.
        if int(state["last_seq"]) >= self.files.last and not _holes(state):
            await self._fill(state, opening=True)

    async def _fill(self, state: Mapping[str, Any], *, opening: bool) -> None:
        """Fetches what the copy lacks, or all if it is of something else."""
        first, last = int(state["first_seq"]), int(state["last_seq"])
        if int(state["messages"]) == 0:
            first = last + 1
        if not self._fits(first, last, opening=opening):
            self.files = self._copies.new_copy(self.channel.name, keep=self.files.last > last)
        files = self.files
        common = min(files.last, last) if files.count else 0
        after = max(files.last, first - 1)
        if max(first, files.first) <= common:
            after = common - 1
        if after < last:
            await self._fetch(state, after, common if after < common else 0)

    def _fits(self, first: int, last: int, *, opening: bool) -> bool:
        """Returns whether the copy can be continued, as far as the numbers say."""
        files = self.files
        if not files.last:
            return True
        if files.last > last and not (files.count and max(files.first, first) <= last):
            if self._copies.led:
                # There is nothing else that the stream can have had.
                return True
            STREAMING.error(
                "Channel %s: the stream ends at sequence %d, the copy in files at %d, and they have nothing in common",
                quote(self.channel.name),
                last,
                files.last,
            )
            return False
        if files.last < first - 1:
            return False
        # What somebody has purged is not to be read from the copy either.
        return not (opening and files.count and files.first < first and not self.channel.limits.max_age_ns)

    async def _fetch(self, state: Mapping[str, Any], after: int, compared: int) -> None:
        """Reads messages into the copy; one that it has is compared first, unless that is 0."""
        stream = self.channel.stream
        at, last = after, int(state["last_seq"])
        async for received in self._streams.read(stream, state, after):
            records = self._records(received)
            if compared:
                if not _same(records, self.files.read(compared, 1)):
                    STREAMING.warning(
                        "Channel %s: the copy in files has another message at sequence %d than the stream, and is made "
                        "anew",
                        quote(self.channel.name),
                        compared,
                    )
                    self.files = self._copies.new_copy(self.channel.name, keep=True)
                    await self._fetch(state, max(int(state["first_seq"]) - 1, 0), 0)
                    return
                compared, at = 0, after + 1
                if len(records) == 1:
                    continue
                records = part_of(records, 1, len(records), 1 << 62)
            first = int(records.sequences[0])
            if first != at + 1 and self.files.count:
                raise NatsError(f"sequence {at + 1} of {stream} is missing")
            self.keep(records)
            self.files.flush()
            at = int(records.sequences[-1])
        if at < last:
            raise NatsError(f"stream {stream} could be read up to sequence {at} only, of {last}")

    async def _publish_again(self, last: int) -> None:
        """Publishes what the stream has lost."""
        until = self.files.last
        STREAMING.error(
            "Channel %s: the stream has lost %d messages that were stored, from sequence %d on; they are published "
            "again from the copy in files",
            quote(self.channel.name),
            until - last,
            last + 1,
        )
        if last < self.files.first - 1:
            await self._streams.purge_stream(self.channel.stream, below=self.files.first)
            last = self.files.first - 1
            if last == until:
                return
        again = _RepublishOwner()
        chain = Chain(self._streams, self.channel.stream, self._copies.writer + b"r", again, leads=self._copies.leads)
        try:
            chain.restart(last)
            while last < until:
                records = self.files.read(last + 1, min(_ROWS, until - last))
                if not len(records):
                    raise StorageError(f"sequence {last + 1} cannot be read from the copy")
                first, last = last + 1, int(records.sequences[-1])
                done = again.settle if last == until else again.answered
                chain.submit(ChainLink(self.batch(records), first, last, done))
            if problem := await again.outcome:
                raise NatsError(problem)
        finally:
            chain.close()

    # How the stream has messages, and how the copy does

    def batch(self, records: MessageRecordBuffer) -> MessageBatch:
        """Returns messages as they are published."""
        columns, _ = decoded(records, self.channel.name, self._crc)
        batch = MessageBatch(
            self.channel.name, self.channel.subject, memoryview(records.data), columns, columns.sequence
        )
        return _with_safe_replies(batch) if columns.reply_size.any() else batch

    def _records(self, received: Received) -> MessageRecordBuffer:
        """Returns messages of the stream as the channel has them."""
        columns, count = received.columns, len(received)
        times, starts, sizes = columns.timestamp.copy(), np.empty(count, np.int64), np.empty(count, np.uint32)
        replies: list[bytes] | None = None
        if read_origins(received.buffer, columns, times, starts, sizes):
            replies = _parts(received.buffer, starts, sizes)
        payloads = _parts(received.buffer, columns.data_start, columns.data_size)
        sequences = columns.sequence.copy()
        encoded, lengths = kernels.encode_messages(self.channel.name, sequences, times, replies, payloads, self._crc)
        return block_of(encoded, lengths, sequences, times)


class _RepublishOwner:
    """The owner of a chain that publishes again."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def settle(self, problem: str = "") -> None:
        """Everything is published, or cannot be."""
        if not self.outcome.done():
            self.outcome.set_result(problem)

    def answered(self) -> None:
        """There is nothing to do before all of it is."""

    def refused(self, error: str, *, certain: bool) -> None:
        """It cannot be published."""
        self.settle(error)

    def astray(self, reason: str, *, certain: bool, lost: bool = False) -> None:
        """Somebody else writes, or it had not been lost."""
        self.settle(reason)


def _holes(state: Mapping[str, Any]) -> int:
    """Returns how many messages are missing in a stream; one without messages may count all that it ever had."""
    return int(state.get("num_deleted") or 0) if int(state["messages"]) else 0


def _same(records: MessageRecordBuffer, copy: MessageRecordBuffer) -> bool:
    """Returns whether the first messages of two blocks are the same."""
    if not len(copy):
        return False
    return records.payload(0) == copy.payload(0) and bool(records.timestamps[0] == copy.timestamps[0])


def _parts(buffer: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.uint32]) -> list[bytes]:
    """Returns pieces of a buffer."""
    view, ends = memoryview(buffer), starts + sizes
    return [bytes(view[begin:end]) for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _with_safe_replies(batch: MessageBatch) -> MessageBatch:
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
    return MessageBatch(batch.channel, batch.subject, memoryview(bytes(buffer)), columns, batch.sequence)
