"""Publishers that send the next message as soon as the one before is acknowledged, and how long commits wait for them.

Where a commit takes long, as files are synced, what comes while it is under way is the next commit's, and those who
were just acknowledged are the one's after that. So a few such publishers fall into two groups that take turns, and each
waits for two commits. Databases know the remedy as commit delay and commit siblings: a commit waits a moment for those
whom the one before has acknowledged. Here it waits only for those who are known to come back at once: never where there
is but one, and nobody is waited for again who did not come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.ports import Clock
    from broker.streaming.publishes.columns import AckRun

#: Shares of what a commit takes: for how long it waits if none of the awaited comes, and in all.
_PAUSE: Final = 1 / 2
_ALL: Final = 3 / 4
#: Nanoseconds that it waits at most. Where a pause is shorter than the other, it is not worth a round of the loop.
_LONGEST: Final = 1_000_000
_SHORTEST: Final = 30_000
#: Publishers in two commits; more of them fill one anyway. And subjects that are remembered.
_MOST: Final = 32
_KNOWN: Final = 256
#: How often one has come back at once, at most, and what is taken off who was waited for in vain: whoever does not come
#: again and again has to come so often without that before it is waited for again.
_TRUST: Final = 8


class CommitDelay:
    """Who was acknowledged by the last commits, and who of them is waited for.

    A publisher is known by the subject of its acknowledgements, if it gets one of them at a time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._usual = 0.0  # what a commit takes (ns)
        self._trust: dict[bytes, int] = {}
        self._now: set[bytes] = set()  # acknowledged by the commit that is under way
        self._all: frozenset[bytes] = frozenset()  # by the last one
        self._last: set[bytes] = set()  # those of them who are not back yet
        self._before: set[bytes] = set()  # by the one before that, and not back yet
        self._awaited: set[bytes] = set()
        self._until = self._end = 0

    def came(self, runs: Iterable[AckRun]) -> None:
        """Takes note of who has published."""
        last, before = self._last, self._before
        if not last and not before:
            return
        trust, awaited = self._trust, self._awaited
        for reply, _, _ in runs:
            if reply in last:
                last.remove(reply)
                awaited.discard(reply)
            elif reply in before:
                # When a commit begins at once that takes long, who was acknowledged before is seen behind it only.
                before.remove(reply)
            else:
                continue
            trust[reply] = min(trust.get(reply, 0) + 1, _TRUST)
        if awaited:
            self._until = min(self._clock.monotonic() + int(_PAUSE * self._usual), self._end)

    def acknowledged(self, runs: Iterable[AckRun]) -> None:
        """Takes note of who is acknowledged by the commit that is under way."""
        self._now.update([reply for reply, begin, end in runs if end - begin == 1])

    def committed(self, begun: int) -> None:
        """Takes note that a commit is over, and has taken as long as syncs take.

        Args:
            begun: When it began (ns).
        """
        now, trust = self._clock.monotonic(), self._trust
        self._usual += (now - begun - self._usual) / 4
        for reply in self._before:
            trust.pop(reply, None)
        if len(trust) > _KNOWN:
            trust.clear()
        self._before, self._last, self._now = self._last, self._now, set()
        both, self._all = self._all | self._last, frozenset(self._last)
        self._awaited.clear()
        pause = int(_PAUSE * self._usual)
        if len(both) <= _MOST and pause >= _SHORTEST:
            self._awaited.update([reply for reply in self._last if trust.get(reply, 0) > 0])
        self._end = now + min(int(_ALL * self._usual), _LONGEST)
        self._until = min(now + pause, self._end)

    def awaited(self) -> int:
        """Returns until when (ns) the next commit had better wait for somebody; 0 if for nobody."""
        if not self._awaited:
            return 0
        if self._clock.monotonic() < self._until:
            return self._until
        for reply in self._awaited:
            self._trust[reply] -= _TRUST
        self._awaited.clear()
        return 0
