"""`truncate-bad-eof` as a command: the golden outcomes, exit codes, refusals, the backup."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import cases_by_kind, golden_cases, load_expected
from tests.trees import tree

Copy = Callable[[str], Path]
CASES = [c for c in golden_cases() if "server_open_truncate" in load_expected(c) and not load_expected(c)["setup"]]


def sizes(store: Path) -> dict[str, int]:
    return {str(path.relative_to(store)): path.stat().st_size for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", cases_by_kind(CASES))
def test_changes_what_the_server_changes(run, golden_copy: Copy, tmp_path: Path, case: str) -> None:
    store, theirs = golden_copy(case), load_expected(case)["server_open_truncate"]
    before = sizes(store)
    told = run("truncate-bad-eof", store, "--dry-run", "--force")
    refused = run("truncate-bad-eof", store, "--dry-run").code
    assert run("truncate-bad-eof", store, "--yes").code == refused if refused == 4 else refused == told.code
    assert sizes(store) == before
    outcome = run("truncate-bad-eof", store, "--yes", "--force", "--backup", tmp_path / "saved", "-o", "json")
    after = sizes(store)
    changed = {
        path: {"size_before": before.get(path), "size_after": after.get(path)}
        for path in {*before, *after}
        if before.get(path) != after.get(path)
    }
    # The server's file for its own start time is not part of a repair.
    assert changed == {
        path: {"size_before": each["size_before"], "size_after": each["size_after"]}
        for path, each in theirs["files_changed_by_recovery"].items()
        if each["size_before"] != each["size_after"]
    }
    result = outcome.json()
    assert result["done"] is True
    lost = any(
        cut["sequences_lost"] or cut["records_salvage_would_keep"] > cut["records_kept"] for cut in result["cuts"]
    )
    left = not result["starts_without_option_now"] or result["destroys_without_option_now"]
    assert outcome.code == (5 if lost and result["starts_without_option_now"] else 1 if left else 0)
    assert told.code == outcome.code


def test_a_torn_end(run, golden_copy: Copy) -> None:
    store = golden_copy("dmg_last_slice_cut_payload")
    before = tree(store)
    assert run("truncate-bad-eof", store, "--dry-run").code == 0
    asked = run("truncate-bad-eof", store)
    assert asked.code == 2
    assert "--yes" in asked.err
    assert tree(store) == before
    outcome = run("truncate-bad-eof", store, "--in-place")
    assert outcome.code == 0, outcome.err
    assert "the server would start now" in outcome.out
    backup = store.with_name(f"{store.name}.truncated") / "1"
    manifest = json.loads((backup / "manifest.json").read_text())
    assert {entry["path"] for entry in manifest["files"]} == {"alpha/msgs.3.dat", "alpha/msgs.3.idx", ".truncate.lck"}
    again = run("truncate-bad-eof", store, "--yes")
    assert again.code == 4
    assert "two in a row" in again.err


def test_nothing_to_repair(run, golden_copy: Copy) -> None:
    store = golden_copy("basic")
    before = tree(store)
    outcome = run("truncate-bad-eof", store)
    assert outcome.code == 0
    assert outcome.out.startswith("nothing to repair: no file ends inside a record; but only the ends were checked")
    assert f"`stantools verify {store}`" in outcome.out
    assert outcome.out.endswith("\nnothing was changed\n")
    dry = run("truncate-bad-eof", store, "--dry-run")
    assert (dry.code, dry.out) == (outcome.code, outcome.out)
    assert tree(store) == before


@pytest.mark.parametrize(
    ("case", "code", "says"),
    [
        ("dmg_idx_shorter_last", 1, "but a start destroys data (alpha: sequences start over at 38"),
        ("dmg_payload_flip_idx_intact", 0, "but only the ends were checked"),
    ],
)
def test_nothing_to_cut_in_a_damaged_store(run, golden_copy: Copy, case: str, code: int, says: str) -> None:
    store = golden_copy(case)
    dry, done = run("truncate-bad-eof", store, "--dry-run"), run("truncate-bad-eof", store, "--yes")
    assert (dry.code, dry.out) == (done.code, done.out)
    assert dry.code == code
    assert says in dry.out
    assert f" {store}" in dry.out


def test_a_dry_run_refuses_as_the_run_does(run, golden_copy: Copy) -> None:
    for case in ("dmg_length_huge_noidx", "dmg_payload_flip_noidx", "dmg_server_missing"):
        store = golden_copy(case)
        dry, done = run("truncate-bad-eof", store, "--dry-run"), run("truncate-bad-eof", store, "--yes")
        assert (dry.code, dry.err) == (done.code, done.err) == (4, dry.err)
        assert f"stantools salvage {store} --out" in dry.err


def test_refused_where_salvage_keeps_more(run, golden_copy: Copy, tmp_path: Path) -> None:
    store = golden_copy("dmg_length_huge_noidx")
    before = tree(store)
    outcome = run("truncate-bad-eof", store, "--yes")
    assert outcome.code == 4
    assert "truncation keeps 7 records, salvage would keep 10" in outcome.err
    assert "stantools salvage" in outcome.err
    assert tree(store) == before
    plan = run("truncate-bad-eof", store, "--dry-run", "-o", "json").json()
    assert [record["seq"] for record in plan["removed"]] == [38, 39, 40]
    assert all(record["intact"] for record in plan["removed"])
    insisted = run("truncate-bad-eof", store, "--yes", "--force", "--backup", tmp_path / "b")
    assert insisted.code == 5
    assert (tmp_path / "b" / "1" / "manifest.json").is_file()


def test_what_it_cannot_repair(run, golden_copy: Copy) -> None:
    outcome = run("truncate-bad-eof", golden_copy("dmg_payload_flip_noidx"), "--yes")
    assert outcome.code == 4
    assert "would not start after it either" in outcome.err
