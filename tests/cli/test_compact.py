"""`compact` as a command: plan, new directory, in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trees import tree

Copy = Callable[[str], Path]


@pytest.fixture
def sample(run, tmp_path: Path) -> Path:
    store = tmp_path / "store"
    assert run("sample", store, "--messages", 40, "--size", 32).code == 0
    return store


def test_plan_changes_nothing(run, sample: Path) -> None:
    before = tree(sample)
    outcome = run("compact", sample, "--dry-run")
    assert outcome.code == 0
    assert outcome.out.endswith("nothing was changed\n")
    plan = run("compact", sample, "--dry-run", "-o", "json").json()
    assert (plan["written"], plan["out"]) == (False, None)
    assert plan["summary"]["messages_kept"] == 120
    assert tree(sample) == before


def test_new_directory(run, sample: Path, tmp_path: Path) -> None:
    before, out = tree(sample), tmp_path / "new"
    result = run("compact", sample, "--out", out, "--max-msgs", 10, "--force", "-o", "json").json()
    assert result["summary"]["messages_dropped"] == 90
    assert tree(sample) == before
    assert run("verify", out).code == 0
    info = run("info", out, "-o", "json").json()
    assert [(c["first_seq"], c["last_seq"], len(c["slices"])) for c in info["channels"]] == [(31, 40, 1)] * 3
    # Only how many messages are waiting is less: those that are gone wait no more.
    old, new = ([s | {"lag": 0} for s in run("subs", place, "-o", "ndjson").ndjson()] for place in (sample, out))
    assert new == old


def test_slices_are_split(run, sample: Path, tmp_path: Path) -> None:
    assert run("compact", sample, "--out", tmp_path / "new", "--slice-msgs", 7, "--force").code == 0
    info = run("info", tmp_path / "new", "-o", "json").json()
    assert {len(channel["slices"]) for channel in info["channels"]} == {6}


def test_in_place(run, sample: Path, tmp_path: Path) -> None:
    before = tree(sample)
    asked = run("compact", sample, "--in-place", "--force")
    assert asked.code == 2
    assert "--yes" in asked.err
    assert tree(sample) == before
    kept = tmp_path / "kept"
    outcome = run("compact", sample, "--in-place", "--force", "--yes", "--backup", kept)
    assert outcome.code == 0
    assert f"kept as {kept}" in outcome.out
    assert tree(kept) == before
    assert tree(sample) != before
    assert run("verify", sample).code == 0


def test_wrong_usage(run, sample: Path, tmp_path: Path) -> None:
    assert run("compact", sample).code == 2
    assert run("compact", sample, "--out", tmp_path / "x", "--in-place").code == 2
    assert run("compact", sample, "--out", tmp_path / "x", "--backup", tmp_path / "y").code == 2
    assert run("compact", sample, "--out", sample / "inside", "--force").code == 4


def test_a_damaged_store_is_refused(run, golden_copy: Copy, tmp_path: Path) -> None:
    store = golden_copy("dmg_payload_flip_idx_intact")
    outcome = run("compact", store, "--out", tmp_path / "new", "--force")
    assert outcome.code == 4
    assert "stantools salvage" in outcome.err
    assert not (tmp_path / "new").exists()
    lost = golden_copy("dmg_subs_missing")
    assert run("compact", lost, "--out", tmp_path / "new", "--force").code == 4
    assert run("compact", lost, "--out", tmp_path / "new", "--force", "--accept-loss").code == 0
