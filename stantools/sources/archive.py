"""The members of an archive, listed and read with bounds, whatever its bytes are.

A tar is read forwards, twice: once for the list, once for the content. Sizes are those that headers declare; what is
really read is bounded by them. A header may take `_HEADER_BYTES`. Links and devices are listed, never followed or made.
A tar that ends without its end mark, or whose compressed data is cut, says so in `cut`.
"""

from __future__ import annotations

import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, cast

from stantools.errors import StoreUnreadableError, readable
from stantools.sources.decompression import COMPRESSIONS, Decompressed

#: bytes of the headers in front of one member, and members of one archive
_HEADER_BYTES: Final = 1 << 20
MAX_MEMBERS: Final = 1_000_000
#: Compressed data may become larger by this factor, or if that is more, have this many bytes.
_RATIO: Final = 250
_LARGE: Final = 1 << 30
_BLOCK: Final = 512
_CHUNK: Final = 1 << 18
#: bytes after the end mark that are still read, to check the sum of compressed data
_TAIL: Final = 1 << 26
_FLAG_ENCRYPTED: Final = 1
#: characters of a name, and directories in it
_MAX_NAME: Final = 4096
_MAX_DEPTH: Final = 100
#: characters of the reason why a member is damaged
_REASON: Final = 100
#: what the readers of tars and zips raise for damaged bytes
_DAMAGE: Final = (
    tarfile.TarError,
    zipfile.BadZipFile,
    ValueError,
    OverflowError,
    RecursionError,
    EOFError,
    IndexError,
    KeyError,
    NotImplementedError,
)


@dataclass(frozen=True)
class Member:
    name: str  #: path with slashes and without `.`; "" if it leads out of the archive or is too long
    written: str  #: name as written
    size: int  #: bytes
    kind: str  #: "file", "directory", "link" or "special"
    encrypted: bool = False


class BombError(Exception):
    """Compressed data becomes much larger than any store does."""


class TarStream:
    """The bytes of a tar, read forwards, with the interface of a file that `tarfile` needs."""

    def __init__(self, read: Callable[[int], bytes], skip: Callable[[int], object] | None, limit: int) -> None:
        self._read = read
        self._skip = skip
        self._limit = limit
        self._at = 0
        self._last = b""  #: the last bytes read: tarfile steps back by one
        self._pending = b""  #: bytes to read again
        self._allowance = _HEADER_BYTES
        self._in_headers = True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, _whence: int = 0) -> int:
        if offset < self._at - len(self._last):
            raise tarfile.ReadError("the headers lead backwards")
        if offset < self._at:
            back = self._at - offset
            self._pending, self._last = self._last[-back:], self._last[:-back]
            self._at = offset
        elif self._skip and not self._pending:
            self._skip(offset - self._at)
            self._last = b"" if offset > self._at else self._last
            self._at = offset
        while self._at < offset and self._take(min(_CHUNK, offset - self._at)):
            pass
        return self._at

    def read(self, size: int = -1) -> bytes:
        if self._in_headers:
            self._allowance -= size
            if size < 0 or self._allowance < 0:
                raise tarfile.ReadError(f"a header is larger than {_HEADER_BYTES} bytes")
        return self._take(size)

    def _take(self, size: int) -> bytes:
        data = self._pending[:size]
        self._pending = self._pending[size:]
        if len(data) < size:
            data += self._read(size - len(data))
        self._at += len(data)
        if self._at > self._limit:
            raise BombError
        self._last = (self._last + data)[-_BLOCK:]
        return data

    @contextmanager
    def content(self) -> Iterator[None]:
        """Reads without the bound of headers."""
        self._in_headers = False
        try:
            yield
        finally:
            self._in_headers, self._allowance = True, _HEADER_BYTES

    def next_member(self) -> None:
        self._allowance = _HEADER_BYTES

    @property
    def at_end_mark(self) -> bool:
        """Whether the last block read is the end mark."""
        return len(self._last) == _BLOCK and not any(self._last)


