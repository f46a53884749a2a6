"""Raft groups of real clusters: terms, votes, members, snapshots, entries, and what they did."""

from __future__ import annotations

import json
import struct
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stantools.recovery.streams.cluster import aligned
from stantools.recovery.streams.record_files import ChosenRecords, MadeRecords
from stantools.store.ranges import Ranges
from stantools.streamfiles import raft_operations
from stantools.streamfiles.raft_group import (
    META_GROUP,
    NORMAL,
    OLD_SNAPSHOT,
    GroupEntry,
    RaftGroup,
    RaftSnapshot,
)
from stantools.streamfiles.raft_operations import (
    LoggedMessage,
    LoggedStream,
    RaftOperation,
    assignments,
    logged_consumer,
    logged_stream,
)
from tests.streamfiles.test_golden_streams import folder, load

pytestmark = pytest.mark.golden
CASES = ("cl_ok_10", "cl_ok_12_killed", "cl_ok_15", "cl_minority_10", "cl_minority_15", "cl_after_orphans_15")
OPERATIONS = {
    "stream_msg": RaftOperation.MESSAGE,
    "delete_msg": RaftOperation.DELETE,
    "update_delivered": RaftOperation.DELIVERED,
    "update_acks": RaftOperation.ACKED,
    "assign_stream": RaftOperation.ASSIGN_STREAM,
    "assign_consumer": RaftOperation.ASSIGN_CONSUMER,
    "remove_stream": RaftOperation.REMOVE_STREAM,
}


def group(case: str, node: str, name: str) -> RaftGroup:
    return RaftGroup(folder() / case / "store" / node / "jetstream/$SYS/_js_" / name, node)


@pytest.mark.parametrize("case", CASES)
def test_groups_are_read(case: str) -> None:
    for node, facts in load(case)["raft"].items():
        for name, wanted in facts["groups"].items():
            found = group(case, node, name)
            check_group(found, wanted)
        if "meta_assignments" in facts:
            assigned = assignments(group(case, node, META_GROUP))
            assert {f"{account}/{name}" for account, name in assigned} == facts["meta_assignments"].keys()
            for (account, name), each in assigned.items():
                there = facts["meta_assignments"][f"{account}/{name}"]
                assert sorted(each.consumers) == sorted(there["consumers"])
                assert each.config["num_replicas"] == there["replicas"]


def check_group(found: RaftGroup, wanted: dict[str, Any]) -> None:
    assert (found.term, found.vote or None) == (wanted["tav"]["term"], wanted["tav"]["vote"] or None)
    assert found.peers == wanted["peers"]["known"]
    good = [each["index"] for each in wanted["snapshots"] if each["hash_ok"]]
    assert (found.snapshot.index if found.snapshot else None) == max(good, default=None)
    if found.entries:
        assert found.entries[-1].index == wanted["log_last"]
    counts = Counter(entry.data[0] for entry in found.entries if entry.kind == NORMAL)
    assert {name: counts[code] for name, code in OPERATIONS.items() if counts[code]} == {
        name: count for name, count in wanted["ops"].items() if name in OPERATIONS
    }
    if "stream_messages" in wanted:
        log = logged_stream(found)
        assert Ranges.of((each.sequence, each.sequence) for each in log.messages).as_json() == wanted["stream_messages"]


@pytest.mark.parametrize("case", CASES[:4])
def test_a_consumer_is_where_its_log_says(case: str) -> None:
    truth = load(case)["truth"]["$G/ORDERS"]["consumers_per_node"]
    checked = 0
    for node, facts in load(case)["raft"].items():
        for name in facts["groups"]:
            found = group(case, node, name)
            consumer = found.asset[2]
            wanted = truth.get(node, {}).get(consumer)
            if not consumer or not wanted or not (state := logged_consumer(found, "explicit")):
                continue
            checked += 1
            assert list(state.delivered) == [wanted["delivered"]["consumer"], wanted["delivered"]["stream"]]
            assert sorted(state.pending) == sorted(each[0] for each in wanted["pending"])
    assert checked


def test_a_cut_snapshot_is_named(tmp_path: Path) -> None:
    found = group("cl_meta_snapshot_cut", "n1", META_GROUP)
    assert found.snapshot is None
    assert found.flaws == [
        f"snapshots/{path.name}: it is cut, or its hash is wrong" for path in found.path.glob("snapshots/*")
    ]


