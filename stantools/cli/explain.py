"""`stantools explain`: what a finding code or a log line means."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from click.formatting import wrap_text

from stantools.cli import console
from stantools.cli.options import common_options, output_option
from stantools.cli.output import print_json, print_table
from stantools.cli.verbs import verb
from stantools.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from stantools.inspection.explain import Explanation


_WIDTH = 100


@verb("explain")
@click.argument("words", nargs=-1, metavar="[CODE | LOG LINE | -]")
@output_option("table", "json")
@common_options
def command(words: tuple[str, ...], output: str) -> int:
    """Explain a finding of `stantools verify`, or a line that the server wrote into its log.

    A log line can be given as it is, quoted or not. With - lines are read from stdin and each that says something
    about the store is explained once. Without anything, every finding code is listed.
    """
    from stantools.inspection.catalogue import CATALOGUE
    from stantools.inspection.explain import explain, similar_codes

    if not words:
        if output == "json":
            print_json(
                {
                    "codes": [
                        {"code": e.code, "severity": e.severity.value, "meaning": e.meaning} for e in CATALOGUE.values()
                    ]
                }
            )
        else:
            print_table(
                ("code", "severity", "meaning"), ((e.code, e.severity.value, e.meaning) for e in CATALOGUE.values())
            )
        return ExitCode.CLEAN
    text = " ".join(words)
    found = _explain_lines(sys.stdin) if text == "-" else explain(text)
    if not found:
        close = similar_codes(text)
        raise UsageError(
            f"{console.escape(text[:200])}: neither a finding code nor a log line about a file store",
            f"did you mean {' or '.join(close)}?" if close else "stantools explain lists all codes",
        )
    if output == "json":
        print_json({"explanations": [each.as_json() for each in found]})
    else:
        for number, each in enumerate(found):
            _print(each, number > 0)
    return ExitCode.CLEAN


def _explain_lines(lines: Iterable[str]) -> list[Explanation]:
    from stantools.inspection.explain import explain

    found: dict[tuple[str, str], Explanation] = {}
    for line in lines:
        for each in explain(line):
            found.setdefault((each.meaning, each.remedy), each)
    return list(found.values())


def _print(each: Explanation, again: bool) -> None:
    if again:
        click.echo()
    click.echo(console.paint(console.escape(each.subject), "cyan", err=False, bold=True))
    parts = (
        ("what", each.meaning),
        ("why", each.cause),
        ("server", each.server),
        ("next", each.remedy),
        ("codes", ", ".join(each.codes)),
    )
    for title, text in parts:
        if text:
            lead = f"  {title:<7} "
            click.echo(
                wrap_text(console.escape_lines(text), _WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead))
            )
