"""The tar in a stream archive: small enough a part of tar to be read without trust.

Facts: jetstream-migration.md section 5.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stantools.migration.archive.errors import ArchiveError
from stantools.migration.archive.pull import Pull

UNIT: Final = 512
#: What an archive ends with.
END: Final = bytes(2 * UNIT)
#: A larger file in an archive is not one of ours: the largest are blocks, with a record of at most 32 MiB.
MAX_FILE_SIZE: Final = 64 << 20
#: Eleven octal digits.
_MAX_TIME: Final = (1 << 33) - 1
#: Extended headers only hold a name.
_MAX_EXTENSION: Final = 16 << 10


def file_header(name: str, size: int, modified: int) -> bytes:
    """Returns what comes before the content of a file.

    Args:
        name: Its relative path.
        size: Its size in bytes.
        modified: Its time in seconds since 1970; the nearest that tar can say is written.

    Returns:
        512 bytes; more if the name is longer than 100 characters or not ASCII.
    """
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, min(max(modified, 0), _MAX_TIME), 0o600
    entry.uname = entry.gname = "nats"
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> int:
    """Returns the number of zero bytes after a file of this size."""
    return -size % UNIT


def whole_file(name: str, content: bytes, modified: int) -> bytes:
    """Returns a file as it stands in a tar."""
    return file_header(name, len(content), modified) + content + bytes(padding(len(content)))


@dataclass(frozen=True, slots=True)
class TarFile:
    """A file out of a tar."""

    name: str
    content: bytearray


def read_files(pull: Pull) -> Iterator[TarFile]:
    """Reads the files of a tar one after the other, up to its end.

    Raises:
        ArchiveError: It is damaged, ends too early, or has something else in it than files.
    """
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
        else:
            raise ArchiveError(f"{pull.name}: {name} is of type {kind!r}, only files are expected")
        pull.take(padding(size))


def _parse(head: bytes, where: str) -> tuple[str, int, bytes]:
    checksum = sum(head) - sum(head[148:156]) + 8 * 0x20
    if _number(head[148:156]) != checksum:
        raise ArchiveError(f"{where} has a wrong checksum")
    size = _number(head[124:136])
    if size is None:
        raise ArchiveError(f"{where} has no size")
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
