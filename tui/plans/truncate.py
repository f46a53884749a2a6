"""Truncate: the server's own repair, done to the byte, with a backup of what is cut off."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from stantools.errors import ExitCode
from stantools.inspection.forecast import ServerOptions
from stantools.inspection.forecast.options import SERVER_VERSIONS, own_server
from stantools.notation import describe_ranges, format_size
from stantools.recovery.place import check_outside, check_room, free_bytes
from stantools.recovery.truncate import (
    RemovedRecord,
    TruncationPlan,
    TruncationResult,
    apply_truncation,
    plan_truncation,
)
from stantools.recovery.truncate.apply import default_backup, exit_code, refusal, saved_bytes
from stantools.store.directory import Datastore
from tui.cells import counted, name_text, number
from tui.jobs import Job
from tui.plans.form import Field, Form, choice, flag, path
from tui.plans.wizard import Outcome, Preview, Remark, Source, Wizard, attempt, look_for_uses
from tui.rows import Column

_COLUMNS: Sequence[Column[RemovedRecord]] = (
    Column("file", 18, lambda each: name_text(each.file), grows=True),
    Column("at", 9, lambda each: str(each.offset), right=True),
    Column("bytes", 7, lambda each: str(each.length), right=True),
    Column("what goes", 14, lambda each: each.what, grows=True),
    Column("intact", 6, lambda each: ("yes", "bad") if each.intact else ("no", "dim")),
    Column("sequence", 9, lambda each: "" if each.sequence is None else str(each.sequence), right=True),
)
#: Records that are listed one by one.
_MANY = 1000
_MEANINGS = {
    ExitCode.CLEAN: "only broken ends were cut off",
    ExitCode.LOSS: "done; intact records were cut off as well",
    ExitCode.FINDINGS: "done, and a start would still fail or destroy data",
}


class TruncateWizard(Wizard):
    """Cuts off what the server would cut off."""

    VERB = "truncate-bad-eof"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        backup = os.fspath(default_backup(source.path))
        backup = backup if backup.isprintable() else ""
        self.form = Form(
            Field(
                "backup", "where what is removed is saved before, in a directory of its own", backup, backup, parse=path
            ),
            choice("server-version", "which server's repair", SERVER_VERSIONS, SERVER_VERSIONS[0]),
            flag("force", "also if salvage would keep more, or a server seems to be using the store"),
        )
        self._plan: TruncationPlan | None = None
        self._backup = Path()

    @property
    def changes_store(self) -> bool:
        """It does."""
        return True

    def command(self) -> list[str]:
        """Returns the command line that does the same."""
        source = self.source
        words = ["stantools", self.VERB, os.fspath(source.path), *self.form.words()]
        return [*words, *source.reading_words(unchecked=True), "--yes"]

    def preview(self, job: Job[Preview]) -> Preview:
        """Predicts the repair; see `Wizard.preview`."""
        self._plan = None
        backup, force = self.form.needed("backup", "where is what is removed to be saved?"), self.form.flag("force")
        preview = Preview(columns=_COLUMNS)
        store = self.source.open()
        job.begin_phase("looking for a server")
        look_for_uses(self.source, preview, force=force, warning="it may write what is being repaired")
        job.begin_phase("forecasting", store.data_size(store.channel_names))
        plan = plan_truncation(store, self._options(store), progress=job.advance)
        job.begin_phase("reading what would go")
        self._plan, self._backup = plan, backup
        if plan.idle and not force:
            preview.idle = plan.idle
            preview.verdict = ("no file has to be cut", "good")
            return preview
        _describe(plan, backup, preview, force)
        attempt(
            preview,
            partial(check_outside, store.path, backup),
            partial(check_room, backup / "1", saved_bytes(plan)),
        )
        return preview

    def _options(self, store: Datastore) -> ServerOptions:
        source = self.source
        return own_server(
            store, source.crc, source.reading, version=self.form.text("server-version"), workers=source.workers
        )

    def question(self) -> str:
        """Says what is going to be done."""
        assert self._plan is not None
        cut, changed = len(self._plan.cuts), len(self._plan.to_do)
        saved = format_size(saved_bytes(self._plan))
        store, backup = name_text(os.fspath(self.source.path)), name_text(os.fspath(self._backup))
        return (
            f"{counted(cut, 'file')} of {store} {'is' if cut == 1 else 'are'} cut, {counted(changed, 'file')} changed "
            f"in all; before, {saved} are saved in {backup}."
        )

    def cancelled(self) -> str:
        """Says what is left when a run was cancelled."""
        return (
            f"nothing is changed if the backup was not complete, and {name_text(os.fspath(self.source.path))} is as "
            "it was; else it is carried out to the end, because half a repair is none"
        )

    def run(self, job: Job[Outcome]) -> Outcome:
        """Saves what goes, then changes the files; see `Wizard.run`."""
        assert self._plan is not None
        job.begin_phase("saving what goes", saved_bytes(self._plan))

        def advance(count: int) -> None:
            job.advance(count)
            if job.total and job.done >= job.total:
                # From here on it cannot be cancelled: a repair that is half done is none.
                job.phase = "cutting"

        result = apply_truncation(self._plan, self._backup, force=self.form.flag("force"), progress=advance)
        return _outcome(self._plan, result)


def _describe(plan: TruncationPlan, backup: Path, preview: Preview, force: bool) -> None:
    removed = plan.removed_bytes
    intact = sum(cut.intact for cut in plan.cuts)
    verdict = f"{counted(len(plan.cuts), 'file')} would be cut by {format_size(removed)}"
    if not plan.cuts:
        verdict = f"{counted(len(plan.to_do), 'file')} would be written anew" if plan.to_do else "nothing would be cut"
    if not plan.forecast.starts:
        preview.verdict = (f"{verdict}, and the server would still not start", "bad")
    elif intact:
        preview.verdict = (f"{verdict}; {counted(intact, 'intact record')} would go with it", "bad")
    else:
        preview.verdict = (f"{verdict}; no intact record would go", "good")
    preview.facts = [
        ("backup", name_text(os.fspath(backup))),
        ("saved there", format_size(saved_bytes(plan))),
    ]
    attempt(preview, lambda: preview.facts.append(("free", format_size(free_bytes(backup / "1")))))
    if plan.refusals and not force:
        preview.obstacles.append(refusal(plan))
    preview.remarks += [Remark("against it", each, "warn") for each in plan.refusals if force]
    if not plan.before.starts:
        preview.remarks.append(Remark("now", f"the server does not start: {plan.before.error}", "warn"))
    for cut in plan.cuts:
        text = f"{name_text(cut.file)} from {number(cut.size_before)} to {number(cut.size_after)} bytes, "
        text += f"{counted(cut.kept, 'record')} stay"
        if cut.intact:
            text += f"; {counted(cut.intact, 'intact record')} go"
            text += f" (sequences {describe_ranges(cut.sequences, 4)})" if cut.sequences else ""
        preview.remarks.append(Remark("cut", text, "bad" if cut.intact else "accent"))
    cut_files = {cut.file for cut in plan.cuts}
    for file, (before, after) in plan.forecast.files_changed().items():
        if file not in cut_files:
            preview.remarks.append(Remark("changed as well", f"{name_text(file)}, {_size(before)} to {_size(after)}"))
    preview.rows = list(islice(plan.removed(), _MANY))
    if len(preview.rows) == _MANY:
        preview.remarks.insert(0, Remark("…", f"and perhaps more records than the first {_MANY:,}"))


def _size(size: int | None) -> str:
    return "no file" if size is None else f"{number(size)} bytes"


def _outcome(plan: TruncationPlan, result: TruncationResult) -> Outcome:
    code = exit_code(plan, result)
    sizes = plan.forecast.files_changed()
    columns: Sequence[Column[str]] = (
        Column("changed", 30, name_text, grows=True),
        Column("what", 20, lambda file: _changed(*sizes.get(file, (None, None))), grows=True),
    )
    outcome = Outcome(code=code, meaning=_MEANINGS[code], changed=True, columns=columns, rows=result.changed)
    if result.backup is not None:
        outcome.facts = [("saved before", f"{format_size(saved_bytes(plan))} in {name_text(os.fspath(result.backup))}")]
    if result.after.starts and not result.after.recovered:
        outcome.verdict = ("the server would start now, as if the store were empty: do not start it", "bad")
        outcome.next_text = "put back what was saved, and salvage"
    elif result.after.starts and result.after.destroys:
        outcome.verdict = (f"a start would destroy data: {result.after.destroys[0].sentence()}", "bad")
        outcome.next_text = "write what is intact to a new store"
        outcome.next_command = ("stantools", "salvage", os.fspath(plan.store.path), "--out", "NEW")
    elif result.after.starts:
        outcome.verdict = ("the server would start now", "good")
        outcome.next_text = "start the server without the truncate option"
    else:
        outcome.verdict = (f"the server would still not start: {result.after.error or ''}", "bad")
        outcome.next_text = "write what is intact to a new store"
        outcome.next_command = ("stantools", "salvage", os.fspath(plan.store.path), "--out", "NEW")
    return outcome


def _changed(before: int | None, after: int | None) -> str:
    return f"{_size(before)} to {_size(after)}" if (before, after) != (None, None) else ""
