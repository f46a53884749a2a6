"""The search for stores finds the same in directories and in an archive of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stantools.sources.archive import Archive
from stantools.sources.archived_store import SeveralArchivedStores, store_members
from stantools.sources.source import PathFacts
from stantools.sources.store_search import MAX_DEPTH
from tests.conftest import others_slow

NAMES = ("server.dat", "clients.dat", "raft.log", "notes.txt", "1.blk")
CHANNEL_FILES = ("msgs.1.dat", "msgs.1.idx", "subs.dat", "msgs.2.dat.bak")
FOLDERS = ("a", "b", "msgs", ".snapshot", "lost+found")


def grow(directory: Path, chance: random.Random, depth: int) -> None:
    directory.mkdir()
    for name in chance.sample(NAMES, chance.choice((0, 0, 0, 1, 2))):
        (directory / name).write_bytes(b"x")
    if chance.random() < 0.2:
        (directory / chance.choice(CHANNEL_FILES)).write_bytes(b"x")
    for name in chance.sample(FOLDERS, chance.randint(0, 3)) if depth else ():
        grow(directory / name, chance, depth - 1)


@pytest.mark.parametrize("seed", others_slow(range(40), range(0, 40, 4)))
def test_directories_and_archives_hold_the_same_stores(seed: int, tmp_path: Path) -> None:
    import shutil

    chance = random.Random(seed)
    grow(tmp_path / "tree", chance, MAX_DEPTH)
    logs, stores = PathFacts(tmp_path / "tree").below
    archive = Path(shutil.make_archive(str(tmp_path / "it"), "tar", tmp_path, "tree"))
    members = Archive(archive, "tar").members()
    here = [sorted(each.relative_to(tmp_path).as_posix() for each in group) for group in (stores, logs)]
    if len(stores) > 1 and not logs:
        with pytest.raises(SeveralArchivedStores) as problem:
            store_members(members, "tree", ())
        assert problem.value.stores == here[0]
        return
    found = store_members(members, "tree", ())
    if stores == [tmp_path]:  # the directory itself is a channel
        assert found is None or list(found.stores) == [""]
        return
    if here == [[], []]:  # blocks of JetStream may be in one place
        assert found is None or (not found.stores and found.opened in found.whole)
        return
    assert found and [sorted(found.stores), sorted(found.whole)] == here
