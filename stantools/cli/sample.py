"""`stantools sample`: made-up stores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.options import CRC_POLY, given, options_of, verb
from stantools.cli.output import print_json, print_table
from stantools.errors import ExitCode, UsageError
from stantools.notation import counted, format_size
from stantools.options import CLUSTER_ID, COUNT, KEY, SIZE, Option, option
from stantools.secret import Secret

if TYPE_CHECKING:
    from stantools.store.sample import Sample, SampleOptions


@dataclass(frozen=True)
class Sampling:
    """What the store holds, and what is done to it."""

    channels: int = COUNT.field(help="How many channels.", default=3)
    names: tuple[str, ...] = option("A channel by name; may be repeated.", "--name", default=(), metavar="CHANNEL")
    messages: int = COUNT.field(help="Messages in each channel.", default=100)
    size: int = SIZE.field(help="Bytes of a payload.", default=128)
    seed: int = option("The same seed makes the same store.", default=1, kind=int)
    cluster_id: str = CLUSTER_ID.field(default="test-cluster")
    no_subscriptions: bool = option("No clients and no subscriptions.", default=False)
    gaps: bool = option("Gaps in the sequences of the last channel.", default=False)
    slice_msgs: int = COUNT.field(help="Messages of a slice.", default=0)
    slice_bytes: int = SIZE.field(help="Bytes of a slice.", default=0)
    crc_poly: int | None = CRC_POLY.field(help="CRC polynomial.", written="ieee", metavar="N|NAME")
    encryption_key: Secret = KEY.field()
    cipher: str = option("How to encrypt.", default="AES", choices=("AES", "CHACHA"), any_case=True, quiet=True)
    damages: tuple[str, ...] = option("Damage the store; may be repeated.", "--damage", default=(), metavar="NAME")

    def options(self) -> SampleOptions:
        """Returns the options of `write_sample`."""
        from stantools.store.limits import SliceLimits
        from stantools.store.sample import SampleOptions

        if self.crc_poly is None:
            raise UsageError("a new store has no polynomial to detect", "give --crc-poly a number or a name")
        return SampleOptions(
            channels=self.names or self.channels,
            messages=self.messages,
            size=self.size,
            seed=self.seed,
            cluster_id=self.cluster_id,
            subscriptions=not self.no_subscriptions,
            gaps=self.gaps,
            slices=SliceLimits(self.slice_msgs, self.slice_bytes) if self.slice_msgs or self.slice_bytes else None,
            polynomial=self.crc_poly,
            encryption_key=self.encryption_key.key(),
            cipher=self.cipher,
            damage=self.damages,
        )


@verb("sample", "table", "json", tables=False)
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR", required=False)
@options_of(Sampling, "sampling")
@given(list_damages=Option(help="List the damages there are, and end.", default=False))
def command(directory: Path | None, sampling: Sampling, list_damages: bool) -> int:
    """Write a sample store into the new directory DIR, as a server would have written it.

    Messages are JSON, random bytes or text; there are durables, queue groups and plain subscriptions, with pending
    messages. With --damage the store is damaged in the way of crashes, bad disks and people.
    """
    from stantools.cli.progress import Progress
    from stantools.store.sample import write_sample

    if list_damages:
        return _list_damages()
    if directory is None:
        raise UsageError("DIR is missing: where is the sample to go?", "see: stantools sample --help")
    options = sampling.options()
    total = options.messages * len(options.names) * options.size
    with Progress("sample", total) as shown:
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
    from stantools.store.damage import DAMAGES

    if console.output() == "json":
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
