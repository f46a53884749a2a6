"""The salvage wizard: without a screen, equal to the command line; with one, from a broken store to a clean one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from stantools.errors import ExitCode, RefusedError, StantoolsError, StoreUnwritableError, UsageError
from stantools.recovery import place
from stantools.store import locks
from tests.conftest import others_slow
from tests.tui import wizards
from tests.tui.conftest import check_sizes, scanned, screen_text, until
from tui.jobs import JobState
from tui.plans import salvage
from tui.plans.flow import WizardFlow, WizardStep
from tui.plans.form import FieldError
from tui.plans.salvage import SalvageWizard
from tui.screens import wizard as screen_module
from tui.screens.dialogs import QuestionScreen

BROKEN = "dmg_payload_flip_noidx"


pytestmark = pytest.mark.usefixtures("steady_disk")


@pytest.mark.parametrize(
    "case",
    others_slow(
        (
            "basic",
            BROKEN,
            "dmg_crc_flip_noidx",
            "dmg_server_payload_flip",
            "dup_slice_after",
            "crc_castagnoli",
            "durables",
        ),
        (BROKEN, "crc_castagnoli", "durables"),
    ),
)
def test_equal_to_the_command_line(case: str, golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy(case)
    before = wizards.snapshot(root)
    wizard = wizards.fill(SalvageWizard(wizards.source(root)), out=str(tmp_path / "one"))
    preview = wizards.look(wizard)
    assert not preview.obstacles
    assert not (tmp_path / "one").exists()
    outcome = wizards.run(wizard)
    told = wizards.command_line("salvage", root, "--out", tmp_path / "two", "--progress", "none")
    assert outcome.report.code == told.exit_code
    assert wizards.snapshot(tmp_path / "one") == wizards.snapshot(tmp_path / "two")
    assert wizards.snapshot(root) == before
    assert outcome.opens == tmp_path / "one"


def test_options_reach_the_plan(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy(BROKEN)
    wizard = SalvageWizard(wizards.source(root))
    wizards.fill(wizard, out=str(tmp_path / "one"), channel="alpha", fill_gaps="yes", archived="yes")
    wizards.look(wizard)
    wizards.run(wizard)
    words = wizard.command()
    assert words[3:] == ["--out", str(tmp_path / "one"), "--channel", "alpha", "--fill-gaps", "--archived"]
    two = [str(tmp_path / "two") if word == str(tmp_path / "one") else word for word in words]
    assert wizards.command_line(*two[1:]).exit_code in (0, 5)
    assert wizards.snapshot(tmp_path / "one") == wizards.snapshot(tmp_path / "two")


def test_what_stands_in_the_way(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("basic")
    wizard = SalvageWizard(wizards.source(root))
    inside = wizards.look(wizards.fill(wizard, out=str(root / "new")))
    assert isinstance(inside.obstacles[0], RefusedError)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    [there] = wizards.look(wizards.fill(wizard, out=str(tmp_path / "there"))).obstacles
    assert isinstance(there, StoreUnwritableError)
    assert "is not empty" in there.message
    [nowhere] = wizards.look(wizards.fill(wizard, out=str(tmp_path / "no" / "where"))).obstacles
    assert "there is no directory" in nowhere.message
    with pytest.raises(FieldError) as told:
        wizards.look(wizards.fill(wizard, out=" "))
    assert told.value.name == "out"
    with pytest.raises(UsageError, match="no channel matches nothing"):
        wizards.look(wizards.fill(wizard, out=str(tmp_path / "new"), channel="nothing"))


def test_too_little_room(golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wizard = wizards.fill(SalvageWizard(wizards.source(golden_copy("basic"))), out=str(tmp_path / "new"))
    monkeypatch.setattr(place, "free_bytes", lambda _: 100)
    flow = WizardFlow(wizard)
    job = flow.look()
    wizards.done(job)
    flow.looked(job)
    assert "100 bytes are free" in flow.obstacle()
    assert not flow.confirm()


def test_a_store_in_use(golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use = locks.StoreUse("lock", "process 7 holds the lock", 7)
    monkeypatch.setattr(locks, "find_uses", lambda *_, **__: [use])
    wizard = wizards.fill(SalvageWizard(wizards.source(golden_copy("basic"))), out=str(tmp_path / "new"))
    [told] = wizards.look(wizard).obstacles
    assert "process 7" in told.message
    forced = wizards.look(wizards.fill(wizard, force="yes"))
    assert not forced.obstacles
    assert any("process 7" in each.text for each in forced.warnings)


@pytest.mark.parametrize("phase", ["writing", "verifying"])
def test_cancelled(phase: str, golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("basic")
    before = wizards.snapshot(root)
    wizard = wizards.fill(SalvageWizard(wizards.source(root)), out=str(tmp_path / "new"))
    wizards.look(wizard)
    job = wizards.cancelled_midway(wizard, after=1, phase=phase)
    assert wizards.snapshot(root) == before
    if phase == "writing":
        assert job.state is JobState.CANCELLED
        assert sorted(path.name for path in tmp_path.iterdir()) == ["basic"]
        # And again, now to the end.
        wizards.look(wizard)
        assert wizards.run(wizard).report.code == ExitCode.CLEAN
    else:
        assert job.result.report.code == ExitCode.INTERRUPTED
        assert "not verified" in job.result.report.verdict
        assert wizards.command_line("verify", tmp_path / "new").exit_code == 0


def test_a_full_disk(golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden_copy("basic")
    before = wizards.snapshot(root)
    wizard = wizards.fill(SalvageWizard(wizards.source(root)), out=str(tmp_path / "new"))
    wizards.look(wizard)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("stantools.store.durable.os.write", full)
    with pytest.raises(StantoolsError, match="No space left"):
        wizards.run(wizard)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["basic"]
    assert wizards.snapshot(root) == before


# On the screen


async def test_from_a_broken_store_to_a_clean_one(
    golden_copy: Callable[[str], Path],
    browse: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = golden_copy(BROKEN)
    root.rename(root.with_name("datastore"))
    before = wizards.snapshot(root.with_name("datastore"))
    monkeypatch.chdir(root.parent)
    gate = wizards.Gate()
    monkeypatch.setattr(salvage, "apply_salvage", wizards.gated(salvage.apply_salvage, gate))

    async def check(pilot: Any, name: str) -> None:
        await check_sizes(pilot, f"plans-salvage-{name}", layout=name in ("preview", "result"))

    async with browse("datastore") as pilot:
        app = pilot.app
        await pilot.press("p")
        await until(pilot, lambda: hasattr(app.screen, "flow"))
        await until(pilot, lambda: app.focused is not None)
        await check(pilot, "choose")
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await check(pilot, "preview")
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.CONFIRM)
        await check(pilot, "locked")
        await pilot.press("W")
        await until(pilot, lambda: isinstance(app.focused, Input))
        app.clear_notifications()
        await until(pilot, lambda: "unlocked:" not in screen_text(app))
        await wizards.type_text(pilot, "Datastore")
        await pilot.press("enter")
        await until(pilot, lambda: "exactly" in screen_text(app))
        assert app.screen.flow.step is WizardStep.CONFIRM
        await check(pilot, "wrong-name")
        app.focused.value = ""
        await wizards.type_text(pilot, "datastore")
        await pilot.press("enter")
        await until(pilot, gate.reached.is_set)
        await until(pilot, lambda: "writing" in screen_text(app))
        monkeypatch.setattr(screen_module.PhaseProgress, "line", lambda self, width: [self._job.phase])
        await until(pilot, lambda: "%" not in screen_text(app))
        await check(pilot, "run")
        await pilot.press("q")
        await until(pilot, lambda: "cancel it first" in screen_text(app))
        await pilot.press("1")
        assert app.screen.flow.step is WizardStep.RUN
        gate.open()
        await wizards.step(pilot, WizardStep.RESULT)
        app.clear_notifications()
        await until(pilot, lambda: "cancel it first" not in screen_text(app))
        await check(pilot, "result")
        await pilot.press("o")
        await until(pilot, lambda: str(app.session.path) == "datastore.salvaged")
        await scanned(pilot)
        assert "nothing damaged, 1 missing before" in screen_text(app)
        assert not app.unlocked
        await pilot.press("f", "escape", "7")
        await until(pilot, lambda: "plans" in screen_text(app))
    assert wizards.snapshot(root.with_name("datastore")) == before


async def test_nothing_starts_while_locked(
    golden_copy: Callable[[str], Path], browse: Callable[..., Any], tmp_path: Path
) -> None:
    root = golden_copy("basic")

    async with browse(root) as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "salvage")
        await until(pilot, lambda: "Read only: W" in screen_text(app))
        await pilot.press("W")
        await until(pilot, lambda: "Read only: W" not in screen_text(app))
        await pilot.press("W")
        await until(pilot, lambda: "Read only: W" in screen_text(app))
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.CONFIRM)
        assert "press W to allow changes" in screen_text(app)
        await wizards.type_text(pilot, "basic")
        await pilot.press("enter")
        assert app.screen.flow.step is WizardStep.CONFIRM
        await pilot.press("W")
        await until(pilot, lambda: isinstance(app.focused, Input))
        # Locked again while the name is typed: the answer does not count any more.
        await wizards.type_text(pilot, "basic")
        app.action_unlock()
        await until(pilot, lambda: "press W to allow changes" in screen_text(app))
        await pilot.press("enter")
        assert app.screen.flow.step is WizardStep.CONFIRM
        await pilot.press("escape")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await pilot.press("escape")
        await wizards.step(pilot, WizardStep.CHOOSE)
        await pilot.press("escape", "escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["basic"]


async def test_cancelled_on_the_screen(
    golden_copy: Callable[[str], Path],
    browse: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = golden_copy(BROKEN)
    before = wizards.snapshot(root)
    gate = wizards.Gate()
    monkeypatch.setattr(salvage, "apply_salvage", wizards.gated(salvage.apply_salvage, gate))

    async with browse(root) as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "salvage")
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await wizards.confirm(pilot)
        await until(pilot, gate.reached.is_set)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, QuestionScreen))
        await pilot.press("n")
        await until(pilot, lambda: hasattr(app.screen, "flow"))
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, QuestionScreen))
        await pilot.press("y")
        await until(pilot, lambda: hasattr(app.screen, "flow"))
        gate.open()
        await wizards.step(pilot, WizardStep.RESULT)
        assert "cancelled" in screen_text(app)
        await pilot.press("escape")
        await wizards.step(pilot, WizardStep.CHOOSE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [BROKEN]
    assert wizards.snapshot(root) == before


async def test_errors_keep_the_form(
    golden_copy: Callable[[str], Path],
    browse: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = golden_copy("basic")
    (tmp_path / "there").write_text("a file")

    async with browse(root) as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "salvage")
        await until(pilot, lambda: app.focused is not None)
        await pilot.press("down")
        app.focused.value = str(tmp_path / "there")
        await pilot.press("down")
        await wizards.type_text(pilot, "foo")
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        assert "exists already" in " ".join(screen_text(app).split())
        await pilot.press("enter")
        assert app.screen.flow.step is WizardStep.PREVIEW
        await pilot.press("escape")
        await wizards.step(pilot, WizardStep.CHOOSE)
        assert app.screen.flow.wizard.form.text("channel") == "foo"
        assert "foo" in screen_text(app)
        # A field that makes no sense is gone to at once.
        await pilot.press("down")
        await until(pilot, lambda: isinstance(app.focused, Input))
        app.focused.value = ""
        await pilot.press("enter")
        await until(pilot, lambda: "no directory for the new store" in screen_text(app))
        assert app.screen.flow.step is WizardStep.CHOOSE
        assert app.focused.field.name == "out"

        # So does a run that fails.
        def full(*_: Any, **__: Any) -> None:
            raise StoreUnwritableError("/there: cannot be written: No space left on device", "free some space")

        monkeypatch.setattr(salvage, "apply_salvage", full)
        app.focused.value = str(tmp_path / "new")
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await wizards.confirm(pilot)
        await wizards.step(pilot, WizardStep.RESULT)
        assert "No space left on device" in screen_text(app)
        assert "→ free some space" in screen_text(app)
        await pilot.press("o", "enter", "escape")
        await wizards.step(pilot, WizardStep.CHOOSE)
        assert app.screen.flow.wizard.form.text("channel") == "foo"


async def test_leaving_the_program_cancels(
    golden_copy: Callable[[str], Path],
    browse: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = golden_copy("basic")
    gate = wizards.Gate()
    monkeypatch.setattr(salvage, "apply_salvage", wizards.gated(salvage.apply_salvage, gate))
    found: list[Any] = []

    async with browse(root) as pilot:
        await wizards.open_wizard(pilot, "salvage")
        await until(pilot, lambda: pilot.app.focused is not None)
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await wizards.confirm(pilot)
        await until(pilot, gate.reached.is_set)
        job = pilot.app.screen.flow.job
        found.append(job)
        cancel = job.cancel

        def cancelled() -> None:
            cancel()
            gate.open()

        monkeypatch.setattr(job, "cancel", cancelled)
    assert found[0].wait(60) and found[0].state is JobState.CANCELLED
    assert [path.name for path in tmp_path.iterdir()] == ["basic"]
