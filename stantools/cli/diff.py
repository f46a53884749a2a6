"""`stantools diff`: the differences between stores, or a store and a stream."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console, pipeline
from stantools.cli.click_options import (
    SourceType,
    StoreArgument,
    channel_option,
    node_option,
    verb,
    workers_option,
)
from stantools.cli.connection_options import connection_options, or_selected
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show
from stantools.errors import UsageError

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster, NamedSources
    from stantools.inspection.report import Report
    from stantools.migration.proof.stream_proof import Proof
    from stantools.nats.connect_options import ConnectOptions
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.sources.source import Source
    from stantools.store.read_options import ReadOptions

_URL = re.compile(r"[a-z]+://", re.IGNORECASE)


@verb("diff", "table", "json", "ndjson", "csv")
@click.argument("store", cls=StoreArgument, type=SourceType(), metavar="STORE")
@click.argument("other", type=SourceType(), metavar="OTHER")
@node_option
@channel_option
@workers_option
@connection_options
@pipeline.reading_options(unchecked=False, remote=False)
@pipeline.cluster_options
def command(
    store: str,
    other: str,
    channels: tuple[str, ...],
    workers: int,
    connect_options: ConnectOptions,
    table_options: TableOptions,
    cluster: Cluster,
) -> int:
    """Compare every message and all other state of STORE with OTHER.

    OTHER is another store, or a JetStream stream: nats://HOST:PORT#STREAM, or #STREAM on the server of --server or
    --context. For two stores, all intact messages, subscriptions, clients and server.dat are compared; for a stream,
    sequence, time, subject, headers and payload of each message, and its consumers. The channel is found by the
    stream's metadata, name or subject, or named with --channel; a stream of several channels must be the result of a
    renumbering migration. Nothing is changed on either side.

    Both may be JetStream directories: then their streams are compared by account and name, with all messages,
    configurations and consumers. A JetStream directory is compared with a stream by the stream's name.

    Both may be the directories of clustered nodes, with their Raft directories and file stores: then clients and
    subscriptions come from the logs, and the entries of two logs are compared as well.

    If they are directories of stores, or patterns, several stores are matched by their path below them; each pair has a
    result of its own, and stores without a counterpart are named.

    Exit code 0: no difference. 1: there are differences other than informational ones, or one of several stores cannot
    be read.
    """
    from stantools.sources.source import Capability

    if _names_stream(store):
        from stantools.nats.login import without_login

        raise UsageError(
            f"{without_login(store)} is not a store", "name the store first: stantools diff STORE URL#STREAM"
        )
    if _names_stream(other):
        if cluster.on_spark():
            raise UsageError(
                f"{other} is a stream, but tasks of Spark compare stores",
                "compare it with: stantools diff, without options for Spark",
            )
        read_options = table_options.read_options()
        return show(_with_stream(Path(store), other, channels, workers, connect_options, read_options))
    first, second = (
        pipeline.named_sources((each,), table_options, cluster, Capability.COMPARISON, channels=channels)
        for each in (store, other)
    )
    if first.alone and second.alone:
        return show(_of_two((store, other), (first.alone, second.alone), channels, workers))
    return _of_pairs(first.several(), second.several(), workers)


def _names_stream(text: str) -> bool:
    from stantools.sqlstore.address import is_address

    return text.startswith("#") or (_URL.match(text) is not None and not is_address(text))


def _of_pairs(first: NamedSources, second: NamedSources, workers: int) -> int:
    from stantools.pipeline.jobs.diff import match_stores, plan_diff, run_diff
    from stantools.pipeline.jobs.store_reports import diff_stores_report

    pairs, failed = match_stores(first.found, second.found, (first.options.paths[0], second.options.paths[0]))
    plan = plan_diff(pairs, [*first.failed, *second.failed, *failed], first.options)
    cluster = second.cluster if second.cluster.engine == "local" else first.cluster
    threads = pipeline.threads(workers)
    with ByteProgress("diff", plan.bytes) as shown, cluster.work("diff", plan.bytes, shown, threads) as work:
        result = run_diff(work, plan, progress=shown.advance)
    for each in result.stores:
        _tell_damage((each.pair.first.root, each.pair.second.root), each.found.damaged)
    show(diff_stores_report(result))
    return pipeline.ended(result)


def _of_two(
    names: tuple[str, str],
    sources: tuple[Source, Source],
    channels: tuple[str, ...],
    workers: int,
) -> Report:
    from stantools.inspection.clusterlog import log_differences
    from stantools.inspection.node import examine
    from stantools.migration.proof.comparison_report import stores_comparison_report
    from stantools.migration.proof.stores import compare_stores

    if all(source.holds_streams for source in sources):
        return _of_directories(names, sources, channels)
    first, second = opened = [source.store("messages are compared") for source in sources]
    if channels and not any(each.matching(channels) for each in opened):
        raise UsageError(
            f"no channel of either store matches {', '.join(map(console.escape, channels))}",
            "see: stantools info STORE",
        )
    read_options = sources[0].read_options
    one, two = [examine(source.node, read_options) if source.node else None for source in sources]
    states = one.state if one else None, two.state if two else None
    # Everything is read twice: for the survey and for the comparison.
    with ByteProgress("diff", lambda: 2 * sum(each.data_size(each.matching(channels)) for each in opened)) as shown:
        found = compare_stores(first, second, states=states, patterns=channels, workers=workers, progress=shown.advance)
        if one and two and not channels:
            found.findings += log_differences([one, two], read_options.encryption_key)
        shown.found(*found.findings)
    _tell_damage(names, found.damaged)
    return stores_comparison_report(found)


def _of_directories(names: tuple[str, str], sources: tuple[Source, Source], patterns: tuple[str, ...]) -> Report:
    from stantools.migration.proof.comparison_report import directories_comparison_report
    from stantools.migration.proof.stored_streams import compare_directories

    first, second = sources
    with ByteProgress("diff", lambda: first.data_size() + second.data_size()) as shown:
        found = compare_directories(first, second, patterns, shown.advance)
        shown.found(*found.findings)
    _tell_damage(names, found.damaged)
    return directories_comparison_report(found)


def _with_stream(
    store: Path,
    other: str,
    channels: tuple[str, ...],
    workers: int,
    connect_options: ConnectOptions,
    read_options: ReadOptions,
) -> Report:
    from stantools.migration.proof.comparison_report import stream_comparison_report
    from stantools.migration.tasks import run

    url, _, stream = other.partition("#")
    if not stream:
        raise UsageError(
            f"{console.escape(other)} names a server without a stream", "add the stream: nats://HOST:PORT#STREAM"
        )
    connect_options = replace(connect_options, servers=(url,)) if url else or_selected(connect_options)
    if connect_options.embedded:
        raise UsageError("a server started for this command has no stream", "name a running server")
    proof, names = run(_prove(store, stream, channels, workers, connect_options, read_options))
    return stream_comparison_report(proof, stream, names)


async def _prove(
    store: Path,
    stream: str,
    channels: tuple[str, ...],
    workers: int,
    connect_options: ConnectOptions,
    read_options: ReadOptions,
) -> tuple[Proof, list[str]]:
    import asyncio

    from stantools.cli.opening import open_source
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.journal import StreamStage
    from stantools.migration.proof.match import channels_for, match_stream, source_options_of, stream_info
    from stantools.migration.salvaged_streams import prove_directory
    from stantools.migration.source import open_source as read_store
    from stantools.nats.connection import connect
    from stantools.nats.jetstream import JetStream
    from stantools.sources.source import Capability

    stored = open_source(store, read_options, Capability.COMPARISON)
    if stored.holds_streams:
        async with connect(connect_options) as connection:
            with ByteProgress("diff") as shown:
                proof = await prove_directory(JetStream(connection), stored, stream, shown.advance)
        return proof, [stream]
    opened = stored.store("messages are in file stores")
    async with connect(connect_options) as connection:
        js = JetStream(connection)
        info = await stream_info(js, stream)
        names = opened.chosen(channels) if channels else channels_for(info, opened.channel_names, store)
        source_options = source_options_of(names, workers)
        with ByteProgress("read the store", lambda: opened.data_size(source_options.patterns)) as shown:
            # In a thread, so that the connection is kept alive meanwhile.
            source = await asyncio.to_thread(read_store, opened, source_options, progress=shown.advance)
        expected = await match_stream(js, info, source, names)
        with (
            StreamsProgress("diff", expected.source.count) as watch,
            watch.stage(stream, StreamStage.COMPARE, expected.source.count) as progress,
        ):
            proof = await expected.prove(js, progress=progress)
    return proof, names


def _tell_damage(stores: tuple[str, str], damaged: tuple[bool, bool]) -> None:
    for path, is_damaged in zip(stores, damaged, strict=True):
        if is_damaged:
            console.note(f"{console.escape(path)} is damaged; only its intact data was compared")
