"""The reports of doctor and of forecast: the verdict, starts of the server, the messages, and the next step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import escape, fill_in, store_names
from stantools.inspection.advice import Advice, Diagnosis, Health
from stantools.inspection.elections import ClusterForecast
from stantools.inspection.findings import Severity
from stantools.inspection.forecast.channel_forecast import Forecast, Loss
from stantools.inspection.node_diagnosis import NodeDiagnosis
from stantools.inspection.report import (
    NextStep,
    Report,
    ReportRemark,
    ReportSection,
    ReportTable,
    Role,
    columns,
    command_line,
    findings_section,
)
from stantools.inspection.start_verdict import StartVerdict
from stantools.notation import counted, describe_ranges
from stantools.store.ranges import Ranges

_CHANNELS = 20
_LOG_LINES = 12
_JSON: str = ": see -o json"
ROLES: Mapping[Health, Role] = {
    Health.HEALTHY: "good",
    Health.FLAWED: "warn",
    Health.DAMAGED: "bad",
    Health.IN_DANGER: "bad",
}
_OUTCOMES = columns(
    *("channel", "intact", "readable now", "recoverable", "archived", "missing before", "unknown"), numbers=("intact",)
)
_FORECASTS = columns(
    *("channel", "first", "last", "messages", "bytes", "readable", "delivered", "delivery stops at", "subs"),
    numbers=("first", "last", "messages", "bytes", "subs"),
    details=("subs", "bytes", "readable"),
    fold=("delivery stops at",),
)
#: Log lines that are left out: informational ones, the dump of a bad record, and the error itself.
_DETAIL = re.compile(r"\[INF\]|\[FTL\]|\[ERR\] STREAM: (?: |Record |[0-9a-f]{2}(?: |$))")


def diagnosis_report(diagnosis: Diagnosis | NodeDiagnosis) -> Report:
    clean = diagnosis.state is Health.HEALTHY
    report = Report(code=ExitCode.CLEAN if clean else ExitCode.FINDINGS, leads=True, document=diagnosis.as_json)
    report.label, report.role = str(diagnosis.path), ROLES[diagnosis.state]
    report.verdict = f"{diagnosis.state.value}: {diagnosis.verdict}"
    if isinstance(diagnosis, Diagnosis):
        if encryption := encryption_text(diagnosis):
            report.facts.append(("encryption", encryption))
        report.warnings += _start_problem(diagnosis)
        starts = list(_starts(diagnosis.starts))
        for start in starts:
            start.apart = start is starts[0]
        report.sections += [*starts, messages_section(diagnosis)]
    wrong = [each for each in diagnosis.verified.findings if each.severity is not Severity.INFO]
    if section := findings_section(wrong):
        report.sections.append(section)
    report.sections.append(ReportSection(next=[next_step(diagnosis.advice)]))
    return report


def verdict_report(diagnosis: Diagnosis, page: str) -> Report:
    """Returns the report of a page about a store."""
    whole = diagnosis_report(diagnosis)
    whole.sections.clear()
    whole.document = lambda: {**diagnosis.as_json(), "page": page}
    return whole


def forecast_report(diagnosis: Diagnosis, judged: Sequence[tuple[StartVerdict, StartVerdict]]) -> Report:
    """Returns the report of the predicted starts of some versions, the user's first."""
    first, *others = _starts(judged)
    report = Report(code=ExitCode.CLEAN if judged[0][0].delivers else ExitCode.FINDINGS, leads=True)
    report.document = lambda: _forecast_document(diagnosis, judged)
    report.verdict, report.role, report.remarks = first.verdict, first.role, first.remarks
    for start in others:
        start.apart = False
    advice = ReportSection(next=[next_step(diagnosis.advice)], apart=False)
    report.sections += [*others, advice, messages_section(diagnosis)]
    for normal, truncating in judged:
        one, two = normal.forecast, truncating.forecast
        option = "start with -file_truncate_bad_eof"
        report.sections += [_forecast(one, "normal start"), _forecast(two, option, beside=one)]
    return report


def cluster_report(forecast: ClusterForecast) -> Report:
    """Returns the report of a start of a cluster's nodes."""
    code = ExitCode.CLEAN if forecast.harmless else ExitCode.FINDINGS
    report = Report(code=code, leads=True, role="good" if forecast.harmless else "bad", document=forecast.as_json)
    leaders = " or ".join(each.leader for each in forecast.outcomes)
    votes = f"{counted(len(forecast.voters), 'vote')} ({', '.join(forecast.voters) or 'members unknown'})"
    report.verdict = f"If started together now, {leaders or 'none of these nodes'} becomes leader; "
    report.verdict += f"it needs {forecast.majority} of {votes}."
    details = [f"{node.name} does not start: {node.error}" for node in forecast.nodes if node.error]
    for each in forecast.outcomes:
        for lost in each.forgets:
            details.append(
                f"if {each.leader} leads, the cluster forgets {escape(lost.channel)}: sequences {lost.first} to "
                f"{lost.last}, {counted(lost.subscriptions, 'subscription')}"
            )
    report.list_details((ReportRemark("", text) for text in details), limit=len(details))
    if any(each.forgets for each in forecast.outcomes):
        text = "copy all directories first; then stantools merge NODE... --out NEW, or give the data directory of a "
        report.next.append(NextStep(text + "whole node to the one that lost its own", template=True))
    elif not forecast.harmless:
        report.next.append(NextStep("`stantools verify NODE` for each node that does not start"))
    return report


def next_step(advice: Advice) -> NextStep:
    return NextStep(advice.text, [command_line(*advice.command)] if advice.command else ())


def encryption_text(diagnosis: Diagnosis) -> str:
    return fill_in(diagnosis.encryption.sentence, store_names(diagnosis.path))


