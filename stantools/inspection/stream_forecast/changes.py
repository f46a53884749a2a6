"""The files of a directory that a start changes: their sizes before and after it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class FileChange:
    before: int | None  #: its size, None if it is not there
    after: int | None

    def as_json(self) -> dict[str, Any]:
        return {"size_before": self.before, "size_after": self.after}


@dataclass
class DirectoryChanges:
    root: Path
    files: dict[str, FileChange] = field(default_factory=dict)  #: by path relative to the root
    removed: list[str] = field(default_factory=list)  #: directories, relative to the root

    def name(self, path: Path) -> str:
        text, above = str(path), f"{self.root}/"
        return text[len(above) :] if text.startswith(above) else os.path.relpath(path, self.root)

    def write(self, path: Path, size: int) -> None:
        """Records a file that is written, or has another size then."""
        self._set(path, size)

    def remove(self, path: Path) -> None:
        self._set(path, None)

    def exists(self, path: Path) -> bool:
        change = self.files.get(self.name(path))
        return change.after is not None if change else path.is_file()

    def remove_directory(self, path: Path) -> None:
        """Records a directory that is removed with its content."""
        for folder, _, names in os.walk(path):
            self.removed.append(self.name(Path(folder)))
            for name in names:
                self.remove(Path(folder) / name)
        inside = f"{self.name(path)}/"
        for name in [each for each, change in self.files.items() if each.startswith(inside) and change.before is None]:
            del self.files[name]

    def move_directory(self, source: Path, target: Path) -> None:
        """Records a directory that replaces another one."""
        sizes = {entry.name: entry.stat().st_size for entry in source.iterdir() if entry.is_file()}
        self.remove_directory(source)
        for entry in target.iterdir() if target.is_dir() else ():
            if entry.is_file() and entry.name not in sizes:
                self.remove(entry)
        for name, size in sizes.items():
            self.write(target / name, size)

    def _set(self, path: Path, size: int | None) -> None:
        name = self.name(path)
        earlier = self.files.get(name)
        before = earlier.before if earlier else _size(path)
        if before is None and size is None:
            self.files.pop(name, None)
        else:
            self.files[name] = FileChange(before, size)


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None
