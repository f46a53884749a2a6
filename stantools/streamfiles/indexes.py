"""What the indexes of a server say of message blocks (jetstream-server.md section 20).

`msgs/index.db` of servers from 2.10 on is for all blocks, `msgs/N.idx` of older ones for one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stantools.streamfiles import kernels
from stantools.streamfiles.layout import HASH_SIZE, ArchiveError
from stantools.streamfiles.varints import Numbers


@dataclass(slots=True)
class KnownBlock:
    """What an index says of a block."""

    first: int
    last: int
    deleted: set[int] = field(default_factory=set)

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return self.last - self.first + 1 - len(self.deleted)


@dataclass(slots=True)
class KnownStream:
    """What an index says of a stream."""

    first: int  #: sequence of the first message
    last: int  #: the last sequence that was used
    last_time: int  #: the time that goes with it, nanoseconds since 1970
    blocks: dict[int, KnownBlock]  #: its blocks, by number
    last_block: int = 0  #: number of the last block
    last_hash: bytes = b""  #: hash of the last record in it


def read_index(data: bytes, key: bytes) -> KnownStream:
    """Reads `index.db`.

    Raises:
        ArchiveError: It is damaged, or of another kind.
    """
    if len(data) < 2 + 2 * HASH_SIZE:
        raise ArchiveError(f"it has {len(data)} bytes, too few for an index")
    if kernels.hash64(data[:-HASH_SIZE], key) != int.from_bytes(data[-HASH_SIZE:], "little"):
        raise ArchiveError("its hash is another one: it is damaged, or of another stream")
    if data[0] != 11 or not 1 <= data[1] <= 4:
        raise ArchiveError(f"it is of version {data[1]}, known are 1 to 4")
    version = data[1]
    numbers = Numbers(data[:-HASH_SIZE], 2)
    _messages, _bytes, first, _first_time, last = (numbers.take() for _ in range(5))
    known = KnownStream(first, last, numbers.signed(), {})
    for _ in range(numbers.bounded(numbers.take(), 3)):
        numbers.raw(numbers.take())
        count = numbers.take()
        numbers.take()
        if count > 1 or version >= 4:
            numbers.take()
    for _ in range(numbers.bounded(numbers.take(), 7)):
        number, _ = numbers.take(), numbers.take()
        block_first, _, block_last, _, deleted = (numbers.take() for _ in range(5))
        for _ in range(version - 1 if version < 4 else 2):
            numbers.take()
        known.blocks[number] = KnownBlock(block_first, block_last, _deleted(numbers) if deleted else set())
    known.last_block, known.last_hash = numbers.take(), numbers.raw(HASH_SIZE)
    return known


def read_old_index(data: bytes) -> tuple[KnownBlock, bytes]:
    """Reads an index of a block. Returns what it says, and the hash of the block's last record.

    Raises:
        ArchiveError: It is damaged, or of another kind.
    """
    if data[:1] != b"\x16" or data[1:2] not in (b"\x01", b"\x02"):
        raise ArchiveError("it is of another version")
    numbers = Numbers(data, 2)
    messages, _, first, _, last, _, deleted = (numbers.take() for _ in range(7))
    tail = numbers.raw(HASH_SIZE)
    if messages != last - first + 1 - deleted:
        raise ArchiveError("its numbers contradict each other")
    known = KnownBlock(first, last)
    if deleted:
        known.deleted = _deleted(numbers) if data[1] == 2 else {first + numbers.take() for _ in range(deleted)}
    return known, tail


def _deleted(numbers: Numbers) -> set[int]:
    """Reads a map of deleted sequences."""
    magic, version = numbers.raw(2)
    if magic != 0x16 or version not in (1, 2):
        raise ArchiveError("its map of deleted sequences is of another version")
    words = 64 if version == 1 else 32
    nodes, _ = int.from_bytes(numbers.raw(4), "little"), numbers.raw(4)
    found: set[int] = set()
    for _ in range(nodes):
        base = int.from_bytes(numbers.raw(8), "little")
        bits = int.from_bytes(numbers.raw(8 * words), "little")
        numbers.raw(2)
        while bits:
            low = bits & -bits
            found.add(base + low.bit_length() - 1)
            bits ^= low
    return found
