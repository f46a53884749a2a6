"""The tables other than messages: raw records, subscriptions, clients, findings and slices of stores.

Each has a function that yields the rows of one part of a store, as the local verb shows them: `stantools records`,
`subs`, `clients`, `verify` and `info`. A row maps column names to values. Speed does not matter: these tables have a
row per subscription, finding or slice, and the one of raw records serves for looking at single files.

A damaged file makes a row of its own, so that its intact rows are not taken for all of it.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stantools.errors import StoreUnreadableError
from stantools.escaping import fill_in, store_names
from stantools.format.crc import Crc
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.inspection.records import kind_of, read_records
from stantools.inspection.runs import arrange
from stantools.inspection.slicesummary import channel_ends, summarise
from stantools.inspection.subscribers import FoldedLog, Subscriber, SubscriberList, load_clients, load_subs
from stantools.inspection.survey import ChannelSurvey, survey_slice
from stantools.inspection.survey_jobs import survey_channels
from stantools.inspection.verify import loose_findings, registered_clients, verify_channel, verify_root
from stantools.notation import counted
from stantools.pipeline.tables.listing import LocalPlace
from stantools.pipeline.tables.model import FailedRead, Mode, StorePart, TableName, plain_text
from stantools.pipeline.tables.remote import is_remote
from stantools.pipeline.tables.schema import schema_of
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.clientlog import ClientsState
from stantools.store.directory import (
    CLIENTS_FILE,
    SLICE_NAME,
    SUBS_FILE,
    ChannelFiles,
    Datastore,
    SliceFiles,
    list_channel,
    open_datastore,
    size_of,
    slice_number,
)
from stantools.store.mapping import mapped
from stantools.store.sublog import SubStatus

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]

_REMEDY = "the rows cover only its intact part; `stantools verify` lists the damage"
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class LocalPart:
    part: StorePart  #: the part, named as in the table
    root: Path  #: directory with the store's files, or with a copy of the needed ones
    options: TableOptions
    clients: KnownClients

    @property
    def store(self) -> str:
        return plain_text(self.part.store.root)

    @property
    def crc(self) -> Crc:
        return Crc(self.part.store.polynomial, self.options.check_crc)

    @property
    def file(self) -> Path:
        assert self.part.file is not None
        return self.root / self.part.file

    def channel(self) -> ChannelFiles:
        assert self.part.channel is not None
        return list_channel(self.root / self.part.channel)

    def damaged(self, file: str, problems: Iterable[str], channel: str | None = None) -> Iterator[FailedRead]:
        """Yields the problems of a file whose intact part makes rows."""
        root = self.part.store.root
        for problem in problems:
            complete = problem.startswith(root)  # the whole file cannot be read
            message = problem if complete else f"{root}/{file}: {problem}"
            yield FailedRead(root, message, _REMEDY, channel, file, damaged=not complete)

    def directories(self) -> list[Path]:
        entries = LocalPlace().entries(str(self.root))
        return [self.root / entry.name for entry in entries if entry.directory and not entry.link]


class KnownClients:
    """Clients of the stores of one task: each clients.dat is folded once, on first use."""

    def __init__(self) -> None:
        self._recovered: tuple[Path, FoldedLog[ClientsState]] | None = None

    def recovered(self, root: Path, crc: Crc) -> FoldedLog[ClientsState]:
        if self._recovered is None or self._recovered[0] != root:
            path = root / CLIENTS_FILE
            self._recovered = root, load_clients(path if path.exists() else None, crc)
        return self._recovered[1]


def batches(rows: Iterable[Row], options: TableOptions) -> Iterator[pa.RecordBatch]:
    """Converts rows into Arrow batches with the selected columns; columns that a row lacks are null."""
    schema = schema_of(options.table, options.columns)
    pending: list[Row] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += len(row.get("fields") or "")
        if len(pending) >= options.batch_rows or size >= options.batch_bytes:
            yield _batch(pending, schema)
            pending, size = [], 0
    if pending:
        yield _batch(pending, schema)


def _batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def int64(value: int | None) -> int | None:
    """Returns None for a number that does not fit into the column."""
    return value if value is not None and -_INT64_MAX - 1 <= value <= _INT64_MAX else None


def _records(local_part: LocalPart) -> Iterator[Row]:
    """Yields the raw records of one file, and every range of bytes without a record.

    `status` is `ok`, `damaged`, or `unreadable` for a file that cannot be opened; the `type` of damage is its kind.
    `fields` holds the values of the record as json, payloads in base64.
    """
    options, part = local_part.options, local_part.part
    kind = kind_of(local_part.file.name)
    assert kind is not None
    base = {"store": local_part.store, "channel": plain_text(part.channel), "file": plain_text(part.file)}
    channel = b"" if part.channel is None else os.fsencode(part.channel)
    wants_fields = not options.columns or "fields" in options.columns
    try:
        with mapped(local_part.file, sequential=True) as buffer:
            for record in read_records(buffer, kind, local_part.crc, channel=channel):
                if not record.ok and options.mode is not Mode.PERMISSIVE:
                    if options.mode is Mode.DROPMALFORMED:
                        continue
                    raise _DamagedError(
                        f"{local_part.file}: damaged at offset {record.offset}, {counted(record.length, 'byte')}: "
                        f"{record.detail or record.type}",
                        "use mode PERMISSIVE to see it as a row, or look at it with `stantools records FILE`",
                    )
                yield {
                    **base,
                    "offset": record.offset,
                    "type": record.type,
                    "size": record.length,
                    "status": "ok" if record.ok else "damaged",
                    "stored_crc": int64(record.crc),
                    "computed_crc": int64(record.computed),
                    "detail": plain_text(record.detail),
                    "fields": _json(record.fields) if wants_fields else None,
                }
    except _DamagedError:
        raise
    except StoreUnreadableError as error:
        if options.mode is Mode.FAILFAST:
            raise
        if options.mode is Mode.PERMISSIVE:
            yield {**base, "status": "unreadable", "detail": plain_text(error.message)}


class _DamagedError(StoreUnreadableError):
    """Damage to a record, which is an error in mode FAILFAST only."""


def _json(fields: dict[str, Any]) -> str:
    return json.dumps({name: _plain(value) for name, value in fields.items()}, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode("ascii")
    return plain_text(value) if isinstance(value, str) else value


def _subscriptions(local_part: LocalPart) -> Iterator[Row | FailedRead]:
    """Yields the subscriptions of one channel, and the problems of clients.dat and subs.dat."""
    crc = local_part.crc
    clients = local_part.clients.recovered(local_part.root, crc)
    if local_part.part.channel is None:
        yield from local_part.damaged(CLIENTS_FILE, clients.problems)
        return
    files = local_part.channel()
    subs = load_subs(files.subs or files.path / SUBS_FILE, crc, files.subs_seen)
    yield from local_part.damaged(f"{local_part.part.channel}/{SUBS_FILE}", subs.problems, local_part.part.channel)
    if not subs.state.subscriptions:
        return
    first, last = channel_ends(files.slices, files.raw_name, crc)
    base = {"store": local_part.store, "channel": plain_text(local_part.part.channel)}
    for each in SubscriberList(subs.state, clients.state.clients, first, last):
        yield base | _subscription_row(each)


def _subscription_row(each: Subscriber) -> Row:
    state = each.state
    return {
        "id": int64(state.id),
        "client_id": plain_text(state.client_id),
        "inbox": plain_text(state.inbox),
        "ack_inbox": plain_text(state.ack_inbox),
        "durable_name": plain_text(state.durable_name),
        "queue_group": plain_text(state.q_group),
        "is_durable": state.is_durable,
        "is_closed": state.is_closed,
        "max_in_flight": state.max_in_flight,
        "ack_wait_in_secs": state.ack_wait_in_secs,
        "last_sent": int64(state.last_sent),
        "pending": [int64(sequence) for sequence in each.pending],
        "pending_count": len(each.pending),
        "lag": int64(each.lag),
        "status": each.status.value,
        "ghost": each.status is SubStatus.GHOST,
    }


def _clients(local_part: LocalPart) -> Iterator[Row | FailedRead]:
    """Yields the clients of clients.dat, the unregistered owners of subscriptions, and the problems of these files."""
    clients = local_part.clients.recovered(local_part.root, local_part.crc)
    yield from local_part.damaged(CLIENTS_FILE, clients.problems)
    owned: Counter[bytes] = Counter()
    pending: Counter[bytes] = Counter()
    for directory in local_part.directories():
        path, channel = directory / SUBS_FILE, directory.name
        if not os.path.lexists(path) and os.access(directory, os.X_OK):
            continue
        subs = load_subs(path, local_part.crc)
        yield from local_part.damaged(f"{channel}/{SUBS_FILE}", subs.problems, channel)
        for each in subs.state.subscriptions.values():
            owned[each.state.client_id] += 1
            pending[each.state.client_id] += len(each.pending)
    for name, info in clients.state.clients.items():
        yield {
            "store": local_part.store,
            "id": plain_text(info.id),
            "hb_inbox": plain_text(info.hb_inbox),
            "conn_id": info.conn_id,
            "protocol": info.protocol,
            "ping_interval": info.ping_interval,
            "ping_max_out": info.ping_max_out,
            "registered": True,
            "subscriptions": owned.pop(name, 0),
            "pending": pending[name],
            "status": "ok",
        }
    for name in sorted(owned):
        if name:
            yield {
                "store": local_part.store,
                "id": plain_text(name),
                "hb_inbox": "",
                "conn_id": b"",
                "protocol": 0,
                "ping_interval": 0,
                "ping_max_out": 0,
                "registered": False,
                "subscriptions": owned[name],
                "pending": pending[name],
                "status": "ok",
            }


def _findings(local_part: LocalPart) -> Iterator[Row]:
    """Yields the findings of a store's root, of a channel, or of a slice without a store."""
    for each in _found(local_part):
        yield finding_row(local_part.part.store.root, each)


