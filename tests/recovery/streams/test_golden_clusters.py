"""Salvage of clustered nodes: together they give what any of them has, and logs give what no directory has any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from stantools.store.ranges import Ranges
from tests import servers
from tests.recovery.streams.salvaged import Salvage, check_notes, check_server, ranges, salvage
from tests.streamfiles.test_golden_streams import digest, folder, load

pytestmark = pytest.mark.golden
SAMPLE = ("cl_ok_15", "cl_flip_each_node", "cl_after_orphans_15", "cl_minority_10", "cl_one_node_left", "cl_meta_old")
VERSIONS = [each for each in ("2.10.26", "2.12.8", "2.15.1") if each in servers.available()]


def cases() -> list[str]:
    return sorted(path.name for path in folder().glob("cl_*"))


def check(case: str, done: Salvage, node: str = "") -> None:
    check_notes(f"{case}/{node}" if node else case, done)
    found = {each.full_name: each for each in done.plan.streams}
    for name, truth in load(case)["truth"].items():
        live, intact = ranges(truth["live"]["ranges"]), ranges(truth["intact_on_disk"])
        logs = truth.get("in_raft_log_per_node", {})
        if node:
            intact, logs = ranges(truth["intact_per_node"].get(node, [])), {node: logs.get(node, [])}
        wanted = intact | Ranges.union(ranges(each) for each in logs.values())
        if name not in found:
            assert not wanted, (case, name)
            continue
        stream = found[name]
        assert not wanted - stream.recovered, (case, name)
        if not node:
            assert not stream.recovered - live - stream.resurrected, (case, name)
        if not live - stream.recovered:
            assert digest(done.contents(stream), live) == truth["live"]["digest"], (case, name)
        assert not stream.lost & stream.recovered
        states = {each.name: each.state for each in stream.consumers}
        there = {path.name for path in (folder() / case / "store").iterdir()}
        for own in [own for each, own in truth["consumers_per_node"].items() if each in there and not node]:
            for consumer, state in own.items():
                position = states[consumer]
                assert position and position.delivered[1] >= state["delivered"]["stream"], (case, name, consumer)


@pytest.mark.parametrize("case", SAMPLE)
def test_nodes_together(case: str, tmp_path: Path) -> None:
    check(case, salvage(folder() / case / "store", tmp_path / "new"))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases())
def test_all_nodes_together_and_each_alone(case: str, tmp_path: Path) -> None:
    check(case, salvage(folder() / case / "store", tmp_path / "new"))
    for node in sorted(folder().joinpath(case, "store").iterdir()):
        check(case, salvage(node, tmp_path / node.name), node.name)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_servers_open_merged_nodes(version: str, tmp_path: Path) -> None:
    done = {case: salvage(folder() / case / "store", tmp_path / case) for case in cases()}
    check_server(version, done, tmp_path / "server")


def test_a_stream_that_the_cluster_deleted_stays_deleted(tmp_path: Path) -> None:
    done = salvage(folder() / "cl_minority_15" / "store", tmp_path / "new")
    assert "$G/KV_cfg" not in {each.full_name for each in done.plan.streams}
    assert any("KV_cfg: the cluster deleted it" in each for each in done.plan.notes)
    alone = salvage(folder() / "cl_minority_15" / "store" / "n3", tmp_path / "alone")
    assert "$G/KV_cfg" in {each.full_name for each in alone.plan.streams}
