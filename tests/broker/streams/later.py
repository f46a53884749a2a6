"""Requests for what came with nats-server 2.11 and later, as they are played against real servers and ours."""

from __future__ import annotations

from typing import Any

from tests.broker.streams.consuming import durable, fill, info, pull
from tests.broker.streams.conversations import API, create, of, update

SECOND = 1_000_000_000


def get(body: dict[str, Any], count: int, name: str = "B") -> tuple[str, Any, None, int]:
    """A direct get that is answered so many times."""
    return f"{API}DIRECT.GET.{name}", body, None, count


BATCHES = [
    create("B", subjects=["b.>"], allow_direct=True),
    *fill("b", 9),
    of("MSG.DELETE", "B", {"seq": 4}),
    get({"batch": 3, "seq": 1}, 4),
    get({"batch": 3, "seq": 3}, 4),
    get({"batch": 100, "seq": 8}, 3),
    get({"batch": 1, "seq": 10}, 1),
    get({"batch": 3, "seq": 2, "next_by_subj": "b.a"}, 2),
    get({"batch": 2, "next_by_subj": "b.*"}, 3),
    get({"batch": 2, "next_by_subj": "none"}, 1),
    get({"batch": 2}, 1),
    get({"batch": 9, "seq": 1, "max_bytes": 1}, 2),
    get({"batch": 2, "start_time": "2020-01-01T00:00:00Z"}, 3),
    get({"batch": 2, "last_by_subj": "b.a"}, 1),
    get({"seq": 1, "start_time": "2020-01-01T00:00:00Z"}, 1),
    get({"next_by_subj": "b.a", "last_by_subj": "b.a"}, 1),
    get({"multi_last": ["b.a", "b.b"]}, 3),
    get({"multi_last": ["b.>"]}, 4),
    get({"multi_last": ["b.>"], "batch": 2}, 3),
    get({"multi_last": ["b.>"], "up_to_seq": 5}, 4),
    get({"multi_last": ["b.>"], "up_to_seq": 3}, 4),
    get({"multi_last": ["b.>"], "up_to_time": "2100-01-01T00:00:00Z"}, 4),
    get({"multi_last": ["none"]}, 1),
    get({"multi_last": ["b.>"], "up_to_seq": 5, "up_to_time": "2100-01-01T00:00:00Z"}, 1),
    get({"multi_last": ["b.a"], "last_by_subj": "b.a"}, 1),
    get({"multi_last": ["b.a"], "next_by_subj": "b.a"}, 1),
    get({"multi_last": ["b.a", "b.a"], "no_hdr": True}, 2),
]
FAR = "2100-01-01T00:00:00Z"
PAST = "2020-01-01T00:00:00Z"
PAUSES = [
    create("U", subjects=["u.>"], storage="memory"),
    *fill("u", 4),
    durable("U", "d", durable_name="d", ack_policy="explicit"),
    (f"{API}CONSUMER.PAUSE.U.d", {"pause_until": FAR}),
    info("U", "d"),
    pull("U", "d", {"batch": 1, "expires": SECOND // 2}, 1),
    (f"{API}CONSUMER.PAUSE.U.d", ""),
    info("U", "d"),
    pull("U", "d", "1", 1),
    (f"{API}CONSUMER.PAUSE.U.d", {"pause_until": PAST}),
    info("U", "d"),
    pull("U", "d", "1", 1),
    (f"{API}CONSUMER.PAUSE.U.missing", {"pause_until": FAR}),
    (f"{API}CONSUMER.PAUSE.none.d", {"pause_until": FAR}),
    (f"{API}CONSUMER.PAUSE.U.d", {"pause_until": "soon"}),
    durable("U", "p", durable_name="p", ack_policy="explicit", pause_until=FAR),
    info("U", "p"),
    pull("U", "p", {"batch": 1, "expires": SECOND // 2}, 1),
    durable("U", "p", durable_name="p", ack_policy="explicit", description="other"),
    info("U", "p"),
    (f"{API}CONSUMER.PAUSE.U.p", {}),
    pull("U", "p", "1", 1),
]
TTLS = [
    create("T", subjects=["t.>"], allow_msg_ttl=True, max_age=3600 * SECOND),
    *(("t.a", "x", {"Nats-TTL": text}) for text in ("5", "1h30m", "1.5s", "never", "0", "-1", "100ms", "soon", "")),
    of("INFO", "T"),
    create("V", subjects=["v.>"]),
    ("v.a", "x", {"Nats-TTL": "5"}),
    ("v.a", "x", {"Nats-TTL": "soon"}),
    update("T", subjects=["t.>"], max_age=3600 * SECOND),
    create("W", subjects=["w.>"], subject_delete_marker_ttl=SECOND // 2),
    create("W", subjects=["w.>"], subject_delete_marker_ttl=-SECOND),
    create("W", subjects=["w.>"], subject_delete_marker_ttl=2 * SECOND, max_age=3600 * SECOND),
    create("F", subjects=["f.>"], allow_msg_ttl=True, allow_direct=True),
    ("f.a", "x", {"Nats-TTL": "1h"}),
    (f"{API}DIRECT.GET.F", {"seq": 1}),
]
