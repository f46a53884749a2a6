"""Repair of JetStream directories in place: it loses nothing, and real servers serve what they did not before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.store.ranges import Ranges
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.survey import StreamSurvey
from tests import servers
from tests.inspection import stream_start_cases as cases
from tests.natsclient import with_jetstream
from tests.trees import tree

pytestmark = pytest.mark.golden
ORDERS = "jetstream/$G/streams/ORDERS"
#: what is written or moved in a case
REPAIRED = {
    "dmg_meta_sum_flip": ("write", f"{ORDERS}/meta.sum"),
    "dmg_meta_sum_missing": ("write", f"{ORDERS}/meta.sum"),
    "dmg_meta_sum_newline": ("write", f"{ORDERS}/meta.sum"),
    "dmg_meta_inf_flip": ("write", f"{ORDERS}/meta.inf"),
    "dmg_index_flip": ("move", f"{ORDERS}/msgs/index.db"),
    "left_tmp": ("move", f"{ORDERS}/msgs/1.blk.tmp"),
    "left_foreign": ("move", f"{ORDERS}/msgs/7.blk.bak"),
    "left_new_msgs_tomb": ("move", f"{ORDERS}/__new_msgs__/5.blk"),
}
#: what no step can repair without a risk
UNTOUCHED = [
    "dmg_meta_both_empty",
    "dmg_meta_bad_json",
    "dmg_meta_name_changed",
    "dmg_two_flips",
    "left_blk_tmp_complete",
]


def repair(store: Path, *options: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli, ["repair", str(store), "-o", "json", *options])
    return result.exit_code, json.loads(result.stdout)


def intact(store: Path) -> dict[str, Ranges]:
    folders = sorted(store.glob("jetstream/*/streams/*"))
    return {each.name: StreamSurvey(StoredStream(each, each.parts[-3])).intact for each in folders}


def copied(case: str, place: Path) -> Path:
    shutil.copytree(cases.folder() / case / "store", place / "store", copy_function=shutil.copyfile)
    return place / "store"


def messages_of(store: Path, version: str, place: Path) -> int:
    server = servers.NatsServer(place, version)
    server.settings["jetstream"]["store_dir"] = str(store)

    async def ask(js: Any) -> int:
        state = (await js.api("STREAM.INFO.ORDERS", {}))["state"]
        return int(state["messages"])

    with server:
        return with_jetstream(server.url, ask)


@pytest.mark.parametrize("case", REPAIRED)
def test_steps_lose_nothing(case: str, tmp_path: Path) -> None:
    store = copied(case, tmp_path)
    _, file = REPAIRED[case]
    if (config := (store / file).with_name("meta.inf")).exists():
        config.chmod(0o640)
    before, found = tree(store), intact(store)
    code, plan = repair(store, "--dry-run")
    assert tree(store) == before
    assert [(each["action"], each["file"]) for each in plan["steps"]] == [REPAIRED[case]]
    code, done = repair(store, "--in-place")
    assert (code, done["done"], done["steps"]) == (0, True, plan["steps"])
    assert [each["destroyed"] for each in done["after"]] == [{}] * len(done["after"])
    assert all(each["harmless"] for each in done["after"])
    assert intact(store) == found
    if file.endswith("meta.sum"):  # as the server would have written it
        assert (store / file).stat().st_mode & 0o777 == 0o640
    # the backup undoes it
    saved = Path(done["backup"], "files", file) if done["backup"] else None
    assert (saved.read_bytes() if saved else None) == before.get(file)
    assert repair(store, "--in-place")[1]["steps"] == []


@pytest.mark.server
@pytest.mark.parametrize("version", [each for each in ("2.10.26", "2.15.1") if each in servers.available()])
def test_a_server_serves_what_was_skipped(version: str, tmp_path: Path) -> None:
    store = copied("dmg_meta_sum_flip", tmp_path)
    assert repair(store, "--in-place", "--server-version", version.rpartition(".")[0])[0] == 0
    assert messages_of(store, version, tmp_path / "server") == intact(store)["ORDERS"].count()


@pytest.mark.server
def test_a_purge_that_had_begun_is_not_completed(tmp_path: Path) -> None:
    store = copied("left_new_msgs_tomb", tmp_path)
    assert repair(store, "--in-place")[0] == 0
    assert messages_of(store, "2.15.1", tmp_path / "server") == 123


@pytest.mark.parametrize("case", UNTOUCHED)
def test_what_is_at_risk_is_left_alone(case: str, tmp_path: Path) -> None:
    store = copied(case, tmp_path)
    before = tree(store)
    code, done = repair(store, "--in-place")
    assert (code, done["steps"], done["done"]) == (1, [], False)
    assert tree(store) == before


def test_a_checksum_is_not_renewed_if_limits_would_remove_messages(tmp_path: Path) -> None:
    store = copied("limit_lowered", tmp_path)
    (store / ORDERS / "meta.sum").unlink()
    code, done = repair(store, "--in-place", "--server-version", "2.15")
    assert (code, done["steps"]) == (1, [])
    assert "68 intact messages" in done["refusals"][0] or "98 intact messages" in done["refusals"][0]


def test_an_archive_and_a_question_change_nothing(tmp_path: Path) -> None:
    store = copied("dmg_meta_sum_flip", tmp_path)
    before = tree(store)
    assert CliRunner().invoke(cli, ["repair", str(store)]).exit_code == 2  # no terminal for the question
    assert tree(store) == before


@pytest.mark.slow
def test_every_case_keeps_its_intact_messages(tmp_path: Path) -> None:
    for case in sorted({case for case, _ in cases.single_server_cases()}):
        if cases.expected(case)["server_settings"]["jetstream"]:
            continue
        store = copied(case, tmp_path / case)
        found = intact(store)
        _, done = repair(store, "--in-place")
        destroyed = [
            {name: Ranges.of(map(tuple, each)) for name, each in start["destroyed"].items()}
            for start in (*done["before"], *done["after"])
        ]
        half = len(destroyed) // 2
        for one, two in zip(destroyed[:half], destroyed[half:], strict=True):
            assert not {name for name, each in two.items() if each - one.get(name, Ranges())}, case
        assert intact(store) == found, case
