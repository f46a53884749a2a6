"""`stantools sample`: stores with made-up content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli.click_options import PathType, given, options_of, verb
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show
from stantools.errors import UsageError
from stantools.escaping import escape
from stantools.notation import counted, format_size
from stantools.options import Option, SampleOptions

if TYPE_CHECKING:
    from stantools.inspection.report import Report
    from stantools.store.sample import Sample


@verb("sample", "table", "json", tables=False)
@click.argument("directory", type=PathType(), metavar="DIR", required=False)
@options_of(SampleOptions, "options")
@given(list_damages=Option(help="List the kinds of damage, and exit.", default=False))
def command(directory: Path | None, options: SampleOptions, list_damages: bool) -> int:
    """Write a sample store into the new directory DIR, as a server would have written it.

    Messages are JSON, random bytes or text; the store has durables, queue groups and plain subscriptions, with pending
    messages. --damage adds the damage of crashes, bad disks or human error.
    """
    from stantools.store.sample import channel_names, write_sample

    if list_damages:
        return show(_damages())
    if directory is None:
        raise UsageError("DIR is missing: the directory of the sample", "see: stantools sample --help")
    total = options.messages * len(channel_names(options)) * options.size
    with ByteProgress("sample", total) as shown:
        result = write_sample(directory, options, progress=lambda count: shown.advance(count * options.size))
    return show(_report(result))


def _damages() -> Report:
    from stantools.inspection.report import Report, ReportTable, columns
    from stantools.store.damage import DAMAGES

    rows = [(name, each.description) for name, each in DAMAGES.items()]
    report = Report(
        document=lambda: {"damages": [dict(zip(("name", "description"), row, strict=True)) for row in rows]}
    )
    report.tables.append(ReportTable(columns("damage", "what it does"), stream=iter(rows)))
    return report


def _report(result: Sample) -> Report:
    from stantools.inspection.report import Report, ReportRemark

    report = Report(leads=True, document=result.as_json)
    report.verdict = f"{result.path}: {counted(len(result.channels), 'channel')}, "
    report.verdict += f"{counted(result.messages, 'message')}, {format_size(result.bytes)} of payload"
    texts = (f"{each.name}: {escape(each.file)}: {each.detail}" for each in result.damages)
    report.list_remarks((ReportRemark("damaged", text, "") for text in texts), "damage")
    return report
