"""Compaction of a log in use: threads write the new file while the log grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.stores.file.disk import Disk
    from stantools.store.appendlog import Replacement
    from stantools.store.logwriter import ClientsLog, SubsLog

#: seconds until a failed compaction is tried again
RETRY: Final = 10.0
#: bytes by which a log may grow during a compaction; beyond that the disk is too slow for it
_MAX_GROWTH: Final = 64 << 20


class Compaction:
    """A compaction under way: threads fill and sync the new file, then add the records that the log got meanwhile.

    `ready` is called when the new file may replace the log, which is the owner's task. `failed` gets the error; the
    log stays in use then.
    """

    def __init__(
        self,
        log: SubsLog | ClientsLog,
        replacement: Replacement,
        disk: Disk,
        ready: Callable[[], object],
        failed: Callable[[Exception], None],
    ) -> None:
        self.caught_up = False  #: the new file may replace the log
        self._log = log
        self.replacement = replacement  #: the new file
        self._disk = disk
        self._ready = ready
        self._failed = failed
        self._dropped = False

    def begin(self) -> None:
        self._disk.run(self.replacement.fill, self._copied)

    def drop(self) -> None:
        """Abandons the compaction without calling `failed`."""
        self._log.give_up()
        self._dropped = True
        if self.caught_up:
            self.replacement.discard()

    def _copied(self, problem: Exception | None) -> None:
        if self._may_continue(problem):
            self._disk.run(self.replacement.catching_up(), self._synced)

    def _synced(self, problem: Exception | None) -> None:
        if self._may_continue(problem):
            self.caught_up = True
            self._ready()

    def _may_continue(self, problem: Exception | None) -> bool:
        if problem is None and self.replacement.waiting > _MAX_GROWTH:
            problem = TimeoutError(f"it grew by {self.replacement.waiting:,} bytes during the compaction")
        if self._dropped:
            self.replacement.discard()
            return False
        if problem is None:
            return True
        self._log.give_up()
        self.replacement.discard()
        self._failed(problem)
        return False