class Archive:
    """An archive; each method opens it anew."""

    def __init__(self, path: Path, form: str) -> None:
        self.path = path
        self.form = form
        self.cut = ""  #: reason why it ends early, after it was read to its end
        self.damaged: list[str] = []  #: members whose content has changed
        with readable(path):
            size = path.stat().st_size
        #: bytes that it may hold: a larger archive was made to fill disks
        self.limit = max(size, _LARGE, _RATIO * size) if form != "tar" else 1 << 62

    def members(self) -> list[Member]:
        """Lists it, in order."""
        found = []
        for member, _ in self._walk():
            found.append(member)
            if len(found) > MAX_MEMBERS:
                raise StoreUnreadableError(f"{self.path}: has more than {MAX_MEMBERS} members", "unpack it")
        return found

    def contents(self, wanted: Callable[[int, Member], bool]) -> Iterator[tuple[Member, Iterator[bytes]]]:
        """Yields the chosen members with their content in parts; `wanted` gets the number of a member.

        A content ends after the declared size, or where it cannot be read: then it is short.
        """
        for number, (member, parts) in enumerate(self._walk()):
            if wanted(number, member):
                yield member, parts()

    def _walk(self) -> Iterator[tuple[Member, Callable[[], Iterator[bytes]]]]:
        return self._zip() if self.form == "zip" else self._tar()

    def _tar(self) -> Iterator[tuple[Member, Callable[[], Iterator[bytes]]]]:
        self.cut = ""
        with self._bytes() as (read, skip, ending):
            stream = TarStream(read, skip, self.limit)
            try:
                with tarfile.open(fileobj=cast(Any, stream), mode="r:", errorlevel=0) as tar:
                    stream.next_member()
                    while member := tar.next():
                        cast(Any, tar).members = []
                        yield _of_tar(member), _tar_reader(tar, stream, member)
                        stream.next_member()
                if not stream.at_end_mark:
                    self.cut = ending() or "its end mark is missing"
                else:
                    with stream.content():
                        stream.seek(stream.tell() + _TAIL)
                    self.cut = ending()
            except _DAMAGE as problem:
                self.cut = ending() or str(problem) or type(problem).__name__

    @contextmanager
    def _bytes(
        self,
    ) -> Iterator[tuple[Callable[[int], bytes], Callable[[int], object] | None, Callable[[], str]]]:
        """Opens the tar's bytes: functions that read them, skip them, and tell why they end early."""
        if self.form in COMPRESSIONS:
            with Decompressed(self.path, self.form) as stream:
                yield stream.read, None, lambda: stream.cut
            return
        with readable(self.path), self.path.open("rb") as file:
            size = self.path.stat().st_size
            yield file.read, lambda count: file.seek(min(file.tell() + count, size)), lambda: ""

    def _zip(self) -> Iterator[tuple[Member, Callable[[], Iterator[bytes]]]]:
        self.cut = ""
        try:
            with readable(self.path), zipfile.ZipFile(self.path) as archive:
                infos = archive.infolist()
                shift = min((each.header_offset for each in infos), default=0)
                for info in infos:
                    yield _of_zip(info), partial(self._zip_content, archive, info, shift)
        except _DAMAGE as problem:
            whole = f"{self.path}.whole"
            raise StoreUnreadableError(
                f"{self.path}: the directory at the end of the archive cannot be read: {problem}",
                f"it may be cut; make a new one of what is left: `zip -FF {self.path} --out {whole}`",
            ) from problem

    def _zip_content(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, shift: int) -> Iterator[bytes]:
        size = info.file_size
        try:
            with _open_zipped(archive, info, shift) as file:
                while size > 0 and (part := file.read(min(_CHUNK, size))):
                    yield part
                    size -= len(part)
                file.read(1)  # checks the sum
        except (*_DAMAGE, zlib.error, lzma.LZMAError) as problem:
            self.damaged.append(f"{info.filename}: {str(problem)[:_REASON]}")


def _open_zipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo, shift: int) -> IO[bytes]:
    """Opens a member at its place relative to the directory at the end, which is shifted if bytes are missing.

    If they are missing in the middle, the members in front of them are at their original places.
    """
    try:
        if info.header_offset < 0:
            raise zipfile.BadZipFile("its header is cut off")
        return archive.open(info)
    except _DAMAGE as problem:
        if not shift:
            raise
        original = copy(info)
        original.header_offset -= shift
        with suppress(*_DAMAGE):
            return archive.open(original)
        raise problem


def _of_tar(member: tarfile.TarInfo) -> Member:
    kind = "file" if member.isreg() else "directory" if member.isdir() else "special"
    kind = "link" if member.issym() or member.islnk() else kind
    return Member(plain_name(member.name), member.name, member.size if kind == "file" else 0, kind)


def _of_zip(info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16
    kind = "directory" if info.is_dir() else "file"
    if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        kind = "link" if stat.S_ISLNK(mode) else "special"
    name = plain_name(info.filename)
    return Member(name, info.filename, info.file_size, kind, bool(info.flag_bits & _FLAG_ENCRYPTED))


def plain_name(name: str) -> str:
    """Returns a member's name as a relative path; "" if it leads out of the archive, names nothing, or is too long."""
    if len(name) > _MAX_NAME:
        return ""
    parts = [each for each in name.split("/") if each not in ("", ".")]
    return "" if ".." in parts or "\0" in name or len(parts) > _MAX_DEPTH else "/".join(parts)


def _tar_reader(tar: tarfile.TarFile, stream: TarStream, member: tarfile.TarInfo) -> Callable[[], Iterator[bytes]]:
    def read() -> Iterator[bytes]:
        with stream.content():
            if member.issparse():
                yield from _parts(tar.extractfile(member), member.size)
            else:
                stream.seek(member.offset_data)
                yield from _parts(stream, member.size)

    return read


def _parts(file: Any, size: int) -> Iterator[bytes]:
    """Yields a content up to its declared size, or up to damage."""
    with suppress(*_DAMAGE, zlib.error, lzma.LZMAError):
        while size > 0 and (part := file.read(min(_CHUNK, size))):
            yield part
            size -= len(part)
