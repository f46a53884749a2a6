"""The columns of every table, as Arrow schemas. Spark's schemas and exported files are made from these."""

from __future__ import annotations

from stantools.pipeline.tables.arrow import pa
from stantools.pipeline.tables.model import Table

_TIME = pa.timestamp("us", tz="UTC")


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


#: One row a message, and one for each damaged range in between (its `status` is not `ok`).
MESSAGES = _schema(
    store=pa.string(),
    channel=pa.string(),
    seq=pa.int64(),
    timestamp=_TIME,
    timestamp_ns=pa.int64(),
    subject=pa.string(),
    reply=pa.string(),
    data=pa.binary(),
    size=pa.int64(),
    slice=pa.string(),
    offset=pa.int64(),
    status=pa.string(),
)

#: One row a record of any file, as `stantools records` shows it; what a record says is json in `fields`.
RECORDS = _schema(
    store=pa.string(),
    channel=pa.string(),
    file=pa.string(),
    offset=pa.int64(),
    type=pa.string(),
    size=pa.int64(),
    status=pa.string(),
    stored_crc=pa.int64(),
    computed_crc=pa.int64(),
    detail=pa.string(),
    fields=pa.string(),
)

#: One row a subscription that the logs fold to, and one for each file that is damaged.
SUBSCRIPTIONS = _schema(
    store=pa.string(),
    channel=pa.string(),
    id=pa.int64(),
    client_id=pa.string(),
    inbox=pa.string(),
    ack_inbox=pa.string(),
    durable_name=pa.string(),
    queue_group=pa.string(),
    is_durable=pa.bool_(),
    is_closed=pa.bool_(),
    max_in_flight=pa.int32(),
    ack_wait_in_secs=pa.int32(),
    last_sent=pa.int64(),
    pending=pa.list_(pa.int64()),
    pending_count=pa.int64(),
    lag=pa.int64(),
    status=pa.string(),
    ghost=pa.bool_(),
    detail=pa.string(),
)

#: One row a client, and one for each file that is damaged.
CLIENTS = _schema(
    store=pa.string(),
    id=pa.string(),
    hb_inbox=pa.string(),
    conn_id=pa.binary(),
    protocol=pa.int32(),
    ping_interval=pa.int32(),
    ping_max_out=pa.int32(),
    registered=pa.bool_(),
    subscriptions=pa.int64(),
    pending=pa.int64(),
    status=pa.string(),
    detail=pa.string(),
)

#: One row a finding, as `stantools verify` has it.
FINDINGS = _schema(
    store=pa.string(),
    code=pa.string(),
    severity=pa.string(),
    file=pa.string(),
    offset=pa.int64(),
    length=pa.int64(),
    channel=pa.string(),
    seq=pa.int64(),
    detail=pa.string(),
    remedy=pa.string(),
)

#: One row a slice, told from its index where that can be trusted.
SLICES = _schema(
    store=pa.string(),
    channel=pa.string(),
    slice=pa.string(),
    number=pa.int64(),
    archived=pa.bool_(),
    first_seq=pa.int64(),
    last_seq=pa.int64(),
    first_timestamp=_TIME,
    last_timestamp=_TIME,
    messages=pa.int64(),
    bytes=pa.int64(),
    data_size=pa.int64(),
    index_size=pa.int64(),
    source=pa.string(),
    encrypted=pa.bool_(),
    problems=pa.list_(pa.string()),
)

SCHEMAS: dict[Table, pa.Schema] = {
    Table.MESSAGES: MESSAGES,
    Table.RECORDS: RECORDS,
    Table.SUBSCRIPTIONS: SUBSCRIPTIONS,
    Table.CLIENTS: CLIENTS,
    Table.FINDINGS: FINDINGS,
    Table.SLICES: SLICES,
}
