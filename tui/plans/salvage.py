"""Wizard of `salvage`: a new store with every intact message."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from stantools.errors import ExitCode
from stantools.notation import format_size
from stantools.options import FORCE, OUT
from stantools.recovery.salvage import SalvageOptions, SalvagePlan, apply_salvage, plan_salvage
from stantools.recovery.salvage.apply import room_needed
from stantools.recovery.salvage.check import NewStoreCheck, check_new_store
from stantools.recovery.salvage.salvage_report import salvage_report
from tui.cells import counted, name_text
from tui.jobs import Cancelled, Job
from tui.plans.form import field_of, fields_of
from tui.plans.wizard import PlanOutcome, PlanPreview, SourceStore, Wizard


class SalvageWizard(Wizard[SalvagePlan]):
    VERB = "salvage"
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
        preview.check_place(plan.source, out, room_needed(plan))
        self._out = out
        preview.report = salvage_report(plan)
        subscriptions = sum(len(each.subscriptions) for each in plan.channels)
        preview.report.facts += [
            ("to", name_text(out)),
            ("needs", f"about {format_size(room_needed(plan))}"),
            ("besides", f"{counted(len(plan.clients), 'client')}, {counted(subscriptions, 'subscription')}"),
        ]
        preview.add_free(out)
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
        return self.outcome(salvage_report(plan, result, check), result.path)
