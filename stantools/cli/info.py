"""`stantools info`: the content of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.click_options import (
    channel_option,
    limit_options,
    node_option,
    reading_options,
    store_argument,
    verb,
)
from stantools.cli.reporttext import show

if TYPE_CHECKING:
    from stantools.store.limits import StoreLimits
    from stantools.store.read_options import ReadOptions


@verb("info", "table", "json", "ndjson", "csv")
@store_argument
@node_option
@channel_option
@limit_options(unlimited=True)
@reading_options()
@click.option("--slices", is_flag=True, help="List every slice (for tables; json always does).")
def command(
    store: Path,
    channels: tuple[str, ...],
    limits: StoreLimits | None,
    read_options: ReadOptions,
    slices: bool,
) -> int:
    """Show the state that the server would recover from STORE: identity, clients, channels, subscriptions.

    Only the indexes of message files are read: this is quick, but misses damage inside data files, which `stantools
    verify` finds. With --max-msgs, --max-bytes or --max-age, channels are shown as a server with these limits shows
    them; without, as on disk.

    Of a clustered node, terms, indexes, members and snapshots are shown as well, and clients and subscriptions come
    from the newest snapshot and the Raft log.

    Of a JetStream store directory, or a backup of a stream, the streams are shown with their consumers, as a
    nats-server recovers them; --channel names streams. Blocks are only read where no index describes them.

    Exit code 1: something differs from the files of a healthy server; it is named on stderr.
    """
    from stantools.cli.opening import open_source
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.overview_report import overview_report, streams_report
    from stantools.inspection.source_queries import source_overview
    from stantools.sources.source import Capability

    source = open_source(store, read_options, Capability.OVERVIEW, channels=channels)
    with ByteProgress("info") as shown:
        if source.streams:
            from stantools.inspection.stream_overview import stream_overviews

            return show(
                streams_report(source, list(stream_overviews(source, patterns=channels, progress=shown.advance)))
            )
        view, node = source_overview(source, patterns=channels, limits=limits, free_pages=True, progress=shown.advance)
    code = show(overview_report(view, node, limited=limits is not None, slices=slices))
    if code:
        forecast = "" if node else "; for the server's behaviour: stantools forecast STORE"
        console.note(
            f"for {'problems and remedies' if node else 'the intact messages'}: stantools verify STORE{forecast}"
        )
    return code
