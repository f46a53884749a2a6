"""The forecast of a start on JetStream directories, against the outcomes of real servers of six versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.inspection.stream_forecast.versions import SERVER_RULES
from tests.conftest import others_slow
from tests.inspection import stream_start_cases as cases

pytestmark = pytest.mark.golden
#: A spread sample; every case and version is in the slow test.
SAMPLE = [
    ("age_shortened", "2.12.8"),
    ("dmg_block_is_directory", "2.15.1"),
    ("dmg_cons_dat_ahead", "2.15.1"),
    ("dmg_cons_dat_magic", "2.12.8"),
    ("dmg_cut_mid_idx_10", "2.10.26"),
    ("dmg_dir_dot", "2.11.11"),
    ("dmg_flip_hbit_tombstone", "2.10.26"),
    ("dmg_flip_hbit_tombstone", "2.12.8"),
    ("dmg_flip_hdrlen_big_10", "2.10.26"),
    ("dmg_flip_len_idx_10", "2.12.8"),
    ("dmg_flip_seq_idx", "2.15.1"),
    ("dmg_flip_seqhigh_idx_10", "2.14.6"),
    ("dmg_index_ahead", "2.15.1"),
    ("dmg_meta_name_changed", "2.15.1"),
    ("dmg_meta_sum_flip", "2.10.26"),
    ("dmg_meta_unknown_member", "2.12.8"),
    ("dmg_missing_last_idx_10", "2.10.26"),
    ("dmg_store_nested", "2.14.6"),
    ("enc_blk_key_flip", "2.12.8"),
    ("enc_wrong_key", "2.15.1"),
    ("left_new_msgs_tomb", "2.15.1"),
    ("limit_lowered", "2.10.26"),
    ("ok_edges15", "2.10.26"),
    ("ok_kv15", "2.15.1"),
    ("old_flip_payload", "2.12.8"),
    ("s2_cut_block", "2.12.8"),
    ("s2_flip_block", "2.10.26"),
    ("s2_flip_block_idx", "2.15.1"),
    ("s2_flip_trailer", "2.14.6"),
]
#: Of each kind one.
FEW = {
    "age_shortened", "dmg_block_is_directory", "dmg_cons_dat_magic", "dmg_cut_mid_idx_10", "dmg_flip_hbit_tombstone",
    "dmg_flip_seq_idx", "dmg_index_ahead", "dmg_meta_sum_flip", "dmg_missing_last_idx_10", "dmg_store_nested",
    "enc_blk_key_flip", "limit_lowered", "ok_kv15", "old_flip_payload", "s2_cut_block",
}  # fmt: skip


def found_differences(case: str, version: str) -> list[str]:
    got = cases.forecast(cases.folder() / case / "store", cases.expected(case), version)
    return cases.unexplained(case, version, cases.differences(got, cases.outcome(case, version)))


@pytest.mark.parametrize(("case", "version"), others_slow(SAMPLE, FEW))
def test_start_of_a_real_server(case: str, version: str) -> None:
    assert found_differences(case, version) == []


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.9.10", "2.10.26", "2.11.11", "2.12.8", "2.14.6", "2.15.1"])
def test_every_case(version: str) -> None:
    every = [case for case, each in cases.single_server_cases() if each == version]
    found = {case: found_differences(case, version) for case in every}
    assert every
    assert {case: each for case, each in found.items() if each} == {}


def mutation_differences(case: str, mutation: dict[str, Any], place: Path) -> dict[str, list[str]]:
    content = cases.expected(case)
    store = place / "store"
    shutil.copytree(cases.folder() / case / "store", store, copy_function=shutil.copyfile)
    cases.mutate(store, mutation)
    found: dict[str, list[str]] = {}
    for version, number in mutation["outcomes"].items():
        got = cases.forecast(store, content, version)
        outcome = content["outcomes"][number]
        if each := cases.unexplained(case, version, cases.mutation_differences(got, outcome)):
            found[f"{mutation['id']} {version}"] = each
    shutil.rmtree(store)
    return found


@pytest.mark.parametrize("case", cases.SYSTEMATIC)
def test_some_mutations(case: str, tmp_path: Path) -> None:
    for mutation in cases.expected(case)["mutations"][::37]:
        assert mutation_differences(case, mutation, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("case", cases.SYSTEMATIC)
def test_every_mutation(case: str, tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    for mutation in cases.expected(case)["mutations"]:
        found |= mutation_differences(case, mutation, tmp_path)
    assert found == {}


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, arguments)
    return result.exit_code, result.stdout


def test_the_first_line_says_what_a_start_destroys(golden_jetstream: Path) -> None:
    code, text = run("forecast", str(golden_jetstream / "s2_flip_block/store"), "--server-version", "2.15")
    assert code == 1
    assert "destroys 104 intact messages" in text.splitlines()[0]
    assert "deletes the whole directory of $G/ORDERS" in " ".join(text.split())
    code, text = run("forecast", str(golden_jetstream / "s2_flip_block/store"), "--server-version", "2.12")
    assert "destroys 14 intact messages" in text.splitlines()[0]


def test_a_healthy_directory(golden_jetstream: Path) -> None:
    code, text = run("forecast", str(golden_jetstream / "ok_blocks15/store"))
    assert code == 0
    assert "destroys no intact message and serves all of them" in " ".join(text.split())
    code, text = run("doctor", str(golden_jetstream / "ok_blocks15/store"))
    assert (code, "healthy" in text) == (0, True)


def test_json_of_two_versions(golden_jetstream: Path) -> None:
    code, text = run("forecast", str(golden_jetstream / "dmg_flip_len_idx_10/store"), "-o", "json")
    document = json.loads(text)
    assert (code, document["kind"]) == (1, "jetstream")
    assert [each["server_version"] for each in document["versions"]] == ["2.10", "2.15"]
    assert all(each["streams"]["$G/ORDERS"]["destroyed"] == [[65, 73]] for each in document["versions"])


def test_nothing_is_changed(golden_jetstream: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden_jetstream / "dmg_dir_dot/store", store)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    run("forecast", str(store))
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_doctor_says_the_safe_step(golden_jetstream: Path) -> None:
    code, text = run("doctor", str(golden_jetstream / "s2_flip_block/store"))
    assert code == 1
    assert "in danger" in text
    assert "cp -a" in text
    assert "stantools salvage" in text


def test_versions_of_the_other_server_are_refused(golden: Path, golden_jetstream: Path) -> None:
    store = next(iter(sorted(golden.iterdir()))) / "datastore"
    assert CliRunner().invoke(cli, ["forecast", str(store), "--server-version", "2.15"]).exit_code == 2
    damaged = str(golden_jetstream / "ok_basic15/store")
    assert CliRunner().invoke(cli, ["forecast", damaged, "--server-version", "0.25.6"]).exit_code == 2


def test_the_table_of_versions_has_each_version_once() -> None:
    assert list(SERVER_RULES) == ["2.9", "2.10", "2.11", "2.12", "2.14", "2.15"]
    assert len({tuple(vars(each).items()) for each in SERVER_RULES.values()}) == len(SERVER_RULES)


def test_doctor_lists_findings_and_the_next_command(golden_jetstream: Path) -> None:
    store = golden_jetstream / "dmg_meta_sum_flip/store"
    code, text = run("doctor", str(store))
    assert code == 1
    assert "damaged: A start of nats-server" in text
    assert "jetstream/$G/streams/ORDERS/meta.sum: " in text
    assert "(js-meta-sum)" in text
    assert f"`stantools repair {store} --dry-run`" in text
    code, text = run("doctor", str(store), "-o", "json")
    document = json.loads(text)
    assert (document["state"], document["findings"]["error"], document["in_use"]) == ("damaged", 1, [])
    assert document["next"]["commands"][0].startswith("cp -a ")


def test_a_finding_alone_is_no_healthy_directory(golden_jetstream: Path) -> None:
    # every server serves all of it, but 2.10
    code, text = run("doctor", str(golden_jetstream / "left_tmp/store"))
    assert (code, "flawed" in text, "js-leftover" in text) == (1, True, True)
