"""A log that threads rewrite while it is in use: nobody waits for the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.stores.file.disk import Disk
    from stantools.store.appendlog import Replacement
    from stantools.store.logwriter import ClientsLog, SubsLog

#: Seconds until a compaction that failed is tried again.
RETRY: Final = 10.0
#: Bytes that a log may get until the new file has them. If it gets more, the disk is too slow for a compaction now.
_BOUND: Final = 64 << 20


class Compaction:
    """A compaction that is under way: the new file is filled and synced, then what the log got meanwhile.

    Args:
        log: The log.
        replacement: What it has just begun.
        disk: Whose threads work.
        ready: Called when the new file may take the log's place, which is then the owner's matter.
        failed: Called with what went wrong; the log goes on as it is.
    """

    def __init__(
        self,
        log: SubsLog | ClientsLog,
        replacement: Replacement,
        disk: Disk,
        ready: Callable[[], object],
        failed: Callable[[Exception], None],
    ) -> None:
        self.caught_up = False  #: the new file may take the log's place
        self._log = log
        self.replacement = replacement  #: the new file
        self._disk = disk
        self._ready = ready
        self._failed = failed
        self._dropped = False

    def begin(self) -> None:
        """Begins to write the new file."""
        self._disk.run(self.replacement.fill, self._filled)

    def drop(self) -> None:
        """Abandons it silently."""
        self._log.give_up()
        self._dropped = True
        if self.caught_up:
            self.replacement.discard()

    def _filled(self, problem: Exception | None) -> None:
        if self._goes_on(problem):
            self._disk.run(self.replacement.catching_up(), self._synced)

    def _synced(self, problem: Exception | None) -> None:
        if self._goes_on(problem):
            self.caught_up = True
            self._ready()

    def _goes_on(self, problem: Exception | None) -> bool:
        if problem is None and self.replacement.waiting > _BOUND:
            problem = TimeoutError(f"it grows by {self.replacement.waiting:,} bytes meanwhile")
        if self._dropped:
            self.replacement.discard()
            return False
        if problem is None:
            return True
        self._log.give_up()
        self.replacement.discard()
        self._failed(problem)
        return False
