"""Requests about consumers, and for messages, as they are played against real servers and ours."""

from __future__ import annotations

from typing import Any

from tests.broker.streams.conversations import API, create, of, update

_WAIT = 300_000_000


def consumer(
    stream: str, name: str, filter: str = "", action: str = "", /, **config: Any
) -> tuple[str, dict[str, Any]]:
    """A request that makes a consumer, in the new form."""
    behind = f".{filter}" if filter else ""
    return f"{API}CONSUMER.CREATE.{stream}.{name}{behind}", {
        **request(stream, **config),
        **({"action": action} if action else {}),
    }


def request(stream: str, **config: Any) -> dict[str, Any]:
    """The body of a request that makes a consumer."""
    return {"stream_name": stream, "config": config}


def durable(stream: str, name: str, /, **config: Any) -> tuple[str, dict[str, Any]]:
    """A request that makes a durable consumer, in the old form."""
    return f"{API}CONSUMER.DURABLE.CREATE.{stream}.{name}", request(stream, **config)


def info(stream: str, name: str) -> tuple[str, str]:
    """A request for the state of a consumer."""
    return f"{API}CONSUMER.INFO.{stream}.{name}", ""


def pull(stream: str, name: str, body: Any, end: int | str) -> tuple[str, Any, None, int | str]:
    """A request for messages; so many come back, statuses included, or so that the last one has a status."""
    return f"{API}CONSUMER.MSG.NEXT.{stream}.{name}", body, None, end


def ack(stream: str, name: str, sequence: int, number: int, body: str = "+ACK") -> tuple[str, str]:
    """An acknowledgement that asks for an answer."""
    return f"$JS.ACK.{stream}.{name}.1.{sequence}.{number}.0.0", body


def fill(subject: str, count: int) -> list[tuple[str, str]]:
    """Publishes to three subjects in turns."""
    return [(f"{subject}.{'abc'[i % 3]}", str(i)) for i in range(count)]


