"""The export wizard: the same rows as the command line writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import ExitCode, RefusedError, StantoolsError, StoreUnwritableError
from stantools.store.sample import SampleOptions, write_sample
from tests.tui import wizards
from tests.tui.conftest import check_sizes, screen_text, until
from tui.jobs import JobState
from tui.plans.export import ExportWizard
from tui.plans.flow import WizardStep
from tui.plans.form import FieldError

pytest.importorskip("pyarrow")


pytestmark = pytest.mark.usefixtures("steady_disk")


def rows(target: Path) -> Any:
    """What was exported: rows, whatever files they are in."""
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    if target.suffix == ".ndjson":
        return [json.loads(line) for line in target.read_text().splitlines()]
    if target.suffix == ".csv":
        return target.read_text()
    if target.is_file():
        return pq.read_table(target).to_pylist()
    return ds.dataset(sorted(target.rglob("*.parquet")), format="parquet").to_table().to_pylist()


@pytest.mark.parametrize(
    ("values", "suffix"),
    [
        ({}, ""),
        ({"channel": "b* a*.>  alpha  >", "seq": "5:20"}, ".ndjson"),
        ({"table": "subscriptions"}, ".csv"),
        ({"by": "channel,date", "columns": "seq,data"}, ""),
        ({"mode": "DROPMALFORMED", "since": "2000-01-01T00:00:00Z"}, ".parquet"),
        ({"table": "findings"}, ".ndjson"),
    ],
)
@pytest.mark.parametrize("case", ["basic", "dmg_payload_flip_noidx"])
def test_equal_to_the_command_line(
    case: str, values: dict[str, str], suffix: str, golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = golden_copy(case)
    before = wizards.snapshot(root)
    one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    wizard = wizards.fill(ExportWizard(wizards.source(root)), to=str(one), **values)
    assert not wizards.look(wizard).obstacles
    assert not one.exists()
    outcome = wizards.run(wizard)
    told = wizards.command_line(*(str(two) if word == str(one) else word for word in wizard.command()[1:]))
    assert told.exit_code == outcome.report.code, told.stderr
    assert rows(one) == rows(two)
    assert wizards.snapshot(root) == before


def test_what_stands_in_the_way(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("basic")
    wizard = ExportWizard(wizards.source(root))
    [inside] = wizards.look(wizards.fill(wizard, to=str(root / "new"))).obstacles
    assert isinstance(inside, RefusedError)
    (tmp_path / "there.csv").touch()
    [there] = wizards.look(wizards.fill(wizard, to=str(tmp_path / "there.csv"))).obstacles
    assert isinstance(there, StoreUnwritableError)
    for name, value in (("to", "-"), ("to", "s3://x"), ("to", ""), ("seq", "a"), ("since", "soon"), ("file_size", "x")):
        with pytest.raises(FieldError, match=f"--{name.replace('_', '-')}"):
            wizards.look(wizards.fill(ExportWizard(wizards.source(root)), **{name: value}))
    for name, value in (("columns", "nothing"), ("by", "moon"), ("channel", "none")):
        with pytest.raises(StantoolsError):
            wizards.look(wizards.fill(ExportWizard(wizards.source(root)), **{name: value}))


def test_an_earlier_export_is_replaced(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    wizard = wizards.fill(ExportWizard(wizards.source(golden_copy("basic"))), to=str(tmp_path / "new"))
    wizards.look(wizard)
    wizards.run(wizard)
    [there] = wizards.look(wizard).obstacles
    assert "--overwrite" in there.remedy
    assert not wizards.look(wizards.fill(wizard, overwrite="yes")).obstacles
    assert wizards.run(wizard).report.code == ExitCode.CLEAN


@pytest.mark.parametrize("suffix", ["", ".ndjson", ".parquet"])
def test_cancelled(suffix: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_sample(root, SampleOptions(channels=4, messages=3000))
    before = wizards.snapshot(root)
    wizard = wizards.fill(ExportWizard(wizards.source(root)), to=str(tmp_path / f"new{suffix}"))
    wizards.look(wizard)
    assert wizards.cancelled_midway(wizard, phase="writing").state is JobState.CANCELLED
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert wizards.snapshot(root) == before
    wizards.look(wizard)
    assert wizards.run(wizard).report.code == ExitCode.CLEAN


async def test_on_the_screen(
    golden_copy: Callable[[str], Path],
    browse: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = golden_copy("dmg_payload_flip_noidx")
    root = root.rename(root.with_name("datastore"))
    monkeypatch.chdir(root.parent)

    async with browse("datastore") as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "export")
        await until(pilot, lambda: app.focused is not None)
        await pilot.press("down")
        app.focused.value = "all.csv"
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await check_sizes(pilot, "plans-export-preview")
        await wizards.confirm(pilot)
        await wizards.step(pilot, WizardStep.RESULT)
        assert "1 row of the table messages reports a problem" in screen_text(app)
        await pilot.press("escape", "escape", "escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
    assert len((root.parent / "all.csv").read_text().splitlines()) > 50
