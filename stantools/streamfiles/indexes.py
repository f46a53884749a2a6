"""What the indexes of a real server say of message blocks (jetstream-server.md section 20).

`msgs/index.db` of servers from 2.10 on is for all blocks, `msgs/N.idx` of older ones for one. They are believed if the
hash of the last record in them is that of the block.
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


def read_index(data: bytes, key: bytes, tails: dict[int, bytes]) -> tuple[int, dict[int, KnownBlock]]:
    """Reads `index.db`.

    Raises:
        ArchiveError: It is damaged, of another kind, or older than the blocks.
    """
    if len(data) < 2 + 2 * HASH_SIZE or data[0] != 11 or not 1 <= data[1] <= 4:
        raise ArchiveError("it is of another version")
    if kernels.hash64(data[:-HASH_SIZE], key) != int.from_bytes(data[-HASH_SIZE:], "little"):
        raise ArchiveError("its hash is another one")
    version = data[1]
    numbers = Numbers(data[:-HASH_SIZE], 2)
    numbers.take()
    numbers.take()
    begin = numbers.take()
    numbers.take()
    numbers.take()
    numbers.take()
    for _ in range(numbers.take()):
        numbers.raw(numbers.take())
        count = numbers.take()
        numbers.take()
        if count > 1 or version >= 4:
            numbers.take()
    known: dict[int, KnownBlock] = {}
    for _ in range(numbers.take()):
        number, _ = numbers.take(), numbers.take()
        first, _, last, _, deleted = (numbers.take() for _ in range(5))
        for _ in range(version - 1 if version < 4 else 2):
            numbers.take()
        known[number] = KnownBlock(first, last)
        if deleted:
            known[number].deleted = _deleted(numbers)
    last_block = numbers.take()
    if last_block != max(tails, default=0) or numbers.raw(HASH_SIZE) != tails.get(last_block):
        raise ArchiveError("it is older than the blocks")
    return begin, known


def read_old_index(data: bytes, tail: bytes) -> KnownBlock:
    """Reads an index of a block.

    Raises:
        ArchiveError: It is damaged, of another kind, or older than the block.
    """
    if data[:1] != b"\x16" or data[1:2] not in (b"\x01", b"\x02"):
        raise ArchiveError("it is of another version")
    numbers = Numbers(data, 2)
    messages, _, first, _, last, _, deleted = (numbers.take() for _ in range(7))
    if (numbers.raw(HASH_SIZE) != tail and tail) or messages != last - first + 1 - deleted:
        raise ArchiveError("it is older than the block")
    known = KnownBlock(first, last)
    if deleted:
        known.deleted = _deleted(numbers) if data[1] == 2 else {first + numbers.take() for _ in range(deleted)}
    return known


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
