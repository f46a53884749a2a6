"""How plans and results of migrations are shown to people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.output import table_text
from stantools.notation import counted, format_size

if TYPE_CHECKING:
    from stantools.inspection.findings import Finding
    from stantools.migration.journal import StreamResult
    from stantools.migration.plan.model import LeftOut, Note, Plan, StreamPlan

_MANY = 20
_WIDEST = 48


def show_plan(plan: Plan, problems: Sequence[Note]) -> None:
    """Prints what a plan makes, what it leaves out, and what to think of."""
    rows = [_stream_row(stream) for stream in plan.streams]
    if rows:
        headers = ("stream", "from channel", "messages", "sequences", "payload", "consumers", "remarks")
        click.echo(table_text(headers, rows, right=("messages", "payload", "consumers")))
    _show_left_out(plan.left_out)
    show_notes([*plan.notes, *problems])
    lost = f", {counted(plan.lost, 'message', 'is/are')} lost in the store" if plan.lost else ""
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
    """Shortens a name for a table; the plan file has it whole."""
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 1]}…"


def _show_left_out(left: Sequence[LeftOut]) -> None:
    for each in left[:_MANY]:
        word = console.paint("lost", "red", err=False) if each.loss else "left out"
        channel = f"{console.escape(each.channel)}: " if each.channel else ""
        count = f" ({each.count})" if each.count > 1 else ""
        click.echo(f"{word}: {channel}{console.escape_line(each.what)}{count}: {console.escape_line(each.detail)}")
    if len(left) > _MANY:
        click.echo(f"… and {len(left) - _MANY} more; the plan file has them all")


def show_notes(notes: Sequence[Note]) -> None:
    """Prints what to think of, the worst first."""
    colors = {"problem": "red", "warning": "yellow"}
    listed = sorted(notes, key=lambda note: ("problem", "warning", "info").index(note.level.value))
    for note in listed[:_MANY]:
        word = console.paint(note.level.value, colors.get(note.level.value, "cyan"), err=False)
        about = f"{console.escape(note.about)}: " if note.about else ""
        click.echo(f"{word}: {about}{console.escape_line(note.text)}")
        if note.remedy:
            click.echo(f"  -> {console.escape_line(note.remedy)}")
    if len(notes) > _MANY:
        click.echo(f"… and {counted(len(notes) - _MANY, 'more note')}")


def show_results(results: Sequence[StreamResult]) -> None:
    """Prints what became of each stream, and the proof."""
    from stantools.migration.journal import Outcome

    rows = []
    for each in results:
        rate = f"{each.messages / each.seconds:,.0f}/s" if each.seconds and each.messages else None
        compared = f"{each.proven} compared" if each.proven or each.prove_seconds else None
        failed = each.outcome is Outcome.FAILED
        verdict = "failed" if failed else f"{len(each.findings)} differences" if each.findings else compared
        rows.append((_short(each.stream), each.outcome.value, each.messages, format_size(each.bytes), rate, verdict))
    if rows:
        headers = ("stream", "what was done", "messages", "size", "loaded", "proof")
        click.echo(table_text(headers, rows, right=("messages", "size", "loaded")))
    for each in results:
        show_findings(each.findings)
        if each.error:
            console.error(each.error.message, each.error.remedy)


def show_findings(findings: Iterable[Finding]) -> None:
    """Prints differences."""
    for number, finding in enumerate(findings):
        if number == _MANY:
            click.echo("… and more")
            return
        place = f" {console.escape(finding.channel)}" if finding.channel else ""
        place += f" at {finding.seq}" if finding.seq is not None else ""
        click.echo(f"{console.paint(finding.code, 'red', err=False)}{place}: {console.escape_line(finding.detail)}")


def results_json(plan: Plan, results: Sequence[StreamResult]) -> dict[str, Any]:
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
