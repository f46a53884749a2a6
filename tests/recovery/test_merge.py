"""Merging the nodes of clusters, against what the real clusters reported and what their directories held before."""

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

from stantools.errors import RefusedError, UsageError
from stantools.format.raftlog import RaftEntry
from stantools.inspection.overview import ChannelOverview, overview
from stantools.migration.source import ChannelSource, DecryptionKey
from stantools.recovery.merge import MergePlan, plan_merge
from stantools.recovery.recovery_options import MergeOptions
from stantools.recovery.salvage import apply_salvage
from stantools.recovery.salvage.check import check_new_store, exit_code
from stantools.sources.nodes import find_node
from stantools.store.directory import MANIFEST_FILE, open_datastore
from stantools.store.nodes import NodeFiles
from stantools.store.raft import open_log
from stantools.store.read_options import ReadOptions
from tests import goldenstores
from tests.brokers import Broker
from tests.conftest import KINDS_OF_CLUSTERS, others_slow

CLUSTERS = goldenstores.unpacked() / "clusters"
CASES = sorted(path.name for path in CLUSTERS.iterdir())
#: All data directories are gone: free pages have the rest.
NO_STORE = {"all_stores_lost_snapshot", "free_pages"}

pytestmark = pytest.mark.golden


@cache
def load(case: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((CLUSTERS / case / "expected.json").read_text())
    return expected


def key_of(case: str) -> bytes | None:
    given = load(case)["options"].get("encryption")
    return (given["key"] if isinstance(given, dict) else given).encode() if given else None


def authority(case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the merge has to come to: state, and messages by channel."""
    expected = load(case)
    said = expected["authoritative"]
    if said["source"] == "restart":
        return expected["restart"]["recovered"], expected["restart"]["messages"]
    return said, said["messages"]


def nodes_in(directory: Path) -> list[NodeFiles]:
    return [find_node(each) or NodeFiles(each, None, each / "data") for each in sorted(directory.iterdir())]


def planned(case: str, directory: Path | None = None, **options: Any) -> MergePlan:
    nodes = nodes_in(directory or CLUSTERS / case / "nodes")
    return plan_merge(nodes, ReadOptions(encryption_key=key_of(case)), MergeOptions(**options))


def digest(plan: MergePlan, name: str, case: str, first: int = 1) -> tuple[int, str]:
    """Count and digest of a channel's messages, as expected.json has them."""
    channel = next(each for each in plan.channels if each.name == name.encode())
    count, found = 0, hashlib.sha256()
    for batch in ChannelSource(channel, plan.crc, DecryptionKey(key_of(case))).read(after=first - 1):
        for row in range(len(batch)):
            found.update(struct.pack(">Qq", int(batch.sequence[row]), int(batch.timestamp[row])))
            found.update(batch.data(row))
            count += 1
    return count, found.hexdigest()


def check_subscriptions(have: ChannelOverview, wanted: dict[str, Any]) -> None:
    """Every subscription is there and stands where it stood; pending may be more, never less."""
    subs = {each.state.id: each for each in have.subscriptions}
    assert set(subs) == {each["id"] for each in wanted["subscriptions"]}
    pending: dict[str, tuple[set[int], set[int]]] = {}
    positions: dict[str, int] = {}
    for each in wanted["subscriptions"]:
        mine = subs[each["id"]]
        state = mine.state
        assert (state.inbox.decode(), state.ack_inbox.decode()) == (each["inbox"], each["ack_inbox"])
        assert (state.q_group.decode(), state.durable_name.decode()) == (each["queue"], each["durable_name"])
        assert (state.max_in_flight, state.ack_wait_in_secs) == (each["max_in_flight"], each["ack_wait"])
        if not each["queue"]:
            assert state.last_sent == each["last_sent"]
        unit = each["queue"] or str(each["id"])
        expected, found = pending.setdefault(unit, (set(), set()))
        expected.update(each["pending"])
        found.update(mine.pending)
        positions[unit] = max(positions.get(unit, 0), state.last_sent)
    for expected, found in pending.values():
        assert expected <= found
    for name, group in wanted["queue_groups"].items():
        assert positions[name] == group["last_sent"]


@pytest.mark.parametrize("case", others_slow(CASES, KINDS_OF_CLUSTERS))
def test_the_merge_is_what_the_cluster_was(case: str, tmp_path: Path) -> None:
    wanted, messages = authority(case)
    plan = planned(case, free_pages=case in NO_STORE)
    result = apply_salvage(plan, tmp_path / "new")
    check = check_new_store(plan, result)
    assert check.good, check
    assert exit_code(plan, check) == (5 if case in NO_STORE else 0)
    view = overview(open_datastore(tmp_path / "new", plan.crc))
    assert view.server and not view.server.node_id
    assert view.server.cluster_id.decode() == load(case)["cluster_id"]
    assert {each.id.decode() for each in view.clients} == {each["id"] for each in wanted["clients"]}
    for each in plan.channels:
        assert sum(plan.sources[each.name].values()) == each.sequences.count(), each.name
    written = [path.stat().st_size for path in result.path.glob("*/msgs.*.dat")]
    # of messages that are copied in part, the number of bytes is an upper bound
    assert 0 <= plan.bytes + 1 - sum(written) + 4 * len(written) <= (1 if case not in NO_STORE else plan.bytes // 5)
    have = {each.name: each for each in view.channels}
    channels = {each["name"]: each for each in wanted["channels"]}
    if case.startswith("standalone"):  # made outside of the cluster: named, and not taken
        assert any("only.alone" in each.file for each in plan.dropped)
        channels.pop("only.alone", None)
    assert set(have) == set(channels)
    reference = load(case)["reference_merge"]
    for name, channel in channels.items():
        if case in NO_STORE:
            found = reference["messages_with_free_pages"][name]
            assert next(c for c in plan.channels if c.name == name.encode()).sequences.as_json() == found["ranges"]
        elif messages.get(name):
            said = reference["messages"] if case == "standalone_between_gap" else messages
            got = digest(plan, name, case, channel["first_seq"])
            assert got == (said[name]["count"], said[name]["digest"])
        check_subscriptions(have[name], channel)


def test_without_free_pages_only_the_log_is_read(tmp_path: Path) -> None:
    plan = planned("free_pages")
    assert {each.name: each.sequences.as_json() for each in plan.channels}[b"orders"] == [[31, 35]]
    assert plan.gone and plan.lossy and not plan.free_pages
    assert plan.sources[b"orders"] == {"a: raft.log": 5} or list(plan.sources[b"orders"].values()) == [5]


def test_what_differs_is_told(tmp_path: Path) -> None:
    between = planned("standalone_between")
    assert [each.sequence for each in between.conflicts] == [31, 32, 33]
    assert {each.why for each in between.conflicts} == {"it is the one in the Raft log"}
    gap = planned("standalone_between_gap")
    versions = [(v.nodes, v.filler, v.taken) for v in gap.conflicts[0].versions]
    assert sorted(versions) == [(("a",), False, True), (("b", "c"), True, False)]
    damaged = planned("damaged_values")
    assert [(each.index, each.taken, each.others) for each in damaged.log.conflicts] == [
        (38, ("a", "b"), ("c",)),
        (77, ("b", "c"), ("a",)),
        (85, ("a", "c"), ("b",)),
    ]
    assert planned("conflicting_tail").log.branches
    stale = planned("stale_node")
    assert [each.name for each in stale.nodes if each.stale] == load("stale_node")["stale_nodes"]


@pytest.mark.parametrize("case", ["snapshots", "killed_under_load", "channel_deleted", "five_nodes"])
def test_one_node_is_enough(case: str) -> None:
    """The one whose log counts has everything by itself, but for what its own store lacks."""
    whole = planned(case)
    (best,) = [each for each in nodes_in(CLUSTERS / case / "nodes") if each.path.name == whole.log.winner]
    alone = plan_merge([best], ReadOptions())
    assert [(each.name, each.sequences, len(each.subscriptions)) for each in alone.channels] == [
        (each.name, each.sequences, len(each.subscriptions)) for each in whole.channels
    ]
    assert any("fewer than a majority" in each for each in alone.changes)


def test_messages_that_only_the_log_has(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    shutil.copytree(CLUSTERS / "encrypted" / "nodes", nodes)
    for each in sorted(nodes.iterdir()):
        shutil.rmtree(each / "data" / "orders")
    plan = planned("encrypted", nodes)
    wanted = authority("encrypted")[1]["orders"]
    assert digest(plan, "orders", "encrypted") == (wanted["count"], wanted["digest"])
    result = apply_salvage(plan, tmp_path / "new")
    # What was encrypted in the log is encrypted in the store, so that nobody reads it there without the key.
    content = b"".join(path.read_bytes() for path in (result.path / "orders").glob("*.dat"))
    assert b"message 0" not in content
    assert check_new_store(plan, result).good
    assert open_datastore(result.path).channel_names == sorted(authority("encrypted")[1])
    moved = json.loads((result.path / MANIFEST_FILE).read_text())["moved"]
    assert {each["note"] for each in moved if each["channel"] == "orders"} == {"from the Raft log"}
    # Without the key the log cannot be read: these messages are lost, and that is said.
    without = plan_merge(nodes_in(nodes), ReadOptions())
    assert without.lossy and any("encrypted" in each.reason for each in without.dropped)


def test_entries_in_front_of_a_damaged_page_count(tmp_path: Path) -> None:
    """A snapshot covers the hole for the state; for messages that no store has, what is in front of it is needed."""
    node, case = tmp_path / "nodes" / "b", "group_pending_lost_1"
    shutil.copytree(CLUSTERS / case / "nodes" / "b", node)
    shutil.rmtree(node / "data")
    whole = planned(case, tmp_path / "nodes")
    assert not whole.lossy
    log = find_node(node).log  # type: ignore[union-attr]
    assert log
    with open_log(log) as opened:
        offset = next(each.offset for each in opened.entries() if isinstance(each, RaftEntry) and each.index == 100)
    hurt = bytearray(log.read_bytes())
    hurt[offset // 4096 * 4096 : offset // 4096 * 4096 + 16] = bytes(16)
    log.write_bytes(bytes(hurt))
    plan = planned(case, tmp_path / "nodes")
    assert not plan.log.missing and len(plan.clients) == len(whole.clients)
    assert plan.messages > whole.messages // 2 and plan.messages + plan.missing == whole.messages
    assert min(each.sequences.first for each in plan.channels) == 1


def test_what_is_damaged_at_the_end_is_lost_where_no_log_tells(tmp_path: Path) -> None:
    node = tmp_path / "nodes" / "a"
    shutil.copytree(CLUSTERS / "lost_raft" / "nodes" / "b", node)
    path = node / "data" / "orders" / "msgs.1.dat"
    path.write_bytes(path.read_bytes()[:-5])
    plan = planned("lost_raft", tmp_path / "nodes")
    (orders,) = plan.channels
    assert (orders.sequences.as_json(), orders.missing.as_json(), plan.missing) == ([[1, 29]], [[30, 30]], 1)
    # Another node has it.
    shutil.copytree(CLUSTERS / "lost_raft" / "nodes" / "a", node.with_name("b"))
    whole = planned("lost_raft", tmp_path / "nodes")
    assert not whole.lossy and whole.channels[0].sequences.as_json() == [[1, 30]]


def test_nodes_of_different_clusters_are_not_merged(tmp_path: Path) -> None:
    one, other = (CLUSTERS / case / "nodes" / "a" for case in ("snapshots", "churn_1"))
    shutil.copytree(one, tmp_path / "a")
    shutil.copytree(other, tmp_path / "b")
    server = tmp_path / "b" / "data" / "server.dat"
    server.unlink()
    nodes = [find_node(tmp_path / name) for name in "ab"]
    with pytest.raises(RefusedError, match="different clusters"):
        plan_merge([each for each in nodes if each], ReadOptions())
    (tmp_path / "c").mkdir()
    shutil.copytree(one / "data", tmp_path / "c" / "data")
    shutil.copytree(one / "raft" / "trio", tmp_path / "c" / "raft" / "quartet")
    with pytest.raises(RefusedError, match="different clusters: quartet, trio"):
        plan_merge(nodes_in(tmp_path)[2:], ReadOptions())
    with pytest.raises(UsageError, match="named twice: node a"):
        plan_merge([each for each in (find_node(one), find_node(tmp_path / "a")) if each], ReadOptions())


def test_a_server_dat_that_cannot_be_read_is_that_of_another_node(tmp_path: Path) -> None:
    case = "snapshots"
    shutil.copytree(CLUSTERS / case / "nodes", tmp_path / "nodes")
    (tmp_path / "nodes" / "a" / "data" / "server.dat").write_bytes(b"\1\0\0\0garbage")
    plan, whole = planned(case, tmp_path / "nodes"), planned(case)
    assert plan.server == whole.server
    assert [each.name for each in plan.nodes] == [each.name for each in whole.nodes]
    assert state_of(plan) == state_of(whole)


@pytest.mark.parametrize("seeds", [11, pytest.param(200, marks=pytest.mark.slow)])
def test_damage_of_one_node_takes_nothing_that_another_has(tmp_path: Path, seeds: int) -> None:
    case = "churn_2"
    whole = planned(case)
    wanted = state_of(whole)
    digests = {each.name: digest(whole, each.name.decode(), case) for each in whole.channels}
    nodes = tmp_path / "nodes"
    shutil.copytree(CLUSTERS / case / "nodes", nodes)
    for seed in range(seeds):
        chance = random.Random(seed)
        path = find_node(nodes / chance.choice("abc")).log  # type: ignore[union-attr]
        assert path
        good = path.read_bytes()
        hurt = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(hurt))
            size = chance.choice((1, 1, 8, 4096))
            hurt[at : at + size] = chance.randbytes(min(size, len(hurt) - at)) if size < 4096 else bytes(size)
        path.write_bytes(bytes(hurt[: len(good)]))
        plan = planned(case, nodes)
        assert not plan.lossy, (seed, plan.dropped)
        assert state_of(plan) == wanted, seed
        if seed % 10 == 0:
            assert {each.name: digest(plan, each.name.decode(), case) for each in plan.channels} == digests
        path.write_bytes(good)


def state_of(plan: MergePlan) -> Any:
    """Clients, messages and subscriptions of a plan."""
    return (
        sorted(each.id for each in plan.clients),
        [
            (
                each.name,
                each.sequences.as_json(),
                [(sub.state.SerializeToString(deterministic=True), sorted(sub.pending)) for sub in each.subscriptions],
            )
            for each in plan.channels
        ],
    )


@pytest.mark.parametrize("case", ["lost_store_snapshot", "group_pending_lost_2"])
def test_a_standalone_server_goes_on_with_it(case: str, tmp_path: Path) -> None:
    """Monitoring shows the channels and subscriptions that the cluster had, and the clients are known."""
    plan = planned(case)
    result = apply_salvage(plan, tmp_path / "new")
    check = check_new_store(plan, result)
    wanted, _ = authority(case)
    words = ("-st", "FILE", "-dir", result.path, *check.start.options)
    with Broker(tmp_path / "broker", *words, http=True) as broker:
        for channel in wanted["channels"]:
            shown = broker.figures(f"streaming/channelsz?channel={channel['name']}&subs=1")
            assert (shown["first_seq"], shown["last_seq"], shown["msgs"]) == (
                channel["first_seq"],
                channel["last_seq"],
                channel["msgs"],
            )
            have = {(each["inbox"], each["is_durable"]) for each in shown["subscriptions"]}
            assert have == {(each["inbox"], each["is_durable"]) for each in channel["subscriptions"]}
        clients = broker.figures("streaming/clientsz")["clients"]
        assert {each["id"] for each in clients} == {each["id"] for each in wanted["clients"]}
