"""The report of a salvage or a merge, as a plan or after the new store was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import beside, escape
from stantools.inspection.report import NextStep, Report, ReportRemark, ReportTable, columns, command_line, place_text
from stantools.notation import counted, describe_ranges, format_size, some_of
from stantools.options import SERVER_KEY_VARIABLE
from stantools.recovery.salvage import manifest
from stantools.recovery.salvage.check import ENCRYPT, NewStoreCheck, exit_code
from stantools.recovery.salvage.model import DroppedData, SalvagePlan, SalvageResult

_COLUMNS = columns("channel", "kept", "sequences", "filled", "subs", "origin", numbers=("kept", "subs"))

#: Makes the json of a plan, a result and the json of its check.
Document = Callable[[SalvagePlan, SalvageResult | None, dict[str, Any] | None], Mapping[str, Any]]


def salvage_report(
    plan: SalvagePlan,
    result: SalvageResult | None = None,
    check: NewStoreCheck | None = None,
    document: Document = manifest.report,
    *,
    key: str = "",
) -> Report:
    """Returns the report of a plan, of a new store, or of a checked one.

    `key` sets the variable with the server's encryption key, in front of a command.
    """
    report = Report(document=partial(document, plan, result, check.as_json() if check else None))
    rows = [
        (
            each.name,
            each.sequences.count(),
            describe_ranges(each.sequences, 4),
            describe_ranges(each.filled, 4) if each.filled else None,
            len(each.subscriptions),
            each.origin or None,
        )
        for each in plan.channels
    ]
    report.tables.append(ReportTable(_COLUMNS, rows))
    report.list_remarks((_dropped(each) for each in plan.dropped if each.loss), "missing part")
    if plan.server_note:
        report.remark("server.dat", plan.server_note)
    report.list_remarks((ReportRemark("changed", each) for each in plan.changes), "change")
    report.list_remarks((_dropped(each) for each in plan.dropped if not each.loss), "part left out")
    named = {dropped.reason for dropped in plan.dropped}
    unknown = (end for channel in plan.channels for end in channel.unknown if end not in named)
    report.list_remarks((ReportRemark("unknown", end, "warn") for end in unknown), "unknown part")
    report.facts.append(("messages", plan.outcome.sentence()))
    kept = f"{counted(plan.messages, 'message')} in {counted(len(plan.channels), 'channel')}, {format_size(plan.bytes)}"
    if result is None:
        report.code = exit_code(plan, None)
        report.verdict, report.role = f"would keep {kept}", "warn" if plan.lossy else "good"
        return report
    report.facts += [
        ("kept", kept),
        ("new store", f"{escape(str(result.path))} (report: {escape(result.manifest.name)})"),
    ]
    if check is None:
        report.code = ExitCode.INTERRUPTED
        report.verdict, report.role = "the new store was written, but not verified", "warn"
        step = "verify the new store before a server is started on it"
        report.next.append(NextStep(step, [command_line("stantools", "verify", str(result.path))]))
    else:
        report.code = exit_code(plan, check)
        _judge(report, plan, result, check, key)
    return report


def _dropped(each: DroppedData) -> ReportRemark:
    place = place_text(each.file, each.offset, each.length, each.reason, each.sequences)
    return ReportRemark(each.fate.value, place, "bad" if each.loss else "dim")


def _judge(report: Report, plan: SalvagePlan, result: SalvageResult, check: NewStoreCheck, key: str) -> None:
    found = [each for each in check.findings if each.severity.value != "info"]
    report.list_remarks(
        (ReportRemark(each.code, f"{escape(each.file)}: {each.detail}", "bad") for each in found), "finding"
    )
    if check.start.error:
        report.remark("server", check.start.error, "bad")
    if not check.good:
        report.verdict, report.role = "verify or forecast found a problem", "bad"
        return
    report.verdict, report.role = "verify is clean and the server would start", "good"
    if check.start.suspected:
        report.next += _find_out(str(result.path), check.start.suspected)
        return
    words = command_line("-st", "FILE", "-dir", str(result.path), *check.start.options)
    prefix = key if ENCRYPT in check.start.options else ""
    report.next.append(
        NextStep(
            "start the server on the new store, with ports, users and limits as before; the original server or ours:",
            [f"{prefix}{program} {words}" for program in ("nats-streaming-server", "stan-broker")],
        )
    )
    gaps = [each.gaps.count() for each in plan.channels if each.gaps and not each.filled]
    if gaps and all(each.fillable for each in plan.channels):
        where = f"{counted(sum(gaps), 'sequence', 'is/are')} missing in {counted(len(gaps), 'channel')}"
        filled = str(beside(result.path, "filled"))
        report.next.append(
            NextStep(
                f"{where}; servers skip gaps; if subscribers must not, fill them with empty messages:",
                [command_line("stantools", "salvage", str(result.path), "--out", filled, "--fill-gaps")],
            )
        )


def _find_out(path: str, suspected: tuple[str, ...]) -> list[NextStep]:
    """Returns how to find out whether payloads are encrypted: a start with the wrong choice does harm."""
    names = some_of([escape(each) for each in suspected], 3)
    return [
        NextStep(
            f"find out whether payloads are encrypted ({names}), before a server is started: with the key of the "
            "old server in the variable, this command tells whether the key decrypts them",
            [command_line("stantools", "doctor", path, "--encryption-key-env", SERVER_KEY_VARIABLE)],
        ),
        NextStep(
            "if the old server ran with -encrypt, start the new one with it and the same key; if not, start it without"
        ),
    ]
