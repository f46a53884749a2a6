"""Kills the offline ways at every point, or takes their power away, and looks at what is left.

Run by `test_offline_crashes.py` in a process of its own (see `tests.recovery.crashes`, which explains the points):

    python -m tests.migration.offline.crashes SCENARIO DIRECTORY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from stantools.errors import StantoolsError
from stantools.migration import prepared_stream as prepared_module
from stantools.migration.prepared_stream import PreparedStream
from stantools.migration.targets import directories
from stantools.migration.targets.directories import BackupDirectory, StoreDirectory
from stantools.store import atomic, durable
from tests.migration.offline.streams import REPLACE, ROWS, prepared, small_store
from tests.recovery.crashes import SYNC_WITHOUT_FSYNC, WAYS, child, digest, ends, identity, points

NOW = 1_700_000_000_000_000_000
ACCOUNT = Path("server/jetstream/$G")


#: What is migrated; planned once, since that changes nothing.
streams: list[PreparedStream] = []


def backup(root: Path) -> None:
    for stream in streams:
        BackupDirectory(root / "out").place(stream)


def place(root: Path) -> None:
    StoreDirectory(root / "server").place(streams[-1])


def replace(root: Path) -> None:
    StoreDirectory(root / "server").place(streams[-1], REPLACE)


def replace_by_renames(root: Path) -> None:
    durable.rename_exchange = lambda one, two: False
    replace(root)


SCENARIOS: dict[str, Callable[[Path], None]] = {
    "backup": backup,
    "place": place,
    "replace": replace,
    "replace-by-renames": replace_by_renames,
}

#: The last points are where names change; each is tried in all ways.
CRITICAL = {"backup": 5, "place": 7, "replace": 7, "replace-by-renames": 9}


def prepare(root: Path, scenario: str) -> None:
    streams.extend(prepared(small_store(root.with_name("store"), {name: ROWS[name] for name in ("one", "orders")})))
    there = {"one" if scenario == "place" else "orders": [(9, 1, b"", b"other")]}
    StoreDirectory(root / "server").place(prepared(small_store(root.with_name("other"), there))[0])


def parts(root: Path, scenario: str) -> dict[str, str]:
    """What must be there as a whole or not at all."""
    if scenario == "backup":
        return {name: digest(root / "out" / name) for name in ("one", "orders")}
    return {name: digest(root / ACCOUNT / "streams" / name) for name in ("one", "orders")}


def hidden(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if ".stantools" in path.name]


def main(name: str, work: Path) -> None:
    scenario = SCENARIOS[name]
    durable.SYNCFS_FROM = SYNC_WITHOUT_FSYNC
    atomic.identity = identity
    # What is pending was sent at a time that depends on now; and who else runs a server does not matter.
    prepared_module.time.time_ns = lambda: NOW
    directories.find_server = lambda root, quiet: iter(())
    base = work / "base"
    base.mkdir()
    prepare(base, name)
    old = parts(base, name)
    count, undisturbed = points(work, scenario, base)
    new = parts(undisturbed, name)
    assert new != old
    assert hidden(undisturbed) == []
    outcomes: dict[str, int] = {}
    critical = count - CRITICAL[name]
    # Before the critical ones nothing has arrived yet; that is the same whatever was there before.
    early = range(1, critical, 4) if name in ("backup", "place") else ()
    for point in (*early, *range(critical, count + 1)):
        ways = WAYS if point >= critical else WAYS[point // 4 % 3 :][:1]
        for way, left in ends(work, scenario, base, point, ways):
            where = f"point {point} of {count}, {way}"
            have = parts(left, name)
            for part, found in have.items():
                allowed = {old[part], new[part]} | ({""} if name == "replace-by-renames" else set())
                assert found in allowed, f"{where}: {part} is neither old nor new"
            done = "new" if have == new else "old"
            outcomes[f"{way}: {done}"] = outcomes.get(f"{way}: {done}", 0) + 1
            assert child(lambda left=left: scenario(left)) == 0, f"{where}: running again failed"
            assert parts(left, name) == new, f"{where}: not finished"
            assert hidden(left) == [], f"{where}: {hidden(left)} are left"
            kept = [digest(path) for path in (left / ACCOUNT).glob("*.replaced*")]
            if name in ("backup", "place"):
                assert kept == [], f"{where}: something was replaced"
            else:
                assert old["orders"] in kept, f"{where}: the old stream is not kept"
    print(json.dumps({"points": count, "outcomes": outcomes}))


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except (AssertionError, StantoolsError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