def message(sequence: int, time: int) -> LoggedMessage:
    return LoggedMessage(sequence, time, b"a", b"", b"%d" % time)


def test_failed_publishes_shift_the_sequences_of_a_log() -> None:
    """The messages at times 30 and 60 failed; blocks have those at 10, 40, 70 and 80."""
    log = LoggedStream([message(number, 10 * number) for number in range(1, 10)])
    there = [message(1, 10), message(3, 40), message(5, 70), message(6, 80)]
    blocks = MadeRecords("1.blk", there)
    found = aligned(log, ChosenRecords([(blocks, blocks.sequences)]))
    # between 10 and 40, and between 40 and 70, it is not clear which one failed; the last one continues
    assert {sequence: each.time for sequence, each in found.items()} == {1: 10, 3: 40, 5: 70, 6: 80, 7: 90}
    alone = aligned(log, ChosenRecords())
    assert sorted(alone) == list(range(1, 10))


MEMBERS = ("seq", "last_seq", "request", "filter", "keep", "stream", "consumer", "client", "acc", "name", "created")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=8,
)
CONTENTS = st.binary(max_size=40) | st.builds(
    lambda operation, value: bytes([operation]) + json.dumps(value).encode(),
    st.sampled_from(RaftOperation),
    JSON | st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=6),
)


def written(parts: list[bytes], sizes: list[int]) -> bytes:
    """The entry of a log with some parts, and sizes before them that need not be theirs."""
    head = struct.pack("<8sQQQQH", b"peer", 1, 0, 0, 0, len(parts))
    return head + b"".join(
        size.to_bytes(4, "little") + part for size, part in zip_longest(sizes, parts, fillvalue=0) if part != 0
    )


@pytest.mark.generated
@given(payload=st.binary(max_size=60) | st.builds(written, st.lists(CONTENTS), st.lists(st.integers(0, 80))))
def test_any_bytes_are_entries_or_none(payload: bytes) -> None:
    found = RaftGroup(Path("group"), "n1")
    found._payloads = lambda: [(1, payload)]  # type: ignore[method-assign,assignment]
    assert sum(len(each.data) for each in found.entries) <= len(payload)


@pytest.mark.generated
@given(contents=st.lists(st.tuples(st.sampled_from([NORMAL, OLD_SNAPSHOT]), CONTENTS), max_size=4), snapshot=CONTENTS)
@example(contents=[(NORMAL, bytes([RaftOperation.PURGE]) + b'{"request": {"keep": "1"}}')], snapshot=b"")
@example(contents=[(NORMAL, bytes([RaftOperation.DELETE]) + b"[" * 100_000)], snapshot=b"")
@example(contents=[(NORMAL, bytes([RaftOperation.PURGE]) + b'{"last_seq": 1' + b"0" * 30 + b"}")], snapshot=b"")
@example(contents=[], snapshot=bytes([0x2A, 1, 0, 0, 1, 1, 0, 1, 0x21, 1, 0]))
@example(contents=[], snapshot=b"\x2a\x01" + bytes([0, 0, 1, 1, 0, 1, 0x21]) + 2 * (b"\xff" * 9 + b"\x01"))
def test_any_content_of_entries_is_read_or_a_flaw(contents: list[tuple[int, bytes]], snapshot: bytes) -> None:
    found = RaftGroup(Path("group"), "n1")
    entries = [GroupEntry(index, 1, kind, data) for index, (kind, data) in enumerate(contents, 1)]
    found.__dict__.update(entries=entries, snapshot=RaftSnapshot(1, 0, snapshot))
    logged_stream(found)
    logged_consumer(found, "explicit")
    assignments(found)


def test_any_assignments_of_a_snapshot_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (5, "text", {"a": 1}, [5], [{"name": 1}]):
        each = {"stream": {"name": "ORDERS"}, "Consumers": value}
        monkeypatch.setattr(raft_operations.kernels, "decompress_s2", lambda *_, each=each: (json.dumps([each]), True))
        found = RaftGroup(Path("group"), META_GROUP)
        found.__dict__.update(entries=[], snapshot=RaftSnapshot(1, 0, b""))
        assert [*assignments(found)] == [("$G", "ORDERS")]
