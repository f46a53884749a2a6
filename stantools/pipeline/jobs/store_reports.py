"""The reports of verbs over many stores: a line or a verdict for each, then those with problems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.advice import Health
from stantools.inspection.diagnosis_report import ROLES
from stantools.inspection.overview_report import CHANNEL_COLUMNS
from stantools.inspection.report import (
    DIFFERENCE_COLUMNS,
    FINDING_COLUMNS,
    NextStep,
    Report,
    ReportRemark,
    ReportSection,
    ReportTable,
    columns,
    command_line,
    finding_records,
    place_text,
)
from stantools.inspection.verify_report import verify_report
from stantools.migration.migration_report import (
    compared_text,
    migration_plan_report,
    migration_report,
    plan_json,
    plan_remarks,
    remark_json,
    results_json,
)
from stantools.migration.plan.migration_plan import Remark
from stantools.migration.proof.stores import in_both
from stantools.notation import and_more, counted, format_size
from stantools.pipeline.jobs.diff import PairDifference
from stantools.pipeline.jobs.doctor import StoreDiagnosis
from stantools.pipeline.jobs.info import StoreOverview
from stantools.pipeline.jobs.migrate import MigrateResult
from stantools.pipeline.jobs.migrateplans import PlannedStore
from stantools.pipeline.jobs.salvage import SalvagedStore, SalvageJobResult
from stantools.pipeline.jobs.stores import JobResult
from stantools.pipeline.jobs.verify import StoreVerdict
from stantools.pipeline.tables.model import FailedRead

_PLACE = ("file", "offset", "length", "reason", "sequences")
#: Stores whose findings or losses are listed, and the places of each.
_NAMED = 10
#: Stores whose plans and results are shown in full.
_SHOWN = 5
_VERIFIED = columns(
    *("store", "channels", "messages", "bytes", "errors", "warnings", ""),
    numbers=("channels", "messages", "bytes", "errors", "warnings"),
    keys=("store", ""),
    details=("bytes",),
)
_OVERVIEWS = columns(
    *("store", "channels", "messages", "bytes", "subscriptions", "clients", "problems"),
    numbers=("channels", "messages", "bytes", "subscriptions", "clients", "problems"),
    details=("bytes", "clients"),
)
_COMPARED = columns(
    *("store", "channels", "messages", "differences", ""),
    numbers=("channels", "messages", "differences"),
    keys=("store", ""),
)
_PLANNED = columns(
    *("store", "streams", "messages", "consumers", "lost"), numbers=("streams", "messages", "consumers", "lost")
)
_SALVAGED = columns(
    *("store", "name", "channels", "messages", "bytes", "filled", "subs", "missing before", "lost by this step", ""),
    numbers=("channels", "messages", "bytes", "filled", "subs", "missing before", "lost by this step"),
    keys=("store", "name", ""),
    details=("bytes", "subs", "filled"),
)


def verify_stores_report(result: JobResult[StoreVerdict]) -> Report:
    stores = result.stores
    report = Report(code=result.exit_code, role="good" if result.clean else "bad")
    unclean = [each for each in stores if not each.verdict.clean]
    if len(stores) == 1 and not result.failed:
        report = verify_report(stores[0].verdict)
        report.store, report.code = stores[0].root, result.exit_code
    else:
        report.tables.append(ReportTable(_VERIFIED, [_verified(each) for each in stores]))
        for each in unclean[:_NAMED]:
            section = ReportSection(heading=each.root, findings=each.verdict.findings, store=each.root, apart=False)
            report.sections.append(section)
        _add_others(report, len(unclean), "with findings: see -o json\n")
        scanned = format_size(sum(each.verdict.bytes_scanned for each in stores))
        read = f"{scanned} read in {sum(each.verdict.seconds for each in stores):.2f} s of work"
        count = counted(len(stores), "store")
        parts = [f"{len(unclean)} of {count} {'has' if len(unclean) == 1 else 'have'} findings"] if unclean else []
        parts += [f"{len(result.failed)} cannot be read"] if result.failed else []
        report.verdict = f"clean: {count}, {read}" if result.clean else f"not clean: {', '.join(parts)}; {read}"
    report.document = result.as_json
    names = (
        tuple(dict.fromkeys(chain.from_iterable(each.verdict.finding_columns for each in stores))) or FINDING_COLUMNS
    )
    records = ([each.root, *row] for each in stores for row in finding_records(each.verdict.findings, names)[1])
    report.records = ("store", *names), records
    return report


def _verified(store: StoreVerdict) -> tuple[Any, ...]:
    verdict = store.verdict
    errors, warnings, _ = verdict.severity_counts().values()
    return (
        store.root,
        len(verdict.logs),
        sum(each.intact_messages for each in verdict.logs),
        sum(each.intact_bytes for each in verdict.logs),
        errors or None,
        warnings or None,
        "clean" if store.clean else "not read" if verdict.clean else "not clean",
    )


def doctor_stores_report(result: JobResult[StoreDiagnosis]) -> Report:
    """The verdict on each store with the next step, and the number of stores of each state, the worst first."""
    stores = result.stores
    report = Report(code=result.exit_code, document=result.as_json, role="good" if result.clean else "bad")
    for each in stores:
        section = ReportSection(each.root, f"{each.state.value}: {each.document['verdict']}", ROLES[each.state])
        section.apart, section.store = each is not stores[0], each.root
        step = each.document["next"]
        command = step.get("command")
        lines = [command_line(*command)] if command else step.get("commands", ())
        section.next.append(NextStep(step["text"], lines))
        report.sections.append(section)
    counts = [(sum(each.state is state for each in stores), state.value) for state in reversed(Health)]
    counts.append((len(result.failed), "cannot be read"))
    parts = ", ".join(f"{count} {what}" for count, what in counts if count)
    report.verdict = f"{counted(len(stores) + len(result.failed), 'store')}: {parts}"
    return report


def info_stores_report(result: JobResult[StoreOverview]) -> Report:
    report = Report(code=result.exit_code, document=result.as_json)
    report.tables.append(ReportTable(_OVERVIEWS, [_overview(each) for each in result.stores]))
    rows = ([each.root, *(log[name] for name in CHANNEL_COLUMNS)] for each in result.stores for log in each.logs)
    report.records = ("store", *CHANNEL_COLUMNS), rows
    problems = (f"{each.root}: {problem}" for each in result.stores for problem in each.problems)
    report.warnings = [ReportRemark("problem", escape(each), "warn") for each in problems]
    return report


def _overview(store: StoreOverview) -> tuple[Any, ...]:
    logs = store.logs
    sums = (sum(each[name] for each in logs) for name in ("count", "bytes", "subscriptions"))
    return (store.root, len(logs), *sums, len(store.document.get("clients", ())), len(store.problems) or None)


def diff_stores_report(result: JobResult[PairDifference]) -> Report:
    pairs = result.stores
    report = Report(code=result.exit_code, role="good" if result.clean else "bad", document=result.as_json)
    rows = (((each.pair.first.root, each.pair.second.root), each.found.findings) for each in pairs)
    records = ([*roots, *row] for roots, found in rows for row in finding_records(found, DIFFERENCE_COLUMNS)[1])
    report.records = ("store", "other", *DIFFERENCE_COLUMNS), records
    if len(pairs) > 1:
        report.tables.append(ReportTable(_COMPARED, [_compared(each) for each in pairs]))
    unclean = [each for each in pairs if not each.clean]
    for each in unclean[:_NAMED]:
        root = each.pair.first.root if len(pairs) > 1 else ""
        report.sections.append(ReportSection(heading=root, findings=each.found.findings, apart=False))
    _add_others(report, len(unclean), "with differences: see -o json\n")
    messages, channels = (sum(getattr(each.found, name) for each in pairs) for name in ("messages", "channels"))
    text = in_both(messages, channels) + (f" of {len(pairs)} pairs" if len(pairs) != 1 else "")
    found = sum(len(each.found.findings) for each in pairs)
    failed = f"{counted(len(result.failed), 'store')} cannot be compared" if result.failed else ""
    if found:
        counts = ", ".join(filter(None, (counted(found, "finding"), failed)))
        report.verdict = f"different: {counts}; {text}"
    else:
        report.verdict = f"no difference, but {failed}; {text}" if failed else f"no difference: {text}"
    return report


def _compared(pair: PairDifference) -> tuple[Any, ...]:
    found = pair.found
    state = "no difference" if pair.clean else "different"
    return pair.pair.first.root, found.channels, found.messages, len(found.findings) or None, state


def salvage_stores_report(result: SalvageJobResult, *, dry_run: bool) -> Report:
    report = Report(code=result.exit_code, document=result.as_json)
    report.warnings = [ReportRemark("in use", each, "warn") for each in result.warnings]
    report.tables.append(ReportTable(_SALVAGED, [_salvaged(each) for each in result.stores]))
    lossy = [each for each in result.stores if each.report["summary"]["lossy"]]
    for store in lossy[:_NAMED]:
        section = ReportSection(heading=store.root, apart=False)
        lost = [each for each in store.report["dropped"] if each["loss"]]
        texts = (f"{each['fate']}: {place_text(*(each[name] for name in _PLACE))}" for each in lost)
        section.list_details((ReportRemark("", text) for text in texts), limit=_NAMED, noun="place")
        report.sections.append(section)
    _add_others(report, len(lossy), "with losses: see -o json")
    summaries = [each.report["summary"] for each in result.stores]
    names = ("messages", "bytes", "missing_before", "lost_by_this_step")
    messages, size, missing, lost_now = (sum(each[name] for each in summaries) for name in names)
    text = f"{counted(messages, 'message')} in {counted(len(summaries), 'store')}, {format_size(size)}"
    text += f"; {missing} missing before" if missing else ""
    text += f"; {lost_now} lost by this step" if lost_now else ""
    text += f"; {counted(len(result.failed), 'store')} failed" if result.failed else ""
    if dry_run:
        report.verdict = f"would keep {text}; nothing was written"
    else:
        report.verdict = f"kept {text}"
        report.role = "good" if result.exit_code in (ExitCode.CLEAN, ExitCode.LOSS) else "bad"
    return report


def _salvaged(store: SalvagedStore) -> tuple[Any, ...]:
    summary = store.report["summary"]
    if store.is_wrong:
        state = "wrong"
    elif not store.report["written"]:
        state = "planned"
    else:
        state = "kept from before" if store.kept else "written"
    return (
        *(store.root, store.name),
        *(summary[name] for name in ("channels", "messages", "bytes")),
        *(summary[name] or None for name in ("filled", "subscriptions", "missing_before")),
        summary["lost_by_this_step"] or ("perhaps" if summary["lossy"] and not summary["missing_before"] else None),
        state,
    )


def migrate_plans_report(
    planned: Sequence[PlannedStore], problems: Sequence[Remark], failed: Sequence[FailedRead] = ()
) -> Report:
    report = Report()
    report.document = lambda: {
        "stores": [{"store": each.root, **plan_json(each.plan)} for each in planned],
        "failed": [each.as_json() for each in failed],
        "remarks": [remark_json(each) for each in problems],
    }
    if len(planned) <= _SHOWN:
        for store in planned:
            report.sections.append(_of_store(store, migration_plan_report(store.plan, ()), len(planned)))
    else:
        rows = []
        for store in planned:
            plan = store.plan
            lost = plan.lost or ("yes" if plan.lossy else None)
            rows.append((store.root, len(plan.streams), plan.messages, plan.consumers, lost))
        report.tables.append(ReportTable(_PLANNED, rows))
    report.list_remarks(plan_remarks(problems), "note")
    return report


def migrate_stores_report(result: MigrateResult) -> Report:
    report = Report(code=result.exit_code, document=lambda: _migrate_document(result))
    bad = [each for each in result.stores if not all(stream.good for stream in each[1])]
    named = result.stores if len(result.stores) <= _SHOWN else bad[:_SHOWN]
    for store, streams in named:
        section = migration_report(store.plan, streams)
        section.verdict = ""  # said of all stores
        report.warnings += section.warnings
        report.sections.append(_of_store(store, section, len(result.stores)))
    if len(bad) > len(named):
        others = and_more(len(bad) - len(named), "store")
        report.sections.append(ReportSection(verdict=f"{others}; -o json lists all", apart=False))
    if result.stores:
        good = [stream for _, streams in result.stores for stream in streams if stream.good]
        count = f"{counted(len(good), 'stream')} of {counted(len(result.stores), 'store')}"
        report.verdict, report.role = f"{count} as planned{compared_text(good)}", "warn" if bad else "good"
    return report


def _of_store(store: PlannedStore, section: Report, stores: int) -> ReportSection:
    section.heading, section.apart = store.root if stores > 1 else "", False
    return section


def _migrate_document(result: MigrateResult) -> dict[str, Any]:
    stores = [{"store": store.root, **results_json(store.plan, streams)} for store, streams in result.stores]
    clean = not result.failed and all(store["clean"] for store in stores)
    return {"clean": clean, "stores": stores, "failed": [each.as_json() for each in result.failed]}


def _add_others(report: Report, count: int, rest: str) -> None:
    """Names the number of stores that are not listed."""
    if count > _NAMED:
        report.sections.append(ReportSection(verdict=f"{and_more(count - _NAMED, 'store')} {rest}", apart=False))
