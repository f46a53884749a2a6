"""`stantools sample`: made-up stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.options import common_options, key_options, output_option, progress_option
from stantools.cli.output import print_json, print_table
from stantools.cli.values import Polynomial, Size, format_size
from stantools.cli.verbs import verb
from stantools.errors import ExitCode, UsageError
from stantools.notation import counted

if TYPE_CHECKING:
    from stantools.store.sample import Sample


@verb("sample")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR", required=False)
@click.option(
    "--channels", type=click.IntRange(0), default=3, show_default=True, metavar="N", help="How many channels."
)
@click.option("--name", "names", multiple=True, metavar="CHANNEL", help="A channel by name; may be repeated.")
@click.option(
    "--messages", type=click.IntRange(0), default=100, show_default=True, metavar="N", help="Messages in each channel."
)
@click.option("--size", type=Size(), default="128", show_default=True, metavar="SIZE", help="Bytes of a payload.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same store.")
@click.option("--cluster-id", default="test-cluster", show_default=True, metavar="ID", help="The server's cluster id.")
@click.option("--no-subscriptions", is_flag=True, help="No clients and no subscriptions.")
@click.option("--gaps", is_flag=True, help="Gaps in the sequences of the last channel.")
@click.option("--slice-msgs", type=click.IntRange(0), default=0, metavar="N", help="Messages of a slice.")
@click.option("--slice-bytes", type=Size(), default="0", metavar="SIZE", help="Bytes of a slice.")
@click.option(
    "--crc-poly", type=Polynomial(), default="ieee", show_default=True, metavar="N|NAME", help="CRC polynomial."
)
@key_options
@click.option(
    "--cipher", type=click.Choice(["AES", "CHACHA"], case_sensitive=False), default="AES", help="How to encrypt."
)
@click.option("--damage", "damages", multiple=True, metavar="NAME", help="Damage the store; may be repeated.")
@click.option("--list-damages", is_flag=True, help="List the damages there are, and end.")
@output_option("table", "json", tables=False)
@progress_option
@common_options
def command(
    directory: Path | None,
    channels: int,
    names: tuple[str, ...],
    messages: int,
    size: int,
    seed: int,
    cluster_id: str,
    no_subscriptions: bool,
    gaps: bool,
    slice_msgs: int,
    slice_bytes: int,
    crc_poly: int | None,
    encryption_key: bytes | None,
    cipher: str,
    damages: tuple[str, ...],
    list_damages: bool,
    output: str,
    progress: str,
) -> int:
    """Write a sample store into the new directory DIR, as a server would have written it.

    Messages are JSON, random bytes or text; there are durables, queue groups and plain subscriptions, with pending
    messages. With --damage the store is damaged in the way of crashes, bad disks and people.
    """
    from stantools.store.limits import SliceLimits
    from stantools.store.sample import SampleOptions, write_sample

    if list_damages:
        return _list_damages(output)
    if directory is None:
        raise UsageError("DIR is missing: where is the sample to go?", "see: stantools sample --help")
    if crc_poly is None:
        raise UsageError("a new store has no polynomial that could be found out", "give --crc-poly a number or a name")
    options = SampleOptions(
        channels=names or channels,
        messages=messages,
        size=size,
        seed=seed,
        cluster_id=cluster_id,
        subscriptions=not no_subscriptions,
        gaps=gaps,
        slices=SliceLimits(slice_msgs, slice_bytes) if slice_msgs or slice_bytes else None,
        polynomial=crc_poly,
        encryption_key=encryption_key,
        cipher=cipher,
        damage=damages,
    )
    from stantools.cli.progress import Progress

    with Progress(progress, "sample", messages * (len(names) or channels) * size) as shown:
        result = write_sample(directory, options, progress=lambda count: shown.advance(count * size))
    if output == "json":
        print_json(_as_json(result))
        return ExitCode.CLEAN
    click.echo(
        f"{console.escape(str(result.path))}: {counted(len(result.channels), 'channel')}, "
        f"{counted(result.messages, 'message')}, {format_size(result.bytes)} of payload"
    )
    for done in result.damages:
        click.echo(f"damaged: {done.name}: {console.escape(done.file)}: {console.escape_lines(done.detail)}")
    return ExitCode.CLEAN


def _list_damages(output: str) -> int:
    from stantools.store.damage import DAMAGES

    if output == "json":
        print_json({"damages": [{"name": name, "description": each.description} for name, each in DAMAGES.items()]})
    else:
        print_table(("damage", "what it does"), ((name, each.description) for name, each in DAMAGES.items()))
    return ExitCode.CLEAN


def _as_json(result: Sample) -> dict[str, object]:
    return {
        "path": str(result.path),
        "channels": list(result.channels),
        "messages": result.messages,
        "bytes": result.bytes,
        "damages": [{"name": d.name, "file": d.file, "detail": d.detail} for d in result.damages],
    }
