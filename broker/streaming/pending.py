"""Messages that were sent and not acknowledged, in an order that finds the due ones without a look at the others.

Facts: streaming-protocol.md section 16.

A message sent at a time `t` is due at `t` plus the ack wait of its subscription. New messages are appended, so
messages that were sent once are in the order of their deadlines. A redelivered message is appended again, but its
deadline counts from the previous one: it may be earlier than the deadlines before it (the redelivery was late), or
later than the next new one (by the tolerance at most: it was sent early). So:

- No message that was sent once is due after one that is not due within the tolerance.
- Messages with another deadline than a new one would get are in a second, sorted list. An entry is valid while its
  deadline is that of its message.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from itertools import islice
from typing import Final

#: messages due within this time (ns) are redelivered together (rule 1)
TOLERANCE: Final = 15_000_000


class PendingByDeadline(dict[int, int]):
    """Sequences with the times (monotonic ns) of their redeliveries.

    New messages are added like entries of any dictionary, with deadlines that never decrease.
    """

    __slots__ = ("_moved",)

    def __init__(self) -> None:
        super().__init__()
        self._moved: list[tuple[int, int]] = []

    def move(self, deadlines: Iterable[tuple[int, int]]) -> None:
        """Sets deadlines that differ from those of new messages; adds missing messages."""
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
        """Returns the messages due up to `horizon`, by deadline and then by sequence.

        At most `limit` entries of each order are examined, and at most `limit` messages returned.
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
        return in_order(found)[:limit]

    def earliest(self, limit: int) -> int | None:
        """Returns the time of the next check for due messages, late by at most the tolerance. None without messages.

        At most `limit` entries are examined; if all are outdated, the time is too early.
        """
        self._forget_outdated(limit)
        first = next(iter(self.values()), None)
        if first is not None and self._moved:
            return min(first, self._moved[0][0])
        return first

    def shorten(self, count: int) -> None:
        """Drops the last `count` messages, whatever their deadlines."""
        for _ in range(min(count, len(self))):
            self.popitem()
        del self._moved[-count:]

    def _forget_outdated(self, limit: int) -> None:
        """Drops leading entries whose messages were acknowledged or sent again."""
        moved, outdated = self._moved, 0
        for deadline, sequence in islice(moved, limit):
            if self.get(sequence) == deadline:
                break
            outdated += 1
        del moved[:outdated]


def in_order(deadlines: dict[int, int]) -> list[int]:
    """Sorts by deadline and then by sequence. Two sorts are faster than pairs."""
    return sorted(sorted(deadlines), key=deadlines.__getitem__)
