"""Wizard of `truncate-bad-eof`: the server's own repair, exact to the byte, with a backup of the removed bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

from stantools.errors import ExitCode
from stantools.inspection.forecast.server_options import SERVER_VERSIONS, own_server
from stantools.notation import format_size
from stantools.options import FORCE, Option
from stantools.recovery.place import check_outside, check_room
from stantools.recovery.recovery_options import BACKUP
from stantools.recovery.truncate import TruncationPlan, apply_truncation, plan_truncation
from stantools.recovery.truncate.apply import refusal
from stantools.recovery.truncate.backup import default_backup, saved_bytes
from stantools.recovery.truncate.truncation_report import truncation_report
from tui.cells import counted, name_text
from tui.jobs import Job
from tui.plans.form import field_of
from tui.plans.wizard import PlanOutcome, PlanPreview, SourceStore, Wizard


class TruncateWizard(Wizard[TruncationPlan]):
    VERB = "truncate-bad-eof"
    UNCHECKED = True
    MEANINGS: ClassVar[Mapping[ExitCode, str]] = {
        ExitCode.CLEAN: "only broken ends were cut off",
        ExitCode.LOSS: "done; intact records were cut off as well",
        ExitCode.FINDINGS: "done, and a start would still fail or destroy data",
    }

    def __init__(self, source: SourceStore) -> None:
        backup = os.fspath(default_backup(source.named))
        super().__init__(
            source,
            field_of(
                "backup",
                BACKUP.like(default=backup if backup.isprintable() else ""),
                "new directory for a backup of the removed bytes",
            ),
            field_of(
                "server_version",
                Option(help="", default=SERVER_VERSIONS[0], choices=SERVER_VERSIONS),
                "which server's repair",
            ),
            field_of(
                "force", FORCE, "continue although salvage would keep more, or a server seems to be using the store"
            ),
        )
        self._backup = Path()

    @property
    def changes_store(self) -> bool:
        return True

    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> TruncationPlan:
        source, force = self.source, self.form.flag("force")
        backup = self._backup = self.form.needed("backup", "no directory for the backup")
        store = source.open()
        self.look_for_uses(job, preview, "it may write to the files under repair")
        job.begin_phase("forecasting", store.data_size(store.channel_names))
        version = self.form.text("server-version")
        server = own_server(store, version=version, workers=source.workers)
        plan = plan_truncation(store, server, progress=job.advance)
        job.begin_phase("reading the bytes to remove")
        preview.report = truncation_report(plan, force=force)
        if plan.idle and not force:
            preview.idle = plan.idle
            return plan
        preview.report.facts.append(("backup", name_text(backup)))
        preview.add_free(backup / "1")
        if plan.refusals and not force:
            preview.obstacles.append(refusal(plan))
        room = partial(check_room, backup / "1", saved_bytes(plan.steps))
        preview.attempt(partial(check_outside, store.path, backup), room)
        return plan

    def question(self) -> str:
        cut, changed = len(self.plan.cuts), len(self.plan.to_do)
        saved = format_size(saved_bytes(self.plan.steps))
        store, backup = self.source.shown, name_text(self._backup)
        return (
            f"{counted(cut, 'file')} of {store} {'is' if cut == 1 else 'are'} cut, {counted(changed, 'file')} changed "
            f"in all; first, {saved} are saved in {backup}."
        )

    def cancelled(self) -> str:
        return (
            f"unless the backup was complete, {self.source.shown} is unchanged; "
            "otherwise the repair is carried out to the end, because half a repair is none"
        )

    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        job.begin_phase("saving the bytes to remove", saved_bytes(self.plan.steps))

        def advance(count: int) -> None:
            job.advance(count)
            if job.total and job.done >= job.total:
                # From here on it cannot be cancelled: a half-done repair repairs nothing.
                job.phase = "cutting"

        result = apply_truncation(self.plan, self._backup, force=self.form.flag("force"), progress=advance)
        return self.outcome(truncation_report(self.plan, result))
