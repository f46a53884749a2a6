"""The report of a migration, as a plan or after streams were loaded or compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.report import NextStep, Report, ReportRemark, ReportTable, Role, columns, command_line
from stantools.migration.followed_store import Cutover
from stantools.migration.journal import StreamOutcome, StreamResult
from stantools.migration.plan.migration_plan import MigrationPlan, OmittedPart, Remark, RemarkLevel
from stantools.migration.workflow import exit_code, foreseen
from stantools.notation import counted, cut, describe_ranges, format_size, format_time

_STREAMS = columns(
    *("stream", "from channel", "messages", "sequences", "payload", "consumers", "remarks"),
    numbers=("messages", "payload", "consumers"),
)
_RESULTS = columns(
    *("stream", "what was done", "messages", "size", "loaded", "proof"), numbers=("messages", "size", "loaded")
)
#: From the worst to the best.
_LEVELS: Mapping[RemarkLevel, Role] = {
    RemarkLevel.PROBLEM: "bad",
    RemarkLevel.WARNING: "warn",
    RemarkLevel.INFO: "accent",
}
_WIDEST = 48


def migration_plan_report(plan: MigrationPlan, problems: Sequence[Remark]) -> Report:
    report = Report(code=foreseen(problems, findings=plan.lossy))
    rows = [
        (
            cut(stream.name, _WIDEST),
            cut(stream.origin, _WIDEST),
            stream.messages,
            stream.span,
            format_size(stream.bytes),
            len(stream.consumers),
            ", ".join(stream.remarks) or None,
        )
        for stream in plan.streams
    ]
    report.tables.append(ReportTable(_STREAMS, rows))
    left_out = sorted(plan.left_out, key=lambda each: not each.loss)
    report.list_remarks(map(_left_out, left_out), "part left out", ", which the plan file lists")
    report.list_remarks(plan_remarks([*plan.notes, *problems]), "note")
    lost = f", {counted(plan.lost, 'message', 'is/are')} missing before" if plan.lost else ""
    report.verdict = (
        f"{counted(len(plan.streams), 'stream')}, {counted(plan.messages, 'message')} ({format_size(plan.bytes)}), "
        f"{counted(plan.consumers, 'consumer')} -> {escape(str(plan.target))}{lost}"
    )
    report.role = "warn" if plan.lossy else "good"
    return report


def plan_remarks(remarks: Iterable[Remark]) -> list[ReportRemark]:
    """Returns the remarks on a plan, the worst first."""
    order = list(_LEVELS)
    return [
        ReportRemark(
            each.level.value,
            (f"{escape(each.about)}: " if each.about else "") + each.text,
            _LEVELS[each.level],
            each.remedy,
        )
        for each in sorted(remarks, key=lambda each: order.index(each.level))
    ]


def _left_out(each: OmittedPart) -> ReportRemark:
    channel = f"{escape(each.channel)}: " if each.channel else ""
    count = f" ({each.count})" if each.count > 1 else ""
    text = f"{channel}{each.what}{count}: {each.detail}"
    return ReportRemark("missing", text, "bad") if each.loss else ReportRemark("left out", text)


def migration_report(
    plan: MigrationPlan, results: Sequence[StreamResult], file: Path | None = None, cutover: Cutover | None = None
) -> Report:
    """Returns the report of loaded or compared streams; `file` is the plan's, if it was applied."""
    report = Report(code=ExitCode(exit_code(plan, results, changed=file is not None or cutover is not None)))
    report.document = lambda: results_json(plan, results) | (cutover_json(cutover) if cutover else {})
    report.tables.append(ReportTable(_RESULTS, [_result_row(each) for each in results]))
    for each in results:
        report.list_remarks((_difference(finding) for finding in each.findings), "difference")
        if each.error:
            text = f"{escape(each.stream)}: {each.error.message}"
            report.warnings.append(ReportRemark("failed", text, "bad", each.error.remedy))
    if cutover:
        _describe_cutover(report, cutover)
    failed, different = (sum(bool(getattr(each, name)) for each in results) for name in ("error", "findings"))
    if failed or different:
        parts = [f"{counted(failed, 'stream')} failed"] if failed else []
        parts += [counted(different, "stream", "differs/differ")] if different else []
        report.verdict, report.role = f"{' and '.join(parts)}, of {len(results)}", "bad"
        if file is not None:
            left = sum(result.outcome is StreamOutcome.NOT_BEGUN for result in results)
            begun = f"{counted(left, 'stream', 'was/were')} not begun; " if left else ""
            command = command_line("stantools", "migrate", "apply", str(file))
            report.next.append(NextStep(f"{begun}after removing the cause, continue with:", [command]))
    else:
        report.verdict = f"{counted(len(results), 'stream', 'is/are')} as planned{compared_text(results)}"
        report.role = "good"
    return report


