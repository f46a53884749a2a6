"""The report of info: what a store or a clustered node holds, and the streams of a JetStream directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.overview import ChannelOverview, Overview
from stantools.inspection.report import Report, ReportColumn, ReportRemark, ReportSection, ReportTable, columns
from stantools.inspection.slicesummary import SliceSummary
from stantools.notation import counted, format_size, format_time
from stantools.sources.source import Source
from stantools.store.read_options import polynomial_name

# What a store by itself does not need is not loaded for it.
if TYPE_CHECKING:
    from stantools.inspection.node import NodeReport
    from stantools.inspection.stream_overview import StreamOverview

#: names of a channel's values in csv
CHANNEL_COLUMNS = ("name", "first_seq", "last_seq", "count", "bytes", "slices", "subscriptions", "disk_bytes")
_CLIENTS = columns("client", "heartbeat inbox", "connection", details=("connection",))
_CHANNELS = columns(
    *("channel", "first", "last", "messages", "bytes", "slices", "subs", "newest"),
    numbers=("first", "last", "messages", "bytes", "slices", "subs"),
    details=("slices", "bytes", "newest", "on disk"),
)
_ON_DISK = ReportColumn("on disk", number=True, detail=1)
_SUBSCRIPTIONS = columns(
    *("channel", "sub", "status", "client", "durable or group", "last sent", "pending", "lag"),
    numbers=("sub", "last sent", "pending", "lag"),
    keys=("channel", "status", "durable or group"),
    details=("last sent", "client"),
)
_SLICES = columns(
    *("channel", "slice", "first", "last", "messages", "file size", "known from", "oldest"),
    numbers=("first", "last", "messages", "file size"),
    keys=("channel", "slice"),
    details=("file size", "oldest"),
)
_SNAPSHOTS = columns("snapshot", "term", "index", "size", "usable", numbers=("term", "index", "size"))
_STREAM_NAMES = (
    *("account", "name", "first_seq", "last_seq", "messages", "bytes", "num_deleted", "num_subjects"),
    *("blocks", "consumers"),
)
_STREAMS = columns(
    *("account", "stream", "first", "last", "messages", "bytes", "deleted", "subjects", "blocks", "consumers"),
    numbers=("first", "last", "messages", "bytes", "deleted", "subjects", "blocks", "consumers"),
    keys=("account", "stream"),
    details=("blocks", "subjects", "deleted", "bytes"),
)
_MANY = 20


def overview_report(
    view: Overview, node: NodeReport | None, *, limited: bool, slices: bool, streamed: bool = True
) -> Report:
    """Returns the report of a store, or of a node; `limited` by a server's limits, with a table of `slices`."""
    report = _report(view.all_problems(), node)
    report.document = lambda: view.as_json(streamed=streamed) | ({"node": node.as_json()} if node else {})
    report.objects = (each.as_json(streamed=True) for each in view.channels)
    report.records = CHANNEL_COLUMNS, map(_record, view.channels)
    path = escape(view.path)
    _add(report, columns("store", path, fold=(path,)), _facts(view, node, limited=limited))
    if node:
        kept = [(each.name, each.term, each.index, each.size, each.usable) for each in node.snapshots]
        _add(report, _SNAPSHOTS, kept)
    clients = [
        (each.id, each.hb_inbox, each.conn_id.hex() if not each.conn_id.isascii() else each.conn_id)
        for each in view.clients
    ]
    if len(clients) > _MANY:
        clients[_MANY:] = [(b"and more", f"{len(clients) - _MANY} (see: stantools clients)".encode(), b"")]
    _add(report, _CLIENTS, clients)
    titles = [*_CHANNELS[:5], _ON_DISK, *_CHANNELS[5:]] if limited else _CHANNELS
    _add(report, titles, [_channel(each, limited=limited) for each in view.channels])
    total = sum(len(channel.subscriptions) for channel in view.channels)
    subscriptions = ((channel.name, each) for channel in view.channels for each in channel.subscriptions)
    rows = [
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
        for name, each in islice(subscriptions, 2 * _MANY)
    ]
    _add(report, _SUBSCRIPTIONS, rows, rest=": stantools subs STORE", more=total - len(rows))
    if slices:
        _add(
            report,
            _SLICES,
            [_slice(channel.name, each) for channel in view.channels for each in (*channel.archived, *channel.slices)],
        )
    return report


