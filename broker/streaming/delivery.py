"""Sends new messages to subscriptions and queue groups, and decides which of them is served next.

Facts: streaming-protocol.md sections 14 and 18.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from broker import log
from broker.streaming.inflight import store_sent
from broker.streaming.ports import Role
from broker.streaming.publishes.fields import REDELIVERED_SIZE
from broker.streaming.state import ACTIVE, RESCHEDULING, RESENDING, ChannelSubscription
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.quoting import quote

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer, Record
    from broker.streaming.context import Context
    from broker.streaming.inflight import DeliveryQueue, Sender
    from broker.streaming.redelivery import Redelivery
    from broker.streaming.state import Channel, QueueGroup

#: Limits of one turn: blocks and time (ns). A block is sent completely.
_TURN: Final = 4
_TURN_TIME: Final = 4_000_000
#: messages of a block that are distributed to a group
_GROUP_BLOCK: Final = 512


class MessageDelivery:
    def __init__(self, context: Context, sender: Sender, redelivery: Redelivery) -> None:
        self._clock = context.clock
        self._bus = context.bus
        self._sender = sender
        self._arm = redelivery.arm
        self._too_large: dict[bytes, int] = {}  # sequence of the last logged message per channel

    def to_subscription(self, subscription: ChannelSubscription) -> bool:
        """Sends a block of new messages to a plain subscription. Returns True if there may be more to send now."""
        channel = subscription.channel
        if subscription.last_sent >= channel.visible or subscription.phase is not ACTIVE:
            return False
        room = subscription.max_in_flight - len(subscription.pending)
        if room <= 0:
            subscription.stalled = True
            return False
        block, begin, sequences = self._read(channel, subscription.last_sent + 1, room)
        if not sequences or not self._send(subscription, block, begin, sequences):
            return False
        return subscription.last_sent < channel.visible and not subscription.stalled

    def to_group(self, group: QueueGroup) -> bool:
        """Sends a block of new messages to a queue group. Returns True if there may be more to send now."""
        channel = group.channel
        if group.last_sent >= channel.visible or not group.members:
            return False
        if len(group.members) == 1:
            only = group.members[0]
            room = only.room()
            if room <= 0:
                only.stalled = True
            if room <= 0 or only.phase is not ACTIVE:
                return False
            block, begin, sequences = self._read(channel, group.last_sent + 1, room)
            if not sequences or not self._send(only, block, begin, sequences):
                return False
            group.last_sent = only.last_sent
        else:
            block, begin, sequences = self._read(channel, group.last_sent + 1, _GROUP_BLOCK)
            if not sequences or not self._distribute(group, block, begin, sequences):
                return False
        return group.last_sent < channel.visible

    def _read(self, channel: Channel, first: int, count: int) -> tuple[MessageRecordBuffer, int, Sequence[int]]:
        """Reads as `Channel.read` does, up to the first message too large for the bus."""
        block, begin, sequences = channel.read(first, count)
        max_size = self._bus.deliverable
        if len(block.data) <= max_size or not sequences:
            return block, begin, sequences
        sizes = block.sizes[begin : begin + len(sequences)]
        large = int((sizes > max_size).argmax())
        if sizes[large] <= max_size:
            return block, begin, sequences
        sequence = sequences[large]
        if self._too_large.get(channel.name) != sequence:
            self._too_large[channel.name] = sequence
            log.STREAMING.error(
                "Channel %s: message %d cannot be delivered, nor can those behind it: it is sent as %d bytes, and "
                "max_payload of the NATS server is %d. Raise that to %d or more",
                quote(channel.name),
                sequence,
                sizes[large],
                max_size,
                sizes[large] + REDELIVERED_SIZE,
            )
        return block, begin, sequences[:large]

    def _send(
        self, subscription: ChannelSubscription, block: MessageRecordBuffer, begin: int, sequences: Sequence[int]
    ) -> bool:
        if not self._sender.send(subscription, block, begin, sequences, "Delivering"):
            return False
        deadline = self._clock.monotonic() + subscription.ack_wait
        subscription.pending.update(dict.fromkeys(sequences, deadline))
        self.note_sent(subscription, sequences)
        return True

    def note_sent(self, subscription: ChannelSubscription, sequences: Sequence[int]) -> None:
        """Updates a subscription after a delivery (streaming-protocol.md section 14, rules 4 and 5)."""
        if sequences[-1] > subscription.last_sent:
            subscription.last_sent = sequences[-1]
        if subscription.channel.recorded:
            store_sent(subscription, sequences)
        if subscription.timer is None:
            self._arm(subscription)
        subscription.stalled = len(subscription.pending) >= subscription.max_in_flight

    def _distribute(self, group: QueueGroup, block: MessageRecordBuffer, begin: int, sequences: Sequence[int]) -> bool:
        """Distributes rows of a block to the members, in order. Returns False if not all could be sent now."""
        now = self._clock.monotonic()
        group.tick(now)
        shares: dict[ChannelSubscription, list[int]] = {}
        member: ChannelSubscription | None = None  # gets the rows from `start` on
        start = 0
        row = 0
        complete = True
        for row, sequence in enumerate(sequences):
            picked = group.pick(force=False)
            if picked is None or picked.phase is not ACTIVE or picked.room() <= 0:
                if picked is not None:
                    picked.stalled = picked.room() <= 0
                complete = False
                break
            if picked is not member:
                if member is not None and not self._send_run(member, block, begin, start, row, sequences, shares):
                    return self._note_distribution(group, shares, complete=False)
                member, start = picked, row
            picked.pending[sequence] = now + picked.ack_wait
            picked.stalled = len(picked.pending) >= picked.max_in_flight
        else:
            row += 1
        if member is not None and not self._send_run(member, block, begin, start, row, sequences, shares):
            complete = False
        return self._note_distribution(group, shares, complete=complete)

    def _send_run(
        self,
        member: ChannelSubscription,
        block: MessageRecordBuffer,
        offset: int,
        start: int,
        stop: int,
        sequences: Sequence[int],
        shares: dict[ChannelSubscription, list[int]],
    ) -> bool:
        run = sequences[start:stop]
        if self._sender.send(member, block, offset + start, run, "Delivering"):
            shares.setdefault(member, []).extend(run)
            return True
        for sequence in run:
            del member.pending[sequence]
        member.settle()
        return False

    def _note_distribution(
        self, group: QueueGroup, shares: dict[ChannelSubscription, list[int]], *, complete: bool
    ) -> bool:
        for member, sequences in shares.items():
            self.note_sent(member, sequences)
            group.last_sent = max(group.last_sent, sequences[-1])
        return complete


class Dispatcher:
    """Serves subscriptions: redeliveries that hold back new messages come first, then new messages.

    A congested subscription pauses. Otherwise a client with many messages in flight, or large ones, would be cut off
    as a slow consumer, however fast it reads.
    """

    def __init__(self, context: Context, ready: DeliveryQueue, sender: Sender, redelivery: Redelivery) -> None:
        self._ready = ready
        self._clock = context.clock
        self._bus = context.bus
        self._congested = context.bus.congested
        self._statistics = context.statistics
        self._delivery = MessageDelivery(context, sender, redelivery)
        self._redelivery = redelivery

    def run(self, share: int) -> None:
        """Serves each ready subscription or group once, a bounded amount. After `share` ns the others must wait."""
        units = iter(self._ready.take())
        begin = self._clock.monotonic()
        for unit in units:
            self._serve(unit)
            if self._clock.monotonic() - begin > share:
                break
        self._ready.queue_first(units)

    def channel(self, channel: Channel) -> None:
        """Serves all subscriptions of a channel in the order of streaming-protocol.md section 14.9."""
        first = channel.fresh[0][0] if channel.fresh else 0
        begin = self._clock.monotonic()
        for subscription in tuple(channel.plain.values()):
            self._serve_stored(subscription, first, begin)
        for group in tuple(channel.groups.values()):
            if group.members:
                self._serve_stored(group, first, begin)

    def _serve_stored(self, unit: ChannelSubscription | QueueGroup, first: int, begin: int) -> None:
        """Serves a subscription or group in a commit. In a long one, units without older messages wait for `run`."""
        if unit.last_sent + 1 < first and self._clock.monotonic() - begin > _TURN_TIME:
            self._ready.requeue(unit)
        else:
            self._serve(unit)

    def serve_singles(self, messages: Iterable[tuple[Channel, Record]], now: int) -> None:
        """Makes single messages visible, one for each channel, and serves the subscriptions.

        Plain subscriptions that lack only this message and have room for it get it in one call of the bus; the
        others are served one by one. `now` is monotonic (ns).
        """
        parcels: list[tuple[bytes, bytes]] = []
        receivers: list[ChannelSubscription] = []
        for channel, (data, sequence, _) in messages:
            channel.visible = sequence
            channel.last_activity = now
            for subscription in tuple(channel.plain.values()):
                pending = subscription.pending
                if (
                    subscription.last_sent + 1 == sequence
                    and subscription.phase is ACTIVE
                    and len(pending) < subscription.max_in_flight
                    and channel.messages.first <= sequence
                ):
                    pending[sequence] = now + subscription.ack_wait
                    subscription.last_sent = sequence
                    parcels.append((subscription.inbox, data[RECORD_HEADER_SIZE:]))
                    receivers.append(subscription)
                else:
                    self._hand_over(parcels, receivers)
                    self._serve_stored(subscription, sequence, now)
            if channel.groups:
                self._hand_over(parcels, receivers)
                for group in tuple(channel.groups.values()):
                    if group.members:
                        self._serve_stored(group, sequence, now)
        if parcels:
            self._hand_over(parcels, receivers)

    def _hand_over(self, parcels: list[tuple[bytes, bytes]], receivers: list[ChannelSubscription]) -> None:
        """Sends the collected messages, each the last pending one of its receiver, and clears both lists."""
        if not parcels:
            return
        late = self._bus.publish_each(Role.SEND, parcels)
        for place in reversed(late):
            subscription = receivers.pop(place)
            del parcels[place]
            subscription.last_sent -= 1
            del subscription.pending[subscription.last_sent + 1]
            self._serve(subscription)
        self._statistics.out_msgs += len(parcels)
        size = 0
        for _, payload in parcels:
            size += len(payload)
        self._statistics.out_bytes += size
        note = self._delivery.note_sent
        for subscription in receivers:
            note(subscription, (subscription.last_sent,))
        parcels.clear()
        receivers.clear()

    def _serve(self, unit: ChannelSubscription | QueueGroup) -> None:
        """Sends a bounded number of new messages, unless redeliveries hold them back."""
        if isinstance(unit, ChannelSubscription):
            if self._congested(unit.inbox):
                self._ready.queue_after_pause(unit)
                return
            held = unit.phase is not ACTIVE and not self._release(unit)
        else:
            # A group pauses only if all of its members are congested.
            if unit.members and all(self._congested(member.inbox) for member in unit.members):
                self._ready.queue_after_pause(unit)
                return
            held = bool([member for member in unit.members if not self._release(member)])
        if not held:
            end = self._clock.monotonic() + _TURN_TIME
            for _ in range(_TURN):
                if isinstance(unit, ChannelSubscription):
                    if not self._delivery.to_subscription(unit):
                        return
                    if self._congested(unit.inbox):
                        break
                elif not self._delivery.to_group(unit):
                    return
                if self._clock.monotonic() > end:
                    break
        self._ready.requeue(unit)

    def _release(self, subscription: ChannelSubscription) -> bool:
        if subscription.phase is RESENDING or subscription.phase is RESCHEDULING:
            return self._redelivery.release(subscription)
        return True
