"""A server's indexes of message blocks (jetstream-server.md section 20).

`msgs/index.db` of servers from 2.10 on covers all blocks, `msgs/N.idx` of older ones a single one.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stantools.lazy_numpy import np
from stantools.store.ranges import Ranges
from stantools.streamfiles import kernels
from stantools.streamfiles.layout import HASH_SIZE, MAX_SEQUENCE, ArchiveError
from stantools.streamfiles.varints import VarintReader, put, zigzag

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Servers read their own version and earlier ones; this one is 2.11's.
_WRITTEN_VERSION: Final = 2
#: sequences per node of a map of deleted sequences
_NODE_BITS: Final = 2048
#: words of bits in a node, by the version of its map; bytes before the nodes, and in a node besides its words
_NODE_WORDS: Final = {1: 64, 2: 32}
_MAP_HEAD: Final = 10
_NODE_BORDERS: Final = 10


class IndexVersionError(ArchiveError):
    """An index of a version that no known server writes."""


@dataclass(slots=True)
class KnownBlock:
    first: int
    last: int
    size: int = 0  #: of its messages' records
    removed: int = 0  #: number of deleted sequences
    deleted_map: bytes = field(default=b"", repr=False)  #: as stored; empty if nothing is deleted
    _deleted: NDArray[np.int64] | None = field(default=None, repr=False)

    @property
    def deleted(self) -> NDArray[np.int64]:
        """The deleted sequences, rising."""
        if self._deleted is None:
            self._deleted = _sequences_of(self.deleted_map)
        return self._deleted

    @deleted.setter
    def deleted(self, sequences: NDArray[np.int64]) -> None:
        self._deleted, self.removed = sequences, len(sequences)

    @property
    def messages(self) -> int:
        return self.last - self.first + 1 - self.removed

    def listed(self, first: int = 0) -> Ranges:
        """Returns its messages, from a first one of the stream on."""
        whole = Ranges.of([(max(self.first, first, 1), self.last)])
        return whole - Ranges.from_sequences(self.deleted.astype(np.uint64))


@dataclass(slots=True)
class KnownStream:
    first: int  #: sequence of the first message
    last: int  #: the last sequence ever used
    last_time: int  #: its time, nanoseconds since 1970
    blocks: dict[int, KnownBlock]  #: by number
    last_block: int = 0  #: number of the last block
    last_hash: bytes = b""  #: hash of the last record in it
    version: int = 0  #: of `index.db`; 0: from indexes of single blocks
    stale: frozenset[int] = frozenset()  #: blocks that were written to after their own index
    messages: int = 0
    size: int = 0  #: of their records
    first_time: int = 0
    subjects: int = 0  #: number of subjects
    #: Size of each subject, its bytes one after the other, and its number of messages.
    subject_lengths: array[int] = field(default_factory=lambda: array("q"), repr=False)
    subject_text: bytes = field(default=b"", repr=False)
    subject_counts: array[int] = field(default_factory=lambda: array("Q"), repr=False)

    @property
    def subject_sizes(self) -> NDArray[np.int64]:
        return np.array(self.subject_lengths, np.int64)

    def listed(self) -> Ranges:
        return Ranges.union(each.listed(self.first) for each in self.blocks.values())


def read_index(data: bytes, key: bytes, unseal: Callable[[bytes], bytes] | None = None) -> KnownStream:
    """Reads `index.db`; ArchiveError if it is damaged, or of an unknown kind.

    `unseal` decrypts the part before the hash.
    """
    if len(data) < 2 + 2 * HASH_SIZE:
        raise ArchiveError(f"it has {len(data)} bytes, too few for an index")
    if kernels.hash64(data[:-HASH_SIZE], key) != int.from_bytes(data[-HASH_SIZE:], "little"):
        raise ArchiveError("its hash does not match: it is damaged, or of another stream")
    body = unseal(data[:-HASH_SIZE]) if unseal else data[:-HASH_SIZE]
    if body[:1] != b"\x0b" or not 1 <= body[1] <= 4:
        raise IndexVersionError(f"it is of version {body[1]}, expected 1 to 4")
    version = body[1]
    numbers = VarintReader(body, 2)
    messages, size, first = (numbers.take() for _ in range(3))
    first_time, last = numbers.signed(), numbers.take()
    known = KnownStream(
        first, last, numbers.signed(), {}, version=version, messages=messages, size=size, first_time=first_time
    )
    known.subjects = numbers.bounded(numbers.take(), 3)
    text = bytearray()
    for _ in range(known.subjects):
        name = numbers.raw(numbers.take())
        known.subject_lengths.append(len(name))
        text += name
        count = numbers.take()
        known.subject_counts.append(count)
        numbers.take()
        if count > 1 or version >= 4:
            numbers.take()
    known.subject_text = bytes(text)
    for _ in range(numbers.bounded(numbers.take(), 7)):
        number, size = numbers.take(), numbers.take()
        block_first, _, block_last, _, deleted = (numbers.take() for _ in range(5))
        for _ in range(version - 1 if version < 4 else 2):
            numbers.take()
        known.blocks[number] = KnownBlock(block_first, block_last, size=size)
        if deleted:
            known.blocks[number].deleted_map, known.blocks[number].removed = _deleted_map(numbers), deleted
    known.last_block, known.last_hash = numbers.take(), numbers.raw(HASH_SIZE)
    return known


def read_old_index(data: bytes) -> tuple[KnownBlock, bytes]:
    """Reads an index of a block; returns it with the hash of the block's last record."""
    if data[:1] != b"\x16" or data[1:2] not in (b"\x01", b"\x02"):
        raise ArchiveError("it has an unknown version")
    numbers = VarintReader(data, 2)
    messages, size, first, _, last, _, deleted = (numbers.take() for _ in range(7))
    tail = numbers.raw(HASH_SIZE)
    if messages != last - first + 1 - deleted:
        raise ArchiveError("its numbers contradict each other")
    known = KnownBlock(first, last, size=size)
    if deleted:
        if data[1] == 2:
            known.deleted = read_deleted(numbers)
        else:
            entries = [first + numbers.take() for _ in range(numbers.bounded(deleted, 1))]
            if max(first, last, *entries) > MAX_SEQUENCE:
                raise ArchiveError("it names an impossible sequence")
            known.deleted = np.unique(np.array(entries, np.int64))
    return known, tail


