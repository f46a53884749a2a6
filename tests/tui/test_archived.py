"""A store in an archive: no view, command or plan names the private copy, and nothing uses or changes that."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.sources.door import open_source
from stantools.sources.source import Source
from tests.tui.conftest import LARGE, idle, screen_text, until
from tui.jobs import Job
from tui.plans.wizard import WIZARDS, PlanPreview, SourceStore
from tui.views import View, ViewTarget

PRIVATE = "/private/stantools-"


@pytest.fixture
def archived(tmp_path: Path, golden: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """An archive with a damaged store, opened as `stantools tui` opens it."""
    (tmp_path / "private").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "private"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    shutil.make_archive("backup", "zip", golden / "dmg_payload_flip_idx_intact")
    source = open_source(Path("backup.zip"))
    yield source
    source.release()
    assert not list((tmp_path / "private").iterdir())


async def test_every_view(archived: Source, browse: Callable[..., Any]) -> None:
    async with browse(archived.place, size=LARGE) as pilot:
        session = pilot.app.session
        assert not session.uses and session.root_findings is not None
        seen = []
        channel = next(iter(session.channels))
        finding = next(each for each in session.findings() if each.file)
        places = [(view, ViewTarget(channel=channel)) for view in View if view is not View.LIVE]
        for view, place in [
            *places,
            (View.SLICES, ViewTarget(channel=channel, file=finding.file, offset=finding.offset)),
        ]:
            pilot.app.open_view(view, place)
            await until(pilot, lambda: pilot.app.screen.up_to_date)
            await idle(pilot)
            seen.append(screen_text(pilot.app))
        pilot.app.close_views()
        text = "\n".join([*seen, *pilot.app.commands])
        assert PRIVATE not in text
        assert "stantools salvage backup.zip --out backup.zip.salvaged" in text
        assert f"stantools messages backup.zip {channel}" in text


@pytest.mark.parametrize("verb", [each.verb for each in WIZARDS])
def test_every_plan(verb: str, archived: Source) -> None:
    wizard = next(each for each in WIZARDS if each.verb == verb).make(SourceStore(archived.place))
    words = " ".join(wizard.command())
    values = [field.value for field in wizard.form]
    assert "backup.zip" in words and PRIVATE not in words and not any(PRIVATE in each for each in values)
    if "in-place" in wizard.form.fields:
        wizard.form.fields["in-place"].value = "yes"
    previews: list[PlanPreview] = []

    def look(job: Job[None]) -> None:
        previews.append(wizard.preview(job))  # type: ignore[arg-type]

    job = Job("plan", look)
    job.start().wait(60)
    if previews:
        report = previews[0].report
        listed = (*previews[0].warnings, *report.warnings, *(one for each in report.remarks for one in each.remarks))
        remarks = [each.text for each in listed]
        assert not any("in use" in each or ("written" in each and "ago" in each) for each in remarks), remarks
        changing = any("never changed" in each.message for each in previews[0].obstacles)
        assert changing == wizard.changes_store
