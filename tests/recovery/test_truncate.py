"""The server's own repair: the golden outcomes to the byte, what it reports, refuses and saves, and interruptions."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import RefusedError
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.recovery import changes
from stantools.recovery.truncate import TruncationPlan, TruncationResult, apply_truncation, backup, plan_truncation
from stantools.store.directory import open_datastore
from stantools.store.ranges import Ranges
from tests.conftest import cases_by_kind, load_expected
from tests.inspection import forecast_golden as g
from tests.inspection import forecast_stores as s
from tests.mutations import apply_mutation, fresh_copy, shares
from tests.trees import dated, tree

WITNESS = ".truncate.lck"


def _repair(root: Path, backups: Path, **options: Any) -> tuple[TruncationPlan, TruncationResult]:
    plan = plan_truncation(open_datastore(root), ServerOptions(workers=1, **options))
    return plan, apply_truncation(plan, backups, force=True, quiet=0)


def _undo(root: Path, directory: Path) -> None:
    """What the backup's documentation says."""
    for entry in json.loads((directory / backup.MANIFEST).read_text())["files"]:
        path = root / entry["path"]
        if entry["action"] == "create":
            path.unlink()
            continue
        data = (directory / entry["saved"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["length"], entry["sha256"])
        if entry["action"] == "cut":
            assert path.stat().st_size == entry["offset"] == entry["size_after"]
            data = path.read_bytes() + data
        path.write_bytes(data)


def _compare(root: Path, before: dict[str, bytes], changed: dict[str, Any]) -> None:
    """Every file that the server changed has the size that it gave it, all others are as they were."""
    after = tree(root)
    for path in before.keys() | after.keys() | changed.keys():
        if path in changed:
            expected = changed[path]["size_after"] if isinstance(changed[path], dict) else changed[path][1]
            assert (len(after[path]) if path in after else None) == expected, path
            if expected is not None and path in before and path.endswith(".dat"):
                assert before[path].startswith(after[path]), path
        else:
            assert before.get(path) == after.get(path), path


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden(case: str, golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    expected = load_expected(case)
    if "server_open_truncate" not in expected or "opened_as" in expected:
        return
    root = golden_copy(case)
    before = tree(root)
    theirs = expected["server_open_truncate"]
    args = g.options_of(expected["open_args"])
    plan, result = _repair(root, tmp_path / "backups", crc=args.crc)
    assert plan.forecast.starts == theirs["started"]
    assert bool(plan.refusals) >= (not theirs["started"])
    _compare(root, before, theirs["files_changed_by_recovery"])
    assert list(result.changed[-1:]) == [WITNESS]
    # The same server does not do it twice; started normally it finds what it found after the repair.
    second = plan_truncation(open_datastore(root))
    assert any("two in a row" in refusal for refusal in second.refusals)
    assert not [path for path in second.forecast.changes if path != WITNESS]
    if theirs["started"]:
        assert result.after.starts
        after = forecast(open_datastore(root), args)
        if theirs.get("recovered", True):
            channels = {name: g.channel_json(channel) for name, channel in after.channels.items()}
            assert channels == {name: g.expected_channel(each) for name, each in theirs["channels"].items()}
        assert after.files_changed() == {WITNESS: (0, None)}
    if result.backup is None:
        (root / WITNESS).unlink()
        removed = [path for path, sizes in plan.forecast.files_changed().items() if sizes[0] is None]
        for path in removed:
            (root / path).unlink(missing_ok=True)
    else:
        _undo(root, result.backup)
    assert tree(root) == before


@pytest.mark.parametrize(("collection", "every"), shares(6))
def test_mutations(collection: str, every: int, golden: Path, tmp_path: Path) -> None:
    expected = load_expected(collection)
    source = golden / collection / "datastore"
    seen: set[int] = set()
    for mutation in expected["mutations"]:
        theirs = expected["outcomes"][mutation["server_open_truncate"]]
        if mutation["server_open_truncate"] in seen or not theirs["started"] or not theirs["files_changed"]:
            continue
        seen.add(mutation["server_open_truncate"])
        if len(seen) % every:
            continue
        root = fresh_copy(source, tmp_path / "store")
        apply_mutation(root, mutation)
        before = tree(root)
        plan, result = _repair(root, tmp_path / "backups")
        changed = {WITNESS: [None, 0], **theirs["files_changed"]}
        if theirs.get("recovered") is False:
            changed.pop("server.dat")  # the rest of it is written by the running server
            if "server.dat" not in before:
                changed["server.dat"] = [None, 4]
        _compare(root, before, changed)
        assert result.after.starts
        lost = mutation.get("salvage", {}).get("lost", {})
        for cut in plan.cuts:
            channel = cut.file.partition("/")[0]
            if "msgs" not in cut.file:
                continue
            # What the server no longer has, and the golden facts do not call lost, is what salvage would keep.
            had = Ranges.of(expected["base"]["channels"][channel]["readable"])
            has = Ranges.of(theirs["channels"][channel]["readable"])
            assert cut.sequences == had - has - Ranges.of(lost.get(channel, [])), mutation
        shutil.rmtree(tmp_path / "backups", ignore_errors=True)


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A store in which three files are torn, one index is missing and one hides messages."""
    root = s.healthy(tmp_path / "store")
    s.write_clients(root, "one", "two")
    for name, cut in (("foo/msgs.3.dat", 5), ("clients.dat", 3)):
        os.truncate(root / name, (root / name).stat().st_size - cut)
    (root / "foo" / "msgs.1.idx").unlink()
    with (root / "foo" / "subs.dat").open("ab") as file:
        file.write(b"\x01\x02\x03")
    (root / "foo" / "msgs.3.idx").chmod(0o640)
    return root


class TestPlan:
    def test_numbers_and_records(self, torn: Path) -> None:
        before = dated(torn)
        plan = plan_truncation(open_datastore(torn))
        assert dated(torn) == before
        assert plan.needed and not plan.refusals
        assert {cut.file: (cut.kept, cut.intact) for cut in plan.cuts} == {
            "clients.dat": (1, 0),
            "foo/msgs.3.dat": (9, 0),
            "foo/subs.dat": (0, 0),
        }
        records = list(plan.removed())
        assert [(record.file, record.intact) for record in records] == [
            ("clients.dat", False),
            ("foo/msgs.3.dat", False),
            ("foo/subs.dat", False),
        ]
        assert plan.removed_bytes == sum(record.length for record in records)
        assert [change.path for change in plan.steps][-1] == WITNESS
        json.dumps(plan.as_json())

    def test_healthy_store_needs_nothing(self, tmp_path: Path) -> None:
        plan = plan_truncation(open_datastore(s.healthy(tmp_path / "store")))
        assert not plan.needed and not plan.cuts and not plan.refusals
        assert [change.path for change in plan.steps] == [WITNESS]

    def test_limits_remove_nothing(self, torn: Path) -> None:
        from stantools.store.limits import ChannelLimits, StoreLimits

        options = ServerOptions(limits=StoreLimits(channel=ChannelLimits(max_msgs=1)))
        plan = plan_truncation(open_datastore(torn), options)
        assert all(sizes[1] is not None for sizes in plan.forecast.files_changed().values())

    def test_salvage_would_keep_more(self, tmp_path: Path) -> None:
        root = s.healthy(tmp_path / "store")
        data, index = root / "foo" / "msgs.2.dat", root / "foo" / "msgs.2.idx"
        content = bytearray(data.read_bytes())
        # A size that reaches beyond the end: the option cuts this record and the six behind it.
        content[s.read_index(index)[3][1] + 3] = 1
        data.write_bytes(content)
        index.unlink()
        plan = plan_truncation(open_datastore(root))
        (cut,) = plan.cuts
        # Also the record itself could be kept: its payload and its CRC are whole.
        assert (cut.kept, cut.intact, cut.sequences.pairs()) == (3, 7, [(14, 20)])
        assert plan.refusals == ("foo/msgs.2.dat: truncation keeps 3 records, salvage would keep 10",)
        assert [record.sequence for record in plan.removed()] == list(range(14, 21))
        with pytest.raises(RefusedError, match="keeps 3 records, salvage would keep 10"):
            apply_truncation(plan, tmp_path / "backups", quiet=0)
        assert apply_truncation(plan, tmp_path / "backups", force=True, quiet=0).after.starts

    def test_log_records_behind_the_cut(self, tmp_path: Path) -> None:
        from stantools.format.proto import store_pb2 as pb

        root = s.healthy(tmp_path / "store")
        sub = pb.SubState(id=7, client_id=b"c", inbox=b"i", ack_inbox=b"a")
        s.write_subs(root, "foo", (sub, [4, 5, 6]))
        s.write_clients(root, "one", "two")
        path = root / "foo" / "subs.dat"
        content = bytearray(path.read_bytes())
        content[-3 * 12 + 2] = 9  # the size of the first sent message
        path.write_bytes(content)
        plan = plan_truncation(open_datastore(root))
        facts = [(record.what, record.intact, record.sub_id, record.sequence) for record in plan.removed()]
        assert facts == [("length", True, 7, 4), ("sent message", True, 7, 5), ("sent message", True, 7, 6)]
        assert plan.refusals == ("foo/subs.dat: truncation keeps 1 records, salvage would keep 4",)
        clients = root / "clients.dat"
        content = bytearray(clients.read_bytes())
        content[6] = 1
        clients.write_bytes(content)
        records = [record for record in plan_truncation(open_datastore(root)).removed() if record.client_id]
        assert [record.client_id for record in records] == ["one", "two"]

    def test_does_not_help(self, torn: Path) -> None:
        (torn / "server.dat").write_bytes(b"\x01\x00\x00\x00\x05")
        plan = plan_truncation(open_datastore(torn))
        assert not plan.needed and "would not start after it either" in plan.refusals[0]


_torn_files = ["clients.dat", "foo/subs.dat", *(f"foo/msgs.{n}.{kind}" for n in (1, 2, 3) for kind in ("dat", "idx"))]


@given(
    cuts=st.dictionaries(st.sampled_from(_torn_files), st.tuples(st.integers(0, 60), st.binary(max_size=20))),
    gone=st.sets(st.sampled_from(["foo/msgs.1.idx", "foo/msgs.3.idx", "foo/subs.dat", "clients.dat"])),
)
@settings(max_examples=80, deadline=None)
def test_does_what_was_forecast(cuts: dict[str, tuple[int, bytes]], gone: set[str]) -> None:
    with TemporaryDirectory() as folder:
        root = s.healthy(Path(folder) / "store")
        s.write_clients(root, "a", "b")
        for name, (cut, tail) in cuts.items():
            path = root / name
            path.write_bytes(path.read_bytes()[: max(path.stat().st_size - cut, 0)] + tail)
        for name in gone:
            (root / name).unlink()
        plan, result = _repair(root, Path(folder) / "backups")
        for path, (_, size) in plan.forecast.files_changed().items():
            assert ((root / path).stat().st_size if (root / path).exists() else None) == size
        if plan.forecast.starts:
            assert result.after.starts and result.after.clients == plan.forecast.clients
            planned, now = (
                {name: (each.first_seq, each.last_seq, each.count, each.bytes) for name, each in one.channels.items()}
                for one in (plan.forecast, result.after)
            )
            assert planned == now


class TestApply:
    def test_whole(self, torn: Path, tmp_path: Path) -> None:
        before = tree(torn)
        _, result = _repair(torn, tmp_path / "backups")
        assert result.after.starts and result.after.files_changed() == {WITNESS: (0, None)}
        assert result.after.channels["foo"].count == 29
        assert (torn / "foo" / "msgs.3.idx").stat().st_mode & 0o777 == 0o640
        assert result.backup == tmp_path / "backups" / "1"
        assert {path.name for path in (tmp_path / "backups").iterdir()} == {"1"}
        _undo(torn, result.backup)
        assert tree(torn) == before

    def test_store_that_changed(self, torn: Path, tmp_path: Path) -> None:
        plan = plan_truncation(open_datastore(torn))
        os.truncate(torn / "clients.dat", 20)
        with pytest.raises(RefusedError, match="has 20 bytes now"):
            apply_truncation(plan, tmp_path / "backups", quiet=0)
        assert not (torn / WITNESS).exists() and not list(tmp_path.glob("backups/*"))

    def test_backup_inside_the_store(self, torn: Path) -> None:
        with pytest.raises(RefusedError, match="inside the store"):
            apply_truncation(plan_truncation(open_datastore(torn)), torn / "backups", quiet=0)

    def test_store_in_use(self, torn: Path, tmp_path: Path) -> None:
        import fcntl

        lock = torn / ".rootdir.lck"
        child = os.fork()
        if not child:
            with lock.open("w") as file:
                fcntl.lockf(file, fcntl.LOCK_EX)
                (tmp_path / "locked").touch()
                signal.pause()
            os._exit(0)
        try:
            while not (tmp_path / "locked").exists():
                pass
            plan = plan_truncation(open_datastore(torn))
            with pytest.raises(RefusedError, match="holds the lock"):
                apply_truncation(plan, tmp_path / "backups", quiet=0)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_no_space(self, torn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import errno

        from stantools.errors import StoreUnwritableError

        before, opened = tree(torn), Path.open

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def open_unless_full(path: Path, *given: Any, **named: Any) -> Any:
            if tmp_path / "backups" in path.parents and "files" in path.parts:
                full()
            return opened(path, *given, **named)

        plan = plan_truncation(open_datastore(torn))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", open_unless_full)
            with pytest.raises(StoreUnwritableError, match="No space left"):
                apply_truncation(plan, tmp_path / "backups", quiet=0)
        assert tree(torn) == before and not (tmp_path / "backups").exists()
        with monkeypatch.context() as patch:
            patch.setattr(changes, "write_all", full)
            with pytest.raises(StoreUnwritableError, match="No space left"):
                apply_truncation(plan, tmp_path / "backups", quiet=0)
        assert not list((torn / "foo").glob(".msgs*"))
        # Planned again it goes on where it stopped.
        assert _repair(torn, tmp_path / "backups")[1].after.channels["foo"].count == 29


_STEPS = ("write", "fsync", "truncate", "rename", "replace", "unlink", "open", "mkdir")


@contextmanager
def _counted(kill_at: int) -> Iterator[None]:
    """Replaces the system calls that change something by ones that kill the process before call number n."""
    calls = 0

    def wrap(function: Callable[..., Any], changes: Callable[..., bool]) -> Callable[..., Any]:
        def call(*args: Any, **values: Any) -> Any:
            nonlocal calls
            if changes(*args, **values):
                calls += 1
                if calls == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **values)

        return call

    def creates(_path: Any, flags: int = 0, *_: Any, **__: Any) -> bool:
        return bool(flags & os.O_CREAT)

    originals = {name: getattr(os, name) for name in _STEPS}
    for name, function in originals.items():
        setattr(os, name, wrap(function, creates if name == "open" else lambda *_, **__: True))
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(os, name, function)


def _killed(root: Path, backups: Path, kill_at: int) -> bool:
    """Repairs in a process that is killed before its n-th change; returns whether it came so far."""
    plan = plan_truncation(open_datastore(root), ServerOptions(workers=1))
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        return os.WIFSIGNALED(status)
    code = 1
    try:
        with _counted(kill_at):
            apply_truncation(plan, backups, quiet=0)
        code = 0
    finally:
        os._exit(code)


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_step(torn: Path, tmp_path: Path, every: int) -> None:
    before = tree(torn)
    good = tmp_path / "good"
    shutil.copytree(torn, good)
    _repair(good, tmp_path / "good-backups")
    expected = tree(good)
    kill_at = 0
    while True:
        kill_at += every
        root, backups = tmp_path / "work", tmp_path / "backups"
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(backups, ignore_errors=True)
        shutil.copytree(torn, root)
        if not _killed(root, backups, kill_at):
            assert tree(root) == expected
            break
        now = {path: data for path, data in tree(root).items() if "/." not in path}
        changed = {path for path in before if now.get(path) != before[path]}
        if changed:
            # Whatever was changed is saved, and is either as it was or as it is to be.
            entries = json.loads((backups / "1" / backup.MANIFEST).read_text())["files"]
            assert changed <= {entry["path"] for entry in entries}
            assert all(now[path] == expected[path] for path in changed)
        if WITNESS in now:
            assert now == expected
            continue
        _, result = _repair(root, backups)
        assert tree(root) == expected and result.after.starts
    assert kill_at > 30


def test_killed_twice(torn: Path, tmp_path: Path) -> None:
    good = tmp_path / "good"
    shutil.copytree(torn, good)
    _repair(good, tmp_path / "good-backups")
    for first in range(12, 40, 5):
        root, backups = tmp_path / f"work{first}", tmp_path / f"backups{first}"
        shutil.copytree(torn, root)
        for kill_at in (first, 9):
            if not (root / WITNESS).exists():
                _killed(root, backups, kill_at)
        if not (root / WITNESS).exists():
            _repair(root, backups)
        assert tree(root) == tree(good)
