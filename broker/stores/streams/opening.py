"""Reads a stream's directory: blocks, and the indexes that real servers leave (jetstream-server.md section 20).

Some of what is gone, only an index knows of: `msgs/index.db` of servers from 2.10 on, `msgs/N.idx` of older ones. They
are believed if the hash of the last record in them is that of the block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.stores.streams.blocks import Block, Descriptors
from broker.stores.streams.contents import Contents
from stantools.errors import StantoolsError
from stantools.migration.archive import highway, kernels
from stantools.migration.archive.framing import MAX_FILE_SIZE, unframe
from stantools.migration.archive.layout import HASH_SIZE, Flaw, RecordColumns
from stantools.store.durable import replace_file

_BLOCK: Final = re.compile(r"([1-9][0-9]{0,9})\.blk")
_LEFT: Final = re.compile(r"\..*|.*\.tmp|[0-9]+\.new|[0-9]+\.key\.tmp")
_INDEX: Final = "index.db"
#: Other files of real servers that say again what is in the blocks.
_OTHERS: Final = re.compile(r"index\.db|thw\.db|sched\.db|[0-9]+\.(idx|fss)")
_ROWS: Final = 65536
_TOMBSTONE: Final = 1
_COMPRESSED: Final = b"cmp\x01"


def open_messages(
    directory: Path, stream: str, files: Descriptors, contents: Contents, blocks: dict[int, Block]
) -> list[int]:
    """Reads the blocks of a stream.

    Args:
        directory: Where they are.
        stream: Name of the stream.
        files: Who has files open.
        contents: Gets the messages.
        blocks: Gets the blocks, by number.

    Returns:
        Sequences of messages that are there and are gone nevertheless, as an index says.

    Raises:
        StorageError: A block cannot be read.
        OSError: The directory cannot be read.
    """
    names = [path.name for path in directory.iterdir()]
    for name in names:
        if _LEFT.fullmatch(name):
            (directory / name).unlink(missing_ok=True)
    graves: dict[int, int] = {}
    tails: dict[int, bytes] = {}
    numbers = sorted(int(found[1]) for found in map(_BLOCK.fullmatch, names) if found)
    for number in numbers:
        block = blocks[number] = Block(directory, stream, number, files)
        data = _content(block)
        _read(block, data, contents, graves)
        tails[number] = data[block.size - HASH_SIZE : block.size]
    for sequence in graves:
        found = contents.locate(sequence)
        if found is not None:
            contents.discard(*found)
    if graves:
        highest = max(graves)
        contents.skip(highest, max(graves[highest], contents.last_time))
    return _forgotten(directory, stream, contents, tails)


def forget_indexes(directory: Path) -> None:
    """Removes the indexes of real servers: they will not be right any more."""
    for path in directory.iterdir():
        if _OTHERS.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _content(block: Block) -> bytes:
    size = block.path.stat().st_size
    if size > MAX_FILE_SIZE:
        raise StorageError(f"{block.path} has {size} bytes, more than any block")
    if block.path.with_suffix(".key").exists():
        raise StorageError(f"{block.path} is encrypted by its server", "restore the stream from a backup")
    data = block.path.read_bytes()
    if data.startswith(_COMPRESSED):
        numbers = _Numbers(data, len(_COMPRESSED))
        try:
            numbers.take()
            framed = data[numbers.position : -HASH_SIZE]
            data = b"".join(map(bytes, unframe([framed], str(block.path)))) + data[-HASH_SIZE:]
            replace_file(block.path, data)
        except (ValueError, StantoolsError) as error:
            raise StorageError(f"{block.path} cannot be decompressed: {error}") from error
    return data


def _read(block: Block, data: bytes, contents: Contents, graves: dict[int, int]) -> None:
    columns = RecordColumns(_ROWS)
    begun = False
    position = 0
    flaw = Flaw.FULL
    while flaw is Flaw.FULL:
        begin = position
        rows, position, flaw = kernels.scan_records(data, position, block.key, columns)
        found = columns.take(rows)
        place = begin
        for sequence, flags, time, size, start, length in zip(
            found.sequence.tolist(),
            found.flags.tolist(),
            found.timestamp.tolist(),
            found.length.tolist(),
            found.subject_start.tolist(),
            found.subject_size.tolist(),
            strict=True,
        ):
            if flags == _TOMBSTONE:
                block.graves.append(sequence)
                graves[sequence] = time
            elif sequence > contents.last:
                contents.skip(sequence if flags else sequence - 1, max(time, contents.last_time))
                if not flags:
                    if not begun:
                        contents.begin(sequence, block.number)
                        begun = True
                    contents.add(sequence, time, data[start : start + length], size, place)
            place += size
    block.size = position
    if flaw is not Flaw.NONE:
        block.damaged = True
        NATS.error("%s: no good record at byte %d; what follows is not read", block.path, position)


@dataclass(slots=True)
class _Known:
    """What an index says of a block."""

    first: int
    last: int
    deleted: set[int] = field(default_factory=set)


def _forgotten(directory: Path, stream: str, contents: Contents, tails: dict[int, bytes]) -> list[int]:
    known: dict[int, _Known] = {}
    begin = 0
    try:
        data = (directory / _INDEX).read_bytes()
        begin, known = _index(data, highway.stream_key(stream), tails)
    except OSError:
        for number, tail in tails.items():
            try:
                known[number] = _old_index((directory / f"{number}.idx").read_bytes(), tail)
            except (OSError, ValueError):
                continue
    except ValueError as problem:
        NATS.warning("%s is not used: %s", directory / _INDEX, problem)
    # An emptied stream of an old server has its last sequence there only.
    contents.skip(max((said.last for said in known.values()), default=0), contents.last_time)
    gone: list[int] = []
    for segment, rows in contents.rows(None):
        said = known.get(segment.block)
        for sequence in (rows + segment.first).tolist():
            if sequence < begin or (
                said is not None and (not said.first <= sequence <= said.last or sequence in said.deleted)
            ):
                gone.append(sequence)
    return gone


def _index(data: bytes, key: bytes, tails: dict[int, bytes]) -> tuple[int, dict[int, _Known]]:
    """Reads `index.db`.

    Raises:
        ValueError: It is damaged, of another kind, or older than the blocks.
    """
    if len(data) < 2 + 2 * HASH_SIZE or data[0] != 11 or not 1 <= data[1] <= 4:
        raise ValueError("it is of another version")
    if kernels.hash64(data[:-HASH_SIZE], key) != int.from_bytes(data[-HASH_SIZE:], "little"):
        raise ValueError("its hash is another one")
    version = data[1]
    numbers = _Numbers(data[:-HASH_SIZE], 2)
    numbers.take()
    numbers.take()
    begin = numbers.take()
    numbers.take()
    numbers.take()
    numbers.take()
    for _ in range(numbers.take()):
        numbers.skip(numbers.take())
        count = numbers.take()
        numbers.take()
        if count > 1 or version >= 4:
            numbers.take()
    known: dict[int, _Known] = {}
    for _ in range(numbers.take()):
        number, _ = numbers.take(), numbers.take()
        first, _, last, _, deleted = (numbers.take() for _ in range(5))
        for _ in range(version - 1 if version < 4 else 2):
            numbers.take()
        known[number] = _Known(first, last)
        if deleted:
            known[number].deleted = numbers.deleted()
    last_block = numbers.take()
    if last_block != max(tails, default=0) or numbers.raw(HASH_SIZE) != tails.get(last_block):
        raise ValueError("it is older than the blocks")
    return begin, known


def _old_index(data: bytes, tail: bytes) -> _Known:
    """Reads an index of a block.

    Raises:
        ValueError: It is damaged, of another kind, or older than the block.
    """
    if data[:1] != b"\x16" or data[1:2] not in (b"\x01", b"\x02"):
        raise ValueError("it is of another version")
    numbers = _Numbers(data, 2)
    messages, _, first, _, last, _, deleted = (numbers.take() for _ in range(7))
    if (numbers.raw(HASH_SIZE) != tail and tail) or messages != last - first + 1 - deleted:
        raise ValueError("it is older than the block")
    known = _Known(first, last)
    if deleted:
        known.deleted = numbers.deleted() if data[1] == 2 else {first + numbers.take() for _ in range(deleted)}
    return known


class _Numbers:
    """Varints one after the other; a zigzag number is taken as it stands where nobody needs it."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position

    def take(self) -> int:
        value = shift = 0
        for byte in self._data[self.position : self.position + 10]:
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        raise ValueError(f"it ends at byte {len(self._data)}")

    def skip(self, size: int) -> None:
        self.raw(size)

    def raw(self, size: int) -> bytes:
        if size > len(self._data) - self.position:
            raise ValueError(f"it ends at byte {len(self._data)}")
        self.position += size
        return self._data[self.position - size : self.position]

    def deleted(self) -> set[int]:
        """A map of deleted sequences."""
        magic, version = self.raw(2)
        if magic != 0x16 or version not in (1, 2):
            raise ValueError("its map of deleted sequences is of another version")
        words = 64 if version == 1 else 32
        nodes, _ = int.from_bytes(self.raw(4), "little"), self.raw(4)
        found: set[int] = set()
        for _ in range(nodes):
            base = int.from_bytes(self.raw(8), "little")
            bits = int.from_bytes(self.raw(8 * words), "little")
            self.raw(2)
            while bits:
                low = bits & -bits
                found.add(base + low.bit_length() - 1)
                bits ^= low
        return found
