"""The report of verify, for any kind of source."""

from __future__ import annotations

from collections.abc import Mapping

from stantools.errors import ExitCode
from stantools.inspection.findings import Severity
from stantools.inspection.report import Report, finding_records
from stantools.inspection.scan_result import ScanResult
from stantools.notation import counted, format_size

_NOUNS: Mapping[str, str] = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def verify_report(verdict: ScanResult, *, node: bool = False) -> Report:
    report = Report(code=ExitCode.CLEAN if verdict.clean else ExitCode.FINDINGS, findings=verdict.findings)
    report.document, report.records = verdict.as_json, finding_records(verdict.findings, verdict.finding_columns)
    report.tables.append(verdict.table())
    if not node:
        report.facts.append(("messages", verdict.messages_sentence()))
    counts = verdict.severity_counts()
    scanned = f"{format_size(verdict.bytes_scanned)} read in {verdict.seconds:.2f} s"
    if verdict.clean:
        notes = f", {counts[Severity.INFO]} for information" if counts[Severity.INFO] else ""
        report.verdict, report.role = f"clean: {scanned}{notes}", "good"
        return report
    parts = [counted(count, _NOUNS[severity]) for severity, count in counts.items() if count]
    report.verdict, report.role = f"not clean: {', '.join(parts)}; {scanned}", "bad"
    if not node:
        report.next.append(verdict.next_step())
    return report
