"""After salvage verify is clean, the server would start, and nothing intact is lost: for every damage there is."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.errors import RefusedError, StoreUnreadableError, StoreUnwritableError, UsageError
from stantools.format import gogo, kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.inspection.verify import verify
from stantools.recovery.salvage import SalvageOptions, SalvagePlan, apply_salvage, plan_salvage
from stantools.store.directory import MANIFEST_FILE, open_datastore
from stantools.store.mapping import mapped
from stantools.store.ranges import Ranges
from stantools.store.sample import SampleOptions, write_sample
from stantools.store.slice_reader import SliceFile
from stantools.store.sublog import SubsState, read_subs
from tests.conftest import cases_by_kind, load_expected
from tests.mutations import apply_mutation, damages, fresh_copy, mutated_stores, shares
from tests.trees import tree

IEEE = 0xEDB88320
CLUSTER = "test-cluster"


def messages(root: Path, crc: Crc) -> dict[str, dict[int, tuple[int, bytes, bytes]]]:
    """Reads every good message: channel -> sequence -> (timestamp, reply, data)."""
    found: dict[str, dict[int, tuple[int, bytes, bytes]]] = {}
    for channel in open_datastore(root).channels():
        here = found.setdefault(channel.name, {})
        for one in channel.slices:
            assert one.data is not None
            with mapped(one.data) as data:
                for event in SliceFile(data, channel.raw_name, crc).records():
                    if isinstance(event, MessageColumns):
                        for offset, size in zip(event.offset.tolist(), event.size.tolist(), strict=True):
                            message = gogo.decode(pb.MsgProto, data[offset + 8 : offset + 8 + size])
                            value = message.timestamp, bytes(message.reply), bytes(message.data)
                            assert here.setdefault(message.sequence, value) == value
    return found


def salvage(root: Path, out: Path, polynomial: int = IEEE, **options: Any) -> SalvagePlan:
    options.setdefault("cluster_id", CLUSTER)
    plan = plan_salvage(open_datastore(root, Crc(polynomial)), SalvageOptions(**options))
    apply_salvage(plan, out)
    return plan


def check(out: Path, polynomial: int = IEEE, versions: tuple[str, ...] = ("0.23.2",)) -> None:
    """The promise of salvage on its result."""
    store = open_datastore(out, Crc(polynomial))
    verdict = verify(store)
    assert verdict.clean, [(f.code, f.file, f.detail) for f in verdict.findings]
    for version in versions:
        prediction = forecast(store, ServerOptions(crc=Crc(polynomial), version=version), truncate=False)
        assert prediction.starts, prediction.error
        assert not prediction.as_json()["files_changed"]


def subs(root: Path, channel: str, polynomial: int = IEEE) -> SubsState:
    with mapped(root / channel / "subs.dat") as buffer:
        state = read_subs(buffer, Crc(polynomial))
    assert state.end is not None and not state.end.error
    return state


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden(case: str, golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    if case == "no_permission_dat" and os.geteuid() != 0:
        pytest.skip("the facts hold for a reader who may read the file")
    root, expected = golden_copy(case), load_expected(case)
    polynomial = expected["options"]["file_crc_poly"]
    before, had = tree(root), messages(root, Crc(polynomial))
    plan = salvage(root, tmp_path / "new", polynomial)
    assert tree(root) == before
    check(tmp_path / "new", polynomial, ("0.23.2", "0.25.6"))
    have = messages(tmp_path / "new", Crc(polynomial))
    for name, kept in had.items():
        assert {n: have.get(name, {}).get(n) for n in kept} == kept
    if "salvage" in expected:
        for name, facts in expected["salvage"]["messages"].items():
            assert not Ranges.of(facts["intact"]) - Ranges.of((n, n) for n in have[name])
            repairable = Ranges.of(facts.get("payload_intact_but_header_damaged", []))
            assert not repairable - Ranges.of((n, n) for n in have[name])
        if not expected["salvage"]["server_info_record_intact"]:
            assert plan.server.cluster_id == CLUSTER.encode()
    assert (tmp_path / "new" / MANIFEST_FILE).is_file()


@pytest.mark.parametrize(("case", "every"), shares(11))
def test_mutations(case: str, every: int, golden: Path, tmp_path: Path) -> None:
    base = messages(golden / case / "datastore", Crc(IEEE))
    for mutation, root in mutated_stores(case, tmp_path, every):
        out = tmp_path / "new"
        shutil.rmtree(out, ignore_errors=True)
        had = messages(root, Crc(IEEE))
        salvage(root, out)
        check(out)
        have = messages(out, Crc(IEEE))
        facts = mutation.get("salvage", {})
        for name, whole in base.items():
            lost = Ranges.of(facts.get("lost", {}).get(name, []))
            assert {n: v for n, v in whole.items() if n not in lost} == have[name], mutation
            assert had[name].keys() <= have[name].keys()


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small healthy store of our own with everything in it: three channels, slices, durables, pending messages."""
    root = tmp_path_factory.mktemp("healthy") / "store"
    write_sample(root, SampleOptions(channels=3, messages=40, size=40, seed=7, gaps=True))
    return root


