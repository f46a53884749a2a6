"""Requests and publishes one after the other, as they are played against real servers and ours."""

from __future__ import annotations

from typing import Any

API = "$JS.API."


def create(name: str, **config: Any) -> tuple[str, dict[str, Any]]:
    """A request that makes a stream."""
    return f"{API}STREAM.CREATE.{name}", {"name": name, **config}


def update(name: str, **config: Any) -> tuple[str, dict[str, Any]]:
    """A request that changes a stream."""
    return f"{API}STREAM.UPDATE.{name}", {"name": name, **config}


def of(call: str, name: str, body: Any = "") -> tuple[str, Any]:
    """A request about a stream."""
    return f"{API}STREAM.{call}.{name}", body


def _storages(name: str, *steps: Any) -> list[Any]:
    """The steps for a stream in memory and for one in files."""
    return [step for storage in ("memory", "file") for step in _storage(name, storage, steps)]


def _storage(name: str, storage: str, steps: tuple[Any, ...]) -> list[Any]:
    made = []
    for subject, body, *rest in steps:
        new = f"{name}{storage[0]}"
        text = subject.replace("$NAME", new).replace("$subject", new.lower())
        filled = _filled(body, new, storage) if not isinstance(body, (str, bytes)) else body
        made.append((text, filled, *rest))
    return made


def _filled(body: Any, name: str, storage: str) -> Any:
    if isinstance(body, dict):
        filled = {key: _filled(value, name, storage) for key, value in body.items()}
        if "name" in filled and "storage" not in filled:
            filled["storage"] = storage
        return filled
    if isinstance(body, list):
        return [_filled(each, name, storage) for each in body]
    return body.replace("$NAME", name).replace("$subject", name.lower()) if isinstance(body, str) else body


