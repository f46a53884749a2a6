"""The index of a stream, `msgs/index.db`, as nats-server writes it when it stops (jetstream-server.md section 20).

Both servers learn from it which messages and blocks the stream had, even if files are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.stores.streams.blocks import MessageBlock
from broker.stores.streams.contents import Contents, RowSegment
from stantools.streamfiles.indexes import BlockEntry, StreamEntry, encode_index
from stantools.streamfiles.layout import HASH_SIZE

#: sizes up to which the index is written: a larger one would delay the stop, and the blocks suffice
_MOST_ROWS: Final = 4_000_000
_MOST_SUBJECTS: Final = 200_000
_MOST_DELETED: Final = 1_000_000


def index_of(contents: Contents, blocks: Mapping[int, MessageBlock], key: bytes, *, lifetimes: bool) -> bytes | None:
    """Returns the index of a flushed stream; None if the stream has no records, or the index would take too long.

    `key` is the hash key of the stream; `lifetimes` says whether messages may have one.
    """
    block = blocks[max(blocks)] if blocks else None
    rows = sum(len(segment.sizes) for segment in contents.segments)
    gaps = contents.last - contents.first - contents.messages
    if block is None or not block.size or rows > _MOST_ROWS or len(contents.subjects) > _MOST_SUBJECTS:
        return None
    if gaps > _MOST_DELETED:
        return None
    segments: dict[int, list[RowSegment]] = {number: [] for number in blocks}
    for segment in contents.segments:
        segments[segment.block].append(segment)
    entries = [
        _entry(number, own, contents.last if number == block.number else 0, contents.last_time, lifetimes=lifetimes)
        for number, own in segments.items()
    ]
    stream = StreamEntry(
        contents.messages, contents.bytes, contents.first, contents.first_time, contents.last, contents.last_time
    )
    last_hash = block.read(block.size - HASH_SIZE, HASH_SIZE)
    return encode_index(stream, _subjects(contents, segments), entries, last_hash, key)


def _entry(number: int, segments: list[RowSegment], last: int, last_time: int, *, lifetimes: bool) -> BlockEntry:
    """Returns the entry of a block, which ends with its last record; the entry of the last block ends with `last`."""
    rows = [np.flatnonzero(np.frombuffer(segment.sizes, np.uint32)) for segment in segments]
    parts = [each + segment.first for segment, each in zip(segments, rows, strict=True)]
    live: NDArray[np.int64] = np.concatenate([np.zeros(0, np.int64), *parts])
    if not last:
        for segment in segments:
            if (row := segment.last_placed()) >= 0:
                last, last_time = segment.first + row, segment.times[row]
    if not len(live):
        return BlockEntry(number, 0, last + 1, 0, last, last_time, live, 0)
    times = [np.frombuffer(segment.times, np.int64)[each] for segment, each in zip(segments, rows, strict=True)]
    first, first_time = int(live[0]), int(np.concatenate(times)[0])
    gaps = np.diff(live, append=last + 1) - 1
    begins = np.repeat(live + 1, gaps)
    within = np.arange(len(begins)) - np.repeat(np.cumsum(gaps) - gaps, gaps)
    size = sum(segment.bytes for segment in segments)
    return BlockEntry(number, size, first, first_time, last, last_time, begins + within, len(live) if lifetimes else 0)


def _subjects(contents: Contents, blocks: Mapping[int, list[RowSegment]]) -> Iterator[tuple[bytes, int, int, int]]:
    """Iterates over the subjects: name, messages, numbers of the first and the last block with one of them."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for block, segments in blocks.items():
        for segment in segments:
            live = np.frombuffer(segment.sizes, np.uint32) > 0
            for number in np.unique(np.frombuffer(segment.subjects, np.uint32)[live]).tolist():
                first.setdefault(number, block)
                last[number] = block
    for name, entry in contents.subjects.items():
        yield name, entry.count, first[entry.number], last[entry.number]
