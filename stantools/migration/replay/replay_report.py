"""The report of a replay, as a plan or after messages were published."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import text
from stantools.inspection.report import Report, ReportTable, columns
from stantools.migration.replay.run import ReplayOutcome, ReplaySpeed
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.source import StoreSource
from stantools.notation import counted, format_duration, format_size, format_time

_COLUMNS = columns(
    *("channel", "to", "messages", "first", "last", "from", "until"),
    numbers=("messages", "first", "last"),
    keys=("channel", "to"),
    details=("from", "until"),
)
_SECOND = 1_000_000_000


def replay_plan_report(plan: ReplayPlan, pace: ReplaySpeed, source: StoreSource) -> Report:
    report = Report(code=ExitCode.FINDINGS if source.plan.lossy else ExitCode.CLEAN)
    report.document = lambda: {
        "messages": plan.messages,
        "payload_bytes": plan.payload,
        "seconds": round(pace.seconds(plan), 3),
        "lost": source.plan.gone,
        "channels": _channels(plan),
    }
    rows = [
        (
            channel.source.raw_name,
            channel.subject,
            channel.source.count,
            channel.source.first,
            channel.source.sequences.last,
            format_time(channel.source.first_timestamp),
            format_time(channel.source.last_timestamp),
        )
        for channel in plan.channels
    ]
    report.tables.append(ReportTable(_COLUMNS, rows))
    report.verdict = f"would publish {plan_sentence(plan, pace)}; nothing was sent"
    return report


def plan_sentence(plan: ReplayPlan, pace: ReplaySpeed) -> str:
    channels = counted(len(plan.channels), "channel")
    sentence = f"{counted(plan.messages, 'message')} of {channels}, {format_size(plan.payload)}"
    seconds = round(pace.seconds(plan))
    if not seconds:
        return sentence
    word = "at most" if pace.longest_pause is not None else "about"
    return f"{sentence}, which takes {word} {format_duration(seconds * _SECOND)}"


def replay_report(left: ReplayPlan, outcome: ReplayOutcome, source: StoreSource, state: Path | None) -> Report:
    """Returns the report of a replay; `state` is the state file of an unfinished one."""
    report = Report(code=ExitCode.FINDINGS if source.plan.lossy else ExitCode.CLEAN)
    if not outcome.finished:
        report.code = ExitCode.INTERRUPTED
    report.document = lambda: {
        "finished": outcome.finished,
        "messages": outcome.messages,
        "left": left.messages - outcome.messages,
        "already_there": outcome.again,
        "repeated": outcome.repeated,
        "seconds": round(outcome.seconds, 3),
        "lost": source.plan.gone,
        "state": None if state is None else os.fspath(state),
        "channels": _channels(left),
    }
    rate = outcome.messages / max(outcome.seconds, 1e-3)
    of_all = "" if outcome.finished else f"{outcome.messages} of "
    done = of_all + counted(left.messages if of_all else outcome.messages, "message")
    channels = counted(len(left.channels), "channel")
    report.verdict = f"replayed {done} of {channels} in {outcome.seconds:.1f} s ({rate:.0f} a second)"
    if outcome.again:
        report.verdict += f"; {outcome.again} of them already existed"
    if outcome.repeated:
        report.verdict += f"; {outcome.repeated} were in flight when the connection broke, and were sent again or found"
    return report


def _channels(plan: ReplayPlan) -> list[dict[str, Any]]:
    return [
        {
            "name": channel.source.name,
            "to": text(channel.subject),
            "messages": channel.source.count,
            "first_seq": channel.source.first,
            "last_seq": channel.source.sequences.last,
            "first_timestamp_ns": channel.source.first_timestamp,
            "last_timestamp_ns": channel.source.last_timestamp,
        }
        for channel in plan.channels
    ]
