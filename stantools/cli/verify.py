"""`stantools verify`: a full scan of sources, with findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.cli import pipeline
from stantools.cli.click_options import (
    channel_option,
    node_option,
    verb,
    workers_option,
)
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster, NamedSources
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.sources.source import Source


@verb("verify", "table", "json", "ndjson", "csv")
@pipeline.stores_argument
@node_option
@channel_option
@workers_option
@pipeline.reading_options()
@pipeline.cluster_options
def command(
    stores: tuple[str, ...], channels: tuple[str, ...], workers: int, table_options: TableOptions, cluster: Cluster
) -> int:
    """Read every byte of STORE, check every record, and say what is intact, damaged and missing.

    Nothing is changed. ndjson and csv list the findings; json adds the channels. `stantools explain CODE` explains a
    finding.

    Of a clustered node, the Raft log and the snapshots are checked as well. Of a JetStream directory or a backup of a
    stream, the blocks, indexes, configurations and consumers of its streams; --channel names streams. Slices without a
    store are verified alone.

    Exit code 0: clean. 1: findings other than informational ones, or one of several stores that cannot be read.
    """
    from stantools.sources.source import Capability

    sources = pipeline.named_sources(stores, table_options, cluster, Capability.SURVEY, channels=channels)
    return _of_one(sources.alone, channels, workers) if sources.alone else _of_several(sources, workers)


def _of_one(source: Source, channels: tuple[str, ...], workers: int) -> int:
    from stantools.inspection.source_queries import scan_source
    from stantools.inspection.verify_report import verify_report

    with ByteProgress("verify", lambda: source.data_size(channels)) as shown:
        verdict = scan_source(
            source, patterns=channels, workers=workers, progress=shown.advance, on_finding=shown.found
        )
    return show(verify_report(verdict, node=source.node is not None))


def _of_several(sources: NamedSources, workers: int) -> int:
    from stantools.pipeline.jobs.store_reports import verify_stores_report
    from stantools.pipeline.jobs.verify import plan_verify, run_verify

    plan = plan_verify(sources.options, sources.found, sources.failed)
    size, threads = plan.bytes, pipeline.threads(workers)
    with ByteProgress("verify", size) as shown, sources.cluster.work("verify", size, shown, threads) as work:
        result = run_verify(work, plan, progress=shown.advance, on_finding=shown.found)
    show(verify_stores_report(result))
    return pipeline.ended(result)
