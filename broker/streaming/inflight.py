"""Messages in flight: sent, recorded as pending, acknowledged; and the subscriptions that can be served again.

Facts: streaming-protocol.md sections 14 and 15.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from broker import log
from broker.stores.interface import StorageError
from broker.streaming.names import text
from broker.streaming.ports import Role
from broker.streaming.publishes.kernels import read_acks, read_lone_acks
from broker.streaming.requests import decode, is_control, requests
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol

if TYPE_CHECKING:
    from broker.streaming.context import Context, Timer
    from broker.streaming.registry import Channels
    from broker.streaming.state import ChannelSubscription, QueueGroup
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Handler, Payloads

#: pause (ns) of congested subscriptions
_PAUSE: Final = 5_000_000


class DeliveryQueue:
    """The subscriptions and groups to serve, each once, in order."""

    def __init__(self, context: Context) -> None:
        self._driver = context.driver
        self._timers = context.timers
        self.units: dict[ChannelSubscription | QueueGroup, None] = {}  #: subscriptions and groups to serve
        self._paused: dict[ChannelSubscription | QueueGroup, None] = {}
        self._pause: Timer | None = None

    def __len__(self) -> int:
        return len(self.units)

    def add(self, subscription: ChannelSubscription) -> None:
        """Queues a subscription, or the group that it is a member of."""
        self.requeue(subscription.group or subscription)

    def requeue(self, unit: ChannelSubscription | QueueGroup) -> None:
        self.units[unit] = None
        self._driver.commit_soon()

    def queue_first(self, units: Iterable[ChannelSubscription | QueueGroup]) -> None:
        """Queues subscriptions and groups before all others."""
        first = dict.fromkeys(units)
        if first:
            self.units = first | self.units
            self._driver.commit_soon()

    def queue_after_pause(self, unit: ChannelSubscription | QueueGroup) -> None:
        """Queues a subscription or group after a pause."""
        self._paused[unit] = None
        if self._pause is None:
            self._pause = self._timers.after(_PAUSE, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self.units.update(self._paused)
        self._paused.clear()
        self._driver.commit_soon()

    def take(self) -> list[ChannelSubscription | QueueGroup]:
        units = list(self.units)
        self.units.clear()
        return units


class Sender:
    """Sends messages, new or again, and updates counters and log."""

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._statistics = context.statistics

    def send(
        self, subscription: ChannelSubscription, block: Payloads, begin: int, sequences: Sequence[int], verb: str
    ) -> bool:
        """Sends consecutive rows of a block from `begin` on, one per sequence. Returns False if not connected."""
        if log.STREAMING.tracing:
            for sequence in sequences:
                _trace(subscription, sequence, verb)
        end = begin + len(sequences)
        if not self._bus.publish_block(Role.SEND, subscription.inbox, block, begin, end):
            log.STREAMING.error(
                "[Client:%s] Failed sending to subid=%d, subject=%s, seq=%d, err=%s",
                subscription.client_name,
                subscription.id,
                text(subscription.channel.name),
                sequences[0],
                "not connected",
            )
            return False
        statistics = self._statistics
        statistics.out_msgs += end - begin
        statistics.out_bytes += block.size(begin, end)
        return True


class Acknowledgements:
    """Handles acknowledgements, and queues subscriptions that have room again."""

    def __init__(self, context: Context, channels: Channels, ready: DeliveryQueue) -> None:
        self._clock = context.clock
        self._channels = channels
        self._ready = ready

    def handler(self, subscription: ChannelSubscription) -> Handler:
        return AckInbox(self, subscription)

    def take_each(self, buffer: Buffer, frames: Frames, handlers: Sequence[AckInbox], rows: Sequence[int]) -> None:
        """Handles one acknowledgement per subscription. Those of groups, and unusual ones, take the general path."""
        if log.STREAMING.tracing:
            sequences: list[int | None] = [None] * len(rows)
        else:
            sequences = read_lone_acks(buffer, frames, rows, [inbox.channel.name for inbox in handlers])
        for inbox, row, sequence in zip(handlers, rows, sequences, strict=True):
            subscription = inbox.subscription
            if sequence is None or subscription.group is not None:
                inbox(buffer, frames, row, row + 1)
                continue
            if subscription.pending.pop(sequence, None) is not None:
                if subscription.counts:
                    subscription.counts.pop(sequence, None)
                if inbox.channel.recorded:
                    store_acked(subscription, [sequence])
            if subscription.stalled:
                self.settle(subscription)

    def acknowledge(self, subscription: ChannelSubscription, sequences: list[int]) -> None:
        """Handles acknowledgements from a subscription's ack inbox.

        A message that is not pending there may be pending at another member of the group (rule 4); otherwise the
        acknowledgement has no effect.
        """
        if log.STREAMING.tracing:
            for sequence in sequences:
                log.STREAMING.log(
                    log.TRACE,
                    "[Client:%s] Processing ack for subid=%d, subject=%s, seq=%d",
                    subscription.client_name,
                    subscription.id,
                    text(subscription.channel.name),
                    sequence,
                )
        done = subscription.forget(sequences)
        if done:
            store_acked(subscription, done)
            if subscription.group is not None:
                subscription.group.acknowledged(subscription, len(done), self._clock.monotonic())
        if subscription.group is not None and len(done) < len(sequences):
            for member in subscription.group.members:
                if member is not subscription and (moved := member.forget(sequences)):
                    store_acked(member, moved)
                    self.settle(member)
        if subscription.stalled:
            self.settle(subscription)

    def drop(self, subscription: ChannelSubscription, sequences: list[int]) -> None:
        """Acknowledges messages that are no longer in the store (streaming-protocol.md section 16.8)."""
        if done := subscription.forget(sequences):
            store_acked(subscription, done)
        self.settle(subscription)

    def settle(self, subscription: ChannelSubscription) -> None:
        """Ends stalling if there is room again, and queues the subscription then."""
        if subscription.stalled and subscription.settle():
            self._ready.add(subscription)

    def acknowledge_undecoded(self, subscription: ChannelSubscription, payload: bytes) -> None:
        """Handles an acknowledgement that the kernel does not decode."""
        try:
            ack = decode(protocol.Ack, payload)
        except gogo.DecodeError as error:
            if not is_control(payload):
                log.STREAMING.error("Unable to unmarshal Ack: %s", error)
            return
        if ack.subject == subscription.channel.name:
            self.acknowledge(subscription, [ack.sequence])
        elif self._channels.get(ack.subject) is None:
            log.STREAMING.error("Unable to process ack seq=%d, channel %s not found", ack.sequence, text(ack.subject))


class AckInbox:
    __slots__ = ("_acknowledgements", "channel", "subscription")

    def __init__(self, acknowledgements: Acknowledgements, subscription: ChannelSubscription) -> None:
        self._acknowledgements = acknowledgements
        self.subscription, self.channel = subscription, subscription.channel

    def __call__(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        subscription = self.subscription
        while begin < end:
            sequences, begin = read_acks(buffer, frames, begin, end, self.channel.name)
            if sequences:
                self._acknowledgements.acknowledge(subscription, sequences)
            if begin < end:
                request = next(requests(buffer, frames, begin, end))
                self._acknowledgements.acknowledge_undecoded(subscription, request.payload)
                begin += 1


def store_sent(subscription: ChannelSubscription, sequences: Sequence[int]) -> None:
    """Records messages as pending. After a failure, a restart may redeliver them without the flag."""
    try:
        subscription.channel.store.sent(subscription.id, sequences)
    except StorageError as error:
        _log_store_error("Unable to add pending message to", subscription, sequences, error)


def store_acked(subscription: ChannelSubscription, sequences: Sequence[int]) -> None:
    """Records messages as acknowledged. After a failure, a restart may redeliver them."""
    try:
        subscription.channel.store.acked(subscription.id, sequences)
    except StorageError as error:
        _log_store_error("Unable to persist ack for", subscription, sequences, error)


def _log_store_error(
    what: str, subscription: ChannelSubscription, sequences: Sequence[int], error: StorageError
) -> None:
    log.STREAMING.error(
        "[Client:%s] %s subid=%d, subject=%s, seq=%d, err=%s",
        subscription.client_name,
        what,
        subscription.id,
        text(subscription.channel.name),
        sequences[0],
        error,
    )


def _trace(subscription: ChannelSubscription, sequence: int, verb: str) -> None:
    log.STREAMING.log(
        log.TRACE,
        "[Client:%s] %s msg to subid=%d, subject=%s, seq=%d",
        subscription.client_name,
        verb,
        subscription.id,
        text(subscription.channel.name),
        sequence,
    )
