"""Wizard of `salvage` for JetStream directories: the streams anew, with every intact message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from stantools.errors import ExitCode
from stantools.notation import format_size
from stantools.options import CHANNELS, FORCE, OUT
from stantools.recovery.recovery_options import SalvageTarget, StreamSalvageOptions
from stantools.recovery.streams.new_streams import write_streams
from stantools.recovery.streams.stream_plan import StreamSalvagePlan, plan_stream_salvage
from stantools.recovery.streams.stream_salvage_report import stream_salvage_report
from tui.cells import counted, name_text
from tui.jobs import Job
from tui.plans.form import field_of, fields_of
from tui.plans.wizard import PlanOutcome, PlanPreview, SourceStore, Wizard


class StreamSalvageWizard(Wizard[StreamSalvagePlan]):
    VERB = "salvage"
    MEANINGS: ClassVar[Mapping[ExitCode, str]] = {
        ExitCode.CLEAN: "everything was kept",
        ExitCode.LOSS: "done; earlier losses are listed below",
        ExitCode.FINDINGS: "what was written is not as planned",
    }

    def __init__(self, source: SourceStore) -> None:
        super().__init__(
            source,
            field_of("out", OUT, "directory for the new store; it must not exist", source.beside(".salvaged")),
            field_of("channel", CHANNELS, "only matching streams, with * and >; separate several with blanks"),
            *fields_of(
                StreamSalvageOptions,
                to="store: for a nats-server with -sd; backup: for nats stream restore",
                server_version="the nats-server that opens the result",
            ),
            field_of("force", FORCE, "continue although a server seems to be using the directory"),
        )
        self._out = Path()
        self._options = StreamSalvageOptions()

    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> StreamSalvagePlan:
        source = self.source.source
        assert source is not None
        self._out = self.form.needed("out", "no directory for the new store")
        self._options = self.form.taken(StreamSalvageOptions)
        self.look_for_uses(job, preview, "unfinished writes may look like damage")
        patterns = self.form.words_of("channel")
        job.begin_phase("scanning", source.data_size(patterns))
        plan = plan_stream_salvage(source, self._options, patterns, job.advance)
        preview.check_place(source.path, self._out, plan.bytes)
        preview.report = stream_salvage_report(plan)
        preview.report.facts += [("to", name_text(self._out)), ("needs", f"about {format_size(plan.bytes)}")]
        preview.add_free(self._out)
        return plan

    def question(self) -> str:
        plan = self.plan
        return (
            f"{counted(plan.messages, 'message')} in {counted(len(plan.streams), 'stream')} go to "
            f"{name_text(self._out)}. {self.source.shown} is only read."
        )

    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        plan, to = self.plan, self._options.to
        self.refuse_uses(job)
        job.begin_phase("writing", plan.bytes)
        result = write_streams(plan, self._out, to, job.advance)
        report = stream_salvage_report(plan, result, self._options)
        return self.outcome(report, None if to is SalvageTarget.BACKUP else result.path)
