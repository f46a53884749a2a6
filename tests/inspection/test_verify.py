"""verify against what the real server's stores hold: which messages are intact, and what is reported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.inspection import survey
from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.findings import Severity
from stantools.inspection.survey import SliceSurvey
from stantools.inspection.verify import Verdict, verify
from stantools.store.directory import open_datastore
from stantools.store.ranges import Ranges
from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import GOLDEN, MUTATION_SETS, cases_by_kind, golden_cases, load_expected
from tests.inspection import forecast_stores
from tests.mutations import fresh_copy, mutated_stores, shares
from tests.trees import dated


def run(root: Path, polynomial: int = 0xEDB88320, **options: Any) -> Verdict:
    return verify(open_datastore(root, Crc(polynomial)), **options)


def codes(verdict: Verdict) -> set[str]:
    return {f.code for f in verdict.findings}


def test_the_table_counts_the_messages_that_it_lists(tmp_path: Path) -> None:
    write_sample(tmp_path / "store", SampleOptions(channels=1, damage=("flipped-length",)))
    verdict = run(tmp_path / "store")
    table = verdict.table()
    shown = dict(zip([each.title for each in table.columns], table.rows[0], strict=True))
    assert (shown["messages"], shown["intact"]) == (100, "1-100")  # one is proven although its record is damaged
    assert verdict.messages_sentence().startswith("100 messages intact")


@pytest.mark.parametrize("case", cases_by_kind())
def test_intact_messages_are_what_golden_says(case: str, golden_copy: Callable[[str], Path]) -> None:
    root, expected = golden_copy(case), load_expected(case)
    before = dated(root)
    verdict = run(root, expected["options"]["file_crc_poly"])
    assert dated(root) == before
    intact = {c.name: c.intact for c in verdict.channels}
    if "salvage" in expected:
        messages = expected["salvage"]["messages"]
        if case == "no_permission_dat" and os.geteuid() != 0:
            pytest.skip("the facts hold for a reader who may read the file")
        assert {name: intact[name].as_json() for name in messages} == {
            name: facts["intact"] for name, facts in messages.items()
        }
        damaged_on_disk = any(d["kind"] not in QUIET for d in expected["damage"])
        assert verdict.clean != damaged_on_disk
        for name, facts in messages.items():
            channel = next(c for c in verdict.channels if c.name == name)
            known = channel.damaged | channel.missing
            header_only = Ranges.of(facts.get("payload_intact_but_header_damaged", []))
            assert not (channel.damaged & channel.missing)
            assert not header_only - known
    else:
        assert verdict.clean
        for name, facts in expected["channels"].items():
            assert not Ranges.of(facts["readable"]) - intact[name]
    assert codes(verdict) <= set(CATALOGUE)


#: Kinds of golden "damage" after which no byte of the store is wrong.
QUIET = {"foreign file", "no permissions", "read only"}


def surveys(root: Path) -> list[SliceSurvey]:
    found = [
        survey.survey_slice(each, files.raw_name, Crc())
        for files in open_datastore(root).channels()
        for each in files.all_slices
    ]
    for run in (run for each in found for run in each.runs):
        run.marks.clear()  # where reading may begin, which depends on the steps
    return found


@pytest.mark.parametrize("case", MUTATION_SETS)
def test_a_sound_beginning_changes_no_survey(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "BATCH_ROWS", 5)
    for mutation, root in mutated_stores(case, tmp_path, 13):
        found = surveys(root)
        with monkeypatch.context() as patch:
            patch.setattr(survey, "_scan_sound", lambda *_: (FILE_HEADER_SIZE, 0))
            assert surveys(root) == found, mutation


@pytest.mark.parametrize(("case", "every"), shares(7))
def test_mutations(case: str, every: int, golden: Path, tmp_path: Path) -> None:
    base = {n: Ranges.of(c["readable"]) for n, c in load_expected(case)["base"]["channels"].items()}
    wrong = []
    for mutation, root in mutated_stores(case, tmp_path, every):
        facts = mutation.get("salvage", {})
        verdict = run(root)
        for channel in verdict.channels:
            lost = Ranges.of(facts.get("lost", {}).get(channel.name, []))
            header = Ranges.of(facts.get("payload_intact_but_header_damaged", {}).get(channel.name, []))
            if channel.intact != base[channel.name] - lost - header:
                wrong.append((mutation, channel.name, channel.intact))
            if header - channel.damaged:
                wrong.append((mutation, channel.name, "header", channel.damaged))
        if verdict.clean and not _as_healthy_as_before(case, mutation, root):
            wrong.append((mutation, "clean"))
    assert not wrong


def _as_healthy_as_before(case: str, mutation: dict[str, Any], root: Path) -> bool:
    """A change that no reader can see: a file that ends at an earlier record, or is the same as before."""
    original = (GOLDEN / case / "datastore" / mutation["file"]).read_bytes()
    path = root / mutation["file"]
    return path.exists() and original.startswith(path.read_bytes())


def test_findings_name_the_place(golden_copy: Callable[[str], Path]) -> None:
    verdict = run(golden_copy("dmg_payload_flip_idx_intact"))
    damage = load_expected("dmg_payload_flip_idx_intact")["damage"][0]
    (finding,) = [f for f in verdict.findings if f.code == "slice-bad-payload"]
    assert finding.file == damage["file"]
    assert finding.offset is not None and finding.length is not None
    assert finding.offset <= damage["offset"] < finding.offset + finding.length
    assert finding.seq == 25 and finding.channel == "alpha"
    assert "0xdc3bba09" in finding.detail
    assert finding.remedy


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("dmg_payload_flip_idx_intact", ["slice-bad-payload"]),
        ("dmg_length_flip_noidx", ["slice-bad-length", "index-missing"]),
        ("dmg_last_slice_cut_payload", ["slice-torn", "sequence-damaged"]),  # the second names more messages
        ("dmg_idx_last_points_wrong", ["index-orphans", "index-dangling"]),  # the data are as they should be
    ],
)
def test_a_damaged_message_is_one_finding(case: str, expected: list[str], golden_copy: Callable[[str], Path]) -> None:
    verdict = run(golden_copy(case))
    assert [f.code for f in verdict.findings if f.severity is not Severity.INFO] == expected
    for found in (f for f in verdict.findings if f.code.startswith(("slice-", "sequence-damaged"))):
        assert f"sequence {found.seq}" in found.detail or f"sequences {found.seq}-" in found.detail


@pytest.mark.parametrize("case", cases_by_kind(name for name in golden_cases() if name.startswith("dmg_")))
def test_every_damaged_message_is_named(case: str, golden_copy: Callable[[str], Path]) -> None:
    verdict = run(golden_copy(case))
    for channel in verdict.channels:
        own = [f for f in verdict.findings if f.channel == channel.name]
        named = Ranges.of((f.seq, f.seq) for f in own if f.code.startswith("slice-") and f.offset is not None and f.seq)
        assert bool(channel.damaged - named) == any(f.code == "sequence-damaged" for f in own)


def test_limited_to_channels(golden_copy: Callable[[str], Path]) -> None:
    verdict = run(golden_copy("dmg_payload_flip_idx_intact"), patterns=["beta.*"])
    assert [c.name for c in verdict.channels] == ["beta.two"] and verdict.clean


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("dmg_server_missing", "server-missing"),
        ("dmg_empty_clients", "file-version"),
        ("dmg_clients_missing", "ghost-durable-queue"),
        ("dmg_subs_missing", "subs-missing"),
        ("dmg_idx_last_points_wrong", "index-dangling"),
        ("dmg_idx_points_to_other_record", "index-mismatch"),
        ("dmg_idx_shorter_last", "index-orphans"),
        ("dmg_dat_missing_idx_there", "index-without-data"),
        ("dmg_middle_slice_missing", "slice-missing"),
        ("dup_slice_after_noidx", "sequence-duplicate"),
        ("dmg_unknown_type_subs", "log-unknown-type"),
        ("dmg_zero_tail_subs_clients", "log-zeros"),
        ("foreign_dirs", "foreign-directory"),
        ("archived_bak", "archived-slices"),
    ],
)
def test_codes(case: str, code: str, golden_copy: Callable[[str], Path]) -> None:
    assert code in codes(run(golden_copy(case)))


@pytest.mark.parametrize(("one", "other"), [(3, 4), (3, 30_000), (20_000, 39_999), (1, 2), (16_384, 16_385)])
def test_index_records_that_changed_places(tmp_path: Path, one: int, other: int) -> None:
    forecast_stores.write_server(tmp_path)
    forecast_stores.write_slice(tmp_path, "foo", 1, range(1, 40_001))
    file = tmp_path / "foo" / "msgs.1.idx"
    records = forecast_stores.read_index(file)
    records[one - 1], records[other - 1] = records[other - 1], records[one - 1]
    forecast_stores.write_index(file, records)
    verdict = verify(open_datastore(tmp_path, forecast_stores.CRC))
    (found,) = [each for each in verdict.findings if each.code.startswith("index-")]
    assert (found.code, found.severity, found.seq) == ("index-disorder", Severity.ERROR, one)
    assert (found.file, found.offset) == ("foo/msgs.1.idx", 4 + 32 * (one - 1))
    expected = f"{one}-{other}" if other == one + 1 else f"{one}, {other}"
    assert found.detail == f"2 index records are in the wrong order: sequences {expected}"
    assert not verdict.clean
    assert verdict.channels[0].intact.pairs() == [(1, 40_000)]


def test_symlinks_leftovers_and_case(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("damage_base")
    (root / "linked").symlink_to(root / "alpha", target_is_directory=True)
    (root / "clients.dat12345").write_bytes(b"")
    (root / "ALPHA").mkdir()
    (root / ".truncate.lck").touch()
    assert {"symlinked-channel", "leftover-file", "case-collision", "witness-present"} <= codes(run(root))


def test_an_unreadable_channel_is_a_finding(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("damage_base")
    (root / "alpha" / "msgs.2.dat").unlink()
    (root / "alpha" / "msgs.2.dat").symlink_to("/nonexistent")
    verdict = run(root)
    assert "file-unreadable" in codes(verdict)
    assert [c.intact.as_json() for c in verdict.channels] == [[[1, 15], [31, 40]], [[1, 12]]]


def test_a_raft_log_is_named(golden: Path, golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("clustered")
    raft = golden / "clustered" / "raft"
    with pytest.raises(StoreUnreadableError, match="is not a file store"):
        open_datastore(raft)
    fresh_copy(raft, root / "raft")
    assert "raft-log" in codes(run(root))


def test_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file", tmp_path / "absent"):
        with pytest.raises(StoreUnreadableError) as caught:
            open_datastore(path)
        assert str(path) in caught.value.message and caught.value.remedy


def test_wrong_polynomial_finds_no_message_and_does_not_raise(golden_copy: Callable[[str], Path]) -> None:
    verdict = run(golden_copy("crc_castagnoli"))
    assert not verdict.clean and not any(c.intact for c in verdict.channels)
