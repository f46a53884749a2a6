"""Redelivers messages that were not acknowledged in time, and pending messages that come before new ones.

Facts: streaming-protocol.md sections 16, 17, 18 and 23. A timer begins a round: the messages that are due then, in
order. Rounds of many subscriptions alternate in steps of a few hundred messages, and yield to all other work after
some milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.streaming.inflight import store_acked, store_sent
from broker.streaming.pending import TOLERANCE
from broker.streaming.publishes.fields import redelivered_block
from broker.streaming.state import ACTIVE, RESENDING

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer
    from broker.streaming.context import Context, Timer
    from broker.streaming.inflight import Acknowledgements, Sender
    from broker.streaming.state import ChannelSubscription

#: delay (ns) before the pending messages of a departed group member are redelivered (streaming-protocol.md section
#: 18.8)
_HANDOVER_DELAY: Final = 100_000_000
#: messages and bytes that are read at a time
_BLOCK: Final = 1024
_READ_SIZE: Final = 1 << 20
#: shortest delay (ns) of a timer, and the delay while a client is congested
_SOON: Final = 1_000_000
_PAUSE: Final = 20_000_000
#: time (ns) of rounds before other work, and messages of a step
SHARE = 3_000_000
STEP = 256
#: pending messages that are examined in a step
LOOKS: Final = 2048

_Found = tuple["MessageRecordBuffer", list[int], list[int]]


class Redelivery:
    """The redelivery timers of subscriptions."""

    def __init__(self, context: Context, sender: Sender, acknowledgements: Acknowledgements) -> None:
        self._clock = context.clock
        self._timers = context.timers
        self._bus = context.bus
        self._sender = sender
        self._acknowledgements = acknowledgements
        #: due messages of each round that are still to be sent, in reverse
        self._rounds: dict[ChannelSubscription, list[int]] = {}
        self._turn: Timer | None = None

    def arm(self, subscription: ChannelSubscription) -> None:
        """Starts a subscription's timer if it is not running."""
        if subscription.timer is None:
            subscription.timer = self._timers.after(subscription.ack_wait, partial(self._fire, subscription))

    def arm_soon(self, subscription: ChannelSubscription) -> None:
        """Makes the timer fire soon, for a subscription that got messages of a departed member."""
        time = self._clock.monotonic() + _HANDOVER_DELAY
        if subscription.timer is None or subscription.timer.time > time:
            self._timers.cancel(subscription.timer)
            subscription.timer = self._timers.at(time, partial(self._fire, subscription))

    def stop(self, subscription: ChannelSubscription) -> None:
        self._timers.cancel(subscription.timer)
        subscription.timer = None
        self._rounds.pop(subscription, None)

    def release(self, subscription: ChannelSubscription) -> bool:
        """Sends a bounded number of pending messages to a subscription whose new messages are held back.

        Returns True if no pending message is left, so that new messages may follow.
        """
        pending = subscription.pending
        if subscription.held is None:
            subscription.held = sorted(pending, reverse=True)
        turn = [sequence for sequence in _pop_first(subscription.held, _step_size(subscription)) if sequence in pending]
        now = self._clock.monotonic()
        if turn:
            if subscription.phase is RESENDING:
                self._send_copies(subscription, turn)
                pending.move([(sequence, now + subscription.ack_wait) for sequence in turn if sequence in pending])
            else:
                self._send_overdue(subscription, turn, now)
        if subscription.held:
            return False
        subscription.held = None
        subscription.advance(ACTIVE)
        subscription.settle()
        self._rearm(subscription, now, _SOON)
        return True

    def _fire(self, subscription: ChannelSubscription) -> None:
        subscription.timer = None
        self._rounds.setdefault(subscription, [])
        if self._turn is None:
            self._run_rounds()

    def _run_rounds(self) -> None:
        """Runs one step of each round in turn, until the time for rounds is over."""
        self._turn = None
        begin = self._clock.monotonic()
        while self._rounds:
            subscription = next(iter(self._rounds))
            left = self._rounds.pop(subscription)
            if self._step(subscription, left):
                self._rounds[subscription] = left
            if self._rounds and (now := self._clock.monotonic()) - begin >= SHARE:
                self._turn = self._timers.at(now, self._run_rounds)
                return

    def _step(self, subscription: ChannelSubscription, left: list[int]) -> bool:
        """Sends some messages of a round. Returns False at its end."""
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
        members = subscription.group.members if subscription.group is not None else ()
        if not subscription.started or all(self._bus.congested(each.inbox) for each in members or (subscription,)):
            # The due messages stay due until the subscription is started, or there is room.
            self._rearm(subscription, now, _PAUSE)
            return False
        horizon = now + TOLERANCE
        if not left:
            left += reversed(pending.due(horizon, LOOKS))
        # Some may have been acknowledged, or sent, since they were found.
        turn = [
            sequence
            for sequence in _pop_first(left, min(_step_size(subscription), STEP))
            if pending.get(sequence, horizon + 1) <= horizon
        ]
        if turn and subscription.group is None:
            self._send_copies(subscription, turn)
            self._postpone(subscription, turn, now)
        elif turn:
            self._redistribute(subscription, turn, now)
        if left or turn:
            return True
        self._rearm(subscription, now, _SOON)
        return False

    def _rearm(self, subscription: ChannelSubscription, now: int, pause: int) -> None:
        """Sets the timer to the next deadline, but not before a pause."""
        self.stop(subscription)
        if (earliest := subscription.pending.earliest(LOOKS)) is not None:
            subscription.timer = self._timers.at(max(earliest, now + pause), partial(self._fire, subscription))

    def _postpone(self, subscription: ChannelSubscription, sequences: list[int], now: int) -> None:
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
        """Sends messages with the flag and count of a redelivery."""
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
        """After a start: sets the deadlines, and sends the overdue messages (streaming-protocol.md section 23.5)."""
        # Timestamps are wall clock times, deadlines are monotonic.
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
                # A clock that was set back must not postpone redelivery forever.
                deadlines.append((sequence, min(deadline, now + subscription.ack_wait)))
            subscription.pending.move(deadlines)
            if overdue[0]:
                self._send_rows(subscription, block, *overdue)

    def _redistribute(self, subscription: ChannelSubscription, sequences: list[int], now: int) -> None:
        """Offers messages of a member to its group again (streaming-protocol.md section 18, rules 4 to 6)."""
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
        # This includes messages that could not be read.
        self._postpone(subscription, sequences, now)

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
        """Yields pending messages in the given order: blocks, the selected rows, and their sequences.

        Messages that are no longer in the store are acknowledged (rule 8). Unreadable ones are left out.
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
        if log.STREAMING.tracing:
            for sequence in gone:
                log.STREAMING.log(
                    log.TRACE,
                    "[Client:%s] Redelivery for subid=%d, skipping seq=%d",
                    subscription.client_name,
                    subscription.id,
                    sequence,
                )
        self._acknowledgements.drop(subscription, gone)


def _step_size(subscription: ChannelSubscription) -> int:
    """Returns the number of messages, about a block, that are sent between two checks for congestion."""
    messages = subscription.channel.messages
    average = messages.bytes // messages.count if messages.count else 0
    return max(1, min(_BLOCK, _READ_SIZE // max(average, 1)))


def _pop_first(reverse: list[int], count: int) -> list[int]:
    """Removes and returns the first entries of a reversed list."""
    taken = reverse[: -count - 1 : -1]
    del reverse[-count:]
    return taken


def _next_deadline(deadline: int, ack_wait: int, now: int) -> int:
    """Returns the deadline after a redelivery: ack wait after the last one, or after now if that is past as well."""
    following = deadline + ack_wait
    return following if following > now else now + ack_wait
