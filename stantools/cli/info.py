"""`stantools info`: the content of sources, without their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stantools.cli import console, pipeline
from stantools.cli.click_options import (
    channel_option,
    limit_options,
    node_option,
    verb,
)
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster, NamedSources
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.sources.source import Source
    from stantools.store.limits import StoreLimits


@verb("info", "table", "json", "ndjson", "csv")
@pipeline.stores_argument
@node_option
@channel_option
@limit_options(unlimited=True)
@pipeline.reading_options(remote=False)
@pipeline.cluster_options
@click.option("--slices", is_flag=True, help="List every slice (for tables of one store; json always does).")
def command(
    stores: tuple[str, ...],
    channels: tuple[str, ...],
    limits: StoreLimits | None,
    table_options: TableOptions,
    cluster: Cluster,
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

    Several stores are a table with a line for each; in json each has its own content, and a store that cannot be read
    is under `failed`.

    Exit code 1: something differs from the files of a healthy server; it is named on stderr.
    """
    from stantools.sources.source import Capability

    sources = pipeline.named_sources(stores, table_options, cluster, Capability.OVERVIEW, channels=channels)
    return _of_one(sources.alone, channels, limits, slices=slices) if sources.alone else _of_several(sources, limits)


def _of_one(source: Source, channels: tuple[str, ...], limits: StoreLimits | None, *, slices: bool) -> int:
    from stantools.inspection.source_queries import info_source

    source.check_matches(channels)
    with ByteProgress("info") as shown:
        report = info_source(source, patterns=channels, limits=limits, slices=slices, progress=shown.advance)
    code = show(report)
    if code and source.node:
        console.note("for problems and remedies: stantools verify STORE")
    elif code and not source.holds_streams:
        console.note(
            "for the intact messages: stantools verify STORE; for the server's behaviour: stantools forecast STORE"
        )
    return code


def _of_several(sources: NamedSources, limits: StoreLimits | None) -> int:
    from stantools.pipeline.jobs.info import run_info
    from stantools.pipeline.jobs.store_reports import info_stores_report

    options, count = sources.options, len(sources.found)
    with ByteProgress("info", count) as shown, sources.cluster.work("info", 0, shown) as work:
        result = run_info(work, sources.found, sources.failed, options, limits, progress=shown.advance)
    if options.channels and not any(each.logs for each in result.stores) and not result.failed:
        raise options.no_channel()
    if show(info_stores_report(result)):
        console.note("for the intact messages: stantools verify, with the same stores")
    return pipeline.ended(result)
