"""Private directories for copies of what archives hold: under TMPDIR, of this user alone, removed at the end."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from stantools.sources.source import NO_ACCOUNT

#: private directories of this process
_private: list[Path] = []


def renamed_stream(root: Path) -> Path:
    """Gives an unpacked directory of a stream the stream's name, by which its files are hashed."""
    from stantools.streamfiles.directory import StoredStream

    name = (StoredStream(root, NO_ACCOUNT).config or {}).get("name") if (root / "meta.inf").is_file() else None
    if not isinstance(name, str) or name in ("", ".", "..", root.name) or "/" in name or "\0" in name:
        return root
    try:
        return root.rename(root.parent / name)
    except OSError:
        return root


def private_directory(place: Path | None = None) -> Path:
    """Makes a directory of this user alone, which is removed at the end of the program."""
    directory = Path(tempfile.mkdtemp(prefix="stantools-", dir=place))
    _private.append(directory)
    return directory


def remove(directory: Path) -> None:
    """Removes a private directory."""
    shutil.rmtree(directory, ignore_errors=True)
    if directory in _private:
        _private.remove(directory)


def remove_all() -> None:
    """Removes all private directories of this process."""
    for each in list(_private):
        remove(each)


atexit.register(remove_all)
