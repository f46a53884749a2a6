"""Hashes of the files of a new store, made while the rest of it is still being written."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from blake3 import blake3

from stantools.store.durable import fsync_file, writing
from stantools.store.mapping import WINDOW, Window, mapped

#: Files from this size on are made durable as soon as they are whole, so that the disk is not idle until the end.
_BIG = 1 << 20

Digest = dict[str, Any]


class Hasher:
    """Hashes files with BLAKE3 (`b3sum` checks it), which keeps pace with the writing as SHA-256 does not.

    Files that are added are hashed while others are being written.

    Args:
        root: The directory that holds the files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(1)
        self._begun: dict[Path, Future[Digest]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, path: Path) -> None:
        """Begins with a file that is whole, if it is big."""
        if path.stat().st_size >= _BIG:
            self._begun[path] = self._pool.submit(_finish, path)

    def files(self, directories: Iterable[Path]) -> dict[str, Digest]:
        """Returns size and hash of every file in some directories, by its path below the root.

        Raises:
            StoreUnwritableError: A file cannot be made durable.
            StoreUnreadableError: A file cannot be read.
        """
        digests = {}
        for path in (path for directory in directories for path in sorted(directory.iterdir())):
            if path.is_file():
                begun = self._begun.get(path)
                digests[str(path.relative_to(self._root))] = begun.result() if begun else _finish(path)
        return digests


def _finish(path: Path) -> Digest:
    digest = blake3()
    with mapped(path, sequential=True) as data:
        size, window = len(data), Window(data)
        for at in range(0, size, WINDOW // 2):
            window.reach(at)
            digest.update(data[at : at + WINDOW // 2])
    if size >= _BIG:
        with writing(path):
            fsync_file(path)
    return {"size": size, "blake3": digest.hexdigest()}
