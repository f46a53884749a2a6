"""Wizard of `migrate` for JetStream directories: their streams restored into a running server, with a proof."""

from __future__ import annotations

from stantools.inspection.report import ReportRemark
from stantools.migration.plan.plan_options import PlanOptions, TargetPaths
from stantools.migration.run_options import ApplySettings
from stantools.migration.salvaged_streams import migration_of
from stantools.migration.targets.target import opened
from stantools.migration.workflow import Migration, default_plan_file
from stantools.recovery.recovery_options import StreamSalvageOptions
from stantools.recovery.streams.stream_plan import plan_stream_salvage
from stantools.recovery.streams.stream_salvage_report import stream_salvage_report
from tui.jobs import Job
from tui.plans.form import FieldError, FormField, fields_of
from tui.plans.migrate import MigrateWizard, PreparedPlan, given_servers
from tui.plans.wizard import PlanPreview, SourceStore


class StreamMigrateWizard(MigrateWizard):
    @property
    def is_local(self) -> bool:
        return False

    def fields(self, source: SourceStore) -> list[FormField]:
        return [
            FormField("server", "a running server: nats://host:4222", given_servers(source)),
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
        ]

    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> PreparedPlan:
        form, source = self.form, self.source.source
        assert source is not None
        if not (form.text("server") or self.source.connect_options):
            raise FieldError("server", "no server for the streams", form.fields["server"].help)
        connect_options = self.connect_options()
        plan_options, settings = form.taken(PlanOptions), form.taken(ApplySettings)
        self.warn_of_uses(preview)
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
        self.add_obstacles(preview, plan, problems, "not everything can be salvaged")
        return PreparedPlan(migration, TargetPaths(), connect_options)
