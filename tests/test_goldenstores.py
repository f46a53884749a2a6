"""The archives of golden stores: whole, small, the same whoever packs them, unpacked once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import goldenstores
from tests.conftest import golden_cases

pytestmark = pytest.mark.golden


def test_everything_is_as_the_servers_left_it(golden: Path, golden_clusters: Path, golden_jetstream: Path) -> None:
    """No test changed what it was only to read; every file that is described is there, and no other."""
    assert len(golden_cases()) == 98
    described = 0
    for folder, below in ((golden, "datastore"), (golden_clusters, "nodes"), (golden_jetstream, "store")):
        for case in sorted(folder.iterdir()):
            expected = json.loads((case / "expected.json").read_text())
            files = expected.get("files") or expected["base"]["files"]
            found = {
                path.relative_to(case / below).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in (case / below).rglob("*")
                if path.is_file()
            }
            assert found == {name: about["sha256"] for name, about in files.items()}, case
            described += len(found)
    assert described > 10_000


def test_the_archives_are_small() -> None:
    sizes = [path.stat().st_size for path in goldenstores.ARCHIVES.glob("*.tar.xz")]
    assert len(sizes) == 7
    assert sum(sizes) < 5_000_000


def test_the_same_files_make_the_same_archives(golden: Path, tmp_path: Path) -> None:
    packed = []
    for turn in range(2):
        folder, to = tmp_path / f"from{turn}", tmp_path / f"to{turn}"
        to.mkdir()
        for case in ("durables", "dmg_short_idx") if turn else ("dmg_short_idx", "durables"):
            shutil.copytree(golden / case, folder / "stores" / case)
        for path in folder.rglob("*.dat"):
            os.utime(path, (turn * 1000, turn * 1000))
            path.chmod(0o600 if turn else 0o644)
        packed.append({path.name: path.read_bytes() for path in goldenstores.pack(folder, to)})
    assert packed[0] == packed[1]
    assert list(packed[0]) == ["damaged.tar.xz", "healthy.tar.xz"]


@pytest.fixture
def small_archives(tmp_path: Path) -> Path:
    """A folder with the small archives only."""
    (tmp_path / "archives").mkdir()
    for name in ("damaged", "mutations"):
        shutil.copy(goldenstores.ARCHIVES / f"{name}.tar.xz", tmp_path / "archives")
    return tmp_path / "archives"


UNPACK = """
import sys
from pathlib import Path
from tests import goldenstores
goldenstores.ARCHIVES, goldenstores.UNPACKED = map(Path, sys.argv[1:])
print(goldenstores.unpacked())
"""


def test_processes_that_unpack_at_the_same_time_do_not_meet(small_archives: Path, golden: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", UNPACK, small_archives, tmp_path / "new"]
    root = Path(goldenstores.__file__).parents[1]
    running = [subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    places = {Path(each.communicate()[0].strip()) for each in running}
    assert [each.returncode for each in running] == [0, 0, 0]
    assert len(places) == 1
    (place,) = places
    assert [path.name for path in (tmp_path / "new").iterdir()] == [place.name]
    files = [path.relative_to(place) for path in place.rglob("*") if path.is_file()]
    assert len(files) > 500
    assert all((place / file).read_bytes() == (golden.parent / file).read_bytes() for file in files)


def test_where_the_project_may_not_be_written(
    small_archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goldenstores, "ARCHIVES", small_archives)
    monkeypatch.setattr(goldenstores, "UNPACKED", tmp_path / "no" / "such" / "folder")
    monkeypatch.setattr(goldenstores.tempfile, "gettempdir", lambda: str(tmp_path))
    place = goldenstores.unpacked.__wrapped__()
    assert place.parent.parent == tmp_path
    assert (place / "stores" / "dmg_short_idx" / "expected.json").is_file()
    assert place.parent.stat().st_mode & 0o777 == 0o700
