"""Salvage: a new store with every intact message."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stantools.errors import ExitCode
from stantools.notation import describe_ranges, format_size
from stantools.recovery.place import check_outside, check_room, free_bytes
from stantools.recovery.salvage import SalvageOptions, SalvagePlan, SalvageResult, apply_salvage, plan_salvage
from stantools.recovery.salvage.apply import room_needed
from stantools.recovery.salvage.check import NewStoreCheck, check_new_store, exit_code
from stantools.recovery.salvage.model import ChannelPlan, Dropped
from stantools.store.atomic import absolute, check_vacant
from stantools.store.locks import check_not_in_use
from tui.cells import Cell, counted, name_text, number
from tui.jobs import Cancelled, Job
from tui.plans.form import Field, Form, field_of, flag, path
from tui.plans.wizard import Outcome, Preview, Remark, Source, Wizard, attempt, look_for_uses
from tui.rows import Column, count_column

_COLUMNS: Sequence[Column[ChannelPlan]] = (
    Column("channel", 15, lambda each: name_text(each.name), grows=True),
    count_column("kept", 10, lambda each: each.sequences.count(), zero=True),
    Column("sequences", 20, lambda each: describe_ranges(each.sequences, 4), grows=True),
    count_column("filled", 6, lambda each: each.filled.count()),
    count_column("subs", 4, lambda each: len(each.subscriptions)),
    Column("origin", 8, lambda each: each.origin, grows=True),
)
_MEANINGS = {
    ExitCode.CLEAN: "everything was kept",
    ExitCode.LOSS: "done; what was lost before is named below",
    ExitCode.FINDINGS: "the new store is not as it should be",
}


class SalvageWizard(Wizard):
    """Keeps what is intact, in a new store."""

    VERB = "salvage"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.form = Form(
            Field("out", "where to write the new store: a directory that does not exist", parse=path),
            field_of(SalvageOptions, "patterns", "only channels that match, with * and >; several with blanks"),
            field_of(SalvageOptions, "cluster_id", "for a lost server.dat; a readable one keeps its id"),
            field_of(
                SalvageOptions, "generation", "if sequences began again: split, newest, or the number of one to keep"
            ),
            field_of(SalvageOptions, "fill_gaps", "put an empty message in the place of each that is lost"),
            field_of(SalvageOptions, "archived", "take messages from .bak slices as well"),
            flag("force", "go on although a server seems to be using the store"),
        )
        self.form.fields["out"].value = source.beside(".salvaged")
        self._plan: SalvagePlan | None = None
        self._out = Path()

    def preview(self, job: Job[Preview]) -> Preview:
        """Scans the store; see `Wizard.preview`."""
        form, source = self.form, self.source
        self._plan = None
        out = form.needed("out", "where is the new store to go?")
        options = form.taken(SalvageOptions, workers=source.workers)
        preview = Preview(columns=_COLUMNS)
        store = source.open()
        names = store.chosen(options.patterns)
        job.begin_phase("looking for a server")
        look_for_uses(source, preview, force=form.flag("force"), warning="what is being written may look damaged")
        job.begin_phase("scanning", store.data_size(names))
        plan = plan_salvage(store, source.crc, options, progress=job.advance)
        attempt(
            preview,
            partial(check_outside, plan.source, out),
            partial(check_vacant, absolute(out)),
            partial(check_room, out, room_needed(plan)),
        )
        self._plan, self._out = plan, out
        _describe(plan, out, preview)
        return preview

    def question(self) -> str:
        """Says what is going to be done."""
        assert self._plan is not None
        return (
            f"{counted(self._plan.messages, 'message')} in {counted(len(self._plan.channels), 'channel')} go to a new "
            f"store, {name_text(os.fspath(self._out))}. {name_text(os.fspath(self.source.path))} is only read."
        )

    def run(self, job: Job[Outcome]) -> Outcome:
        """Writes the new store and verifies it; see `Wizard.run`."""
        plan, out = self._plan, self._out
        assert plan is not None
        job.begin_phase("looking for a server")
        check_not_in_use(self.source.path, force=self.form.flag("force"))
        job.begin_phase("writing", plan.bytes)
        result = apply_salvage(plan, out, progress=job.advance)
        try:
            job.begin_phase("verifying", result.bytes)
            check = check_new_store(plan, result, progress=job.advance)
        except Cancelled:
            return _unchecked(plan, result)
        return _outcome(plan, result, check)


def _describe(plan: SalvagePlan, out: Path, preview: Preview) -> None:
    kept = f"{counted(plan.messages, 'message')} in {counted(len(plan.channels), 'channel')} would be kept"
    if plan.lost:
        preview.verdict = (f"{kept}; {number(plan.lost)} known to be lost", "warn")
    elif plan.lossy:
        preview.verdict = (f"{kept}; something is lost, see below", "warn")
    else:
        preview.verdict = (f"{kept}; nothing is lost", "good")
    subscriptions = sum(len(each.subscriptions) for each in plan.channels)
    preview.facts = [("to", name_text(os.fspath(out))), *_sizes(plan, out, preview)]
    preview.facts.append(
        ("besides", f"{counted(len(plan.clients), 'client')}, {counted(subscriptions, 'subscription')}")
    )
    preview.rows = plan.channels
    _remarks(plan, preview)


def _sizes(plan: SalvagePlan, out: Path, preview: Preview) -> list[tuple[str, Cell]]:
    sizes: list[tuple[str, Cell]] = [("needs", f"about {format_size(room_needed(plan))}")]
    attempt(preview, lambda: sizes.append(("free", format_size(free_bytes(out)))))
    return sizes


def _remarks(plan: SalvagePlan, account: Preview | Outcome) -> None:
    account.remark([_dropped(each) for each in plan.dropped if each.loss], "more that is lost")
    if plan.server_note:
        account.remarks.append(Remark("server.dat", plan.server_note))
    account.remark([Remark("changed", text) for text in plan.changes], "more changes")
    account.remark([_dropped(each) for each in plan.dropped if not each.loss], "more that is left out")


def _dropped(each: Dropped) -> Remark:
    place = name_text(each.file) + (f" at {each.offset}" if each.offset >= 0 else "")
    place += f", {format_size(each.length)}" if each.length else ""
    text = f"{place}: {each.reason}"
    if each.sequences:
        text += f" (sequences {describe_ranges(each.sequences, 4)})"
    return Remark("lost" if each.loss else "left out", text, "bad" if each.loss else "dim")


def _written(plan: SalvagePlan, result: SalvageResult) -> Outcome:
    outcome = Outcome(columns=_COLUMNS, rows=plan.channels, opens=result.path)
    kept = f"{counted(result.messages, 'message')} in {counted(len(plan.channels), 'channel')}"
    outcome.facts = [
        ("new store", name_text(os.fspath(result.path))),
        ("holds", f"{kept}, {format_size(result.bytes)}"),
        ("account", f"{name_text(result.manifest.name)}, in the new store"),
    ]
    _remarks(plan, outcome)
    return outcome


def _outcome(plan: SalvagePlan, result: SalvageResult, check: NewStoreCheck) -> Outcome:
    outcome = _written(plan, result)
    outcome.code = exit_code(plan, check)
    outcome.meaning = _MEANINGS[outcome.code]
    if check.good:
        outcome.verdict = ("the new store is verified: it is clean, and the server would start with it", "good")
        outcome.next_text = "open the new store (o); start the server on it, not on the old one"
        return outcome
    outcome.verdict = ("verify or forecast found a problem in the new store", "bad")
    outcome.next_text = "this is a mistake in stantools: please report it, with what verify says of both stores"
    outcome.next_command = ("stantools", "verify", os.fspath(result.path))
    found = [each for each in check.findings if each.severity.value != "info"]
    outcome.remarks[:0] = [Remark(each.code, f"{name_text(each.file)}: {each.detail}", "bad") for each in found[:20]]
    if check.start.error:
        outcome.remarks.insert(0, Remark("server", check.start.error, "bad"))
    return outcome


def _unchecked(plan: SalvagePlan, result: SalvageResult) -> Outcome:
    outcome = _written(plan, result)
    outcome.code = ExitCode.INTERRUPTED
    outcome.meaning = "the new store is whole, but its verification was cancelled"
    outcome.verdict = ("the new store was written, and not verified", "warn")
    outcome.next_text = "verify the new store before a server is started on it: open it (o)"
    outcome.next_command = ("stantools", "verify", os.fspath(result.path))
    return outcome
