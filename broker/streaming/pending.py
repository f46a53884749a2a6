"""Messages that were sent and not acknowledged, in an order that shows those that are due without a look at the others.

Facts: streaming-protocol.md section 16.

A message that is sent at a time `t` is due at `t` plus the time that its subscription waits. As it is put behind all
others then, messages that were sent once are in the order of their deadlines. A message that is sent again moves
behind all others, too, but its deadline counts from its last one: it may be earlier than that of messages before it
(the redelivery was late), or later than that of the next new one (by the tolerance at most: it was sent early). So:

- No message that was sent once is due behind one that is not due within the tolerance.
- Messages with another deadline than a new one would get are in a second list, which is sorted. An entry counts as long
  as it names the deadline that its message has.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from itertools import islice
from typing import Final

#: What is due a little later goes along (rule 1; ns).
TOLERANCE: Final = 15_000_000


class PendingByDeadline(dict[int, int]):
    """Sequences with the times (monotonic ns) of their redeliveries.

    New messages are added as to any dictionary, with a deadline that is not before that of any new message before.
    """

    __slots__ = ("_moved",)

    def __init__(self) -> None:
        super().__init__()
        self._moved: list[tuple[int, int]] = []

    def move(self, deadlines: Iterable[tuple[int, int]]) -> None:
        """Gives messages other deadlines, or adds some whose deadlines are not those of new messages.

        Args:
            deadlines: Sequences and their deadlines.
        """
        entries: list[tuple[int, int]] = []
        for sequence, deadline in deadlines:
            self.pop(sequence, None)
            self[sequence] = deadline
            entries.append((deadline, sequence))
        entries.sort()
        moved = self._moved
        if moved and entries and entries[0] < moved[-1]:
            place = bisect(moved, entries[0])
            entries = sorted(moved[place:] + entries)
            del moved[place:]
        moved += entries

    def due(self, horizon: int, limit: int) -> list[int]:
        """Returns messages that are due, the first ones by deadline and then by sequence.

        Args:
            horizon: They are due up to this time.
            limit: So many entries of each order are looked at, and so many messages returned, at most.
        """
        self._forget_outdated(limit)
        found: dict[int, int] = {}
        for sequence, deadline in islice(self.items(), limit):
            if deadline > horizon + TOLERANCE:
                break
            if deadline <= horizon:
                found[sequence] = deadline
        for deadline, sequence in islice(self._moved, limit):
            if deadline > horizon:
                break
            if self.get(sequence) == deadline:
                found[sequence] = deadline
        return _in_order(found)[:limit]

    def earliest(self, limit: int) -> int | None:
        """Returns when to look again for what is due: never too late by more than the tolerance. None if nothing is.

        Args:
            limit: So many entries are looked at, at most; where all are outdated it is too early.
        """
        self._forget_outdated(limit)
        first = next(iter(self.values()), None)
        if first is not None and self._moved:
            return min(first, self._moved[0][0])
        return first

    def in_order(self) -> list[int]:
        """Returns all sequences, by deadline and then by sequence."""
        return _in_order(self)

    def shorten(self, count: int) -> None:
        """Forgets the last so many messages, whatever is due."""
        for _ in range(min(count, len(self))):
            self.popitem()
        del self._moved[-count:]

    def _forget_outdated(self, limit: int) -> None:
        """Forgets the first entries if their messages were acknowledged, or sent again since."""
        moved, outdated = self._moved, 0
        for deadline, sequence in islice(moved, limit):
            if self.get(sequence) == deadline:
                break
            outdated += 1
        del moved[:outdated]


def _in_order(deadlines: dict[int, int]) -> list[int]:
    """Returns sequences by deadline and then by sequence. To sort twice is faster than to make pairs."""
    return sorted(sorted(deadlines), key=deadlines.__getitem__)