CONFIGS = [
    create("C", subjects=["c.>"], storage="memory"),
    create("W", subjects=["w.>"], storage="memory", retention="workqueue"),
    create("X", subjects=["x"], storage="memory", max_consumers=1),
    *fill("c", 7),
    consumer("C", "a"),
    consumer("C", "a"),
    consumer("C", "a", "", "create", name="a"),
    consumer("C", "a", "", "create", name="a", description="x"),
    consumer("C", "z", "", "update"),
    consumer("C", "z", "", "zork"),
    (f"{API}CONSUMER.CREATE.C.b", ""),
    (f"{API}CONSUMER.CREATE.C.b", "{"),
    (f"{API}CONSUMER.CREATE.C.b", {"stream_name": "other", "config": {}}),
    (f"{API}CONSUMER.CREATE.missing.b", request("missing")),
    durable("C", "d", durable_name="d", ack_policy="explicit"),
    durable("C", "d"),
    durable("C", "d", durable_name="e"),
    (f"{API}CONSUMER.CREATE.C", request("C", durable_name="e")),
    consumer("C", "b", durable_name="c"),
    consumer("C", "b/c"),
    # Only its name in the subject counts, unless it is durable.
    consumer("C", "named", name="other", inactive_threshold=10**12),
    consumer("C", "named", name="a.b", inactive_threshold=10**12),
    info("C", "named"),
    info("C", "other"),
    consumer("C", "named", name="named", durable_name="other"),
    consumer("C", "named", name="other", durable_name="other"),
    durable("C", "named", name="named", durable_name="other"),
    (f"{API}CONSUMER.CREATE.C", request("C", name="a.b")),
    (f"{API}CONSUMER.CREATE.C", request("C", name="a/b")),
    consumer("C", "b", "c.a"),
    consumer("C", "b", "c.a", filter_subject="c.b"),
    consumer("C", "b", "c.a", filter_subjects=["c.a", "c.b"]),
    consumer("C", "b", filter_subjects=["c.a", "c.>"]),
    consumer("C", "b", filter_subjects=["c.a", ""]),
    consumer("C", "b", filter_subject="c.a", filter_subjects=["c.b"]),
    consumer("C", "b", num_replicas=3),
    consumer("C", "b", max_deliver=1, backoff=[1000000000, 2000000000], ack_policy="explicit"),
    consumer("C", "b", description="x" * 5000),
    consumer("C", "b", deliver_subject="d.*"),
    consumer("C", "b", deliver_subject="d..x"),
    consumer("C", "b", deliver_subject="c.x"),
    consumer("C", "b", deliver_subject="d", max_waiting=5),
    consumer("C", "b", deliver_subject="d", max_ack_pending=5),
    consumer("C", "b", deliver_subject="d", idle_heartbeat=5),
    consumer("C", "b", deliver_subject="d", flow_control=True),
    consumer("C", "b", rate_limit_bps=5),
    consumer("C", "b", idle_heartbeat=1000000000),
    consumer("C", "b", flow_control=True),
    consumer("C", "b", max_expires=5),
    consumer("C", "b", opt_start_seq=5),
    consumer("C", "b", deliver_policy="by_start_sequence"),
    consumer("C", "b", deliver_policy="by_start_time"),
    consumer("C", "b", deliver_policy="last_per_subject"),
    consumer("C", "b", deliver_policy="zork"),
    consumer("C", "b", sample_freq="x"),
    consumer("C", "b", metadata={"a": "x" * 140000}),
    consumer("C", "m", ack_policy="all", metadata={"a": "b"}, inactive_threshold=9000000000, headers_only=True),
    consumer("C", "m2", ack_policy="explicit", backoff=[1000000000, 2000000000], max_ack_pending=7, sample_freq="50%"),
    consumer("C", "m3", "c.a", filter_subject="c.a", deliver_policy="last"),
    consumer("C", "m4", filter_subjects=["c.a", "c.b"], deliver_policy="by_start_sequence", opt_start_seq=3),
    consumer("C", "m5", filter_subject="c.*", deliver_policy="last_per_subject"),
    consumer("C", "m6", deliver_policy="new", max_batch=5, max_expires=2000000000, max_bytes=1000, max_waiting=3),
    consumer("C", "m7", filter_subject="outside.>"),
    consumer("C", "p", deliver_subject="deliver.p", deliver_group="g", idle_heartbeat=5000000000, flow_control=True),
    consumer("C", "d", durable_name="d", ack_policy="none"),
    consumer("C", "d", durable_name="d", ack_policy="explicit", deliver_policy="new"),
    consumer("C", "d", durable_name="d", ack_policy="explicit", replay_policy="original"),
    consumer("C", "d", durable_name="d", ack_policy="explicit", max_waiting=7),
    consumer("C", "d", durable_name="d", ack_policy="explicit", max_deliver=9, filter_subject="c.b"),
    consumer("C", "p", deliver_subject="deliver.q", deliver_group="g", idle_heartbeat=5000000000, flow_control=True),
    consumer("C", "p", deliver_subject="deliver.q", deliver_group="g", idle_heartbeat=6000000000, flow_control=True),
    info("C", "d"),
    info("C", "missing"),
    info("missing", "d"),
    (f"{API}CONSUMER.INFO.C.d", "x"),
    (f"{API}CONSUMER.NAMES.C", ""),
    (f"{API}CONSUMER.NAMES.C", {"offset": 3}),
    (f"{API}CONSUMER.NAMES.missing", ""),
    (f"{API}CONSUMER.NAMES.X", ""),
    (f"{API}CONSUMER.LIST.C", {"offset": 9}),
    (f"{API}CONSUMER.LIST.X", ""),
    consumer("X", "one"),
    consumer("X", "two"),
    consumer("W", "none"),
    consumer("W", "all", ack_policy="all"),
    consumer("W", "new", ack_policy="explicit", deliver_policy="new"),
    consumer("W", "a", ack_policy="explicit", filter_subject="w.a"),
    consumer("W", "b", ack_policy="explicit"),
    consumer("W", "c", ack_policy="explicit", filter_subject="w.>"),
    of("INFO", "C"),
    (f"{API}CONSUMER.DELETE.C.d", "x"),
    (f"{API}CONSUMER.DELETE.C.d", ""),
    (f"{API}CONSUMER.DELETE.C.d", ""),
    (f"{API}CONSUMER.LEADER.STEPDOWN.C.a", ""),
]
PULLS = [
    create("P", subjects=["p.>"], storage="memory"),
    *fill("p", 9),
    durable("P", "d", durable_name="d", ack_policy="explicit"),
    pull("P", "d", "", 1),
    pull("P", "d", "2", 2),
    pull("P", "d", {"batch": 2, "no_wait": True}, 2),
    info("P", "d"),
    ack("P", "d", 1, 1),
    info("P", "d"),
    ack("P", "d", 3, 3),
    info("P", "d"),
    ack("P", "d", 2, 2),
    info("P", "d"),
    ack("P", "d", 4, 4, "-NAK"),
    pull("P", "d", "1", 1),
    info("P", "d"),
    ack("P", "d", 5, 5, "+TERM because"),
    ack("P", "d", 4, 4, "+WPI"),
    ack("P", "d", 4, 4, "zork"),
    ack("P", "d", 99, 99),
    info("P", "d"),
    ack("P", "d", 4, 4),
    info("P", "d"),
    pull("P", "d", {"batch": 9, "no_wait": True}, 5),
    pull("P", "d", {"batch": 9, "no_wait": True}, 1),
    pull("P", "d", {"batch": 3, "expires": _WAIT}, 1),
    pull("P", "d", {"batch": 3, "expires": _WAIT, "no_wait": True}, 1),
    pull("P", "d", {"batch": 3, "expires": 1_200_000_000, "idle_heartbeat": 400_000_000}, "408"),
    pull("P", "d", {"batch": 1, "idle_heartbeat": 200_000_000}, 1),
    pull("P", "d", {"batch": 1, "expires": _WAIT, "idle_heartbeat": 200_000_000}, 1),
    pull("P", "d", '{"batch": "x"}', 1),
    pull("P", "missing", "1", 1),
    durable("P", "limited", durable_name="limited", ack_policy="explicit", max_batch=5, max_expires=2000000000,
            max_bytes=1000, max_ack_pending=2),
    pull("P", "limited", {"batch": 6}, 1),
    pull("P", "limited", {"batch": 1, "expires": 3000000000}, 1),
    pull("P", "limited", {"batch": 1, "max_bytes": 2000}, 1),
    pull("P", "limited", {"batch": 3, "expires": _WAIT}, 3),
    info("P", "limited"),
    ack("P", "limited", 2, 2),
    pull("P", "limited", {"batch": 3, "expires": _WAIT}, 2),
    info("P", "limited"),
    ack("P", "limited", 1, 1, "+NXT"),
    durable("P", "bytes", durable_name="bytes", ack_policy="none"),
    pull("P", "bytes", {"batch": 9, "max_bytes": 120, "expires": _WAIT}, 3),
    pull("P", "bytes", {"batch": 2, "max_bytes": 1000, "expires": _WAIT}, 3),
    pull("P", "bytes", {"batch": 1, "max_bytes": 10, "expires": _WAIT}, 1),
    info("P", "bytes"),
    durable("P", "all", durable_name="all", ack_policy="all"),
    pull("P", "all", "5", 5),
    ack("P", "all", 3, 3),
    info("P", "all"),
    ack("P", "all", 2, 2),
    ack("P", "all", 5, 5),
    info("P", "all"),
    durable("P", "fa", durable_name="fa", ack_policy="explicit", filter_subject="p.a"),
    pull("P", "fa", "2", 2),
    ack("P", "fa", 1, 1),
    info("P", "fa"),
    durable("P", "two", durable_name="two", ack_policy="explicit", filter_subjects=["p.a", "p.c"]),
    pull("P", "two", "4", 4),
    ack("P", "two", 1, 1),
    ack("P", "two", 4, 3),
    info("P", "two"),
    durable("P", "last", durable_name="last", ack_policy="none", deliver_policy="last"),
    pull("P", "last", "1", 1),
    info("P", "last"),
    durable("P", "lps", durable_name="lps", ack_policy="none", deliver_policy="last_per_subject", filter_subject="p.>"),
    info("P", "lps"),
    pull("P", "lps", "3", 3),
    info("P", "lps"),
    durable("P", "seq", durable_name="seq", ack_policy="explicit", deliver_policy="by_start_sequence", opt_start_seq=5),
    info("P", "seq"),
    pull("P", "seq", "1", 1),
    durable("P", "head", durable_name="head", ack_policy="explicit", headers_only=True),
    pull("P", "head", "1", 1),
    durable("P", "once", durable_name="once", ack_policy="explicit", max_deliver=1, ack_wait=200_000_000),
    pull("P", "once", "1", 1),
    pull("P", "once", {"batch": 1, "expires": 600_000_000}, 1),
    durable("P", "again", durable_name="again", ack_policy="explicit", ack_wait=5_000_000_000),
    pull("P", "again", "2", 2),
    ack("P", "again", 1, 1),
    pull("P", "again", {"batch": 2, "expires": 5_000_000_000}, 2),
    info("P", "again"),
    of("MSG.DELETE", "P", {"seq": 1}),
    of("PURGE", "P", {"seq": 5}),
    info("P", "two"),
    info("P", "d"),
    info("P", "seq"),
    of("PURGE", "P"),
    info("P", "fa"),
    info("P", "seq"),
    ("p.a", "new"),
    pull("P", "fa", "1", 1),
    (f"{API}CONSUMER.DELETE.P.fa", ""),
]  # fmt: skip
RETENTION = [
    create("Q", subjects=["q.>"], storage="memory", retention="workqueue"),
    *fill("q", 6),
    durable("Q", "a", durable_name="a", ack_policy="explicit", filter_subject="q.a"),
    durable("Q", "b", durable_name="b", ack_policy="explicit", filter_subject="q.b"),
    pull("Q", "a", "2", 2),
    ack("Q", "a", 1, 1),
    of("INFO", "Q", {"deleted_details": True}),
    ack("Q", "a", 4, 2, "+TERM"),
    pull("Q", "b", "1", 1),
    ack("Q", "b", 2, 1, "-NAK"),
    of("INFO", "Q", {"deleted_details": True}),
    (f"{API}CONSUMER.DELETE.Q.b", ""),
    of("INFO", "Q", {"deleted_details": True}),
    create("I", subjects=["i.>"], storage="memory", retention="interest"),
    ("i.a", "nobody"),
    of("INFO", "I"),
    durable("I", "a", durable_name="a", ack_policy="explicit", filter_subject="i.a"),
    durable("I", "all", durable_name="all", ack_policy="explicit"),
    *fill("i", 6),
    of("INFO", "I", {"deleted_details": True}),
    pull("I", "all", "6", 6),
    ack("I", "all", 3, 2),
    of("INFO", "I", {"deleted_details": True}),
    ack("I", "all", 2, 1),
    pull("I", "a", "1", 1),
    ack("I", "a", 2, 1),
    of("INFO", "I", {"deleted_details": True}),
    (f"{API}CONSUMER.DELETE.I.all", ""),
    of("INFO", "I", {"deleted_details": True}),
    update("I", subjects=["i.>"], storage="memory", retention="limits"),
    of("INFO", "I"),
    # Given up while nobody asks, and acknowledged after that.
    create("L", subjects=["l.>"], storage="memory", retention="workqueue"),
    *fill("l", 6),
    durable("L", "c", durable_name="c", ack_policy="explicit", max_deliver=1, ack_wait=200_000_000),
    durable("I", "wait", durable_name="wait", ack_policy="none", deliver_policy="new"),
    pull("L", "c", "3", 3),
    pull("I", "wait", {"batch": 1, "expires": 1_500_000_000}, 1),
    info("L", "c"),
    ack("L", "c", 2, 2),
    of("INFO", "L", {"deleted_details": True}),
    ack("L", "c", 1, 1, "+TERM"),
    ack("L", "c", 3, 3, "-NAK"),
    ack("L", "c", 5, 5),
    of("INFO", "L", {"deleted_details": True}),
    info("L", "c"),
]
STEPS = [*CONFIGS, *PULLS, *RETENTION]
