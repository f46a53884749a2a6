"""The check before a start: it refuses exactly the starts by which real servers destroyed intact messages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stantools.inspection import start_check
from stantools.inspection.start_check import StartCheck, StreamsStartCheck
from stantools.inspection.stream_forecast.versions import SERVER_RULES
from tests.inspection import stream_start_cases as cases

pytestmark = pytest.mark.golden
SAMPLE = [
    ("dmg_dir_dot", "2.11.11"),
    ("dmg_flip_len_idx", "2.15.1"),
    ("dmg_flip_payload_idx", "2.15.1"),
    ("dmg_first_seq_noidx", "2.10.26"),
    ("dmg_first_seq_noidx", "2.11.11"),
    ("dmg_meta_sum_flip", "2.15.1"),
    ("dmg_block_is_directory", "2.12.8"),
    ("dmg_block_is_directory", "2.14.6"),
    ("enc_flip_block", "2.12.8"),
    ("left_purge_dir", "2.15.1"),
    ("left_new_msgs_tomb", "2.12.8"),
    ("left_new_msgs_tomb", "2.14.6"),
    ("limit_lowered", "2.15.1"),
    ("ok_aged15", "2.15.1"),
    ("ok_blocks15", "2.15.1"),
    ("ok_edges15", "2.10.26"),
    ("s2_flip_trailer", "2.12.8"),
    ("s2_flip_trailer", "2.15.1"),
]


def check(case: str, version: str, store: Path | None = None) -> StartCheck:
    content, found = cases.expected(case), StartCheck()
    store = store or cases.folder() / case / "store"
    streams, now = cases.stored_streams(store, content), cases.start_time(content)
    rules = [SERVER_RULES[version.rpartition(".")[0]]]
    StreamsStartCheck(streams, store, rules, now).run(found, lambda _size: None)
    return found


def difference(case: str, version: str) -> str:
    """Tells how the check of a case differs from what a server did; empty if it does not."""
    found = check(case, version)
    judged = (cases.outcome(case, version).get("judged") or {}).values()
    destroyed = any(each.get("intact_destroyed_on_disk") for each in judged)
    if bool(found.destroys or found.expires) == destroyed:
        return ""
    return f"{version}: {found}, the server {'destroyed' if destroyed else 'destroyed nothing'}"


@pytest.mark.parametrize(("case", "version"), SAMPLE)
def test_refusals_are_what_servers_destroyed(case: str, version: str) -> None:
    assert difference(case, version) == ""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.9.10", "2.10.26", "2.11.11", "2.12.8", "2.14.6", "2.15.1"])
def test_refusals_in_every_case(version: str) -> None:
    every = [case for case, each in cases.single_server_cases() if each == version]
    found = {case: difference(case, version) for case in every}
    assert every
    assert {case: each for case, each in found.items() if each} == {}


def mutation_differences(case: str, mutation: dict[str, Any], place: Path) -> list[str]:
    store, found = place / "store", []
    shutil.copytree(cases.folder() / case / "store", store, copy_function=shutil.copyfile)
    cases.mutate(store, mutation)
    for version, number in mutation["outcomes"].items():
        outcome, checked = cases.expected(case)["outcomes"][number], check(case, version, store)
        refused = bool(checked.destroys or checked.expires)
        if outcome["starts"] and refused != bool(outcome.get("intact_destroyed_on_disk")):
            found.append(f"{mutation['id']} {version}: {checked}")
    shutil.rmtree(store)
    return found


@pytest.mark.parametrize("case", cases.SYSTEMATIC)
def test_refusals_of_some_mutations(case: str, tmp_path: Path) -> None:
    assert [
        text for each in cases.expected(case)["mutations"][::80] for text in mutation_differences(case, each, tmp_path)
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", cases.SYSTEMATIC)
def test_refusals_of_every_mutation(case: str, tmp_path: Path) -> None:
    assert [
        text for each in cases.expected(case)["mutations"] for text in mutation_differences(case, each, tmp_path)
    ] == []


def test_blocks_below_a_trusted_index_are_read_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    case = "dmg_flip_len_idx"  # the start reads no block; the first reader makes the server cut one
    content = cases.expected(case)
    store, found = cases.folder() / case / "store", [StartCheck(), StartCheck()]
    monkeypatch.setattr(start_check, "READ_ANYWAY", 0)
    for check_, every_block in zip(found, (False, True), strict=True):
        streams = StreamsStartCheck(
            cases.stored_streams(store, content), store, [SERVER_RULES["2.15"]], cases.start_time(content)
        )
        streams.run(check_, lambda _size: None, every_block=every_block)
    assert (found[0].destroys, "were not read" in found[0].unread[0]) == ([], True)
    assert (len(found[1].destroys), found[1].unread) == (1, [])
