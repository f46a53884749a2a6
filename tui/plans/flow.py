"""The steps of a wizard, their legal transitions, and the speed of the work.

        CHOOSE ──▶ LOOK ──▶ PREVIEW ──▶ CONFIRM ──▶ RUN ──▶ RESULT
           ▲         │         │           │                  │
           └─────────┴─────────┴───────────┴──────────────────┘  back; from CONFIRM to PREVIEW

LOOK and RUN are jobs; the next step reports a failed or cancelled job.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Any

from stantools.errors import StantoolsError
from stantools.notation import format_left, format_pace, format_size
from tui.cells import Cell, bar, counted, name_text
from tui.jobs import Job, JobState
from tui.plans.wizard import PlanOutcome, PlanPreview, Wizard

#: Seconds after which a rate is shown.
_SETTLED = 1.0


class WizardStep(enum.StrEnum):
    CHOOSE = "choose"
    LOOK = "look"
    PREVIEW = "preview"
    CONFIRM = "confirm"
    RUN = "run"
    RESULT = "result"


class WizardFlow:
    def __init__(self, wizard: Wizard[Any]) -> None:
        self.wizard = wizard
        self.step = WizardStep.CHOOSE
        self.preview: PlanPreview | None = None  #: result of LOOK
        self.outcome: PlanOutcome | None = None  #: result of RUN
        self.problem: StantoolsError | None = None  #: reason why there is no preview or outcome
        self.cancelled = False  #: the user cancelled the run
        self.job: Job[PlanPreview] | Job[PlanOutcome] | None = None  #: the job of LOOK or RUN

    def look(self) -> Job[PlanPreview]:
        self.step, self.preview, self.outcome, self.problem, self.cancelled = WizardStep.LOOK, None, None, None, False
        self.job = job = Job(self.wizard.VERB, self.wizard.preview)
        return job

    def looked(self, job: Job[PlanPreview]) -> None:
        if job is not self.job:
            return
        self.job = None
        if job.state is JobState.CANCELLED:
            self.step = WizardStep.CHOOSE
            return
        self.step, self.problem = WizardStep.PREVIEW, job.problem
        if job.state is JobState.DONE:
            self.preview = job.result

    def obstacle(self) -> str:
        """Returns the reason why the plan cannot be carried out; "" if it can."""
        if self.preview is None:
            return "there is no plan"
        if self.preview.obstacles:
            return self.preview.obstacles[0].message
        return self.preview.idle

    def confirm(self) -> bool:
        if self.step is not WizardStep.PREVIEW or self.obstacle():
            return False
        self.step = WizardStep.CONFIRM
        return True

    def answer(self, text: str, *, unlocked: bool) -> str:
        """Returns the reason why the name typed for confirmation is refused, or "" if it is right."""
        if not unlocked:
            return "read only: press W to allow changes"
        wanted = self.wizard.source.name
        if text != wanted:
            return f"type the store's name exactly: {wanted}" if text else f"type the store's name: {wanted}"
        return ""

    def run(self, text: str, *, unlocked: bool) -> Job[PlanOutcome]:
        """Returns the job that carries out the plan; the caller starts it.

        Raises `RuntimeError` if it is not confirmed.
        """
        if self.step is not WizardStep.CONFIRM or self.answer(text, unlocked=unlocked):
            raise RuntimeError("the plan was not confirmed")
        self.step = WizardStep.RUN
        self.job = job = Job(self.wizard.VERB, self.wizard.run)
        return job

    def ran(self, job: Job[PlanOutcome]) -> None:
        if job is not self.job:
            return
        self.job = None
        self.step, self.problem = WizardStep.RESULT, job.problem
        self.cancelled = job.state is JobState.CANCELLED
        if job.state is JobState.DONE:
            self.outcome = job.result

    def back(self) -> bool:
        """Returns to the previous step; False in the first step and after a finished run."""
        if self.step is WizardStep.CONFIRM:
            self.step = WizardStep.PREVIEW
        elif self.step is WizardStep.CHOOSE or (self.step is WizardStep.RESULT and self.outcome is not None):
            return False
        elif self.step in (WizardStep.PREVIEW, WizardStep.RESULT):
            self.step, self.problem, self.cancelled = WizardStep.CHOOSE, None, False
        return True

    @property
    def writing(self) -> str:
        return (
            f"{self.wizard.VERB} is at work on {name_text(self.wizard.source.name)}"
            if self.step is WizardStep.RUN
            else ""
        )


class PhaseProgress:
    """Progress of a job, phase by phase, in a `unit` such as `bytes`. `clock` returns seconds."""

    def __init__(self, job: Job[Any], unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._unit = unit
        self._clock = clock
        self._phase = ""
        self._begun = clock()

    def line(self, width: int) -> list[Cell]:
        """Returns phase, bar (of `width` columns), rate and remaining time."""
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
            amount = format_size(done) if self._unit == "bytes" else counted(done, self._unit.removesuffix("s"))
            cells.append(amount if done else "…")
        if seconds >= _SETTLED and done > 0:
            cells.append((f"  {format_pace(done, seconds, self._unit)}", "dim"))
            if total > done:
                cells.append((format_left((total - done) * seconds / done), "dim"))
        return cells
