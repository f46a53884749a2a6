"""The start of a server on a SQL store: the state it recovers, or the error with which it ends.

Rules: sql-stores.md section 4, in its order. Nothing is changed; what the server would change is told.
"""

from __future__ import annotations

import enum
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from stantools.escaping import text
from stantools.format.gogo import DecodeError, decode, decode_partly
from stantools.format.proto import store_pb2 as pb
from stantools.sqlstore.message_scan import ChannelRows, MessageScan
from stantools.sqlstore.tables import ChannelRow, ClientsRow, PendingRow, StoreTables, SubscriptionsRow
from stantools.store.limits import ChannelLimits, StoreLimits
from stantools.store.ranges import Ranges

#: the only version of a store
VERSION: Final = 1
_EMPTY_ROWS: Final = ChannelRows(0)


#: sequence, size and timestamp of a row
KeptRow = tuple[int, int, int]
#: reads them for some channels
RowsOf = Callable[[Collection[int]], Mapping[int, list[KeptRow]]]


class SqlStart(enum.Enum):
    RECOVERED = "recovered"
    EMPTY = "empty"  #: without a ServerInfo row, the server takes the store for a new one
    REFUSED = "refused"


@dataclass
class SqlSubscription:
    state: pb.SubState
    pending: list[int]  #: as the server with the database's order of rows, ascending
    pending_by_row: list[int]  #: when SubsPending is taken in the order of `row`, as MySQL gives it
    mixed: bool = False  #: rows of both kinds: acknowledgements may be lost (sql-stores.md section 3)


@dataclass
class SqlChannel:
    row: ChannelRow
    rows: ChannelRows
    first_seq: int = 0
    last_seq: int = 0
    count: int = 0
    size: int = 0  #: sum of the sizes of its messages
    subscriptions: list[SqlSubscription] = field(default_factory=list)
    #: A subscription or `maxseq` is beyond the last row: readers find the channel empty.
    ahead: int = 0
    removed: Ranges = field(default_factory=Ranges)  #: rows that a start removes by limits
    unread: int = 0  #: subscriptions without a proto

    @property
    def name(self) -> bytes:
        return self.row.name

    @property
    def readable(self) -> Ranges:
        """Sequences that the server looks up with success, whatever their data is."""
        there = self.rows.sequences.ranges & Ranges.of([(self.first_seq, self.last_seq)])
        return there - self.removed - self.rows.null_time.ranges

    @property
    def panics(self) -> Ranges:
        """Sequences whose delivery ends the server."""
        return self.readable & self.rows.empty.ranges


@dataclass
class SqlState:
    start: SqlStart
    error: str = ""
    server: pb.ServerInfo | None = None
    clients: list[pb.ClientInfo] = field(default_factory=list)
    channels: list[SqlChannel] = field(default_factory=list)  #: in the order of their rows
    hidden: list[ChannelRow] = field(default_factory=list)  #: rows of names that a later row has as well
    stale_pending: int = 0  #: SubsPending rows that the start removes
    #: Rows that a server refuses, each with its text; they are left out. None of them where a server recovers.
    refused: list[tuple[str, str]] = field(default_factory=list)


class _RowRefusedError(Exception):
    pass


def recover(
    tables: StoreTables,
    scan: MessageScan,
    *,
    limits: StoreLimits | None = None,
    now_ns: int = 0,
    caching: bool = True,
    tolerant: bool = False,
    rows_of: RowsOf | None = None,
) -> SqlState:
    """Returns the state that a server recovers.

    With `limits`, those of the server are applied at `now_ns`; `rows_of` reads the rows of channels that they shorten.
    `caching`: without -sql_no_caching. `tolerant` leaves out rows that a server refuses, and uses
    everything that is intact, even if a server would not.
    """
    result = SqlState(SqlStart.RECOVERED)
    try:
        _Recovery(tables, scan, limits, now_ns, caching, tolerant, rows_of, result).run()
    except _RowRefusedError as error:
        result.start, result.error = SqlStart.REFUSED, str(error)
    return result


