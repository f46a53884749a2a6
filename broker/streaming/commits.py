"""Commits: staged messages are flushed, delivered and acknowledged, at once or when the store reports completion.

Facts: streaming-protocol.md section 11.

A commit flushes each channel with staged messages. The store completes a flush before it returns, or reports it
later. Several flushes may be in progress; they complete in order within a channel and in any order between channels.
Stored messages are delivered, then acknowledged. Acknowledgements to the same subject, such as those of one
publisher, keep the order of arrival: a completed one waits for earlier ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from broker import log
from broker.stores.interface import Flush, FlushOutcome, StorageError
from broker.streaming.commit_delay import CommitDelay
from broker.streaming.names import text
from broker.streaming.ports import Role
from broker.streaming.publishes.fields import failed
from broker.streaming.state import GONE, MAKING
from stantools.format.quoting import quote

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer, Record
    from broker.streaming.context import Context, Timer
    from broker.streaming.delivery import Dispatcher
    from broker.streaming.publishes.columns import AckRun, Rows
    from broker.streaming.registry import Channels
    from broker.streaming.state import Channel
    from stantools.nats.frames import Payloads

#: Limits of the bytes that wait for a store, per channel and in total. Above them, the broker slows down the
#: publishers.
CHANNEL_BOUND = 16 << 20
BOUND = 64 << 20
#: Limit of the channels that the store is about to create. Above it, the broker slows down the publishers to such
#: channels.
NEW_BOUND = 1024
#: time (ns) that a commit flushes, and that ready subscriptions are served, before other work
SHARE: Final = 8_000_000

# Needed for each publish: attribute lookups on an enum are slow.
_STORED: Final = FlushOutcome.STORED


class ChannelBatch:
    """The messages of one channel in a batch."""

    __slots__ = ("channel", "error", "heads", "outcome", "rows", "size")

    def __init__(self, channel: Channel, rows: Rows, outcome: FlushOutcome | None = None, error: bytes = b"") -> None:
        self.channel = channel
        self._begin(rows, outcome, error)

    def _begin(self, rows: Rows, outcome: FlushOutcome | None, error: bytes) -> None:
        self.rows = rows  #: rows of the batch
        self.size = 0  #: bytes of the records
        self.outcome = outcome  #: None until the store reports it
        self.error = error  #: reason of a refusal
        self.heads: list[bytes] | None = None  #: subjects whose first queued acknowledgement is in this portion


class _Singles(ChannelBatch):
    """The owner of rows that were stored as single messages; it has no channel."""

    __slots__ = ()

    def __init__(self) -> None:
        self._begin(np.empty(0, np.int32), FlushOutcome.STORED, b"")


class CommitBatch:
    """Publishes that are staged together, with their acknowledgements and the subjects of these.

    `traced` has client, channel and guid of each row from `row` on, if trace logging is enabled. Rows outside of all
    portions were stored as single messages (`Channel.single_store`).
    """

    __slots__ = ("acks", "portions", "row", "runs", "traced")

    def __init__(
        self,
        acks: Payloads,
        runs: list[AckRun],
        portions: list[ChannelBatch],
        traced: Sequence[tuple[str, str, str]] = (),
        row: int = 0,
    ) -> None:
        self.acks = acks
        self.runs = runs
        self.portions = portions
        self.traced = traced
        self.row = row


@dataclass(slots=True)
class _PendingFlush:
    """A flush in progress: its portions, their last sequence and bytes."""

    flush: Flush
    last: int
    portions: list[ChannelBatch]
    size: int


class _PendingAck(NamedTuple):
    """Consecutive acknowledgements of one portion that go to the same subject."""

    batch: CommitBatch
    portion: ChannelBatch
    begin: int
    end: int


_SINGLES: Final = _Singles()


class Commits:
    """Flushes, delivers and acknowledges staged messages.

    Attributes:
        staged: Number of these messages.
        size: Their bytes.
        singles: The single messages (`Channel.single_store`) that are stored and not delivered yet.
        touched: Channels that the next commit flushes, with their messages.
        flushed_later: The last commit with a flush left some of it to the store.
        sleep: Timer of a commit that waits for more messages (`io_sleep_time`), if there is one.
        delay: The publishers that the next commit waits for.
    """

    def __init__(self, context: Context, channels: Channels, serving: Dispatcher) -> None:
        self._bus = context.bus
        self._clock = context.clock
        self._audience = context.audience
        self._driver = context.driver
        self._timers = context.timers
        self._store = context.store
        #: commits when the messages at hand are handled, or after `io_sleep_time`
        self.commit_soon: Final = self._sleep_first if context.options.io_sleep_time else context.driver.commit_soon
        self._sleep_time = context.options.io_sleep_time
        self._channels = channels
        self._expiry = channels.expiry
        self._serving = serving
        self.staged = self.size = 0
        self._batches: list[CommitBatch] = []
        self.touched: dict[Channel, list[ChannelBatch]] = {}
        self.singles: list[tuple[Channel, Record]] = []
        self._under_way: dict[Channel, deque[_PendingFlush]] = {}
        self._pending_acks: dict[bytes, deque[_PendingAck]] = {}
        self.delay = CommitDelay(context.clock)
        self._waiting = 0
        self._now = 0  # start of the commit
        self._last_flush: Flush | None = None  # of this commit
        self._synced = False  # the commit has waited for that flush
        self.flushed_later = False
        self._full: set[Channel] = set()
        self._slowed = False
        self.sleep: Timer | None = None
        self._committing = False

    def stage(self, batch: CommitBatch, count: int, size: int) -> None:
        """Adds a batch whose portions were appended to the stores or refused."""
        self._batches.append(batch)
        if self.delay.expects:
            self.delay.add(batch.runs)
        self.staged += count
        self.size += size
        full = self._full
        if (
            self._waiting + self.size > BOUND
            or (full and any(each.channel in full for each in batch.portions))
            or (self._channels.making > NEW_BOUND and any(each.channel.state is MAKING for each in batch.portions))
        ):
            self._slowed = True
            self._bus.slow_down()

    def appended(self, portion: ChannelBatch, records: MessageRecordBuffer) -> None:
        """Records that a portion was appended to its channel's store."""
        channel = portion.channel
        portion.size = len(records.data)
        following = channel.messages.last + 1
        channel.fresh.append((following - len(portion.rows), following, records))
        portions = self.touched.get(channel)
        if portions is None:
            self.touched[channel] = [portion]
        else:
            portions.append(portion)

    def obtain(self, name: bytes) -> Channel:
        """Returns the channel of a valid name, a new one if there is none. Raises as `Channels.create`.

        The store makes it with the next commit, even if the message or subscription that needs it is refused.
        """
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels.create(name)
            if channel.making is not None:
                channel.making.followers.append(partial(self._channel_created, channel))
        if channel.state is MAKING:
            self.touch(channel)
        return channel

    def touch(self, channel: Channel) -> None:
        """Adds a channel to the next commit without new messages: its store may have more to do."""
        self.touched.setdefault(channel, [])
        self._driver.commit_soon()

    def _sleep_first(self) -> None:
        if self.sleep is None:
            self.sleep = self._timers.after(self._sleep_time, self.commit)

    def commit(self, share: int = 0) -> None:
        """Flushes staged messages, then delivers and acknowledges all messages that are stored by now.

        After `share` ns the remaining channels are left to the next commit, which follows soon; 0 flushes all.
        """
        if self._committing:
            return
        if self.sleep is not None:
            self._timers.cancel(self.sleep)
            self.sleep = None
        batches, self._batches = self._batches, []
        self._committing = True
        self._now = self._clock.monotonic()
        self._last_flush, self._synced = None, False
        try:
            if self.singles:
                self._serve_singles()
            self.staged = self.size = 0
            if self.touched:
                self._flush_touched(share)
            if completed := self._store.completed():
                self._complete(completed)
            for number, batch in enumerate(batches):
                if self.touched and self._waits(batch):
                    # Later batches wait as well: acknowledgements keep their order.
                    self._batches = batches[number:] + self._batches
                    break
                self._acknowledge(batch)
            if self._slowed:
                self._end_slowdown()
            if self._synced:
                self.delay.committed(self._now)
        finally:
            self._committing = False

    def postpone(self) -> bool:
        """Delays the due commit if it waits for more messages, or for publishers that publish again at once.

        Returns whether it is delayed; then the messages whose flushes are complete are delivered and acknowledged.
        """
        if self.sleep is None:
            if not self.touched or self.singles or not (until := self.delay.deadline()):
                return False
            self._driver.commit_by(until)
        if not self._committing:
            self._committing = True
            self._now = self._clock.monotonic()
            try:
                self._complete(self._store.completed())
                self._end_slowdown()
            finally:
                self._committing = False
        return True

    def lost(self, channel: Channel, error: Exception | str, outcome: FlushOutcome = FlushOutcome.REFUSED) -> None:
        """Gives up the messages of a channel that are not visible yet, after a storage error.

        Their publishers get the error. With the outcome UNKNOWN the messages may be stored, and the publishers get
        no answer.
        """
        portions = self.touched.pop(channel, [])
        for each in self._under_way.pop(channel, ()):
            self._waiting -= each.size
            portions += each.portions
        if channel.state is MAKING:
            self.touch(channel)  # creating the channel begins with a flush
        channel.fresh.clear()
        channel.visible = channel.messages.last
        if self._audience is not None:
            self._audience.changed(channel)
        self._settle(portions, outcome, str(error).encode(errors="replace"))
        self._check_full(channel)
        self._end_slowdown()

    def flush_subscriptions(self, channel: Channel) -> Flush | None:
        """Flushes the subscriptions of a channel and logs a failure. Returns the flush if it is in progress."""
        try:
            flush = channel.store.flush()
        except StorageError as error:
            _log_flush_error(channel, str(error))
            return None
        if flush is not None:
            flush.followers.append(lambda flush: _log_flush_error(channel, flush.error))
        return flush

    def when_durable(self, flushes: Iterable[Flush | None], done: Callable[[str], None]) -> None:
        """Calls `done` when flushes of subscriptions are complete, at once if none is in progress.

        `done` gets the error of a failed flush, or an empty text.
        """
        waiting = {flush for flush in flushes if flush is not None}
        errors: list[str] = []
        if not waiting:
            done("")
            return

        def completed(flush: Flush) -> None:
            waiting.discard(flush)
            errors.append(flush.error)
            if not waiting:
                done(max(errors))

        for flush in tuple(waiting):
            flush.followers.append(completed)
        self._driver.commit_soon()

    def _flush_touched(self, share: int) -> None:
        touched, self.touched = self.touched, {}
        left = iter(touched.items())
        for channel, portions in left:
            if channel.state is not GONE:
                self._flush(channel, portions)
            if share and self._clock.monotonic() - self._now > share:
                break
        self.flushed_later = self._last_flush is not None
        for channel, portions in left:
            self.touched[channel] = portions
            for portion in portions:
                self.staged += len(portion.rows)
                self.size += portion.size
        if self.touched:
            self._driver.commit_soon()

    def _serve_singles(self) -> None:
        """Does the same for single messages as `_stored` for others."""
        singles, self.singles = self.singles, []
        audience = self._audience
        self._serving.serve_singles(singles, self._now)
        for channel, _ in singles:
            if channel.limited_age:
                self._expiry.stored(channel)
            if audience is not None:
                audience.changed(channel)
            if channel.recorded and channel.plain:
                self.flush_subscriptions(channel)

    def _flush(self, channel: Channel, portions: list[ChannelBatch]) -> None:
        try:
            flush = channel.messages.flush()
        except StorageError as error:
            self.touched[channel] = portions
            self._failed(channel, error)
            return
        last = channel.messages.last
        if flush is None:
            self._stored(channel, last, portions)
            return
        self._last_flush = flush
        size = sum(portion.size for portion in portions)
        queue = self._under_way.setdefault(channel, deque())
        if queue and queue[-1].flush is flush:
            newest = queue[-1]
            newest.last = last
            newest.portions += portions
            newest.size += size
        else:
            queue.append(_PendingFlush(flush, last, portions, size))
            flush.followers.append(partial(self._flushed, channel))
        self._waiting += size
        if sum(each.size for each in queue) > CHANNEL_BOUND:
            self._full.add(channel)

    def _complete(self, completed: Sequence[Flush]) -> None:
        for flush in completed:
            for follow in flush.followers:
                follow(flush)

    def _flushed(self, channel: Channel, flush: Flush) -> None:
        if channel.state is GONE:
            self._under_way.pop(channel, None)  # no messages were left
            return
        queue = self._under_way.get(channel)
        if queue is None or queue[0].flush is not flush:
            return  # its messages were given up
        if flush is self._last_flush:
            self._synced = True
        if flush.outcome is not _STORED:
            self._failed(channel, flush.error, flush.outcome)
            return
        done = queue.popleft()
        if not queue:
            del self._under_way[channel]
        self._waiting -= done.size
        self._stored(channel, done.last, done.portions)
        self._check_full(channel)

    def _channel_created(self, channel: Channel, flush: Flush) -> None:
        if flush.outcome is _STORED:
            self._channels.made(channel)
            return
        log.STREAMING.error("Creating channel %s failed: %s", quote(channel.name), flush.error)
        self.lost(channel, flush.error, flush.outcome)
        del self.touched[channel]
        self._channels.forget(channel)

    def _stored(self, channel: Channel, last: int, portions: list[ChannelBatch]) -> None:
        channel.visible = last
        channel.last_activity = self._now
        self._serving.channel(channel)
        if channel in self._under_way:
            channel.fresh = [each for each in channel.fresh if each[1] > last + 1]
        else:
            channel.fresh.clear()
        self._expiry.stored(channel)
        if self._audience is not None:
            self._audience.changed(channel)
        self.flush_subscriptions(channel)
        self._settle(portions, _STORED)

    def _failed(
        self, channel: Channel, error: StorageError | str, outcome: FlushOutcome = FlushOutcome.REFUSED
    ) -> None:
        if outcome is FlushOutcome.UNKNOWN:
            what = "Unable to tell whether messages of channel %s are stored: %s"
        else:
            what = "Unable to flush messages of channel %s: %s"
        log.STREAMING.error(what, text(channel.name), error)
        self.lost(channel, error, outcome)
        # Messages that the store reports are stored, maybe by another server: they are delivered.
        self._serving.channel(channel)

    def _check_full(self, channel: Channel) -> None:
        """A channel is full until half of its limit is free."""
        if channel in self._full and sum(e.size for e in self._under_way.get(channel, ())) <= CHANNEL_BOUND // 2:
            self._full.discard(channel)

    def _end_slowdown(self) -> None:
        """Ends the slow reading of publishers when half of the limits is free."""
        if (
            self._slowed
            and not self._full
            and self._waiting + self.size <= BOUND // 2
            and self._channels.making <= NEW_BOUND // 2
        ):
            self._slowed = False
            self._bus.end_slowdown()

    # Acknowledgements.

    def _settle(self, portions: list[ChannelBatch], outcome: FlushOutcome, error: bytes = b"") -> None:
        for portion in portions:
            portion.outcome, portion.error = outcome, error
        if self._pending_acks:
            for portion in portions:
                heads, portion.heads = portion.heads, None
                for reply in heads or ():
                    self._release(reply)

    def _release(self, reply: bytes) -> None:
        """Sends the queued acknowledgements to a subject, up to the first without an outcome."""
        queue = self._pending_acks[reply]
        while queue:
            batch, portion, begin, end = queue[0]
            if portion.outcome is None:
                _wait_for(portion, reply)
                return
            queue.popleft()
            self._answer(batch, portion, reply, begin, end)
        del self._pending_acks[reply]

    def _waits(self, batch: CommitBatch) -> bool:
        """Acknowledges the rows before the first one left to the next commit. Returns False if none is left."""
        flushed: list[ChannelBatch] = []
        left: list[int] = []
        for portion in batch.portions:
            if portion.outcome is None and portion.channel in self.touched:
                left.append(int(portion.rows[0]))
            else:
                flushed.append(portion)
        if not left:
            return False
        first = min(left)
        count = sum(run.end <= first for run in batch.runs)
        row = batch.runs[count].begin
        traced = row - batch.row
        self._acknowledge(CommitBatch(batch.acks, batch.runs[:count], flushed, batch.traced[:traced], batch.row))
        batch.runs, batch.traced, batch.row = batch.runs[count:], batch.traced[traced:], row
        return True

    def _acknowledge(self, batch: CommitBatch) -> None:
        """Sends the acknowledgements of a batch, or queues them after earlier ones to the same subject."""
        if not self._pending_acks:
            for portion in batch.portions:
                if portion.outcome is not _STORED:
                    break
            else:
                if batch.traced:
                    _trace(batch.traced)
                if self._synced:
                    self.delay.acknowledged(batch.runs)
                self._bus.publish_runs(Role.SEND, batch.runs, batch.acks)
                return
        for portion, reply, begin, end in _split_runs(batch):
            queue = self._pending_acks.get(reply)
            if queue is not None:
                queue.append(_PendingAck(batch, portion, begin, end))
            elif portion.outcome is None:
                self._pending_acks[reply] = deque([_PendingAck(batch, portion, begin, end)])
                _wait_for(portion, reply)
            else:
                self._answer(batch, portion, reply, begin, end)

    def _answer(self, batch: CommitBatch, portion: ChannelBatch, reply: bytes, begin: int, end: int) -> None:
        """Answers a publisher; an unknown outcome has no answer."""
        if portion.outcome is _STORED:
            _trace(batch.traced[begin - batch.row : end - batch.row])
            self._bus.publish_block(Role.SEND, reply, batch.acks, begin, end)
        elif portion.outcome is FlushOutcome.REFUSED:
            for row in range(begin, end):
                self._bus.publish(Role.SEND, reply, failed(batch.acks.payload(row), portion.error))


