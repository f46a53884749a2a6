"""`stantools forecast`: the server's behaviour on a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli.click_options import limit_options, node_option, options_of, reading_options, stores_argument, verb
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show
from stantools.inspection.start_options import AnyStartOptions

if TYPE_CHECKING:
    from stantools.store.read_options import ReadOptions


@verb("forecast", "table", "json")
@stores_argument("STORE | NODE...")
@node_option
@options_of(AnyStartOptions, "server", limit_options())
@reading_options()
def command(stores: tuple[Path, ...], server: AnyStartOptions, read_options: ReadOptions) -> int:
    """Predict what the real server does with STORE if it is started now. Nothing is changed.

    The first lines name the intact data that a start would destroy, and the next safe step. Two starts are predicted:
    the normal one, and the one with -file_truncate_bad_eof. Each forecast tells whether the server starts or with which
    error it fails, the messages of each channel, the place where delivery stops, and the files it changes. Without
    --server-version, servers since 0.25 are predicted as well where they differ.

    Of a JetStream directory the streams are told that a nats-server loads, with which state and which consumers, the
    messages that are readable and delivered, the files that it cuts, removes and rewrites, and the directories that it
    deletes. The default is the version that seems to have written the directory, and the newest.

    Several directories of a cluster's nodes, or a folder that holds them, are started together: node by node, with the
    streams that a node deletes as orphans 30 seconds after the start. An empty directory is a node without data.

    Limits default to the server's (1,000,000 messages and 1,024,000,000 bytes per channel).

    For the directories of a cluster's nodes (with Raft directory and file store) it tells which nodes start, which of
    them can become leader, and which channels the cluster then loses. Nodes that are not named count as stopped.

    Exit code 0: a normal start works and destroys nothing, no durable queue member is deleted, every message can be
    delivered; for a cluster: every node starts, one can lead, and no possible leader loses a channel. Otherwise 1.
    """
    from stantools.cli.opening import nodes_of, open_sources
    from stantools.inspection.diagnosis_report import cluster_report, forecast_report
    from stantools.inspection.source_queries import diagnose_source
    from stantools.sources.directories import has_no_files
    from stantools.sources.source import Capability

    empty = [each for each in stores if len(stores) > 1 and each.is_dir() and has_no_files(each)]
    sources = open_sources([each for each in stores if each not in empty], read_options, Capability.FORECAST)
    if sources[0].holds_streams:
        from stantools.inspection.stream_forecast.nodes_report import forecast_directories
        from stantools.inspection.stream_forecast.start_report import SurveyCache
        from stantools.sources.jetstream import joined

        source = joined(sources, alone=not empty)
        with ByteProgress("forecast") as shown:
            survey = SurveyCache(shown.advance)
            names = [each.name for each in empty]
            return show(forecast_directories(source, server.server_version, survey, names).report())
    if nodes := nodes_of(sources):
        from stantools.inspection.elections import forecast_cluster
        from stantools.inspection.node import node_overview

        return show(cluster_report(forecast_cluster([node_overview(each, read_options) for each in nodes])))
    diagnosis = diagnose_source(sources[0], server, ByteProgress, needs_start=True)
    return show(forecast_report(diagnosis, diagnosis.starts[: 1 if server.server_version else None]))
