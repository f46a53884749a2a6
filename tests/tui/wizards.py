"""Going through wizards: without a screen, and with one."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.recovery.salvage.manifest import MANIFEST_FILE
from tests.tui.conftest import until
from tui.jobs import Job
from tui.plans.flow import WizardStep
from tui.plans.wizard import PlanOutcome, PlanPreview, SourceStore, Wizard
from tui.views import View, ViewTarget

_T = TypeVar("_T")


def source(path: Path, **more: Any) -> SourceStore:
    """Opens a store as the browser does."""
    return SourceStore(path, **more)


def done(job: Job[_T]) -> _T:
    """Waits for a job and returns its result; raises what it failed with."""
    job.start().wait(100)
    if job.problem is not None:
        raise job.problem
    return job.result


def look(wizard: Wizard) -> PlanPreview:
    return done(Job("look", wizard.preview))


def run(wizard: Wizard) -> PlanOutcome:
    return done(Job("run", wizard.run))


def fill(wizard: Wizard, **values: str) -> Wizard:
    """Fills in fields; underscores stand for dashes."""
    for name, value in values.items():
        wizard.form.fields[name.replace("_", "-")].value = value
    return wizard


def cancelled_midway(wizard: Wizard, *, after: int = 1, phase: str = "") -> Job[PlanOutcome]:
    """Carries a plan out and cancels it, in a phase, when something has been done in it."""
    steps = 0

    class Stopped(Job[PlanOutcome]):
        def advance(self, count: int) -> None:
            nonlocal steps
            if not phase or self.phase == phase:
                steps += 1
                if steps >= after:
                    self.cancel()
            super().advance(count)

    job: Job[PlanOutcome] = Stopped("run", wizard.run)
    job.start().wait(100)
    assert steps >= after, f"only {steps} steps in {job.phase}"
    return job


def snapshot(root: Path) -> dict[str, str]:
    """Every file with its hash, and every directory; what was made by whom and when does not count."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir():
            found[name] = "directory"
        elif path.name == MANIFEST_FILE:
            found[name] = json.dumps(json.loads(path.read_text()), sort_keys=True)
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def command_line(*words: object) -> Any:
    """Runs the command line."""
    return CliRunner().invoke(cli, [str(word) for word in words], prog_name="stantools")


class Gate:
    """Holds the work of a job at a point, until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


def gated(function: Callable[..., _T], gate: Gate) -> Callable[..., _T]:
    """Makes a function that takes `progress` wait at the gate when it tells something for the first time."""

    def held(*arguments: Any, progress: Any = None, **more: Any) -> _T:
        def advance(count: int) -> None:
            gate.wait()
            progress(count)

        return function(*arguments, progress=advance, **more)

    return held


async def open_wizard(pilot: Any, verb: str) -> None:
    """Opens a wizard."""
    pilot.app.open_view(View.PLANS, ViewTarget(plan=verb), above=True)
    await until(pilot, lambda: hasattr(pilot.app.screen, "flow") and pilot.app.screen.flow.wizard.command()[1] == verb)


async def step(pilot: Any, wanted: WizardStep) -> None:
    """Waits until the wizard has come to a step."""
    await until(pilot, lambda: pilot.app.screen.flow.step is wanted)
    await pilot.pause()


async def type_text(pilot: Any, text: str) -> None:
    await pilot.press(*text)


async def confirm(pilot: Any) -> None:
    """Goes from the preview to the result, as a user does."""
    await pilot.press("enter")
    await step(pilot, WizardStep.CONFIRM)
    if not pilot.app.unlocked:
        await pilot.press("W")
        await until(pilot, lambda: pilot.app.focused is not None)
    await type_text(pilot, pilot.app.screen.flow.wizard.source.name)
    await pilot.press("enter")