def read_deleted(numbers: VarintReader) -> NDArray[np.int64]:
    """Reads a map of deleted sequences, rising."""
    return _sequences_of(_deleted_map(numbers))


def _deleted_map(numbers: VarintReader) -> bytes:
    """Returns the bytes of a map of deleted sequences; ArchiveError if it is none."""
    head = numbers.raw(_MAP_HEAD)
    if head[:1] != b"\x16" or head[1] not in _NODE_WORDS:
        raise ArchiveError("its map of deleted sequences has an unknown version")
    size = _NODE_BORDERS + 8 * _NODE_WORDS[head[1]]
    nodes = numbers.raw(size * numbers.bounded(int.from_bytes(head[2:6], "little"), size))
    for at in range(0, len(nodes), size):
        if (base := int.from_bytes(nodes[at : at + 8], "little")) > MAX_SEQUENCE:
            raise ArchiveError(f"it names the sequence {base}")
    return head + nodes


def _sequences_of(deleted_map: bytes) -> NDArray[np.int64]:
    found = [np.zeros(0, np.int64)]
    size = _NODE_BORDERS + 8 * _NODE_WORDS[deleted_map[1]] if deleted_map else 1
    for at in range(_MAP_HEAD, len(deleted_map), size):
        words = np.frombuffer(deleted_map[at + 8 : at + size - 2], np.uint8)
        bits = np.unpackbits(words, bitorder="little")
        found.append(np.flatnonzero(bits) + int.from_bytes(deleted_map[at : at + 8], "little"))
    return np.unique(np.concatenate(found))


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """A block, for an index. One without messages has the sequence after `last` as its first."""

    number: int
    bytes: int  #: total size of its messages
    first: int  #: sequence of its first message
    first_time: int  #: nanoseconds since 1970
    last: int  #: the last sequence that it covers
    last_time: int
    deleted: NDArray[np.int64]  #: sequences without a message between them, rising
    lifetimes: int  #: upper bound of the messages with a lifetime


@dataclass(frozen=True, slots=True)
class StreamEntry:
    messages: int
    bytes: int
    first: int
    first_time: int
    last: int
    last_time: int


def encode_index(
    stream: StreamEntry,
    subjects: Iterable[tuple[bytes, int, int, int]],
    blocks: Sequence[BlockEntry],
    last_hash: bytes,
    key: bytes,
) -> bytes:
    """Returns the bytes of `index.db`, as servers from 2.11 on read it."""
    out = bytearray((11, _WRITTEN_VERSION))
    for number in (stream.messages, stream.bytes, stream.first, zigzag(stream.first_time), stream.last):
        put(out, number)
    put(out, zigzag(stream.last_time))
    entries, count = bytearray(), 0
    for name, messages, first, last in subjects:
        count += 1
        put(entries, len(name))
        entries += name
        put(entries, messages)
        put(entries, first)
        if messages > 1:
            put(entries, last)
    put(out, count)
    out += entries
    put(out, len(blocks))
    for block in blocks:
        put(out, block.number)
        put(out, block.bytes)
        put(out, block.first)
        put(out, zigzag(block.first_time - stream.first_time))
        put(out, block.last)
        put(out, zigzag(block.last_time - stream.first_time))
        put(out, len(block.deleted))
        put(out, block.lifetimes)
        if len(block.deleted):
            out += _encode_deleted(block.deleted)
    put(out, blocks[-1].number)
    out += last_hash
    out += kernels.hash64(bytes(out), key).to_bytes(HASH_SIZE, "little")
    return bytes(out)


def _encode_deleted(sequences: NDArray[np.int64]) -> bytes:
    """Returns a map of deleted sequences: a balanced tree of nodes with 2048 bits, parents first."""
    bases = np.unique(sequences // _NODE_BITS).tolist()
    out = bytearray(b"\x16\x02" + struct.pack("<II", len(bases), len(sequences)))

    def add(begin: int, end: int) -> None:
        middle = (begin + end) // 2
        base = bases[middle] * _NODE_BITS
        bits = np.zeros(_NODE_BITS, np.uint8)
        low, high = np.searchsorted(sequences, (base, base + _NODE_BITS)).tolist()
        bits[sequences[low:high] - base] = 1
        out.extend(struct.pack("<Q", base))
        out.extend(np.packbits(bits, bitorder="little").tobytes())
        out.extend(struct.pack("<H", (end - begin).bit_length()))
        if begin < middle:
            add(begin, middle)
        if middle + 1 < end:
            add(middle + 1, end)

    add(0, len(bases))
    return bytes(out)
