"""Compaction keeps what the server makes of a store, refuses damaged ones, and survives full disks."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.errors import ExitCode, RefusedError, StoreUnwritableError
from stantools.format.crc import CASTAGNOLI, IEEE, Crc
from stantools.format.layout import ScanStop, SubRecord
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.inspection.slicesummary import LogicalView, logical_view, summarise
from stantools.inspection.verify import verify
from stantools.recovery.compact import (
    CompactionPlan,
    CompactOptions,
    apply_compaction,
    compact_in_place,
    plan_compaction,
)
from stantools.recovery.compact.plan import HARMLESS
from stantools.secret import Secret
from stantools.store import atomic
from stantools.store.clientlog import read_clients
from stantools.store.damage import DAMAGES
from stantools.store.directory import open_datastore
from stantools.store.limits import ONE_SLICE, ChannelLimits, PatternLimits, SliceLimits, StoreLimits
from stantools.store.sample import BASE_TIME, SampleOptions, write_sample
from stantools.store.sublog import read_subs
from tests.conftest import cases_by_kind, golden_cases, load_expected, others_slow
from tests.envelopes import Records
from tests.store.slices import all_messages
from tests.trees import tree

SECOND = 1_000_000_000
#: Far more than any test needs.
NO_LIMITS = StoreLimits(0, ChannelLimits(0, 0, 0, 0, 0))


def healthy() -> list[str]:
    return [case for case in golden_cases() if "damage" not in load_expected(case)]


def damaged() -> list[str]:
    return [case for case in golden_cases() if "damage" in load_expected(case)]


def plan(root: Path, polynomial: int = IEEE, **options: Any) -> CompactionPlan:
    return plan_compaction(open_datastore(root, Crc(polynomial)), CompactOptions(**options))


def folded(root: Path, polynomial: int = IEEE) -> dict[str, Any]:
    """All that a store means: identity, clients, subscriptions with what is pending, and every message."""
    store = open_datastore(root, Crc(polynomial))
    meaning: dict[str, Any] = {}
    if store.server:
        meaning["server"] = store.server.read_bytes()
    if store.clients:
        clients = read_clients(memoryview(store.clients.read_bytes()), store.crc).clients
        meaning["clients"] = {name: each.SerializeToString() for name, each in clients.items()}
    for channel in store.channels():
        subs = {}
        if channel.subs:
            state = read_subs(memoryview(channel.subs.read_bytes()), store.crc)
            subs = {n: (s.state.SerializeToString(), s.pending) for n, s in state.subscriptions.items()}
        meaning[channel.name] = subs, all_messages(channel.path, channel.raw_name, store.crc)
    return meaning


def check_result(root: Path, polynomial: int = IEEE) -> None:
    store = open_datastore(root, Crc(polynomial))
    verdict = verify(store)
    assert {f.code for f in verdict.findings if f.severity != "info"} <= HARMLESS
    for version in ("0.23.2", "0.25.6"):
        options = ServerOptions(crc=Crc(polynomial), version=version, limits=NO_LIMITS)
        predicted = forecast(store, options, truncate=False)
        assert predicted.starts, predicted.error
        # The server takes a foreign directory for a channel, before and after.
        allowed = {".truncate.lck", *(f"{f.file}/subs.dat" for f in verdict.findings if f.code == "foreign-directory")}
        assert set(predicted.as_json()["files_changed"]) <= allowed


@pytest.mark.parametrize("case", cases_by_kind(healthy()))
def test_a_golden_store_means_the_same_afterwards(golden, tmp_path, case):
    source = golden / case / "datastore"
    polynomial = load_expected(case)["options"]["file_crc_poly"]
    result = apply_compaction(plan(source, polynomial), tmp_path / "new")
    after = folded(result.path, polynomial)
    assert after == folded(source, polynomial)
    check_result(result.path, polynomial)
    for channel in open_datastore(result.path).channels():
        assert len(channel.slices) <= 1, "the default limits merge them"
        assert channel.subs is not None
        content = memoryview(channel.subs.read_bytes())
        found = Records(content, 4, len(content), typed=True, crc=Crc(polynomial))
        order = [record.type for record in found]
        assert found.stop is ScanStop.END
        assert set(order) <= {SubRecord.NEW, SubRecord.MSG}
    assert result.messages == sum(len(each[1]) for each in after.values() if isinstance(each, tuple))


@pytest.mark.parametrize("case", ["slices_count", "slices_bytes", "limits_bytes", "gap_filled", "crc_castagnoli"])
def test_with_the_stores_own_slice_limits_the_slices_stay_byte_for_byte(golden, tmp_path, case):
    given_ = load_expected(case)["options"]
    source, polynomial = golden / case / "datastore", given_["file_crc_poly"]
    slices = SliceLimits(given_["file_slice_max_msgs"], given_["file_slice_max_bytes"])
    out = apply_compaction(plan(source, polynomial, slices=slices), tmp_path / "new").path
    for path in source.glob("*/msgs.*"):
        if case != "gap_filled":  # there fillers went into a full slice
            assert (out / path.relative_to(source)).read_bytes() == path.read_bytes()


def view(root: Path, limits: StoreLimits, now_ns: int = 0) -> dict[str, LogicalView]:
    crc = Crc()
    return {
        channel.name: logical_view(
            [each for each in (summarise(one, channel.raw_name, crc) for one in channel.slices) if each.count],
            limits.limits_for(channel.name),
            channel.raw_name,
            crc,
            now_ns=now_ns,
        )
        for channel in open_datastore(root).channels()
    }


@pytest.mark.parametrize("case", ["limits_msgs", "limits_bytes", "archived_bak"])
def test_what_limits_removed_is_gone(golden, tmp_path, case):
    given_, source = load_expected(case)["options"], golden / case / "datastore"
    limits = StoreLimits(channel=ChannelLimits(given_["max_msgs"], given_["max_bytes"]))
    before = view(source, limits)
    planned = plan(source, limits=limits)
    result = apply_compaction(planned, tmp_path / "new")
    check_result(result.path)
    after = view(result.path, limits)
    expected = load_expected(case)["channels"]
    for name, now in after.items():
        assert now.removed == 0
        assert (now.first_seq, now.last_seq, now.count, now.bytes) == tuple(
            expected[name][key] for key in ("first_seq", "last_seq", "count", "bytes")
        )
        have = all_messages(result.path / name, name.encode(), Crc())
        assert [each[0] for each in have] == list(range(now.first_seq, now.last_seq + 1))
    assert any(each.removed for each in before.values()) or case != "limits_msgs"
    assert planned.summary()["messages_dropped"] == sum(each.removed for each in before.values())


def test_archived_slices_are_kept_and_their_numbers_not_used_again(golden, tmp_path):
    source = golden / "archived_bak" / "datastore"
    result = apply_compaction(plan(source, slices=SliceLimits(max_msgs=1)), tmp_path / "new")
    for path in source.glob("*/*.bak"):
        assert (result.path / path.relative_to(source)).read_bytes() == path.read_bytes()
    archived = [int(path.name.split(".")[1]) for path in result.path.glob("*/msgs.*.dat.bak")]
    assert min(int(path.name.split(".")[1]) for path in result.path.glob("*/msgs.*.dat")) > max(archived)


@pytest.mark.parametrize("count", [0, 1])
def test_when_age_removes_everything_the_last_sequence_is_still_known(tmp_path, count):
    root = write_sample(tmp_path / "store", SampleOptions(channels=1, messages=50)).path
    now = BASE_TIME + 3600 * SECOND
    limits = StoreLimits(channel=ChannelLimits(max_msgs=count, max_age_ns=SECOND))
    result = apply_compaction(plan(root, limits=limits, now_ns=now), tmp_path / "new")
    assert result.messages == 1
    assert [each[0] for each in all_messages(result.path / "orders", b"orders", Crc())] == [50]
    check_result(result.path)


@given(
    options=st.builds(
        SampleOptions,
        channels=st.integers(1, 3),
        messages=st.integers(0, 60),
        size=st.integers(0, 200),
        seed=st.integers(0, 1000),
        gaps=st.booleans(),
        no_subscriptions=st.booleans(),
        polynomial=st.sampled_from([IEEE, CASTAGNOLI]),
        encryption_key=st.sampled_from([Secret(), Secret(b"key")]),
        slice_msgs=st.integers(0, 20),
        slice_bytes=st.sampled_from([0, 500, 3000]),
    ),
    slices=st.builds(SliceLimits, st.integers(0, 30), st.sampled_from([0, 900, 5000])),
    limits=st.builds(
        ChannelLimits,
        st.sampled_from([0, 1, 2, 17, 59]),
        st.sampled_from([0, 1, 600, 4000]),
        st.sampled_from([0, 1_000_000, 20_000_000, 45_000_000]),
    ),
    indexes=st.sets(st.integers(0, 8)),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_store_any_limits(tmp_path, options, slices, limits, indexes):
    for name in ("store", "new"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    root = write_sample(tmp_path / "store", options).path
    before = folded(root, options.polynomial)
    for number, path in enumerate(sorted(root.glob("*/*.idx"))):
        if number in indexes:
            path.unlink()  # indexes are recreated
    channel_limits = StoreLimits(per_channel={"orders": PatternLimits(*vars(limits).values())})
    now = BASE_TIME + 50_000_000
    shown = view(root, channel_limits, now) if options.polynomial == IEEE else {}
    planned = plan(root, options.polynomial, slices=slices, limits=channel_limits, now_ns=now)
    result = apply_compaction(planned, tmp_path / "new")
    check_result(result.path, options.polynomial)
    after = folded(result.path, options.polynomial)
    for name, each in before.items():
        if isinstance(each, tuple):
            subscriptions, messages = each
            kept = after[name][1]
            assert after[name][0] == subscriptions
            assert kept == messages[len(messages) - len(kept) :]
            assert kept or not messages
            if name != "orders":
                assert kept == messages
        else:
            assert after[name] == each
    if shown:
        again = view(result.path, channel_limits, now)
        assert {n: (v.first_seq, v.last_seq, v.count, v.bytes) for n, v in again.items()} == {
            n: (v.first_seq, v.last_seq, v.count, v.bytes) for n, v in shown.items()
        }
        assert all(v.removed <= (v.count == 0) for v in again.values())
    numbers = planned.summary()
    assert numbers["messages_kept"] == result.messages


def test_slices_are_merged_and_split(tmp_path):
    root = write_sample(tmp_path / "store", SampleOptions(messages=100, slice_msgs=7)).path
    merged = apply_compaction(plan(root, slices=ONE_SLICE), tmp_path / "merged")
    assert merged.slices == 3
    split = apply_compaction(plan(merged.path, slices=SliceLimits(max_msgs=7)), tmp_path / "split")
    assert split.slices == 45
    for path in root.glob("*/msgs.*"):
        assert (split.path / path.relative_to(root)).read_bytes() == path.read_bytes()


def test_compacting_twice_changes_nothing(tmp_path):
    root = write_sample(tmp_path / "store", SampleOptions()).path
    once = apply_compaction(plan(root), tmp_path / "once")
    twice = apply_compaction(plan(once.path), tmp_path / "twice")
    assert tree(twice.path) == tree(once.path)


def test_the_plan_tells_how_much_is_saved(tmp_path):
    root = write_sample(tmp_path / "store", SampleOptions(messages=200)).path
    planned = plan(root, limits=StoreLimits(channel=ChannelLimits(max_msgs=50)))
    numbers = planned.summary()
    assert (numbers["messages_kept"], numbers["messages_dropped"], numbers["slices_before"]) == (150, 450, 12)
    before = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and path.name != "server.dat")
    assert numbers["bytes_before"] == before
    result = apply_compaction(planned, tmp_path / "new")
    written = result.bytes - (result.path / "server.dat").stat().st_size
    assert abs(numbers["bytes_after"] - written) < 100


def test_progress_counts_bytes(tmp_path):
    root = write_sample(tmp_path / "store", SampleOptions()).path
    size = sum(path.stat().st_size - 4 for path in root.glob("*/msgs.*.dat"))
    told: list[int] = []
    apply_compaction(plan(root), tmp_path / "new", progress=told.append)
    assert sum(told) == size


def test_orphans_stay_unless_asked(tmp_path):
    root = write_sample(tmp_path / "store", SampleOptions()).path
    (root / "clients.dat").write_bytes(b"\1\0\0\0")
    before = folded(root)["orders"][0]
    assert folded(apply_compaction(plan(root), tmp_path / "kept").path)["orders"][0] == before
    planned = plan(root, drop_orphans=True)
    after = folded(apply_compaction(planned, tmp_path / "dropped").path)["orders"][0]
    orphans = next(channel.orphans for channel in planned.channels if channel.files.name == "orders")
    assert len(orphans) == planned.summary()["orphans_dropped"] == 3
    assert after == {number: each for number, each in before.items() if number not in orphans}


@pytest.mark.parametrize("case", cases_by_kind(damaged()))
def test_damaged_golden_stores_are_refused_or_keep_their_messages(golden_copy, tmp_path, case):
    root = golden_copy(case)
    polynomial = load_expected(case)["options"]["file_crc_poly"]
    if case == "no_permission_dat" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    before = tree(root)
    try:
        planned = plan(root, polynomial)
    except RefusedError as error:
        assert error.exit_code == ExitCode.REFUSED
        assert "salvage" in error.remedy or "--accept-loss" in error.remedy
        assert tree(root) == before
        return
    result = apply_compaction(planned, tmp_path / "new")
    check_result(result.path, polynomial)
    intact = load_expected(case)["salvage"]["messages"]
    verdict = verify(open_datastore(result.path, Crc(polynomial)))
    have = {channel.name: channel.intact.as_json() for channel in verdict.channels}
    assert {name: have[name] for name in intact} == {name: facts["intact"] for name, facts in intact.items()}
    assert tree(root) == before


TOLERATED = {"lost-index", "stale-index", "leftovers"}
ACCEPTED = {"lost-clients", "lost-slice", "lost-subs"}


@pytest.mark.parametrize("name", others_slow(DAMAGES, TOLERATED | ACCEPTED | set(list(DAMAGES)[::4])))
def test_sample_damages(tmp_path, name):
    root = write_sample(tmp_path / "store", SampleOptions(messages=40, damage=[name])).path
    if name in TOLERATED:
        assert apply_compaction(plan(root), tmp_path / "new").messages == 120
        return
    with pytest.raises(RefusedError):
        plan(root)
    if name in ACCEPTED:
        before = folded(root)
        assert folded(apply_compaction(plan(root, accept_loss=True), tmp_path / "new").path) == before
    else:
        with pytest.raises(RefusedError, match="cannot be compacted"):
            plan(root, accept_loss=True)


def test_what_is_not_ours_is_carried_over(tmp_path):
    root = write_sample(tmp_path / "store", SampleOptions(damage=["leftovers"])).path
    (root / "notes.txt").write_text("ours")
    (root / ".rootdir.lck").touch()
    (root / "lost+found").mkdir()
    (root / "lost+found" / "inner").mkdir()
    (root / "lost+found" / "inner" / "file").write_text("lost")
    (root / "orders" / "README").write_text("foreign")
    (root / "linked").symlink_to("orders")
    (root / "elsewhere").symlink_to("../somewhere")
    (root / "orders").chmod(0o750)
    (root / "orders" / "subs.dat").chmod(0o600)
    out = apply_compaction(plan(root), tmp_path / "new").path
    assert (out / "notes.txt").read_text() == "ours"
    assert (out / ".rootdir.lck").exists()
    assert (out / ".truncate.lck").exists(), "the next start must still know"
    assert (out / "lost+found" / "inner" / "file").read_text() == "lost"
    assert sorted(path.name for path in (out / "lost+found").iterdir()) == ["inner"]
    assert (out / "orders" / "README").read_text() == "foreign"
    assert (out / "linked").readlink() == Path("orders")
    assert (out / "elsewhere").readlink() == tmp_path / "somewhere"
    assert stat.S_IMODE((out / "orders").stat().st_mode) == 0o750
    assert stat.S_IMODE((out / "orders" / "subs.dat").stat().st_mode) == 0o600
    assert not list(out.glob("subs1*")), "temporary files stay with the old store"


def quiet(root: Path) -> Path:
    """Makes a store look as if nobody had touched it for long."""
    for path in root.rglob("*"):
        os.utime(path, (1, 1))
    return root


def test_in_place(tmp_path):
    root = quiet(write_sample(tmp_path / "store", SampleOptions()).path)
    root.chmod(0o700)
    before, meaning = tree(root), folded(root)
    wanted = tree(apply_compaction(plan(root), tmp_path / "new").path)
    result = compact_in_place(plan(root), backup=tmp_path / "old")
    assert result.path == root
    assert result.backup == tmp_path / "old"
    assert tree(root) == wanted
    assert folded(root) == meaning
    assert tree(tmp_path / "old") == before
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old", "store"]


def test_in_place_the_backup_gets_a_name_by_itself(tmp_path):
    root = quiet(write_sample(tmp_path / "store", SampleOptions()).path)
    result = compact_in_place(plan(root))
    assert result.backup is not None
    assert result.backup.name.startswith("store.before-compact-2")
    assert result.backup.is_dir()


def test_a_store_in_use_is_refused(tmp_path):
    root = write_sample(tmp_path / "store", SampleOptions()).path
    planned = plan(root)
    quiet(root)
    with pytest.raises(RefusedError, match="has changed during"):
        compact_in_place(planned, backup=tmp_path / "old")
    planned = plan(root)
    with (root / "clients.dat").open("ab") as file:
        file.write(b"x")
    for out in (lambda: apply_compaction(planned, tmp_path / "new"), lambda: compact_in_place(planned, quiet=0.1)):
        with pytest.raises(RefusedError, match=r"clients.dat: has changed during"):
            out()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_written_during_the_copy_is_not_left_out(tmp_path, in_place):
    root = write_sample(tmp_path / "store", SampleOptions()).path
    planned = plan(root)

    def write(_size: int) -> None:
        with (root / "clients.dat").open("ab") as file:  # it is copied before the messages
            file.write(b"x")

    with pytest.raises(RefusedError, match=r"clients.dat: has changed during"):
        if in_place:
            compact_in_place(planned, quiet=0, progress=write)
        else:
            apply_compaction(planned, tmp_path / "new", progress=write)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_into_the_store_itself(tmp_path):
    root = write_sample(tmp_path / "store", SampleOptions()).path
    for out in (root, root / "inner"):
        with pytest.raises(RefusedError, match="inside the store"):
            apply_compaction(plan(root), out)


def test_no_room(tmp_path, monkeypatch):
    root = write_sample(tmp_path / "store", SampleOptions()).path
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(RefusedError, match="1000 bytes are free"):
        apply_compaction(plan(root), tmp_path / "new")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("fail_at", [1, 2, 3, 5, 9, 14, 23, 40])
def test_a_full_disk_leaves_the_old_store(tmp_path, monkeypatch, in_place, fail_at):
    root = quiet(write_sample(tmp_path / "store", SampleOptions(channels=2)).path)
    before, planned = tree(tmp_path), plan(root, slices=SliceLimits(max_msgs=10))
    calls = []

    def failing(real: Callable[..., int]) -> Callable[..., int]:
        def fail(*args: Any) -> int:
            calls.append(args)
            if len(calls) >= fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        return fail

    for name in ("write", "writev"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    with pytest.raises(StoreUnwritableError, match="No space left") as caught:
        if in_place:
            compact_in_place(planned, backup=tmp_path / "old", quiet=0)
        else:
            apply_compaction(planned, tmp_path / "new")
    assert caught.value.exit_code == ExitCode.UNREACHABLE
    assert "free some space" in caught.value.remedy
    monkeypatch.undo()
    assert tree(tmp_path) == before


def test_a_result_that_is_not_as_planned_never_appears(tmp_path, monkeypatch):
    root = write_sample(tmp_path / "store", SampleOptions()).path
    planned = plan(root)
    planned.channels[0].messages += 1
    with pytest.raises(StoreUnwritableError, match="differs from the plan"):
        apply_compaction(planned, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("locked", ["store", "channel"])
def test_a_read_only_place_is_left_as_it_was(locked: str) -> None:
    """Who may not replace the store is told so, and nothing is left beside it, whatever mode the copy has by then."""
    nobody = 65534
    with tempfile.TemporaryDirectory() as name:  # not below tmp_path, where nobody else may go
        place = Path(name)
        write_sample(place / "store", SampleOptions(names=("orders",), messages=20))
        for each in (place, *place.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
            if os.geteuid() == 0:
                os.chown(each, nobody, nobody)
        read_only = place / "store" / ("orders" if locked == "channel" else "")
        read_only.chmod(0o555)
        planned = plan(place / "store")
        child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                if os.geteuid() == 0:
                    os.setgid(nobody)
                    os.setuid(nobody)
                with pytest.MonkeyPatch.context() as patched:
                    if locked == "channel":  # it fails at the end, when the copy is whole
                        patched.setattr(atomic, "exchange", refuse)
                    compact_in_place(planned, quiet=0)
            except StoreUnwritableError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [each.name for each in place.iterdir()] == ["store"]
        read_only.chmod(0o755)


def refuse(*_: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")
