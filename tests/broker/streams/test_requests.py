"""Requests that make no sense get an answer that says so; times, sizes and limits in simulated time."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.stores.interface import StorageError
from broker.stores.streams.blocks import MessageBlock
from broker.streams.quota import QuotaLimits
from tests.broker.streams.world import API, INBOX, World

SECOND = 1_000_000_000
CALLS = (
    "INFO", "STREAM.CREATE.S", "STREAM.CREATE.T", "STREAM.UPDATE.S", "STREAM.INFO.S", "STREAM.NAMES", "STREAM.LIST",
    "STREAM.DELETE.T", "STREAM.PURGE.S", "STREAM.MSG.GET.S", "STREAM.MSG.DELETE.S", "STREAM.SNAPSHOT.S",
    "STREAM.RESTORE.U", "STREAM.RESTORE.S",
    "DIRECT.GET.S", "CONSUMER.CREATE.S", "CONSUMER.CREATE.S.c", "CONSUMER.CREATE.S.d.s.a",
    "CONSUMER.DURABLE.CREATE.S.e", "CONSUMER.INFO.S.c", "CONSUMER.NAMES.S", "CONSUMER.LIST.S", "CONSUMER.DELETE.S.c",
    "CONSUMER.MSG.NEXT.S.c", "CONSUMER.MSG.NEXT.S.none",
    "CONSUMER.PAUSE.S.c", "CONSUMER.UNPIN.S.c", "DIRECT.GET.S.s.a", "DIRECT.GET.none",
)  # fmt: skip
NAMES = (
    "name", "subjects", "max_msgs", "max_age", "storage", "retention", "discard", "seq", "last_by_subj", "next_by_subj",
    "batch", "offset", "filter", "keep", "subject", "num_replicas", "duplicate_window", "sealed", "first_seq", "mirror",
    "stream_name", "config", "action", "expires", "no_wait", "max_bytes", "idle_heartbeat",
    "republish", "subject_transform",
    "sources", "allow_msg_ttl", "metadata", "consumer_limits", "start_time", "deleted_details", "subjects_filter",
    "multi_last", "up_to_seq", "up_to_time", "no_hdr", "pause_until", "deliver_subject", "chunk_size",
    "pedantic", "group", "id", "min_pending", "min_ack_pending", "max_msgs_per_subject", "subject_delete_marker_ttl",
)  # fmt: skip
CONSUMER = (
    "name", "durable_name", "deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy", "ack_wait",
    "max_deliver", "backoff", "filter_subject", "filter_subjects", "replay_policy", "rate_limit_bps", "sample_freq",
    "max_waiting",
    "max_ack_pending", "flow_control", "headers_only", "max_batch", "deliver_subject", "deliver_group",
    "idle_heartbeat", "inactive_threshold", "num_replicas", "mem_storage", "metadata", "pause_until",
    "priority_policy", "priority_groups", "priority_timeout",
)  # fmt: skip
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-3, 20), st.floats(), st.text(max_size=5),
    st.sampled_from(("explicit", "all", "last", "new", "last_per_subject", "by_start_sequence", "50%", "original")),
    st.sampled_from(("overflow", "pinned_client", "none")),
    st.sampled_from(("S", "s.a", "s.>", "memory", "file", "new", "*", "2020-01-01T00:00:00Z")),
)  # fmt: skip
values = st.recursive(leaves, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each))
bodies = st.one_of(
    st.binary(max_size=30),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=6).map(lambda each: json.dumps(each).encode()),
    st.dictionaries(st.sampled_from(CONSUMER), values, max_size=4).map(
        lambda each: json.dumps({"stream_name": "S", "config": each, "pedantic": len(each) > 1}).encode()
    ),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=4).map(
        lambda each: json.dumps({**each, "name": "S", "pedantic": True}).encode()
    ),
    st.sampled_from((b"", b"{}", b"[" * 100_000, b'{"name":"\\ud800"}', b"9" * 5000, b"NaN", b'{"seq":1e5}')),
)


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(CALLS), bodies), min_size=1, max_size=8))
def test_whatever_is_asked_is_answered(todo: list[tuple[str, bytes]]) -> None:
    world = World()
    world.create("S", subjects=["s.>"], storage="memory", allow_direct=True)
    world.publish("s.a", b"1")  # which is what an answer may be: a consumer delivers it
    for call, body in todo:
        said = world.api(call, body)
        if call == "CONSUMER.MSG.NEXT.S.c" and said is None:
            # It waits for messages, or is told later.
            world.pass_time(5 * SECOND)
            continue
        assert said is not None, call
        if isinstance(said, dict):
            assert said["type"].startswith("io.nats.jetstream.api.v1.")
            assert set(said.get("error", {})) <= {"code", "err_code", "description"}


@pytest.mark.parametrize("storage", ["memory", "file"])
def test_age_and_duplicates_go_with_time(tmp_path: Path, storage: str) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"], storage=storage, max_age=10 * SECOND, duplicate_window=3 * SECOND)
    assert world.publish("s", Nats_Msg_Id="a")["seq"] == 1
    world.pass_time(2 * SECOND)
    assert world.publish("s", Nats_Msg_Id="a") == {"stream": "S", "seq": 1, "duplicate": True}
    if storage == "file":
        world.crash()
        assert world.publish("s", Nats_Msg_Id="a")["duplicate"]
    world.pass_time(2 * SECOND)
    assert world.publish("s", Nats_Msg_Id="a")["seq"] == 2
    world.pass_time(7 * SECOND)
    assert world.state("S")["messages"] == 1
    world.pass_time(4 * SECOND)
    assert world.state("S")["messages"] == 0
    assert world.publish("s")["seq"] == 3


def test_wider_limits_bring_nothing_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], max_msgs=3, max_msgs_per_subject=2)
    for i in range(8):
        world.publish(f"s.{i % 2}", b"%d" % i)
    before = world.state("S")
    world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"]})
    world.crash()
    assert world.state("S") == before


def test_what_all_streams_may_take(tmp_path: Path) -> None:
    world = World(limits=QuotaLimits(1000, 1000))
    assert world.create("S", subjects=["s"], storage="memory", max_bytes=2000)["error"]["err_code"] == 10028
    assert world.create("S", subjects=["s"], max_bytes=2000)["error"]["err_code"] == 10047
    world.create("S", subjects=["s"], storage="memory")
    assert world.publish("s", bytes(900))["seq"] == 1
    assert world.publish("s", bytes(900))["error"]["err_code"] == 10023
    world.api("STREAM.PURGE.S")
    assert world.publish("s", bytes(900))["seq"] == 2
    world.api("STREAM.DELETE.S")
    assert world.api("INFO")["memory"] == 0


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    world.publish("s", b"1")
    with mock.patch.object(MessageBlock, "flush", side_effect=StorageError("no space left")):
        refused = world.publish("s", b"2")
    assert refused["error"] == {"code": 503, "err_code": 10077, "description": "no space left"}
    assert world.state("S")["messages"] == 1
    assert world.publish("s", b"3")["seq"] == 2
    world.crash()
    assert world.state("S")["messages"] == 2


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_a_torn_record_is_not_there_and_what_follows_is(tmp_path: Path, cut: int) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    for i in range(3):
        world.publish("s", b"%d" % i)
    path = next(tmp_path.rglob("1.blk"))
    path.write_bytes(path.read_bytes()[:-cut])
    world.crash()
    assert world.state("S")["messages"] == 2 - (cut == 40)
    sequence = world.publish("s", b"new")["seq"]
    world.crash()
    assert world.state("S")["last_seq"] == sequence


def test_one_directory_is_for_one_broker(tmp_path: Path) -> None:
    World(tmp_path)
    with pytest.raises(StorageError, match="in use by another broker"):
        World(tmp_path)


def test_a_directory_that_cannot_be_served_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    world.server.stop()
    meta = next(tmp_path.rglob("meta.inf"))
    before: dict[str, Any] = {path.name: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    meta.write_bytes(meta.read_bytes().replace(b"limits", b"limitz"))
    world.begin()
    assert world.api("STREAM.NAMES")["streams"] is None
    assert world.create("S", subjects=["s"])["error"]["err_code"] == 10077
    assert meta.exists() and before


@pytest.mark.parametrize("storage", ["memory", "file"])
@pytest.mark.parametrize("age", [0, 10])
def test_messages_go_when_they_say(tmp_path: Path, storage: str, age: int) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], storage=storage, allow_msg_ttl=True, max_age=age * SECOND)
    lives = {"s.a": "3", "s.b": "never", "s.c": "6s", "s.d": ""}
    for subject, life in lives.items():
        assert "seq" in world.publish(subject, b"x", Nats_TTL=life)
    seconds = 0
    for until, left in (
        (2, "abcd"), (4, "bcd"), (7, "bd"), (12, "b" if age else "bd"), (100, "b" if age else "bd"),
    ):  # fmt: skip
        world.pass_time((until - seconds) * SECOND)
        seconds = until
        assert set(world.state("S").get("subjects", {})) == {f"s.{each}" for each in left}, until
        if storage == "file":
            world.crash()
            assert set(world.state("S").get("subjects", {})) == {f"s.{each}" for each in left}, until


def test_a_marker_says_that_the_last_message_of_a_subject_went(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], subject_delete_marker_ttl=5 * SECOND, max_age=20 * SECOND)
    world.consumer("S", "c", ack_policy="none", inactive_threshold=3600 * SECOND)
    world.publish("s.a", b"x", Nats_TTL="5")
    world.publish("s.b", b"y", Nats_TTL="5")
    world.publish("s.b", b"z")
    world.pass_time(7 * SECOND)
    # One of s.b is still there.
    assert world.state("S")["subjects"] == {"s.a": 1, "s.b": 1}
    header = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 5s\r\nNats-Rollup: sub\r\n\r\n"
    message = world.api("STREAM.MSG.GET.S", {"last_by_subj": "s.a"})["message"]
    assert base64.b64decode(message["hdrs"]) == header and "data" not in message
    assert [payload for _, payload, _ in world.pull("S", "c", {"batch": 9, "no_wait": True})] == [b"z", b"", b""]
    world.crash()
    # A marker goes without a marker.
    world.pass_time(6 * SECOND)
    assert world.state("S")["subjects"] == {"s.b": 1}
    world.pass_time(11 * SECOND)
    assert world.api("STREAM.MSG.GET.S", {"last_by_subj": "s.b"})["message"]["seq"] == 5
    world.pass_time(7 * SECOND)
    assert world.state("S")["messages"] == 0


@pytest.mark.parametrize("storage", ["memory", "file"])
@pytest.mark.parametrize("kept", [{}, {"Nats_TTL": "never"}])
def test_markers_come_in_the_order_in_which_subjects_end(tmp_path: Path, storage: str, kept: dict[str, str]) -> None:
    """As nats-server 2.12.8 and 2.15.1 make them (jetstream-server.md section 7)."""
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], storage=storage, subject_delete_marker_ttl=5 * SECOND, max_age=20 * SECOND)
    world.create("T", subjects=["t.>"], storage=storage, subject_delete_marker_ttl=5 * SECOND)
    for each in "ds":
        world.publish(f"s.{each}", b"x", **kept)
    if kept:
        world.api("STREAM.PURGE.S", {"filter": "s.d"})
    for each in "abcadb":
        world.publish(f"s.{each}", b"x")
        world.publish(f"t.{each}", b"x", Nats_TTL="20")
    world.pass_time(22 * SECOND)
    for stream in "ST":
        last = world.state(stream)["last_seq"]
        found = [world.api(f"STREAM.MSG.GET.{stream}", {"seq": last - back})["message"] for back in (3, 2, 1, 0)]
        assert "".join(each["subject"][-1] for each in found) == "cadb"
        assert all(b"Marker" in base64.b64decode(each["hdrs"]) for each in found)


@pytest.mark.parametrize("until", [{"max_age": 20 * SECOND}, {}], ids=["age", "lifetime"])
def test_no_marker_follows_the_purge_of_a_key(tmp_path: Path, until: dict[str, int]) -> None:
    """As nats-server 2.11.11, 2.12.8 and 2.15.1 do (jetstream-server.md section 7)."""
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], subject_delete_marker_ttl=5 * SECOND, **until)
    lifetime = {} if until else {"Nats_TTL": "20"}
    for row, headers in enumerate(
        ({"KV_Operation": "PURGE"}, {"KV_Operation": "DEL"}, {"Nats_Marker_Reason": "MaxAge"}, {"Nats_Rollup": "sub"})
    ):
        world.publish(f"s.{row}", b"", **headers, **lifetime)
    world.publish("s.0", b"x", **lifetime)
    world.publish("s.0", b"", KV_Operation="PURGE", Nats_Rollup="sub", **lifetime)
    world.pass_time(22 * SECOND)
    assert world.state("S")["subjects"] == {"s.1": 1, "s.3": 1}


def test_lifetimes_stay_where_a_subject_has_one_message(tmp_path: Path) -> None:
    """As on nats-server 2.12.8 and 2.15.1: a marker replaces all of its subject (jetstream-server.md section 7)."""
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], subject_delete_marker_ttl=50 * SECOND, max_msgs_per_subject=1)
    world.publish("s.a", b"x", Nats_TTL="9")
    world.create(
        "C", subjects=["c"], sources=[{"name": "S"}], subject_delete_marker_ttl=50 * SECOND, max_msgs_per_subject=1
    )
    for stream in "SC":
        assert b"Nats-TTL: 9\r\n" in base64.b64decode(
            world.api(f"STREAM.MSG.GET.{stream}", {"seq": 1})["message"]["hdrs"]
        )
    world.pass_time(11 * SECOND)
    assert b"Marker" in base64.b64decode(world.api("STREAM.MSG.GET.S", {"seq": 2})["message"]["hdrs"])


def test_messages_are_kept_for_as_long_as_the_marker_that_will_follow(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], subject_delete_marker_ttl=5_900_000_000, storage="file")
    for sequence, (headers, stored) in enumerate(
        (
            ({"Nats_TTL": "1"}, b"Nats-TTL: 5"),
            ({"A": "y", "Nats_TTL": "4s", "Z": "z"}, b"A: y\r\nZ: z\r\nNats-TTL: 5"),
            ({"Nats_TTL": "5s"}, b"Nats-TTL: 5s"),
            ({"Nats_TTL": "never"}, b"Nats-TTL: never"),
        ),
        1,
    ):
        world.publish(f"s.{sequence}", b"x", **headers)
        message = world.api("STREAM.MSG.GET.S", {"seq": sequence})["message"]
        assert base64.b64decode(message["hdrs"]) == b"NATS/1.0\r\n" + stored + b"\r\n\r\n"
    world.create(
        "C", subjects=["c"], sources=[{"name": "S"}], subject_delete_marker_ttl=9 * SECOND, max_age=900 * SECOND
    )
    copy = world.api("STREAM.MSG.GET.C", {"seq": 1})["message"]
    assert base64.b64decode(copy["hdrs"]).endswith(b" s.1\r\nNats-TTL: 9\r\n\r\n")
    for _ in range(2):
        world.pass_time(2 * SECOND)
        assert world.state("S")["messages"] == world.state("S")["last_seq"] == 4
        world.crash()
    world.pass_time(3 * SECOND)
    state = world.state("S")
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (4, 4, 7)


def test_what_was_asked_and_what_became_of_streams_is_told_to_who_listens() -> None:
    world = World()
    requests = [
        ("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}),
        ("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}),
        ("STREAM.UPDATE.S", {"name": "S", "subjects": ["s", "t"]}),
        ("STREAM.INFO.missing", b""),
        ("DIRECT.GET.S", {"seq": 1}),
        ("STREAM.DELETE.S", b""),
    ]

    def told(call: str, body: Any) -> list[str]:
        answer = world.api(call, body)
        found = [(to, json.loads(payload)) for to, _, payload, _, _ in world.bus.said if to.startswith(b"$JS.EVENT.")]
        for to, event in found:
            if to == audit:
                assert (event["subject"], json.loads(event["response"])) == (API + call, answer)
                assert event.get("request", "") == (json.dumps(body) if body else "")
        return [event.get("action", "asked") for _, event in found]

    audit = b"$JS.EVENT.ADVISORY.API"
    assert [told(*each) for each in requests] == [[]] * len(requests)
    world.bus.present |= {audit, *(b"$JS.EVENT.ADVISORY.STREAM.%b.S" % b for b in (b"CREATED", b"UPDATED", b"DELETED"))}
    assert [sorted(told(*each)) for each in requests] == [
        ["asked", "create"], ["asked"], ["asked", "modify"], ["asked"], [], ["asked", "delete"],
    ]  # fmt: skip


def test_who_alone_publishes_is_answered_before_what_is_over_the_limits_goes(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("K", subjects=["k.>"], max_msgs_per_subject=1, storage="file")
    world.create("S", subjects=["s"], max_msgs=2, storage="file")
    stored = world.server.account.streams
    there: list[int] = []

    def put(subject: bytes, payload: bytes) -> dict[str, Any]:
        world.time.now += 1_000_000
        world.bus.said.clear()
        world.wishes.commit = False
        world.bus.send(subject, payload, INBOX)
        # Nothing is left to a commit.
        assert not world.wishes.commit
        [(to, _, answer, _, _)] = world.bus.said
        assert to == INBOX
        return dict(json.loads(answer))

    with mock.patch.object(world.bus, "send_now", lambda: there.append(stored["K"].store.contents.messages)):
        for sequence in range(1, 9):
            assert put(b"k.%d" % (sequence % 2), b"%d" % sequence) == {"stream": "K", "seq": sequence}
    assert there == [1, 2, 3, 3, 3, 3, 3, 3]
    for sequence in range(1, 9):
        assert put(b"s", b"%d" % sequence) == {"stream": "S", "seq": sequence}
    with mock.patch.object(MessageBlock, "flush", side_effect=StorageError("no space left")):
        assert put(b"k.1", b"lost")["error"]["err_code"] == 10077
    world.crash()
    assert {name: world.state(name)["messages"] for name in "KS"} == {"K": 2, "S": 2}
    found = [world.server.account.streams[name].store.read(sequence) for name in "KS" for sequence in (7, 8)]
    assert [each and each.payload for each in found] == [b"7", b"8"] * 2
    assert put(b"k.1", b"9") == {"stream": "K", "seq": 9}
