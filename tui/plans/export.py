"""Wizard of `export`: tables of a store as Parquet, ndjson, csv or databases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stantools.errors import ExitCode
from stantools.notation import format_size, format_time
from stantools.pipeline.export.export_layout import ExportLayout, WrittenFile
from stantools.pipeline.export.request import STDOUT, Export, ExportOptions
from stantools.pipeline.export.targets import MANIFEST
from stantools.pipeline.tables.model import FailedRead, SlicePiece
from stantools.pipeline.tables.table_options import TableOptions
from stantools.secret import Secret
from tui.cells import counted, name_text, number
from tui.jobs import Job
from tui.plans.form import FieldError, fields_of
from tui.plans.wizard import PlanOutcome, PlanPreview, PlanRemark, SourceStore, Wizard
from tui.rows import TableColumn, count_column


@dataclass
class _ChannelParts:
    """The slices to read of a channel; without a name, the store's own files."""

    name: str
    parts: int = 0
    size: int = 0


_COLUMNS: Sequence[TableColumn[_ChannelParts]] = (
    TableColumn("channel", 20, lambda each: name_text(each.name) or ("the store's own files", "dim"), grows=True),
    count_column("parts", 8, lambda each: each.parts, zero=True),
    TableColumn("to read", 12, lambda each: format_size(each.size), right=True),
)
_WRITTEN: Sequence[TableColumn[WrittenFile]] = (
    TableColumn("file", 30, lambda file: name_text(file.path), grows=True),
    count_column("rows", 12, lambda file: file.rows, zero=True),
    TableColumn("size", 12, lambda file: format_size(file.size), right=True),
)


class ExportWizard(Wizard[Export]):
    VERB = "export"
    COLUMNS = _COLUMNS
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
        planned = export_options.planned((os.fspath(source.path),), table_options, source.workers)
        job.check()
        preview.attempt(planned.check_target)
        _describe(planned, preview)
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
            f"The table {layout.table.value} is written to {name_text(export_options.to)} as {_kind(layout)}. "
            f"{self.source.shown} is only read.{replaced}"
        )

    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        from stantools.pipeline.export.run import export_here

        plan = self.plan
        export_options = plan.export_options
        job.begin_phase("writing", plan.size)
        result = export_here(plan, self.source.workers, job.advance)
        layout, written = result.layout, result.written
        code = ExitCode.CLEAN if result.clean else ExitCode.FINDINGS
        outcome = self.outcome(code, _WRITTEN, written.files)
        text = f"{counted(written.rows, 'row')} of the table {layout.table.value} written"
        damaged = written.damaged(layout.table)
        outcome.verdict = (text, "good")
        if damaged:
            outcome.verdict = (f"{text}; {counted(damaged, 'row')} of these mark damage", "warn")
        outcome.facts = [
            ("in", name_text(export_options.to)),
            ("files", number(len(written.files))),
            ("size", format_size(written.size)),
            ("as", _kind(layout)),
        ]
        if not export_options.single:
            outcome.facts.append(("account", MANIFEST))
        kinds = [f"{what} {number(count)}" for what, count in written.tally.most_common() if what not in layout.good]
        if kinds:
            outcome.remarks.append(PlanRemark("status", f"{', '.join(kinds)}: see the findings of the store", "warn"))
        outcome.remark([_unreadable(each) for each in result.unreadable], "more unreadable parts")
        return outcome


def _kind(layout: ExportLayout) -> str:
    return layout.format.value + ("" if layout.compression == "none" else f" ({layout.compression.value})")


def _describe(planned: Export, preview: PlanPreview) -> None:
    export_options, layout, plan = planned.export_options, planned.layout, planned.plan
    found: dict[str, _ChannelParts] = {}
    for part in (part for split in plan.splits for part in split.parts):
        name = part.slice.channel if isinstance(part, SlicePiece) else part.channel or ""
        each = found.setdefault(name, _ChannelParts(name))
        each.parts += 1
        each.size += part.cost
    text = f"the table {layout.table.value} of {counted(sum(1 for name in found if name), 'channel')}"
    preview.verdict = (f"{text} would be written; {format_size(planned.size)} to read", "good")
    preview.facts = [
        ("to", name_text(export_options.to)),
        (
            "as",
            _kind(layout) + (", one file" if export_options.single else f", about {counted(len(plan.splits), 'file')}"),
        ),
        ("columns", name_text(", ".join(layout.file_columns)) if layout.columns else "all"),
    ]
    preview.add_free(Path(export_options.to))
    bounds = planned.options.bounds
    for label, bound in (("since", bounds.since), ("until", bounds.until)):
        if bound is not None:
            preview.facts.append((label, format_time(bound)))
    preview.rows = sorted(found.values(), key=lambda each: each.name)
    preview.remark([_unreadable(each) for each in plan.unreadable], "more unreadable parts")


def _unreadable(each: FailedRead) -> PlanRemark:
    return PlanRemark("cannot be read", f"{each.message}{f' ({each.remedy})' if each.remedy else ''}", "bad")
