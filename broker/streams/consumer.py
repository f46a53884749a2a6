"""A consumer: which message is next, which ones wait for their acknowledgement, which ones come again.

Facts: jetstream-server.md sections 11 and 14. The rules here send nothing: they say what is to be sent.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from broker.streams.requests import time_text
from broker.streams.streams_options import with_level
from stantools.nats.subjects import covers, matches_any
from stantools.nats.subjecttree import STEP
from stantools.streamfiles.meta import ConsumerState

if TYPE_CHECKING:
    from broker.streams.consumerconfig import ConsumerConfig
    from broker.streams.stream import Stream

#: Above all sequences.
_ALL: Final = 1 << 64
#: Stands for the due time of messages that waited when the server ended.
_RESTORED: Final = 1
#: Sequences that are looked up at a time.
_AHEAD: Final = 1024

#: Gets the name of an event and what is to be said of it.
Event = Callable[[str, dict[str, Any]], None]


class UnackedDelivery:
    """A message that was delivered and not acknowledged.

    Attributes:
        number: Consumer sequence of its first delivery.
        time: When it was delivered last, in nanoseconds since 1970.
    """

    __slots__ = ("number", "time")

    def __init__(self, number: int, time: int) -> None:
        self.number, self.time = number, time


class ConsumerStart(NamedTuple):
    """Where a consumer begins."""

    position: int  #: the first sequence, after those
    lasts: OrderedDict[int, None]  #: the last messages of subjects, rising


def find_start(stream: Stream, config: ConsumerConfig) -> Generator[None, None, ConsumerStart]:
    """Finds out where a new consumer begins, as work that can be interrupted.

    Messages that are stored meanwhile come after its beginning, except with the policies `last` and `new`.
    """
    contents = stream.store.contents
    start = contents.first
    lasts: OrderedDict[int, None] = OrderedDict()
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
                lasts[sequence] = None
                if row % STEP == 0:
                    yield
            if not lasts:
                start = contents.last_match(None) or start
    return ConsumerStart(max(start, 1), lasts)


class Consumer:
    """The state of a consumer.

    Args:
        config: Its configuration, checked.
        created: When it was made, in nanoseconds since 1970.
        start: Where it begins.
        event: Called for what others may want to know.

    Attributes:
        event: The same.
        delivered: Consumer sequence and stream sequence of the last delivery.
        floor: Everything up to these is acknowledged.
    """

    def __init__(
        self, stream: Stream, config: ConsumerConfig, created: int, event: Event, start: ConsumerStart
    ) -> None:
        self.stream, self.config, self.created = stream, config, created
        self.delivered, self.floor = (0, 0), (0, 0)
        #: What is not acknowledged, by stream sequence, which is the order of first deliveries.
        self.pending: OrderedDict[int, UnackedDelivery] = OrderedDict()
        self.repeats: dict[int, int] = {}  #: deliveries beyond the first, by stream sequence
        self.changed = True  #: something is to be kept
        self._paused = False
        self.event = event
        self._filter = stream.store.contents.filter(config.filters)
        self._again: OrderedDict[int, None] = OrderedDict()
        self._due: list[tuple[int, int]] = []
        #: The last messages of subjects, which come before `_position`.
        self._lasts, self._position = start.lasts, start.position
        self._ahead: deque[int] = deque()
        self._active_delivery = self._active_ack = 0
        begin = next(iter(self._lasts), self._position)
        self.delivered = self.floor = (0, begin - 1)
        self._count()

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.name

    def release(self) -> None:
        """Releases what it uses of the stream."""
        self.stream.store.contents.release(self._filter)
        self._filter = None

    # What is kept

    def state(self) -> ConsumerState:
        """Returns what is kept of it."""
        pending = {sequence: (each.number, each.time) for sequence, each in self.pending.items()}
        floor = min(self.floor[0], self.delivered[0]), min(self.floor[1], self.delivered[1])
        kept = {sequence: count for sequence, count in self.repeats.items() if sequence > floor[1]}
        return ConsumerState(floor, self.delivered, pending, kept)

    def restore(self, state: ConsumerState) -> None:
        """Goes on where it was."""
        self.delivered, self.floor = state.delivered, state.ack_floor
        self._lasts.clear()
        self._ahead.clear()
        self._position = max(self.delivered[1] + 1, self.stream.store.contents.first)
        self.repeats = dict(state.redelivered)
        for sequence, (number, time) in sorted(state.pending.items()):
            self.pending[sequence] = UnackedDelivery(number, time)
        # Those that are due at the next delivery come in the order of their sequences.
        self._due = [(_RESTORED, sequence) for sequence in self.pending]
        self.changed = False
        self.shrunk(_ALL)

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Takes on another configuration."""
        self.stream.store.contents.release(self._filter)
        self._filter = self.stream.store.contents.filter(config.filters)
        self.config = config
        self._ahead.clear()
        self._count()
        self._due = [(self._due_time(sequence), sequence) for sequence in self.pending]
        heapq.heapify(self._due)

    # What is next

    def _count(self) -> None:
        contents = self.stream.store.contents
        self._left, self._known = contents.count(self._filter, self._position), contents.last

    @property
    def num_pending(self) -> int:
        """Messages that match and were never delivered."""
        contents = self.stream.store.contents
        if contents.last > self._known:
            begin = max(self._known + 1, self._position)
            self._left += contents.count(self._filter, begin) if begin <= contents.last else 0
            self._known = contents.last
        return self._left + len(self._lasts)

    def next(self, now: int) -> tuple[int, int] | None:
        """Returns the sequence of what is to be delivered next and which delivery of it that is; None for nothing."""
        self._paused = self.config.pause_until > now
        if self._paused:
            return None
        self._collect_due(now)
        most = self.config.max_deliver
        while self._again:
            sequence = next(iter(self._again))
            if sequence in self.pending:
                count = self.repeats.get(sequence, 0) + 2
                if not 0 < most < count:
                    return sequence, count
                self._give_up(sequence)
            del self._again[sequence]
        if self.full:
            return None
        contents = self.stream.store.contents
        while self._lasts:
            sequence = next(iter(self._lasts))
            if contents.locate(sequence) is not None:
                return sequence, 1
            del self._lasts[sequence]
        while True:
            while self._ahead:
                if contents.locate(self._ahead[0]) is not None:
                    return self._ahead[0], 1
                self._ahead.popleft()
            if not self.num_pending:
                return None
            self._ahead.extend(contents.matching(self._filter, self._position, _AHEAD))
            if not self._ahead:
                self._left = 0
                return None

    def upcoming(self, now: int, most: int) -> list[int]:
        """Returns the sequences of what is to be delivered next, at most so many; none if that is something special.

        Special is what is delivered once more, and what is delivered as the last of its subject. Messages among them
        may be gone.
        """
        found = self.next(now)
        if found is None or found[1] > 1 or self._lasts:
            return []
        if self.config.ack_policy != "none" and self.config.max_ack_pending > 0:
            most = min(most, self.config.max_ack_pending - len(self.pending))
        return list(islice(self._ahead, most))

    @property
    def full(self) -> bool:
        """Whether as many messages as may be wait for their acknowledgement."""
        return self.config.ack_policy != "none" and 0 < self.config.max_ack_pending <= len(self.pending)

    def sent(self, sequence: int, count: int, now: int) -> int:
        """A message that `next` has named was delivered. Returns its consumer sequence."""
        number = self.delivered[0] + 1
        self._active_delivery = now
        self.changed = True
        if count > 1:
            del self._again[sequence]
            self.repeats[sequence] = count - 1
            self.delivered = (number, self.delivered[1])
            waiting = self.pending[sequence]
            waiting.time = now
            heapq.heappush(self._due, (self._due_time(sequence), sequence))
            return number
        self._leave_behind(sequence)
        self.delivered = (number, sequence)
        if self.config.ack_policy == "none":
            self.floor = self.delivered
        else:
            self._wait(sequence, number, now)
        return number

    def sent_all(self, sequences: Sequence[int], now: int) -> None:
        """Messages that `upcoming` has named, from the first one on, were delivered."""
        number = self.delivered[0] + 1
        self._active_delivery = now
        self.changed = True
        if len(sequences) == len(self._ahead):
            self._ahead.clear()
        for _ in range(min(len(sequences), len(self._ahead))):
            self._ahead.popleft()
        self._left -= len(sequences)
        self._position = sequences[-1] + 1
        self.delivered = (number + len(sequences) - 1, sequences[-1])
        if self.config.ack_policy == "none":
            self.floor = self.delivered
        else:
            backoff = self.config.backoff
            due = now + (backoff[0] if backoff else self.config.ack_wait)
            for row, sequence in enumerate(sequences, number):
                self.pending[sequence] = UnackedDelivery(row, now)
                heapq.heappush(self._due, (due, sequence))

    def _leave_behind(self, sequence: int) -> None:
        if self._lasts:
            del self._lasts[sequence]
        else:
            self._ahead.popleft()
            self._left -= 1
            self._position = sequence + 1

    def pass_over(self, sequence: int, count: int) -> None:
        """A message that `next` has named cannot be delivered."""
        if count > 1:
            del self._again[sequence]
            self._drop(sequence)
        else:
            self._leave_behind(sequence)
        self.changed = True

    def _wait(self, sequence: int, number: int, now: int) -> None:
        self.pending[sequence] = UnackedDelivery(number, now)
        heapq.heappush(self._due, (self._due_time(sequence), sequence))

    # What comes again

    def _due_time(self, sequence: int) -> int:
        backoff = self.config.backoff
        wait = self.config.ack_wait
        if backoff:
            wait = backoff[min(self.repeats.get(sequence, 0), len(backoff) - 1)]
        return self.pending[sequence].time + wait

    def _collect_due(self, now: int) -> None:
        found: list[tuple[int, int]] = []
        while self._due and self._due[0][0] <= now:
            time, sequence = heapq.heappop(self._due)
            if sequence in self.pending:
                due = self._due_time(sequence)
                if due > now:
                    heapq.heappush(self._due, (due, sequence))
                else:
                    found.append((time if time == _RESTORED else due, sequence))
        # In the order in which they became due, however long no client asked for them.
        for _, sequence in sorted(found):
            self._again.setdefault(sequence)

    @property
    def due(self) -> int:
        """When (nanoseconds since 1970) a message comes again at the earliest, or the pause ends; 0 for never."""
        if self._paused:
            return self.config.pause_until
        while self._due and self._due[0][1] not in self.pending:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else 0

    def _give_up(self, sequence: int) -> None:
        """A message is out of deliveries: it waits no more, and the floor stays."""
        del self.pending[sequence]
        self.changed = True
        deliveries = self.repeats.get(sequence, 0) + 1
        self.event("max_deliver", {"stream_seq": sequence, "deliveries": deliveries})

    # Acknowledgements

    def acknowledge(self, sequence: int, number: int, now: int) -> list[int]:
        """A message is done with, or with policy all this one and everything before it.

        Returns:
            Which ones are.
        """
        if self.config.ack_policy == "all":
            if not self.floor[1] < sequence <= self.delivered[1]:
                return []
            done = []
            while self.pending and (first := next(iter(self.pending))) <= sequence:
                done.append(first)
                del self.pending[first]
                self.repeats.pop(first, None)
            self.floor = (min(number, self.delivered[0]), sequence)
        else:
            if sequence not in self.pending:
                return []
            done = [sequence]
            self._drop(sequence)
        self._active_ack = now
        self.changed = True
        return done

    def _drop(self, sequence: int) -> None:
        """A message waits no more; the floor moves if it was the first."""
        lowest = next(iter(self.pending)) == sequence
        del self.pending[sequence]
        self.repeats.pop(sequence, None)
        if not self.pending:
            self.floor = self.delivered
        elif lowest:
            following = next(iter(self.pending))
            self.floor = (self.pending[following].number - 1, following - 1)

    def refuse(self, sequence: int, delay: int, now: int) -> bool:
        """A message is to come again. Returns whether it waits for its acknowledgement."""
        waiting = self.pending.get(sequence)
        if waiting is None:
            return False
        self.changed = True
        self._collect_due(now)
        if delay > 0:
            waiting.time += now + delay - self._due_time(sequence)
            heapq.heappush(self._due, (now + delay, sequence))
            self._again.pop(sequence, None)
        else:
            self._again.setdefault(sequence)
        return True

    def in_progress(self, sequence: int, now: int) -> None:
        """A message needs longer."""
        if sequence in self.pending:
            self._collect_due(now)
            self.pending[sequence].time = now

    @property
    def given(self) -> int:
        """The last sequence that it was given."""
        return self.delivered[1]

    def needs(self, sequence: int, number: int) -> bool:
        """Returns whether a message, whose subject has a number, is still to be delivered or acknowledged."""
        if self._filter is not None and not self._filter.has(number):
            return False
        if sequence >= self._position or sequence in self.pending:
            return True
        return sequence > self.floor[1] and sequence in self.repeats

    def wants(self, subject: bytes) -> bool:
        """Returns whether messages of a subject are for it."""
        return matches_any(self.config.filters, subject)

    # What goes from the stream

    def removed(self, sequence: int, number: int) -> None:
        """A message, whose subject has a number, is about to go."""
        if self._position <= sequence <= self._known and (self._filter is None or self._filter.has(number)):
            self._left -= 1
        self._lasts.pop(sequence, None)
        if sequence in self.pending:
            self._drop(sequence)
            self.changed = True

    def shrunk(self, below: int) -> None:
        """Many messages below a sequence are gone."""
        contents = self.stream.store.contents
        self._ahead.clear()
        # Both rise.
        lasts, pending = (list(takewhile(below.__gt__, some)) for some in (self._lasts, self.pending))
        for sequence in lasts:
            if contents.locate(sequence) is None:
                del self._lasts[sequence]
        counted = below <= self._position
        self._position = max(self._position, contents.first)
        for sequence in pending:
            if contents.locate(sequence) is None:
                self._drop(sequence)
        # What it has left behind does not count.
        if not counted:
            self._count()
        self.changed = True

    def purged(self, pattern: bytes, first: int) -> None:
        """A purge took out messages whose subjects match, or any; the first one that is left has a sequence."""
        filters, contents = self.config.filters, self.stream.store.contents
        if pattern and not any(covers(pattern, each) for each in filters):
            if filters and not any(covers(each, pattern) for each in filters):
                return
            first = contents.first
        if self.delivered[1] < first - 1:
            # Unlike after limits, it stands behind what was purged.
            self._position = max(self._position, first)
            self.delivered = (self.delivered[0], first - 1)
            self._ahead.clear()
            self._count()
        if self.floor[1] < first:
            number = self.floor[0]
            for sequence in list(takewhile(first.__gt__, self.pending)):
                number = max(number, self.pending.pop(sequence).number)
                self.repeats.pop(sequence, None)
            self.floor = (number, first - 1)
        if not self.pending:
            self.repeats.clear()
            self.floor = self.delivered
        self.changed = True

    def renew(self) -> None:
        """Looks again at everything: the store of the stream is another one."""
        self._filter = self.stream.store.contents.filter(self.config.filters)
        self.shrunk(_ALL)

    def info(self, now: int) -> dict[str, Any]:
        """Returns what answers say of its state."""

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
            "num_redelivered": len(self.repeats),
            "num_waiting": 0,
            "num_pending": self.num_pending,
            "ts": time_text(now),
            **self.pause(now),
        }

    def pause(self, now: int) -> dict[str, Any]:
        """Returns what answers say of a pause; nothing without one."""
        left = self.config.pause_until - now
        return {"paused": True, "pause_remaining": left} if left > 0 else {}
