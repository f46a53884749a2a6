"""Wizard of `compact`: the same store without dead records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

from stantools.errors import ExitCode, UsageError
from stantools.options import FORCE, LimitOptions, SliceOptions
from stantools.recovery.compact import (
    CompactionPlan,
    CompactOptions,
    apply_compaction,
    compact_in_place,
    finish_replacement,
    plan_compaction,
)
from stantools.recovery.compact.apply import room_needed
from stantools.recovery.compact.compaction_report import compaction_report
from stantools.recovery.place import check_room
from stantools.recovery.recovery_options import CompactTarget
from stantools.store.atomic import absolute, check_exchangeable
from stantools.store.limits import DEFAULT_SLICES, UNLIMITED, PatternLimits, SliceLimits
from tui.cells import name_text
from tui.jobs import Job
from tui.plans.form import field_of, fields_of
from tui.plans.wizard import PlanOutcome, PlanPreview, SourceStore, Wizard


class CompactWizard(Wizard[CompactionPlan]):
    VERB = "compact"
    MEANINGS: ClassVar[Mapping[ExitCode, str]] = {ExitCode.CLEAN: "done"}

    def __init__(self, source: SourceStore) -> None:
        super().__init__(
            source,
            *fields_of(
                CompactTarget,
                out="directory for the compacted store; it must not exist",
                in_place="replace the store with the result and keep the old store beside it; out is ignored",
                backup="with in-place: new name of the old store; by default its name with the time",
            ),
            *fields_of(
                LimitOptions,
                max_msgs="the server's -mm: leave out what it has removed",
                max_bytes="the server's -mb, such as 64MB",
                max_age="the server's -ma, such as 72h",
            ),
            *fields_of(
                SliceOptions,
                slice_msgs="messages of a slice; the server's option",
                slice_bytes="bytes of a slice; 64MB if no slice limit is given",
                slice_age="time that a slice covers; the server's option",
            ),
            *fields_of(
                CompactOptions,
                drop_orphans="leave out plain subscriptions of clients that are gone",
                accept_loss="continue although slices or logs are already missing",
            ),
            field_of("force", FORCE, "continue although a server seems to be using the store"),
        )
        self.form.fields["out"].value = source.beside(".compacted")

    @property
    def changes_store(self) -> bool:
        return self.form.flag("in-place")

    @property
    def unused(self) -> Collection[str]:
        return {"out"} if self.changes_store else {"in-place", "backup"}

    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> CompactionPlan:
        form, source = self.form, self.source
        limits = PatternLimits.given(form.taken(LimitOptions), UNLIMITED)
        slices = SliceLimits.given(form.taken(SliceOptions)) or DEFAULT_SLICES
        options = form.taken(CompactOptions, limits=limits, slices=slices, workers=source.workers)
        target = self._target()
        store = source.open()
        self.look_for_uses(job, preview, "messages written meanwhile may be missing from the result")
        job.begin_phase("checking", store.data_size(store.channel_names))
        plan = plan_compaction(store, options, progress=job.advance)
        if self.changes_store:
            preview.attempt(partial(check_exchangeable, target), partial(check_room, target, room_needed(plan)))
        else:
            preview.check_place(source.path, target, room_needed(plan))
        preview.report = compaction_report(plan)
        preview.report.facts.append(("in place of" if self.changes_store else "to", name_text(target)))
        preview.add_free(target)
        return plan

    def _target(self) -> Path:
        if self.changes_store:
            return absolute(self.source.path)
        out: Path = self.form.needed("out", "no target: name a directory, or choose in-place")
        return out

    def question(self) -> str:
        if self.changes_store:
            backup: Path | None = self.form.value("backup")
            kept = name_text(backup) if backup else f"{self.source.name}.before-compact-… beside it"
            return f"{self.source.shown} is replaced with a compacted copy; the old store is kept as {kept}."
        return f"{self.source.shown} is rewritten to {name_text(self.form.text('out'))}, and only read itself."

    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        plan = self.plan
        if not self.changes_store:
            self.refuse_uses(job)
        elif finished := finish_replacement(self.source.path):
            raise UsageError(
                f"an interrupted run was completed first; the old store is {finished}", "go back and preview again"
            )
        job.begin_phase("writing", plan.bytes_before)
        if self.changes_store:
            backup, force = self.form.value("backup"), self.form.flag("force")
            result = compact_in_place(plan, backup=backup, force=force, progress=job.advance)
        else:
            result = apply_compaction(plan, self._target(), progress=job.advance)
        return self.outcome(compaction_report(plan, result), None if self.changes_store else result.path)
