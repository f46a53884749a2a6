"""Reports on stdout: as text for people, as json, ndjson or csv for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.output import print_json, print_table, rows_as, stream_ndjson, table_text
from stantools.errors import ExitCode
from stantools.notation import and_more, counted

if TYPE_CHECKING:
    from stantools.inspection.findings import Finding
    from stantools.inspection.report import NextStep, RemarkList, Report, ReportSection, ReportTable

#: Warnings and findings that are printed.
_WARNINGS = 20
_FINDINGS = 50
#: Where to find the rows and remarks that are left out.
_ALL = ": --all shows them"
_SAY = {"bad": console.error, "warn": console.warning, "dim": console.note}
_COLORS = {"good": "green", "warn": "yellow", "bad": "red", "accent": "cyan"}
_SEVERITIES = {"error": "red", "warning": "yellow", "info": "cyan"}


def show(report: Report) -> ExitCode:
    """Prints a report in the user's format; returns its exit code."""
    output = console.output()
    shown = report.warnings if console.shows_all() else report.warnings[:_WARNINGS]
    for each in shown:
        _SAY[each.role](each.text, each.remedy)
    if len(report.warnings) > len(shown):
        console.warning(and_more(len(report.warnings) - len(shown)) + _ALL)
    if output == "json":
        print_json(report.document())
    elif output == "table":
        print_report(report)
    elif output == "ndjson" and report.objects is not None:
        stream_ndjson(report.objects)
    else:
        rows_as(output, *report.records)
    return report.code


def preview(report: Report) -> None:
    """Prints a plan before a question; programs get it with the result."""
    if console.output() == "table":
        print_report(report)


def agreed(plan: Report, question: str, *, yes: bool) -> bool:
    """Prints a plan, and asks."""
    preview(plan)
    return console.confirm(question, yes=yes)


def show_plan(report: Report) -> ExitCode:
    """Prints a plan that is not carried out; returns its exit code."""
    code = show(report)
    if console.output() == "table":
        click.echo("nothing was changed")
    return code


def print_report(report: Report) -> None:
    if report.empty:
        console.note(report.empty)
    for text, role in report.lead:
        click.echo(_painted(console.wrapped(console.escape_lines(text), 2), role))
    sections = [] if report.leads else report.sections
    _print_section(report, sections)
    for section in report.sections if report.leads else ():
        _print_inner(section)


def _print_inner(section: ReportSection) -> None:
    if section.apart:
        click.echo()
    _print_section(section, inner=True)


def _print_section(section: ReportSection, sections: Iterable[ReportSection] = (), *, inner: bool = False) -> None:
    if section.store:
        console.set_store(click.get_current_context(), section.store)
    if section.heading:
        click.echo(console.paint(console.escape(section.heading), "cyan", err=False))
    if section.leads:
        _print_verdict(section)
        _print_facts(section)
    listed = bool(section.findings) or any(table.rows for table in section.tables)
    if inner and listed and section.indent is not None and (section.verdict or section.heading):
        click.echo()
    for table in section.tables:
        _print_table(table, section.indent)
    print_findings(section.findings)
    for each in sections:
        _print_inner(each)
    if not section.leads:
        _print_facts(section)
        _print_verdict(section)
    _print_next(section.next)


def _print_verdict(section: ReportSection) -> None:
    verdict = console.escape_lines(section.verdict)
    if section.label:
        state, colon, rest = verdict.partition(": ")
        text = f"{console.escape_line(section.label)}: {_painted(state, section.role)}{colon}{rest}"
        click.echo(console.wrapped(text, 2))
    elif verdict:
        click.echo(_painted(console.wrapped(verdict, 2), section.role))


def _print_facts(section: ReportSection) -> None:
    remarks = section.remarks
    for listed in remarks:
        _print_remarks(listed)
    for label, value in section.facts:
        click.echo(console.wrapped(f"{label}: {console.escape_line(value)}", 2))


def _print_table(table: ReportTable, indent: int | None) -> None:
    if table.stream is not None:
        print_table(table.columns, table.stream)
        return
    rows, margin = table.rows if table.limit is None or console.shows_all() else table.rows[: table.limit], indent or 0
    if rows:
        click.echo(table_text(table.columns, rows, indent=margin), nl=indent is None)
    if table.limit != 0:
        missing = len(table.rows) - len(rows) + table.more
        console.left_out(missing, table.noun, head=" " * margin, tail=table.rest or _ALL)


def _print_remarks(listed: RemarkList) -> None:
    head = ""
    shown = listed.remarks if console.shows_all() else listed.remarks[: listed.limit]
    for number, each in enumerate(shown):
        if listed.width is None:
            text = f"{_painted(each.word, each.role)}: {console.escape_line(each.text)}"
        else:
            head = f"  {each.word:<{listed.width}}  " if each.word else "  "
            text = head.replace(each.word, _painted(each.word, each.role)) + console.escape_lines(each.text)
        click.echo(console.wrapped(text, 2 if listed.width is None else max(len(head), 4)))
        following = shown[number + 1] if number + 1 < len(shown) else None
        if each.remedy and (following is None or following.remedy != each.remedy):
            click.echo(console.wrapped(f"  -> {console.escape_line(each.remedy)}", 5))
    console.left_out(len(listed.remarks) - len(shown), listed.noun, head=head, tail=listed.rest or _ALL)


def _print_next(steps: Iterable[NextStep]) -> None:
    for each in steps:
        text = each.text if each.template else console.filled(each.text)
        click.echo(console.wrapped(f"next: {console.escape_line(text)}", 2))
        for command in each.commands:
            click.echo(f"  {command}")


def print_findings(findings: Sequence[Finding]) -> None:
    """Prints findings: errors first, each remedy once."""
    if not findings:
        return
    from stantools.inspection.advice import remedies
    from stantools.inspection.findings import worst_first

    ranked = worst_first(findings)
    shown = ranked if console.shows_all() else ranked[:_FINDINGS]
    for finding in shown:
        place = console.escape(finding.file or finding.channel or "")
        if finding.offset is not None:
            place += f" at {finding.offset}"
            if finding.length is not None:
                place += f" ({counted(finding.length, 'byte')})"
        label = console.paint(finding.severity.value.ljust(7), _SEVERITIES[finding.severity.value], err=False)
        click.echo(console.wrapped(f"{label}  {finding.code}  {place}".rstrip(), 9))
        click.echo(console.wrapped(f"         {console.escape_line(finding.detail)}", 9))
    console.left_out(len(ranked) - len(shown), tail=_ALL)
    if helpful := remedies(ranked, Path(console.store())):
        click.echo("\nwhat helps:")
    for remedy in helpful:
        click.echo(console.wrapped(f"  - {console.escape_lines(console.filled(remedy))}", 4))
    click.echo()


def _painted(text: str, role: str) -> str:
    return console.paint(text, _COLORS[role], err=False) if role in _COLORS else text