def _result_row(each: StreamResult) -> tuple[Any, ...]:
    rate = f"{each.messages / each.seconds:,.0f}/s" if each.seconds and each.messages else None
    compared = f"{each.proven} compared" if each.proven or each.prove_seconds else None
    failed = each.outcome is StreamOutcome.FAILED
    proof = "failed" if failed else counted(len(each.findings), "difference") if each.findings else compared
    return cut(each.stream, _WIDEST), each.outcome.value, each.messages, format_size(each.bytes), rate, proof


def _difference(finding: Any) -> ReportRemark:
    place = escape(finding.channel) if finding.channel else ""
    place += f" at {finding.seq}" if finding.seq is not None else ""
    return ReportRemark(finding.code, f"{place}: {finding.detail}" if place else finding.detail, "bad")


def _describe_cutover(report: Report, cutover: Cutover) -> None:
    for name, removed in sorted(cutover.removed.items()):
        text = f"{counted(removed.count(), 'message')} before they were read, by the server's limits"
        report.remark("removed", f"{escape(name)}: {text}: {describe_ranges(removed)}", "warn")
    usually = "" if cutover.delay is None else f", each about {cutover.delay:.1f} s after it was stored"
    text = f"{counted(cutover.appended, 'message')} carried while the server was running{usually}; {cutover.why}; "
    text += f"nothing was served for {cutover.seconds:.1f} s, until {format_time(round(cutover.ready * 1e9))}"
    report.facts.append(("cutover", text))
    if cutover.written:
        text = "the store was written to since the cutover: these messages are not in the streams"
        report.warnings.append(ReportRemark("warning", text, "warn", "stop the streaming server for good"))
        report.code = report.code or ExitCode.FINDINGS


def compared_text(results: Sequence[StreamResult]) -> str:
    compared = sum(result.proven for result in results)
    return f"; {counted(compared, 'message', 'was/were')} compared one by one" if compared else ""


def results_json(plan: MigrationPlan, results: Sequence[StreamResult]) -> dict[str, Any]:
    """Returns results with stable names for programs."""
    return {
        "target": str(plan.target),
        "clean": all(result.good for result in results),
        "lost": plan.lost,
        "streams": [
            {
                "stream": each.stream,
                "outcome": each.outcome.value,
                "messages": each.messages,
                "bytes": each.bytes,
                "seconds": round(each.seconds, 3),
                "compared": each.proven,
                "compare_seconds": round(each.prove_seconds, 3),
                "findings": [finding.as_json() for finding in each.findings],
                "error": each.error.message if each.error else None,
                "remedy": each.error.remedy if each.error else None,
            }
            for each in results
        ],
    }


def cutover_json(cutover: Cutover) -> dict[str, Any]:
    """Returns the cutover with stable names for programs."""
    return {
        "cutover": {
            "why": cutover.why,
            "since": cutover.since,
            "ready": cutover.ready,
            "seconds": round(cutover.seconds, 3),
            "carried": cutover.appended,
            "delay": None if cutover.delay is None else round(cutover.delay, 3),
            "longest_delay": round(max(cutover.delays), 3) if cutover.delays else None,
            "removed": {name: removed.as_json() for name, removed in sorted(cutover.removed.items())},
            "written_since": cutover.written,
        }
    }
