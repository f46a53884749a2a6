"""Wizard of `migrate` for JetStream directories: their streams restored into a running server, with a proof."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from stantools.errors import ExitCode, RefusedError, StantoolsError
from stantools.inspection.report import ReportRemark
from stantools.migration.migration_report import migration_report
from stantools.migration.plan.plan_options import PlanOptions, TargetPaths
from stantools.migration.run_options import ApplySettings
from stantools.migration.salvaged_streams import migration_of
from stantools.migration.targets.target import opened
from stantools.migration.workflow import Migration, default_plan_file, serious
from stantools.nats.connect_options import ConnectOptions, split_servers
from stantools.recovery.recovery_options import StreamSalvageOptions
from stantools.recovery.streams.stream_plan import plan_stream_salvage
from stantools.recovery.streams.stream_salvage_report import stream_salvage_report
from tui.cells import counted, name_text
from tui.jobs import Job
from tui.plans.form import FieldError, FormField, fields_of
from tui.plans.migrate import JobWatch, connecting_words, without_secrets
from tui.plans.wizard import PlanOutcome, PlanPreview, SourceStore, Wizard


@dataclass(frozen=True)
class _PreparedStreams:
    migration: Migration
    connect_options: ConnectOptions


class StreamMigrateWizard(Wizard[_PreparedStreams]):
    VERB = "migrate"
    UNIT = "messages"
    MEANINGS: ClassVar[Mapping[ExitCode, str]] = {
        ExitCode.CLEAN: "done and proven",
        ExitCode.FINDINGS: "something differs",
        ExitCode.UNREACHABLE: "the server, or the directory, cannot be used",
        ExitCode.REFUSED: "refused",
        ExitCode.LOSS: "done, with the accepted loss",
    }

    def __init__(self, source: SourceStore) -> None:
        options = source.connect_options
        self._given = ",".join(options.servers) if options else ""
        super().__init__(
            source,
            FormField("server", "a running server: nats://host:4222", self._given),
            *fields_of(
                PlanOptions,
                channels="only matching streams, with * and >; separate several with blanks",
                replicas="of each stream",
            ),
            *fields_of(
                ApplySettings,
                accept_loss="continue although not everything can be salvaged",
                replace="delete existing streams that differ, and load them again",
                proof="compare every message afterwards, or only counts",
            ),
        )

    def command(self) -> list[str]:
        """Returns the equivalent command line, without passwords."""
        words = ["stantools", self.VERB, os.fspath(self.source.named), "--to", "jetstream"]
        if server := self.form.text("server"):
            words += ["--server", without_secrets(server)]
        words += self.form.words(without={"server"})
        if self.source.connect_options is not None:
            words += connecting_words(self.source.connect_options)
        return [*words, "--yes"]

    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> _PreparedStreams:
        form, source = self.form, self.source.source
        assert source is not None
        connect_options = self._connect_options()
        plan_options, settings = form.taken(PlanOptions), form.taken(ApplySettings)
        for use in self.source.uses(force=True):
            text = f"{use.detail}: messages written from now on are not migrated; stop the server first"
            preview.warnings.append(ReportRemark("warning", text, "warn"))
        job.begin_phase("reading", source.data_size(plan_options.channels))
        options = StreamSalvageOptions(replicas=plan_options.replicas)
        salvage = plan_stream_salvage(source, options, plan_options.channels, job.advance)
        preview.report = stream_salvage_report(salvage)
        job.begin_phase("asking the target")
        file = default_plan_file(self.source.named)
        with opened(TargetPaths(), connect_options, check=job.check) as target:
            plan, inputs = migration_of(salvage, target.reference())
            migration = Migration(plan, None, target, settings.options(plan.way), file, restored=inputs)
            problems = migration.problems()
        remarks = (ReportRemark(str(each.level), f"{each.about}: {each.text}") for each in problems)
        preview.report.list_remarks(remarks, "problem")
        preview.obstacles += [RefusedError(f"{each.about}: {each.text}", each.remedy) for each in serious(problems)]
        if plan.lossy and not settings.accept_loss:
            text = "choose accept-loss to migrate the intact messages"
            preview.obstacles.append(RefusedError("not everything can be salvaged", text))
        return _PreparedStreams(migration, connect_options)

    def _connect_options(self) -> ConnectOptions:
        given, server = self.source.connect_options, self.form.text("server")
        if not (server or given):
            raise FieldError("server", "no server for the streams", self.form.fields["server"].help)
        options = given or ConnectOptions()
        if server and server != self._given:
            try:
                return replace(options, servers=split_servers((server,))).checked()
            except StantoolsError as problem:
                raise FieldError("server", problem.message, problem.remedy) from problem
        return options

    def question(self) -> str:
        plan = self.plan.migration.plan
        return (
            f"{counted(len(plan.streams), 'stream')} with {counted(plan.messages, 'message')} are created in "
            f"{name_text(str(plan.target))}. {self.source.shown} is only read."
        )

    def cancelled(self) -> str:
        return f"completed streams stay; the next run continues the others. {self.source.shown} is unchanged"

    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        migration = self.plan.migration
        job.begin_phase("asking the target", migration.amount)
        watch = JobWatch(job, stops=False)
        with (
            opened(TargetPaths(), self.plan.connect_options, note=watch.note, check=job.check) as target,
            migration.journal() as journal,
        ):
            results = replace(migration, target=target).apply(journal, watch)
        report = migration_report(migration.plan, results)
        report.list_remarks((ReportRemark("note", text) for text in watch.notes), "note")
        return self.outcome(report)
