"""`stantools verify`: a full scan with findings, of one store, or of many in tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli import pipeline
from stantools.cli.click_options import (
    channel_option,
    node_option,
    reading_options,
    store_argument,
    verb,
    workers_option,
)
from stantools.cli.reporttext import show

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.store.read_options import ReadOptions

_FORMATS = ("table", "json", "ndjson", "csv")


@verb("verify", *_FORMATS)
@store_argument
@node_option
@channel_option
@workers_option
@reading_options()
def command(store: Path, channels: tuple[str, ...], workers: int, read_options: ReadOptions) -> int:
    """Read every byte of STORE, check every record, and say what is intact, damaged and missing.

    Nothing is changed. ndjson and csv list the findings; json adds the channels. `stantools explain CODE` explains a
    finding.

    Of a clustered node, the Raft log and the snapshots are checked as well. Of a JetStream directory or a backup of a
    stream, the blocks, indexes, configurations and consumers of its streams; --channel names streams.

    Exit code 0: clean. 1: findings other than informational ones.
    """
    from stantools.cli.opening import open_source
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.source_queries import scan_source
    from stantools.inspection.verify_report import verify_report
    from stantools.sources.source import Capability

    source = open_source(store, read_options, Capability.SURVEY, channels=channels)
    with ByteProgress("verify", lambda: source.data_size(channels)) as shown:
        verdict = scan_source(
            source, patterns=channels, workers=workers, progress=shown.advance, on_finding=shown.found
        )
    return show(verify_report(verdict, node=source.node is not None))


@pipeline.job("verify", *_FORMATS)
@pipeline.stores_argument
@channel_option
@pipeline.reading_options()
@pipeline.cluster_options
def job(stores: tuple[str, ...], channels: tuple[str, ...], table_options: TableOptions, cluster: Cluster) -> int:
    """Read every byte of STORES, check every record, and say what is intact, damaged and missing.

    Each store has the result of `stantools verify`, in the same words and the same json; slices without a store are
    verified alone. Nothing is changed. ndjson and csv list the findings with their store; json adds the channels. An
    unreadable store is named, on stderr and under `failed`, and the others are verified.

    Exit code 0: clean. 1: findings other than informational ones, or an unreadable store.
    """
    from stantools.cli.progress import ByteProgress
    from stantools.pipeline.jobs.store_reports import verify_stores_report
    from stantools.pipeline.jobs.verify import plan_verify, run_verify

    stores, cluster = pipeline.unpacked(stores, channels, cluster)
    plan = plan_verify(table_options.of(stores, channels=channels))
    with ByteProgress("verify", plan.bytes) as shown, cluster.work("verify", plan.bytes, shown) as work:
        result = run_verify(work, plan, progress=shown.advance, on_finding=shown.found)
    show(verify_stores_report(result))
    return pipeline.ended(result)