def streams_report(source: Source, streams: Sequence[StreamOverview]) -> Report:
    report = _report(
        [
            *(f"{each.account}/{each.name}: {text}" for each in streams for text in each.problems),
            *(f"{each}: only a Raft log of it is here" for each in source.logged_streams()),
            *source.flaws,
        ]
    )
    listed = [each.as_json() for each in streams]
    report.document = lambda: {"kind": "jetstream", "path": str(source.path), "streams": listed}
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
    report.objects, report.records = listed, (_STREAM_NAMES, rows)
    _add(report, _STREAMS, rows)
    return report


def _report(problems: Iterable[str], node: NodeReport | None = None) -> Report:
    found = list(problems)
    if node:
        found += [f"{each.file or each.channel}: {each.detail}" for each in node.findings if each.severity != "info"]
    report = Report(code=ExitCode.FINDINGS if found else ExitCode.CLEAN)
    report.warnings = [ReportRemark("problem", escape(each), "warn") for each in found]
    return report


def _add(
    report: Report, titles: Sequence[ReportColumn], rows: Sequence[Sequence[Any]], rest: str = "", more: int = 0
) -> None:
    """Adds a table, if it has rows."""
    if rows:
        table = ReportTable(titles, rows, rest=rest, more=more)
        report.sections.append(ReportSection(tables=[table], indent=0, apart=bool(report.sections)))


def _record(channel: ChannelOverview) -> list[Any]:
    row = channel.as_json(streamed=True)
    row |= {"slices": len(channel.slices), "subscriptions": len(channel.subscriptions)}
    return [row[name] for name in CHANNEL_COLUMNS]


def _facts(view: Overview, node: NodeReport | None, *, limited: bool) -> list[tuple[str, Any]]:
    server = view.server
    known = server.cluster_id if server else node.files.cluster_id if node else None
    facts: list[tuple[str, Any]] = [
        ("cluster id", known or "unknown: server.dat could not be read"),
        ("clients", len(view.clients)),
        ("channels", len(view.channels)),
        ("messages", sum((each.logical or each).count for each in view.channels)),
        ("size", format_size(sum(each.disk_bytes for each in view.channels))),
    ]
    if not node or node.files.data:
        facts[1:1] = [("written by", view.era), ("CRC polynomial", polynomial_name(view.polynomial))]
    if identity := node.node_id if node else server.node_id if server else None:
        facts[1:1] = [("node id", identity)]
    if node:
        facts += node.facts()
    elif server and server.node_id:
        facts.append(("clustered", "clients and subscriptions are in the node's Raft log, not in this store"))
    if limited:
        hidden = sum(each.logical.removed for each in view.channels if each.logical)
        facts.append(("hidden by the limits", counted(hidden, "message", "that is/that are") + " still on disk"))
    if any(each.encrypted for each in view.channels):
        facts.append(("encryption", "payloads may be encrypted; give the server's key to find out"))
    for title, names in (
        ("leftover files", view.leftovers),
        ("ignored symbolic links", view.symlinks),
        ("foreign files", view.foreign),
        ("raft logs", view.raft_logs),
    ):
        if names:
            facts.append((title, ", ".join(names)))
    for names in view.case_collisions:
        facts.append(("differ only by case", ", ".join(names)))
    if view.witness:
        facts.append(("last start", "with the truncate option (.truncate.lck exists)"))
    return facts


def _channel(channel: ChannelOverview, *, limited: bool) -> list[Any]:
    seen = channel.logical or channel
    filled = [each for each in channel.slices if each.count]
    count = len(channel.slices)
    row = [
        channel.name,
        seen.first_seq,
        seen.last_seq,
        seen.count,
        seen.bytes,
        f"{count}+{len(channel.archived)} .bak" if channel.archived else count,
        len(channel.subscriptions),
        format_time(filled[-1].last_timestamp) if filled else None,
    ]
    if limited:
        row.insert(5, counted(channel.count, "message"))
    return row


def _slice(channel: str, each: SliceSummary) -> tuple[Any, ...]:
    return (
        channel,
        each.files.name,
        each.first_seq,
        each.last_seq,
        each.count,
        each.files.data_size,
        each.source.value,
        format_time(each.first_timestamp) if each.count else None,
    )
