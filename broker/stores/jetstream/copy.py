"""The copy of a channel in files, and how it follows the stream.

The copy gets only messages that are proven to be in the stream. The two may differ when the server starts, or when
another writer has used the stream. Then the copy is made to follow: the last common message is compared, missing
messages are fetched, and a copy with other messages is discarded. If the stream ends before the copy and agrees with
it up to there, the servers have lost acknowledged messages, which are published again.
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
from broker.stores.jetstream.exact_publisher import ExactPublisher, PublishRange
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.message_batch import MessageBatch, texts
from stantools.format.quoting import quote
from stantools.nats.errors import NatsError
from stantools.nats.publishing.kernels import read_origins
from stantools.streamfiles.messages import safe_replies

if TYPE_CHECKING:
    from broker.stores.jetstream.jetstream_port import JetStreamPort
    from stantools.nats.inbox import Received
    from stantools.store.limits import ChannelLimits

#: seconds for which the stream must report fewer messages than before until that counts as a loss
_CERTAIN: Final = 10.0
#: messages to read from the copy and publish again at a time
_ROWS: Final = 2048


@dataclass(slots=True)
class CopiedChannel:
    """Names, stream configuration and limits of a channel."""

    name: bytes
    stream: str
    subject: bytes
    config: Mapping[str, Any]  #: configuration of the stream
    limits: ChannelLimits


class CopySet(Protocol):
    """The copies of all channels, with the settings they share."""

    streams: JetStreamPort
    writer: bytes
    crc: Crc | None
    led: bool

    def leads(self) -> bool:
        """Returns whether messages may be sent: no other server leads."""

    def copy_of(self, name: bytes) -> MessageStore:
        """Returns the copy of a channel, a new one if there is none."""

    def new_copy(self, name: bytes, *, keep: bool) -> MessageStore:
        """Returns an empty copy of a channel. The previous one is set aside or removed."""

    async def make_durable(self, channels: Collection[bytes] | None = None) -> None:
        """Waits until the copies of the given channels, or of all, are durable, if copies have to be."""

    def completed_flush(self, flush: Flush, settle: Callable[[], None] | None = None, channel: bytes = b"") -> None:
        """Completes a flush whose outcome is known, once the copy of its channel is durable, if it has to be.

        `settle` is called when the server learns of the flush.
        """

    def completing(self, channel: bytes) -> Flush | None:
        """Returns the last flush of a channel that waits only for a durable copy."""


class ChannelCopy:
    """The copy of one channel. `files` has the messages, and is replaced when the copy starts over."""

    def __init__(self, channel: CopiedChannel, copies: CopySet) -> None:
        self.channel = channel
        self.files = copies.copy_of(channel.name)
        self._copies = copies
        self._streams = copies.streams
        self._crc = copies.crc or Crc()
        self._end, self._since = -1, 0.0  # a last sequence lower than before, and the time of its first report

    def keep(self, records: MessageRecordBuffer) -> None:
        """Adds messages to the copy, which starts over after a gap. Raises StorageError if it cannot be written."""
        if self.files.last and int(records.sequences[0]) != self.files.last + 1:
            self.files = self._copies.new_copy(self.channel.name, keep=False)
        self.files.append(records)

    async def catch_up(self, until: int = 0, *, least: int = 0, opening: bool = False) -> int:
        """Makes the copy follow the stream. Returns the last sequence.

        Args:
            until: The last sequence that is proven to be in the stream.
            least: A sequence that was in it, unless the servers have lost it.
            opening: No message has been read from the copy yet.

        Raises:
            StorageError: The channel cannot be served.
            NatsError: The state of the stream cannot be determined yet.
        """
        name, stream = self.channel.name, self.channel.stream
        info = await self._streams.stream_info(stream)
        if info is None:
            raise StorageError(f"stream {stream} of channel {quote(name)} is gone")
        state = info["state"]
        last = int(state["last_seq"])
        if holes := _missing_messages(state):
            raise StorageError(
                f"stream {stream} of channel {quote(name)} has holes, {holes} messages: they were "
                f"deleted; purge the stream up to the last of them (nats stream purge {stream} --seq=N), or restore it"
            )
        had = max(until, least, self.files.last)
        if last < had:
            # A server may lag, or may not know yet that it leads no more.
            now = asyncio.get_running_loop().time()
            if last != self._end:
                self._end, self._since = last, now
            if until or now - self._since < _CERTAIN:
                raise NatsError(f"stream {stream} is reported to end at {last}, but had {had}")
        await self._fill(state, opening=opening)
        if self.files.last > last:
            await self._publish_again(last)
        return max(self.files.last, last)

    async def follow(self, state: Mapping[str, Any]) -> None:
        """Fetches missing messages while another server writes to the stream, whose state is given.

        Raises StorageError if the copy cannot be written, NatsError if some messages could not be read.
        """
        # A server may report an old state; the leader repairs faults of the stream.
        if int(state["last_seq"]) >= self.files.last and not _missing_messages(state):
            await self._fill(state, opening=True)

    async def _fill(self, state: Mapping[str, Any], *, opening: bool) -> None:
        """Fetches missing messages, or all if the copy does not fit the stream."""
        first, last = int(state["first_seq"]), int(state["last_seq"])
        if int(state["messages"]) == 0:
            first = last + 1
        if not self._matches_stream(first, last, opening=opening):
            self.files = self._copies.new_copy(self.channel.name, keep=self.files.last > last)
        files = self.files
        common = min(files.last, last) if files.count else 0
        after = max(files.last, first - 1)
        if max(first, files.first) <= common:
            after = common - 1
        if after < last:
            await self._fetch(state, after, common if after < common else 0)

    def _matches_stream(self, first: int, last: int, *, opening: bool) -> bool:
        """Returns whether the copy fits the stream, judged by sequences and counts."""
        files = self.files
        if not files.last:
            return True
        if files.last > last and not (files.count and max(files.first, first) <= last):
            if self._copies.led:
                # The stream's messages can only have been those of the copy.
                return True
            STREAMING.error(
                "Channel %s: the stream ends at sequence %d, the copy in files at %d; they have no common message",
                quote(self.channel.name),
                last,
                files.last,
            )
            return False
        if files.last < first - 1:
            return False
        # Messages that a user has purged must not be read from the copy either.
        return not (opening and files.count and files.first < first and not self.channel.limits.max_age_ns)

    async def _fetch(self, state: Mapping[str, Any], after: int, compared: int) -> None:
        """Reads messages into the copy, and compares the message at sequence `compared`, unless that is 0."""
        stream = self.channel.stream
        at, last = after, int(state["last_seq"])
        async for received in self._streams.read(stream, state, after):
            records = self._records(received)
            if compared:
                copy = self.files.read(compared, 1)
                if (
                    not len(copy)
                    or records.payload(0) != copy.payload(0)
                    or records.timestamps[0] != copy.timestamps[0]
                ):
                    STREAMING.warning(
                        "Channel %s: the copy in files has another message at sequence %d than the stream, and is "
                        "rebuilt",
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
            raise NatsError(f"stream {stream} could be read only up to sequence {at} of {last}")

    async def _publish_again(self, last: int) -> None:
        """Publishes the messages that the stream has lost."""
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
        publisher = ExactPublisher(
            self._streams, self.channel.stream, self._copies.writer + b"r", again, leads=self._copies.leads
        )
        try:
            publisher.restart(last)
            while last < until:
                records = self.files.read(last + 1, min(_ROWS, until - last))
                if not len(records):
                    raise StorageError(f"sequence {last + 1} cannot be read from the copy")
                first, last = last + 1, int(records.sequences[-1])
                done = again.settle if last == until else again.answered
                publisher.submit(PublishRange(self.batch(records), first, last, done))
            if problem := await again.outcome:
                raise NatsError(problem)
        finally:
            publisher.close()

    # Conversions between stream and copy

    def batch(self, records: MessageRecordBuffer) -> MessageBatch:
        """Returns messages in the form in which they are published."""
        batch, _ = decoded(records, self.channel.name, self._crc)
        batch.subject = self.channel.subject
        replies = safe_replies(batch)
        return batch if replies is None else batch.with_contents(list(batch.payloads()), replies)

    def _records(self, received: Received) -> MessageRecordBuffer:
        """Returns messages of the stream as records of the channel."""
        columns, count = received.columns, len(received)
        times, starts, sizes = columns.timestamp.copy(), np.empty(count, np.int64), np.empty(count, np.uint32)
        replies: list[bytes] | None = None
        if read_origins(received.buffer, columns, times, starts, sizes):
            replies = list(texts(received.buffer, starts, sizes))
        payloads = list(texts(received.buffer, columns.data_start, columns.data_size))
        sequences = columns.sequence.copy()
        encoded, lengths = kernels.encode_messages(self.channel.name, sequences, times, replies, payloads, self._crc)
        return block_of(encoded, lengths, sequences, times)


class _RepublishOwner:
    """Owner of a publisher that sends lost messages again."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def settle(self, problem: str = "") -> None:
        if not self.outcome.done():
            self.outcome.set_result(problem)

    def answered(self) -> None: ...

    def refused(self, error: str, *, certain: bool) -> None:
        self.settle(error)

    def diverged(self, reason: str, *, certain: bool, lost: bool = False) -> None:
        self.settle(reason)


def _missing_messages(state: Mapping[str, Any]) -> int:
    """Returns the number of missing messages. An empty stream may count all that it ever had, so it has none."""
    return int(state.get("num_deleted") or 0) if int(state["messages"]) else 0
