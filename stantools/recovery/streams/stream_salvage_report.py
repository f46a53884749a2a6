"""The report of a salvage of streams, as a plan or after they were written."""

from __future__ import annotations

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.report import NextStep, Report, ReportRemark, ReportTable, columns, command_line
from stantools.notation import counted, describe_ranges, format_size
from stantools.recovery.recovery_options import SalvageTarget, StreamSalvageOptions
from stantools.recovery.streams.new_streams import StreamSalvageResult
from stantools.recovery.streams.stream_plan import StreamSalvagePlan
from stantools.sources.jetstream import REQUEST

_COLUMNS = columns(
    *("stream", "kept", "sequences", "in doubt", "missing before", "consumers"),
    numbers=("kept", "in doubt", "missing before", "consumers"),
)


def stream_salvage_report(
    plan: StreamSalvagePlan,
    result: StreamSalvageResult | None = None,
    options: StreamSalvageOptions | None = None,
) -> Report:
    """Returns the report of a plan, or of written streams."""
    report = Report(document=plan.as_json)
    rows = [
        (
            each.full_name,
            each.messages,
            describe_ranges(each.recovered, 4),
            each.resurrected.count() or None,
            each.lost.count() or None,
            len(each.consumers) or None,
        )
        for each in plan.streams
    ]
    report.tables.append(ReportTable(_COLUMNS, rows))
    report.list_remarks((ReportRemark("note", escape(each)) for each in plan.all_notes()), "note", "see -o json")
    kept = f"{counted(plan.messages, 'message')} in {counted(len(plan.streams), 'stream')}, {format_size(plan.bytes)}"
    if lost := sum(each.lost.count() for each in plan.streams):
        report.facts.append(
            ("missing before", f"{counted(lost, 'message')} that the streams held, and that are nowhere intact")
        )
    if doubt := sum(each.resurrected.count() for each in plan.streams):
        report.facts.append(("in doubt", f"{counted(doubt, 'message')}: nothing tells whether they were deleted"))
    if plan.left_out:
        report.facts.append(("left out", counted(plan.left_out, "stream")))
    if result is None:
        report.code = ExitCode.FINDINGS if plan.lossy else ExitCode.CLEAN
        report.verdict, report.role = f"would keep {kept}", "warn" if plan.lossy else "good"
        return report
    report.facts += [("kept", kept), ("new store", escape(str(result.path)))]
    if not result.good:
        report.code = ExitCode.FINDINGS
        report.list_remarks((ReportRemark("wrong", escape(each), "bad") for each in result.problems), "problem")
        report.verdict, report.role = "what was written is not as planned", "bad"
        return report
    report.code = ExitCode.LOSS if plan.lossy else ExitCode.CLEAN
    if options and options.to is SalvageTarget.BACKUP:
        report.verdict, report.role = "the backups were written", "good"
        commands = [
            command_line("nats", "stream", "restore", str(path.parent)) for path in sorted(result.path.rglob(REQUEST))
        ]
        report.next.append(NextStep("restore each stream into a server:", commands))
        return report
    report.verdict, report.role = "the new directory was read back: every message and consumer is there", "good"
    report.next.append(
        NextStep(
            "start a stand-alone nats-server on the new directory:",
            [command_line("nats-server", "-js", "-sd", str(result.path))],
        )
    )
    return report
