"""The report of a migration, as a plan or after streams were loaded or compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.report import NextStep, Report, ReportRemark, ReportTable, Role, columns, command_line
from stantools.migration.followed_store import Cutover, FollowEnd
from stantools.migration.journal import StreamOutcome, StreamResult
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import MigrationPlan, OmittedPart, Remark, RemarkLevel
from stantools.migration.prepared_stream import estimated_bytes
from stantools.migration.workflow import exit_code, foreseen
from stantools.notation import counted, cut, describe_ranges, format_size, format_time

_TITLES = ("stream", "from channel", "messages", "sequences", "payload", "consumers")
_NUMBERS = ("messages", "payload", "consumers")
#: Rows of a table that are printed even if none of them is remarkable.
_FEW = 12
_RESULTS = columns(
    *("stream", "what was done", "messages", "size", "loaded", "proof"),
    numbers=("messages", "size", "loaded"),
    keys=("stream", "what was done", "proof"),
    details=("loaded", "size"),
)
#: From the worst to the best.
_LEVELS: Mapping[RemarkLevel, Role] = {
    RemarkLevel.PROBLEM: "bad",
    RemarkLevel.WARNING: "warn",
    RemarkLevel.INFO: "accent",
}
_WIDEST = 48
#: Rates of an ordinary machine: seconds for each stream; messages a second by restoring and by publishing; bytes a
#: second.
_STREAM_SECONDS = 0.05
_RESTORED, _PUBLISHED, _BYTES = 150_000, 25_000, 60e6


def migration_plan_report(
    plan: MigrationPlan, problems: Sequence[Remark], present: Mapping[str, str] | None = None
) -> Report:
    """Returns the report of a plan; `present` describes streams of the target, by name (`Destination.contents`)."""
    present = present or {}
    report = Report(code=foreseen(problems, findings=plan.lossy))
    report.document = lambda: plan_json(plan, problems, present)
    about = {each.about for each in (*problems, *plan.notes) if each.level is not RemarkLevel.INFO}
    remarkable = [each for each in plan.streams if each.remarks or each.name in present or each.name in about]
    names = {each.name for each in remarkable}
    more = {"in the target": bool(present), "remarks": any(each.remarks for each in plan.streams)}
    rows = []
    for stream in [*remarkable, *(each for each in plan.streams if each.name not in names)]:
        last = {"in the target": present.get(stream.name), "remarks": ", ".join(stream.remarks) or None}
        rows.append(
            (
                cut(stream.name, _WIDEST),
                cut(stream.origin, _WIDEST),
                stream.messages,
                stream.span,
                format_size(stream.bytes),
                len(stream.consumers),
                *(last[title] for title, shown in more.items() if shown),
            )
        )
    titles = columns(
        *(*_TITLES, *(title for title, shown in more.items() if shown)),
        numbers=_NUMBERS,
        keys=("stream", "from channel", "in the target", "remarks"),
        details=("payload", "sequences"),
    )
    limit = max(min(len(remarkable), 4 * _FEW), _FEW)
    report.tables.append(ReportTable(titles, rows, limit, "stream", ": --all shows them, and the plan file has them"))
    if present:
        report.facts.append(("in the target", _present_text(plan, present)))
    left_out = sorted(plan.left_out, key=lambda each: not each.loss)
    report.list_remarks(map(_left_out, left_out), "part", " left out: --all shows them, and the plan file has them")
    report.list_remarks(plan_remarks([*plan.notes, *problems]), "remark")
    lost = f", {counted(plan.lost, 'message', 'is/are')} missing before" if plan.lost else ""
    report.verdict = (
        f"{counted(len(plan.streams), 'stream')}, {counted(plan.messages, 'message')} ({format_size(plan.bytes)}), "
        f"{counted(plan.consumers, 'consumer')} -> {escape(str(plan.target))}{lost}"
    )
    report.facts.append(("estimate", _estimate_text(plan)))
    report.role = "warn" if plan.lossy else "good"
    return report


def plan_json(
    plan: MigrationPlan, problems: Sequence[Remark] = (), present: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns a plan with stable names for programs; the plan file has all of it."""
    return {
        "target": str(plan.target),
        "lost": plan.lost,
        "streams": [
            {
                "stream": each.name,
                "channels": [part.channel for part in each.parts],
                "subjects": list(each.subjects),
                "messages": each.messages,
                "bytes": each.bytes,
                "consumers": [consumer.name for consumer in each.consumers],
                "in_target": (present or {}).get(each.name),
            }
            for each in plan.streams
        ],
        "left_out": [
            {"what": each.what, "channel": each.channel, "why": each.detail, "count": each.count, "loss": each.loss}
            for each in plan.left_out
        ],
        "remarks": [remark_json(each) for each in (*plan.notes, *problems)],
    }


def remark_json(remark: Remark) -> dict[str, Any]:
    return {"level": remark.level.value, "about": remark.about, "text": remark.text, "remedy": remark.remedy}


def _present_text(plan: MigrationPlan, present: Mapping[str, str]) -> str:
    count, left = len(present), len(plan.streams) - len(present)
    verbs = "exists already, and is compared" if count == 1 else "exist already, and are compared"
    text = f"{counted(count, 'stream')} of {len(plan.streams)} {verbs}"
    return f"{text}; {counted(left, 'other', 'is/are')} new" if left else text


def _estimate_text(plan: MigrationPlan) -> str:
    """Estimates space and time by the rates of an ordinary machine (migration-guide.md, time and space)."""
    stored = sum(estimated_bytes(stream) * int(stream.settings.get("num_replicas") or 1) for stream in plan.streams)
    rate = _PUBLISHED if plan.way is LoadMethod.PUBLISH else _RESTORED
    seconds = len(plan.streams) * _STREAM_SECONDS + plan.messages / rate + plan.bytes / _BYTES
    return f"about {format_size(stored)} on the target's disk, and {_about(seconds)} to load and compare"


