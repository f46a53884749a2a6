"""Overview, findings and forecast of a SQL store, in the terms of file stores."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from stantools.escaping import text
from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.gogo import decode_partly
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding, Severity
from stantools.inspection.forecast.channel_forecast import ChannelForecast, Forecast, Harm, Lookups, Loss, delivered
from stantools.inspection.forecast.report import cluster_id_error
from stantools.inspection.forecast.server_options import SERVER_VERSIONS, ServerOptions
from stantools.inspection.outcomes import ChannelOutcome
from stantools.inspection.overview import ChannelOverview, Overview
from stantools.inspection.subscribers import SubscriberList
from stantools.inspection.verify import ChannelVerdict, Verdict
from stantools.notation import counted, describe_sequences
from stantools.sqlstore.message_scan import ChannelRows
from stantools.sqlstore.sql_recovery import SqlChannel, SqlStart, SqlState, SqlSubscription
from stantools.sqlstore.sql_store import SqlStore
from stantools.store.limits import UNLIMITED, ChannelLimits, StoreLimits
from stantools.store.logwriter import encode_live
from stantools.store.ranges import Ranges
from stantools.store.sublog import SubsState, read_subs

_RANGES = 4
#: codes of rows that a server refuses, by table
_REFUSED = {
    "ServerInfo": "sql-server-damaged",
    "Subscriptions": "sql-subscription-damaged",
    "SubsPending": "sql-pending-damaged",
    "Messages": "sql-size-differs",
}
_PANIC = "panic: store implementation returned an empty message"
_NULL_TIME = 'sql: Scan error on column index 0, name "timestamp": converting NULL to int64 is unsupported'


def sql_overview(store: SqlStore, patterns: Sequence[str] = (), limits: StoreLimits | None = None) -> Overview:
    """Returns the state that a server recovers; with `limits`, one with these."""
    found = store.recovered(limits or StoreLimits(channel=UNLIMITED), time.time_ns())
    result = Overview(store.path, found.server, found.clients)
    known = {client.id: client for client in found.clients}
    by_name = {text(each.name): each for each in found.channels}
    for name in sorted(store.matching(patterns)):
        if channel := by_name.get(name):
            result.channels.append(_channel_overview(name, channel, known))
    if found.start is SqlStart.REFUSED:
        result.problems.append(f"a server does not start: {found.error}")
    elif found.start is SqlStart.EMPTY:
        result.problems.append("ServerInfo has no row: a server takes the store for an empty one")
    result.problems += [each.detail for each in _store_findings(store)]
    result.era = "-st SQL"
    return result


def _channel_overview(name: str, channel: SqlChannel, known: dict[bytes, pb.ClientInfo]) -> ChannelOverview:
    rows = channel.rows
    result = ChannelOverview(name, channel.first_seq, channel.last_seq, channel.count, channel.size)
    result.subscriptions = SubscriberList(_state(channel.subscriptions), known, channel.first_seq, channel.last_seq)
    result.disk_bytes = rows.size
    return result


def _state(subscriptions: Sequence[SqlSubscription]) -> SubsState:
    crc = Crc()
    log = FILE_HEADER_BYTES + b"".join(encode_live(each.state, each.pending, crc) for each in subscriptions)
    return read_subs(memoryview(log), crc)


def verify_sql(
    store: SqlStore, patterns: Sequence[str] = (), on_finding: Callable[[Finding], object] | None = None
) -> Verdict:
    begin = time.perf_counter()
    verdict = Verdict()
    verdict.findings += _store_findings(store)
    subscriptions = {each.name: each for each in store.intact.channels}
    for name in sorted(store.matching(patterns)):
        channel = subscriptions[store.channels[name][0].name]
        for row in store.channels[name]:
            verdict.findings += _message_findings(name, row.name, store.rows(row))
        verdict.findings += _channel_findings(name, channel)
        verdict.channels.append(_channel_verdict(store, name, channel))
        verdict.bytes_scanned += sum(store.rows(row).size for row in store.channels[name])
    for each in verdict.findings if on_finding else ():
        on_finding(each)  # type: ignore[misc]
    verdict.seconds = store.scan.seconds + time.perf_counter() - begin
    return verdict


def _channel_verdict(store: SqlStore, name: str, channel: SqlChannel) -> ChannelVerdict:
    rows = [store.rows(row) for row in store.channels[name]]
    there = Ranges.union(each.named() for each in rows)
    intact = Ranges.union(store.intact_rows(name).values())
    kept = Ranges.union(store.intact_rows(name, tolerant=True).values())
    damaged = Ranges.union(each.sequences.ranges for each in rows) - intact
    missing = there.holes()
    if channel.ahead > there.last and there:
        missing = missing | Ranges.of([(there.last + 1, channel.ahead)])
    sent = max((each.state.last_sent for each in channel.subscriptions), default=0)
    outcome = ChannelOutcome(name, kept, missing=((there - intact) | missing) - kept, gaps=there.holes(), sent=sent)
    size = sum(each.size for each in rows)
    return ChannelVerdict(name, intact, damaged, missing, intact.count(), size, outcome)


def _store_findings(store: SqlStore) -> Iterator[Finding]:
    tables = store.tables
    for flaw in store.reader.flaws:
        yield finding("sql-dump-flawed", flaw)
    for table in store.reader.missing:
        yield finding("sql-table-missing", f"table {table}", file=table)
    if not tables.server and tables.channels:
        yield finding("sql-server-missing", "no row", file="ServerInfo")
    if store.intact.server and store.intact.server.node_id:
        detail = f"node {text(store.intact.server.node_id)}"
        yield finding("sql-clustered", detail, file="ServerInfo")
    for place, detail in store.intact.refused:
        table = place.partition(" ")[0]
        yield finding(_REFUSED[table], f"{place}: {detail}", file=table)
    for client in tables.clients:
        if client.proto and decode_partly(pb.ClientInfo, client.proto)[1]:
            yield finding("sql-client-damaged", f"client {text(client.id)!r}", file="Clients")
    yield from _orphans(store)
    names = Counter(row.name for row in tables.channels if not row.deleted)
    for name, count in names.items():
        if count > 1:
            yield finding("sql-row-twice", f"{count} rows with this name", file="Channels", channel=text(name))
    for row in tables.channels:
        if row.deleted:
            rows = store.scan.channels.get(row.id)
            detail = f"id {row.id}, {counted(rows.rows if rows else 0, 'message row')}"
            yield finding("sql-channel-deleted", detail, file="Channels", channel=text(row.name))
    for lock in tables.lock:
        if lock.id:
            yield finding("sql-locked", f"server {text(lock.id)}, tick {lock.tick}", file="StoreLock")


def _orphans(store: SqlStore) -> Iterator[Finding]:
    tables = store.tables
    known = {row.id for row in tables.channels}
    for number in sorted(store.orphans):
        rows = store.scan.channels[number]
        subjects = ", ".join(sorted(map(text, rows.by_subject))[:3])
        detail = f"{counted(rows.rows, 'message')} of channel id {number}, with the subject {subjects or '(none)'}"
        yield finding("sql-orphan-rows", detail, severity=Severity.ERROR, file="Messages")
    lost = [row for row in tables.subscriptions if row.id not in known]
    if lost:
        detail = f"{counted(len(lost), 'subscription')} of channel ids {sorted({row.id for row in lost})[:5]}"
        yield finding("sql-orphan-rows", detail, file="Subscriptions")
    numbers = {row.subid for row in tables.subscriptions}
    if strays := [row for row in tables.pending if row.subid not in numbers]:
        detail = f"{counted(len(strays), 'row')} of subscriptions {sorted({row.subid for row in strays})[:5]}"
        yield finding("sql-orphan-rows", detail, file="SubsPending")


def _message_findings(name: str, channel: bytes, rows: ChannelRows) -> Iterator[Finding]:
    yield from _rows_finding("sql-message-damaged", name, rows.undecodable.ranges)
    yield from _rows_finding("sql-message-null", name, rows.null.ranges)
    yield from _rows_finding("sql-sequence-differs", name, rows.sequence_differs.ranges)
    yield from _rows_finding("sql-timestamp-differs", name, rows.timestamp_differs.ranges)
    yield from _rows_finding("sql-size-differs", name, rows.size_differs.ranges)
    yield from _rows_finding("sql-subject-differs", name, rows.subject_differs(channel))
    yield from _rows_finding("sequence-missing", name, rows.named().holes())
    if more := rows.rows - rows.sequences.ranges.count():
        yield finding("sql-row-twice", counted(more, "row"), file="Messages", channel=name)


def _rows_finding(code: str, channel: str, sequences: Ranges) -> Iterator[Finding]:
    if sequences:
        detail = f"{counted(sequences.count(), 'message')}: {describe_sequences(sequences.pairs(), _RANGES)}"
        yield finding(code, detail, file="Messages", channel=channel, seq=sequences.first)


def _channel_findings(name: str, channel: SqlChannel) -> Iterator[Finding]:
    if channel.ahead > channel.rows.last and channel.rows.rows:
        detail = f"position {channel.ahead}, last message {channel.rows.last}"
        yield finding("sql-position-ahead", detail, file="Subscriptions", channel=name, seq=channel.ahead)
    if channel.unread:
        detail = f"{counted(channel.unread, 'subscription')} without a record"
        yield finding("sql-subscription-damaged", detail, file="Subscriptions", channel=name)
    for each in channel.subscriptions:
        if each.mixed:
            detail = f"subscription {each.state.id}"
            yield finding("sql-pending-mixed", detail, file="SubsPending", channel=name, seq=each.state.id)
        if each.pending != each.pending_by_row:
            again = sorted(set(each.pending) - set(each.pending_by_row))
            detail = f"subscription {each.state.id}: {counted(len(again), 'message')} acknowledged and pending again"
            yield finding("sql-pending-order", detail, file="SubsPending", channel=name, seq=each.state.id)


def forecast_sql(store: SqlStore, options: ServerOptions) -> list[tuple[Forecast, Forecast]]:
    """Returns the forecast for the version of the options, and for others with another outcome.

    Each comes twice, as for file stores: -file_truncate_bad_eof means nothing to a SQL store.
    """
    now = options.now_ns or time.time_ns()
    found = store.recovered(options.limits, now)
    first = _forecast(store, found, options, options.version)
    result = [(first, first)]
    for version in SERVER_VERSIONS:
        if version != options.version and found.start is SqlStart.EMPTY and store.tables.channels:
            other = _forecast(store, found, options, version)
            first.version_matters = True
            result.append((other, other))
    return result


def _forecast(store: SqlStore, found: SqlState, options: ServerOptions, version: str) -> Forecast:
    result = Forecast(version, False, log=["[INF] STREAM: Recovering the state..."])
    error = found.error
    if not error and found.start is SqlStart.EMPTY and store.tables.channels and version >= "0.25":
        error = "ServerInfo has no row, and Channels has some"
    cluster = text(found.server.cluster_id) if found.server else options.cluster_id
    if not error and cluster != options.cluster_id:
        error = cluster_id_error(options.cluster_id, cluster)
    if error:
        result.error, result.exit_code = error, 1
        result.log.append(f"[FTL] STREAM: Failed to start: {error}")
        return result
    result.starts, result.recovered = True, found.start is SqlStart.RECOVERED
    result.log.append(
        f"[INF] STREAM: Recovered {len(found.channels)} channel(s)"
        if result.recovered
        else "[INF] STREAM: No recovered state"
    )
    result.log += ["[INF] STREAM: Message store is SQL", "[INF] STREAM: Streaming Server is ready"]
    result.server_info = found.server
    result.clients = {each.id: each for each in found.clients}
    for channel in found.channels:
        name = text(channel.name)
        result.channels[name] = _channel_forecast(name, channel, options.limits.limits_for(name), result.clients)
        if removed := channel.removed & channel.rows.intact(channel.name):
            result.destroys.append(
                Loss(Harm.REMOVED, name, f"rows of {name} in Messages", sequences=removed, records=removed.count())
            )
    return result


def _channel_forecast(
    name: str, channel: SqlChannel, limits: ChannelLimits, clients: dict[bytes, pb.ClientInfo]
) -> ChannelForecast:
    rows, readable = channel.rows, channel.readable
    inside = Ranges.of([(channel.first_seq, channel.last_seq)])
    failing = rows.null_time.ranges & inside - channel.removed
    result = ChannelForecast(name, channel.first_seq, channel.last_seq, channel.count, channel.size)
    wrong = {seq: other for seq, other in rows.other_sequences.items() if seq in readable}
    result.lookups = Lookups(readable, failing, dict.fromkeys((seq for seq, _ in failing), _NULL_TIME), wrong)
    result.missing = inside - result.lookups.found()
    panics = channel.panics
    stops = [(panics.first, _PANIC)] if panics else []
    stops += [(failing.first, _NULL_TIME)] if failing else []
    if stops:
        result.stalls_at, result.stall_error = min(stops)
    result.delivered = list(delivered(result))
    result.limited = bool(channel.removed)
    result.endless = _endless(channel, limits)
    result.subscriptions = SubscriberList(_state(channel.subscriptions), clients, channel.first_seq, channel.last_seq)
    return result


def _endless(channel: SqlChannel, limits: ChannelLimits) -> str:
    """Describes the message for which a server searches for ever, once limits make it remove the messages before."""
    if channel.ahead > channel.rows.last or not channel.count:
        return ""
    full = 0 < limits.max_msgs <= channel.count or 0 < limits.max_bytes <= channel.size
    there = channel.rows.sequences.ranges - channel.removed
    bad = there.holes() | (channel.rows.sizes_of_zero.ranges & there)
    if not (full and bad):
        return ""
    return f"at sequence {bad.first}, as soon as messages published next make a limit remove those before it"