class _Recovery:
    def __init__(
        self,
        tables: StoreTables,
        scan: MessageScan,
        limits: StoreLimits | None,
        now_ns: int,
        caching: bool,
        tolerant: bool,
        rows_of: RowsOf | None,
        result: SqlState,
    ) -> None:
        self._tables, self._scan, self._limits, self._now = tables, scan, limits, now_ns
        self._caching, self._tolerant, self._result = caching, tolerant, result
        self._kept: Mapping[int, list[KeptRow]] = {}
        if limits and rows_of:
            shortened = [row.id for row in tables.channels if not row.deleted and _shortens(limits, row)]
            self._kept = rows_of(shortened) if shortened else {}
        self._pending: dict[int, list[PendingRow]] = defaultdict(list)
        for pending in tables.pending:
            self._pending[pending.subid].append(pending)
        self._subscriptions: dict[int, list[SubscriptionsRow]] = defaultdict(list)
        for subscription in tables.subscriptions:
            if not subscription.deleted:
                self._subscriptions[subscription.id].append(subscription)

    def _refuse(self, place: str, text: str) -> None:
        if not self._tolerant:
            raise _RowRefusedError(text)
        self._result.refused.append((place, text))

    def _server(self) -> pb.ServerInfo | None:
        row = self._tables.server[0]
        if row.version != VERSION:
            self._refuse(
                "ServerInfo", f"sql: unsupported version: {row.version or 0} (supports [{VERSION}..{VERSION}])"
            )
        info, error = decode_partly(pb.ServerInfo, row.proto or b"")
        if error:
            self._refuse("ServerInfo", error)
            return None
        if info.cluster_id != (row.id):
            column, data = (each.decode(errors="replace") for each in (row.id, info.cluster_id))
            text = f'sql: id "{column}" in column does not match cluster ID in data "{data}"'
            self._refuse("ServerInfo", text)
        return info

    def _client(self, row: ClientsRow) -> pb.ClientInfo:
        columns = pb.ClientInfo(id=row.id, hb_inbox=row.hbinbox)
        if not row.proto:
            return columns
        info, _ = decode_partly(pb.ClientInfo, row.proto)
        return columns if self._tolerant and not (info.id and info.hb_inbox) else info

    def run(self) -> None:
        if self._tables.server:
            self._result.server = self._server()
        elif not self._tolerant:
            self._result.start = SqlStart.EMPTY
            return
        self._result.clients = list(map(self._client, self._tables.clients))
        by_name: dict[bytes, SqlChannel] = {}
        for row in self._tables.channels:
            if row.deleted:
                continue
            channel = self._channel(row)
            if row.name in by_name:
                self._result.hidden.append(by_name[row.name].row)
                if self._tolerant:
                    channel.subscriptions += by_name[row.name].subscriptions
            by_name[row.name] = channel
        self._result.channels = list(by_name.values())

    def _channel(self, row: ChannelRow) -> SqlChannel:
        rows = self._scan.channels.get(row.id, _EMPTY_ROWS)
        channel = SqlChannel(row, rows, rows.first, rows.last, rows.rows, rows.size)
        highest = max(row.maxseq, rows.last)
        if self._limits and row.id in self._kept:
            _limit(channel, _limits_of(self._limits, row), sorted(self._kept[row.id]), self._now)
        if channel.size < 0:
            self._refuse(f"Messages of {row.name.decode(errors='replace')}", _negative_sum(channel.size))
        last_sent = 0
        for each in self._subscriptions.get(row.id, ()):
            last_sent = max(last_sent, each.lastsent)
            if each.proto is None:
                channel.unread += 1
                continue
            subscription = self._subscription(each, channel.first_seq)
            if subscription is None:
                continue
            last_sent = max(last_sent, subscription.state.last_sent)
            channel.subscriptions.append(subscription)
        beyond = max(last_sent, highest)
        if beyond > channel.last_seq:
            channel.ahead = beyond
            channel.first_seq, channel.last_seq = beyond + 1, beyond
        return channel

    def _subscription(self, row: SubscriptionsRow, first: int) -> SqlSubscription | None:
        try:
            state = decode(pb.SubState, row.proto or b"")
        except DecodeError as error:
            self._refuse(f"Subscriptions {row.subid}", str(error))
            return None
        rows = self._pending.get(state.id, [])
        highest = max((max(each.seq, each.lastsent) for each in rows), default=0)
        state.last_sent = max(row.lastsent, state.last_sent, highest)
        lists = [(each, self._list(each, each.pending), self._list(each, each.acks)) for each in rows]
        pending = _pending(lists)
        by_row = _pending(sorted(lists, key=lambda each: each[0].row))
        if not self._caching and first:
            stale = {each.seq for each in rows if 0 < each.seq < first}
            self._result.stale_pending += len(stale)
            pending = sorted(set(pending) - stale)
        kinds = {each.seq > 0 for each in rows}
        return SqlSubscription(state, pending, by_row, mixed=len(kinds) > 1)

    def _list(self, row: PendingRow, content: bytes | None) -> list[int]:
        """Returns the sequences of a list; refuses anything else."""
        if not content:
            return []
        try:
            found = json.loads(content)
        except ValueError as error:
            at = getattr(error, "pos", 0)
            text = "unexpected end of JSON input" if at >= len(content.rstrip()) else f"invalid JSON: {error}"
        else:
            if isinstance(found, list) and all(isinstance(each, int) and each >= 0 for each in found):
                return found
            text = "json: cannot unmarshal a value that is no list of sequences"
        self._refuse(f"SubsPending {row.subid}, row {row.row}", text)
        return []


