"""The container of the files of an archive: a small part of tar, in frames (jetstream-migration.md sections 5 and 7).

The snappy framing format, stored or compressed:

    chunk: type, 3 bytes size of the rest, then for data the masked CRC-32C of the uncompressed data, and the data
    types: ff stream identifier, 00 compressed, 01 stored; 80 to fe are skipped

Several framed streams one after the other count as one. Both formats are read as untrusted input.
"""

from __future__ import annotations

import importlib
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.errors import UsageError
from stantools.install_hints import install_command
from stantools.streamfiles import kernels, s2
from stantools.streamfiles.layout import CHUNK_HEAD_SIZE, CHUNK_SIZE, ArchiveError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class ByteSource:
    """Takes bytes from an iterator of pieces; a piece is not used after the next one was requested.

    `name` identifies the bytes in messages.
    """

    def __init__(self, pieces: Iterator[ReadableBuffer], name: str) -> None:
        self.name = name
        self.position = 0  #: number of bytes taken
        self._pieces = pieces
        self._piece = memoryview(b"")

    def _has_byte(self) -> bool:
        while not len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._piece = memoryview(piece).cast("B")
        return True

    def at_end(self) -> bool:
        return not self._has_byte()

    def take(self, size: int) -> bytearray:
        """Returns the next `size` bytes; ArchiveError if there are fewer."""
        taken = bytearray()
        while len(taken) < size:
            if not self._has_byte():
                raise ArchiveError(f"{self.name} ends at byte {self.position}, {size - len(taken)} bytes are missing")
            part = self._piece[: size - len(taken)]
            taken += part
            self._piece = self._piece[len(part) :]
            self.position += len(part)
        return taken

    def rest(self) -> Iterator[memoryview]:
        while self._has_byte():
            piece, self._piece = self._piece, memoryview(b"")
            self.position += len(piece)
            yield piece


STORED: Final = "stored"
SNAPPY: Final = "snappy"

IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
#: The server's identifier: it announces chunks compressed in a dialect of its own.
_SERVER_IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
_TYPE_AND_SIZE: Final = 4
_CRC_SIZE: Final = 4
_COMPRESSED_CHUNK: Final = 0x00
_STORED_CHUNK: Final = 0x01
_FIRST_SKIPPED: Final = 0x80
#: maximum uncompressed bytes in a chunk of the dialect
_MAX_SERVER_CHUNK: Final = 4 << 20


