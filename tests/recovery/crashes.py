"""Kills a changing verb at every point, or takes its power away, and looks at what is left.

Run by `test_crashes.py` in a process of its own, which forks one child for each point:

    python -m tests.recovery.crashes SCENARIO DIRECTORY EVERY

Of the points before the last ones it tries one of EVERY; the ways take turns.

Points are the system calls that change something. Two things can happen there:

* kill: the process is gone, half of the write that it was in is done;
* power: also everything that was not synced is gone. What survives is computed from the calls of fsync: either
  nothing of a directory since its last sync (`strict`), or all names but no unsynced content (`names`).

Afterwards the old or the new store must be there whole, and running again must finish the work.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stantools.errors import StantoolsError, StoreUnwritableError
from stantools.format.crc import Crc
from stantools.recovery.compact import CompactOptions, apply_compaction, compact_in_place, plan_compaction
from stantools.recovery.merge import plan_merge
from stantools.recovery.recovery_options import MergeOptions
from stantools.recovery.salvage import apply_salvage
from stantools.sources.nodes import find_node
from stantools.store import atomic, durable
from stantools.store.directory import open_datastore
from stantools.store.limits import SliceLimits
from stantools.store.logwriter import SubsLog
from stantools.store.read_options import ReadOptions
from stantools.store.sample import SampleOptions, write_sample
from stantools.store.sublog import read_subs
from tests import goldenstores

CHANGING = (
    "chmod",
    "fsync",
    "ftruncate",
    "mkdir",
    "rename",
    "replace",
    "rmdir",
    "sendfile",
    "symlink",
    "unlink",
    "write",
    "writev",
)
SYNC_WITHOUT_FSYNC = 10**9
WAYS = ("kill", "strict", "names")
#: The last points are where names change; each is tried, in all ways where all points are.
CRITICAL = 14


def digest(root: Path) -> str:
    """Names and contents of a tree; "" if there is none."""
    if not root.exists():
        return ""
    state = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        state.update(os.fsencode(path.relative_to(root)) + b"\0")
        if path.is_file():
            # A manifest names its sources, which lie elsewhere in each run.
            state.update(re.sub(rb'"/[^"]*/store', b'"store', path.read_bytes()))
    return state.hexdigest()


# What is done, on a directory with a store in `store`.


def to_new_directory(root: Path) -> None:
    plan = plan_compaction(open_datastore(root / "store"), CompactOptions(slices=SliceLimits(12), workers=1))
    done = (root / "new").exists()
    try:
        apply_compaction(plan, root / "new")
    except StoreUnwritableError:
        if not done:
            raise


def in_place(root: Path) -> None:
    store = root / "store"
    if atomic.finish_replacement(store) is not None:
        return
    plan = plan_compaction(open_datastore(store), CompactOptions(slices=SliceLimits(12), workers=1))
    backup = root / "backup"
    compact_in_place(plan, backup=backup if not backup.exists() else root / "backup2", quiet=0)


def in_place_by_renames(root: Path) -> None:
    durable.rename_exchange = lambda one, two: False
    in_place(root)


def log(root: Path) -> None:
    path = root / "store" / "orders"
    state = read_subs(memoryview((path / "subs.dat").read_bytes()), Crc())
    with SubsLog(path, root / "store", Crc()) as log_:
        log_.compact((each.state, each.pending) for each in state.subscriptions.values())


def merge(root: Path) -> None:
    nodes = [node for name in "abc" if (node := find_node(root / "store" / name))]
    plan = plan_merge(nodes, ReadOptions(), MergeOptions(workers=1))
    done = (root / "new").exists()
    try:
        apply_salvage(plan, root / "new")
    except StoreUnwritableError:
        if not done:
            raise


SCENARIOS: dict[str, Callable[[Path], None]] = {
    "merge": merge,
    "to-new-directory": to_new_directory,
    "in-place": in_place,
    "in-place-by-renames": in_place_by_renames,
    "log": log,
}


def prepare(root: Path, scenario: str) -> None:
    if scenario == "merge":
        shutil.copytree(goldenstores.unpacked() / "clusters" / "lost_raft" / "nodes", root / "store")
        shutil.rmtree(root / "store" / "c" / "data")
        (root / "store" / "a" / "data" / "orders" / "msgs.1.dat").write_bytes(b"")
        return
    options = SampleOptions(channels=1, messages=20, slice_msgs=8, damage=["leftovers"])
    store = write_sample(root / "store", options).path
    (store / "link").symlink_to("orders")
    (store / "foreign").mkdir()
    (store / "foreign" / "file").write_bytes(b"something")


# What a moment without power leaves.


class Disk:
    """What is durable of a tree, by inode: contents of files, entries of directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[int, bytes] = {}
        self._directories: dict[int, dict[str, int]] = {}
        self._links: dict[int, str] = {}
        self._kinds: dict[int, str] = {}
        self._joined: dict[int, set[Path]] = {}
        for base, _, names in os.walk(root):
            self.synced(Path(base))
            for name in names:
                self.synced(Path(base, name))

    def synced(self, path: Path) -> None:
        """Notes that a file or directory is durable as it is now."""
        if path.is_symlink():
            return
        inode = path.stat().st_ino
        if path.is_dir():
            for other in self._joined.pop(inode, set()):
                self.synced(other)
            entries = list(os.scandir(path))
            self._directories[inode] = {entry.name: entry.inode() for entry in entries}
            for entry in entries:
                self._kinds[entry.inode()] = "d" if entry.is_dir(follow_symlinks=False) else "f"
                if entry.is_symlink():
                    self._links[entry.inode()] = os.readlink(entry.path)  # noqa: PTH115
        else:
            self._files[inode] = path.read_bytes()

    def joined(self, one: Path, two: Path) -> None:
        """Notes a rename between two directories: a journal has both sides of it, or none."""
        for a, b in ((one, two), (two, one)):
            self._joined.setdefault(a.stat().st_ino, set()).add(b)

    def keep(self, path: Any) -> None:
        """Keeps the inode of something that is about to go from being used again."""
        if os.path.lexists(path):
            os.open(path, os.O_PATH | os.O_NOFOLLOW)

    def materialise(self, target: Path, *, names: bool) -> None:
        """Writes what would be there after power is back.

        Args:
            target: Where to.
            names: All names as they are now, content only as synced; else also names only as synced.
        """
        if names:
            for base, directories, _ in os.walk(self.root):
                for path in (Path(base), *(Path(base, name) for name in directories)):
                    self.synced(path)
        self._write(self.root.stat().st_ino, target)

    def _write(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, child in self._directories.get(inode, {}).items():
            if child in self._links:
                (target / name).symlink_to(self._links[child])
            elif self._kinds[child] == "d":
                self._write(child, target / name)
            else:
                (target / name).write_bytes(self._files.get(child, b""))


def arm(point: int, end: Callable[[], None], disk: Disk | None) -> list[int]:
    """Makes the n-th changing call call `end`, which does not return; returns the counter of calls."""
    counter = [0]

    def wrap(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **named: Any) -> Any:
            counter[0] += 1
            if counter[0] == point:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                end()
            if disk is not None and name in ("unlink", "rmdir") and "dir_fd" not in named:
                disk.keep(args[0])
            if disk is not None and name in ("rename", "replace"):
                disk.keep(args[1])
            result = real(*args, **named)
            if disk is not None and name in ("rename", "replace"):
                disk.joined(Path(args[0]).parent, Path(args[1]).parent)
            if disk is not None and name == "fsync":
                disk.synced(Path(os.readlink(f"/proc/self/fd/{args[0]}")))  # noqa: PTH115
            return result

        return call

    for name in CHANGING:
        setattr(os, name, wrap(name))
    exchange = durable.rename_exchange

    def exchanged(one: Path, two: Path) -> bool:
        counter[0] += 1
        if counter[0] == point:
            end()
        done = exchange(one, two)
        if done and disk is not None:
            disk.joined(one.parent, two.parent)
        return done

    durable.rename_exchange = exchanged
    return counter


def child(action: Callable[[], None]) -> int:
    """Runs an action in a forked process and returns how it ended."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def points(work: Path, scenario: Callable[[Path], None], base: Path) -> tuple[int, Path]:
    """Runs undisturbed: how many points are there, and what is the result?"""
    root = work / "undisturbed"
    shutil.copytree(base, root, symlinks=True)
    report = work / "count"

    def run() -> None:
        counter = arm(0, lambda: None, None)
        scenario(root)
        count = counter[0]
        os.close(1)
        report.write_text(str(count))

    assert child(run) == 0
    return int(report.read_text()), root


def ends(
    work: Path, scenario: Callable[[Path], None], base: Path, point: int, ways: Sequence[str]
) -> Iterator[tuple[str, Path]]:
    """Ends a run at a point in several ways, and yields what is left each time."""
    root = work / "run"
    for way in ways:
        left = root if way == "kill" else work / "left"
        for path in (root, left):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(base, root, symlinks=True)

        def run(way: str = way, left: Path = left) -> None:
            disk = None if way == "kill" else Disk(root)

            def end() -> None:
                if disk is not None:
                    pid = os.getpid()
                    for name, real in originals.items():
                        setattr(os, name, real)
                    disk.materialise(left, names=way == "names")
                    os.kill(pid, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

            originals = {name: getattr(os, name) for name in CHANGING}
            arm(point, end, disk)
            scenario(root)

        code = child(run)
        assert code == -signal.SIGKILL, f"point {point} {way}: ended with {code}"
        yield way, left


def identity(path: Path) -> list[int]:
    """Stands for device and inode, which a materialised tree cannot have."""
    return [zlib.crc32(digest(path).encode())]


def main(name: str, work: Path, every: int) -> None:
    scenario = SCENARIOS[name]
    durable.SYNCFS_FROM = SYNC_WITHOUT_FSYNC
    atomic.identity = identity
    base = work / "base"
    base.mkdir()
    prepare(base, name)
    old = digest(base / "store")
    count, undisturbed = points(work, scenario, base)
    assert not [path for path in undisturbed.iterdir() if path.name.startswith(".")]
    target = "new" if name in ("to-new-directory", "merge") else "store"
    new = digest(undisturbed / target)
    first = "" if target == "new" else old
    outcomes: dict[str, int] = {}
    # By renames only the end is different.
    begin = max(count - CRITICAL, 1) if name == "in-place-by-renames" else 1
    critical = max(count - CRITICAL, begin)
    tried = [*range(begin, critical, every), *range(critical, count + 1)]
    for number, point in enumerate(tried):
        ways = WAYS if every == 1 and point >= critical else WAYS[number % 3 :][:1]
        for way, left in ends(work, scenario, base, point, ways):
            where = f"point {point} of {count}, {way}"
            have = digest(left / target)
            if name == "log":
                check_log(left, undisturbed, base, where)
                have = "log"
            elif name == "in-place-by-renames" and not have:
                have = "between"
            else:
                assert have in (first, new), f"{where}: {target} is neither old nor new"
                have = "new" if have == new else "old"
            outcomes[f"{way}: {have}"] = outcomes.get(f"{way}: {have}", 0) + 1
            if target == "new":
                assert digest(left / "store") == old, f"{where}: the old store was changed"
            assert child(lambda left=left: scenario(left)) == 0, f"{where}: running again failed"
            if name == "log":
                check_log(left, undisturbed, base, where, finished=True)
                continue
            assert digest(left / target) == new, f"{where}: not finished"
            if target == "store":
                assert digest(left / "backup") == old, f"{where}: the backup is not the old store"
            hidden = [path.name for path in left.iterdir() if path.name.startswith(".")]
            assert not hidden, f"{where}: {hidden} are left"
    print(json.dumps({"points": count, "outcomes": outcomes}))


def check_log(root: Path, undisturbed: Path, base: Path, where: str, *, finished: bool = False) -> None:
    """A log is the old or the new one; temporary files may be left, as a server leaves them."""
    path = Path("store/orders/subs.dat")
    have = (root / path).read_bytes()
    allowed = [(undisturbed / path).read_bytes()] + ([] if finished else [(base / path).read_bytes()])
    assert have in allowed, f"{where}: the log is neither old nor new"
    assert stat.S_IMODE((root / path).stat().st_mode) & 0o600 == 0o600
    for file in (base / "store").rglob("*"):
        if file.is_file() and file != base / path:
            assert (root / file.relative_to(base)).read_bytes() == file.read_bytes(), f"{where}: {file.name} changed"


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    except (AssertionError, StantoolsError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
