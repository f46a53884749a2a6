"""The report of a repair by truncation, as a plan or after it was carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from stantools.escaping import beside, escape
from stantools.inspection.report import NextStep, Report, ReportRemark, ReportTable, columns, command_line
from stantools.notation import counted, describe_sequences, format_size
from stantools.recovery.truncate import RemovedRecord, TruncationPlan, TruncationResult
from stantools.recovery.truncate.apply import exit_code
from stantools.recovery.truncate.backup import saved_bytes

_COLUMNS = columns(
    *("file", "offset", "bytes", "what goes", "intact", "sequence", "sub", "client"),
    numbers=("offset", "bytes", "sequence", "sub"),
    roles={"intact": "bad"},
    keys=("file", "what goes", "intact"),
    details=("client",),
)
#: Removed records that are listed one by one.
_LISTED = 1000
#: Of these, for people at a terminal.
_SHOWN = 40


def truncation_report(
    plan: TruncationPlan,
    result: TruncationResult | None = None,
    *,
    force: bool = False,
    removed: Sequence[RemovedRecord] = (),
) -> Report:
    """Returns the report of a plan or of a repair.

    `force` overrides the plan's refusals. The json lists the `removed` records, which have to be read before the
    repair.
    """
    report = Report(code=exit_code(plan, result), document=partial(_document, plan, result, removed))
    if result is not None:
        _describe(report, plan, result)
    elif plan.idle and not force:
        report.verdict, report.role = plan.idle, "good"
    else:
        _foretell(report, plan, force)
    return report


def _foretell(report: Report, plan: TruncationPlan, force: bool) -> None:
    if not plan.before.starts:
        report.remark("now", f"the server does not start: {plan.before.error or ''}", "warn")
    for cut in plan.cuts:
        text = f"{escape(cut.file)} from {cut.size_before} to {cut.size_after} bytes, "
        text += counted(cut.kept, "record", "stays/stay")
        if cut.intact:
            text += f"; {counted(cut.intact, 'intact record', 'goes/go')}"
            text += f" ({describe_sequences(cut.sequences, 4)})" if cut.sequences else ""
        report.remark("cut", text, "bad" if cut.intact else "accent")
    cut_files = {cut.file for cut in plan.cuts}
    for file, change in _changes(plan).items():
        if file not in cut_files:
            report.remark("also changed", f"{escape(file)}{change}")
    records = list(islice(plan.removed(), _LISTED))
    if records:
        rows = [
            (each.file, each.offset, each.length, each.what, each.intact, each.sequence, each.sub_id, each.client_id)
            for each in records
        ]
        report.tables.append(ReportTable(_COLUMNS, rows, _SHOWN, "record", ": see -o json"))
    if len(records) == _LISTED:
        report.remark("removed records", f"only the first {_LISTED} are listed")
    word = "against it" if force else "refused"
    report.list_remarks((ReportRemark(word, each, "warn" if force else "bad") for each in plan.refusals), "reason")
    report.facts.append(("saved first", format_size(saved_bytes(plan.steps))))
    text = f"would cut {counted(len(plan.cuts), 'file')} by {format_size(plan.removed_bytes)}"
    if not plan.cuts:
        text = f"would rewrite {counted(len(plan.to_do), 'file')}" if plan.to_do else "would cut nothing"
    intact = sum(cut.intact for cut in plan.cuts)
    if not plan.forecast.starts:
        report.verdict, report.role = f"{text}, and the server would still not start", "bad"
    elif intact:
        report.verdict, report.role = f"{text}; {counted(intact, 'intact record')} would go with it", "bad"
    else:
        report.verdict, report.role = f"{text}; no intact record would go", "good"


def _changes(plan: TruncationPlan) -> Mapping[str, str]:
    """Returns the change of each file in words."""
    changes = {}
    for file, (before, after) in plan.forecast.files_changed().items():
        if after is None:
            changes[file] = ", removed"
        elif before is None:
            changes[file] = f", created with {counted(after, 'byte')}"
        else:
            changes[file] = f" from {before} to {counted(after, 'byte')}"
    return changes


def _describe(report: Report, plan: TruncationPlan, result: TruncationResult) -> None:
    changes, after = _changes(plan), result.after
    report.list_remarks(
        (ReportRemark("done", f"{escape(file)}{changes.get(file, '')}", "good") for file in result.changed), "file"
    )
    if result.backup:
        saved = f"{format_size(saved_bytes(plan.steps))} in {escape(str(result.backup))}"
        report.facts.append(("saved first", saved))
    if after.starts and after.recovered and not after.destroys:
        report.verdict, report.role = "the server would start now", "good"
        report.next.append(NextStep("start the server without the truncate option"))
        return
    report.role = "bad"
    if not after.starts:
        report.verdict = f"the server would still not start: {after.error or ''}"
    elif not after.recovered:
        report.verdict = "the server would start now, as if the store were empty: do not start it"
        report.next.append(NextStep("restore the backup, and salvage"))
        return
    else:
        report.verdict = "the server would start now, but destroy data: do not start it"
        report.list_remarks((ReportRemark("destroys", loss.sentence(), "bad") for loss in after.destroys), "loss")
    path = plan.store.path
    command = command_line("stantools", "salvage", str(path), "--out", str(beside(path, "salvaged")))
    report.next.append(NextStep("write the intact records to a new store", [command]))


def _document(
    plan: TruncationPlan, result: TruncationResult | None, removed: Sequence[RemovedRecord]
) -> dict[str, Any]:
    now = result.after if result else plan.before
    return {
        "path": str(plan.store.path),
        "done": result is not None,
        **plan.as_json(),
        "removed": [
            {
                "file": each.file,
                "offset": each.offset,
                "length": each.length,
                "intact": each.intact,
                "what": each.what,
                "seq": each.sequence,
                "sub_id": each.sub_id,
                "client_id": each.client_id,
            }
            for each in removed
        ],
        "backup": str(result.backup) if result and result.backup else None,
        "changed": list(result.changed) if result else [],
        "starts_without_option_now": now.starts,
        "destroys_without_option_now": [loss.as_json() for loss in now.destroys],
    }
