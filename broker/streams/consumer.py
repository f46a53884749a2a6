"""A consumer: its next message, its unacknowledged messages, and its redeliveries.

Facts: jetstream-server.md sections 11 and 14. Nothing is sent here: a delivery asks for the next message, sends it,
and reports that.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from broker.streams.redeliveries import Redeliveries
from broker.streams.requests import time_text
from broker.streams.streams_options import with_level
from stantools.nats.subjects import covers, matches_any
from stantools.nats.subjecttree import STEP
from stantools.streamfiles.meta import ConsumerState

if TYPE_CHECKING:
    from broker.streams.consumerconfig import ConsumerConfig
    from broker.streams.stream import Stream

#: a sequence above all others
_MAX_SEQUENCE: Final = 1 << 64
#: due time of messages that were pending when the server ended
_RESTORED: Final = 1
#: sequences looked up at a time
_LOOKAHEAD: Final = 1024

#: called with the name of an event and the members of its advisory
Event = Callable[[str, dict[str, Any]], None]


class UnackedDelivery(NamedTuple):
    """A message that was delivered and not acknowledged."""

    number: int  #: consumer sequence of its first delivery
    time: int  #: of its last delivery, in nanoseconds since 1970


class ConsumerStart(NamedTuple):
    """The first messages of a consumer."""

    position: int  #: first sequence after `last_per_subject`
    last_per_subject: OrderedDict[int, None]  #: last messages of their subjects, in ascending order


def find_start(stream: Stream, config: ConsumerConfig) -> Generator[None, None, ConsumerStart]:
    """Finds the first messages of a new consumer, in steps.

    Messages stored meanwhile come after them, except with the policies `last` and `new`.
    """
    contents = stream.store.contents
    start = contents.first
    last_per_subject: OrderedDict[int, None] = OrderedDict()
    match config.deliver_policy:
        case "last":
            wanted = yield from contents.make_filter(config.filters)
            start = contents.last_match(wanted) or contents.last + 1
            contents.release(wanted)
        case "new":
            start = contents.last + 1
        case "by_start_sequence":
            start = max(config.opt_start_seq, contents.first)
        case "by_start_time":
            start = contents.first_since(config.opt_start_time)
        case "last_per_subject":
            start = contents.last + 1
            found = array("q")
            for entry in contents.select(config.filters):
                if entry is None:
                    yield
                elif last := contents.last_before(start, entry):
                    found.append(last)
            for row, sequence in enumerate(np.sort(np.frombuffer(found, np.int64)).tolist() if found else (), 1):
                last_per_subject[sequence] = None
                if row % STEP == 0:
                    yield
            if not last_per_subject:
                start = contents.last_match(None) or start
    return ConsumerStart(max(start, 1), last_per_subject)


def earliest(*times: int) -> int:
    """Returns the earliest time, where 0 stands for none."""
    return min(filter(None, times), default=0)


class Consumer:
    """The state of a consumer, whose configuration is valid.

    It follows its stream as a `broker.streams.followers.StreamFollower`.

    Attributes:
        event: Called for each event that has an advisory.
        delivered: Consumer sequence and stream sequence of the last delivery.
        floor: Consumer sequence and stream sequence up to which every message is acknowledged.
    """

    def __init__(
        self, stream: Stream, config: ConsumerConfig, created: int, event: Event, start: ConsumerStart
    ) -> None:
        self.stream, self.config, self.created = stream, config, created
        self.delivered, self.floor = (0, 0), (0, 0)
        #: unacknowledged messages by stream sequence, in the order of their first deliveries
        self.pending: OrderedDict[int, UnackedDelivery] = OrderedDict()
        #: redeliveries by stream sequence; 1 as well for a message of a stream that deletes acknowledged messages, if
        #: it was given up after its only delivery
        self.redeliveries = Redeliveries()
        self._deleted_below = 0  #: the end of messages that may be gone although their redeliveries are kept
        self.changed = True  #: whether the state has changed since it was last stored
        self._paused = False
        self.event = event
        self._filter = stream.store.contents.filter(config.filters)
        self._redelivery_queue: OrderedDict[int, None] = OrderedDict()
        self._deadlines: list[tuple[int, int]] = []
        self._last_deadlines: list[tuple[int, int]] = []  #: of messages that are given up then
        #: The last messages of their subjects, delivered before `_position`.
        self._last_per_subject, self._position = start.last_per_subject, start.position
        self._lookahead: deque[int] = deque()
        self._active_delivery = self._active_ack = 0
        begin = next(iter(self._last_per_subject), self._position)
        self.delivered = self.floor = (0, begin - 1)
        self._count()

    @property
    def name(self) -> str:
        return self.config.name

    def release(self) -> None:
        """Releases the filter, which the stream's contents keep up to date."""
        self.stream.store.contents.release(self._filter)
        self._filter = None

    # Stored state

    def state(self) -> ConsumerState:
        floor = min(self.floor[0], self.delivered[0]), min(self.floor[1], self.delivered[1])
        if self.stream.config.retention != "limits":
            # At the next start, messages up to the floor are no longer needed.
            given_up = min((each for each in self.redeliveries if each not in self.pending), default=floor[1] + 1)
            if given_up <= floor[1]:
                floor = min(floor[0], given_up - 1), given_up - 1
        kept = {sequence: count for sequence, count in self.redeliveries.items() if sequence > floor[1]}
        return ConsumerState(floor, self.delivered, dict(self.pending), kept)

    def restore(self, state: ConsumerState) -> None:
        """Continues from a stored state."""
        self.delivered, self.floor = state.delivered, state.ack_floor
        self._last_per_subject.clear()
        self._lookahead.clear()
        self._position = max(self.delivered[1] + 1, self.stream.store.contents.first)
        self.redeliveries = Redeliveries(state.redelivered)
        for sequence, (number, time) in sorted(state.pending.items()):
            self.pending[sequence] = UnackedDelivery(number, time)
        for sequence in self.pending:
            # Messages due at the next delivery come in the order of their sequences.
            last = self._is_last_delivery(sequence)
            self._schedule(sequence, self._due_time(sequence) if last else _RESTORED)
        self.changed = False
        self.shrunk(_MAX_SEQUENCE)

    def reconfigure(self, config: ConsumerConfig, now: int) -> None:
        # What is due stays due.
        self._collect_due(now)
        self.stream.store.contents.release(self._filter)
        self._filter = self.stream.store.contents.filter(config.filters)
        self.config = config
        self._lookahead.clear()
        self._count()
        self._deadlines.clear()
        self._last_deadlines.clear()
        for sequence in self.pending:
            self._schedule(sequence, self._due_time(sequence))

    # Next messages

    def _count(self) -> None:
        contents = self.stream.store.contents
        self._num_left, self._counted_to = contents.count(self._filter, self._position), contents.last

    @property
    def num_pending(self) -> int:
        """Number of matching messages that were never delivered."""
        contents = self.stream.store.contents
        if contents.last > self._counted_to:
            begin = max(self._counted_to + 1, self._position)
            self._num_left += contents.count(self._filter, begin) if begin <= contents.last else 0
            self._counted_to = contents.last
        return self._num_left + len(self._last_per_subject)

    def next(self, now: int) -> tuple[int, int] | None:
        """Returns the sequence of the next message, and the number of this delivery of it; None if there is none."""
        self._paused = self.config.pause_until > now
        if self._paused:
            return None
        self._collect_due(now)
        limit = self.config.max_deliver
        while self._redelivery_queue:
            sequence = next(iter(self._redelivery_queue))
            if sequence in self.pending:
                count = self.redeliveries.get(sequence, 0) + 2
                if not 0 < limit < count:
                    return sequence, count
                self._give_up(sequence)
            del self._redelivery_queue[sequence]
        if self.full:
            return None
        contents = self.stream.store.contents
        while self._last_per_subject:
            sequence = next(iter(self._last_per_subject))
            if contents.locate(sequence) is not None:
                return sequence, 1
            del self._last_per_subject[sequence]
        while True:
            while self._lookahead:
                if contents.locate(self._lookahead[0]) is not None:
                    return self._lookahead[0], 1
                self._lookahead.popleft()
            if not self.num_pending:
                return None
            self._lookahead.extend(contents.matching(self._filter, self._position, _LOOKAHEAD))
            if not self._lookahead:
                self._num_left = 0
                return None

    def upcoming(self, now: int, limit: int) -> list[int]:
        """Returns up to `limit` sequences of next messages, all for their first delivery; some may be deleted.

        Empty if the next message is a redelivery or the last of its subject: `next` handles those.
        """
        found = self.next(now)
        if found is None or found[1] > 1 or self._last_per_subject:
            return []
        if self.config.ack_policy != "none" and self.config.max_ack_pending > 0:
            limit = min(limit, self.config.max_ack_pending - len(self.pending))
        return list(islice(self._lookahead, limit))

    @property
    def full(self) -> bool:
        """Whether the number of unacknowledged messages is at its limit."""
        return self.config.ack_policy != "none" and 0 < self.config.max_ack_pending <= len(self.pending)

    def sent_again(self, sequence: int, count: int, now: int) -> None:
        """Records the redelivery of the message that `next` returned."""
        self._active_delivery = now
        self.changed = True
        del self._redelivery_queue[sequence]
        self.redeliveries[sequence] = count - 1
        self.delivered = (self.delivered[0] + 1, self.delivered[1])
        self.pending[sequence] = UnackedDelivery(self.pending[sequence].number, now)
        self._schedule(sequence, self._due_time(sequence))

    def sent(self, sequences: Sequence[int], now: int) -> None:
        """Records the first delivery of messages that `next` or `upcoming` returned, from the first one on."""
        number = self.delivered[0] + 1
        self._active_delivery = now
        self.changed = True
        self._advance(sequences)
        self.delivered = (number + len(sequences) - 1, sequences[-1])
        if self.config.ack_policy == "none":
            self.floor = self.delivered
        else:
            backoff = self.config.backoff
            due = now + (backoff[0] if backoff else self.config.ack_wait)
            deadlines = self._last_deadlines if self.config.max_deliver == 1 else self._deadlines
            for row, sequence in enumerate(sequences, number):
                self.pending[sequence] = UnackedDelivery(row, now)
                heapq.heappush(deadlines, (due, sequence))

    def _advance(self, sequences: Sequence[int]) -> None:
        count, ahead = len(sequences), self._lookahead
        if self._last_per_subject:
            for sequence in sequences:
                del self._last_per_subject[sequence]
            return
        if count == len(ahead):
            ahead.clear()
        for _ in range(min(count, len(ahead))):
            ahead.popleft()
        self._num_left -= count
        self._position = sequences[-1] + 1

    def skip(self, sequence: int, count: int) -> None:
        """Skips a message that `next` returned and that cannot be delivered."""
        if count > 1:
            del self._redelivery_queue[sequence]
            self._remove_pending(sequence)
        else:
            self._advance((sequence,))
        self.changed = True

    # Redelivery

    def _due_time(self, sequence: int) -> int:
        backoff = self.config.backoff
        wait = self.config.ack_wait
        if backoff:
            wait = backoff[min(self.redeliveries.get(sequence, 0), len(backoff) - 1)]
        return self.pending[sequence].time + wait

    def _is_last_delivery(self, sequence: int) -> bool:
        """Returns whether an unacknowledged message is given up when its wait is over, without a further look at it.

        Servers count one delivery less once a message was delivered twice: then only `next` gives it up.
        """
        return 0 < self.config.max_deliver <= max(self.redeliveries.get(sequence, 0), 1)

    def _schedule(self, sequence: int, due: int) -> None:
        deadlines = self._last_deadlines if self._is_last_delivery(sequence) else self._deadlines
        heapq.heappush(deadlines, (due, sequence))

    def give_up(self, now: int) -> None:
        """Gives up messages whose last delivery was not acknowledged in time: also when paused, or without clients."""
        while self._last_deadlines and self._last_deadlines[0][0] <= now:
            _, sequence = heapq.heappop(self._last_deadlines)
            if sequence not in self.pending or sequence in self._redelivery_queue:
                continue
            if (due := self._due_time(sequence)) > now:
                self._schedule(sequence, due)
            else:
                self._give_up(sequence)

    def _give_up(self, sequence: int) -> None:
        """Ends the deliveries of a message, which stays in a stream that deletes acknowledged messages."""
        deliveries = self.redeliveries.get(sequence, 0) + 1
        del self.pending[sequence]
        if self.stream.config.retention != "limits":
            self.redeliveries[sequence] = max(deliveries - 1, 1)
        self.changed = True
        self.event("max_deliver", {"stream_seq": sequence, "deliveries": deliveries})

    def _collect_due(self, now: int) -> None:
        self.give_up(now)
        found: list[tuple[int, int]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            time, sequence = heapq.heappop(self._deadlines)
            if sequence in self.pending:
                due = self._due_time(sequence)
                if due > now:
                    heapq.heappush(self._deadlines, (due, sequence))
                else:
                    found.append((time if time == _RESTORED else due, sequence))
        # In the order in which they became due, even if no client asked for them meanwhile.
        for _, sequence in sorted(found):
            self._redelivery_queue.setdefault(sequence)

    @property
    def due(self) -> int:
        """Time (ns since 1970) of the earliest redelivery or of the end of the pause, or `end_due`; 0 for never."""
        next_delivery = self.config.pause_until if self._paused else self._first_due(self._deadlines)
        return earliest(next_delivery, self.end_due)

    @property
    def end_due(self) -> int:
        """Time (ns since 1970) at which the next message is given up; 0 for never."""
        return self._first_due(self._last_deadlines)

    def _first_due(self, deadlines: list[tuple[int, int]]) -> int:
        while deadlines and deadlines[0][1] not in self.pending:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else 0

    def acknowledge(self, sequence: int, number: int, now: int) -> list[int]:
        """Acknowledges a message, with policy `all` all before it as well. Returns the acknowledged sequences."""
        if self.config.ack_policy == "all":
            if not self.floor[1] < sequence <= self.delivered[1]:
                return []
            done = []
            while self.pending and (first := next(iter(self.pending))) <= sequence:
                done.append(first)
                del self.pending[first]
                self.redeliveries.pop(first, None)
            self.floor = (min(number, self.delivered[0]), sequence)
        else:
            if sequence in self.pending:
                self._remove_pending(sequence)
            elif 0 < sequence <= self.delivered[1]:
                # Work that was done late is done.
                self.redeliveries.pop(sequence, None)
            else:
                return []
            done = [sequence]
        self._active_ack = now
        self.changed = True
        return done

    def _remove_pending(self, sequence: int) -> None:
        """Removes an unacknowledged message; the floor moves if it was the first."""
        lowest = next(iter(self.pending)) == sequence
        del self.pending[sequence]
        self.redeliveries.pop(sequence, None)
        if not self.pending:
            self.floor = self.delivered
        elif lowest:
            following = next(iter(self.pending))
            self.floor = (self.pending[following].number - 1, following - 1)

    def refuse(self, sequence: int, delay: int, now: int) -> bool:
        """Schedules a redelivery after `delay` (ns). Returns whether the message was unacknowledged."""
        self._collect_due(now)
        waiting = self.pending.get(sequence)
        if waiting is None:
            return False
        self.changed = True
        if delay > 0:
            time = waiting.time + now + delay - self._due_time(sequence)
            self.pending[sequence] = UnackedDelivery(waiting.number, time)
            self._schedule(sequence, now + delay)
            self._redelivery_queue.pop(sequence, None)
        else:
            self._redelivery_queue.setdefault(sequence)
        return True

    def in_progress(self, sequence: int, now: int) -> None:
        """Restarts the acknowledgement wait of a message."""
        self._collect_due(now)
        if sequence in self.pending:
            self.pending[sequence] = UnackedDelivery(self.pending[sequence].number, now)

    @property
    def last_delivered(self) -> int:
        """The last sequence that was delivered."""
        return self.delivered[1]

    def was_given(self, sequence: int, number: int) -> bool:
        """Returns whether a message, whose subject has a number, was for it and was delivered."""
        return sequence <= self.delivered[1] and (self._filter is None or self._filter.has(number))

    def needs(self, sequence: int, number: int) -> bool:
        """Returns whether a message is still to be delivered or acknowledged; `number` is that of its subject."""
        if self._filter is not None and not self._filter.has(number):
            return False
        # What was given up stays until it is acknowledged.
        return sequence >= self._position or sequence in self.pending or sequence in self.redeliveries

    def wants(self, subject: bytes) -> bool:
        return matches_any(self.config.filters, subject)

    # Deletion from the stream

    def removed(self, sequence: int, number: int) -> None:
        if self._position <= sequence <= self._counted_to and (self._filter is None or self._filter.has(number)):
            self._num_left -= 1
        self._last_per_subject.pop(sequence, None)
        if sequence in self.pending:
            self._remove_pending(sequence)
            self.changed = True
        else:
            self.redeliveries.pop(sequence, None)

    def shrunk(self, below: int) -> None:
        contents = self.stream.store.contents
        self._lookahead.clear()
        # Both are in ascending order.
        last_per_subject, pending = (
            list(takewhile(below.__gt__, some)) for some in (self._last_per_subject, self.pending)
        )
        for sequence in last_per_subject:
            if contents.locate(sequence) is None:
                del self._last_per_subject[sequence]
        counted = below <= self._position
        self._position = max(self._position, contents.first)
        for sequence in pending:
            if contents.locate(sequence) is None:
                self._remove_pending(sequence)
        self._deleted_below = max(self._deleted_below, below)
        if self.stream.config.retention != "limits":
            self._forget_redeliveries()
        # Messages below its position are not in the count.
        if not counted:
            self._count()
        self.changed = True

    def purged(self, pattern: bytes, first: int) -> None:
        filters, contents = self.config.filters, self.stream.store.contents
        if pattern and not (filters and all(covers(pattern, each) for each in filters)):
            # Messages of its other filters are still there.
            if filters and not any(covers(each, pattern) or covers(pattern, each) for each in filters):
                return
            first = contents.first
        if self.delivered[1] < first - 1:
            # Unlike a limit, a purge moves the delivered position.
            self._position = max(self._position, first)
            self.delivered = (self.delivered[0], first - 1)
            self._lookahead.clear()
            self._count()
        if self.floor[1] < first:
            number = self.floor[0]
            for sequence in list(takewhile(first.__gt__, self.pending)):
                number = max(number, self.pending.pop(sequence).number)
            self.floor = (number, first - 1)
        self._forget_redeliveries()
        if self.pending:
            # Unlike an acknowledgement, a purge moves the floor over what was given up.
            sequence, first_pending = next(iter(self.pending.items()))
            self.floor = max(self.floor[0], first_pending.number - 1), max(self.floor[1], sequence - 1)
        else:
            self.floor = self.delivered
            if self.stream.config.retention == "limits":
                self.redeliveries = Redeliveries()
        self.changed = True

    def _forget_redeliveries(self) -> None:
        """Forgets redeliveries of messages that the stream no longer has."""
        contents = self.stream.store.contents
        self.redeliveries.forget_below(self._deleted_below, lambda each: contents.locate(each) is not None)
        self._deleted_below = 0

    def renew(self) -> None:
        self._filter = self.stream.store.contents.filter(self.config.filters)
        self.shrunk(_MAX_SEQUENCE)

    def info(self, now: int) -> dict[str, Any]:
        """Returns the members of an answer about this consumer, without those of its delivery."""

        def place(numbers: tuple[int, int], active: int) -> dict[str, Any]:
            found: dict[str, Any] = {"consumer_seq": numbers[0], "stream_seq": numbers[1]}
            return {**found, "last_active": time_text(active)} if active else found

        return {
            "stream_name": self.stream.name,
            "name": self.name,
            "created": time_text(self.created),
            "config": with_level(self.config.as_json(), self.config.level),
            "delivered": place(self.delivered, self._active_delivery),
            "ack_floor": place(self.floor, self._active_ack),
            "num_ack_pending": len(self.pending),
            "num_redelivered": 0 if self.config.max_deliver == 1 else len(self.redeliveries),
            "num_waiting": 0,
            "num_pending": self.num_pending,
            "ts": time_text(now),
            **self.pause(now),
        }

    def pause(self, now: int) -> dict[str, Any]:
        """Returns the members of an answer about its pause; empty if it is not paused."""
        left = self.config.pause_until - now
        return {"paused": True, "pause_remaining": left} if left > 0 else {}
