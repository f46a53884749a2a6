"""Plans and results of migrations for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.output import print_json, table_text
from stantools.cli.pipeline import print_heading
from stantools.errors import ExitCode
from stantools.escaping import shell_word
from stantools.notation import counted, describe_ranges, format_size, format_time

if TYPE_CHECKING:
    from stantools.inspection.findings import Finding
    from stantools.migration.followed_store import Cutover
    from stantools.migration.journal import StreamResult
    from stantools.migration.plan.migration_plan import MigrationPlan, OmittedPart, Remark, StreamPlan
    from stantools.pipeline.jobs.migrate import MigrateResult
    from stantools.pipeline.jobs.migrateplans import PlannedStore

_MANY = 20
_WIDEST = 48
#: Stores whose plans and results are shown in full.
_STORES = 5


def show_plan(plan: MigrationPlan, problems: Sequence[Remark]) -> None:
    """Prints the streams of a plan, the data left out, and notes, in table output only."""
    if console.output() == "table":
        _print_plan(plan, problems)


def _print_plan(plan: MigrationPlan, problems: Sequence[Remark]) -> None:
    rows = [_stream_row(stream) for stream in plan.streams]
    if rows:
        headers = ("stream", "from channel", "messages", "sequences", "payload", "consumers", "remarks")
        click.echo(table_text(headers, rows, right=("messages", "payload", "consumers")))
    _show_left_out(plan.left_out)
    _show_notes([*plan.notes, *problems])
    lost = f", {counted(plan.lost, 'message', 'is/are')} missing before" if plan.lost else ""
    click.echo(
        f"{counted(len(plan.streams), 'stream')}, {counted(plan.messages, 'message')} ({format_size(plan.bytes)}), "
        f"{counted(plan.consumers, 'consumer')} -> {console.escape(str(plan.target))}{lost}"
    )


def _stream_row(stream: StreamPlan) -> tuple[Any, ...]:
    return (
        _short(stream.name),
        _short(stream.origin),
        stream.messages,
        stream.span,
        format_size(stream.bytes),
        len(stream.consumers),
        ", ".join(stream.remarks) or None,
    )


def _short(name: str) -> str:
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 1]}…"


def _show_left_out(left: Sequence[OmittedPart]) -> None:
    for each in left[:_MANY]:
        word = console.paint("lost", "red", err=False) if each.loss else "left out"
        channel = f"{console.escape(each.channel)}: " if each.channel else ""
        count = f" ({each.count})" if each.count > 1 else ""
        click.echo(f"{word}: {channel}{console.escape_line(each.what)}{count}: {console.escape_line(each.detail)}")
    console.left_out(len(left) - _MANY, tail="; the plan file lists all")


def _show_notes(notes: Sequence[Remark]) -> None:
    """Prints notes, the worst first."""
    colors = {"problem": "red", "warning": "yellow"}
    listed = sorted(notes, key=lambda note: ("problem", "warning", "info").index(note.level.value))
    for note in listed[:_MANY]:
        word = console.paint(note.level.value, colors.get(note.level.value, "cyan"), err=False)
        about = f"{console.escape(note.about)}: " if note.about else ""
        click.echo(f"{word}: {about}{console.escape_line(note.text)}")
        if note.remedy:
            click.echo(f"  -> {console.escape_line(note.remedy)}")
    console.left_out(len(notes) - _MANY, "note")


def _show_results(results: Sequence[StreamResult]) -> None:
    from stantools.migration.journal import StreamOutcome

    rows = []
    for each in results:
        rate = f"{each.messages / each.seconds:,.0f}/s" if each.seconds and each.messages else None
        compared = f"{each.proven} compared" if each.proven or each.prove_seconds else None
        failed = each.outcome is StreamOutcome.FAILED
        verdict = "failed" if failed else counted(len(each.findings), "difference") if each.findings else compared
        rows.append((_short(each.stream), each.outcome.value, each.messages, format_size(each.bytes), rate, verdict))
    if rows:
        headers = ("stream", "what was done", "messages", "size", "loaded", "proof")
        click.echo(table_text(headers, rows, right=("messages", "size", "loaded")))
    for each in results:
        _show_findings(each.findings)
        if each.error:
            console.error(each.error.message, each.error.remedy)


def _show_findings(findings: Iterable[Finding]) -> None:
    for number, finding in enumerate(findings):
        if number == _MANY:
            click.echo("… and more")
            return
        place = f" {console.escape(finding.channel)}" if finding.channel else ""
        place += f" at {finding.seq}" if finding.seq is not None else ""
        click.echo(f"{console.paint(finding.code, 'red', err=False)}{place}: {console.escape_line(finding.detail)}")


def _as_json(plan: MigrationPlan, results: Sequence[StreamResult]) -> dict[str, Any]:
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


def show_outcome(
    plan: MigrationPlan, results: Sequence[StreamResult], file: Path | None, cutover: Cutover | None = None
) -> int:
    """Prints the results and returns the exit code."""
    from stantools.migration.journal import StreamOutcome
    from stantools.migration.workflow import exit_code

    if console.output() == "json":
        print_json(_as_json(plan, results) | (cutover_as_json(cutover) if cutover else {}))
    else:
        _show_results(results)
        if cutover:
            _show_cutover(cutover)
    failed = [result for result in results if result.error]
    different = [result for result in results if result.findings]
    if file is not None and (failed or different):
        left = sum(result.outcome is StreamOutcome.NOT_BEGUN for result in results)
        what = f"{counted(left, 'stream')} {'was' if left == 1 else 'were'} not begun; " if left else ""
        console.note(f"{what}after removing the cause, continue with: stantools migrate apply {shell_word(str(file))}")
    code = exit_code(plan, results, changed=file is not None or cutover is not None)
    if cutover and cutover.written:
        console.warning(
            "the store was written to since the cutover: these messages are not in the streams",
            "stop the streaming server for good",
        )
        code = code or ExitCode.FINDINGS
    if console.output() == "table" and not failed and not different:
        text = f"{counted(len(results), 'stream', 'is/are')} as planned{_compared(results)}"
        click.echo(console.paint(text, "green", err=False))
    return code


def _show_cutover(cutover: Cutover) -> None:
    for name, removed in sorted(cutover.removed.items()):
        click.echo(
            f"removed: {console.escape(name)}: {counted(removed.count(), 'message')} before they were read, by the "
            f"server's limits: {describe_ranges(removed)}"
        )
    usually = "" if cutover.delay is None else f", each about {cutover.delay:.1f} s after it was stored"
    click.echo(
        f"{counted(cutover.appended, 'message')} carried while the server was running{usually}; {cutover.why}; nothing "
        f"was served for {cutover.seconds:.1f} s, until {format_time(round(cutover.ready * 1e9))}"
    )


def cutover_as_json(cutover: Cutover) -> dict[str, Any]:
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


def show_plans(planned: Sequence[PlannedStore], problems: Sequence[Remark]) -> None:
    """Prints the plans of many stores, and notes, in table output only."""
    if console.output() != "table":
        return
    if len(planned) <= _STORES:
        for store in planned:
            if len(planned) > 1:
                print_heading(store.root)
            _print_plan(store.plan, ())
    else:
        headers = ("store", "streams", "messages", "consumers", "lost")
        rows = []
        for store in planned:
            plan = store.plan
            lost = plan.lost or ("yes" if plan.lossy else None)
            rows.append((store.root, len(plan.streams), plan.messages, plan.consumers, lost))
        click.echo(table_text(headers, rows, right=headers[1:]))
    _show_notes(problems)


def show_stores(result: MigrateResult) -> None:
    """Prints the results of many stores."""
    if console.output() == "json":
        stores = [{"store": store.root, **_as_json(store.plan, streams)} for store, streams in result.stores]
        clean = not result.failed and all(store["clean"] for store in stores)
        print_json({"clean": clean, "stores": stores, "failed": [each.as_json() for each in result.failed]})
    elif result.stores:
        bad = [each for each in result.stores if not all(stream.good for stream in each[1])]
        named = result.stores if len(result.stores) <= _STORES else bad[:_STORES]
        for store, streams in named:
            if len(result.stores) > 1:
                print_heading(store.root)
            _show_results(streams)
        console.left_out(len(bad) - len(named), "store", tail="; -o json lists all")
        good = [stream for _, streams in result.stores for stream in streams if stream.good]
        text = f"{counted(len(good), 'stream')} of {counted(len(result.stores), 'store')} as planned{_compared(good)}"
        click.echo(console.paint(text, "green" if not bad else "yellow", err=False))


def _compared(results: Sequence[StreamResult]) -> str:
    compared = sum(result.proven for result in results)
    return f"; {counted(compared, 'message', 'was/were')} compared one by one" if compared else ""
