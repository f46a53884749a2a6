"""The frames around an archive (jetstream-migration.md section 7): the snappy framing format, stored or compressed.

    chunk: type, 3 bytes size of what follows, then for data the masked CRC-32C of what it is uncompressed, and the data
    types: ff stream identifier, 00 compressed, 01 stored; 80 to fe are skipped

Several framed streams one after the other count as one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.errors import UsageError
from stantools.migration.archive import kernels
from stantools.migration.archive.errors import ArchiveError
from stantools.migration.archive.layout import CHUNK_HEAD_SIZE, CHUNK_SIZE
from stantools.migration.archive.pull import Pull

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STORED: Final = "stored"
SNAPPY: Final = "snappy"

IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
#: What the server writes in front: the same, but its compressed chunks may be in a dialect of its own.
_SERVER_IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
_TYPE_AND_SIZE: Final = 4
_CRC_SIZE: Final = 4
_COMPRESSED_CHUNK: Final = 0x00
_STORED_CHUNK: Final = 0x01
_FIRST_SKIPPED: Final = 0x80
#: Uncompressed bytes in a chunk after that.
_MAX_SERVER_CHUNK: Final = 4 << 20


class Framer:
    """Puts frames around an archive, part by part.

    Args:
        compression: `STORED` or `SNAPPY`.

    Raises:
        UsageError: There is no such compression, or it needs a package that is not installed.
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
    """Takes the frames off an archive.

    Args:
        pieces: The framed bytes, in parts of any size.
        name: What they are, for messages.

    Yields:
        The bytes of the chunks.

    Raises:
        ArchiveError: They are damaged, end within a chunk, or are compressed in a way that cannot be read here.
    """
    pull = Pull(iter(pieces), name)
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
            raise ArchiveError(f"{where} is of type {kind}, which is not known")


def _data(pull: Pull, kind: int, size: int, limit: int, where: str) -> ReadableBuffer:
    # Compressed data that is longer than the data itself is not written.
    if not _CRC_SIZE <= size <= limit + _CRC_SIZE:
        raise ArchiveError(f"{where} has {size} bytes, at most {limit} are expected")
    stored = int.from_bytes(pull.take(_CRC_SIZE), "little")
    data: ReadableBuffer = pull.take(size - _CRC_SIZE)
    if kind == _COMPRESSED_CHUNK:
        data = _decompressed(bytes(data), limit, where)
    crc = kernels.crc32c(data)
    if (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF != stored:
        raise ArchiveError(f"{where} is damaged: its CRC is another one")
    return data


def _decompressed(data: bytes, limit: int, where: str) -> ReadableBuffer:
    cramjam = _cramjam()
    try:
        # Said at its beginning, and believed before it is true: so it is bounded first.
        size = cramjam.snappy.decompress_raw_len(data)
        if size > limit:
            raise ArchiveError(f"{where} claims {size} bytes uncompressed, at most {limit} are expected")
        out = bytearray(size)
        cramjam.snappy.decompress_raw_into(data, out)
    except cramjam.DecompressionError as problem:
        raise ArchiveError(f"{where} cannot be decompressed: {problem}") from problem
    return out


def _cramjam() -> ModuleType:
    try:
        return importlib.import_module("cramjam")
    except ImportError as error:
        raise UsageError(
            f"snappy needs the package cramjam, which is not installed: {error}",
            f"pip install 'stantools[snappy]', or choose the compression {STORED}",
        ) from error
