"""The report of a repair of a JetStream directory, planned or done: its steps, and the starts before and after."""

from __future__ import annotations

from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.report import NextStep, Report, ReportRemark
from stantools.inspection.stream_advice import safe_step
from stantools.inspection.stream_forecast.directory_forecast import DirectoryForecast
from stantools.inspection.stream_forecast.start_report import is_harmless, start_sentence
from stantools.notation import counted
from stantools.recovery.streams.stream_repair import StreamRepairPlan, StreamRepairResult

_WORDS = {"write": ("would write", "wrote"), "move": ("would move to the backup", "moved to the backup")}


def stream_repair_report(plan: StreamRepairPlan, result: StreamRepairResult | None = None) -> Report:
    after = result.after if result else plan.after
    harmless = all(map(is_harmless, after))

    def document() -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "jetstream",
            "path": str(plan.source.path),
            "done": result is not None,
            "steps": [each.as_json() for each in plan.steps],
            "refusals": plan.refusals,
            "backup": str(result.backup) if result and result.backup else None,
            "before": [_start(each) for each in plan.before],
            "after": [_start(each) for each in after],
        }

    report = Report(code=ExitCode.CLEAN if harmless else ExitCode.FINDINGS, document=document)
    steps = [
        ReportRemark(_WORDS[each.action][result is not None], f"{escape(each.change.path)}: {each.reason}", "good")
        for each in plan.steps
    ]
    report.list_remarks(steps, "step", ": see -o json")
    report.list_remarks([ReportRemark("left alone", each, "warn") for each in plan.refusals], "file")
    tense = "now" if result else "then"
    starts = [("before", each) for each in plan.before]
    starts += [(tense, each) for each in after] if plan.steps else []
    report.list_remarks(
        (ReportRemark(word, start_sentence(each), "good" if is_harmless(each) else "warn") for word, each in starts),
        "start",
    )
    if result and result.backup:
        report.facts.append(("saved first", escape(str(result.backup))))
    if not plan.steps:
        report.verdict, report.role = "nothing can be repaired in place without a risk", "warn"
        if harmless:
            report.verdict, report.role = "nothing to repair", "good"
    else:
        verb = "took" if result else "would take"
        report.verdict = f"{verb} {counted(len(plan.steps), 'step')}; no message can be lost by that"
        report.role = "good"
    if not harmless:
        text = "A start is still not harmless: copy the directory, then write what is intact to a new one"
        if plan.source.archived:
            text = "A start is not harmless: write what is intact in the archive to a new directory"
        report.next.append(safe_step(plan.source, text))
    elif result:
        report.next.append(NextStep("start the server"))
    return report


def _start(forecast: DirectoryForecast) -> dict[str, Any]:
    return {
        "server_version": forecast.version,
        "harmless": is_harmless(forecast),
        "says": start_sentence(forecast),
        "destroyed": {
            name: each.loss.destroyed.as_json() for name, each in forecast.streams.items() if each.loss.destroyed
        },
        "not_loaded": [name for name, each in forecast.streams.items() if not each.loaded],
    }