def unreadable_finding(part: FailedRead) -> Row:
    return finding_row(part.root, finding("file-unreadable", part.message, file=part.file, channel=part.channel))


def finding_row(root: str, each: Finding) -> Row:
    """Returns the row of a finding; commands in its remedy name this store, unless they cannot read it."""
    names: dict[str, str] = {}
    if not is_remote(root):
        places = {"CHANNEL": each.channel, "FILE": each.file and os.path.join(root, each.file)}  # noqa: PTH118
        names = {**store_names(root), **{word: place for word, place in places.items() if place}}
    return {
        "store": plain_text(root),
        "code": each.code,
        "severity": each.severity.value,
        "file": plain_text(each.file),
        "offset": int64(each.offset),
        "length": int64(each.length),
        "channel": plain_text(each.channel),
        "seq": int64(each.seq),
        "detail": plain_text(each.detail),
        "remedy": plain_text(fill_in(each.remedy, names)),
    }


def _found(local_part: LocalPart) -> list[Finding]:
    crc = local_part.crc
    if local_part.part.channel is None:
        return verify_root(open_datastore(local_part.root, crc)).findings
    if local_part.part.file is not None:
        return list(_slice_findings(local_part))
    (survey,) = survey_channels(Datastore(local_part.root, crc=crc), [local_part.part.channel], workers=1)
    return verify_channel(local_part.root, survey, crc, registered_clients(local_part.root, crc)).findings


