"""The report of an export, as a plan or after the files were written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.report import Report, ReportRemark, ReportTable, columns
from stantools.notation import counted, format_size
from stantools.pipeline.export.export_layout import ExportLayout, Result
from stantools.pipeline.export.request import Export
from stantools.pipeline.tables.model import FailedRead, SlicePiece
from stantools.pipeline.tables.table_options import TableOptions

_PARTS = columns("channel", "parts", "to read", numbers=("parts", "to read"))
_TABLES = columns("table", "rows", numbers=("rows",))
_FILES = columns("file", "rows", "size", numbers=("rows", "size"))


def export_plan_report(export: Export) -> Report:
    export_options, layout, plan = export.export_options, export.layout, export.plan
    report = Report(
        code=ExitCode.FINDINGS if plan.unreadable else ExitCode.CLEAN, document=lambda: _plan_document(export)
    )
    report.warnings = _unreadable(plan.unreadable)
    found: dict[str, list[int]] = {}
    for part in (part for split in plan.splits for part in split.parts):
        name = part.slice.channel if isinstance(part, SlicePiece) else part.channel or ""
        counts = found.setdefault(name, [0, 0])
        counts[0] += 1
        counts[1] += part.cost
    rows = [
        (name or "the store's own files", parts, format_size(size)) for name, (parts, size) in sorted(found.items())
    ]
    report.tables.append(ReportTable(_PARTS, rows, limit=0))
    stores, parts = counted(len(plan.stores), "store"), counted(len(plan.splits), "part")
    report.verdict = (
        f"would write the table {layout.table} of {stores} to {escape(export_options.to)}: {kind(layout)}, "
        f"{format_size(export.size)} to read in {parts}"
    )
    report.role = "warn" if plan.unreadable else "good"
    return report


def export_report(result: Result, options: TableOptions) -> Report:
    layout, written = result.layout, result.written
    report = Report(code=ExitCode.CLEAN if result.clean else ExitCode.FINDINGS)
    report.document = lambda: {
        "written": True,
        "target": result.target,
        "clean": result.clean,
        **manifest_of(result, options),
    }
    report.warnings = _unreadable(result.unreadable)
    if damaged := written.damaged(layout.table):
        bad = [(what, count) for what, count in written.tally.most_common() if what not in layout.good]
        kinds = ", ".join(f"{count} {what}" for what, count in bad if what not in layout.health_columns)
        reports = "reports a problem" if damaged == 1 else "report problems"
        text = f"{counted(damaged, 'row')} of the table {layout.table} {reports}{f': {kinds}' if kinds else ''}"
        report.warnings.append(ReportRemark("warning", text, "warn", "see: stantools verify STORE"))
    if result.target is not None:  # otherwise the rows are on standard output
        files = [(each.path, each.rows, format_size(each.size)) for each in written.files]
        report.tables.append(ReportTable(_FILES, files, limit=0))
        report.verdict = (
            f"{counted(written.rows, 'row')} of the table {layout.table} in {escape(result.target)}: "
            f"{counted(len(written.files), 'file')}, {format_size(written.size)}, {kind(layout)}"
        )
        report.role = "good" if result.clean else "warn"
    return report


def export_tables_report(results: Sequence[Result], options: Sequence[TableOptions]) -> Report:
    """Returns the report of several tables in one database."""
    parts = [export_report(result, each) for result, each in zip(results, options, strict=True)]
    report = Report(code=max(part.code for part in parts))
    report.warnings = list(dict.fromkeys(warning for part in parts for warning in part.warnings))
    clean = report.code == ExitCode.CLEAN
    last = results[-1]
    report.document = lambda: {
        "written": True,
        "target": last.target,
        "clean": clean,
        "tables": [manifest_of(result, each) for result, each in zip(results, options, strict=True)],
    }
    rows = [(each.layout.table.value, each.written.rows) for each in results]
    report.tables.append(ReportTable(_TABLES, rows))
    size = format_size(last.written.size)
    report.verdict = f"{counted(len(results), 'table')} in {escape(str(last.target))}: {size}, {kind(last.layout)}"
    report.role = "good" if clean else "warn"
    return report


def kind(layout: ExportLayout) -> str:
    return layout.format.value + ("" if layout.compression == "none" else f" ({layout.compression.value})")


def _unreadable(failed: Sequence[FailedRead]) -> list[ReportRemark]:
    return [ReportRemark("cannot be read", each.message, "warn", each.remedy) for each in failed]


def _plan_document(export: Export) -> dict[str, Any]:
    return {
        "written": False,
        "target": export.export_options.to,
        **export.layout.as_json(),
        "stores": [store.root for store in export.plan.stores],
        "parts": len(export.plan.splits),
        "bytes_to_read": export.size,
        "failed": [each.as_json() for each in export.plan.unreadable],
    }


def manifest_of(result: Result, options: TableOptions) -> dict[str, Any]:
    from stantools.pipeline.export.run import manifest

    return manifest(result, options)
