"""Wizard of `truncate-bad-eof`: the server's own repair, exact to the byte, with a backup of the removed bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar

from stantools.errors import ExitCode
from stantools.inspection.forecast.server_options import SERVER_VERSIONS, own_server
from stantools.notation import describe_ranges, format_size
from stantools.options import FORCE, Option
from stantools.recovery.place import check_outside, check_room
from stantools.recovery.recovery_options import BACKUP
from stantools.recovery.truncate import (
    RemovedRecord,
    TruncationPlan,
    TruncationResult,
    apply_truncation,
    plan_truncation,
)
from stantools.recovery.truncate.apply import exit_code, refusal
from stantools.recovery.truncate.backup import default_backup, saved_bytes
from tui.cells import counted, name_text, number
from tui.jobs import Job
from tui.plans.form import field_of
from tui.plans.wizard import PlanOutcome, PlanPreview, PlanRemark, SourceStore, Wizard
from tui.rows import TableColumn

_COLUMNS: Sequence[TableColumn[RemovedRecord]] = (
    TableColumn("file", 18, lambda each: name_text(each.file), grows=True),
    TableColumn("at", 9, lambda each: str(each.offset), right=True),
    TableColumn("bytes", 7, lambda each: str(each.length), right=True),
    TableColumn("what goes", 14, lambda each: each.what, grows=True),
    TableColumn("intact", 6, lambda each: ("yes", "bad") if each.intact else ("no", "dim")),
    TableColumn("sequence", 9, lambda each: "" if each.sequence is None else str(each.sequence), right=True),
)
#: Maximum number of records listed one by one.
_MAX_RECORDS = 1000


class TruncateWizard(Wizard[TruncationPlan]):
    VERB = "truncate-bad-eof"
    COLUMNS = _COLUMNS
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
        if plan.idle and not force:
            preview.idle = plan.idle
            preview.verdict = ("no file needs to be cut", "good")
            return plan
        _describe(plan, backup, preview, force)
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
        return self._outcome_of(result)

    def _outcome_of(self, result: TruncationResult) -> PlanOutcome:
        plan = self.plan
        sizes = {
            file: f"{_size(before)} to {_size(after)}"
            for file, (before, after) in plan.forecast.files_changed().items()
            if (before, after) != (None, None)
        }
        columns: Sequence[TableColumn[str]] = (
            TableColumn("changed", 30, name_text, grows=True),
            TableColumn("what", 20, lambda file: sizes.get(file, ""), grows=True),
        )
        outcome = self.outcome(exit_code(plan, result), columns, result.changed)
        outcome.changed = True
        if result.backup is not None:
            outcome.facts = [("saved before", f"{format_size(saved_bytes(plan.steps))} in {name_text(result.backup)}")]
        if result.after.starts and not result.after.recovered:
            outcome.verdict = ("the server would start now, as if the store were empty: do not start it", "bad")
            outcome.next_text = "restore the backup, and salvage"
            return outcome
        if result.after.starts and not result.after.destroys:
            outcome.verdict = ("the server would start now", "good")
            outcome.next_text = "start the server without the truncate option"
            return outcome
        if result.after.starts:
            outcome.verdict = (f"a start would destroy data: {result.after.destroys[0].sentence()}", "bad")
        else:
            outcome.verdict = (f"the server would still not start: {result.after.error or ''}", "bad")
        outcome.next_text = "write the intact records to a new store"
        outcome.next_command = ("stantools", "salvage", os.fspath(plan.store.path), "--out", "NEW")
        return outcome


def _describe(plan: TruncationPlan, backup: Path, preview: PlanPreview, force: bool) -> None:
    removed = plan.removed_bytes
    intact = sum(cut.intact for cut in plan.cuts)
    verdict = f"{counted(len(plan.cuts), 'file')} would be cut by {format_size(removed)}"
    if not plan.cuts:
        verdict = f"{counted(len(plan.to_do), 'file')} would be rewritten" if plan.to_do else "nothing would be cut"
    if not plan.forecast.starts:
        preview.verdict = (f"{verdict}, and the server would still not start", "bad")
    elif intact:
        preview.verdict = (f"{verdict}; {counted(intact, 'intact record')} would be removed with it", "bad")
    else:
        preview.verdict = (f"{verdict}; no intact record would be removed", "good")
    preview.facts = [
        ("backup", name_text(backup)),
        ("saved there", format_size(saved_bytes(plan.steps))),
    ]
    preview.add_free(backup / "1")
    if plan.refusals and not force:
        preview.obstacles.append(refusal(plan))
    preview.remarks += [PlanRemark("against it", each, "warn") for each in plan.refusals if force]
    if not plan.before.starts:
        preview.remarks.append(PlanRemark("now", f"the server does not start: {plan.before.error}", "warn"))
    for cut in plan.cuts:
        text = f"{name_text(cut.file)} from {number(cut.size_before)} to {number(cut.size_after)} bytes, "
        text += f"{counted(cut.kept, 'record')} kept"
        if cut.intact:
            text += f"; {counted(cut.intact, 'intact record')} removed"
            text += f" (sequences {describe_ranges(cut.sequences, 4)})" if cut.sequences else ""
        preview.remarks.append(PlanRemark("cut", text, "bad" if cut.intact else "accent"))
    cut_files = {cut.file for cut in plan.cuts}
    for file, (before, after) in plan.forecast.files_changed().items():
        if file not in cut_files:
            preview.remarks.append(
                PlanRemark("changed as well", f"{name_text(file)}, {_size(before)} to {_size(after)}")
            )
    preview.rows = list(islice(plan.removed(), _MAX_RECORDS))
    if len(preview.rows) == _MAX_RECORDS:
        preview.remarks.insert(0, PlanRemark("…", f"and perhaps more records than the first {_MAX_RECORDS:,}"))


def _size(size: int | None) -> str:
    return "no file" if size is None else f"{number(size)} bytes"
