"""The compact wizard: equal to the command line, beside the store and in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import ExitCode, RefusedError, StantoolsError
from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import others_slow
from tests.tui import wizards
from tests.tui.conftest import check_sizes, scanned, screen_text, until
from tui.jobs import JobState
from tui.plans.compact import CompactWizard
from tui.plans.flow import WizardStep

pytestmark = pytest.mark.usefixtures("steady_disk")


@pytest.mark.parametrize(
    "values",
    [{}, {"max_msgs": "10"}, {"drop_orphans": "yes", "slice_msgs": "7"}, {"max_age": "1h", "max_bytes": "2k"}],
    ids=["plain", "messages", "orphans", "age"],
)
def test_equal_to_the_command_line(values: dict[str, str], golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("basic")
    before = wizards.snapshot(root)
    wizard = wizards.fill(CompactWizard(wizards.source(root)), out=str(tmp_path / "one"), **values)
    assert not wizards.look(wizard).obstacles
    outcome = wizards.run(wizard)
    words = [str(tmp_path / "two") if word == str(tmp_path / "one") else word for word in wizard.command()[1:]]
    told = wizards.command_line(*words)
    assert told.exit_code == outcome.report.code == ExitCode.CLEAN, told.stderr
    assert wizards.snapshot(tmp_path / "one") == wizards.snapshot(tmp_path / "two")
    assert wizards.snapshot(root) == before
    assert outcome.opens == tmp_path / "one" and not outcome.changed


def test_in_place(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("compaction")
    before = wizards.snapshot(root)
    wizard = wizards.fill(
        CompactWizard(wizards.source(root)), in_place="yes", backup=str(tmp_path / "old"), drop_orphans="yes"
    )
    assert wizard.changes_store
    assert wizard.command()[3:] == ["--in-place", "--backup", str(tmp_path / "old"), "--drop-orphans", "--yes"]
    assert not wizards.look(wizard).obstacles
    outcome = wizards.run(wizard)
    assert outcome.changed and outcome.opens is None
    assert wizards.snapshot(tmp_path / "old") == before
    told = wizards.command_line("compact", tmp_path / "old", "--out", tmp_path / "two", "--drop-orphans")
    assert told.exit_code == 0
    assert wizards.snapshot(tmp_path / "two") == wizards.snapshot(root)


def test_a_damaged_store_is_refused(golden_copy: Callable[[str], Path]) -> None:
    wizard = CompactWizard(wizards.source(golden_copy("dmg_payload_flip_noidx")))
    with pytest.raises(RefusedError, match="is damaged") as told:
        wizards.look(wizard)
    assert "salvage" in told.value.remedy


def test_fields_that_make_no_sense(golden_copy: Callable[[str], Path]) -> None:
    wizard = CompactWizard(wizards.source(golden_copy("basic")))
    for name, value in (("max_msgs", "-1"), ("max_bytes", "much"), ("max_age", "old"), ("out", "")):
        with pytest.raises(StantoolsError, match=f"--{name.replace('_', '-')}"):
            wizards.look(wizards.fill(wizard, **{name: value}))
        wizards.fill(wizard, **{name: ""})


@pytest.mark.parametrize("in_place", [False, True], ids=["beside", "in place"])
@pytest.mark.parametrize("after", [1, 5])
def test_cancelled(in_place: bool, after: int, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_sample(root, SampleOptions(channels=6, messages=2000))
    before = wizards.snapshot(root)
    wizard = CompactWizard(wizards.source(root))
    wizards.fill(wizard, out=str(tmp_path / "new"), in_place="yes" if in_place else "no")
    wizards.look(wizard)
    job = wizards.cancelled_midway(wizard, after=after, phase="writing")
    assert job.state is JobState.CANCELLED
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert wizards.snapshot(root) == before


async def test_in_place_on_the_screen(
    golden_copy: Callable[[str], Path],
    browse: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = golden_copy("compaction")
    root = root.rename(root.with_name("datastore"))
    monkeypatch.chdir(root.parent)

    async with browse("datastore") as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "compact")
        await until(pilot, lambda: app.focused is not None)
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await check_sizes(pilot, "plans-compact-preview")
        await pilot.press("escape")
        await wizards.step(pilot, WizardStep.CHOOSE)
        await pilot.press("down", "down", "space", "down")
        await wizards.type_text(pilot, "old")
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await wizards.confirm(pilot)
        await wizards.step(pilot, WizardStep.RESULT)
        await scanned(pilot)
        assert "the compacted store was read back" in screen_text(app)
        assert "✓ clean" in screen_text(app)
        assert any("--in-place" in line for line in app.commands)
    assert (root.parent / "old" / "server.dat").exists()


@pytest.mark.parametrize("times", others_slow([1, 2], [1]))
async def test_a_new_store_is_opened(
    times: int, golden_copy: Callable[[str], Path], browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden_copy("compaction")
    monkeypatch.chdir(root.parent)

    async with browse("compaction") as pilot:
        app = pilot.app
        for number in range(1, times + 1):
            await wizards.open_wizard(pilot, "compact")
            await until(pilot, lambda: app.focused is not None)
            await pilot.press("enter")
            await wizards.step(pilot, WizardStep.PREVIEW)
            await wizards.confirm(pilot)
            await wizards.step(pilot, WizardStep.RESULT)
            await pilot.press("o")
            name = "compaction" + ".compacted" * number
            await until(pilot, lambda name=name: str(app.session.path) == name)
            await scanned(pilot)
            assert not app.unlocked and len(app.screen_stack) == 1
        await wizards.open_wizard(pilot, "compact")
        assert app.screen.flow.wizard.command()[2:] == [name, "--out", f"{name}.compacted"]
