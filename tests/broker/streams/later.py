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
    # A marker may outlive the message before it, which is kept for as long.
    create("X", subjects=["x.>"], subject_delete_marker_ttl=90 * SECOND),
    *(
        step
        for seq, headers in enumerate(
            (
                {"Nats-TTL": "1"},
                {"A": "y", "Nats-TTL": "1s", "Z": "z"},
                {"Nats-TTL": "89.9s", "Nats-Rollup": "sub"},
                {"Nats-TTL": "90s"},
                {"Nats-TTL": "2m"},
                {"Nats-TTL": "never"},
            ),
            1,
        )
        for step in (("x.a", "x", headers), of("MSG.GET", "X", {"seq": seq}))
    ),
    # With one message per subject, a marker has none before it.
    create("Y", subjects=["y.>"], subject_delete_marker_ttl=90 * SECOND, max_msgs_per_subject=1),
    ("y.a", "x", {"Nats-TTL": "30"}),
    of("MSG.GET", "Y", {"seq": 1}),
    create("F", subjects=["f.>"], allow_msg_ttl=True, allow_direct=True),
    ("f.a", "x", {"Nats-TTL": "1h"}),
    (f"{API}DIRECT.GET.F", {"seq": 1}),
]


def group(name: str, **config: Any) -> tuple[str, dict[str, Any]]:
    """A request for a consumer with a priority policy."""
    return durable("G", name, durable_name=name, ack_policy="explicit", **config)


def of_group(name: str, count: int, **body: Any) -> tuple[str, Any, None, int]:
    """A request for messages of a group."""
    return pull("G", name, {"batch": 1, "group": "A", **body}, count)


OVERFLOW = {"priority_policy": "overflow", "priority_groups": ["A"]}
PINNED = {"priority_policy": "pinned_client", "priority_groups": ["A"]}
SHORT = SECOND // 4
PRIORITIES = [
    create("G", subjects=["g.>"], storage="memory"),
    *fill("g", 7),
    group("x", priority_policy="overflow"),
    group("x", priority_policy="overflow", priority_groups=[""]),
    group("x", priority_policy="overflow", priority_groups=["a b"]),
    group("x", priority_policy="overflow", priority_groups=["a" * 17]),
    group("x", priority_policy="zork", priority_groups=["A"]),
    group("x", priority_groups=["A"]),
    group("x", priority_timeout=SECOND),
    group("x", deliver_subject="d", **OVERFLOW),
    group("o", **OVERFLOW),
    group("n", priority_policy="none"),
    group("two", priority_policy="overflow", priority_groups=["A", "B"], priority_timeout=SECOND),
    group("p", **PINNED),
    group("q", **PINNED, priority_timeout=-SECOND),
    info("G", "p"),
    pull("G", "o", "1", 1),
    of_group("o", 1, group="X"),
    of_group("o", 1, id="x"),
    of_group("o", 1, min_pending=100, expires=SHORT),
    of_group("o", 1, min_pending=6, expires=2 * SHORT),
    of_group("o", 1, min_pending=6, expires=SHORT),
    of_group("o", 1, min_ack_pending=1),
    of_group("o", 1, min_ack_pending=9, no_wait=True),
    of_group("o", 1, min_pending=100, min_ack_pending=2, expires=SHORT),
    of_group("n", 1, group="X"),
    of_group("n", 1, min_pending=1),
    of_group("n", 1, id="x"),
    of_group("p", 2, batch=2),
    of_group("p", 1, min_pending=1, expires=SHORT),
    of_group("p", 1, no_wait=True),
    of_group("p", 1, expires=SHORT),
    of_group("p", 1, id="another"),
    info("G", "p"),
    (f"{API}CONSUMER.UNPIN.G.p", {"group": "A"}),
    of_group("p", 1),
    (f"{API}CONSUMER.UNPIN.G.p", {"group": "X"}),
    (f"{API}CONSUMER.UNPIN.G.p", ""),
    (f"{API}CONSUMER.UNPIN.G.p", "{}"),
    (f"{API}CONSUMER.UNPIN.G.n", {"group": "A"}),
    (f"{API}CONSUMER.UNPIN.G.missing", {"group": "A"}),
    (f"{API}CONSUMER.UNPIN.missing.p", {"group": "A"}),
]


def strict(name: str, **config: Any) -> tuple[str, dict[str, Any]]:
    """A request for a stream that has to be taken as it is."""
    return create(name, pedantic=True, **config)


def strict_consumer(**config: Any) -> tuple[str, dict[str, Any]]:
    """A request for a consumer that has to be taken as it is."""
    subject, body = durable("E", "c", durable_name="c", **config)
    return subject, {**body, "pedantic": True}


PEDANTIC = [
    strict("D", subjects=["d.>"], max_age=SECOND),
    strict("D", subjects=["d.>"], max_age=SECOND, duplicate_window=SECOND),
    *(strict("D", subjects=["d.>"], **{name: -5}) for name in ("max_msgs", "max_bytes", "max_msg_size")),
    strict("D", subjects=["d.>"], max_msgs_per_subject=-5),
    strict("M", subjects=["m.>"], subject_delete_marker_ttl=2 * SECOND),
    strict("M", subjects=["m.>"], subject_delete_marker_ttl=2 * SECOND, allow_msg_ttl=True),
    strict("M", subjects=["m.>"], subject_delete_marker_ttl=2 * SECOND, allow_msg_ttl=True, allow_rollup_hdrs=True),
    strict("R", subjects=["r"], republish={"src": "", "dest": "x.>"}),
    strict("E", subjects=["e.>"], allow_direct=True, consumer_limits={"max_ack_pending": 5}),
    strict("C", mirror={"name": "E"}),
    strict("C", mirror={"name": "E"}, mirror_direct=True),
    create("B", subjects=["b"], pedantic="x"),
    strict_consumer(),
    *(strict_consumer(max_ack_pending=5, **{name: -5}) for name in ("max_waiting", "max_batch", "max_expires")),
    strict_consumer(ack_policy="explicit", max_ack_pending=5, inactive_threshold=-5),
    strict_consumer(ack_policy="explicit", max_ack_pending=5, max_deliver=-5),
    strict_consumer(ack_policy="explicit", max_ack_pending=5, backoff=[SECOND, 2 * SECOND]),
    strict_consumer(ack_policy="explicit", max_ack_pending=5, backoff=[SECOND, 2 * SECOND], ack_wait=SECOND),
]


def needing(level: str) -> dict[str, str]:
    """The header of a request that needs a level of the API."""
    return {"Nats-Required-Api-Level": level}


LEVELS = [
    create("L", subjects=["l"], allow_direct=True),
    durable("L", "d", durable_name="d", ack_policy="explicit"),
    ("l", "x"),
    *(
        (f"{API}{call}", body, needing(level))
        for call, body in (
            ("STREAM.INFO.L", ""),
            ("CONSUMER.INFO.L.d", ""),
            ("DIRECT.GET.L", {"seq": 1}),
            ("CONSUMER.MSG.NEXT.L.d", {"no_wait": True}),
        )
        for level in ("99", "1", "one")
    ),
    ("l", "x", needing("99")),
]
