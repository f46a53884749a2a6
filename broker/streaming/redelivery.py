"""Sends messages again that were not acknowledged in time, or before all others.

Facts: streaming-protocol.md sections 16, 17, 18 and 23. A timer begins a round: all that is due then, in order. Rounds
of many subscriptions take turns, a few hundred messages each, and give way to everything else after some milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.streaming.inflight import store_acked, store_sent
from broker.streaming.pending import TOLERANCE
from broker.streaming.publishes.fields import redelivered_block
from broker.streaming.state import DeliveryHold

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer
    from broker.streaming.context import Context, Timer
    from broker.streaming.inflight import Acknowledgements, Sender
    from broker.streaming.state import ChannelSubscription

#: How soon what a member of a group leaves behind is sent to others (streaming-protocol.md section 18.8).
_LEFT_BEHIND: Final = 100_000_000
#: Messages and bytes that are looked up at a time.
_BLOCK: Final = 1024
_READ_SIZE: Final = 1 << 20
#: How soon a timer fires again at the earliest, and if a client does not keep up (ns).
_SOON: Final = 1_000_000
_PAUSE: Final = 20_000_000
#: How long (ns) rounds go on before others have their turn, and the messages of a round that come together.
SHARE: Final = 3_000_000
STEP: Final = 256
#: Pending messages that are looked at in a step, for those that are due.
LOOKS: Final = 2048

_Found = tuple["MessageRecordBuffer", list[int], list[int]]


class Redelivery:
    """The timers of subscriptions, and what happens when they fire."""

    def __init__(self, context: Context, sender: Sender, acknowledgements: Acknowledgements) -> None:
        self._clock = context.clock
        self._timers = context.timers
        self._bus = context.bus
        self._sender = sender
        self._acknowledgements = acknowledgements
        #: What was found due in each round and is still to be sent, in reverse.
        self._rounds: dict[ChannelSubscription, list[int]] = {}
        self._turn: Timer | None = None

    def arm(self, subscription: ChannelSubscription) -> None:
        """Starts a subscription's timer if it is not running."""
        if subscription.timer is None:
            subscription.timer = self._timers.after(subscription.ack_wait, partial(self._fire, subscription))

    def arm_soon(self, subscription: ChannelSubscription) -> None:
        """Has the timer of a subscription fire soon that got what another left behind."""
        time = self._clock.monotonic() + _LEFT_BEHIND
        if subscription.timer is None or subscription.timer.time > time:
            self._timers.cancel(subscription.timer)
            subscription.timer = self._timers.at(time, partial(self._fire, subscription))

    def stop(self, subscription: ChannelSubscription) -> None:
        """Stops a subscription's timer, and its round."""
        self._timers.cancel(subscription.timer)
        subscription.timer = None
        self._rounds.pop(subscription, None)

    def release(self, subscription: ChannelSubscription) -> bool:
        """Goes on with a subscription whose new messages are held back, a bounded amount.

        Returns:
            Whether all that is pending has been seen to, so that new messages may flow.
        """
        pending = subscription.pending
        if subscription.held is None:
            subscription.held = sorted(pending, reverse=True)
        turn = [sequence for sequence in _taken(subscription.held, _portion(subscription)) if sequence in pending]
        now = self._clock.monotonic()
        if turn:
            if subscription.hold is DeliveryHold.RESUMED:
                self._send_copies(subscription, turn)
                pending.move([(sequence, now + subscription.ack_wait) for sequence in turn if sequence in pending])
            else:
                self._send_overdue(subscription, turn, now)
        if subscription.held:
            return False
        subscription.held = None
        subscription.hold = DeliveryHold.NONE
        subscription.settle()
        self._rearm(subscription, now, _SOON)
        return True

    def _fire(self, subscription: ChannelSubscription) -> None:
        subscription.timer = None
        self._rounds.setdefault(subscription, [])
        if self._turn is None:
            self._take_turns()

    def _take_turns(self) -> None:
        """Goes on with rounds, one step each in turn, until it is the turn of others."""
        self._turn = None
        begin = self._clock.monotonic()
        while self._rounds:
            subscription = next(iter(self._rounds))
            left = self._rounds.pop(subscription)
            if self._step(subscription, left):
                self._rounds[subscription] = left
            if self._rounds and (now := self._clock.monotonic()) - begin >= SHARE:
                self._turn = self._timers.at(now, self._take_turns)
                return

    def _step(self, subscription: ChannelSubscription, left: list[int]) -> bool:
        """Sends some messages of a round. Returns whether it goes on; else there is a timer, if something is pending.

        Args:
            left: What was found due and is still to be sent, in reverse: if there is nothing, it is looked for.
        """
        client, pending = subscription.client, subscription.pending
        if client is None or not pending:
            return False
        if subscription.group is None and client.failed_heartbeat:
            log.STREAMING.debug(
                "[Client:%s] Skipping redelivery to subid=%d due to missed client heartbeat",
                subscription.client_name,
                subscription.id,
            )
            self.arm(subscription)
            return False
        now = self._clock.monotonic()
        if self._congested(subscription):
            # The others are overdue then, and come when there is room.
            self._rearm(subscription, now, _PAUSE)
            return False
        horizon = now + TOLERANCE
        if not left:
            left += reversed(pending.due(horizon, LOOKS))
        # Since they were found some may have been acknowledged, or sent.
        turn = [
            sequence
            for sequence in _taken(left, min(_portion(subscription), STEP))
            if pending.get(sequence, horizon + 1) <= horizon
        ]
        if turn and subscription.group is None:
            self._send_again(subscription, turn, now)
        elif turn:
            self._hand_out_again(subscription, turn, now)
        if left or turn:
            return True
        self._rearm(subscription, now, _SOON)
        return False

    def _congested(self, subscription: ChannelSubscription) -> bool:
        members = subscription.group.members if subscription.group is not None else ()
        return all(self._bus.congested(each.inbox) for each in members or (subscription,))

    def _rearm(self, subscription: ChannelSubscription, now: int, pause: int) -> None:
        """Sets the timer to the next deadline, but not before a pause."""
        self.stop(subscription)
        if (earliest := subscription.pending.earliest(LOOKS)) is not None:
            subscription.timer = self._timers.at(max(earliest, now + pause), partial(self._fire, subscription))

    def _send_again(self, subscription: ChannelSubscription, sequences: list[int], now: int) -> None:
        """Sends messages again to the subscription that has them pending, and moves their deadlines."""
        self._send_copies(subscription, sequences)
        self._put_off(subscription, sequences, now)

    def _put_off(self, subscription: ChannelSubscription, sequences: list[int], now: int) -> None:
        """Moves the deadlines of messages that are still pending."""
        pending, ack_wait = subscription.pending, subscription.ack_wait
        pending.move(
            [
                (sequence, _next_deadline(deadline, ack_wait, now))
                for sequence in sequences
                if (deadline := pending.get(sequence)) is not None
            ]
        )

    def _send_copies(self, subscription: ChannelSubscription, sequences: list[int]) -> None:
        """Sends messages again, marked as such and counted."""
        if self._bus.has_receiver(subscription.inbox):
            for block, rows, found in self._look_up(subscription, sequences):
                self._send_rows(subscription, block, rows, found)
        else:
            messages, counts = subscription.channel.messages, subscription.counts
            gone = [sequence for sequence in sequences if not messages.first <= sequence <= messages.last]
            counts.update((sequence, counts.get(sequence, 0) + 1) for sequence in sequences)
            if gone:
                self._drop(subscription, gone)

    def _send_overdue(self, subscription: ChannelSubscription, sequences: list[int], now: int) -> None:
        """After a start: sets the messages' deadlines, and sends what is overdue.

        Facts: streaming-protocol.md section 23.5.
        """
        # Their time is the wall's; from here on the monotonic one counts.
        shift = now - self._clock.wall() + subscription.ack_wait
        for block, rows, found in self._look_up(subscription, sequences):
            overdue: tuple[list[int], list[int]] = ([], [])
            deadlines: list[tuple[int, int]] = []
            for row, sequence in zip(rows, found, strict=True):
                deadline = int(block.timestamps[row]) + shift
                if deadline <= now + TOLERANCE:
                    deadline = _next_deadline(deadline, subscription.ack_wait, now)
                    overdue[0].append(row)
                    overdue[1].append(sequence)
                # A clock that was put back must not put redelivery off for ever.
                deadlines.append((sequence, min(deadline, now + subscription.ack_wait)))
            subscription.pending.move(deadlines)
            if overdue[0]:
                self._send_rows(subscription, block, *overdue)

    def _hand_out_again(self, subscription: ChannelSubscription, sequences: list[int], now: int) -> None:
        """Offers messages of a member to its group again, one by one.

        Facts: streaming-protocol.md section 18, rules 4 to 6.
        """
        group = subscription.group
        assert group is not None
        for block, rows, found in self._look_up(subscription, sequences):
            shares: dict[ChannelSubscription, tuple[list[int], list[int]]] = {}
            for row, sequence in zip(rows, found, strict=True):
                member = group.pick(force=True) if group.members else None
                if member is None or not member.started:
                    member = subscription
                if member is not subscription:
                    del subscription.pending[sequence]
                    member.pending[sequence] = now + member.ack_wait
                    member.settle()
                share = shares.setdefault(member, ([], []))
                share[0].append(row)
                share[1].append(sequence)
            moved = False
            for member, (share_rows, share_sequences) in shares.items():
                if member is not subscription:
                    moved = True
                    store_sent(member, share_sequences)
                    member.last_sent = max(member.last_sent, *share_sequences)
                    self.arm(member)
                self._send_rows(member, block, share_rows, share_sequences)
                if member is not subscription:
                    store_acked(subscription, share_sequences)
            if moved:
                self._acknowledgements.settle(subscription)
        # Also of what could not be read.
        self._put_off(subscription, sequences, now)

    def _send_rows(
        self, subscription: ChannelSubscription, block: MessageRecordBuffer, rows: list[int], sequences: list[int]
    ) -> None:
        known = subscription.counts
        counts = [known.get(sequence, 0) + 1 for sequence in sequences]
        if not self._bus.has_receiver(subscription.inbox):
            known.update(zip(sequences, counts, strict=True))
            return
        copies = redelivered_block(block, rows, counts)
        if self._sender.send(subscription, copies, 0, sequences, "Redelivering"):
            known.update(zip(sequences, counts, strict=True))

    def _look_up(self, subscription: ChannelSubscription, sequences: list[int]) -> Iterator[_Found]:
        """Yields pending messages in the order given: blocks, with the rows of them that are meant and their sequences.

        What the store does not have any more is acknowledged (rule 8). What cannot be read is left out.
        """
        messages = subscription.channel.messages
        gone: list[int] = []
        position = 0
        while position < len(sequences):
            first = sequences[position]
            stop = position + 1
            while stop < len(sequences) and stop - position < _BLOCK and sequences[stop] == sequences[stop - 1] + 1:
                stop += 1
            block = messages.read(first, stop - position, _READ_SIZE)
            there: list[int] = block.sequences.tolist()
            if not there:
                if messages.first <= first <= messages.last:
                    log.STREAMING.error(
                        "[Client:%s] Error getting message for redelivery subid=%d, seq=%d, err=%s",
                        subscription.client_name,
                        subscription.id,
                        first,
                        "it cannot be read",
                    )
                else:
                    gone.append(first)
                position += 1
                continue
            rows: list[int] = []
            found: list[int] = []
            row = 0
            while position < stop and sequences[position] <= there[-1]:
                while there[row] < sequences[position]:
                    row += 1
                if there[row] == sequences[position]:
                    rows.append(row)
                    found.append(there[row])
                else:
                    gone.append(sequences[position])
                position += 1
            if found:
                yield block, rows, found
        if gone:
            self._drop(subscription, gone)

    def _drop(self, subscription: ChannelSubscription, gone: list[int]) -> None:
        if log.STREAMING.isEnabledFor(log.TRACE):
            for sequence in gone:
                log.STREAMING.log(
                    log.TRACE,
                    "[Client:%s] Redelivery for subid=%d, skipping seq=%d",
                    subscription.client_name,
                    subscription.id,
                    sequence,
                )
        self._acknowledgements.drop(subscription, gone)


def _portion(subscription: ChannelSubscription) -> int:
    """Returns how many messages are sent before it is looked whether the client keeps up: about a block."""
    messages = subscription.channel.messages
    average = messages.bytes // messages.count if messages.count else 0
    return max(1, min(_BLOCK, _READ_SIZE // max(average, 1)))


def _taken(reverse: list[int], count: int) -> list[int]:
    """Takes the first of what is in reverse."""
    taken = reverse[: -count - 1 : -1]
    del reverse[-count:]
    return taken


def _next_deadline(deadline: int, ack_wait: int, now: int) -> int:
    """Returns the deadline after a redelivery: ackWait behind the last one, or behind now if that is past as well."""
    following = deadline + ack_wait
    return following if following > now else now + ack_wait
