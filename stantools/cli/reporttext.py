"""Reports on stdout: as text for people, as json, ndjson or csv for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.output import print_json, rows_as, table_text
from stantools.errors import ExitCode
from stantools.notation import and_more, counted

if TYPE_CHECKING:
    from stantools.inspection.findings import Finding
    from stantools.inspection.report import NextStep, RemarkList, Report, ReportTable

#: Remarks of one kind, and findings, that are printed.
_REMARKS = 20
_FINDINGS = 50
_COLORS = {"good": "green", "warn": "yellow", "bad": "red", "accent": "cyan"}
_SEVERITIES = {"error": "red", "warning": "yellow", "info": "cyan"}


def show(report: Report) -> ExitCode:
    """Prints a report in the user's format; returns its exit code."""
    output = console.output()
    for each in report.warnings[:_REMARKS]:
        (console.error if each.role == "bad" else console.warning)(each.text, each.remedy)
    if len(report.warnings) > _REMARKS:
        console.warning(f"{and_more(len(report.warnings) - _REMARKS)}: see -o json")
    if output == "json":
        print_json(report.document())
    elif output == "table":
        print_report(report)
    else:
        rows_as(output, *report.records)
    return report.code


def preview(report: Report) -> None:
    """Prints a plan before a question; programs get it with the result."""
    if console.output() == "table":
        print_report(report)


def show_plan(report: Report) -> ExitCode:
    """Prints a plan that is not carried out; returns its exit code."""
    code = show(report)
    if console.output() == "table":
        click.echo("nothing was changed")
    return code


def print_report(report: Report) -> None:
    for text, role in report.lead:
        click.echo(_painted(console.wrapped(console.escape_lines(text), 2), role))
    for table in report.tables:
        _print_table(table)
    print_findings(report.findings)
    for listed in report.remarks:
        _print_remarks(listed)
    for label, value in report.facts:
        click.echo(console.wrapped(f"{label}: {console.escape_line(value)}", 2))
    if report.verdict:
        click.echo(_painted(console.wrapped(console.escape_lines(report.verdict), 2), report.role))
    _print_next(report.next)


def _print_table(table: ReportTable) -> None:
    rows = table.rows if table.limit is None else table.rows[: table.limit]
    if rows:
        right = [each.title for each in table.columns if each.number]
        click.echo(table_text([each.title for each in table.columns], rows, right=right))
    if table.limit:
        console.left_out(len(table.rows) - len(rows), table.noun, tail=table.rest)


def _print_remarks(listed: RemarkList) -> None:
    for each in islice(listed.remarks, _REMARKS):
        text = f"{_painted(each.word, each.role)}: {console.escape_line(each.text)}"
        click.echo(console.wrapped(text, 2))
        if each.remedy:
            click.echo(f"  -> {console.escape_line(each.remedy)}")
    console.left_out(len(listed.remarks) - _REMARKS, listed.noun, tail=listed.rest)


def _print_next(steps: Iterable[NextStep]) -> None:
    for each in steps:
        click.echo(console.wrapped(f"next: {console.escape_line(console.filled(each.text))}", 2))
        for command in each.commands:
            click.echo(f"  {command}")


def print_findings(findings: Sequence[Finding]) -> None:
    """Prints findings: errors first, each remedy once."""
    if not findings:
        return
    from stantools.inspection.advice import remedies
    from stantools.inspection.findings import worst_first

    ranked = worst_first(findings)
    for finding in ranked[:_FINDINGS]:
        place = console.escape(finding.file or finding.channel or "")
        if finding.offset is not None:
            place += f" at {finding.offset}"
            if finding.length is not None:
                place += f" ({counted(finding.length, 'byte')})"
        label = console.paint(finding.severity.value.ljust(7), _SEVERITIES[finding.severity.value], err=False)
        click.echo(console.wrapped(f"{label}  {finding.code}  {place}".rstrip(), 9))
        click.echo(console.wrapped(f"         {console.escape_line(finding.detail)}", 9))
    console.left_out(len(ranked) - _FINDINGS, tail=": see -o json")
    if helpful := remedies(ranked, Path(console.store())):
        click.echo("\nwhat helps:")
    for remedy in helpful:
        click.echo(console.wrapped(f"  - {console.escape_lines(console.filled(remedy))}", 4))
    click.echo()


def _painted(text: str, role: str) -> str:
    return console.paint(text, _COLORS[role], err=False) if role in _COLORS else text
