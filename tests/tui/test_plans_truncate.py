"""The wizard of truncate-bad-eof: to the byte what the command line, and the server, does; in place, with a backup."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import ExitCode, StantoolsError
from tests.conftest import load_expected
from tests.tui import wizards
from tests.tui.conftest import check_sizes, scanned, screen_text, until
from tui.jobs import Job, JobState
from tui.plans import truncate
from tui.plans.flow import WizardStep
from tui.plans.truncate import TruncateWizard

TORN = "dmg_last_slice_cut_payload_noidx"


pytestmark = pytest.mark.usefixtures("steady_disk")


@pytest.mark.parametrize("case", [TORN, "dmg_last_slice_cut_header", "dmg_subs_cut_payload", "dmg_clients_cut_header"])
def test_equal_to_the_command_line_and_the_server(
    case: str, golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = golden_copy(case)
    before = wizards.snapshot(root)
    wizard = wizards.fill(TruncateWizard(wizards.source(root)), backup=str(tmp_path / "backups"))
    preview = wizards.look(wizard)
    assert not preview.obstacles and not preview.idle
    assert wizards.snapshot(root) == before
    outcome = wizards.run(wizard)
    assert outcome.changed and outcome.report.code == ExitCode.CLEAN
    changed = load_expected(case)["server_open_truncate"]["files_changed_by_recovery"]
    for name, sizes in changed.items():
        assert (root / name).stat().st_size == sizes["size_after"]
    after = wizards.snapshot(root)
    root.rename(tmp_path / "by-the-wizard")
    again = golden_copy(case)
    told = wizards.command_line("truncate-bad-eof", again, "--backup", tmp_path / "others", "--yes")
    assert told.exit_code == outcome.report.code
    assert wizards.snapshot(again) == after
    saved = [path for path in (tmp_path / "backups").rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert saved
    for path in saved:
        assert path.read_bytes() == (tmp_path / "others" / path.relative_to(tmp_path / "backups")).read_bytes()


def test_refused_where_salvage_keeps_more(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("dmg_early_slice_cut_payload_noidx")
    wizard = wizards.fill(TruncateWizard(wizards.source(root)), backup=str(tmp_path / "backups"))
    preview = wizards.look(wizard)
    told = wizards.command_line("truncate-bad-eof", root, "--dry-run", "-o", "json")
    assert bool(preview.obstacles) == bool('"refusals": []' not in told.stdout)


def test_nothing_to_do(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("basic")
    preview = wizards.look(TruncateWizard(wizards.source(root)))
    assert preview.idle.startswith("nothing to repair: no file ends inside a record; but")
    assert f"stantools verify {root}" in preview.idle


def test_cancelled_while_the_backup_is_made(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy(TORN)
    before = wizards.snapshot(root)
    wizard = wizards.fill(TruncateWizard(wizards.source(root)), backup=str(tmp_path / "backups"))
    wizards.look(wizard)
    job = wizards.cancelled_midway(wizard, phase="saving the bytes to remove")
    assert job.state is JobState.CANCELLED
    assert wizards.snapshot(root) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [TORN]
    wizards.look(wizard)
    assert wizards.run(wizard).report.code == ExitCode.CLEAN


def test_a_full_disk(golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden_copy(TORN)
    before = wizards.snapshot(root)
    wizard = wizards.fill(TruncateWizard(wizards.source(root)), backup=str(tmp_path / "backups"))
    wizards.look(wizard)

    opened = Path.open

    def full(path: Path, *given: Any, **named: Any) -> Any:
        if tmp_path / "backups" in path.parents and "files" in path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StantoolsError, match="No space left"):
        wizards.run(wizard)
    assert wizards.snapshot(root) == before


def test_a_store_that_changed_meanwhile(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy(TORN)
    wizard = wizards.fill(TruncateWizard(wizards.source(root)), backup=str(tmp_path / "backups"))
    wizards.look(wizard)
    with (root / "alpha" / "msgs.3.dat").open("ab") as file:
        file.write(b"more")
    job = Job("run", wizard.run)
    job.start().wait(60)
    assert job.problem is not None and "was planned" in job.problem.message


async def test_on_the_screen(
    golden_copy: Callable[[str], Path],
    browse: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = golden_copy(TORN)
    root = root.rename(root.with_name("datastore"))
    monkeypatch.chdir(root.parent)
    monkeypatch.setattr(truncate, "default_backup", lambda store: Path(f"{store}.truncated"))

    async with browse("datastore") as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "truncate-bad-eof")
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await check_sizes(pilot, "plans-truncate-preview")
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.CONFIRM)
        assert "The store itself is changed" in screen_text(app)
        await pilot.press("escape")
        await wizards.step(pilot, WizardStep.PREVIEW)
        revision = app.session.revision
        await wizards.confirm(pilot)
        await wizards.step(pilot, WizardStep.RESULT)
        await until(pilot, lambda: app.session.revision > revision)
        await scanned(pilot)
        app.clear_notifications()
        await until(pilot, lambda: "unlocked:" not in screen_text(app))
        await check_sizes(pilot, "plans-truncate-result")
        # The session has been read anew: the broken end is gone from the findings.
        assert not any(each.severity == "error" for each in app.session.findings())
    assert (root / ".truncate.lck").exists()
