"""The report of verify, for one store or one clustered node."""

from __future__ import annotations

from stantools.errors import ExitCode
from stantools.inspection.findings import Severity
from stantools.inspection.outcomes import OutcomeTotals
from stantools.inspection.report import NextStep, Report, ReportTable, columns, finding_records
from stantools.inspection.verify import Verdict
from stantools.notation import counted, describe_ranges, format_size

_COLUMNS = columns(
    *("channel", "messages", "bytes", "intact", "archived", "missing before", "unknown"), numbers=("messages", "bytes")
)
_NOUNS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def verify_report(verdict: Verdict, *, node: bool = False) -> Report:
    report = Report(code=ExitCode.CLEAN if verdict.clean else ExitCode.FINDINGS, findings=verdict.findings)
    report.document, report.records = verdict.as_json, finding_records(verdict.findings)
    rows = [
        (
            each.name,
            each.messages,
            each.bytes,
            describe_ranges(each.outcome.intact, 4),
            describe_ranges(each.outcome.archived, 4) if each.outcome.archived else None,
            describe_ranges(each.outcome.missing, 4) if each.outcome.missing else None,
            ", ".join(unknown.sequences for unknown in each.outcome.unknown) or None,
        )
        for each in verdict.channels
    ]
    report.tables.append(ReportTable(_COLUMNS, rows))
    if not node:
        report.facts.append(("messages", OutcomeTotals.of(verdict.outcomes.values()).sentence()))
    counts = severity_counts(verdict)
    scanned = f"{format_size(verdict.bytes_scanned)} read in {verdict.seconds:.2f} s"
    if verdict.clean:
        notes = f", {counts[Severity.INFO]} for information" if counts[Severity.INFO] else ""
        report.verdict, report.role = f"clean: {scanned}{notes}", "good"
        return report
    parts = [counted(count, _NOUNS[severity]) for severity, count in counts.items() if count]
    report.verdict, report.role = f"not clean: {', '.join(parts)}; {scanned}", "bad"
    if not node:
        report.next.append(NextStep("`stantools forecast STORE` shows the server's behaviour; nothing was changed"))
    return report


def severity_counts(verdict: Verdict) -> dict[Severity, int]:
    return {severity: sum(each.severity is severity for each in verdict.findings) for severity in Severity}