N = "$NAME"
STREAMS = [
    (f"{API}INFO", ""),
    of("NAMES", "x"),
    (f"{API}STREAM.NAMES", ""),
    (f"{API}STREAM.LIST", ""),
    (f"{API}STREAM.NAMES", {"offset": 5}),
    of("INFO", "missing"),
    of("DELETE", "missing"),
    of("PURGE", "missing"),
    of("PURGE", "missing", "x"),
    of("MSG.GET", "missing", {"seq": 1}),
    *(of("MSG.GET", "missing", body) for body in ("", "x", {"seq": 0}, {"seq": 1, "last_by_subj": "a"}, {"batch": 1})),
    of("MSG.DELETE", "missing", {"seq": 1}),
    *(of("MSG.DELETE", "missing", body) for body in ("", "x", "{}", {"seq": 0}, {"batch": 1})),
    create("A"),
    create("A"),
    create("A", subjects=["A"]),
    create("A", subjects=["a"]),
    create("A", description="other"),
    (f"{API}STREAM.CREATE.B", {"name": "A"}),
    (f"{API}STREAM.CREATE.B", ""),
    (f"{API}STREAM.CREATE.B", "{"),
    (f"{API}STREAM.CREATE.B", "[]"),
    (f"{API}STREAM.CREATE.B", '{"name":5}'),
    (f"{API}STREAM.CREATE.B", '{"name":"B","storage":"tape"}'),
    (f"{API}STREAM.CREATE.B", '{"name":"B","max_msgs":"x"}'),
    create("B", subjects=["A"]),
    create("B", subjects=["b.>", "b.c"]),
    create("B", subjects=["b..c"]),
    create("B", subjects=[">"]),
    create("B", subjects=["$JS.API.x"]),
    create("B", subjects=["$SYS.x"]),
    create("B", max_age=5),
    create("B", max_age=-5),
    create("B", max_age=1000000000, duplicate_window=2000000000),
    create("B", duplicate_window=5),
    create("B", duplicate_window=-5),
    create("B", discard_new_per_subject=True),
    create("B", discard="new", discard_new_per_subject=True),
    create("B", allow_rollup_hdrs=True, deny_purge=True),
    create("B", num_replicas=3),
    create("B", num_replicas=9),
    create("B", num_replicas=-1),
    create("B", sealed=True),
    create("B", description="x" * 5000),
    create("B", metadata={"a": "x" * 140000}),
    create("x" * 256),
    (f"{API}STREAM.CREATE.B/C", {"name": "B/C"}),
    create("B", max_age=1000000000, first_seq=10, compression="s2", placement={"cluster": "x"}, metadata={"a": "b"}),
    of("INFO", "B"),
    create("KV_b", subjects=["$KV.b.>"], max_msgs_per_subject=5, discard="new", allow_direct=True, no_ack=False),
    (f"{API}STREAM.NAMES", ""),
    (f"{API}STREAM.NAMES", {"subject": "$KV.b.x"}),
    (f"{API}STREAM.NAMES", {"subject": "nothing"}),
    (f"{API}STREAM.LIST", {"offset": 1}),
    (f"{API}STREAM.LIST", {"offset": 10}),
    update("A", subjects=["A", "aa"]),
    update("A", subjects=["b", "B"]),
    update("A", storage="memory"),
    update("missing"),
    update("A", retention="workqueue"),
    update("A", deny_delete=True, deny_purge=True),
    update("A"),
    of("MSG.DELETE", "A", {"seq": 1}),
    of("PURGE", "A"),
    update("A", deny_delete=True, deny_purge=True, sealed=True),
    update("A", deny_delete=True, deny_purge=True),
    ("A", "x"),
    of("PURGE", "A"),
    of("MSG.DELETE", "A", {"seq": 1}),
    of("DELETE", "A", "x"),
    of("DELETE", "A", "{}"),
    of("LEADER.STEPDOWN", "B"),
    of("PEER.REMOVE", "B", {"peer": "x"}),
    (f"{API}NOTHING", ""),
    (f"{API}STREAM.TEMPLATE.NAMES.x", ""),
]
MESSAGES = _storages(
    "M",
    create(N, subjects=["$subject.>"], allow_direct=True),
    of("INFO", N),
    ("$subject.a", "1"),
    ("$subject.b", "2", {"X": "y"}),
    ("$subject.a", "3", {"Nats-Msg-Id": "m"}),
    ("$subject.a", "4", {"Nats-Msg-Id": "m"}),
    ("$subject.b", "", {"Nats-Expected-Stream": "other"}),
    ("$subject.b", "", {"Nats-Expected-Last-Sequence": "2"}),
    ("$subject.b", "", {"Nats-Expected-Last-Sequence": "x"}),
    ("$subject.b", "", {"Nats-Expected-Last-Subject-Sequence": "1"}),
    ("$subject.b", "", {"Nats-Expected-Last-Msg-Id": "other"}),
    ("$subject.b", "5", {"Nats-Expected-Last-Msg-Id": "m", "Nats-Expected-Last-Sequence": "3"}),
    ("$subject.b", "6", {"Nats-Expected-Last-Subject-Sequence": "4"}),
    ("$subject.n", "7", {"Nats-Expected-Last-Subject-Sequence": "0"}),
    ("$subject.b", "", {"Nats-Rollup": "sub"}),
    ("$subject.x", "8", {"Nats-Msg-Id": ""}),
    of("INFO", N),
    of("INFO", N, {"subjects_filter": ">"}),
    of("INFO", N, {"subjects_filter": "$subject.a"}),
    of("INFO", N, {"subjects_filter": "none"}),
    of("INFO", N, {"deleted_details": True}),
    *(
        of("MSG.GET", N, body)
        for body in (
            "", {}, {"seq": 0}, {"seq": 1}, {"seq": 2}, {"seq": 99}, {"last_by_subj": "$subject.a"},
            {"last_by_subj": "$subject.*"}, {"last_by_subj": "none"}, {"next_by_subj": "$subject.b", "seq": 3},
            {"next_by_subj": "$subject.b"}, {"next_by_subj": "none", "seq": 1},
            {"seq": 1, "last_by_subj": "$subject.a"}, "x", [],
        )
    ),
    *(
        (f"{API}DIRECT.GET.{N}", body)
        for body in (
            {"seq": 2}, {"seq": 99}, {"last_by_subj": "$subject.a"}, {"last_by_subj": "none"},
            {"next_by_subj": "$subject.b", "seq": 3}, "", {}, {"seq": 0}, "x", {"seq": 1, "last_by_subj": "$subject.a"},
        )
    ),
    (f"{API}DIRECT.GET.{N}.$subject.b", ""),
    (f"{API}DIRECT.GET.{N}.none", ""),
    of("MSG.DELETE", N, ""),
    of("MSG.DELETE", N, {}),
    of("MSG.DELETE", N, {"seq": 0, "no_erase": True}),
    of("MSG.DELETE", N, {"seq": 99}),
    of("MSG.DELETE", N, {"seq": 2}),
    of("MSG.DELETE", N, {"seq": 2}),
    of("MSG.DELETE", N, {"seq": 1, "no_erase": True}),
    of("INFO", N, {"deleted_details": True}),
    of("MSG.DELETE", N, {"seq": 7}),
    of("INFO", N, {"deleted_details": True}),
    of("MSG.GET", N, {"last_by_subj": "$subject.b"}),
    of("PURGE", N, {"seq": 2, "keep": 1}),
    of("PURGE", N, {"filter": "$subject.a"}),
    of("INFO", N, {"subjects_filter": ">", "deleted_details": True}),
    ("$subject.a", "9"),
    ("$subject.a", "10"),
    ("$subject.c", "11"),
    ("$subject.a", "12"),
    of("PURGE", N, {"filter": "$subject.a", "keep": 1}),
    of("INFO", N, {"subjects_filter": ">", "deleted_details": True}),
    of("PURGE", N, {"seq": 10}),
    of("INFO", N, {"subjects_filter": ">", "deleted_details": True}),
    of("PURGE", N, {"keep": 1}),
    of("INFO", N, {"subjects_filter": ">"}),
    of("PURGE", N),
    of("INFO", N),
    of("PURGE", N, {"seq": 100}),
    of("INFO", N),
    ("$subject.a", "13"),
    of("PURGE", N, "x"),
    of("DELETE", N),
    ("$subject.a", "14"),
    (f"{API}STREAM.NAMES", ""),
)  # fmt: skip
LIMITS = _storages(
    "L",
    create(N, subjects=["$subject.>"], max_msgs=3, allow_rollup_hdrs=True),
    *(("$subject.a", str(i)) for i in range(5)),
    of("INFO", N),
    ("$subject.b", "x", {"Nats-Rollup": "sub"}),
    ("$subject.a", "x", {"Nats-Rollup": "sub"}),
    of("INFO", N, {"subjects_filter": ">"}),
    ("$subject.c", "x", {"Nats-Rollup": "ALL"}),
    of("INFO", N, {"subjects_filter": ">"}),
    update(N, subjects=["$subject.>"], max_msgs=3, allow_rollup_hdrs=True, discard="new", max_msg_size=4),
    ("$subject.a", "1"),
    ("$subject.a", "2"),
    ("$subject.a", "3"),
    ("$subject.a", "12345"),
    of("INFO", N),
    update(N, subjects=["$subject.>"], max_msgs_per_subject=1),
    of("INFO", N),
    ("$subject.a", "4"),
    of("INFO", N),
    update(N, subjects=["$subject.>"], max_msgs_per_subject=1, discard="new", discard_new_per_subject=True),
    ("$subject.a", "5"),
    ("$subject.d", "5"),
    update(N, subjects=["$subject.>"], max_msgs_per_subject=1, discard="new", max_msgs=3),
    ("$subject.a", "6"),
    ("$subject.e", "6"),
    of("INFO", N),
    update(N, subjects=["$subject.>"], max_bytes=100),
    of("INFO", N),
    ("$subject.e", "x" * 200),
    of("INFO", N),
    ("$subject.e", "7"),
    ("$subject.e", "8"),
    ("$subject.e", "9"),
    of("INFO", N),
    update(N, subjects=["$subject.a"], max_bytes=1000, discard="new"),
    ("$subject.a", "x" * 500),
    ("$subject.a", "x" * 500),
    ("$subject.e", "x"),
    of("INFO", N),
)
STEPS = [*STREAMS, *MESSAGES, *LIMITS]
