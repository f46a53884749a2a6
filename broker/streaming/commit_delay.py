"""Commit delay: a commit waits for publishers that send the next message as soon as the last one is acknowledged.

A commit that syncs files takes long. Messages that arrive meanwhile belong to the next commit, and the messages of
the publishers just acknowledged to the one after that. So a few synchronous publishers fall into two groups that
alternate, and each waits for two commits. Databases solve this with commit delay and commit siblings: a commit waits
a moment for the publishers that the last one acknowledged. Here it waits only for publishers known to return at
once: never if there is only one, and not again for a publisher that failed to return.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.ports import Clock
    from broker.streaming.publishes.columns import AckRun

#: Longest waits relative to the duration of a commit: without a new arrival, and in all.
_IDLE: Final = 1 / 2
_TOTAL: Final = 3 / 4
#: Longest wait (ns), and shortest pause (ns) worth a turn of the loop.
_MAX_WAIT: Final = 1_000_000
_MIN_PAUSE: Final = 30_000
#: Most publishers in two commits (more of them fill a commit anyway), and subjects remembered.
_MAX_PUBLISHERS: Final = 32
_MAX_SUBJECTS: Final = 256
#: Most returns counted per publisher, and the deduction for a wait in vain: the publisher must return as often before a
#: commit waits for it again.
_MAX_TRUST: Final = 8


class CommitDelay:
    """Publishers acknowledged by the last commits, and publishers that a commit waits for.

    A publisher is known by the subject of its acknowledgements, if it gets one of them at a time.

    Attributes:
        expects: Some publishers may return, so that new publishes must be recorded.
        awaited: The publishers that the next commit waits for.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._duration = 0.0  # mean duration of a commit (ns)
        self._trust: dict[bytes, int] = {}
        self._now: set[bytes] = set()  # acknowledged by the commit in progress
        self._all: frozenset[bytes] = frozenset()  # acknowledged by the last commit
        self._last: set[bytes] = set()  # those of them that have not returned yet
        self._before: set[bytes] = set()  # acknowledged by the commit before that, not returned yet
        self.awaited: set[bytes] = set()
        self._until = self._end = 0
        self.expects = False

    def add(self, runs: Iterable[AckRun]) -> None:
        """Records new publishes."""
        last, before = self._last, self._before
        trust, deadline = self._trust, self.awaited
        for reply, _, _ in runs:
            if reply in last:
                last.remove(reply)
                deadline.discard(reply)
            elif reply in before:
                # If a long commit begins at once, returns after the last one are seen only after it.
                before.remove(reply)
            else:
                continue
            trust[reply] = min(trust.get(reply, 0) + 1, _MAX_TRUST)
        self.expects = bool(last or before)
        if deadline:
            self._until = min(self._clock.monotonic() + int(_IDLE * self._duration), self._end)

    def acknowledged(self, runs: Iterable[AckRun]) -> None:
        """Records the acknowledgements of the commit in progress."""
        self._now.update([reply for reply, begin, end in runs if end - begin == 1])

    def committed(self, begun: int) -> None:
        """Records the end of a commit that included a sync and began at `begun` (monotonic ns)."""
        now, trust = self._clock.monotonic(), self._trust
        self._duration += (now - begun - self._duration) / 4
        for reply in self._before:
            trust.pop(reply, None)
        if len(trust) > _MAX_SUBJECTS:
            trust.clear()
        self._before, self._last, self._now = self._last, self._now, set()
        self.expects = bool(self._last or self._before)
        both, self._all = self._all | self._last, frozenset(self._last)
        self.awaited.clear()
        pause = int(_IDLE * self._duration)
        if len(both) <= _MAX_PUBLISHERS and pause >= _MIN_PAUSE:
            self.awaited.update([reply for reply in self._last if trust.get(reply, 0) > 0])
        self._end = now + min(int(_TOTAL * self._duration), _MAX_WAIT)
        self._until = min(now + pause, self._end)

    def deadline(self) -> int:
        """Returns the time (monotonic ns) until which the next commit should wait; 0 for no wait."""
        if not self.awaited:
            return 0
        if self._clock.monotonic() < self._until:
            return self._until
        for reply in self.awaited:
            self._trust[reply] -= _MAX_TRUST
        self.awaited.clear()
        return 0
