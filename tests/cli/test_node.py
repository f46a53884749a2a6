"""Verbs on the directories of clustered nodes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.golden

#: Codes of the findings about logs and snapshots that are no information, by case and node; others have none.
WRONG = {
    ("damaged_cut", "a"): {"raft-page"},
    ("damaged_cut", "b"): {"raft-page", "raft-gap"},
    ("damaged_leaf", "b"): {"raft-page", "raft-gap"},
    ("damaged_lost_write", "b"): {"raft-stale-page", "raft-gap"},
    ("damaged_metas", "a"): {"raft-meta"},
    ("damaged_metas", "b"): {"raft-meta"},
    ("damaged_metas", "c"): {"raft-metas"},
    ("damaged_snapshot", "a"): {"snapshot-damaged", "raft-start-missing"},
    ("damaged_snapshot", "b"): {"snapshot-damaged", "raft-start-missing"},
    ("damaged_snapshot_meta", "a"): {"snapshot-damaged", "raft-start-missing"},
    ("damaged_snapshot_meta", "b"): {"raft-start-missing"},
    ("store_rolled_back_snapshot", "c"): {"store-behind-snapshot"},
    **{(case, node): {"node-store-missing"} for case in ("all_stores_lost_snapshot", "free_pages") for node in "abc"},
    ("lost_store", "b"): {"node-store-missing"},
    ("lost_store_snapshot", "b"): {"node-store-missing"},
}
#: Message slices of these are damaged.
SLICES = {("damaged_slice", "b"), ("damaged_slice", "c")}


def digests(root: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(root.rglob("*")) if p.is_file()}


def test_verify_tells_what_is_wrong_with_every_node_and_nothing_else(run: Run, golden_clusters: Path) -> None:
    before = digests(golden_clusters / "damaged_metas")
    for case in sorted(golden_clusters.iterdir()):
        for node in sorted((case / "nodes").iterdir()):
            if (case.name, node.name) in SLICES or (case.name, node.name) == ("lost_raft", "b"):
                continue
            outcome = run("verify", node, "-o", "json")
            found = {each["code"] for each in outcome.json()["findings"] if each["severity"] != "info"}
            assert found == WRONG.get((case.name, node.name), set()), node
            assert outcome.code == bool(found)
    assert digests(golden_clusters / "damaged_metas") == before


def test_a_channel_that_a_start_would_make_the_cluster_forget(run: Run, golden_clusters: Path, tmp_path: Path) -> None:
    node = tmp_path / "a"
    shutil.copytree(golden_clusters / "snapshots" / "nodes" / "a", node)
    shutil.rmtree(node / "data" / "events.eu")
    outcome = run("verify", node, "-o", "json")
    (found,) = (each for each in outcome.json()["findings"] if each["severity"] == "error")
    assert (found["code"], found["channel"]) == ("snapshot-channel-missing", "events.eu")
    assert "sequences 1 to 33 and 4 subscriptions" in found["detail"]
    assert run("info", node).code == 1
    assert "snapshot-channel-missing" in run("verify", node).out


def test_info_has_the_facts_of_the_node(run: Run, golden_clusters: Path) -> None:
    node = golden_clusters / "snapshots" / "nodes" / "a"
    outcome = run("info", node, "-o", "json")
    assert outcome.code == 0
    facts: dict[str, Any] = outcome.json()
    about = facts["node"]
    assert (about["id"], about["cluster_id"], about["current_term"], about["vote"]) == ("a", "trio", 2, "trio.c.trio")
    assert (about["first_index"], about["last_index"], about["last_term"]) == (121, 128, 2)
    assert about["operations"] == {"publish": 6, "send_and_ack": 2}
    assert [each["id"] for each in about["members"]] == ["a", "b", "c"]
    assert [each["index"] for each in about["snapshots"]] == [125, 116]
    assert about["published"] == {"newest": [[1, 3]], "orders": [[45, 47]]}
    assert {each["id"] for each in facts["clients"]} == {"pub", "one", "two", "three"}
    channels = {each["name"]: each for each in facts["channels"]}
    assert {name: len(each["subscriptions"]) for name, each in channels.items()} == {
        "events.eu": 4,
        "late.channel": 0,
        "newest": 0,
        "orders": 6,
    }
    assert about["in_free_pages"] and about["in_free_pages"][-1][1] <= 120
    table = run("info", node).out
    for text in ("2-125-1795362041246", "a, b, c", "voted for trio.c.trio", "entries 121 to 128"):
        assert text in table
    for output in ("ndjson", "csv"):
        assert run("info", node, "-o", output).code == 0


def test_a_node_without_its_store(run: Run, golden_clusters: Path) -> None:
    node = golden_clusters / "free_pages" / "nodes" / "a"
    outcome = run("info", node)
    assert outcome.code == 1
    assert "not here" in outcome.out and "messages are in the log only" in outcome.err
    assert run("subs", node, "-o", "json").json()["channels"][-1]["subscriptions"]


def test_what_the_log_holds_that_the_store_does_not(run: Run, golden_clusters: Path) -> None:
    outcome = run("info", golden_clusters / "killed_under_load" / "nodes" / "a")
    assert outcome.code == 0
    assert "the store ends at 696, log and snapshot at 699" in outcome.out


def test_subs_and_clients_are_those_of_the_log(run: Run, golden_clusters: Path) -> None:
    node = golden_clusters / "group_pending_lost_1" / "nodes" / "b"
    subs = run("subs", node, "-o", "ndjson").ndjson()
    assert {each["status"] for each in subs} == {"active", "offline durable", "shadow"}
    only = run("subs", node, "--channel", "third", "--status", "shadow", "-o", "ndjson").ndjson()
    assert only and {(each["channel"], each["status"]) for each in only} == {("third", "shadow")}
    clients = run("clients", node, "-o", "ndjson").ndjson()
    assert all(each["registered"] for each in clients if each["id"] != "three" or each["subscriptions"])
    for verb in ("subs", "clients"):
        assert run(verb, node).code == 0
        assert run(verb, node, "--history").code == 2


def test_records_prints_entries_and_what_free_pages_hold(run: Run, golden_clusters: Path) -> None:
    log = golden_clusters / "snapshots" / "nodes" / "a" / "raft" / "trio" / "raft.log"
    outcome = run("records", log, "-o", "ndjson", "--data", "text")
    assert outcome.code == 0
    records = outcome.ndjson()
    live = [each for each in records if not each["fields"].get("free")]
    assert [each["fields"]["index"] for each in live] == list(range(121, 129))
    assert (live[0]["type"], live[0]["fields"]["channel"], live[0]["fields"]["first"]) == ("publish", "orders", 45)
    free = {each["fields"]["index"] for each in records} - set(range(121, 129))
    assert free and max(free) < 121
    content = log.read_bytes()
    assert all(content[each["offset"]] & 0xF0 == 0x80 for each in records)
    assert "publish" in run("records", log).out
    assert run("records", log, "-o", "json").json()["kind"] == "raft"


def test_encrypted_commands_need_the_key(run: Run, golden_clusters: Path) -> None:
    from tests.store.test_raft import load

    given = load("encrypted")["options"]["encryption"]
    key = given["key"] if isinstance(given, dict) else given
    node = golden_clusters / "encrypted" / "nodes" / "a"
    log = node / "raft" / "trio" / "raft.log"
    assert run("records", log).code == 1
    assert run("records", log, "--encryption-key-env", "KEY", env={"KEY": key}).code == 0
    without = run("info", node, "-o", "json").json()
    assert (without["node"]["operations"]["unreadable"], [f["code"] for f in without["node"]["findings"]]) == (
        95,
        ["raft-encrypted"],
    )
    with_key = run("info", node, "-o", "json", "--encryption-key-env", "KEY", env={"KEY": key}).json()
    assert "unreadable" not in with_key["node"]["operations"]
    assert len(with_key["channels"]) == len(without["channels"])
    wrong = run("verify", node, "-o", "json", "--encryption-key-env", "KEY", env={"KEY": "other"})
    assert {each["code"] for each in wrong.json()["findings"]} >= {"raft-operation"}


def test_forecast_says_which_leader_would_forget_what(run: Run, golden_clusters: Path) -> None:
    nodes = sorted((golden_clusters / "lost_store_snapshot" / "nodes").iterdir())
    outcome = run("forecast", *nodes)
    assert outcome.code == 1
    assert "if b leads, the cluster forgets events.eu: sequences 1 to 33, 4 subscriptions" in " ".join(
        outcome.out.split()
    )
    said = run("forecast", *nodes, "-o", "json").json()
    assert {each["leader"]: len(each["forgets"]) for each in said["outcomes"]}["b"] == 2
    assert run("forecast", *sorted((golden_clusters / "snapshots" / "nodes").iterdir())).code == 0
    broken = run("forecast", *sorted((golden_clusters / "damaged_cut" / "nodes").iterdir()))
    assert broken.code == 1
    assert "none of these nodes becomes leader" in broken.out and "a does not start" in broken.out
    assert run("forecast", nodes[0], golden_clusters / "snapshots" / "nodes" / "a" / "data").code == 2


def test_random_damage_of_a_node_never_ends_in_anything_but_findings(
    run: Run, golden_clusters: Path, tmp_path: Path
) -> None:
    import random

    node = tmp_path / "a"
    shutil.copytree(golden_clusters / "snapshots" / "nodes" / "a", node)
    files = [p for p in sorted(node.glob("raft/**/*")) if p.is_file()]
    for seed in range(15):
        chance = random.Random(seed)
        path = chance.choice(files)
        good = path.read_bytes()
        hurt = bytearray(good)
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(hurt))
            hurt[at : at + 4] = chance.randbytes(min(4, len(hurt) - at))
        path.write_bytes(bytes(hurt[: chance.randint(0, len(hurt)) if chance.random() < 0.2 else None]))
        assert run("verify", node).code in (0, 1)
        assert run("subs", node).code in (0, 1)
        path.write_bytes(good)


def test_the_directories_of_a_node_may_lie_anywhere(run: Run, golden_clusters: Path, tmp_path: Path) -> None:
    (tmp_path / "with space, data=").mkdir()
    described = []
    for name in "abc":
        node = golden_clusters / "snapshots" / "nodes" / name
        data, raft = tmp_path / "with space, data=" / name, tmp_path / f"log-{name}"
        shutil.copytree(node / "data", data)
        shutil.copytree(node / "raft", raft)
        described += ["--node", f"{name}:data={data},raft={raft}"]
    here = golden_clusters / "snapshots" / "nodes" / "a"
    for verb in ("info", "verify", "clients", "subs"):
        there, together = (run(verb, *words, "-o", "json").json() for words in (described[:2], (here,)))
        for each in (there, together):
            for name in ("path", "seconds", "rate", "node"):
                each.pop(name, None)
        assert there == together
    assert (
        run("forecast", *described, "-o", "json").json()
        == run("forecast", *sorted(here.parent.iterdir()), "-o", "json").json()
    )
    assert run("forecast", here, *described[2:], "-o", "json").json()["nodes"][1]["name"] == "b"

    # A damaged slice is named by its whole path, which is where it is.
    data = tmp_path / "with space, data=" / "a"
    slice_ = data / "orders" / "msgs.1.dat"
    slice_.write_bytes(slice_.read_bytes()[:-3])
    found = run("verify", *described[:2], "-o", "json").json()["findings"]
    assert str(slice_) in {each["file"] for each in found}
    # Only one of the two: a store by itself, a node without its store.
    assert run("info", "--node", f"a:data={data}", "-o", "json").json()["path"] == str(data)
    assert "not here" in run("info", "--node", f"a:raft={tmp_path / 'log-a'}").out
    assert "two nodes are called a" in run("forecast", *described[:2], *described[:2]).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--node", "a"], "expected NAME:data=DIR,raft=DIR"),
        (["--node", "a:log=X"], "expected NAME:data=DIR,raft=DIR"),
        (["--node", ":data=."], "expected NAME:data=DIR,raft=DIR"),
        (["--node", "a:data=missing"], "data=missing is not a directory"),
        (["--node", "a:raft=empty"], "0 files raft.log"),
        (["empty", "--node", "a:data=empty"], "takes one store, or one node"),
        (["--node", "a:data=empty", "--node", "b:data=empty"], "takes one store, or one node"),
    ],
)
def test_a_node_that_is_described_wrongly(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    outcome = run("subs", *words)
    assert outcome.code == 2 and said in " ".join(outcome.err.split())


def test_merge_writes_one_store_of_all_nodes(run: Run, golden_clusters: Path, tmp_path: Path) -> None:
    case = golden_clusters / "lost_store_snapshot" / "nodes"
    before = digests(case)
    nodes = sorted(case.iterdir())
    planned = run("merge", *nodes, "--dry-run")
    assert planned.code == 0 and "would keep 68 messages in 2 channels" in planned.out
    assert "its log counts" in planned.out and not (tmp_path / "new").exists()
    outcome = run("merge", *nodes, "--out", tmp_path / "new", "-o", "json")
    assert outcome.code == 0
    said = outcome.json()
    assert {each["name"]: each["sequences"] for each in said["channels"]} == {
        "events.eu": [[1, 33]],
        "orders": [[1, 35]],
    }
    assert {each["name"]: sum(each["from"].values()) for each in said["channels"]} == {"events.eu": 33, "orders": 35}
    assert [(each["name"], each["data"] is None) for each in said["nodes"]] == [("a", False), ("b", True), ("c", False)]
    assert {"term", "last_index", "snapshot_index", "messages", "stale", "findings"} <= set(said["nodes"][0])
    assert (said["clients"], said["subscriptions"], said["free_pages"]) == (3, 9, {})
    assert digests(case) == before
    info = run("info", tmp_path / "new", "-o", "json").json()
    assert len(info["clients"]) == 3 and info["server"]["node_id"] == ""
    manifest = json.loads((tmp_path / "new" / "stantools-salvage.json").read_text())
    assert manifest["made_by"].endswith(" merge") and manifest["log"]["winner"] == said["log"]["winner"]
    # There it is already; and never inside of what it is made of.
    assert run("merge", *nodes, "--out", tmp_path / "new").code == 3
    assert run("merge", *nodes).code == 2
    shutil.copytree(nodes[0], tmp_path / "a")
    assert run("merge", tmp_path / "a", "--out", tmp_path / "a" / "data" / "new").code == 4


def test_merge_tells_what_is_on_none_of_the_nodes(run: Run, golden_clusters: Path, tmp_path: Path) -> None:
    nodes = sorted((golden_clusters / "free_pages" / "nodes").iterdir())
    assert run("merge", *nodes, "--dry-run").code == 1
    outcome = run("merge", *nodes, "--out", tmp_path / "new", "--free-pages")
    assert outcome.code == 5
    text = " ".join(outcome.out.split())
    assert "the messages are on none of these nodes" in text and "deleted entries of the Raft logs" in text
    listed = run("merge", *nodes, "--dry-run", "--free-pages", "-o", "json").json()
    assert listed["free_pages"]["many"] == [[1, 498]]
    only = run("merge", *nodes, "--dry-run", "--channel", "many", "-o", "json").json()
    assert [each["name"] for each in only["channels"]] == ["many"]
    assert "no channel matches none" in run("merge", *nodes, "--dry-run", "--channel", "none").err


def test_merge_of_a_data_directory_and_of_a_raft_directory(run: Run, golden_clusters: Path, tmp_path: Path) -> None:
    node = golden_clusters / "snapshots" / "nodes" / "a"
    whole = run("merge", node, "--dry-run", "-o", "json").json()
    apart = run("merge", "--node", f"a:data={node / 'data'},raft={node / 'raft'}", "--dry-run", "-o", "json").json()
    assert apart == whole
    store = run("merge", node / "data", "--dry-run", "-o", "json")
    assert store.code == 1 and "clients and subscriptions are lost" in store.out


def test_a_store_of_no_cluster_is_not_merged(
    run: Run, golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(golden / "basic", tmp_path / "its node")
    monkeypatch.chdir(tmp_path)
    for named in ("its node", "its node/datastore"):
        refused = run("merge", named, "--dry-run")
        said = " ".join(refused.err.split())
        assert refused.code == 4 and "its node/datastore: is the store of a standalone server" in said
        assert "`stantools salvage 'its node/datastore' --out 'its node/datastore.salvaged'`" in said
        assert "`stantools migrate 'its node/datastore'`" in said


def test_an_empty_node_does_no_harm_and_is_not_enough(run: Run, golden_clusters: Path, tmp_path: Path) -> None:
    nodes = golden_clusters / "damaged_metas" / "nodes"
    whole = run("merge", nodes / "a", nodes / "b", "--dry-run", "-o", "json").json()
    (tmp_path / "empty" / "data").mkdir(parents=True)
    log = tmp_path / "began" / "raft" / "trio" / "raft.log"
    log.parent.mkdir(parents=True)
    log.touch()
    more = (nodes / "a", nodes / "b", tmp_path / "empty", log.parents[2])
    with_them = run("merge", *more, "--dry-run", "-o", "json").json()
    assert [each["sequences"] for each in with_them["channels"]] == [each["sequences"] for each in whole["channels"]]
    assert [each["name"] for each in with_them["nodes"]] == ["a", "b", "empty", "began"]
    for path in (tmp_path / "empty", log.parents[2]):
        outcome = run("merge", path, "--dry-run")
        assert outcome.code == 3 and "no entry of a Raft log" in " ".join(outcome.err.split())
    alone = run("merge", nodes / "a", log.parents[2], "--dry-run")
    assert "1 of 3 voters are here, fewer than a majority" in " ".join(alone.out.split())
    # No meta page leads to the entries any more: they are found all the same.
    lost = run("merge", nodes / "c", "--dry-run", "-o", "json")
    assert lost.code == 0
    assert [each["sequences"] for each in lost.json()["channels"]] == [each["sequences"] for each in whole["channels"]]
    assert lost.json()["subscriptions"] == whole["subscriptions"]


def test_diff_of_two_nodes_names_what_differs(run: Run, golden_clusters: Path, tmp_path: Path) -> None:
    def found(case: str, one: str = "a", other: str = "c") -> dict[str, set[str]]:
        nodes = golden_clusters / case / "nodes"
        outcome = run("diff", nodes / one, nodes / other, "-o", "json")
        codes: dict[str, set[str]] = {}
        for each in outcome.json()["findings"]:
            codes.setdefault(each["code"], set()).add(each["channel"] or each["detail"])
        assert outcome.code == any(each["severity"] != "info" for each in outcome.json()["findings"])
        return codes

    assert found("snapshots") == found("five_nodes", "a", "b") == {}
    assert found("store_rolled_back") == {"channel-missing": {"later"}, "message-missing": {"orders"}}
    hurt = found("damaged_values")
    assert {each.partition(":")[0] for each in hurt["entry-differs"]} == {"entry 38", "entry 77"}
    assert "entry-differs" not in found("damaged_values", "a", "a")
    left = found("conflicting_tail")
    assert left["entry-branch"] == {"a: 1 entry is of an abandoned branch"}
    assert left["log-behind"] == {"a ends with entry 150 of term 2, c with 166 of 4"}
    assert left["client-differs"] == {"client later: only in the second store"}
    assert (left["channel-extra"], left["subscription-differs"]) == ({"new.one"}, {"orders"})

    # However they are named, and against what was merged of them, too.
    nodes = golden_clusters / "conflicting_tail" / "nodes"
    a, c = (f"{name}:data={nodes / name / 'data'},raft={nodes / name / 'raft'}" for name in "ac")
    whole = run("diff", nodes / "a", nodes / "c", "-o", "json").json()["findings"]
    for words in (("--node", a, "--node", c), ("--node", a, nodes / "c")):
        assert run("diff", *words, "-o", "json").json()["findings"] == whole
    assert run("diff", "--node", a, "--node", c, nodes).code == 2
    assert run("merge", *sorted(nodes.iterdir()), "--out", tmp_path / "new").code == 0
    # A merge may have more pending, never less.
    merged = run("diff", nodes / "c", tmp_path / "new", "-o", "json").json()["findings"]
    assert {each["code"] for each in merged} == {"subscription-differs", "server-differs"}
    only = run("diff", nodes / "a", nodes / "c", "--channel", "new.one", "-o", "json").json()["findings"]
    assert [each["code"] for each in only] == ["channel-extra"]
    gone = run("diff", golden_clusters / "lost_store" / "nodes" / "b", nodes / "a")
    assert gone.code == 3 and "the file store of the node is missing" in gone.err
    others = run("diff", nodes / "a", golden_clusters / "churn_1" / "nodes" / "a")
    assert others.code == 1 and "these are nodes of different clusters" in " ".join(others.out.split())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="locks of others are seen on Linux only")
def test_a_running_node_is_looked_at_and_not_taken(
    run: Run, golden_clusters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = sorted((golden_clusters / "snapshots" / "nodes").iterdir())
    log = nodes[1] / "raft" / "trio" / "raft.log"
    with log.open("rb") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        who = f"process {os.getpid()}"
        views = [(verb, nodes[1]) for verb in ("info", "verify", "subs", "clients")]
        for words in (*views, ("forecast", *nodes), ("diff", *nodes[:2])):
            outcome = run(*words)
            assert outcome.code == 0
            assert f"{who} is running this node: data being written may look damaged" in " ".join(outcome.err.split())
        assert f"{who} holds the lock of raft.log" in run("info", nodes[1]).out
        planned = run("merge", *nodes, "--dry-run"), run("migrate", *nodes, "--out", "backups", "--dry-run")
        for outcome in (*planned, run("migrate", "plan", *nodes, "--out", "backups", "--plan", "plan.yaml")):
            assert outcome.code == 0 and f"{who} holds the lock of raft.log: data being" in outcome.err
        apply = ("migrate", "apply", "plan.yaml", "--yes")
        for words in (("merge", *nodes, "--out", "new"), ("migrate", *nodes, "--out", "backups", "--yes"), apply):
            outcome = run(*words)
            assert outcome.code == 4 and f"is in use: {who} holds the lock of raft.log" in " ".join(outcome.err.split())
            assert not (tmp_path / "new").exists() and not (tmp_path / "backups").exists()
        assert run("merge", *nodes, "--out", "new", "--force").code == 0
        assert run(*apply, "--force").code == 0
    assert run("merge", *nodes, "--out", "newer").code == 0
    assert "is running this node" not in run("info", nodes[1]).err
