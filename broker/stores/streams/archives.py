"""The files of a stream as one archive, read or unpacked (jetstream-migration.md section 5)."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.stores.interface import StorageError
from broker.stores.streams.metafiles import CONSUMERS, COPIED, META, META_SUM, STATE
from stantools.errors import StantoolsError
from stantools.notation import parse_moment
from stantools.store.durable import fsync_directory, sync_tree
from stantools.streamfiles.framing import (
    END,
    STORED,
    ByteSource,
    Framer,
    file_header,
    padding,
    read_files,
    unframe,
    whole_file,
)
from stantools.streamfiles.layout import MESSAGES, ArchiveError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: bytes to read at a time
_PIECE: Final = 256 << 10
#: files that an archive may contain
_USED: Final = re.compile(
    r"meta\.(inf|sum)|sources\.db"
    r"|msgs/([0-9]{1,10}\.(blk|idx)|index\.db)|obs/[^/.*> \t\r\n\f\0\\]+/(meta\.inf|meta\.sum|o\.dat)"
)
_UNUSED: Final = re.compile(r"msgs/([0-9]+\.fss|thw\.db|sched\.db)")
#: a million small files would take every inode of a small disk
_MOST_FILES: Final = 200_000
_SECOND: Final = 1_000_000_000


class StreamSnapshot:
    """The files of a stream at one moment, to be read once. Later changes do not affect them.

    Args:
        directory: The directory of the stream, which must be flushed.
        consumers: Include the consumers.
        time: Modification time of the files in the archive, in nanoseconds since 1970.

    Raises:
        StorageError: The files cannot be linked.
    """

    def __init__(self, directory: Path, *, consumers: bool, time: int) -> None:
        self._time = time // _SECOND
        self._links = directory.with_name(f".snapshot-{secrets.token_hex(4)}")
        names = [META, META_SUM, COPIED]
        if consumers and (directory / CONSUMERS).is_dir():
            for each in sorted((directory / CONSUMERS).iterdir()):
                names += [f"{CONSUMERS}/{each.name}/{file}" for file in (META, META_SUM, STATE)]
        try:
            self._links.mkdir(mode=0o700)
            self._small = {name: path.read_bytes() for name in names if (path := directory / name).is_file()}
            self._blocks: dict[str, int] = {}
            blocks = [path for path in (directory / MESSAGES).iterdir() if path.suffix == ".blk"]
            for path in sorted(blocks, key=lambda path: int(path.stem)):
                # A rewritten block is a new file, and appended records lie after the size.
                os.link(path, self._links / path.name)
                self._blocks[path.name] = path.stat().st_size
        except OSError as error:
            self.close()
            raise StorageError(f"{directory} cannot be read: {error.strerror}") from error

    def pieces(self, size: int) -> Iterator[bytes]:
        """Iterates over the archive, in pieces of `size` bytes except the last. Raises StorageError on read errors."""
        framer = Framer(STORED)
        waiting = bytearray()
        for part in self._parts():
            waiting += framer.frame(part)
            while len(waiting) >= size:
                yield bytes(waiting[:size])
                del waiting[:size]
        if waiting:
            yield bytes(waiting)

    def _parts(self) -> Iterator[ReadableBuffer]:
        for name in (META, META_SUM):
            yield whole_file(name, self._small[name], self._time)
        for name, size in self._blocks.items():
            yield file_header(f"{MESSAGES}/{name}", size, self._time)
            try:
                with (self._links / name).open("rb") as file:
                    left = size
                    while left:
                        data = file.read(min(left, _PIECE))
                        if not data:
                            raise StorageError(f"{self._links / name} has become shorter")
                        yield data
                        left -= len(data)
            except OSError as error:
                raise StorageError(f"{self._links / name} cannot be read: {error.strerror}") from error
            yield bytes(padding(size))
        for name, data in self._small.items():
            if name not in (META, META_SUM):
                yield whole_file(name, data, self._time)
        yield END

    def close(self) -> None:
        shutil.rmtree(self._links, ignore_errors=True)


def _bounded(parts: Iterable[ReadableBuffer], limit: int) -> Iterator[ReadableBuffer]:
    """Passes on the parts of an archive up to a limit of bytes; raises ArchiveError beyond it."""
    size = 0
    for part in parts:
        size += memoryview(part).nbytes
        if size > limit:
            raise ArchiveError(f"the unpacked archive has more than the remaining {limit} bytes")
        yield part


class IncomingArchive:
    """A received archive that becomes the directory of a stream.

    `created` is the stream's time of creation in nanoseconds since 1970, known after `unpack`. Raises StorageError
    if no file can be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self.created, self._kept = directory, 0, False
        self._hidden = directory.with_name(f".restore-{secrets.token_hex(4)}")
        try:
            (self._hidden / MESSAGES).mkdir(mode=0o700, parents=True)
            self._file = (self._hidden / ".archive").open("w+b")
        except OSError as error:
            raise StorageError(f"{self._hidden} cannot be written: {error.strerror}") from error

    def add(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise StorageError(f"{self._hidden} cannot be written: {error.strerror}") from error

    def unpack(self, limit: int) -> str:
        """Unpacks the received bytes, possibly in a thread. Returns the problem, empty if there is none.

        `limit` is in uncompressed bytes.
        """
        try:
            self._file.seek(0)
            pieces = iter(lambda: self._file.read(_PIECE), b"")
            expanded = _bounded(unframe(pieces, "the archive"), limit)
            files = read_files(ByteSource(expanded, "the archive"))
            for number, file in enumerate(files):
                if number == _MOST_FILES:
                    raise ArchiveError(f"the archive has more than {_MOST_FILES} files")
                if _USED.fullmatch(file.name):
                    path = self._hidden / file.name
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    path.write_bytes(file.content)
                    path.chmod(0o600)
                elif not _UNUSED.fullmatch(file.name):
                    raise ArchiveError(f"{file.name!r} does not belong in an archive")
            values = json.loads((self._hidden / META).read_bytes())
            self.created = parse_moment(values["Created"])
            sync_tree(self._hidden)
            return "" if values["name"] == self._directory.name else "stream names do not match"
        except StantoolsError as error:
            return error.message
        except OSError as error:
            return f"{error.filename or self._hidden} cannot be written or read: {error.strerror}"
        except (ValueError, KeyError, TypeError, RecursionError):
            return f"{META} of the archive is not valid"

    def place(self) -> None:
        """Moves the unpacked files to the directory of the stream. `close` removes them unless `keep` is called.

        Raises StorageError if the directory exists or cannot be written.
        """
        try:
            self._file.close()
            (self._hidden / ".archive").unlink()
            if self._directory.exists():
                raise StorageError(f"{self._directory} already exists")
            self._hidden = self._hidden.rename(self._directory)
            fsync_directory(self._directory.parent)
        except OSError as error:
            raise StorageError(f"{self._directory} cannot be written: {error.strerror}") from error

    def keep(self) -> None:
        self._kept = True

    def close(self) -> None:
        """Removes the files unless they have become a stream."""
        self._file.close()
        if not self._kept:
            shutil.rmtree(self._hidden, ignore_errors=True)
