"""Wizard of `salvage`: a new store with every intact message."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from stantools.errors import ExitCode
from stantools.notation import describe_ranges, format_size
from stantools.options import FORCE, OUT
from stantools.recovery.place import check_outside, check_room
from stantools.recovery.salvage import SalvageOptions, SalvagePlan, SalvageResult, apply_salvage, plan_salvage
from stantools.recovery.salvage.apply import room_needed
from stantools.recovery.salvage.check import NewStoreCheck, check_new_store, exit_code
from stantools.recovery.salvage.model import ChannelSalvage, DroppedData
from stantools.store.atomic import absolute, check_vacant
from tui.cells import counted, name_text, number
from tui.jobs import Cancelled, Job
from tui.plans.form import field_of, fields_of
from tui.plans.wizard import PlanOutcome, PlanPreview, PlanRemark, SourceStore, Wizard
from tui.rows import TableColumn, count_column

_COLUMNS: Sequence[TableColumn[ChannelSalvage]] = (
    TableColumn("channel", 15, lambda each: name_text(each.name), grows=True),
    count_column("kept", 10, lambda each: each.sequences.count(), zero=True),
    TableColumn("sequences", 20, lambda each: describe_ranges(each.sequences, 4), grows=True),
    count_column("filled", 6, lambda each: each.filled.count()),
    count_column("subs", 4, lambda each: len(each.subscriptions)),
    TableColumn("origin", 8, lambda each: each.origin, grows=True),
)


class SalvageWizard(Wizard[SalvagePlan]):
    VERB = "salvage"
    COLUMNS = _COLUMNS
    MEANINGS: ClassVar[Mapping[ExitCode, str]] = {
        ExitCode.CLEAN: "everything was kept",
        ExitCode.LOSS: "done; earlier losses are listed below",
        ExitCode.FINDINGS: "the new store has problems",
        ExitCode.INTERRUPTED: "the new store is complete, but its verification was cancelled",
    }

    def __init__(self, source: SourceStore) -> None:
        super().__init__(
            source,
            field_of(
                "out",
                OUT,
                "directory for the new store; it must not exist",
                source.beside(".salvaged"),
            ),
            *fields_of(
                SalvageOptions,
                patterns="only matching channels, with * and >; separate several with blanks",
                cluster_id="cluster id if server.dat is lost; a readable one keeps its id",
                generation="if sequences restarted: split, newest, or the number of the one to keep",
                fill_gaps="replace each lost message with an empty one",
                archived="take messages from .bak slices as well",
            ),
            field_of("force", FORCE, "continue although a server seems to be using the store"),
        )
        self._out = Path()

    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> SalvagePlan:
        source = self.source
        out = self.form.needed("out", "no directory for the new store")
        options = self.form.taken(SalvageOptions, workers=source.workers)
        store = source.open()
        names = store.chosen(options.patterns)
        self.look_for_uses(job, preview, "unfinished writes may look like damage")
        job.begin_phase("scanning", store.data_size(names))
        plan = plan_salvage(store, options, progress=job.advance)
        preview.attempt(
            partial(check_outside, plan.source, out),
            partial(check_vacant, absolute(out)),
            partial(check_room, out, room_needed(plan)),
        )
        self._out = out
        _describe(plan, out, preview)
        return plan

    def question(self) -> str:
        return (
            f"{counted(self.plan.messages, 'message')} in {counted(len(self.plan.channels), 'channel')} go to a new "
            f"store, {name_text(self._out)}. {self.source.shown} is only read."
        )

    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        plan = self.plan
        self.refuse_uses(job)
        job.begin_phase("writing", plan.bytes)
        result = apply_salvage(plan, self._out, progress=job.advance)
        check: NewStoreCheck | None = None
        with contextlib.suppress(Cancelled):
            job.begin_phase("verifying", result.bytes)
            check = check_new_store(plan, result, progress=job.advance)
        code = exit_code(plan, check) if check is not None else ExitCode.INTERRUPTED
        outcome = self.outcome(code, _COLUMNS, plan.channels)
        outcome.opens = result.path
        kept = f"{counted(result.messages, 'message')} in {counted(len(plan.channels), 'channel')}"
        outcome.facts = [
            ("new store", name_text(result.path)),
            ("holds", f"{kept}, {format_size(result.bytes)}"),
            ("account", f"{name_text(result.manifest.name)}, in the new store"),
        ]
        _remarks(plan, outcome)
        _set_verdict(check, result, outcome)
        return outcome


def _describe(plan: SalvagePlan, out: Path, preview: PlanPreview) -> None:
    kept = f"{counted(plan.messages, 'message')} in {counted(len(plan.channels), 'channel')} would be kept"
    lacks = [(plan.missing, "missing before"), (plan.lost, "lost by this step")]
    if any(count for count, _ in lacks):
        counts = ", ".join(f"{number(count)} {what}" for count, what in lacks if count)
        preview.verdict = (f"{kept}; {counts}", "warn")
    elif plan.lossy:
        preview.verdict = (f"{kept}; parts are missing, see below", "warn")
    else:
        preview.verdict = (f"{kept}; nothing is missing", "good")
    subscriptions = sum(len(each.subscriptions) for each in plan.channels)
    preview.facts = [("to", name_text(out)), ("needs", f"about {format_size(room_needed(plan))}")]
    preview.add_free(out)
    preview.facts.append(
        ("besides", f"{counted(len(plan.clients), 'client')}, {counted(subscriptions, 'subscription')}")
    )
    preview.rows = plan.channels
    _remarks(plan, preview)


def _remarks(plan: SalvagePlan, account: PlanPreview | PlanOutcome) -> None:
    account.remark([_dropped(each) for each in plan.dropped if each.loss], "more missing parts")
    if plan.server_note:
        account.remarks.append(PlanRemark("server.dat", plan.server_note))
    account.remark([PlanRemark("changed", text) for text in plan.changes], "more changes")
    account.remark([_dropped(each) for each in plan.dropped if not each.loss], "more parts left out")


def _dropped(each: DroppedData) -> PlanRemark:
    place = name_text(each.file) + (f" at {each.offset}" if each.offset >= 0 else "")
    place += f", {format_size(each.length)}" if each.length else ""
    text = f"{place}: {each.reason}"
    if each.sequences:
        text += f" (sequences {describe_ranges(each.sequences, 4)})"
    return PlanRemark(each.fate.value, text, "bad" if each.loss else "dim")


def _set_verdict(check: NewStoreCheck | None, result: SalvageResult, outcome: PlanOutcome) -> None:
    if check is not None and check.good:
        outcome.verdict = ("the new store is verified: it is clean, and the server would start with it", "good")
        outcome.next_text = "open the new store (o); start the server on it, not on the old one"
        return
    outcome.next_command = ("stantools", "verify", os.fspath(result.path))
    if check is None:
        outcome.verdict = ("the new store was written, but not verified", "warn")
        outcome.next_text = "verify the new store before starting a server on it: open it (o)"
        return
    outcome.verdict = ("verify or forecast found a problem in the new store", "bad")
    outcome.next_text = "this is a bug in stantools: please report it, with verify's report on both stores"
    found = [each for each in check.findings if each.severity.value != "info"]
    outcome.remarks[:0] = [
        PlanRemark(each.code, f"{name_text(each.file)}: {each.detail}", "bad") for each in found[:20]
    ]
    if check.start.error:
        outcome.remarks.insert(0, PlanRemark("server", check.start.error, "bad"))