def _pending(rows: Iterable[tuple[PendingRow, list[int], list[int]]]) -> list[int]:
    """Returns what rows leave pending, each with its lists of pending and of acknowledged sequences."""
    found: set[int] = set()
    for row, pending, acks in rows:
        if row.seq > 0:
            found.add(row.seq)
            continue
        found.update(pending)
        found.difference_update(acks)
    return sorted(found)


def _negative_sum(value: int) -> str:
    return (
        'sql: error executing "SELECT COUNT(seq), COALESCE(MIN(seq), 0), COALESCE(MAX(seq), 0), '
        'COALESCE(SUM(size), 0), COALESCE(MAX(timestamp), 0) FROM Messages WHERE id=$1": sql: Scan error on column '
        f'index 3, name "coalesce": converting driver.Value type int64 ("{value}") to a uint64: invalid syntax'
    )


def _limits_of(limits: StoreLimits, row: ChannelRow) -> ChannelLimits:
    return limits.limits_for(text(row.name))


def _shortens(limits: StoreLimits, row: ChannelRow) -> bool:
    own = _limits_of(limits, row)
    return own.max_age_ns > 0 or 0 < own.max_msgs < row.maxmsgs or 0 < own.max_bytes < row.maxbytes


def _limit(channel: SqlChannel, limits: ChannelLimits, rows: list[KeptRow], now_ns: int) -> None:
    """Removes messages by limits: by age always, by number and bytes only if the limit was lowered."""
    if limits.max_age_ns:
        expired = max((seq for seq, _, time in rows if time <= now_ns - limits.max_age_ns), default=0)
        rows = [each for each in rows if each[0] > expired]
    if 0 < limits.max_msgs < channel.row.maxmsgs:
        rows = rows[-limits.max_msgs :]
    if 0 < limits.max_bytes < channel.row.maxbytes:
        size = 0
        for place in range(len(rows) - 1, -1, -1):
            size += rows[place][1]
            if size > limits.max_bytes and place < len(rows) - 1:
                rows = rows[place + 1 :]
                break
    there = Ranges.of([(seq, seq) for seq, _, _ in rows])
    channel.removed = channel.rows.sequences.ranges - there
    channel.count, channel.size = len(rows), sum(size for _, size, _ in rows)
    channel.first_seq, channel.last_seq = (rows[0][0], rows[-1][0]) if rows else (0, 0)
