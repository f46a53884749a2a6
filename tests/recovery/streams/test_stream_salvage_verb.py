"""`salvage`, `merge` and `migrate` of JetStream directories: output, exit codes, and what is refused."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stantools.cli.main import cli
from stantools.migration.server.restore import restore
from tests import natsclient, servers
from tests.recovery.streams.salvaged import Salvage, compare_stream, salvage
from tests.streamfiles.test_golden_streams import folder

pytestmark = pytest.mark.golden
VERSIONS = [each for each in ("2.10.26", "2.12.8", "2.15.1") if each in servers.available()]
MEMBERS = {"account", "name", "recovered", "resurrected", "lost", "messages", "bytes", "sources"}


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in words])


def state(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder() / "dmg_flip_payload_noidx" / "store", tmp_path / "store"))


def test_json_is_that_of_the_issue(damaged: Path, tmp_path: Path) -> None:
    before = state(damaged)
    done = run("salvage", damaged, "--out", tmp_path / "new", "-o", "json")
    assert done.exit_code == 5, done.output
    document = json.loads(done.stdout)
    assert document.keys() == {"schema", "streams", "consumers", "notes"}
    assert all(each.keys() == MEMBERS for each in document["streams"])
    orders = next(each for each in document["streams"] if each["name"] == "ORDERS")
    assert (orders["lost"], orders["messages"]) == ([[56, 56]], 122)
    assert sum(orders["sources"].values()) == 122
    assert {"account", "stream", "name", "delivered", "ack_floor"} <= document["consumers"][0].keys()
    assert any("another hash" in each for each in document["notes"])
    assert state(damaged) == before


def test_a_dry_run_writes_nothing(damaged: Path, tmp_path: Path) -> None:
    names = sorted(tmp_path.iterdir())
    done = run("salvage", damaged, "--dry-run")
    assert done.exit_code == 1
    assert "would keep" in done.stdout
    assert sorted(tmp_path.iterdir()) == names


def test_never_into_the_same_place(damaged: Path, tmp_path: Path) -> None:
    for out in (damaged, damaged / "jetstream" / "new"):
        before = state(damaged)
        done = run("salvage", damaged, "--out", out)
        assert done.exit_code in (3, 4), done.output
        assert state(damaged) == before
    assert run("salvage", damaged).exit_code == 2


@pytest.mark.parametrize("below", ["jetstream", "jetstream/$G", "jetstream/$G/streams/ORDERS"])
def test_every_level_gives_a_whole_store(below: str, tmp_path: Path) -> None:
    done = run("salvage", folder() / "ok_basic15" / "store" / below, "--out", tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new/jetstream/$G/streams/ORDERS/meta.inf").exists()


def test_a_stream_without_its_key_is_not_made_empty(tmp_path: Path) -> None:
    done = run("salvage", folder() / "ok_chacha15" / "store", "--out", tmp_path / "new")
    assert done.exit_code == 3
    assert "--encryption-key" in done.stderr
    assert not (tmp_path / "new").exists()


def test_members_that_an_older_server_does_not_know_are_left_out(tmp_path: Path) -> None:
    store = folder() / "ok_newer15" / "store"
    assert run("salvage", store, "--out", tmp_path / "new").exit_code == 0
    assert run("salvage", store, "--out", tmp_path / "old", "--server-version", "2.11").exit_code == 0
    members = [
        {name for path in (tmp_path / each).rglob("streams/*/meta.inf") for name in json.loads(path.read_bytes())}
        for each in ("new", "old")
    ]
    assert {"allow_msg_schedules", "allow_atomic"} & members[0]
    assert not {"allow_msg_schedules", "allow_atomic", "allow_msg_counter"} & members[1]


def test_merge_takes_nodes(tmp_path: Path) -> None:
    nodes = sorted((folder() / "cl_flip_each_node" / "store").iterdir())
    done = run("merge", *nodes, "--out", tmp_path / "new", "-o", "json")
    assert done.exit_code == 0, done.output
    orders = next(each for each in json.loads(done.stdout)["streams"] if each["name"] == "ORDERS")
    assert orders["messages"] == 85
    assert len({each.split("/")[0] for each in orders["sources"]}) > 1


@pytest.mark.parametrize("version", VERSIONS[-1:])
def test_backups_are_restored(version: str, tmp_path: Path) -> None:
    store = folder() / "ok_consumers15" / "store"
    assert run("salvage", store, "--out", tmp_path / "backups", "--to", "backup").exit_code == 0
    planned = salvage(store, tmp_path / "new")
    with servers.NatsServer(tmp_path / "server", version) as server:
        asyncio.run(_restored(server, tmp_path / "backups", planned))


async def _restored(server: servers.NatsServer, backups: Path, planned: Salvage) -> None:
    async with natsclient.jetstream(server.url) as js:
        for folder_of_one in sorted(backups.iterdir()):
            wanted = json.loads((folder_of_one / "backup.json").read_text())
            pieces = [(folder_of_one / "stream.tar.s2").read_bytes()]
            await restore(js, folder_of_one.name, wanted["config"], wanted["state"], pieces)
    async with natsclient.connected(server.url) as client:

        async def ask(operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            answer = await client.request(f"$JS.API.{operation}", json.dumps(body).encode() if body else b"")
            found: dict[str, Any] = json.loads(answer.data)
            return found

        for stream in planned.plan.streams:
            await compare_stream(ask, server.version, planned, stream)


@pytest.mark.parametrize(
    ("version", "case"),
    [
        pytest.param(
            version, case, marks=() if version == VERSIONS[-1] and case == "dmg_two_flips" else pytest.mark.slow
        )
        for version in VERSIONS
        for case in ("dmg_two_flips", "ok_wq15", "cl_ok_15", "ok_kv15")
    ],
)
def test_migrate_restores_and_resumes(version: str, case: str, tmp_path: Path) -> None:
    with servers.NatsServer(tmp_path / "server", version) as server:
        words = [
            "migrate",
            folder() / case / "store",
            "--to",
            "jetstream",
            "--server",
            server.url,
            "--yes",
            "-o",
            "json",
        ]
        if case.startswith("dmg"):
            refused = run(*words, "--plan", tmp_path / "plan")
            assert refused.exit_code == 4
            words.append("--accept-loss")
        first = run(*words, "--plan", tmp_path / "plan")
        assert first.exit_code == (5 if case.startswith("dmg") else 0), first.output
        proven = [each["compared"] for each in json.loads(first.stdout)["streams"]]
        assert all(proven)
        second = run(*words, "--plan", tmp_path / "plan")
        assert second.exit_code == first.exit_code, second.output
        assert {each["outcome"] for each in json.loads(second.stdout)["streams"]} == {"complete before"}