def _slice_findings(local_part: LocalPart) -> Iterator[Finding]:
    """Yields the findings of a slice without a store: of itself, its index and its sequences."""
    assert local_part.part.channel is not None
    files = slice_files(local_part.file)
    survey = survey_slice(files, os.fsencode(local_part.part.channel), local_part.crc)
    channel = ChannelSurvey(ChannelFiles(local_part.part.channel, local_part.root, [files]), [survey])
    try:
        yield from loose_findings(local_part.root, channel, arrange(channel.own_runs(), local_part.crc))
    except StoreUnreadableError as error:
        yield finding("file-unreadable", error.message, file=str(Path(local_part.part.file or "")))


def _slices(local_part: LocalPart) -> Iterator[Row]:
    """Yields the row of one slice, from its index if that can be trusted. Never raises for the content of its files."""
    part = local_part.part
    assert part.channel is not None
    files = slice_files(local_part.file)
    summary = summarise(files, os.fsencode(part.channel), local_part.crc)
    filled = summary.count > 0
    yield {
        "store": local_part.store,
        "channel": plain_text(part.channel),
        "slice": plain_text(part.file),
        "number": files.number,
        "archived": files.archived,
        "first_seq": int64(summary.first_seq) if filled else None,
        "last_seq": int64(summary.last_seq) if filled else None,
        "first_timestamp": summary.first_timestamp // 1000 if filled else None,
        "last_timestamp": summary.last_timestamp // 1000 if filled else None,
        "messages": summary.count,
        "bytes": summary.bytes,
        "data_size": files.data_size,
        "index_size": files.index_size,
        "source": summary.source.value,
        "encrypted": summary.encrypted,
        "problems": [plain_text(problem) for problem in summary.problems],
    }


def slice_files(data: Path) -> SliceFiles:
    match = SLICE_NAME.fullmatch(data.name)
    number = slice_number(match[1]) if match else None
    if match is None or number is None:
        raise StoreUnreadableError(f"{data}: is not a message slice", "name a file msgs.N.dat or msgs.N.dat.bak")
    index = data.with_name(f"msgs.{number}.idx{match[2] or ''}")
    return SliceFiles(
        number, data, index if index.exists() else None, match[2] is not None, size_of(data), size_of(index)
    )


#: functions that yield the rows of a table
READERS = {
    TableName.RECORDS: _records,
    TableName.SUBSCRIPTIONS: _subscriptions,
    TableName.CLIENTS: _clients,
    TableName.FINDINGS: _findings,
    TableName.SLICES: _slices,
}
