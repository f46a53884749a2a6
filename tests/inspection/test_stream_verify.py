"""`verify` of directories that real servers wrote: healthy ones are clean, and each damage has its findings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.inspection import stream_verify
from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.report import NextStep
from stantools.inspection.source_queries import scan_source
from stantools.inspection.stream_verify import StreamsVerdict
from stantools.sources.door import open_source
from stantools.sources.source import Source, SourceRequest
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions
from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.flaws import FlawKind
from tests.goldenstores import unpacked
from tests.mutations import apply_mutation

pytestmark = pytest.mark.golden
#: a server was killed, or 2.9 wrote it: worth knowing, not a flaw
KILLED = {"js-index-missing", "js-index-stale", "js-idx"}
#: 2.10 damages its own compressed blocks
NOT_CLEAN = {"ok_s2_10": {"js-block-erase-bug"}}
#: Codes of each damaged case, without `js-`.
FOUND = {
    "dmg_block_copied_after_last": "block-number index-stale",
    "dmg_block_is_directory": "block-unreadable index-missing tombstones-lost",
    "dmg_block_is_directory_idx": "block-unreadable",
    "dmg_block_renumbered": "block-number index-stale",
    "dmg_blocks_swapped": "block-number index-missing",
    "dmg_cons_dat_ahead": "cons-ahead",
    "dmg_cons_dat_cut": "cons-state",
    "dmg_cons_dat_empty": "cons-state",
    "dmg_cons_dat_flip": "cons-state",
    "dmg_cons_dat_magic": "cons-state",
    "dmg_cons_dat_missing": "cons-state",
    "dmg_cons_inf_unknown": "meta-unknown",
    "dmg_cons_interest_dat_missing": "cons-state",
    "dmg_cons_interest_lost": "cons-lost",
    "dmg_cons_interest_lost_10": "cons-lost",
    "dmg_cons_meta_missing": "cons-meta",
    "dmg_cons_sum_flip": "cons-sum",
    "dmg_cons_wq_lost": "cons-lost",
    "dmg_cut_last_boundary_idx": "block-missing index-ahead tombstones-lost",
    "dmg_cut_last_inside_idx": "block-cut block-missing index-ahead tombstones-lost",
    "dmg_cut_last_inside_killed": "block-cut index-missing tombstones-lost",
    "dmg_cut_last_record_tail": "block-cut index-missing tombstones-lost",
    "dmg_cut_mid_idx": "block-cut",
    "dmg_cut_mid_idx_10": "block-cut",
    "dmg_cut_mid_noidx": "block-cut index-missing tombstones-lost",
    "dmg_dir_copied": "block-number index-hash meta-name meta-sum",
    "dmg_dir_dot": "delete-under-way",
    "dmg_first_seq_noidx": "index-missing",
    "dmg_flip_erased_record": "block-hash index-missing",
    "dmg_flip_first_record_first_block": "block-hash index-missing",
    "dmg_flip_hash_noidx": "block-hash index-missing",
    "dmg_flip_hbit_tombstone": "block-length index-missing tombstones-lost",
    "dmg_flip_hdrlen_big_10": "block-length",
    "dmg_flip_hdrlen_idx": "border",
    "dmg_flip_hdrlen_noidx": "border index-missing",
    "dmg_flip_last_hash_idx": "block-hash index-stale tombstones-lost",
    "dmg_flip_last_payload_idx": "block-tail tombstones-lost",
    "dmg_flip_len_idx": "block-hash",
    "dmg_flip_len_idx_10": "block-hash",
    "dmg_flip_len_noidx": "block-hash index-missing tombstones-lost",
    "dmg_flip_payload_idx": "block-hash",
    "dmg_flip_payload_idx_10": "block-hash",
    "dmg_flip_payload_noidx": "block-hash index-missing",
    "dmg_flip_seq_idx": "block-hash",
    "dmg_flip_seq_noidx": "block-hash index-missing",
    "dmg_flip_seqhigh_idx_10": "block-hash",
    "dmg_flip_slen_idx": "border",
    "dmg_flip_slen_noidx": "border index-missing",
    "dmg_flip_subject_noidx": "block-hash index-missing",
    "dmg_flip_tbit_noidx": "block-hash index-missing tombstones-lost",
    "dmg_flip_tombstone": "block-hash index-missing tombstones-lost",
    "dmg_flip_ts_noidx": "block-hash index-missing",
    "dmg_garbage_tail": "block-tail index-missing tombstones-lost",
    "dmg_index_ahead": "block-missing index-ahead",
    "dmg_index_empty": "index-hash",
    "dmg_index_flip": "index-hash",
    "dmg_index_missing": "index-missing",
    "dmg_index_missing_15": "index-missing",
    "dmg_index_other_stream": "index-hash",
    "dmg_index_stale": "index-stale",
    "dmg_index_version": "index-version",
    "dmg_index_wrong_counts": "index-totals",
    "dmg_meta_bad_json": "meta-json",
    "dmg_meta_both_empty": "meta-json meta-sum",
    "dmg_meta_inf_edited": "meta-sum",
    "dmg_meta_inf_flip": "meta-sum meta-unknown",
    "dmg_meta_inf_missing": "meta-missing",
    "dmg_meta_level": "meta-level",
    "dmg_meta_name_changed": "meta-name",
    "dmg_meta_sum_flip": "meta-sum",
    "dmg_meta_sum_missing": "meta-missing",
    "dmg_meta_sum_newline": "meta-sum",
    "dmg_meta_unknown_member": "meta-unknown",
    "dmg_missing_all_blocks": "block-missing index-ahead",
    "dmg_missing_first_idx": "block-missing index-stale",
    "dmg_missing_last_idx": "block-missing index-ahead tombstones-lost",
    "dmg_missing_last_idx_10": "block-missing index-ahead tombstones-lost",
    "dmg_missing_last_noidx": "cons-ahead index-missing",
    "dmg_missing_mid_idx": "block-missing index-stale",
    "dmg_missing_mid_idx_10": "block-missing index-stale",
    "dmg_missing_mid_noidx": "block-missing index-missing tombstones-lost",
    "dmg_missing_msgs_dir": "block-missing cons-ahead",
    "dmg_stale_flip_10": "block-hash index-stale",
    "dmg_store_nested": "nested",
    "dmg_two_flips": "block-hash index-missing",
    "dmg_zero_all_last": "block-zeros cons-ahead index-missing tombstones-lost",
    "dmg_zero_bytes_last_idx": "block-empty block-missing index-ahead tombstones-lost",
    "dmg_zero_bytes_mid_idx": "block-empty",
    "dmg_zero_bytes_mid_idx_10": "block-empty",
    "dmg_zero_bytes_mid_noidx": "block-empty index-missing tombstones-lost",
    "dmg_zero_end_idx_10": "block-hash block-missing index-ahead tombstones-lost",
    "dmg_zero_end_noidx": "block-hash index-missing tombstones-lost",
    "dmg_zero_region_mid_noidx": "block-hash index-missing tombstones-lost",
    "dmg_zero_tail_idx": "block-zeros index-stale",
    "enc_blk_key_cut": "block-key index-missing tombstones-lost",
    "enc_blk_key_flip": "block-key index-missing tombstones-lost",
    "enc_blk_key_missing": "block-key",
    "enc_flip_block": "block-hash index-missing",
    "enc_flip_block_aes": "block-hash index-missing",
    "enc_meta_key_flip": "key-wrong",
    "enc_meta_key_missing": "key-wrong",
    "enc_no_key": "key-missing",
    "enc_s2_flip": "block-hash index-missing",
    "enc_wrong_key": "key-wrong",
    "left_blk_tmp_complete": "block-cut index-missing leftover tombstones-lost",
    "left_foreign": "foreign-file leftover",
    "left_new_msgs_tomb": "purge-under-way",
    "left_purge_dir": "leftover",
    "left_purged_but_moved": "purge-under-way",
    "left_tmp": "leftover",
    "meta_config_rejected": "meta-config",
    "old_cut_last": "block-cut idx tombstones-lost",
    "old_flip_payload": "block-hash",
    "old_flip_payload_noidx": "block-hash index-missing",
    "old_idx_missing": "index-missing",
    "s2_cut_block": "block-compressed block-cut block-erase-bug index-missing tombstones-lost",
    "s2_flip_block": "block-compressed block-hash index-missing",
    "s2_flip_block_idx": "block-compressed block-hash",
    "s2_flip_magic": "block-compressed index-missing",
    "s2_flip_trailer": "block-hash index-missing",
    "ttl_wheel_flip": "ttl-index",
    "ttl_wheel_missing": "ttl-index",
}
#: Damage that only a start of a server shows, by its limits, accounts and keys; and a byte that nothing reads.
WITHOUT = {
    "age_shortened", "dmg_account_renamed", "enc_other_cipher", "enc_plain_opened_with_key", "left_snapshots",
    "limit_lowered", "old_idx_flip",
}  # fmt: skip
#: Deletions of which nothing tells any more, and ends of streams: see tests/streamfiles/test_golden_streams.py.
UNKNOWABLE = {
    "dmg_cut_last_inside_killed", "dmg_index_ahead", "dmg_missing_last_noidx", "dmg_missing_msgs_dir",
    "dmg_zero_all_last", "dmg_zero_end_noidx", "enc_no_key", "enc_wrong_key", "old_cut_last",
    "old_flip_payload_noidx", "old_idx_missing",
}  # fmt: skip


def load(case: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((unpacked() / "jetstream" / case / "expected.json").read_text())
    return expected


def cases(kind: str) -> list[str]:
    folders = sorted(each.parent.name for each in (unpacked() / "jetstream").glob("*/expected.json"))
    return [each for each in folders if "nodes" not in (expected := load(each)) and expected["kind"] == kind]


def scan(path: Path, expected: dict[str, Any], *, right_key: bool = True) -> StreamsVerdict:
    settings = (right_key and expected.get("written_with")) or expected.get("server_settings") or {}
    key = settings.get("jetstream", {}).get("key")
    source = open_source(path, SourceRequest(ReadOptions(encryption_key=key.encode() if key else None)))
    verdict = scan_source(source)
    assert isinstance(verdict, StreamsVerdict)
    return verdict


def ranges(pairs: list[list[int]]) -> Ranges:
    return Ranges.of((low, high) for low, high in pairs)


def check_healthy(case: str) -> None:
    expected = load(case)
    verdict = scan(unpacked() / "jetstream" / case / "store", expected)
    codes = {each.code for each in verdict.findings}
    assert codes <= KILLED | NOT_CLEAN.get(case, set()), case
    assert verdict.clean is (case not in NOT_CLEAN), case
    found = {f"{each.account}/{each.name}": each for each in verdict.streams}
    for stream, truth in expected["truth"].items():
        live = ranges(truth["live"]["ranges"])
        assert found[stream].live == found[stream].intact == live, (case, stream)
        assert not found[stream].damaged and not found[stream].missing
    assert verdict.bytes_scanned == sum(
        each["size"] for name, each in expected["files"].items() if name.endswith(".blk") and "/batches/" not in name
    ), case


def check_damaged(case: str) -> None:
    expected = load(case)
    verdict = scan(
        unpacked() / "jetstream" / case / "store", expected, right_key=case not in ("enc_no_key", "enc_wrong_key")
    )
    codes = {each.code.removeprefix("js-") for each in verdict.findings}
    assert codes == set(FOUND.get(case, "").split()), case
    assert bool(codes) is (case not in WITHOUT), case
    for each in verdict.streams:
        truth = expected["truth"].get(f"{each.account}/{each.name}")
        if not truth:
            continue
        if case not in UNKNOWABLE:
            assert each.live == ranges(truth["live"]["ranges"]), (case, each.name)
        if case not in ("enc_no_key", "enc_wrong_key"):
            assert not ranges(truth["intact_on_disk"]) - each.intact, (case, each.name)
        assert each.live == Ranges.union((each.intact, each.damaged, each.missing))
        assert not each.intact & (each.damaged | each.missing) and not each.damaged & each.missing
        if truth["lost"] and case not in UNKNOWABLE:
            assert not verdict.clean


def test_healthy_directories_are_clean() -> None:
    for case in cases("healthy")[::5]:
        check_healthy(case)


@pytest.mark.slow
def test_all_healthy_directories_are_clean() -> None:
    for case in cases("healthy"):
        check_healthy(case)


def test_damage_has_its_findings() -> None:
    for case in [each for each in cases("damaged") if "mutations" not in load(each)][::7]:
        check_damaged(case)


@pytest.mark.slow
def test_every_damage_has_its_findings() -> None:
    names = [each for each in cases("damaged") if "mutations" not in load(each)]
    assert len(names) == 129
    for case in names:
        check_damaged(case)


@pytest.mark.parametrize("case", ["cl_ok_15", "cl_ok_12_killed", "cl_minority_10"])
def test_nodes_of_clusters(case: str) -> None:
    expected = load(case)
    for node in expected["nodes"]:
        verdict = scan(unpacked() / "jetstream" / case / "store" / node, expected)
        assert verdict.clean and {each.code for each in verdict.findings} <= KILLED
        for each in verdict.streams:
            known = expected["truth"].get(f"{each.account}/{each.name}")
            if known and not expected.get("notes", {}).get("stopped_early"):
                assert each.intact == ranges(known["live"]["ranges"])


def check_mutations(case: str, folder: Path, step: int) -> None:
    """Each mutation is found, and no verdict is calmer than the truth."""
    expected = load(case)
    for mutation in expected["mutations"][::step]:
        copy = folder / str(mutation["id"])
        shutil.copytree(unpacked() / "jetstream" / case / "store", copy)
        for name in mutation["also_removed"]:
            (copy / name).unlink()
        apply_mutation(copy, mutation)
        verdict = scan(copy, expected)
        stream = next(each for each in verdict.streams if expected["stream"].endswith(f"/{each.name}"))
        intact = ranges(mutation["intact"])
        # nothing protects a consumer's position, and no server reads the size of an erased record's subject
        assert verdict.findings or "o.dat" in mutation["what"] or "erased" in mutation["what"], mutation
        assert not intact - stream.intact, mutation
        # a cut between two records of the last block leaves no trace, if there is no index
        traceless = mutation["op"] == "truncate" and mutation["also_removed"]
        if intact.count() < mutated_live(expected) and not traceless:
            assert not verdict.clean, mutation
        shutil.rmtree(copy)


def mutated_live(expected: dict[str, Any]) -> int:
    count: int = expected["live"]["count"]
    return count


@pytest.mark.parametrize("case", ["systematic_10", "systematic_multi_15"])
def test_some_mutations_are_found(case: str, tmp_path: Path) -> None:
    check_mutations(case, tmp_path, 13)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["systematic_10", "systematic_multi_15"])
def test_every_mutation_is_found(case: str, tmp_path: Path) -> None:
    check_mutations(case, tmp_path, 1)


def test_every_kind_of_flaw_has_an_entry_in_the_catalogue() -> None:
    assert {each.value for each in FlawKind} <= CATALOGUE.keys()


def verify(path: Path, *words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["verify", str(path), *words], prog_name="stantools")
    assert done.exit_code in (0, 1, 2), done.output
    return done.exit_code, done.stdout, done.stderr


def test_json_is_that_of_the_issue(golden_jetstream: Path) -> None:
    code, said, _ = verify(golden_jetstream / "dmg_two_flips/store", "-o", "json")
    document = json.loads(said)
    assert code == 1 and list(document) == [
        *("schema", "kind", "clean", "findings", "streams", "bytes_scanned", "seconds"),
    ]
    assert (document["schema"], document["kind"], document["clean"]) == (1, "jetstream", False)
    assert list(document["findings"][0]) == [
        *("code", "severity", "file", "offset", "length", "account", "stream", "consumer", "seq", "detail", "remedy"),
    ]
    assert list(document["streams"][0]) == [
        *("account", "name", "live", "intact", "damaged", "missing", "messages", "bytes"),
    ]
    found = [(each["code"], each["seq"], each["stream"]) for each in document["findings"]]
    assert found[:2] == [("js-block-hash", 20, "ORDERS"), ("js-block-hash", 85, "ORDERS")]
    for finding in document["findings"]:
        if finding["offset"] is not None:
            path = golden_jetstream / "dmg_two_flips/store" / finding["file"]
            assert finding["offset"] + finding["length"] <= path.stat().st_size


@pytest.mark.parametrize(
    ("below", "file"),
    [
        ("", "jetstream/$G/streams/ORDERS/msgs/2.blk"),
        ("jetstream", "$G/streams/ORDERS/msgs/2.blk"),
        ("jetstream/$G", "streams/ORDERS/msgs/2.blk"),
        ("jetstream/$G/streams/ORDERS", "msgs/2.blk"),
        ("jetstream/$G/streams/ORDERS/msgs", "../msgs/2.blk"),
    ],
)
def test_a_file_is_named_from_the_place_that_was_given(golden_jetstream: Path, below: str, file: str) -> None:
    code, said, _ = verify(golden_jetstream / "dmg_flip_payload_idx/store" / below, "-o", "json")
    assert code == 1 and [each["file"] for each in json.loads(said)["findings"]] == [file]


def test_forms_of_the_result(golden_jetstream: Path) -> None:
    store = golden_jetstream / "dmg_cons_dat_ahead/store"
    code, said, _ = verify(store)
    assert code == 1 and "js-cons-ahead" in said and "it was sent message 1000, the stream ends at 130" in said
    code, said, _ = verify(store, "-o", "csv")
    assert said.splitlines()[0] == "code,severity,file,offset,length,account,stream,consumer,seq,detail,remedy"
    code, said, _ = verify(store, "--channel", "EVENTS", "-o", "json")
    assert code == 0 and [each["name"] for each in json.loads(said)["streams"]] == ["EVENTS"]
    code, said, stderr = verify(store, "--channel", "NONE")
    assert code == 2 and "no stream matches NONE" in stderr
    code, said, _ = verify(golden_jetstream / "ok_basic15/store")
    assert code == 0 and "91 messages are intact" in said


def test_what_cannot_be_judged_without_a_key(golden_jetstream: Path) -> None:
    code, said, _ = verify(golden_jetstream / "enc_no_key/store", "-o", "json")
    findings = json.loads(said)["findings"]
    assert (
        code == 1 and [(each["code"], each["file"][-8:]) for each in findings] == [("js-key-missing", "meta.key")] * 2
    )
    assert "cannot be judged" in findings[0]["detail"]


def test_sequences_that_were_given_twice(golden_jetstream: Path, tmp_path: Path) -> None:
    """The blocks of two states of one stream are mixed: the later block repeats sequences of the earlier one."""
    store = tmp_path / "store"
    shutil.copytree(golden_jetstream / "ok_blocks15/store", store)
    messages = store / "jetstream/$G/streams/ORDERS/msgs"
    (messages / "index.db").unlink()
    key = highwayhash.block_key("ORDERS", 4)
    with (messages / "4.blk").open("ab") as block:
        block.write(kernels.encode_record(131, 10**18, b"orders.s1", b"", b"x", key))
    key = highwayhash.block_key("ORDERS", 5)
    again = kernels.encode_record(131, 2 * 10**18, b"orders.s2", b"", b"y", key)
    (messages / "5.blk").write_bytes(again)
    code, said, _ = verify(store, "-o", "json")
    assert code == 1
    assert next((each["code"], each["seq"]) for each in json.loads(said)["findings"]) == ("js-block-order", 131)


def test_the_safe_step_is_looked_for_where_it_is_needed(
    golden_jetstream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def safe_step(source: Source, text: str) -> NextStep:
        asked.append(source.path)
        return NextStep(text)

    monkeypatch.setattr(stream_verify, "safe_step", safe_step)
    clean, damaged = (golden_jetstream / case / "store" for case in ("ok_basic15", "dmg_flip_payload_noidx"))
    assert scan_source(open_source(clean)).clean and not asked
    assert not scan_source(open_source(damaged)).clean and asked == [damaged]