def _about(seconds: float) -> str:
    """A time of which only the order is known."""
    return next(
        (
            f"{max(round(seconds / length), 1)} {unit}"
            for length, unit in ((3600, "h"), (60, "min"))
            if seconds >= length
        ),
        f"{max(round(seconds), 1)} s",
    )


def plan_remarks(remarks: Iterable[Remark]) -> list[ReportRemark]:
    """Returns the remarks on a plan, the worst first."""
    remarks, order = list(remarks), list(_LEVELS)
    remedies = list(dict.fromkeys(each.remedy for each in remarks))  # equal ones are printed once, after the last
    return [
        ReportRemark(
            each.level.value,
            (f"{escape(each.about)}: " if each.about else "") + each.text,
            _LEVELS[each.level],
            each.remedy,
        )
        for each in sorted(remarks, key=lambda each: (order.index(each.level), remedies.index(each.remedy)))
    ]


def _left_out(each: OmittedPart) -> ReportRemark:
    channel = f"{escape(each.channel)}: " if each.channel else ""
    count = f" ({each.count})" if each.count > 1 else ""
    text = channel + (each.detail if each.detail.startswith(each.what) else f"{each.what}{count}: {each.detail}")
    return ReportRemark("missing", text, "bad") if each.loss else ReportRemark("left out", text)


def migration_report(
    plan: MigrationPlan,
    results: Sequence[StreamResult],
    file: Path | None = None,
    cutover: Cutover | None = None,
    *,
    loaded: bool = False,
) -> Report:
    """Returns the report of streams that were `loaded`, or only compared; `file` is that of the applied plan."""
    report = Report(code=ExitCode(exit_code(plan, results, changed=loaded)))
    report.document = lambda: results_json(plan, results) | (cutover_json(cutover) if cutover else {})
    limit = _list_results(report, results, " as planned: --all shows them")
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
        if not limit:
            report.facts.append(("streams", "all are as planned; --all lists them"))
        if text := _loaded_text(results):
            report.facts.append(("loaded", text))
        report.role = "good"
        if loaded:
            report.next.append(_switch(plan, file))
    return report


def _switch(plan: MigrationPlan, file: Path | None) -> NextStep:
    """What follows when all streams are loaded."""
    if plan.broker:
        broker = command_line("stan-broker", "-st", "jetstream", "-cid", plan.broker) + " …"
        return NextStep("the broker continues with these streams:", [broker])
    commands = [command_line("stantools", "migrate", "handout", str(file))] if file else []
    return NextStep("switch the applications, consumers first" + "; what each needs:" * bool(commands), commands)


def follow_end_report(plan: MigrationPlan, end: FollowEnd, now: float) -> Report:
    """Returns the report of following that was ended by Ctrl-C, at a time in seconds since 1970."""
    report = Report(code=ExitCode(exit_code(plan, end.results, changed=False)))
    report.document = lambda: results_json(plan, end.results) | {"ended": end.state.as_json(now)}
    _list_results(report, end.results, " followed: --all shows them")
    bad = sum(not each.good for each in end.results)
    carried = f"{counted(end.state.carried, 'message')} carried while the server was running"
    report.facts.append(
        ("followed", f"{counted(len(end.results) - bad, 'stream')}, {carried}; consumers are not made yet")
    )
    report.verdict, report.role = f"ended by Ctrl-C, {end.state.describe(now)}", "bad" if bad else "good"
    report.verdict += f"; {counted(bad, 'stream')} failed" if bad else ""
    report.next.append(
        NextStep("the same command continues; with --cutover it makes the consumers when the server stops")
    )
    return report


def _list_results(report: Report, results: Sequence[StreamResult], rest: str) -> int:
    """Adds results, the bad ones first, with differences and errors; returns how many of them are printed."""
    ranked = sorted(results, key=lambda each: each.good)
    limit = sum(not each.good for each in results) or (len(results) if len(results) <= _FEW else 0)
    report.tables.append(ReportTable(_RESULTS, [_result_row(each) for each in ranked], limit, "stream", rest))
    for each in results:
        report.list_remarks((_difference(finding) for finding in each.findings), "difference")
        if each.error:
            text = f"{escape(each.stream)}: {each.error.message}"
            report.warnings.append(ReportRemark("failed", text, "bad", each.error.remedy))
    return limit


def _loaded_text(results: Sequence[StreamResult]) -> str:
    loaded = [each for each in results if each.seconds]
    if not loaded:
        return ""
    messages, size = sum(each.messages for each in loaded), sum(each.bytes for each in loaded)
    seconds = sum(each.seconds for each in loaded)
    compared = sum(each.prove_seconds for each in results)
    text = f"{counted(messages, 'message')}, {format_size(size)}, in {seconds:.1f} s"
    return f"{text}; compared in {compared:.1f} s" if compared else text


def _result_row(each: StreamResult) -> tuple[Any, ...]:
    rate = f"{each.messages / each.seconds:,.0f}/s" if each.seconds and each.messages else None
    compared = f"{each.proven} compared" if each.proven or each.prove_seconds else None
    failed = each.outcome is StreamOutcome.FAILED
    proof = "failed" if failed else counted(len(each.findings), "difference") if each.findings else compared
    size = format_size(each.bytes) if each.bytes or not each.messages else None
    return cut(each.stream, _WIDEST), each.outcome.value, each.messages, size, rate, proof


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
    each = 1e3 * cutover.seconds / max(len(cutover.results), 1)
    text += f"nothing was served for {cutover.seconds:.1f} s, {each:.0f} ms for each stream, "
    text += f"until {format_time(round(cutover.ready * 1e9))}"
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
