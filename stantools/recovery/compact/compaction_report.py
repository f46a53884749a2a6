"""The report of a compaction, as a plan or after the new store was written."""

from __future__ import annotations

from functools import partial
from typing import Any

from stantools.escaping import escape
from stantools.inspection.report import NextStep, Report, ReportTable, columns
from stantools.notation import counted, describe_ranges, format_size
from stantools.recovery.compact.apply import CompactionResult
from stantools.recovery.compact.plan import CompactionPlan

_COLUMNS = columns(
    *("channel", "kept", "sequences", "dropped", "slices now", "subs", "orphans dropped"),
    numbers=("kept", "dropped", "slices now", "subs", "orphans dropped"),
    roles={"dropped": "warn", "orphans dropped": "warn"},
    details=("slices now", "subs"),
)


def compaction_report(plan: CompactionPlan, result: CompactionResult | None = None) -> Report:
    report = Report(document=partial(_document, plan, result))
    kept, dropped = (sum(getattr(channel, name) for channel in plan.channels) for name in ("messages", "skip"))
    if result is not None:
        report.facts = [
            ("compacted store", f"{escape(str(result.path))}, {format_size(result.bytes)}"),
            ("holds", f"{counted(result.messages, 'message')} in {counted(result.slices, 'slice')}"),
        ]
        if result.backup:
            report.facts.append(("the old store", f"kept as {escape(str(result.backup))}"))
        report.verdict, report.role = "the compacted store was read back and matches the plan", "good"
        report.next.append(NextStep("start the server on the compacted store"))
        return report
    rows = [
        (
            channel.files.name,
            channel.messages,
            describe_ranges(channel.kept, 4),
            channel.skip or None,
            len(channel.slices),
            channel.subscriptions,
            len(channel.orphans) or None,
        )
        for channel in plan.channels
    ]
    report.tables.append(ReportTable(_COLUMNS, rows))
    report.facts = [("now", format_size(plan.bytes_before)), ("afterwards", f"about {format_size(plan.bytes_after)}")]
    left_out = f"; {dropped} beyond the limits would be left out" if dropped else ""
    report.verdict = f"would keep {counted(kept, 'message')} in {counted(len(plan.channels), 'channel')}{left_out}"
    report.role = "warn" if dropped else "good"
    return report


def _document(plan: CompactionPlan, result: CompactionResult | None) -> dict[str, Any]:
    return {
        "source": str(plan.store.path),
        "written": result is not None,
        "out": str(result.path) if result else None,
        "backup": str(result.backup) if result and result.backup else None,
        "summary": plan.summary(),
        "drop_orphans": plan.options.drop_orphans,
        "channels": [
            {
                "name": channel.files.name,
                "kept": channel.kept.as_json(),
                "messages": channel.messages,
                "dropped": channel.skip,
                "subscriptions": channel.subscriptions,
                "orphans_dropped": sorted(channel.orphans),
            }
            for channel in plan.channels
        ],
    }
