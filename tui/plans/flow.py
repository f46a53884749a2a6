"""The way through a wizard: which step comes after which, what keeps from taking it, and how fast the work goes.

    CHOOSE ──▶ LOOK ──▶ PREVIEW ──▶ CONFIRM ──▶ RUN ──▶ RESULT
       ▲         │         │           │                  │
       └─────────┴─────────┴───────────┴──────────────────┘  back; from CONFIRM to PREVIEW

LOOK and RUN are jobs; a job that failed, or was cancelled, is reported by the step behind it.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Any

from stantools.errors import StantoolsError
from stantools.notation import format_size, short_number
from tui.cells import Cell, bar, counted, name_text
from tui.jobs import Job, JobState
from tui.plans.wizard import Outcome, Preview, Wizard

#: Seconds after which a rate says something.
_SETTLED = 1.0


class Step(enum.StrEnum):
    """Where a user is."""

    CHOOSE = "choose"
    LOOK = "look"
    PREVIEW = "preview"
    CONFIRM = "confirm"
    RUN = "run"
    RESULT = "result"


class Flow:
    """A way through one wizard."""

    def __init__(self, wizard: Wizard[Any]) -> None:
        self.wizard = wizard
        self.step = Step.CHOOSE  #: where we are
        self.preview: Preview | None = None  #: what would happen, once that is known
        self.outcome: Outcome | None = None  #: what has happened
        self.problem: StantoolsError | None = None  #: why there is no preview, or no outcome
        self.cancelled = False  #: the run was cancelled
        self.job: Job[Preview] | Job[Outcome] | None = None  #: what is going on, in LOOK and RUN

    def look(self) -> Job[Preview]:
        """Begins to make the plan; the job is to be started."""
        self.step, self.preview, self.outcome, self.problem, self.cancelled = Step.LOOK, None, None, None, False
        self.job = job = Job(self.wizard.VERB, self.wizard.preview)
        return job

    def looked(self, job: Job[Preview]) -> None:
        """The plan is made, or not."""
        if job is not self.job:
            return
        self.job = None
        if job.state is JobState.CANCELLED:
            self.step = Step.CHOOSE
            return
        self.step, self.problem = Step.PREVIEW, job.problem
        if job.state is JobState.DONE:
            self.preview = job.result

    def obstacle(self) -> str:
        """Says why the plan cannot be carried out; "" if it can."""
        if self.preview is None:
            return "there is no plan"
        if self.preview.obstacles:
            return self.preview.obstacles[0].message
        return self.preview.idle

    def confirm(self) -> bool:
        """Goes on to the question, if nothing is in the way."""
        if self.step is not Step.PREVIEW or self.obstacle():
            return False
        self.step = Step.CONFIRM
        return True

    def answer(self, text: str, *, unlocked: bool) -> str:
        """Says why a typed name does not start the work; "" if it does.

        Args:
            text: What the user typed.
            unlocked: The user has allowed changes.
        """
        if not unlocked:
            return "this is read only: press W to allow changes"
        wanted = self.wizard.source.name
        if text != wanted:
            return f"type the store's name exactly: {wanted}" if text else f"type the store's name: {wanted}"
        return ""

    def run(self, text: str, *, unlocked: bool) -> Job[Outcome]:
        """Begins to carry out the plan; the job is to be started. Arguments are those of `answer`.

        Raises:
            RuntimeError: It was not confirmed.
        """
        if self.step is not Step.CONFIRM or self.answer(text, unlocked=unlocked):
            raise RuntimeError("the plan was not confirmed")
        self.step = Step.RUN
        self.job = job = Job(self.wizard.VERB, self.wizard.run)
        return job

    def ran(self, job: Job[Outcome]) -> None:
        """The plan is carried out, or not."""
        if job is not self.job:
            return
        self.job = None
        self.step, self.problem = Step.RESULT, job.problem
        self.cancelled = job.state is JobState.CANCELLED
        if job.state is JobState.DONE:
            self.outcome = job.result

    def back(self) -> bool:
        """Goes a step back.

        Returns:
            False if this was the first one, or the work is done.
        """
        if self.step is Step.CONFIRM:
            self.step = Step.PREVIEW
        elif self.step is Step.CHOOSE or (self.step is Step.RESULT and self.outcome is not None):
            return False
        elif self.step in (Step.PREVIEW, Step.RESULT):
            self.step, self.problem, self.cancelled = Step.CHOOSE, None, False
        return True

    @property
    def writing(self) -> str:
        """Says what is being done, while it is; else ""."""
        return f"{self.wizard.VERB} is at work on {name_text(self.wizard.source.name)}" if self.step is Step.RUN else ""


class Pace:
    """Watches a job phase by phase.

    Args:
        unit: What it counts: `bytes`, or anything else by its name.
        clock: Returns the time in seconds; for tests.
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
