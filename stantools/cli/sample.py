"""`stantools sample`: stores with made-up content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.click_options import PathType, given, options_of, verb
from stantools.cli.output import print_json, print_table
from stantools.cli.progress import ByteProgress
from stantools.errors import ExitCode, UsageError
from stantools.notation import counted, format_size
from stantools.options import Option, SampleOptions

if TYPE_CHECKING:
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
        return _list_damages()
    if directory is None:
        raise UsageError("DIR is missing: the directory of the sample", "see: stantools sample --help")
    total = options.messages * len(channel_names(options)) * options.size
    with ByteProgress("sample", total) as shown:
        result = write_sample(directory, options, progress=lambda count: shown.advance(count * options.size))
    if console.output() == "json":
        print_json(_as_json(result))
        return ExitCode.CLEAN
    click.echo(
        f"{console.escape(str(result.path))}: {counted(len(result.channels), 'channel')}, "
        f"{counted(result.messages, 'message')}, {format_size(result.bytes)} of payload"
    )
    for done in result.damages:
        click.echo(f"damaged: {done.name}: {console.escape(done.file)}: {console.escape_lines(done.detail)}")
    return ExitCode.CLEAN


def _list_damages() -> int:
    from stantools.inspection.report import columns
    from stantools.store.damage import DAMAGES

    if console.output() == "json":
        print_json({"damages": [{"name": name, "description": each.description} for name, each in DAMAGES.items()]})
    else:
        print_table(columns("damage", "what it does"), ((name, each.description) for name, each in DAMAGES.items()))
    return ExitCode.CLEAN


def _as_json(result: Sample) -> dict[str, object]:
    return {
        "path": str(result.path),
        "channels": list(result.channels),
        "messages": result.messages,
        "bytes": result.bytes,
        "damages": [{"name": d.name, "file": d.file, "detail": d.detail} for d in result.damages],
    }
