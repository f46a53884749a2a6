"""A node's Raft directory, and the state rebuilt from it, against what real servers and their libraries said."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import StoreUnreadableError
from stantools.format.encryption import DataCipher, raft_cipher
from stantools.format.proto import store_pb2 as pb
from stantools.format.raftlog import EntryType, Fault, RaftEntry, RaftFlaw, decode_configuration, decode_operation
from stantools.sources.nodes import find_node
from stantools.store.nodes import NodeFiles
from stantools.store.raft import Snapshot, crc64, open_log, read_snapshots
from stantools.store.raftstate import ClusterState, SubKind
from tests import goldenstores
from tests.conftest import KINDS_OF_CLUSTERS, others_slow
from tests.format.test_raftlog import assert_runs_are_entries

CLUSTERS = goldenstores.unpacked() / "clusters"
CASES = sorted(path.name for path in CLUSTERS.iterdir())
#: Entries that a page of a log lost.
LOST = {
    ("damaged_leaf", "b"): range(53, 64),
    ("damaged_cut", "b"): range(53, 64),
    ("damaged_lost_write", "b"): range(94, 101),
}
#: The server itself loses what these snapshots hold, or has a channel that no log knows.
SERVER_DIFFERS = {
    "all_stores_lost_snapshot",
    "free_pages",
    "lost_store_snapshot",
    "standalone_between",
    "standalone_between_gap",
}

pytestmark = pytest.mark.golden


@cache
def load(case: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((CLUSTERS / case / "expected.json").read_text())
    return expected


def cipher_of(expected: dict[str, Any]) -> DataCipher | None:
    given = expected["options"].get("encryption")
    return raft_cipher((given["key"] if isinstance(given, dict) else given).encode()) if given else None


def nodes(case: str) -> dict[str, NodeFiles]:
    found = {path.name: find_node(path) for path in sorted((CLUSTERS / case / "nodes").iterdir())}
    return {name: node for name, node in found.items() if node}


@cache
def read(node: NodeFiles) -> tuple[list[RaftEntry], list[Fault | RaftFlaw], list[int]]:
    assert node.log
    with open_log(node.log) as log:
        entries: list[RaftEntry] = []
        wrong: list[Fault | RaftFlaw] = list(log.faults)
        for each in log.entries():
            if isinstance(each, RaftEntry):
                each.data = memoryview(bytes(each.data))
                entries.append(each)
            else:
                wrong.append(each)
        return entries, wrong, [each.index for each in log.free_entries()]


@pytest.mark.parametrize("case", others_slow(CASES, KINDS_OF_CLUSTERS))
def test_messages_come_together_whatever_the_pages_are(case: str) -> None:
    chance = random.Random(case)
    for node in nodes(case).values():
        assert node.log
        content = node.log.read_bytes()
        assert_runs_are_entries(content, 30)
        for _ in range(12):
            changed = bytearray(content)
            for _ in range(chance.choice((1, 1, 3))):
                begin, size = chance.randrange(len(changed)), chance.choice((1, 8, 400))
                changed[begin : begin + size] = chance.choice((chance.randbytes(size), bytes(size)))
            assert_runs_are_entries(bytes(changed))


@pytest.mark.parametrize("case", others_slow(CASES, KINDS_OF_CLUSTERS))
def test_logs_as_the_original_libraries_read_them(case: str) -> None:
    expected = load(case)
    cipher = cipher_of(expected)
    for name, node in nodes(case).items():
        facts = expected["node_facts"][name]
        entries, _, _ = read(node)
        if facts.get("log_digest"):
            digest = hashlib.sha256()
            for each in entries:
                data = cipher.decrypt(each.data) if cipher and each.type == EntryType.COMMAND else bytes(each.data)
                digest.update(struct.pack(">QQB", each.index, each.term, each.type) + data)
            if (case, name) not in LOST:
                assert digest.hexdigest() == facts["log_digest"]
                assert (entries[0].index, entries[-1].index) == (facts["first_index"], facts["last_index"])
            with open_log(node.log) as log:  # type: ignore[arg-type]
                stable = log.stable
            assert {k.decode(): v for k, v in stable.channels.items()} == facts["channel_ids"]
            conf = {"CurrentTerm": stable.term, "LastVoteTerm": stable.vote_term, "LastVoteCand": stable.vote}
            assert {k: v for k, v in conf.items() if v} == facts["conf"]
        wanted = {row["index"]: row for row in listed(case, name)}
        for each in entries:
            row = wanted.get(each.index)
            if row:
                check_entry(each, row, cipher)


def listed(case: str, node: str) -> list[dict[str, Any]]:
    path = CLUSTERS / case / f"entries_{node}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return rows


def check_entry(entry: RaftEntry, row: dict[str, Any], cipher: DataCipher | None) -> None:
    assert row["term"] == entry.term
    if row["type"] == "LogConfiguration" and "servers" in row:
        have = [{"Address": s.address, "ID": s.id, "Suffrage": 0} for s in decode_configuration(entry.data)]
        assert [{**s, "Suffrage": 0} for s in row["servers"]] == have
    if row.get("op") == "Publish" and "first" in row:
        operation = decode_operation(entry.data, cipher)
        sequences = [each.sequence for each in operation.publish_batch.messages]
        assert (sequences[0], sequences[-1], len(sequences)) == (row["first"], row["last"], row["n"])
        assert operation.publish_batch.messages[0].subject.decode() == row["channel"]


@pytest.mark.parametrize(("case", "node"), sorted(LOST))
def test_a_lost_page_loses_its_own_entries_only(case: str, node: str) -> None:
    entries, wrong, free = read(nodes(case)[node])
    last = entries[-1].index
    assert [each.index for each in entries] == [i for i in range(1, last + 1) if i not in LOST[case, node]]
    assert any(isinstance(each, RaftFlaw) and each.first in LOST[case, node] for each in wrong)
    assert max(free) <= last


def test_what_is_damaged_or_missing_is_told() -> None:
    told: dict[str, set[str]] = {}
    for case in CASES:
        for node in nodes(case).values():
            told.setdefault(case, set()).update(each.kind.value for each in read(node)[1])
    # A log that got a snapshot from its leader has a hole in front of it.
    assert {case: kinds for case, kinds in told.items() if kinds} == {
        "caught_up_by_snapshot": {"gap"},
        "damaged_cut": {"page", "gap"},
        "damaged_leaf": {"page", "gap"},
        "damaged_lost_write": {"keys", "gap"},
        "damaged_metas": {"meta"},
    }


def test_with_both_metas_bad_every_entry_is_found_in_the_pages() -> None:
    _, _, free = read(nodes("damaged_metas")["c"])
    assert set(free) == set(range(1, 98))
    _, _, cut = read(nodes("damaged_cut")["a"])
    assert len(set(cut)) == 72


def test_deleted_entries_lie_in_free_pages() -> None:
    expected = load("free_pages")["reference_merge"]["entries_in_free_pages"]
    for name, node in nodes("free_pages").items():
        entries, _, free = read(node)
        assert len(set(free) - {each.index for each in entries}) == expected[name]["not_in_tree"]


@pytest.mark.parametrize("case", others_slow(CASES, KINDS_OF_CLUSTERS))
def test_nodes_are_found_where_servers_put_them(case: str) -> None:
    expected = load(case)
    layout = expected["layout"]
    below = CLUSTERS / case / "nodes"
    for name, node in nodes(case).items():
        assert node.raft == below / layout[name]["raft"]
        data = below / layout[name]["data"]
        assert node.data == (data if data.exists() else None)
        assert node.cluster_id == expected["cluster_id"]
        assert find_node(node.raft) == NodeFiles(node.raft, node.raft, None)
        if node.data:
            assert find_node(node.data) is None


def test_several_nodes_are_not_taken_for_one() -> None:
    with pytest.raises(StoreUnreadableError, match="3 Raft logs"):
        find_node(CLUSTERS / "snapshots" / "nodes")


@pytest.mark.parametrize("case", others_slow(CASES, KINDS_OF_CLUSTERS))
def test_snapshots_as_the_original_reads_them(case: str) -> None:
    expected = load(case)
    for name, node in nodes(case).items():
        facts = {each["name"]: each for each in expected["node_facts"][name].get("snapshots") or ()}
        for snapshot in read_snapshots(node.raft):  # type: ignore[arg-type]
            if snapshot.usable and facts.get(snapshot.name):
                check_snapshot(snapshot, facts[snapshot.name])
        damaged = [each for each in read_snapshots(node.raft) if not each.usable]  # type: ignore[arg-type]
        assert bool(damaged) == ((case, name) in DAMAGED_SNAPSHOTS)


DAMAGED_SNAPSHOTS = {
    ("damaged_snapshot", "a"),
    ("damaged_snapshot", "b"),
    ("damaged_snapshot_meta", "a"),
    ("damaged_snapshot_meta", "b"),
}


def check_snapshot(snapshot: Snapshot, facts: dict[str, Any]) -> None:
    meta, state = facts["meta"], snapshot.state
    assert state
    assert (snapshot.term, snapshot.index, snapshot.size) == (meta["Term"], meta["Index"], facts["size"])
    assert [server.id for server in snapshot.servers] == [each["ID"] for each in meta["Configuration"]["Servers"]]
    assert len(state.padding) == facts["padding"]
    assert [each.id.decode() for each in state.clients] == [each["ID"] for each in facts["state"].get("Clients") or ()]
    for channel, wanted in zip(state.channels, facts["state"].get("Channels") or (), strict=True):
        assert channel.channel.decode() == wanted["Channel"]
        assert (channel.first, channel.last) == (wanted.get("First", 0), wanted.get("Last", 0))
        pending = [list(each.acks_pending) for each in channel.subscriptions]
        assert pending == [each.get("AcksPending", []) for each in wanted.get("Subscriptions") or ()]


def test_the_crc_is_that_of_xz() -> None:
    assert crc64(b"123456789").hex() == "995dc9bbdf1939fa"
    assert crc64(b"") == bytes(8)
    for size in (1, 5, 1 << 20, 3_000_000):
        assert crc64(bytes(size)) == slow_crc64(bytes(size)) if size < 10 else len(crc64(bytes(size))) == 8


def slow_crc64(data: bytes) -> bytes:
    value = 2**64 - 1
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xC96C5795D7870F42 if value & 1 else 0)
    return (value ^ 2**64 - 1).to_bytes(8, "big")


def test_every_way_to_damage_a_snapshot_is_told(tmp_path: Path) -> None:
    raft = tmp_path / "trio"
    shutil.copytree(nodes("snapshots")["a"].raft, raft)  # type: ignore[arg-type]
    newest = read_snapshots(raft)[0].path
    good = {name: (newest / name).read_bytes() for name in ("meta.json", "state.bin")}
    meta = json.loads(good["meta.json"])

    def errors(**files: bytes | None) -> list[str]:
        for name, content in {**good, **{key.replace("_", "."): value for key, value in files.items()}}.items():
            (newest / name).unlink(missing_ok=True)
            if content is not None:
                (newest / name).write_bytes(content)
        snapshot = next(each for each in read_snapshots(raft) if each.path == newest)
        assert snapshot.index == 125
        return snapshot.errors

    assert errors() == []
    assert "CRC mismatch" in errors(state_bin=good["state.bin"][:-1] + b"x")[0]
    assert "bytes, expected" in errors(state_bin=good["state.bin"][:-1])[0]
    assert "cannot be read" in errors(state_bin=None)[0]
    assert "cannot be read" in errors(meta_json=None)[0]
    for content in (b"", b"[]", b"{", b"\xff", b"[" * 100_000, json.dumps({**meta, "Version": 2}).encode()):
        assert "failed to read metadata" in errors(meta_json=content)[0]
    for change in ({"Index": -1}, {"Term": "x"}, {"Index": None}):
        assert "expected a number" in errors(meta_json=json.dumps({**meta, **change}).encode())[0]
    for crc in (None, 5, "%%%", "AAAA"):
        assert "CRC mismatch" in errors(meta_json=json.dumps({**meta, "CRC": crc}).encode())[0]


def rebuilt(node: NodeFiles, cipher: DataCipher | None) -> ClusterState:
    newest = next((each for each in read_snapshots(node.raft) if each.usable), None)  # type: ignore[arg-type]
    state = ClusterState(newest.state, newest.term, newest.index) if newest else ClusterState()
    for each in read(node)[0]:
        state.advance(each, decode_operation(each.data, cipher) if each.type == EntryType.COMMAND else None)
    return state


def as_facts(state: ClusterState) -> dict[str, Any]:
    """The state in the words of expected.json, sorted."""
    channels = {}
    for name, channel in state.channels.items():
        subs = {}
        for number, sub in channel.subscriptions.items():
            its = sub.state
            offline = sub.kind is SubKind.OFFLINE_DURABLE
            subs[number] = {
                "client_id": "" if offline else its.client_id.decode(),
                "saved_client_id": its.client_id.decode() if offline else "",
                "queue": its.q_group.decode(),
                "inbox": its.inbox.decode(),
                "ack_inbox": its.ack_inbox.decode(),
                "max_in_flight": its.max_in_flight,
                "ack_wait": its.ack_wait_in_secs,
                "durable_name": its.durable_name.decode(),
                "is_durable": its.is_durable,
                "is_closed": its.is_closed,
                # Of a member it depends on where the leader came from; the group's counts.
                "last_sent": None if its.q_group else its.last_sent,
                "pending": sorted(sub.pending),
                "kind": sub.kind.value,
            }
        groups = {
            key.decode(): {
                "last_sent": group.last_sent,
                "members": len(group.members),
                "shadow": group.shadow is not None,
            }
            for key, group in channel.groups.items()
        }
        channels[name.decode()] = {"id": channel.id, "next": channel.next_id, "subs": subs, "groups": groups}
    return channels


def server_facts(recovered: dict[str, Any]) -> dict[str, Any]:
    channels = {}
    for channel in recovered["channels"]:
        subs = {}
        for each in channel["subscriptions"]:
            sub = {name: value for name, value in each.items() if name != "id"}
            if sub["queue"]:
                sub["last_sent"] = None
            if sub["kind"] != "offline_durable":
                sub["saved_client_id"] = ""  # of others it is in the server's memory only
            subs[each["id"]] = sub
        channels[channel["name"]] = {
            "id": channel["channel_id"],
            "next": channel["next_sub_id"],
            "subs": subs,
            "groups": channel["queue_groups"],
        }
    return channels


@pytest.mark.parametrize("case", [case for case in CASES if load(case)["restart"]["leader"]])
def test_the_state_is_the_one_that_the_real_leader_recovered(case: str) -> None:
    expected = load(case)
    recovered = expected["restart"]["recovered"]
    state = rebuilt(nodes(case)[expected["restart"]["leader"]], cipher_of(expected))
    assert {each.decode() for each in state.clients} == {each["id"] for each in recovered["clients"]}
    have, wanted = as_facts(state), server_facts(recovered)
    if case not in SERVER_DIFFERS:
        assert have == wanted
    elif case.startswith("standalone"):
        assert have == {name: channel for name, channel in wanted.items() if name != "only.alone"}
    else:
        # The server dropped what its store had lost; here it is still there.
        assert have.keys() > wanted.keys() and sum(len(channel["subs"]) for channel in have.values()) > 0


@pytest.mark.parametrize("case", ["group_pending_lost_1", "group_pending_lost_2"])
def test_nothing_that_the_leader_held_as_pending_is_lost(case: str) -> None:
    expected = load(case)
    leader = {channel["name"]: channel for channel in expected["authoritative"]["channels"]}
    for node in nodes(case).values():
        if any(each.usable for each in read_snapshots(node.raft)):  # type: ignore[arg-type]
            continue  # a follower's snapshot may have lost them before
        state = rebuilt(node, None)
        for name, channel in leader.items():
            for group in channel["queue_groups"]:
                members = [sub for sub in channel["subscriptions"] if sub["queue"] == group]
                wanted = {sequence for sub in members for sequence in sub["pending"]}
                assert wanted <= state.channels[name.encode()].groups[group.encode()].pending()


def test_an_operation_of_a_channel_deleted_before_is_passed_over() -> None:
    state = ClusterState()
    for number, sequence in ((5, 1), (9, 1), (9, 2), (5, 7), (0, 3)):
        message = pb.MsgProto(sequence=sequence, subject=b"a")
        state.apply(pb.RaftOperation(publish_batch=pb.Batch(messages=[message]), channel_id=number))
    assert (state.channels[b"a"].id, state.channels[b"a"].first, state.channels[b"a"].last) == (9, 1, 3)
    state.apply(pb.RaftOperation(op_type=pb.RaftOperation.DELETE_CHANNEL, channel=b"a", channel_id=5))
    assert state.channels
    state.apply(pb.RaftOperation(op_type=pb.RaftOperation.DELETE_CHANNEL, channel=b"a", channel_id=9))
    assert not state.channels
