"""Columns of every table, their types and meanings.

Spark's schemas, exported files and docs/pipeline-options.md are made from these.
"""

from __future__ import annotations

from collections.abc import Sequence

from stantools.pipeline.tables.arrow import pa
from stantools.pipeline.tables.model import TableName

TIME = pa.timestamp("us", tz="UTC")
_STORE = (pa.string(), "the store, as given or found")
_CHANNEL = (pa.string(), "the channel's name; bytes that are not UTF-8 are written as \\xNN")

_COLUMNS: dict[TableName, dict[str, tuple[pa.DataType, str]]] = {
    # One row per message, and one per damaged range in between (its `status` is not `ok`).
    TableName.MESSAGES: {
        "store": _STORE,
        "channel": _CHANNEL,
        "seq": (pa.int64(), "sequence in the channel; of a damaged range its first one, if known"),
        "timestamp": (TIME, "time at which the server stored the message, in microseconds"),
        "timestamp_ns": (pa.int64(), "the same time in nanoseconds since 1970"),
        "subject": (pa.string(), "the subject in the record: the channel, unless the file was moved"),
        "reply": (pa.string(), "reply subject; empty if none"),
        "data": (pa.binary(), "the payload; decrypted if a key is given"),
        "size": (pa.int64(), "bytes of the payload, or of the damaged range"),
        "slice": (pa.string(), "path of the data file, relative to the store"),
        "offset": (pa.int64(), "offset of the record, or of the damaged range, in the data file"),
        "status": (pa.string(), "ok, or the kind of problem; see the guide"),
    },
    # One row per record of any file, as `stantools records` shows it; its values are json in `fields`.
    TableName.RECORDS: {
        "store": _STORE,
        "channel": (pa.string(), "the channel; null for files of the whole store"),
        "file": (pa.string(), "path relative to the store"),
        "offset": (pa.int64(), "offset of the record"),
        "type": (pa.string(), "type such as message, new or ack; for a damaged range its kind"),
        "size": (pa.int64(), "bytes, header included"),
        "status": (pa.string(), "ok, damaged or unreadable"),
        "stored_crc": (pa.int64(), "the CRC stored in the file"),
        "computed_crc": (pa.int64(), "the CRC of the bytes in the file"),
        "detail": (pa.string(), "the problem"),
        "fields": (pa.string(), "values of the record as json; payloads in base64"),
    },
    # One row per recovered subscription, and one per damaged file.
    TableName.SUBSCRIPTIONS: {
        "store": _STORE,
        "channel": _CHANNEL,
        "id": (pa.int64(), "number within the channel"),
        "client_id": (pa.string(), "the client; empty for a queue group without members"),
        "inbox": (pa.string(), "subject of deliveries"),
        "ack_inbox": (pa.string(), "subject of acknowledgements"),
        "durable_name": (pa.string(), "name of the durable"),
        "queue_group": (pa.string(), "name of the group; name:group for a durable one"),
        "is_durable": (pa.bool_(), "the subscription outlives its client"),
        "is_closed": (pa.bool_(), "the durable was closed, but not unsubscribed"),
        "max_in_flight": (pa.int32(), "maximum number of unacknowledged messages"),
        "ack_wait_in_secs": (pa.int32(), "seconds until redelivery"),
        "last_sent": (pa.int64(), "last sequence sent"),
        "pending": (pa.list_(pa.int64()), "sequences sent and not acknowledged"),
        "pending_count": (pa.int64(), "number of pending sequences"),
        "lag": (pa.int64(), "messages of the channel not sent yet"),
        "status": (
            pa.string(),
            "state after the server's recovery: active, offline durable, shadow, ghost or orphan; see the guide",
        ),
        "ghost": (pa.bool_(), "a member of a durable queue group of an unknown client"),
        "detail": (pa.string(), "problem of a damaged or unreadable file"),
    },
    # One row per client, and one per damaged file.
    TableName.CLIENTS: {
        "store": _STORE,
        "id": (pa.string(), "the client's id"),
        "hb_inbox": (pa.string(), "subject of its heartbeats"),
        "conn_id": (pa.binary(), "connection id"),
        "protocol": (pa.int32(), "protocol version"),
        "ping_interval": (pa.int32(), "seconds between its pings; negative: milliseconds"),
        "ping_max_out": (pa.int32(), "unanswered pings after which the client gives up"),
        "registered": (pa.bool_(), "false: unknown to the server, but owner of subscriptions"),
        "subscriptions": (pa.int64(), "number of its subscriptions"),
        "pending": (pa.int64(), "messages sent to it and not acknowledged"),
        "status": (pa.string(), "ok; damaged or unreadable for a row about a file"),
        "detail": (pa.string(), "problem of that file"),
    },
    # One row per finding of `stantools verify`.
    TableName.FINDINGS: {
        "store": _STORE,
        "code": (pa.string(), "stable name; see `stantools explain CODE`"),
        "severity": (pa.string(), "error, warning or info"),
        "file": (pa.string(), "path relative to the store"),
        "offset": (pa.int64(), "offset in the file"),
        "length": (pa.int64(), "number of bytes"),
        "channel": (pa.string(), "the affected channel"),
        "seq": (pa.int64(), "the first affected sequence"),
        "detail": (pa.string(), "description"),
        "remedy": (pa.string(), "remedy"),
    },
    # One row per slice, from its index if that can be trusted.
    TableName.SLICES: {
        "store": _STORE,
        "channel": _CHANNEL,
        "slice": (pa.string(), "path of the data file, relative to the store"),
        "number": (pa.int64(), "the N of msgs.N.dat"),
        "archived": (pa.bool_(), "a .bak slice"),
        "first_seq": (pa.int64(), "sequence of the first message"),
        "last_seq": (pa.int64(), "sequence of the last message"),
        "first_timestamp": (TIME, "time at which the first message was stored"),
        "last_timestamp": (TIME, "time at which the last message was stored"),
        "messages": (pa.int64(), "messages in it"),
        "bytes": (pa.int64(), "size of the messages as the server counts it: the records plus 40 bytes each"),
        "data_size": (pa.int64(), "bytes of the data file"),
        "index_size": (pa.int64(), "bytes of the index; 0 without one"),
        "source": (pa.string(), "source of the values: index, scan (the index cannot be trusted) or nothing"),
        "encrypted": (pa.bool_(), "the payloads seem to be encrypted"),
        "problems": (pa.list_(pa.string()), "problems of its files"),
    },
}

SCHEMAS: dict[TableName, pa.Schema] = {
    table: pa.schema([pa.field(name, kind) for name, (kind, _) in columns.items()])
    for table, columns in _COLUMNS.items()
}


def schema_of(table: TableName, columns: Sequence[str] = ()) -> pa.Schema:
    """Returns the schema of the named columns, in their order; of all columns without names."""
    whole = SCHEMAS[table]
    return pa.schema([whole.field(name) for name in columns]) if columns else whole


MEANINGS = {table: {name: text for name, (_, text) in columns.items()} for table, columns in _COLUMNS.items()}
