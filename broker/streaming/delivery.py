"""Sends new messages to subscriptions and queue groups, as many as they take.

Facts: streaming-protocol.md sections 14 and 18.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from broker import log
from broker.stores.interface import StorageError
from broker.streaming.names import text
from broker.streaming.ports import Role

if TYPE_CHECKING:
    from broker.blocks import Payloads, Records
    from broker.streaming.context import Context
    from broker.streaming.queues import QueueGroup
    from broker.streaming.subscriptions import Subscription

#: Blocks that one gets before it is another's turn.
_TURN: Final = 4
#: Messages of a block that are handed out to a group.
_GROUP_BLOCK: Final = 1024


class Sender:
    """What sending means, new or again: over the bus, and for the counters and the log."""

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._statistics = context.statistics

    def send(
        self, subscription: Subscription, block: Payloads, begin: int, end: int, sequences: Sequence[int], verb: str
    ) -> bool:
        """Sends rows of a block, whose sequences are given. Returns whether it worked."""
        if log.STREAMING.isEnabledFor(log.TRACE):
            for sequence in sequences:
                _trace(subscription, sequence, verb)
        if not self._bus.publish_block(Role.SEND, subscription.state.inbox, block, begin, end):
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
        statistics.out_bytes += int(block.sizes[begin:end].sum()) if end - begin > 1 else int(block.sizes[begin])
        return True

    def congested(self, subscription: Subscription) -> bool:
        """Tells whether much of what was sent has not been taken yet."""
        return self._bus.congested(subscription.state.inbox)


class Delivery:
    """Sends new messages.

    Args:
        context: The world.
        sender: Sends.
        arm: Starts the timer for redelivery of a subscription, if it is not running.
    """

    def __init__(self, context: Context, sender: Sender, arm: Callable[[Subscription], None]) -> None:
        self._clock = context.clock
        self._sender = sender
        self._arm = arm

    def to_subscription(self, subscription: Subscription) -> bool:
        """Sends what is there for a plain subscription, a bounded amount. Returns True if there may be more."""
        channel = subscription.channel
        for _ in range(_TURN):
            first = max(subscription.last_sent + 1, channel.messages.first)
            if first > channel.visible or not subscription.ready:
                return False
            room = subscription.room()
            if room <= 0:
                subscription.stalled = True
                return False
            block, begin, end = channel.read(first, room)
            if begin >= end or not self._send(subscription, block, begin, end):
                return False
            if self._sender.congested(subscription):
                return True
        return True

    def to_group(self, group: QueueGroup) -> bool:
        """Sends what is there for a queue group, a bounded amount. Returns True if there may be more."""
        channel = group.channel
        for _ in range(_TURN):
            first = max(group.last_sent + 1, channel.messages.first)
            if first > channel.visible or not group.members:
                return False
            if len(group.members) == 1:
                only = group.members[0]
                room = only.room()
                if room <= 0:
                    only.stalled = True
                if room <= 0 or not only.ready:
                    return False
                block, begin, end = channel.read(first, room)
                if begin >= end or not self._send(only, block, begin, end):
                    return False
                group.last_sent = only.last_sent
            else:
                block, begin, end = channel.read(first, _GROUP_BLOCK)
                if begin >= end or not self._hand_out(group, block, begin, end):
                    return False
        return True

    def _send(self, subscription: Subscription, block: Records, begin: int, end: int) -> bool:
        sequences = _sequences(block, begin, end)
        if not self._sender.send(subscription, block, begin, end, sequences, "Delivering"):
            return False
        deadline = self._clock.monotonic() + subscription.ack_wait
        subscription.pending.update(dict.fromkeys(sequences, deadline))
        self._sent(subscription, sequences)
        return True

    def _sent(self, subscription: Subscription, sequences: Sequence[int]) -> None:
        """Takes note of what was sent and is pending now (streaming-protocol.md section 14, rules 4 and 5)."""
        subscription.last_sent = max(subscription.last_sent, sequences[-1])
        store_sent(subscription, sequences)
        if subscription.timer is None:
            self._arm(subscription)
        subscription.stalled = len(subscription.pending) >= subscription.max_in_flight

    def _hand_out(self, group: QueueGroup, block: Records, begin: int, end: int) -> bool:
        """Sends rows of a block to the members, in order. Returns False if not all could be sent now."""
        now = self._clock.monotonic()
        group.tick(now)
        sequences: list[int] = block.sequences[begin:end].tolist()
        shares: dict[Subscription, list[int]] = {}
        member: Subscription | None = None  # who gets the rows from `start` on
        start = 0
        row = 0
        complete = True
        for row, sequence in enumerate(sequences):
            picked = group.pick(force=False)
            if picked is None or not picked.ready or picked.room() <= 0:
                if picked is not None:
                    picked.stalled = picked.room() <= 0
                complete = False
                break
            if picked is not member:
                if member is not None and not self._send_run(member, block, begin, start, row, sequences, shares):
                    return self._handed_out(group, shares, complete=False)
                member, start = picked, row
            picked.pending[sequence] = now + picked.ack_wait
            picked.stalled = len(picked.pending) >= picked.max_in_flight
        else:
            row += 1
        if member is not None and not self._send_run(member, block, begin, start, row, sequences, shares):
            complete = False
        return self._handed_out(group, shares, complete=complete)

    def _send_run(
        self,
        member: Subscription,
        block: Records,
        offset: int,
        start: int,
        stop: int,
        sequences: list[int],
        shares: dict[Subscription, list[int]],
    ) -> bool:
        run = sequences[start:stop]
        if self._sender.send(member, block, offset + start, offset + stop, run, "Delivering"):
            shares.setdefault(member, []).extend(run)
            return True
        for sequence in run:
            del member.pending[sequence]
        member.settle()
        return False

    def _handed_out(self, group: QueueGroup, shares: dict[Subscription, list[int]], *, complete: bool) -> bool:
        for member, sequences in shares.items():
            self._sent(member, sequences)
            group.last_sent = max(group.last_sent, sequences[-1])
        return complete


def _sequences(block: Records, begin: int, end: int) -> Sequence[int]:
    """Returns the sequences of some rows, at least one: mostly there are no gaps."""
    first, last = int(block.sequences[begin]), int(block.sequences[end - 1])
    if last - first == end - begin - 1:
        return range(first, last + 1)
    gaps: list[int] = block.sequences[begin:end].tolist()
    return gaps


def store_sent(subscription: Subscription, sequences: Sequence[int]) -> None:
    """Records that messages are pending. If that fails, a restart may deliver them again without the flag."""
    try:
        subscription.channel.store.sent(subscription.id, sequences)
    except StorageError as error:
        _not_recorded("Unable to add pending message to", subscription, sequences, error)


def store_acked(subscription: Subscription, sequences: Sequence[int]) -> None:
    """Records that messages are not pending any more. If that fails, a restart may deliver them again."""
    try:
        subscription.channel.store.acked(subscription.id, sequences)
    except StorageError as error:
        _not_recorded("Unable to persist ack for", subscription, sequences, error)


def _not_recorded(what: str, subscription: Subscription, sequences: Sequence[int], error: StorageError) -> None:
    log.STREAMING.error(
        "[Client:%s] %s subid=%d, subject=%s, seq=%d, err=%s",
        subscription.client_name,
        what,
        subscription.id,
        text(subscription.channel.name),
        sequences[0],
        error,
    )


def _trace(subscription: Subscription, sequence: int, verb: str) -> None:
    log.STREAMING.log(
        log.TRACE,
        "[Client:%s] %s msg to subid=%d, subject=%s, seq=%d",
        subscription.client_name,
        verb,
        subscription.id,
        text(subscription.channel.name),
        sequence,
    )
