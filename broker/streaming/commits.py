"""Commits: what was staged is flushed, delivered and acknowledged, at once or when the store has done its part.

Facts: streaming-protocol.md section 11.

A commit flushes each channel for which something is staged. The store has done it when it returns, or reports it later;
several flushes may be under way, which complete in order within a channel, and in any order between channels. What is
stored is delivered, then it is acknowledged. Acknowledgements to the same subject, as those of one publisher are, keep
the order of arrival: one that could go waits for those before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np

from broker import log
from broker.stores.interface import Flush, FlushOutcome, StorageError
from broker.streaming.commit_delay import CommitDelay
from broker.streaming.names import text
from broker.streaming.ports import Role
from broker.streaming.publishes.fields import failed
from stantools.format.quoting import quote

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer, Record
    from broker.streaming.context import Context, Timer
    from broker.streaming.delivery import Dispatcher
    from broker.streaming.publishes.columns import AckRun, Rows
    from broker.streaming.registry import Channels
    from broker.streaming.state import Channel
    from stantools.nats.frames import Payloads

#: Bytes that wait for a store, of a channel and of all: beyond, those who publish are read more slowly.
CHANNEL_BOUND: Final = 16 << 20
BOUND: Final = 64 << 20
#: Channels that a store is to make: beyond, those who publish to such channels are read more slowly.
NEW_BOUND: Final = 1024
#: How long (ns) a commit flushes, and those who may be served are served, before others have their turn.
SHARE: Final = 8_000_000

# Looked up with each publish.
_STORED: Final = FlushOutcome.STORED


@dataclass(slots=True, eq=False)
class ChannelBatch:
    """The messages of one channel in a batch."""

    channel: Channel
    rows: Rows  #: which rows of the batch they are
    size: int = 0  #: their bytes
    outcome: FlushOutcome | None = None  #: what became of them; None while nobody knows
    error: bytes = b""  #: why they were refused
    heads: list[bytes] | None = None  #: subjects whose next acknowledgement is one of these, if it waits


@dataclass(slots=True)
class CommitBatch:
    """Publishes that were taken together: their acknowledgements, and where these go.

    `traced` has client, channel and guid of every row from `row` on, if such lines are logged. What is in no portion
    came alone, and is stored.
    """

    acks: Payloads
    runs: list[AckRun]
    portions: list[ChannelBatch]
    traced: Sequence[tuple[str, str, str]] = ()
    row: int = 0


@dataclass(slots=True)
class _PendingFlush:
    """A flush that is under way: what is in it, the last sequence, and bytes."""

    flush: Flush
    last: int
    portions: list[ChannelBatch]
    size: int


class _PendingAck(NamedTuple):
    """Acknowledgements of one portion in a row that go to the same subject."""

    batch: CommitBatch
    portion: ChannelBatch
    begin: int
    end: int


#: What came alone, for whoever acknowledges it among others.
_LONE: Final = ChannelBatch(cast("Channel", None), np.empty(0, np.int32), outcome=FlushOutcome.STORED)


class Commits:
    """Commits what is staged.

    Args:
        context: The world.
        serving: Delivers what is stored.

    Attributes:
        staged: Messages that are staged.
        size: Bytes of them.
        lone: What came alone (`Channel.alone`) and is stored, but was not delivered yet.
    """

    def __init__(self, context: Context, channels: Channels, serving: Dispatcher) -> None:
        self._bus = context.bus
        self._clock = context.clock
        self._audience = context.audience
        self._driver = context.driver
        self._timers = context.timers
        self._store = context.store
        self._sleep_time = context.options.io_sleep_time
        self._channels = channels
        self._expiry = channels.expiry
        self._serving = serving
        self.staged = self.size = 0
        self._batches: list[CommitBatch] = []
        self._touched: dict[Channel, list[ChannelBatch]] = {}
        self.lone: list[tuple[Channel, Record]] = []
        self._flushes: dict[Flush, Channel] = {}
        self._followers: dict[Flush, list[Callable[[Flush], None]]] = {}
        self._under_way: dict[Channel, deque[_PendingFlush]] = {}
        self._owed: dict[bytes, deque[_PendingAck]] = {}
        self._rhythm = CommitDelay(context.clock)
        self._waiting = 0
        self._now = 0  # when the commit began
        self._newest: Flush | None = None  # what it has flushed last
        self._synced = False  # it has waited for that
        self._flushed_later = False  # the last commit that flushed anything left some of it to the store
        self._full: set[Channel] = set()
        self._slowed = False
        self._sleep: Timer | None = None
        self._committing = False

    @property
    def slow(self) -> bool:
        """Whether the next commit may take as long as a disk does: there is something to flush, as in the last one."""
        return self._flushed_later and bool(self._touched)

    @property
    def sleeping(self) -> bool:
        """More messages are waited for before a commit (`io_sleep_time`)."""
        return self._sleep is not None and self._sleep.pending

    def stage(self, batch: CommitBatch, count: int, size: int) -> None:
        """Takes a batch, whose portions have been appended to the stores or refused."""
        self._batches.append(batch)
        self._rhythm.came(batch.runs)
        self.staged += count
        self.size += size
        full = self._full
        if (
            self._waiting + self.size > BOUND
            or (full and any(each.channel in full for each in batch.portions))
            or (len(self._channels.making) > NEW_BOUND and any(each.channel.making for each in batch.portions))
        ):
            self._slowed = True
            self._bus.slow_down()

    def appended(self, portion: ChannelBatch, records: MessageRecordBuffer) -> None:
        """Takes note that a portion was appended to its channel's store."""
        channel = portion.channel
        portion.size = len(records.data)
        following = channel.messages.last + 1
        channel.fresh.append((following - len(portion.rows), following, records))
        portions = self._touched.get(channel)
        if portions is None:
            self._touched[channel] = [portion]
        else:
            portions.append(portion)

    def touch(self, channel: Channel) -> None:
        """Has a channel looked at by the next commit, though nothing was published: its store may have more to do."""
        self._touched.setdefault(channel, [])
        self._driver.commit_soon()

    def commit_soon(self) -> None:
        """Commits when what is there has been handed over, or after `io_sleep_time`."""
        if not self._sleep_time:
            self._driver.commit_soon()
        elif not self.sleeping:
            self._sleep = self._timers.after(self._sleep_time, self.commit)

    def commit(self, share: int = 0) -> None:
        """Flushes what is staged; what is stored then, or was under way and is now, is delivered and answered.

        Args:
            share: How long (ns) it may flush: the channels that are left are the next commit's, soon. 0 flushes all.
        """
        if self._committing:
            return
        if self._sleep is not None:
            self._timers.cancel(self._sleep)
            self._sleep = None
        batches, self._batches = self._batches, []
        self._committing = True
        self._now = self._clock.monotonic()
        self._newest, self._synced = None, False
        try:
            if self.lone:
                self._store_lone()
            self._flush_touched(share)
            self._complete()
            for number, batch in enumerate(batches):
                if self._touched and self._waits(batch):
                    # Those behind it wait as well: acknowledgements keep their order.
                    self._batches = batches[number:] + self._batches
                    break
                self._acknowledge(batch)
            self._relax()
            if self._synced:
                self._rhythm.committed(self._now)
        finally:
            self._committing = False

    def commit_later(self) -> bool:
        """Lets the commit that is due wait for those who are expected to publish at once, if there are any.

        Returns:
            Whether it waits.
        """
        if not self._touched or self.lone or not (until := self._rhythm.awaited()):
            return False
        self._driver.commit_by(until)
        return True

    def complete(self) -> None:
        """Goes on with what was under way and is stored now, without flushing more."""
        if not self._committing:
            self._committing = True
            self._now = self._clock.monotonic()
            try:
                self._complete()
            finally:
                self._committing = False

    def lost(self, channel: Channel, error: Exception | str, outcome: FlushOutcome = FlushOutcome.REFUSED) -> None:
        """Takes note that nothing of a channel is stored that is not visible, nor ever will be.

        Args:
            channel: The channel; its store says what it has.
            error: Why.
            outcome: Whether that is so or nobody can tell.
        """
        portions = self._touched.pop(channel, [])
        for each in self._under_way.pop(channel, ()):
            self._flushes.pop(each.flush, None)
            self._waiting -= each.size
            portions += each.portions
        if channel.making in self._channels.making:
            self.touch(channel)  # that begins with a flush
        channel.fresh.clear()
        channel.visible = channel.messages.last
        if self._audience is not None:
            self._audience.changed(channel)
        self._settle(portions, outcome, str(error).encode(errors="replace"))
        self._make_room(channel)
        self._relax()

    def flush_subscriptions(self, channel: Channel) -> Flush | None:
        """Flushes the subscriptions of a channel; a failure is logged. Returns the flush if it is under way."""
        try:
            flush = channel.store.flush()
        except StorageError as error:
            _tell(channel, str(error))
            return None
        if flush is not None:
            self._follow(flush, lambda flush: _tell(channel, flush.error))
        return flush

    def when_durable(self, flushes: Iterable[Flush | None], done: Callable[[str], None]) -> None:
        """Calls `done` when flushes of subscriptions are complete, at once if none is under way.

        Args:
            flushes: What `flush` has returned.
            done: Gets the error of one that failed, or nothing.
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
            self._follow(flush, completed)
        self._driver.commit_soon()

    def _follow(self, flush: Flush, action: Callable[[Flush], None]) -> None:
        self._followers.setdefault(flush, []).append(action)

    def _flush_touched(self, share: int) -> None:
        touched, self._touched = self._touched, {}
        self.staged = self.size = 0
        left = iter(touched.items())
        for channel, portions in left:
            self._flush(channel, portions)
            if share and self._clock.monotonic() - self._now > share:
                break
        if touched:
            self._flushed_later = self._newest is not None
        for channel, portions in left:
            self._touched[channel] = portions
            for portion in portions:
                self.staged += len(portion.rows)
                self.size += portion.size
        if self._touched:
            self._driver.commit_soon()

    def _store_lone(self) -> None:
        """Does for messages that came alone what `_stored` does for others."""
        lone, self.lone = self.lone, []
        now, audience = self._now, self._audience
        for channel, (_, sequence, _) in lone:
            channel.visible = sequence
            channel.last_activity = now
        self._serving.lone(lone, now)
        for channel, _ in lone:
            if channel.messages.limits.max_age_ns > 0:
                self._expiry.stored(channel)
            if audience is not None:
                audience.changed(channel)
            if channel.recorded:
                self.flush_subscriptions(channel)

    def _flush(self, channel: Channel, portions: list[ChannelBatch]) -> None:
        try:
            flush = channel.messages.flush()
        except StorageError as error:
            self._touched[channel] = portions
            self._failed(channel, error)
            return
        last = channel.messages.last
        if flush is None:
            self._stored(channel, last, portions)
            return
        self._newest = flush
        size = sum(portion.size for portion in portions)
        self._flushes[flush] = channel
        queue = self._under_way.setdefault(channel, deque())
        if queue and queue[-1].flush is flush:
            newest = queue[-1]
            newest.last = last
            newest.portions += portions
            newest.size += size
        else:
            queue.append(_PendingFlush(flush, last, portions, size))
        self._waiting += size
        if sum(each.size for each in queue) > CHANNEL_BOUND:
            self._full.add(channel)

    def _complete(self) -> None:
        """Goes on with what the store has completed."""
        for flush in self._store.completed():
            if (new := self._channels.making.pop(flush, None)) is not None:
                self._made(new, flush)
            for follow in self._followers.pop(flush, ()):
                follow(flush)
            channel = self._flushes.pop(flush, None)
            if channel is None:
                continue
            if flush is self._newest:
                self._synced = True
            if flush.outcome is not FlushOutcome.STORED:
                self._failed(channel, flush.error, flush.outcome)
                continue
            queue = self._under_way[channel]
            done = queue.popleft()
            if not queue:
                del self._under_way[channel]
            self._waiting -= done.size
            self._stored(channel, done.last, done.portions)
            self._make_room(channel)
        self._relax()

    def _made(self, channel: Channel, flush: Flush) -> None:
        """Goes on with a channel that the store has made, or without it if it could not."""
        if flush.outcome is _STORED:
            self._channels.made(channel)
        else:
            log.STREAMING.error("Creating channel %s failed: %s", quote(channel.name), flush.error)
            self.lost(channel, flush.error, flush.outcome)
            self._channels.forget(channel)

    def _stored(self, channel: Channel, last: int, portions: list[ChannelBatch]) -> None:
        """Delivers what is stored, and lets it be acknowledged."""
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
        # What the store says it has is stored; somebody else may have stored it.
        self._serving.channel(channel)

    def _make_room(self, channel: Channel) -> None:
        """A channel is not full any more when half of what may wait is done."""
        if channel in self._full and sum(e.size for e in self._under_way.get(channel, ())) <= CHANNEL_BOUND // 2:
            self._full.discard(channel)

    def _relax(self) -> None:
        """Lets those who publish go on when enough of what waited is done."""
        if (
            self._slowed
            and not self._full
            and self._waiting + self.size <= BOUND // 2
            and len(self._channels.making) <= NEW_BOUND // 2
        ):
            self._slowed = False
            self._bus.go_on()

    # Acknowledgements.

    def _settle(self, portions: list[ChannelBatch], outcome: FlushOutcome, error: bytes = b"") -> None:
        for portion in portions:
            portion.outcome, portion.error = outcome, error
        if self._owed:
            for portion in portions:
                heads, portion.heads = portion.heads, None
                for reply in heads or ():
                    self._release(reply)

    def _release(self, reply: bytes) -> None:
        """Sends what waits for a subject, up to what nobody knows yet."""
        queue = self._owed[reply]
        while queue:
            batch, portion, begin, end = queue[0]
            if portion.outcome is None:
                _wait_for(portion, reply)
                return
            queue.popleft()
            self._answer(batch, portion, reply, begin, end)
        del self._owed[reply]

    def _waits(self, batch: CommitBatch) -> bool:
        """Acknowledges what comes before those channels of a batch that are left to the next commit.

        Returns:
            Whether there are any.
        """
        flushed: list[ChannelBatch] = []
        left: list[int] = []
        for portion in batch.portions:
            if portion.outcome is None and portion.channel in self._touched:
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
        """Sends the acknowledgements of a batch, or lets them wait for their turn."""
        if not self._owed:
            for portion in batch.portions:
                if portion.outcome is not _STORED:
                    break
            else:
                _trace(batch.traced)
                if self._synced:
                    self._rhythm.acknowledged(batch.runs)
                self._bus.publish_runs(Role.SEND, batch.runs, batch.acks)
                return
        for portion, reply, begin, end in _pieces(batch):
            queue = self._owed.get(reply)
            if queue is not None:
                queue.append(_PendingAck(batch, portion, begin, end))
            elif portion.outcome is None:
                self._owed[reply] = deque([_PendingAck(batch, portion, begin, end)])
                _wait_for(portion, reply)
            else:
                self._answer(batch, portion, reply, begin, end)

    def _answer(self, batch: CommitBatch, portion: ChannelBatch, reply: bytes, begin: int, end: int) -> None:
        """Tells a publisher what became of its messages; nothing if nobody knows."""
        if portion.outcome is _STORED:
            _trace(batch.traced[begin - batch.row : end - batch.row])
            self._bus.publish_block(Role.SEND, reply, batch.acks, begin, end)
        elif portion.outcome is FlushOutcome.REFUSED:
            for row in range(begin, end):
                self._bus.publish(Role.SEND, reply, failed(batch.acks.payload(row), portion.error))


def _wait_for(portion: ChannelBatch, reply: bytes) -> None:
    """Has the acknowledgements to a subject go on when it is known what became of a portion."""
    if portion.heads is None:
        portion.heads = []
    portion.heads.append(reply)


def _trace(rows: Sequence[tuple[str, str, str]]) -> None:
    for names in rows:
        log.STREAMING.log(log.TRACE, "[Client:%s] Acking Publisher subj=%s guid=%s", *names)


def _tell(channel: Channel, error: str) -> None:
    if error:
        log.STREAMING.error("Unable to flush subscriptions of channel %s: %s", text(channel.name), error)


def _pieces(batch: CommitBatch) -> Iterator[tuple[ChannelBatch, bytes, int, int]]:
    """Yields the runs of a batch, divided where another portion begins."""
    portions = [*batch.portions, _LONE]
    if len(portions[0].rows) == len(batch.acks):
        for reply, begin, end in batch.runs:
            yield portions[0], reply, begin, end
        return
    owners = np.full(len(batch.acks), len(batch.portions))
    for number, portion in enumerate(batch.portions):
        owners[portion.rows] = number
    for reply, begin, end in batch.runs:
        if end - begin == 1:  # of many clients, which publish one message at a time
            yield portions[owners[begin]], reply, begin, end
            continue
        part = owners[begin:end]
        changes = (np.flatnonzero(part[1:] != part[:-1]) + (begin + 1)).tolist()
        for first, stop in pairwise([begin, *changes, end]):
            yield portions[int(owners[first])], reply, first, stop
