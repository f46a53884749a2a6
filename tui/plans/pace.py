"""How fast work goes, and how long it takes yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stantools.notation import format_size
from tui.cells import Cell, bar, counted, short_number
from tui.jobs import Job

#: Seconds after which a rate says something.
_SETTLED = 1.0


class Pace:
    """Watches a job phase by phase.

    Args:
        job: The job.
        unit: What it counts: `bytes`, or anything else by its name.
        clock: Tells the time in seconds; for tests.
    """

    def __init__(self, job: Job[Any], unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._unit = unit
        self._clock = clock
        self._phase = ""
        self._begun = clock()

    def line(self, width: int) -> list[Cell]:
        """Returns phase, bar, rate and the time that is left.

        Args:
            width: Columns of the bar.
        """
        job = self._job
        if job.phase != self._phase:
            self._phase, self._begun = job.phase, self._clock()
        done, total = job.done, job.total
        seconds = self._clock() - self._begun
        cells: list[Cell] = [(job.phase or job.name, "strong"), "  "]
        if total:
            share = min(max(done / total, 0.0), 1.0)
            cells += [(f"{bar(share, width):<{width}}", "accent"), f" {share:4.0%}"]
        else:
            cells.append(self._amount(done) if done else "…")
        if seconds >= _SETTLED and done > 0:
            rate = done / seconds
            cells.append((f"  {self._rate(rate)}", "dim"))
            if total > done:
                cells.append((f"  {duration((total - done) / rate)} left", "dim"))
        return cells

    def _amount(self, count: int) -> str:
        return format_size(count) if self._unit == "bytes" else counted(count, self._unit.removesuffix("s"))

    def _rate(self, rate: float) -> str:
        return f"{format_size(int(rate))}/s" if self._unit == "bytes" else f"{short_number(rate)} {self._unit}/s"


def duration(seconds: float) -> str:
    """Writes a time that is left: `0:07`, `12:30`, `3:05:00`."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
