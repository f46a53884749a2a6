"""Golden stores: what real servers wrote, kept as archives in tests/golden, unpacked once into .golden.

    python tests/goldenstores.py                 # unpack them, and say where
    python tests/goldenstores.py pack FOLDER     # write the archives anew from the folders of cases in FOLDER

The folder has the digest of the archives in its name, so other archives get another folder, and processes that unpack
at the same time do not meet. Archives are the same bytes whoever packs the same files: names in order, no owners, one
time for all. That time is long ago, because a store that was written a moment ago looks as if it were in use.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ARCHIVES = Path(__file__).parent / "golden"
UNPACKED = Path(__file__).parents[1] / ".golden"
#: Modification time of every file, seconds since 1970.
_TIME = 1_600_000_000


@cache
def unpacked() -> Path:
    """Returns the folder with `stores`, `clusters`, `jetstream` and `sql`; unpacks the archives if nobody has."""
    archives = sorted(ARCHIVES.glob("*.tar.xz"))
    digest = hashlib.sha256()
    for archive in archives:
        digest.update(archive.name.encode() + archive.read_bytes())
    place = _place() / digest.hexdigest()[:16]
    if place.is_dir():
        return place
    new = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=place.parent))
    try:
        for archive in archives:
            with tarfile.open(archive, "r:xz") as tar:
                tar.extractall(new, filter="data")
        new.chmod(0o755)
        try:
            new.rename(place)  # what has this name is always whole
        except OSError:
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return place


def _place() -> Path:
    """Returns where to unpack: in the project, or where that may not be written, a folder of this user's own."""
    with contextlib.suppress(OSError):
        UNPACKED.mkdir(exist_ok=True)
    if os.access(UNPACKED, os.W_OK):
        return UNPACKED
    own = Path(tempfile.gettempdir()) / f"stantools-golden-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    if own.stat().st_uid != os.getuid():
        raise PermissionError(f"{own} belongs to somebody else")
    return own


def archive_of(path: Path) -> str:
    """Returns the archive that a case belongs to: cases that are alike are packed together.

    Args:
        path: The case, as `stores/NAME`, `clusters/NAME`, `jetstream/NAME` or `sql/NAME`.
    """
    if path.parts[0] in ("clusters", "sql"):
        return path.parts[0]
    if path.parts[0] == "jetstream":
        return "jetstream-clusters" if path.name.startswith("cl_") else "jetstream"
    if path.name in ("mutations", "systematic"):
        return "mutations"
    odd = ("bad_", "dup_", "foreign_", "no_permission", "read_only")
    return "damaged" if path.name.startswith(("dmg_", *odd)) else "healthy"


def pack(folder: Path, to: Path = ARCHIVES) -> Iterator[Path]:
    """Writes the archives.

    Args:
        folder: Has the cases in `stores`, `clusters`, `jetstream` and `sql`.
        to: Where the archives go.

    Yields:
        Each archive when it is written.
    """
    groups: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*/*/**/*")):
        inside = path.relative_to(folder)
        if path.is_file():
            groups.setdefault(archive_of(Path(*inside.parts[:2])), []).append(inside)
    for name, files in groups.items():
        target = to / f"{name}.tar.xz"
        with (
            lzma.open(target, "wb", preset=9 | lzma.PRESET_EXTREME) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for inside in files:
                about = tarfile.TarInfo(inside.as_posix())
                about.size, about.mtime, about.mode = (folder / inside).stat().st_size, _TIME, 0o644
                with (folder / inside).open("rb") as file:
                    tar.addfile(about, file)
        yield target


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"] and len(sys.argv) == 3:
        for written in pack(Path(sys.argv[2])):
            print(f"{written}: {written.stat().st_size:,} bytes")
    else:
        print(unpacked())
