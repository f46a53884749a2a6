"""Starts of the nodes of clusters: what each deletes as an orphan, against the outcomes of real clusters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.inspection.start_check import StartCheck, StreamsStartCheck
from stantools.inspection.stream_forecast.versions import SERVER_RULES
from stantools.sources.door import open_source
from tests.conftest import others_slow
from tests.inspection import stream_start_cases as cases

pytestmark = pytest.mark.golden


def outcomes() -> list[tuple[str, str]]:
    found = []
    for path in sorted(cases.folder().glob("cl_*/expected.json")):
        servers = json.loads(path.read_text())["servers"]
        found += [(path.parent.name, version) for version in servers if "same_as" not in servers[version]]
    return found


def run(*arguments: object) -> tuple[int, Any]:
    result = CliRunner().invoke(cli, [*map(str, arguments), "-o", "json"])
    assert result.stdout, result.stderr
    return result.exit_code, json.loads(result.stdout)


def directories(case: str, place: Path) -> list[Path]:
    """The directories of all nodes of a case; those that its archive left out are empty."""
    found = []
    for node in cases.expected(case)["nodes"]:
        there = cases.folder() / case / "store" / node
        found.append(there if there.is_dir() else place / node)
        found[-1].mkdir(exist_ok=True)
    return found


def check(case: str, version: str, place: Path) -> None:
    real = cases.expected(case)["servers"][version]["restart_all"]
    nodes = directories(case, place)
    _, found = run("forecast", *nodes, "--server-version", version.rpartition(".")[0])
    if len(nodes) == 1:
        return
    removed = real["directories_removed"] or {}
    got = {name: each["directories_removed"] for name, each in found["nodes"].items() if each["directories_removed"]}
    streams = "jetstream/$G/streams/"
    for some in (got, removed):
        for node in some:
            some[node] = sorted(each for each in some[node] if each.startswith(streams) and each.count("/") == 3)
    assert {node: each for node, each in got.items() if each} == {node: each for node, each in removed.items() if each}
    if real["quorum"]:  # without, its servers run until they are ended
        assert all(each["starts"] for each in found["nodes"].values())
    destroyed = {name: each["intact_destroyed_on_disk"] for name, each in real["judged"].items()}
    assert found["destroyed"] == {name: each for name, each in destroyed.items() if each}


#: Of each kind one.
FEW = {
    "cl_after_orphans_15", "cl_flip_one_node", "cl_from_standalone", "cl_group_lost_one", "cl_last_block_missing_one",
    "cl_meta_lost_one", "cl_meta_old", "cl_meta_snapshot_cut", "cl_minority_10", "cl_ok_12_killed", "cl_one_node_left",
    "cl_r1_meta_sum", "cl_stream_lost_one",
}  # fmt: skip


@pytest.mark.parametrize(("case", "version"), others_slow(outcomes(), FEW))
def test_orphans_of_a_real_cluster(case: str, version: str, tmp_path: Path) -> None:
    check(case, version, tmp_path)


def test_a_damaged_snapshot_of_the_meta_group_ends_new_servers() -> None:
    store = cases.folder() / "cl_meta_snapshot_cut/store"
    _, found = run("forecast", store, "--server-version", "2.15")
    assert {each["exit_code"] for each in found["nodes"].values()} == {1}
    assert ["FTL", "Can't start JetStream: raft: snapshot corrupt"] in found["nodes"]["n1"]["log"]


def test_the_time_of_the_deletion_is_told() -> None:
    store = cases.folder() / "cl_meta_old/store"
    code, found = run("forecast", store, "--server-version", "2.15")
    orphan = {"stream": "$G/METRICS", "directory": "jetstream/$G/streams/METRICS", "after_seconds": 30}
    assert (code, found["nodes"]["n1"]["orphans"]) == (1, [orphan])
    text = CliRunner().invoke(cli, ["doctor", str(store)]).stdout
    assert "in danger" in text
    assert "30 seconds after the start it deletes as orphans $G/METRICS on n1, n2, n3" in text


def test_doctor_of_a_healthy_cluster() -> None:
    code, found = run("doctor", cases.folder() / "cl_ok_15/store")
    assert (code, found["state"], found["gone"]) == (0, "healthy", 0)


@pytest.mark.parametrize(("case", "refused"), [("cl_meta_old", True), ("cl_ok_15", False)])
def test_guard_of_one_node(case: str, refused: bool, tmp_path: Path) -> None:
    shutil.copytree(cases.folder() / case / "store/n1", tmp_path / "n1")
    source, found = open_source(tmp_path / "n1"), StartCheck()
    streams = StreamsStartCheck(source.streams, source.path, [SERVER_RULES["2.15"]], 0, source.raft_groups)
    streams.run(found, lambda _size: None)
    assert bool(found.destroys) == refused
    assert not found.effects
