"""Streams for the tests of offline ways: a small store with every kind of gap, and golden ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planner import make_plan
from stantools.migration.prepared_stream import PreparedStream, prepare
from stantools.migration.source import open_source
from stantools.migration.targets.stream_load import ApplyOptions, ExistingPolicy
from stantools.store.directory import open_datastore
from tests.conftest import load_expected
from tests.migration.reading import Seen
from tests.migration.stores import T0, Record, write_store

REPLACE = ApplyOptions(existing=ExistingPolicy.REPLACE)
BINARY = bytes(range(256))


def _rows(*sequences: int) -> list[Record]:
    return [
        (n, T0 + n * 1_000_003, b"inbox.%d" % n if n % 3 == 0 else b"", BINARY[n % 7 :] * (n % 5)) for n in sequences
    ]


ROWS: dict[str, list[Record]] = {
    "orders": _rows(*range(5, 60), *range(70, 90), 300),
    "far.away": _rows(1, 2, 200_000, 200_001),
    "one": _rows(7),
}
PENDING = (71, 80, 300)


def small_store(root: Path, rows: dict[str, list[Record]] = ROWS) -> Path:
    """A store with gaps at the beginning and within, and a durable with pending messages."""
    durable = pb.SubState(
        id=1,
        client_id=b"me",
        durable_name=b"dur",
        inbox=b"in",
        ack_inbox=b"ack",
        max_in_flight=10,
        ack_wait_in_secs=30,
        last_sent=300,
        is_durable=True,
    )
    client = pb.ClientInfo(id=b"me", hb_inbox=b"hb")
    return write_store(root, rows, clients=[client], subscriptions={"orders": [(durable, PENDING)]})


def prepared(root: Path, *, key: str | None = None, poly: int | None = None, **options: Any) -> list[PreparedStream]:
    """Plans a store and joins plan and store."""
    crc = Crc() if poly is None else Crc(poly)
    source = open_source(open_datastore(root, crc, key.encode() if key else None))
    plan = make_plan(source, PlanOptions(decrypted=key is not None, **options))
    return prepare(plan, source)


def prepared_golden(root: Path, case: str, **options: Any) -> list[PreparedStream]:
    """Plans a golden store."""
    wanted = load_expected(case)["options"]
    return prepared(root, key=(wanted.get("encryption") or {}).get("key"), poly=wanted["file_crc_poly"], **options)


def facts(seen: list[Seen]) -> list[tuple[int, int, str, str, str]]:
    """What a client saw, to be compared."""
    return [
        (
            m.sequence,
            m.timestamp,
            m.subject,
            m.headers.get("Nats-Streaming-Reply", ""),
            hashlib.sha256(m.data).hexdigest(),
        )
        for m in seen
    ]


def wanted(channel: str, rows: list[Record]) -> list[tuple[int, int, str, str, str]]:
    """What a client must see of a channel."""
    return [(seq, ts, channel, reply.decode(), hashlib.sha256(data).hexdigest()) for seq, ts, reply, data in rows]