def _files(root: Path) -> dict[str, int]:
    return {str(p.relative_to(root)): p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_generated_damages(healthy: Path, tmp_path: Path, data: st.DataObject) -> None:
    _salvage_after(healthy, tmp_path, data)


@pytest.mark.slow
@settings(
    max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_hundreds_of_generated_damages(healthy: Path, tmp_path: Path, data: st.DataObject) -> None:
    _salvage_after(healthy, tmp_path, data)


def _salvage_after(healthy: Path, tmp_path: Path, data: st.DataObject) -> None:
    root = fresh_copy(healthy, tmp_path / "store")
    files = _files(root)
    for damage in data.draw(st.lists(damages(sorted(files), files), min_size=1, max_size=5)):
        path = root / damage["file"]
        if path.exists() and path.stat().st_size > damage.get("offset", 0):
            apply_mutation(root, damage)
    _duplicate_some_slice(root, data)
    out = tmp_path / "new"
    shutil.rmtree(out, ignore_errors=True)
    before = tree(root)
    whole = _untouched(healthy, root)
    salvage(root, out)
    assert tree(root) == before
    check(out)
    have = messages(out, Crc(IEEE))
    for name, kept in whole.items():
        assert {n: have.get(name, {}).get(n) for n in kept} == kept


def _duplicate_some_slice(root: Path, data: st.DataObject) -> None:
    slices = sorted(root.glob("*/msgs.*.dat"))
    if slices and data.draw(st.booleans()):
        one = data.draw(st.sampled_from(slices))
        shutil.copy(one, one.with_name("msgs.77.dat"))


def _untouched(healthy: Path, root: Path) -> dict[str, dict[int, tuple[int, bytes, bytes]]]:
    """Messages whose record still stands at its old offset, byte for byte: the least that must be kept."""
    kept: dict[str, dict[int, tuple[int, bytes, bytes]]] = {}
    for channel in open_datastore(healthy).channels():
        here = kept.setdefault(channel.name, {})
        for one in channel.slices:
            assert one.data is not None
            now_path = root / channel.name / one.name
            now = now_path.read_bytes() if now_path.exists() else b""
            old = one.data.read_bytes()
            for batch in SliceFile(memoryview(old), channel.raw_name, Crc(IEEE)).records():
                assert isinstance(batch, MessageColumns)
                for offset, size in zip(batch.offset.tolist(), batch.size.tolist(), strict=True):
                    end = offset + 8 + size
                    if now[offset:end] == old[offset:end]:
                        message = gogo.decode(pb.MsgProto, memoryview(old)[offset + 8 : end])
                        here[message.sequence] = message.timestamp, bytes(message.reply), bytes(message.data)
    return kept


def test_healthy_store_comes_out_the_same(healthy: Path, tmp_path: Path) -> None:
    plan = salvage(healthy, tmp_path / "new")
    assert not plan.lossy and not plan.changes
    for name in _files(healthy):
        if (".dat" in name and "subs" not in name and "clients" not in name) or name.endswith(".idx"):
            assert (tmp_path / "new" / name).read_bytes() == (healthy / name).read_bytes(), name
    for channel in open_datastore(healthy).channel_names:
        old, new = subs(healthy, channel), subs(tmp_path / "new", channel)
        assert {n: (s.state, s.pending) for n, s in old.subscriptions.items()} == {
            n: (s.state, s.pending) for n, s in new.subscriptions.items()
        }


@pytest.mark.parametrize("change", ["cut", "damaged", "exchanged"])
def test_a_store_that_changes_after_the_plan_is_not_copied(healthy: Path, tmp_path: Path, change: str) -> None:
    root, out = tmp_path / "changing", tmp_path / "out"
    shutil.copytree(healthy, root)
    plan = plan_salvage(open_datastore(root, Crc(IEEE)), SalvageOptions(cluster_id=CLUSTER))
    file = max(root.glob("*/msgs.*.dat"), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    second = 12 + int.from_bytes(content[4:8], "little")
    third = second + 8 + int.from_bytes(content[second : second + 4], "little")
    file.write_bytes(
        {
            "cut": content[:-1],
            "damaged": content[:second] + bytes(8) + content[second + 8 :],
            "exchanged": content[:4] + content[second:third] + content[4:second] + content[third:],
        }[change]
    )
    with pytest.raises(StoreUnreadableError, match=rf"{file.name}: changed since it was scanned, at or before offset"):
        apply_salvage(plan, out)
    assert not out.exists()


def test_manifest(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("dmg_payload_flip_idx_intact")
    salvage(root, tmp_path / "new")
    manifest = json.loads((tmp_path / "new" / MANIFEST_FILE).read_text())
    (alpha,) = [c for c in manifest["channels"] if c["name"] == "alpha"]
    assert alpha["kept"] == [[1, 24], [26, 40]]
    (dropped,) = [d for d in manifest["dropped"] if d["file"] == "alpha/msgs.2.dat"]
    damage = load_expected("dmg_payload_flip_idx_intact")["damage"][0]
    assert dropped["offset"] <= damage["offset"] < dropped["offset"] + dropped["length"]
    (lost,) = [d for d in manifest["dropped"] if d["loss"]]
    assert lost["sequences"] == [[25, 25]]
    for name, facts in manifest["files"].items():
        data = (tmp_path / "new" / name).read_bytes()
        assert facts == {"size": len(data), "blake3": blake3(data).hexdigest()}


def test_fill_gaps(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("dmg_payload_flip_idx_intact")
    plan = salvage(root, tmp_path / "new", fill_gaps=True)
    assert plan.channels[0].filled.as_json() == [[25, 25]]
    have = messages(tmp_path / "new", Crc(IEEE))["alpha"]
    assert sorted(have) == list(range(1, 41))
    assert have[25] == (have[26][0], b"", b"")
    prediction = forecast(open_datastore(tmp_path / "new"), ServerOptions(), truncate=False)
    assert prediction.as_json()["channels"]["alpha"]["delivered_from_start"] == [[1, 40]]


def test_an_absurd_gap_is_not_filled(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("damage_base")
    data = root / "alpha" / "msgs.3.dat"
    record, _ = kernels.encode_messages(b"alpha", [2**60], [2**61], None, [b"far away"], Crc(IEEE))
    data.write_bytes(data.read_bytes() + record)
    with pytest.raises(RefusedError, match="empty messages"):
        salvage(root, tmp_path / "new", fill_gaps=True)
    salvage(root, tmp_path / "new")
    assert messages(tmp_path / "new", Crc(IEEE))["alpha"][2**60] == (2**61, b"", b"far away")


def test_full_disk_leaves_nothing(
    golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden_copy("dmg_length_flip_noidx")
    before = tree(root)
    plan = plan_salvage(open_datastore(root))

    real, left = os.write, 0

    def filling(descriptor: int, data: bytes) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    for room in (0, 1, 2, 3, 5, 8):
        left = room
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", filling)
            with pytest.raises(StoreUnwritableError, match="No space left"):
                apply_salvage(plan, tmp_path / "new")
        assert {p.name for p in tmp_path.iterdir()} == {root.name} and tree(root) == before
    apply_salvage(plan, tmp_path / "new")
    check(tmp_path / "new")


def test_durable_queue_survives_lost_clients(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("dmg_clients_missing")
    before = subs(root, "beta.two").subscriptions[1]
    salvage(root, tmp_path / "new")
    after = subs(tmp_path / "new", "beta.two").subscriptions[1]
    assert before.state.client_id and not after.state.client_id
    assert (after.state.last_sent, after.pending) == (before.state.last_sent, before.pending)
    prediction = forecast(open_datastore(tmp_path / "new"), ServerOptions(), truncate=False)
    assert not any("ghost" in line for line in prediction.log)


def test_positions_beyond_the_last_message_are_taken_back(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("damage_base")
    for name in ("msgs.1.dat", "msgs.1.idx", "msgs.2.dat", "msgs.2.idx", "msgs.3.dat", "msgs.3.idx"):
        (root / "alpha" / name).unlink()
    assert "subscription-ahead" in {f.code for f in verify(open_datastore(root)).findings}
    salvage(root, tmp_path / "new")
    check(tmp_path / "new")
    assert all(s.state.last_sent == 0 and not s.pending for s in subs(tmp_path / "new", "alpha").subscriptions.values())


def restarted(root: Path) -> Path:
    """Makes what a server without server.dat does to a channel (weakness W1): sequences begin again in the file."""
    data = root / "alpha" / "msgs.1.dat"
    records, _ = kernels.encode_messages(
        b"alpha", [1, 2, 3], [2**61, 2**61 + 1, 2**61 + 2], None, [b"new 1", b"new 2", b"new 3"], Crc(IEEE)
    )
    data.write_bytes(data.read_bytes() + records)
    return root


def test_generations_are_split(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = restarted(golden_copy("damage_base"))
    assert "sequence-generations" in {f.code for f in verify(open_datastore(root)).findings}
    salvage(root, tmp_path / "new")
    verdict = verify(open_datastore(tmp_path / "new"))
    assert {c.name: c.intact.as_json() for c in verdict.channels if "alpha" in c.name} == {
        "alpha": [[1, 3]],
        "alpha.generation-1": [[1, 40]],
    }


@pytest.mark.parametrize(("generation", "kept"), [("1", [[1, 40]]), ("2", [[1, 3]]), ("newest", [[1, 3]])])
def test_one_generation(
    generation: str, kept: list[list[int]], golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = restarted(golden_copy("damage_base"))
    plan = salvage(root, tmp_path / "new", generation=generation)
    channels = {c.name: c.intact.as_json() for c in verify(open_datastore(tmp_path / "new")).channels}
    assert channels == {"alpha": kept, "beta.two": [[1, 12]]}
    assert plan.lossy


def test_no_such_generation(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = restarted(golden_copy("damage_base"))
    with pytest.raises(UsageError, match="2 generations"):
        salvage(root, tmp_path / "new", generation="3")


def test_swapped_and_foreign_slices_go_home(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("damage_base")
    a, b = root / "alpha" / "msgs.2.dat", root / "beta.two" / "msgs.1.dat"
    kept = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(kept)
    assert "foreign-subject" in {f.code for f in verify(open_datastore(root)).findings}
    salvage(root, tmp_path / "new")
    check(tmp_path / "new")
    verdict = verify(open_datastore(tmp_path / "new"))
    assert {c.name: c.intact.as_json() for c in verdict.channels} == {"alpha": [[1, 40]], "beta.two": [[1, 12]]}


def test_a_copied_channel_folder_becomes_no_channel(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """Its messages name the channel it was copied from, and are kept once; so is what a copy alone still has."""
    root = golden_copy("damage_base")
    old = messages(root, Crc(IEEE))
    shutil.copytree(root / "alpha", root / "alpha.bak")
    (root / "alpha" / "msgs.2.dat").unlink()
    (root / "alpha" / "msgs.2.idx").unlink()
    verdict = verify(open_datastore(root))
    assert list(verdict.outcomes) == ["alpha", "beta.two"]
    assert verdict.outcomes["alpha"].intact.pairs() == [(1, 40)] and not verdict.outcomes["alpha"].missing
    plan = salvage(root, tmp_path / "new")
    assert (plan.missing, plan.lost, plan.lossy) == (0, 0, False)
    (copied,) = [each for each in plan.dropped if each.file == "alpha.bak"]
    assert "a copy of channel 'alpha'" in copied.reason and "subscriptions are left out" in copied.reason
    assert messages(tmp_path / "new", Crc(IEEE)) == old
    check(tmp_path / "new")


@pytest.mark.parametrize("name", ["msgs.1 (copy).dat", "msgs.9.dat"])
def test_a_copy_of_a_slice_is_counted_once(golden_copy: Callable[[str], Path], name: str) -> None:
    root = golden_copy("damage_base")
    before = {each.name: (each.messages, each.bytes) for each in verify(open_datastore(root)).channels}
    shutil.copyfile(root / "alpha" / "msgs.1.dat", root / "alpha" / name)
    assert {each.name: (each.messages, each.bytes) for each in verify(open_datastore(root)).channels} == before


def test_exit_code_of_what_was_missing_before(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """A slice that is gone is a loss that the plan announces; a gap between whole records is none, and is counted."""
    for case, missing, lossy in (("dmg_middle_slice_missing", 15, True), ("dmg_version_only_many", 0, True)):
        plan = salvage(golden_copy(case), tmp_path / f"{case}-new")
        assert (plan.missing, plan.lost, plan.lossy) == (missing, 0, lossy), case
    gap = salvage(golden_copy("gap_truncated_slice"), tmp_path / "gap-new")
    assert (gap.missing, gap.gone, gap.lossy) == (4, 0, False)


def test_a_renamed_channel_keeps_its_durables(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("damage_base")
    before = subs(root, "alpha").subscriptions
    (root / "alpha").rename(root / "renamed")
    salvage(root, tmp_path / "new")
    check(tmp_path / "new")
    assert sorted(open_datastore(tmp_path / "new").channel_names) == ["alpha", "beta.two"]
    after = subs(tmp_path / "new", "alpha").subscriptions
    assert {n: (s.state, s.pending) for n, s in after.items()} == {n: (s.state, s.pending) for n, s in before.items()}


def test_slices_in_the_wrong_order(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("damage_base")
    alpha = root / "alpha"
    for suffix in ("dat", "idx"):
        (alpha / f"msgs.1.{suffix}").rename(alpha / f"msgs.9.{suffix}")
    assert "sequence-disorder" in {f.code for f in verify(open_datastore(root)).findings}
    salvage(root, tmp_path / "new")
    check(tmp_path / "new")


def test_symlinked_and_archived(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("archived_bak")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(golden_copy("damage_base") / "alpha", elsewhere)
    (root / "alpha").symlink_to(elsewhere, target_is_directory=True)
    salvage(root, tmp_path / "new", archived=True)
    verdict = verify(open_datastore(tmp_path / "new"))
    assert {c.name: c.intact.as_json() for c in verdict.channels} == {"alpha": [[1, 40]], "arch": [[1, 31]]}


@pytest.mark.parametrize(
    "name",
    [
        "alpha/msgs.99999999999999999999.dat",
        "alpha/msgs.abc.dat",
        "alpha/msgs.dat",
        "alpha/msgs.2.dat.orig",
        "alpha/what is this",
        "found.bin",
    ],
)
@pytest.mark.parametrize("index", [True, False])
def test_slices_under_other_names(golden_copy: Callable[[str], Path], tmp_path: Path, name: str, index: bool) -> None:
    root = golden_copy("damage_base")
    old = messages(root, Crc(IEEE))
    (root / "alpha" / "msgs.2.dat").rename(root / name)
    if not index:
        (root / "alpha" / "msgs.2.idx").unlink()
    if name.startswith("alpha/"):
        verdict = verify(open_datastore(root))
        (stray,) = [each for each in verdict.findings if each.code == "slice-stray"]
        assert (stray.file, stray.seq) == (name, 16)
        assert "sequences 16-30 of it are in no slice" in stray.detail
        assert verdict.channels[0].intact.pairs() == [(1, 40)]
        assert not verdict.channels[0].missing and not verdict.clean
    plan = salvage(root, tmp_path / "new")
    assert (plan.lost, plan.lossy) == (0, False)
    assert any(change.startswith(f"{name}: sequences 16-30 of channel 'alpha'") for change in plan.changes)
    assert messages(tmp_path / "new", Crc(IEEE)) == old
    check(tmp_path / "new")


def test_copies_of_slices_and_what_only_contains_some(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("damage_base")
    old = messages(root, Crc(IEEE))
    shutil.copy(root / "alpha" / "msgs.2.dat", root / "alpha" / "msgs.2.dat.orig")
    (root / "alpha" / "archive.tar").write_bytes(bytes(512) + (root / "alpha" / "msgs.1.dat").read_bytes())
    (root / "alpha" / "msgs.1.dat.bak").write_bytes(b"")
    found = {each.code for each in verify(open_datastore(root)).findings}
    assert "foreign-file" in found and "slice-stray" not in found
    plan = salvage(root, tmp_path / "new")
    assert not plan.lossy
    assert [each.sequences.pairs() for each in plan.dropped if each.file == "alpha/msgs.2.dat.orig"] == [[(16, 30)]]
    assert messages(tmp_path / "new", Crc(IEEE)) == old


def test_other_messages_under_another_name_are_a_loss(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("damage_base")
    times, payloads = [1, 2, 3, 4], [b"a", b"b", b"c", b"d"]
    data, _ = kernels.encode_messages(b"alpha", [39, 40, 41, 42], times, None, payloads, Crc(IEEE))
    (root / "alpha" / "msgs.x.dat").write_bytes(b"\1\0\0\0" + bytes(data))
    plan = salvage(root, tmp_path / "new")
    (left,) = [each for each in plan.dropped if each.file == "alpha/msgs.x.dat"]
    assert (left.loss, left.sequences.pairs()) == (True, [(39, 40)])
    kept = messages(tmp_path / "new", Crc(IEEE))["alpha"]
    assert kept[41][2] == b"c" and kept[42][2] == b"d" and kept[40][2] != b"b"


def test_cluster_id(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("dmg_server_missing")
    with pytest.raises(RefusedError, match="cluster id"):
        plan_salvage(open_datastore(root))
    assert plan_salvage(open_datastore(root), SalvageOptions(cluster_id="mine")).server.cluster_id == b"mine"
    damaged = golden_copy("dmg_server_payload_flip")
    assert plan_salvage(open_datastore(damaged)).server.cluster_id == CLUSTER.encode()


def test_places_that_are_refused(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("damage_base")
    plan = plan_salvage(open_datastore(root))
    with pytest.raises(RefusedError, match="inside"):
        apply_salvage(plan, root / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(StoreUnwritableError, match="not empty"):
        apply_salvage(plan, tmp_path / "full")


_KILLED = """
import os, signal, sys
from pathlib import Path
import stantools.store.durable as durable, stantools.store.atomic as atomic, stantools.store.slice_output as slicefile
from stantools.recovery.salvage import *
from stantools.store.directory import open_datastore
from stantools.format.crc import Crc
left = 0
def counted(call):
    def run(*args, **kw):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return call(*args, **kw)
    return run
for point in sys.stdin:
    child = os.fork()
    if not child:
        left = int(point)
        for name in ("fsync", "rename", "replace", "write", "writev", "mkdir", "open"):
            setattr(os, name, counted(getattr(os, name)))
        plan = plan_salvage(open_datastore(sys.argv[1]))
        apply_salvage(plan, Path(sys.argv[2]))
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def _kill_points() -> Iterator[int]:
    yield from range(0, 60, 6)
    yield from range(60, 200, 20)


def test_killed_at_any_point(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root, out = golden_copy("dmg_length_flip_noidx"), tmp_path / "new"
    before = tree(root)
    killed = 0
    command = [sys.executable, "-c", _KILLED, str(root), str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin and program.stdout
        for point in _kill_points():
            print(point, file=program.stdin, flush=True)
            code = int(program.stdout.readline())
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
            if out.exists():
                check(out)
                shutil.rmtree(out)
            assert tree(root) == before
    assert killed > 5
    salvage(root, out)
    check(out)
    assert {p.name for p in tmp_path.iterdir()} == {root.name, "new"}
