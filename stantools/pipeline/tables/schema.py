"""Columns of every table, their types and meanings.

Spark's schemas, exported files and docs/pipeline-options.md are made from these.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from stantools.pipeline.tables.model import TableName

if TYPE_CHECKING:
    import pyarrow as pa

TIME: Final = "timestamp[us, tz=UTC]"
HEADERS: Final = "map<string, list<string>>"
_STORE = ("string", "the absolute path of the store, or its URL")
_CHANNEL = ("string", "the channel's name; bytes that are not UTF-8 are written as \\xNN")

#: type, as Arrow writes it, and meaning of each column
_COLUMNS: dict[TableName, dict[str, tuple[str, str]]] = {
    # One row per message, and one per damaged range in between (its `status` is not `ok`).
    TableName.MESSAGES: {
        "store": _STORE,
        "channel": _CHANNEL,
        "seq": ("int64", "sequence in the channel; of a damaged range its first one, if known"),
        "timestamp": (TIME, "time at which the server stored the message, in microseconds"),
        "timestamp_ns": ("int64", "the same time in nanoseconds since 1970"),
        "subject": ("string", "the subject in the record: the channel, unless the file was moved"),
        "reply": ("string", "reply subject; empty if none"),
        "data": ("binary", "the payload; decrypted if a key is given"),
        "size": ("int64", "bytes of the payload, or of the damaged range"),
        "slice": ("string", "path of the data file, relative to the store"),
        "offset": ("int64", "offset of the record, or of the damaged range, in the data file"),
        "status": ("string", "ok, or the kind of problem; see the guide"),
    },
    # One row per record of any file, as `stantools records` shows it; its values are json in `fields`.
    TableName.RECORDS: {
        "store": _STORE,
        "channel": ("string", "the channel; null for files of the whole store"),
        "file": ("string", "path relative to the store"),
        "offset": ("int64", "offset of the record"),
        "type": ("string", "type such as message, new or ack; for a damaged range its kind"),
        "size": ("int64", "bytes, header included"),
        "status": ("string", "ok, damaged or unreadable"),
        "stored_crc": ("int64", "the CRC stored in the file"),
        "computed_crc": ("int64", "the CRC of the bytes in the file"),
        "detail": ("string", "the problem"),
        "fields": ("string", "values of the record as json; payloads in base64"),
    },
    # One row per recovered subscription, and one per damaged file.
    TableName.SUBSCRIPTIONS: {
        "store": _STORE,
        "channel": _CHANNEL,
        "id": ("int64", "number within the channel"),
        "client_id": ("string", "the client; empty for a queue group without members"),
        "inbox": ("string", "subject of deliveries"),
        "ack_inbox": ("string", "subject of acknowledgements"),
        "durable_name": ("string", "name of the durable"),
        "queue_group": ("string", "name of the group; name:group for a durable one"),
        "is_durable": ("bool", "the subscription outlives its client"),
        "is_closed": ("bool", "the durable was closed, but not unsubscribed"),
        "max_in_flight": ("int32", "maximum number of unacknowledged messages"),
        "ack_wait_in_secs": ("int32", "seconds until redelivery"),
        "last_sent": ("int64", "last sequence sent"),
        "pending": ("list<int64>", "sequences sent and not acknowledged"),
        "pending_count": ("int64", "number of pending sequences"),
        "lag": ("int64", "messages of the channel not sent yet"),
        "status": (
            "string",
            "state after the server's recovery: active, offline durable, shadow, ghost or orphan; see the guide",
        ),
        "ghost": ("bool", "a member of a durable queue group of an unknown client"),
        "detail": ("string", "problem of a damaged or unreadable file"),
    },
    # One row per client, and one per damaged file.
    TableName.CLIENTS: {
        "store": _STORE,
        "id": ("string", "the client's id"),
        "hb_inbox": ("string", "subject of its heartbeats"),
        "conn_id": ("binary", "connection id"),
        "protocol": ("int32", "protocol version"),
        "ping_interval": ("int32", "seconds between its pings; negative: milliseconds"),
        "ping_max_out": ("int32", "unanswered pings after which the client gives up"),
        "registered": ("bool", "false: unknown to the server, but owner of subscriptions"),
        "subscriptions": ("int64", "number of its subscriptions"),
        "pending": ("int64", "messages sent to it and not acknowledged"),
        "status": ("string", "ok; damaged or unreadable for a row about a file"),
        "detail": ("string", "problem of that file"),
    },
    # One row per finding of `stantools verify`.
    TableName.FINDINGS: {
        "store": _STORE,
        "code": ("string", "stable name; see `stantools explain CODE`"),
        "severity": ("string", "error, warning or info"),
        "file": ("string", "path relative to the store"),
        "offset": ("int64", "offset in the file"),
        "length": ("int64", "number of bytes"),
        "channel": ("string", "the affected channel"),
        "seq": ("int64", "the first affected sequence"),
        "detail": ("string", "description"),
        "remedy": ("string", "remedy"),
    },
    # One row per slice, from its index if that can be trusted.
    TableName.SLICES: {
        "store": _STORE,
        "channel": _CHANNEL,
        "slice": ("string", "path of the data file, relative to the store"),
        "number": ("int64", "the N of msgs.N.dat"),
        "archived": ("bool", "a .bak slice"),
        "first_seq": ("int64", "sequence of the first message"),
        "last_seq": ("int64", "sequence of the last message"),
        "first_timestamp": (TIME, "time at which the first message was stored"),
        "last_timestamp": (TIME, "time at which the last message was stored"),
        "messages": ("int64", "messages in it"),
        "bytes": ("int64", "size of the messages as the server counts it: the records plus 40 bytes each"),
        "data_size": ("int64", "bytes of the data file"),
        "index_size": ("int64", "bytes of the index; 0 without one"),
        "source": ("string", "source of the values: index, scan (the index cannot be trusted) or nothing"),
        "encrypted": ("bool", "the payloads seem to be encrypted"),
        "problems": ("list<string>", "problems of its files"),
    },
    # One row per intact message of a JetStream directory; then one per damaged or missing part of each stream.
    TableName.STREAM_MESSAGES: {
        "store": ("string", "the absolute path of the directory"),
        "account": ("string", "account of the stream"),
        "stream": ("string", "name of the stream"),
        "sequence": ("int64", "sequence in the stream; of a damaged or missing part its first one, if known"),
        "subject": ("string", "subject of the message"),
        "headers": (HEADERS, "values of each header, by name"),
        "time": (TIME, "time at which the server stored the message, in microseconds"),
        "time_ns": ("int64", "the same time in nanoseconds since 1970"),
        "payload": ("binary", "the payload"),
        "size": ("int64", "bytes of the payload, or of the damaged part"),
        "block": ("string", "path of the block, relative to the stream"),
        "offset": ("int64", "offset of the record, or of the damaged part, in the plain content of the block"),
        "state": ("string", "ok, damaged, missing, unreadable, or the code of a finding"),
    },
}

MEANINGS = {table: {name: text for name, (_, text) in columns.items()} for table, columns in _COLUMNS.items()}


def column_names(table: TableName) -> tuple[str, ...]:
    return tuple(_COLUMNS[table])


@cache
def schema_of(table: TableName, columns: tuple[str, ...] = ()) -> pa.Schema:
    """Returns the schema of the named columns, in their order; of all columns without names. Loads pyarrow."""
    import pyarrow as pa

    types = {
        TIME: pa.timestamp("us", tz="UTC"),
        HEADERS: pa.map_(pa.string(), pa.list_(pa.string())),
        "list<int64>": pa.list_(pa.int64()),
        "list<string>": pa.list_(pa.string()),
    }
    of = {name: kind for name, (kind, _) in _COLUMNS[table].items()}
    return pa.schema([pa.field(name, types.get(of[name], of[name])) for name in columns or of])