def _start_problem(diagnosis: Diagnosis) -> Iterator[ReportRemark]:
    if problem := diagnosis.start_problem:
        text = f"the server's start cannot be predicted: {problem.message}"
        yield ReportRemark("warning", text, "warn", problem.remedy)


def _starts(versions: Sequence[tuple[StartVerdict, StartVerdict]]) -> Iterator[ReportSection]:
    """Yields the outcome of each start that differs, and the data that it destroys."""
    if not versions:
        return
    (normal, truncating), *others = versions
    yield _start(normal, normal.sentence())
    one, two = normal.forecast, truncating.forecast
    if (two.starts, two.destroys) != (one.starts, one.destroys):
        yield _start(truncating, f"With -file_truncate_bad_eof the server would {truncating.outlook()}")
    for each, _ in others:
        yield _start(each, f"As version {each.forecast.server_version} the server would {each.outlook()}")


def _start(start: StartVerdict, text: str) -> ReportSection:
    section = ReportSection(verdict=text, role="good" if start.harmless else "warn" if start.delivers else "bad")
    section.list_details(map(_destroys, start.forecast.destroys), width=8, rest=_JSON)
    return section


def _destroys(loss: Loss) -> ReportRemark:
    return ReportRemark("destroys", loss.sentence(), "")


def messages_section(diagnosis: Diagnosis, *, detailed: bool = False) -> ReportSection:
    """The outcome for messages: the totals, then the channels with problems; `detailed` adds ranges and reasons."""

    def described(*sets: Ranges) -> str | None:
        return "; ".join(describe_ranges(each, 40 if detailed else 4) for each in sets if each) or None

    rows = [
        (
            each.name,
            each.count,
            described(each.readable) or "none" if each.readable is not None else None,
            described(each.recoverable, *each.older),
            described(each.archived),
            described(each.missing),
            ", ".join(end.sequences + f": {end.reason}" * detailed for end in each.unknown) or None,
        )
        for each in sorted(diagnosis.outcomes.values(), key=lambda each: each.rank)
        if each.recoverable or each.older or each.archived or each.missing or each.unknown
    ]
    totals = diagnosis.totals.sentence("a start")
    table = ReportTable(_OUTCOMES, rows, limit=_CHANNELS, noun="channel", rest=_JSON)
    return ReportSection(facts=[("messages", totals)], tables=[table])


def start_sections(diagnosis: Diagnosis) -> list[tuple[ReportSection, ReportSection]]:
    """Returns every predicted start: its outcome with the destroyed data, and its details."""
    found = []
    for normal, truncating in diagnosis.starts:
        for each in (normal, truncating):
            section = _start(each, each.sentence())
            option = " with -file_truncate_bad_eof" if each is truncating else ""
            section.label = f"server {each.forecast.server_version}{option}"
            found.append((section, _forecast(each.forecast, option or "normal")))
    return found


def _forecast(forecast: Forecast, start: str, beside: Forecast | None = None) -> ReportSection:
    """One start in detail; channels as in the start `beside` it are not repeated."""
    section = ReportSection(f"server {forecast.server_version}, {start}")
    if not forecast.starts:
        section.verdict, section.role = f"does not start, exit code {forecast.exit_code}", "bad"
    else:
        section.verdict, section.role = "starts" + " as if the store were empty" * (not forecast.recovered), "good"
    if forecast.error:
        section.list_details([ReportRemark("error", forecast.error)], width=5)
    log = (ReportRemark("log", line) for line in forecast.log if not _DETAIL.match(line))
    section.list_details(log, width=5, limit=_LOG_LINES, noun="line", rest=_JSON)
    files = [_change(escape(path), *sizes) for path, sizes in forecast.files_changed().items()]
    section.list_details(files, width=5, limit=len(files))
    rows = _channels(forecast)
    if beside and rows and rows == _channels(beside):
        section.list_details([ReportRemark("", "the channels are as above")])
    else:
        section.tables.append(ReportTable(_FORECASTS, rows))
    return section


def _change(path: str, before: int | None, after: int | None) -> ReportRemark:
    if before is None:
        return ReportRemark("file", f"{path}  created, {counted(after or 0, 'byte')}")
    if after is None:
        return ReportRemark("file", f"{path}  removed, had {counted(before, 'byte')}", "warn")
    cut = after < before
    return ReportRemark(
        "file", f"{path}  {'cut' if cut else 'changed'} from {before} to {after} bytes", "warn" if cut else "dim"
    )


def _channels(forecast: Forecast) -> list[tuple[Any, ...]]:
    return [
        (
            each.name,
            each.first_seq,
            each.last_seq,
            each.count,
            each.bytes,
            describe_ranges(each.lookups.readable, 4),
            describe_ranges(each.delivered, 4),
            f"{each.stalls_at}: {each.stall_error}" if each.stalls_at is not None else None,
            len(each.subscriptions),
        )
        for each in forecast.channels.values()
    ]


def _forecast_document(diagnosis: Diagnosis, judged: Iterable[tuple[StartVerdict, StartVerdict]]) -> dict[str, Any]:
    starts = list(judged)
    described = [
        {
            "server_version": normal.forecast.server_version,
            "normal": normal.forecast.as_json(streamed=True),
            "truncate": truncating.forecast.as_json(streamed=True),
        }
        for normal, truncating in starts
    ]
    start = starts[0][0]
    verdict = {
        "harmless": start.harmless,
        "says": start.sentence(),
        "flaws": [flaw.as_json() for flaw in start.flaws],
        "messages": diagnosis.totals.as_json(),
    }
    return {**described[0], **verdict, "other_versions": described[1:]}
