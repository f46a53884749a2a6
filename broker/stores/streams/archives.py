"""A stream's files as one archive: taken from a directory, and unpacked into one (jetstream-migration.md section 5)."""

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
from stantools.streamfiles.layout import ArchiveError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MESSAGES: Final = "msgs"
#: Bytes that are read at a time.
_PIECE: Final = 256 << 10
#: What an archive may have; the rest is no part of a stream.
_USED: Final = re.compile(
    r"meta\.(inf|sum)|sources\.db"
    r"|msgs/([0-9]{1,10}\.(blk|idx)|index\.db)|obs/[^/.*> \t\r\n\f\0\\]+/(meta\.inf|meta\.sum|o\.dat)"
)
_UNUSED: Final = re.compile(r"msgs/([0-9]+\.fss|thw\.db|sched\.db)")
#: A million of small ones would take every inode of a small disk.
_MOST_FILES: Final = 200_000
_SECOND: Final = 1_000_000_000


class StreamSnapshot:
    """The files of a stream as they are now, whatever becomes of them, to be read once.

    Args:
        directory: Of the stream. Everything is flushed.
        consumers: With the consumers.
        time: Of the files in the archive, in nanoseconds since 1970.

    Raises:
        StorageError: They cannot be linked.
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
                # A block that is rewritten is another file; what is added to one lies behind its size.
                os.link(path, self._links / path.name)
                self._blocks[path.name] = path.stat().st_size
        except OSError as error:
            self.close()
            raise StorageError(f"{directory} cannot be read: {error.strerror}") from error

    def pieces(self, size: int) -> Iterator[bytes]:
        """Iterates over the archive, in pieces of a size but for the last.

        Raises:
            StorageError: A file cannot be read.
        """
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
        """Forgets it."""
        shutil.rmtree(self._links, ignore_errors=True)


def _bounded(parts: Iterable[ReadableBuffer], limit: int) -> Iterator[ReadableBuffer]:
    """Passes on parts of an archive as long as all together have no more bytes than a limit.

    Raises:
        ArchiveError: They have.
    """
    size = 0
    for part in parts:
        size += memoryview(part).nbytes
        if size > limit:
            raise ArchiveError(f"the archive has more than {limit} bytes when it is unpacked, which is what is left")
        yield part


class IncomingArchive:
    """An archive that comes in pieces, and becomes the directory of a stream.

    Args:
        directory: The directory that it becomes.

    Attributes:
        created: When the stream was made, in nanoseconds since 1970; known when it is unpacked.

    Raises:
        StorageError: Nothing can be written there.
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
        """Takes a piece.

        Raises:
            StorageError: It cannot be written.
        """
        try:
            self._file.write(data)
        except OSError as error:
            raise StorageError(f"{self._hidden} cannot be written: {error.strerror}") from error

    def unpack(self, limit: int) -> str:
        """Unpacks what has come; may be called in a thread.

        Args:
            limit: Bytes that it may have when it is no longer compressed.

        Returns:
            What is wrong, nothing if all is well.
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
                    raise ArchiveError(f"{file.name!r} does not belong into an archive")
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
        """Makes what was unpacked the directory of the stream, until `close` unless `keep` is called.

        Raises:
            StorageError: There is one, or it cannot be written.
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
        """Leaves the directory to the stream."""
        self._kept = True

    def close(self) -> None:
        """Removes what has not become a stream."""
        self._file.close()
        if not self._kept:
            shutil.rmtree(self._hidden, ignore_errors=True)
