"""Wizard of `export`: tables of a store as Parquet, ndjson, csv or databases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from stantools.errors import ExitCode
from stantools.notation import format_time
from stantools.pipeline.export.export_report import export_plan_report, export_report, kind
from stantools.pipeline.export.request import STDOUT, Export, ExportOptions
from stantools.pipeline.export.targets import MANIFEST
from stantools.pipeline.tables.table_options import TableOptions
from stantools.secret import Secret
from tui.cells import name_text
from tui.jobs import Job
from tui.plans.form import FieldError, fields_of
from tui.plans.wizard import PlanOutcome, PlanPreview, SourceStore, Wizard


class ExportWizard(Wizard[Export]):
    VERB = "export"
    UNCHECKED = True
    MEANINGS: ClassVar[Mapping[ExitCode, str]] = {
        ExitCode.CLEAN: "everything was intact",
        ExitCode.FINDINGS: "done, with damage or unreadable parts",
    }

    def __init__(self, source: SourceStore) -> None:
        fields = fields_of(
            ExportOptions,
            to="a new directory, or a file if the name ends in .parquet, .ndjson, .csv (.gz, .zst), .sqlite or .duckdb",
            table="which table",
            channels="only matching channels, with * and >; separate several with blanks",
            sequences="only these sequences of each channel: 10:20, 10: or :20",
            since="only messages since 2026-11-21T03:00:00Z, or an age such as 1d3h",
            until="older than this",
            format="file format; by default that of the file name, otherwise parquet",
            compression="by default snappy for Parquet, none for text",
            columns="only these columns, separated by commas; all if empty",
            by="directories such as channel=orders/date=2026-11-21: store, channel, date, separated by commas",
            file_size="approximate bytes of the store per file",
            mode="damaged places: become rows, are skipped, or end the export",
            archived="read .bak slices as well",
            overwrite="replace an earlier export once the new one is complete",
        )
        super().__init__(source, *fields)
        self.form.fields["to"].value = source.beside("-messages")

    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> Export:
        source, export_options = self.source, self._exporting()
        given = source.read_options
        key = Secret(given.encryption_key)
        table_options = TableOptions((), polynomial=given.polynomial, check_crc=given.check_crc, key=key)
        job.begin_phase("planning")
        planned = export_options.planned((os.fspath(source.tables),), table_options, source.workers)
        job.check()
        preview.attempt(planned.check_target)
        preview.report = export_plan_report(planned)
        columns = planned.layout.file_columns if planned.layout.columns else ["all"]
        preview.report.facts.append(("columns", name_text(", ".join(columns))))
        for label, bound in (("since", planned.options.bounds.since), ("until", planned.options.bounds.until)):
            if bound is not None:
                preview.report.facts.append((label, format_time(bound)))
        preview.add_free(Path(export_options.to))
        return planned

    def _exporting(self) -> ExportOptions:
        form = self.form
        to = form.needed("to", "no target")
        if to == STDOUT or "://" in to:
            raise FieldError(
                "to", "the browser writes only to directories and files of this machine", "name a directory or file"
            )
        if to.startswith("~"):
            to = os.path.expanduser(to)  # noqa: PTH111 (a slash at the end means something)
        return form.taken(ExportOptions, to=to)

    def question(self) -> str:
        export_options, layout = self.plan.export_options, self.plan.layout
        replaced = " An earlier export there is replaced." if export_options.overwrite else ""
        return (
            f"The table {layout.table.value} is written to {name_text(export_options.to)} as {kind(layout)}. "
            f"{self.source.shown} is only read.{replaced}"
        )

    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        from stantools.pipeline.export.run import export_here

        plan = self.plan
        job.begin_phase("writing", plan.size)
        result = export_here(plan, self.source.workers, job.advance)
        outcome = self.outcome(export_report(result, plan.options))
        if not plan.export_options.single:
            outcome.report.facts.append(("account", MANIFEST))
        return outcome
