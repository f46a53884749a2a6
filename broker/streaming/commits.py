"""Commits: staged messages are flushed, delivered and acknowledged, at once or when the store reports completion.

Facts: streaming-protocol.md section 11.

A commit flushes each channel with staged messages. The store completes a flush before it returns, or reports it
later (`backlog`). Stored messages are delivered, then acknowledged (`publisher_acks`). A commit runs to its end:
requests that need one in the middle of it, such as subscriptions that its flushes have made durable, are part of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.stores.interface import Flush, FlushOutcome, StorageError
from broker.streaming.backlog import StoreBacklog
from broker.streaming.commit_delay import CommitDelay
from broker.streaming.names import text
from broker.streaming.publisher_acks import STORED, ChannelBatch, CommitBatch, PublisherAcks
from broker.streaming.state import GONE, MAKING
from stantools.format.quoting import quote

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer, Record
    from broker.streaming.context import Context, Timer
    from broker.streaming.delivery import Dispatcher
    from broker.streaming.registry import Channels
    from broker.streaming.state import Channel

#: time (ns) that a commit flushes, and that ready subscriptions are served, before other work
SHARE: Final = 8_000_000


class CommitState(enum.Enum):
    """What the commit in progress does, or what the next one waits for."""

    IDLE = enum.auto()  #: there is no commit
    SLEEPING = enum.auto()  #: the next commit waits for more messages (`io_sleep_time`)
    FLUSHING = enum.auto()  #: single messages are delivered, channels are flushed
    SETTLING = enum.auto()  #: stored messages are delivered and acknowledged
    SYNCING = enum.auto()  #: the same, while a flush of this commit is in progress
    SYNCED = enum.auto()  #: the same; the commit has waited for its last flush

    # States are looked up for each commit; the hash of an enumeration is computed in Python otherwise.
    __hash__ = object.__hash__


# Constants for hot paths: looking up members of an enumeration is slow (Python 3.11).
IDLE: Final = CommitState.IDLE
SLEEPING: Final = CommitState.SLEEPING
FLUSHING: Final = CommitState.FLUSHING
SETTLING: Final = CommitState.SETTLING
SYNCING: Final = CommitState.SYNCING
SYNCED: Final = CommitState.SYNCED
_NEXT: Final = {
    # SETTLING alone if the due commit is delayed, but others have completed
    IDLE: (SLEEPING, FLUSHING, SETTLING),
    SLEEPING: (FLUSHING, SETTLING),
    # IDLE after an exception
    FLUSHING: (SETTLING, SYNCING, IDLE),
    SETTLING: (IDLE, SLEEPING),
    SYNCING: (SYNCED, IDLE),
    SYNCED: (IDLE,),
}


class Commits:
    """Flushes, delivers and acknowledges staged messages.

    Attributes:
        staged: Number of these messages.
        size: Their bytes.
        singles: The single messages (`Channel.single_store`) that are stored and not delivered yet.
        touched: Channels that the next commit flushes, with their messages.
        delay: The publishers that the next commit waits for.
    """

    def __init__(self, context: Context, channels: Channels, serving: Dispatcher) -> None:
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
        self.state: CommitState = IDLE
        self.staged = self.size = 0
        self._batches: list[CommitBatch] = []
        self.touched: dict[Channel, list[ChannelBatch]] = {}
        self.singles: list[tuple[Channel, Record]] = []
        self._backlog = StoreBacklog(context.bus, channels)
        self._acks = PublisherAcks(context.bus)
        self.delay = CommitDelay(context.clock)
        self._now = 0  # start of the commit
        self._last_flush: Flush | None = None  # the last one that a commit left to the store, if it left any
        self._sleep: Timer | None = None

    def _advance(self, state: CommitState) -> None:
        assert state in _NEXT[self.state], f"{self.state} does not become {state}"
        self.state = state

    def stage(self, batch: CommitBatch, count: int, size: int) -> None:
        """Adds a batch whose portions were appended to the stores or refused."""
        self._batches.append(batch)
        if self.delay.expects:
            self.delay.add(batch.runs)
        self.staged += count
        self.size += size
        self._backlog.staged(batch, self.size)

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

    @property
    def waits_for_disk(self) -> bool:
        """Whether the next commit may take as long as a disk."""
        return self._last_flush is not None and bool(self.touched)

    def _sleep_first(self) -> None:
        if self.state is not SLEEPING:
            self._advance(SLEEPING)
            self._sleep = self._timers.after(self._sleep_time, self.commit)

    def commit(self, share: int = 0) -> None:
        """Flushes staged messages, then delivers and acknowledges all messages that are stored by now.

        After `share` ns the remaining channels are left to the next commit, which follows soon; 0 flushes all.
        """
        state = self.state
        if state is SLEEPING:
            self._timers.cancel(self._sleep)
            self._sleep = None
        elif state is not IDLE:
            return
        batches, self._batches = self._batches, []
        if self.touched:
            self._last_flush = None
        self._advance(FLUSHING)
        self._now = self._clock.monotonic()
        try:
            if self.singles:
                self._serve_singles()
            self.staged = self.size = 0
            self._advance(SYNCING if self.touched and self._flush_touched(share) else SETTLING)
            if completed := self._store.completed():
                self._complete(completed)
            for number, batch in enumerate(batches):
                if self.touched and (flushed := batch.cut(self.touched)) is not None:
                    # Later batches wait as well: acknowledgements keep their order.
                    self._acknowledge(flushed)
                    self._batches = batches[number:] + self._batches
                    break
                self._acknowledge(batch)
            self._backlog.end_slowdown(self.size)
            if self.state is SYNCED:
                self.delay.committed(self._now)
        finally:
            self._advance(IDLE)

    def _acknowledge(self, batch: CommitBatch) -> None:
        if self._acks.send(batch) and self.state is SYNCED:
            self.delay.acknowledged(batch.runs)

    def postpone(self) -> bool:
        """Delays the due commit if it waits for more messages, or for publishers that publish again at once.

        Returns whether it is delayed; then the messages whose flushes are complete are delivered and acknowledged.
        """
        state = self.state
        if state is not SLEEPING:
            if not self.touched or self.singles or not (until := self.delay.deadline()):
                return False
            self._driver.commit_by(until)
        self._advance(SETTLING)
        self._now = self._clock.monotonic()
        try:
            self._complete(self._store.completed())
            self._backlog.end_slowdown(self.size)
        finally:
            self._advance(state)
        return True

    def lost(self, channel: Channel, error: Exception | str, outcome: FlushOutcome = FlushOutcome.REFUSED) -> None:
        """Gives up the messages of a channel that are not visible yet, after a storage error.

        Their publishers get the error. With the outcome UNKNOWN the messages may be stored, and the publishers get
        no answer.
        """
        portions = self.touched.pop(channel, []) + self._backlog.give_up(channel)
        if channel.state is MAKING:
            self.touch(channel)  # creating the channel begins with a flush
        channel.fresh.clear()
        channel.visible = channel.messages.last
        if self._audience is not None:
            self._audience.changed(channel)
        self._acks.settle(portions, outcome, str(error).encode(errors="replace"))
        self._backlog.end_slowdown(self.size)

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

    def _flush_touched(self, share: int) -> bool:
        """Flushes channels. Returns whether some of it was left to the store."""
        touched, self.touched = self.touched, {}
        left = iter(touched.items())
        for channel, portions in left:
            if channel.state is not GONE:
                self._flush(channel, portions)
            if share and self._clock.monotonic() - self._now > share:
                break
        for channel, portions in left:
            self.touched[channel] = portions
            for portion in portions:
                self.staged += len(portion.rows)
                self.size += portion.size
        if self.touched:
            self._driver.commit_soon()
        return self._last_flush is not None

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
        if self._backlog.add(channel, flush, last, portions):
            flush.followers.append(partial(self._flushed, channel))

    def _complete(self, completed: Sequence[Flush]) -> None:
        for flush in completed:
            for follow in flush.followers:
                follow(flush)

    def _flushed(self, channel: Channel, flush: Flush) -> None:
        if self._backlog.first(channel) is not flush:
            return  # its messages were given up
        if channel.state is GONE:
            self._backlog.give_up(channel)  # no messages were left
            return
        if flush is self._last_flush and self.state is SYNCING:
            self._advance(SYNCED)
        if flush.outcome is not STORED:
            self._failed(channel, flush.error, flush.outcome)
            return
        done = self._backlog.take(channel)
        self._stored(channel, done.last, done.portions)

    def _channel_created(self, channel: Channel, flush: Flush) -> None:
        if flush.outcome is STORED:
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
        if channel in self._backlog.flushes:
            channel.fresh = [each for each in channel.fresh if each[1] > last + 1]
        else:
            channel.fresh.clear()
        self._expiry.stored(channel)
        if self._audience is not None:
            self._audience.changed(channel)
        self.flush_subscriptions(channel)
        self._acks.settle(portions, STORED)

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


def _log_flush_error(channel: Channel, error: str) -> None:
    if error:
        log.STREAMING.error("Unable to flush subscriptions of channel %s: %s", text(channel.name), error)
