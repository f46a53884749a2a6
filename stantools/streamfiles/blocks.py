"""The content of a block file, `msgs/N.blk`: decrypted and decompressed, as far as it goes.

Facts: jetstream-store.md sections 3, 8 and 9.

A compressed block, written only when it is complete:

    "cmp", u8 algorithm (1: S2), u original size | framed S2 of everything but the last 8 bytes | these 8 bytes

Records prove themselves by their hash, so every checksum of the compression is ignored. 2.10 erases a message of a
compressed block at its place in the uncompressed one: the file grows, and its last 8 bytes are no longer those of the
block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from stantools.store.mapping import Buffer
from stantools.streamfiles import highwayhash, s2
from stantools.streamfiles.damage import is_record
from stantools.streamfiles.layout import COMPRESSED, EMPTY_RECORD_SIZE, HASH_SIZE, MAX_RECORD_SIZE, ArchiveError
from stantools.streamfiles.sealing import AssetKey
from stantools.streamfiles.varints import VarintReader

#: furthest place of the stream's identifier: after the magic and a varint of ten bytes
_MAX_HEAD: Final = 14
#: Beyond the greatest block number, keys that are tried for a block with another one's records.
_MORE_NUMBERS: Final = 1000
#: keys that are tried for all blocks of a stream
MAX_TRIED_KEYS: Final = 1 << 22
#: records that are tried when the first one has no known key
_TRIED_RECORDS: Final = 3


@dataclass(slots=True)
class BlockContent:
    data: Buffer | bytes  #: the records
    compressed: bool = False
    encrypted: bool = False
    sealed: bool = False  #: it is encrypted, and its key cannot be opened; `data` is empty
    magic_damaged: bool = False  #: it is compressed, and its first bytes do not tell
    damaged_chunks: list[int] = field(default_factory=list)  #: offsets in the file (decrypted) of damaged chunks
    #: Bytes of the file after the compressed part and the last 8 bytes of the block; a healthy block has none.
    surplus: bytes = b""


def block_content(raw: Buffer | bytes, key: AssetKey | None = None) -> BlockContent:
    """Returns the records in the bytes of a block file; `key` is that of the block, if it is encrypted."""
    data = _decrypted(raw, key)
    head = bytes(data[: _MAX_HEAD + len(s2.IDENTIFIER)])
    begin = head.find(s2.IDENTIFIER)
    if begin < 0 or (begin < 5 and not head.startswith(COMPRESSED)):
        return BlockContent(data, encrypted=key is not None)
    content = bytes(data[: s2.MAX_CONTENT])
    plain, end, damaged = s2.unframe_leniently(content, begin, len(content) - HASH_SIZE, s2.MAX_CONTENT)
    plain += content[end : end + HASH_SIZE]
    surplus = content[end + HASH_SIZE :]
    return BlockContent(
        bytes(plain),
        compressed=True,
        encrypted=key is not None,
        magic_damaged=not head.startswith(COMPRESSED),
        damaged_chunks=damaged,
        surplus=surplus,
    )


def strict_content(raw: Buffer | bytes, key: AssetKey | None, *, sized: bool) -> Buffer | bytes:
    """Returns the records in the bytes of a block file as a server reads them: ArchiveError for damaged compression.

    `sized`: only as much is decompressed as the block says that it holds.
    """
    data = _decrypted(raw, key)
    if bytes(data[: len(COMPRESSED) - 1]) != COMPRESSED[:-1]:
        return data
    numbers = VarintReader(bytes(data[:_MAX_HEAD]), len(COMPRESSED))
    size = numbers.take()
    if not sized and len(data) > s2.MAX_CONTENT:
        raise ArchiveError("error reading compression reader: s2: corrupt input")
    body, tail = bytes(data[:-HASH_SIZE][: s2.MAX_CONTENT][numbers.position :]), bytes(data[-HASH_SIZE:])
    try:
        return s2.unframe(body, size - HASH_SIZE if sized else None) + tail
    except ValueError as problem:
        raise ArchiveError(f"error reading compression reader: {problem}") from problem


def _decrypted(raw: Buffer | bytes, key: AssetKey | None) -> Buffer | bytes:
    """Returns the bytes of a block; of an encrypted one at most as many as a server may have written."""
    return key.decrypt_block(raw[: s2.MAX_CONTENT]) if key else raw


def is_compressed(path: Path) -> bool:
    """Returns whether the first bytes of a block that is not encrypted are those of a compressed one."""
    try:
        with path.open("rb") as file:
            return file.read(len(COMPRESSED)) == COMPRESSED
    except OSError:
        return False


def number_of_records(
    data: Buffer | bytes, names: Iterable[str], numbers: Iterable[int], limit: int = MAX_TRIED_KEYS
) -> tuple[str, int] | None:
    """Returns the stream and the block number whose key fits the first records of a block; None if none does.

    No more than `limit` keys are tried, those of the first numbers first.
    """
    places = list(_first_places(data))
    if not places:
        return None
    names = list(names)
    tried = ((name, number) for number in _tried_numbers(numbers) for name in names)
    for name, number in islice(tried, limit):
        key = highwayhash.block_key(name, number)
        if any(is_record(data[place : place + size], 0, key) for place, size in places):
            return name, number
    return None


def _tried_numbers(numbers: Iterable[int]) -> Iterator[int]:
    highest = 0
    for each in numbers:
        highest = max(highest, each)
        yield each
    yield from range(1, highest + _MORE_NUMBERS)


def _first_places(data: Buffer | bytes) -> Iterator[tuple[int, int]]:
    position = 0
    for _ in range(_TRIED_RECORDS):
        size = int.from_bytes(data[position : position + 4], "little") & 0x7FFFFFFF
        if not EMPTY_RECORD_SIZE <= size <= min(MAX_RECORD_SIZE, len(data) - position):
            return
        yield position, size
        position += size
