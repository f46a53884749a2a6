"""The columns of every table, their types and what they mean.

Spark's schemas, exported files and docs/pipeline-options.md are made from these.
"""

from __future__ import annotations

from collections.abc import Sequence

from stantools.pipeline.tables.arrow import pa
from stantools.pipeline.tables.model import Table

TIME = pa.timestamp("us", tz="UTC")
_STORE = (pa.string(), "the store, as it was given or found")
_CHANNEL = (pa.string(), "the channel's name; bytes that are not UTF-8 are written as \\xNN")

_COLUMNS: dict[Table, dict[str, tuple[pa.DataType, str]]] = {
    # One row a message, and one for each damaged range in between (its `status` is not `ok`).
    Table.MESSAGES: {
        "store": _STORE,
        "channel": _CHANNEL,
        "seq": (pa.int64(), "sequence in the channel; of a damaged place what was there, if that is known"),
        "timestamp": (TIME, "when the server stored the message, to the microsecond"),
        "timestamp_ns": (pa.int64(), "the same in nanoseconds since 1970"),
        "subject": (pa.string(), "the subject in the record: the channel, but for files that were moved"),
        "reply": (pa.string(), "reply subject, empty if there is none"),
        "data": (pa.binary(), "the payload, decrypted if there is a key"),
        "size": (pa.int64(), "bytes of the payload; of a damaged place the bytes of the range"),
        "slice": (pa.string(), "path of the data file, from the store on"),
        "offset": (pa.int64(), "where the record, or the damaged place, begins in it"),
        "status": (pa.string(), "ok, or what is wrong; see the guide"),
    },
    # One row a record of any file, as `stantools records` shows it; what a record says is json in `fields`.
    Table.RECORDS: {
        "store": _STORE,
        "channel": (pa.string(), "the channel; null in files of the whole store"),
        "file": (pa.string(), "path from the store on"),
        "offset": (pa.int64(), "where the record begins"),
        "type": (pa.string(), "what it is, such as message, new or ack; of a damaged range its kind"),
        "size": (pa.int64(), "bytes, header included"),
        "status": (pa.string(), "ok, damaged or unreadable"),
        "stored_crc": (pa.int64(), "the CRC in the file"),
        "computed_crc": (pa.int64(), "the CRC of what is there"),
        "detail": (pa.string(), "what is wrong"),
        "fields": (pa.string(), "what the record says, as json; payloads in base64"),
    },
    # One row a subscription that the logs fold to, and one for each file that is damaged.
    Table.SUBSCRIPTIONS: {
        "store": _STORE,
        "channel": _CHANNEL,
        "id": (pa.int64(), "number in the channel"),
        "client_id": (pa.string(), "the client; empty where a queue group has no members"),
        "inbox": (pa.string(), "where messages are delivered"),
        "ack_inbox": (pa.string(), "where they are acknowledged"),
        "durable_name": (pa.string(), "of a durable"),
        "queue_group": (pa.string(), "name of the group; of a durable one name:group"),
        "is_durable": (pa.bool_(), "it outlives its client"),
        "is_closed": (pa.bool_(), "a durable that was closed, and not unsubscribed"),
        "max_in_flight": (pa.int32(), "messages that may be unacknowledged"),
        "ack_wait_in_secs": (pa.int32(), "seconds until a message is delivered again"),
        "last_sent": (pa.int64(), "last sequence that was sent"),
        "pending": (pa.list_(pa.int64()), "sequences that were sent and not acknowledged"),
        "pending_count": (pa.int64(), "how many these are"),
        "lag": (pa.int64(), "messages of the channel that were not sent yet"),
        "status": (
            pa.string(),
            "what the server makes of it: active, offline durable, shadow, ghost or orphan; see the guide",
        ),
        "ghost": (pa.bool_(), "a member of a durable queue group whose client is unknown"),
        "detail": (pa.string(), "of a row for a file that is damaged or unreadable: what is wrong with it"),
    },
    # One row a client, and one for each file that is damaged.
    Table.CLIENTS: {
        "store": _STORE,
        "id": (pa.string(), "the client's id"),
        "hb_inbox": (pa.string(), "where it gets heartbeats"),
        "conn_id": (pa.binary(), "id of its connection"),
        "protocol": (pa.int32(), "version of its protocol"),
        "ping_interval": (pa.int32(), "seconds between its pings, negative for milliseconds"),
        "ping_max_out": (pa.int32(), "unanswered pings after which it gives up"),
        "registered": (pa.bool_(), "false: unknown to the server, but there are subscriptions of it"),
        "subscriptions": (pa.int64(), "how many it has"),
        "pending": (pa.int64(), "messages that were sent to it and not acknowledged"),
        "status": (pa.string(), "ok; damaged or unreadable: the row describes a file, not a client"),
        "detail": (pa.string(), "of such a row: what is wrong with the file"),
    },
    # One row a finding, as `stantools verify` has it.
    Table.FINDINGS: {
        "store": _STORE,
        "code": (pa.string(), "stable name; `stantools explain CODE` says more"),
        "severity": (pa.string(), "error, warning or info"),
        "file": (pa.string(), "path from the store on"),
        "offset": (pa.int64(), "where in it"),
        "length": (pa.int64(), "how many bytes"),
        "channel": (pa.string(), "the channel it is about"),
        "seq": (pa.int64(), "the first sequence it is about"),
        "detail": (pa.string(), "what was found"),
        "remedy": (pa.string(), "what helps"),
    },
    # One row a slice, from its index where that can be trusted.
    Table.SLICES: {
        "store": _STORE,
        "channel": _CHANNEL,
        "slice": (pa.string(), "path of the data file, from the store on"),
        "number": (pa.int64(), "the N of msgs.N.dat"),
        "archived": (pa.bool_(), "a .bak slice"),
        "first_seq": (pa.int64(), "sequence of the first message"),
        "last_seq": (pa.int64(), "sequence of the last message"),
        "first_timestamp": (TIME, "when the first message was stored"),
        "last_timestamp": (TIME, "when the last message was stored"),
        "messages": (pa.int64(), "messages in it"),
        "bytes": (pa.int64(), "their size as the server counts: 40 bytes a message on top of its record"),
        "data_size": (pa.int64(), "bytes of the data file"),
        "index_size": (pa.int64(), "bytes of the index, 0 if there is none"),
        "source": (pa.string(), "index, or scan where the index cannot be trusted, or nothing"),
        "encrypted": (pa.bool_(), "payloads seem to be encrypted"),
        "problems": (pa.list_(pa.string()), "what is wrong with its files"),
    },
}

SCHEMAS: dict[Table, pa.Schema] = {
    table: pa.schema([pa.field(name, kind) for name, (kind, _) in columns.items()])
    for table, columns in _COLUMNS.items()
}


def schema_of(table: Table, columns: Sequence[str] = ()) -> pa.Schema:
    """Returns the schema of a table with some columns, in this order; with all of them if none is named."""
    whole = SCHEMAS[table]
    return pa.schema([whole.field(name) for name in columns]) if columns else whole


#: What the columns mean.
MEANINGS = {table: {name: text for name, (_, text) in columns.items()} for table, columns in _COLUMNS.items()}