class Framer:
    """Puts frames around an archive, part by part; `compression` is `STORED` or `SNAPPY`.

    Raises UsageError if there is no such compression, or its package is not installed.
    """

    def __init__(self, compression: str) -> None:
        if compression not in (STORED, SNAPPY):
            raise UsageError(f"{compression!r} is not a compression of archives", f"choose {STORED} or {SNAPPY}")
        self._snappy = _cramjam() if compression == SNAPPY else None
        self._out = np.zeros(1 << 16, np.uint8)
        self._begun = False

    def frame(self, data: ReadableBuffer) -> memoryview:
        """Returns the frames around a part; valid until the next call."""
        if self._snappy is not None:
            return memoryview(self._snappy.snappy.compress(data)).cast("B")
        position = 0
        size = memoryview(data).nbytes
        needed = len(IDENTIFIER) + size + (size // CHUNK_SIZE + 1) * CHUNK_HEAD_SIZE
        if len(self._out) < needed:
            self._out = np.zeros(needed, np.uint8)
        if not self._begun:
            self._out[: len(IDENTIFIER)] = np.frombuffer(IDENTIFIER, np.uint8)
            position = len(IDENTIFIER)
            self._begun = True
        return self._out.data[: kernels.frame(data, self._out, position)]


def unframe(pieces: Iterable[ReadableBuffer], name: str) -> Iterator[ReadableBuffer]:
    """Yields the content of the chunks of an archive, which comes in pieces of any size."""
    pull = ByteSource(iter(pieces), name)
    limit = 0
    while not pull.at_end():
        where = f"{name}: the chunk at byte {pull.position}"
        head = bytes(pull.take(_TYPE_AND_SIZE))
        kind, size = head[0], int.from_bytes(head[1:], "little")
        if kind == IDENTIFIER[0]:
            if head + (text := bytes(pull.take(min(size, len(IDENTIFIER))))) not in (IDENTIFIER, _SERVER_IDENTIFIER):
                raise ArchiveError(f"{where} has the identifier {text!r}, expected snappy's or S2's")
            limit = CHUNK_SIZE if head + text == IDENTIFIER else _MAX_SERVER_CHUNK
        elif not limit:
            raise ArchiveError(f"{name} does not begin like a framed archive", "give a stream.tar.s2")
        elif kind in (_COMPRESSED_CHUNK, _STORED_CHUNK):
            yield _data(pull, kind, size, limit, where)
        elif kind >= _FIRST_SKIPPED:
            pull.take(size)
        else:
            raise ArchiveError(f"{where} is of type {kind}, which is unknown")


def _data(pull: ByteSource, kind: int, size: int, limit: int, place: str) -> ReadableBuffer:
    # Compressed data is never larger than the data itself.
    if not _CRC_SIZE <= size <= limit + _CRC_SIZE:
        raise ArchiveError(f"{place} has {size} bytes, at most {limit} are expected")
    stored = int.from_bytes(pull.take(_CRC_SIZE), "little")
    data: ReadableBuffer = pull.take(size - _CRC_SIZE)
    if kind == _COMPRESSED_CHUNK:
        data = _decompressed(bytes(data), limit, place)
    crc = kernels.crc32c(data)
    if (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF != stored:
        raise ArchiveError(f"{place} is damaged: its CRC does not match")
    return data


def _decompressed(data: bytes, limit: int, place: str) -> ReadableBuffer:
    cramjam = _cramjam()
    try:
        # a claim at the start of the data, so it is bounded before it is used
        size = cramjam.snappy.decompress_raw_len(data)
        if size > limit:
            raise ArchiveError(f"{place} claims {size} bytes uncompressed, at most {limit} are expected")
        out = bytearray(size)
        cramjam.snappy.decompress_raw_into(data, out)
    except cramjam.DecompressionError:
        # real servers write forms that snappy lacks
        try:
            return s2.decompress(data, limit)
        except ValueError as problem:
            raise ArchiveError(f"{place} cannot be decompressed: {problem}") from problem
    return out


def _cramjam() -> ModuleType:
    try:
        return importlib.import_module("cramjam")
    except ImportError as error:
        raise UsageError(
            f"snappy needs the package cramjam, which is not installed: {error}",
            f"{install_command('cramjam')}, or choose the compression {STORED}",
        ) from error


UNIT: Final = 512
#: the end of an archive
END: Final = bytes(2 * UNIT)
#: A larger file is not part of such an archive: the largest are blocks, with a record of at most 32 MiB.
MAX_FILE_SIZE: Final = 64 << 20
#: eleven octal digits
_MAX_TIME: Final = (1 << 33) - 1
#: extended headers only hold a name
_MAX_EXTENSION: Final = 16 << 10


def file_header(name: str, size: int, modified: int) -> bytes:
    """Returns the header of a file: 512 bytes; more if the name is longer than 100 characters or not ASCII.

    `modified` is in seconds since 1970; tar clips it to its range.
    """
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, min(max(modified, 0), _MAX_TIME), 0o600
    entry.uname = entry.gname = "nats"
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> int:
    return -size % UNIT


def whole_file(name: str, content: bytes, modified: int) -> bytes:
    """Returns a file in the form of tar."""
    return file_header(name, len(content), modified) + content + bytes(padding(len(content)))


@dataclass(frozen=True, slots=True)
class TarFile:
    name: str
    content: bytearray


def read_files(pull: ByteSource, *, folders: bool = False) -> Iterator[TarFile]:
    """Reads the files of a tar one after the other, up to its end; `folders`: those may be in it, and are left out."""
    longer = ""
    while True:
        begin = pull.position
        head = bytes(pull.take(UNIT))
        if not any(head):
            if any(pull.take(UNIT)):
                raise ArchiveError(f"{pull.name}: at byte {begin} of the tar is an empty header")
            return
        name, size, kind = _parse(head, f"{pull.name}: the tar header at byte {begin}")
        if kind == b"x":
            if size > _MAX_EXTENSION:
                raise ArchiveError(f"{pull.name}: the extended tar header at byte {begin} has {size} bytes")
            longer = _path(bytes(pull.take(size)))
        elif kind in (b"0", b"\0"):
            if size > MAX_FILE_SIZE:
                raise ArchiveError(f"{pull.name}: {name} has {size} bytes, at most {MAX_FILE_SIZE} are expected")
            yield TarFile(longer or name, pull.take(size))
            longer = ""
        elif not (folders and kind == b"5"):
            raise ArchiveError(f"{pull.name}: {name} is of type {kind!r}, only files are expected")
        pull.take(padding(size))


def _parse(head: bytes, place: str) -> tuple[str, int, bytes]:
    checksum = sum(head) - sum(head[148:156]) + 8 * 0x20
    if _number(head[148:156]) != checksum:
        raise ArchiveError(f"{place} has a wrong checksum")
    size = _number(head[124:136])
    if size is None:
        raise ArchiveError(f"{place} has no size")
    name = _text(head[:100])
    if head[257:263] == b"ustar\0" and head[345]:
        name = f"{_text(head[345:500])}/{name}"
    return name, size, head[156:157]


def _number(field: bytes) -> int | None:
    digits = field.strip(b" \0")
    if not digits or any(digit not in b"01234567" for digit in digits):
        return None
    return int(digits, 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _path(extension: bytes) -> str:
    """The path in the records "size key=value" of an extended header; empty if there is none."""
    position = 0
    while position < len(extension):
        digits, space, rest = extension[position:].partition(b" ")
        if not space or not digits.isdigit() or not len(digits) + 1 < int(digits) <= len(extension) - position:
            return ""
        key, _, value = rest[: int(digits) - len(digits) - 1].partition(b"=")
        if key == b"path":
            return value.removesuffix(b"\n").decode("utf-8", "surrogateescape")
        position += int(digits)
    return ""
