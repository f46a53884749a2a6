"""`stantools info`: the content of sources, without their messages."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console, pipeline
from stantools.cli.click_options import (
    channel_option,
    limit_options,
    node_option,
    verb,
)
from stantools.cli.output import print_csv, print_json, show, stream_ndjson, table_text
from stantools.errors import ExitCode
from stantools.notation import and_more, counted, format_size, format_time

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster, NamedSources
    from stantools.inspection.node import NodeReport
    from stantools.inspection.overview import Overview
    from stantools.pipeline.jobs.info import StoreOverview
    from stantools.pipeline.jobs.stores import JobResult
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.sources.source import Source
    from stantools.store.limits import StoreLimits

_CHANNEL_COLUMNS = ("name", "first_seq", "last_seq", "count", "bytes", "slices", "subscriptions", "disk_bytes")
_STREAM_COLUMNS = (
    "account",
    "name",
    "first_seq",
    "last_seq",
    "messages",
    "bytes",
    "num_deleted",
    "num_subjects",
    "blocks",
    "consumers",
)
_STREAM_HEADERS = (
    "account",
    "stream",
    "first",
    "last",
    "messages",
    "bytes",
    "deleted",
    "subjects",
    "blocks",
    "consumers",
)
_MANY = 20


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
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.source_queries import source_overview
    from stantools.sources.source import Capability

    sources = pipeline.named_sources(stores, table_options, cluster, Capability.OVERVIEW, channels=channels)
    if not (source := sources.alone):
        return _of_several(sources, limits)
    if source.streams:
        return _print_streams(source, channels)
    if not source.node:
        source.store().chosen(channels)
    with ByteProgress("info") as shown:
        result, node = source_overview(
            source, patterns=channels, limits=limits, free_pages=True, progress=shown.advance
        )
    return _print(result, limits is not None, slices, node)


def _of_several(sources: NamedSources, limits: StoreLimits | None) -> int:
    from stantools.cli.progress import ByteProgress
    from stantools.pipeline.jobs.info import run_info

    options, count = sources.options, len(sources.found)
    with ByteProgress("info", count) as shown, sources.cluster.work("info", 0, shown) as work:
        result = run_info(work, sources.found, sources.failed, options, limits, progress=shown.advance)
    if options.channels and not any(each.logs for each in result.stores) and not result.failed:
        raise options.no_channel()
    rows = ([each.root, *log.values()] for each in result.stores for log in each.logs)
    show(result.as_json, lambda: _print_stores(result), ("store", *_CHANNEL_COLUMNS), rows)
    problems = [f"{each.root}: {problem}" for each in result.stores for problem in each.problems]
    _tell_problems(problems)
    if problems:
        console.note("for the intact messages: stantools verify, with the same stores")
    return pipeline.ended(result)


def _print_stores(result: JobResult[StoreOverview]) -> None:
    headers = ("store", "channels", "messages", "bytes", "subscriptions", "clients", "problems")
    click.echo(table_text(headers, map(_line, result.stores), right=headers[1:]), nl=False)


def _line(store: StoreOverview) -> tuple[Any, ...]:
    logs = store.logs
    sums = (sum(each[name] for each in logs) for name in ("count", "bytes", "subscriptions"))
    return (store.root, len(logs), *sums, len(store.document.get("clients", ())), len(store.problems) or None)


def _tell_problems(problems: list[str]) -> None:
    for problem in problems[:_MANY]:
        console.warning(console.escape(problem))
    if len(problems) > _MANY:
        console.warning(and_more(len(problems) - _MANY))


def _print_streams(source: Source, patterns: tuple[str, ...]) -> int:
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.stream_overview import stream_overviews

    with ByteProgress("info") as shown:
        streams = list(stream_overviews(source, patterns=patterns, progress=shown.advance))
    output = console.output()
    if output == "json":
        listed = [each.as_json() for each in streams]
        print_json({"kind": "jetstream", "path": str(source.path), "streams": listed})
    elif output == "ndjson":
        stream_ndjson(each.as_json() for each in streams)
    else:
        rows = [
            (
                each.account,
                each.name,
                each.first_seq,
                each.last_seq,
                each.messages,
                each.bytes,
                each.num_deleted,
                each.num_subjects,
                len(each.blocks),
                len(each.consumers),
            )
            for each in streams
        ]
        if output == "csv":
            print_csv(_STREAM_COLUMNS, rows)
        else:
            click.echo(table_text(_STREAM_HEADERS, rows, right=_STREAM_HEADERS[2:]), nl=False)
    problems = [f"{each.account}/{each.name}: {text}" for each in streams for text in each.problems] + source.flaws
    _tell_problems(problems)
    return ExitCode.FINDINGS if problems else ExitCode.CLEAN


def _print(result: Overview, limited: bool, slices: bool, node: NodeReport | None) -> int:
    output = console.output()
    if output == "json":
        print_json(result.as_json(streamed=True) | ({"node": node.as_json()} if node else {}))
    elif output == "ndjson":
        stream_ndjson(channel.as_json(streamed=True) for channel in result.channels)
    elif output == "csv":
        rows = (
            channel.as_json(streamed=True)
            | {"slices": len(channel.slices), "subscriptions": len(channel.subscriptions)}
            for channel in result.channels
        )
        print_csv(_CHANNEL_COLUMNS, ([row[name] for name in _CHANNEL_COLUMNS] for row in rows))
    else:
        _print_tables(result, limited, slices, node)
    return _report(result, node)


def _report(result: Overview, node: NodeReport | None) -> int:
    problems = list(result.all_problems())
    if node:
        problems += [f"{each.file or each.channel}: {each.detail}" for each in node.findings if each.severity != "info"]
    _tell_problems(problems)
    if not problems:
        return ExitCode.CLEAN
    if node:
        console.note("for problems and remedies: stantools verify STORE")
        return ExitCode.FINDINGS
    console.note(
        "for the intact messages: stantools verify STORE; for the server's behaviour: stantools forecast STORE"
    )
    return ExitCode.FINDINGS


def _print_tables(result: Overview, limited: bool, slices: bool, node: NodeReport | None) -> None:
    facts = _facts(result, limited, node)
    click.echo(table_text(("store", path := console.escape(result.path)), facts, fold=(path,)), nl=False)
    if node and node.snapshots:
        kept: list[tuple[Any, ...]] = [
            (each.name, each.term, each.index, each.size, each.usable) for each in node.snapshots
        ]
        titles = ("snapshot", "term", "index", "size", "usable")
        click.echo("\n" + table_text(titles, kept, right=titles[1:4]), nl=False)
    if result.clients:
        rows = [(c.id, c.hb_inbox, c.conn_id.hex() if not c.conn_id.isascii() else c.conn_id) for c in result.clients]
        shown = rows[:_MANY]
        if len(rows) > _MANY:
            shown.append((b"and more", f"{len(rows) - _MANY} (see: stantools clients)".encode(), b""))
        click.echo("\n" + table_text(("client", "heartbeat inbox", "connection"), shown), nl=False)
    if result.channels:
        click.echo("\n" + _channels_table(result, limited), nl=False)
    subscriptions = sum(len(channel.subscriptions) for channel in result.channels)
    if subscriptions:
        each_of_all = ((channel.name, each) for channel in result.channels for each in channel.subscriptions)
        rows_ = [
            (
                name,
                each.state.id,
                each.status.value,
                each.state.client_id,
                each.state.durable_name or each.state.q_group,
                each.state.last_sent,
                len(each.pending),
                each.lag,
            )
            for name, each in islice(each_of_all, 2 * _MANY)
        ]
        headers = ("channel", "sub", "status", "client", "durable or group", "last sent", "pending", "lag")
        click.echo("\n" + table_text(headers, rows_, right=("sub", "last sent", "pending", "lag")), nl=False)
        console.left_out(subscriptions - len(rows_), tail=": stantools subs STORE")
    if slices:
        click.echo("\n" + _slices_table(result), nl=False)


def _facts(result: Overview, limited: bool, node: NodeReport | None) -> list[tuple[str, Any]]:
    from stantools.store.read_options import polynomial_name

    server = result.server
    known = server.cluster_id if server else node.files.cluster_id if node else None
    facts: list[tuple[str, Any]] = [
        ("cluster id", known or "unknown: server.dat could not be read"),
        ("clients", len(result.clients)),
        ("channels", len(result.channels)),
        ("messages", sum((each.logical or each).count for each in result.channels)),
        ("size", format_size(sum(each.disk_bytes for each in result.channels))),
    ]
    if not node or node.files.data:
        facts[1:1] = [("written by", result.era), ("CRC polynomial", polynomial_name(result.polynomial))]
    if identity := node.node_id if node else server.node_id if server else None:
        facts[1:1] = [("node id", identity)]
    if node:
        facts += node.facts()
    elif server and server.node_id:
        facts.append(("clustered", "clients and subscriptions are in the node's Raft log, not in this store"))
    if limited:
        hidden = sum(each.logical.removed for each in result.channels if each.logical)
        facts.append(("hidden by the limits", counted(hidden, "message", "that is/that are") + " still on disk"))
    if any(each.encrypted for each in result.channels):
        facts.append(("encryption", "payloads may be encrypted; give the server's key to find out"))
    for title, names in (
        ("leftover files", result.leftovers),
        ("ignored symbolic links", result.symlinks),
        ("foreign files", result.foreign),
        ("raft logs", result.raft_logs),
    ):
        if names:
            facts.append((title, ", ".join(names)))
    for names in result.case_collisions:
        facts.append(("differ only by case", ", ".join(names)))
    if result.witness:
        facts.append(("last start", "with the truncate option (.truncate.lck exists)"))
    return facts


def _channels_table(result: Overview, limited: bool) -> str:
    headers = ["channel", "first", "last", "messages", "bytes", "slices", "subs", "newest"]
    if limited:
        headers.insert(5, "on disk")
    rows = []
    for channel in result.channels:
        seen = channel.logical or channel
        filled = [each for each in channel.slices if each.count]
        newest = format_time(filled[-1].last_timestamp) if filled else None
        row = [
            channel.name,
            seen.first_seq,
            seen.last_seq,
            seen.count,
            seen.bytes,
            f"{len(channel.slices)}+{len(channel.archived)} .bak" if channel.archived else len(channel.slices),
            len(channel.subscriptions),
            newest,
        ]
        if limited:
            row.insert(5, counted(channel.count, "message"))
        rows.append(row)
    return table_text(headers, rows, right=("first", "last", "messages", "bytes", "slices", "subs", "on disk"))


def _slices_table(result: Overview) -> str:
    rows = [
        (
            channel.name,
            each.files.name,
            each.first_seq,
            each.last_seq,
            each.count,
            each.files.data_size,
            each.source.value,
            format_time(each.first_timestamp) if each.count else None,
        )
        for channel in result.channels
        for each in (*channel.archived, *channel.slices)
    ]
    headers = ("channel", "slice", "first", "last", "messages", "file size", "known from", "oldest")
    return table_text(headers, rows, right=("first", "last", "messages", "file size"))