def _wait_for(portion: ChannelBatch, reply: bytes) -> None:
    if portion.heads is None:
        portion.heads = []
    portion.heads.append(reply)


def _trace(rows: Sequence[tuple[str, str, str]]) -> None:
    for names in rows:
        log.STREAMING.log(log.TRACE, "[Client:%s] Acking Publisher subj=%s guid=%s", *names)


def _log_flush_error(channel: Channel, error: str) -> None:
    if error:
        log.STREAMING.error("Unable to flush subscriptions of channel %s: %s", text(channel.name), error)


def _split_runs(batch: CommitBatch) -> Iterator[tuple[ChannelBatch, bytes, int, int]]:
    """Yields the runs of a batch, split where the portion changes."""
    portions = [*batch.portions, _SINGLES]
    if len(portions[0].rows) == len(batch.acks):
        for reply, begin, end in batch.runs:
            yield portions[0], reply, begin, end
        return
    owners = np.full(len(batch.acks), len(batch.portions))
    for number, portion in enumerate(batch.portions):
        owners[portion.rows] = number
    for reply, begin, end in batch.runs:
        if end - begin == 1:  # many clients that publish one message at a time
            yield portions[owners[begin]], reply, begin, end
            continue
        part = owners[begin:end]
        changes = (np.flatnonzero(part[1:] != part[:-1]) + (begin + 1)).tolist()
        for first, stop in pairwise([begin, *changes, end]):
            yield portions[int(owners[first])], reply, first, stop
