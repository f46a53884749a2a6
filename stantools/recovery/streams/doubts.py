"""Messages of which a directory no longer tells whether they were deleted.

A tombstone lies in the block that was the last one when the message was deleted. So bytes that are lost may have been
tombstones of all messages before them. An index that was written after them tells the deletions as well.

Facts: jetstream-store.md sections 4 to 6 and 17.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stantools.errors import StoreUnreadableError
from stantools.store.mapping import Buffer
from stantools.store.ranges import Ranges
from stantools.streamfiles.block_survey import BlockSurvey
from stantools.streamfiles.damage import Gap
from stantools.streamfiles.layout import (
    EMPTY_RECORD_SIZE,
    HASH_SIZE,
    MAX_RECORD_SIZE,
    MAX_SEQUENCE,
    TOMBSTONE,
)
from stantools.streamfiles.survey import StreamSurvey

#: index of one block, of 2.9
_OLD_INDEX: Final = ".idx"
_SEQUENCE_AT: Final = 4
_TIME_AT: Final = 12


def in_doubt(survey: StreamSurvey) -> Ranges:
    """Returns the sequences whose deletion may be forgotten."""
    directory = survey.directory
    known = directory.index
    if index_is_current(survey):
        return Ranges()
    everything = Ranges.of([(0, MAX_SEQUENCE)])
    if directory.config is not None and "compression" not in directory.config and not (known and known.version):
        # 2.9 tells deletions in the indexes of blocks alone
        return Ranges.union(
            each.sequences for each in survey.blocks if not each.file.path.with_suffix(_OLD_INDEX).exists()
        )
    if tail_is_missing(survey):
        return everything
    doubts: list[tuple[int, int]] = []
    last = 0
    for block in sorted(survey.blocks, key=lambda each: each.file.number):
        doubts += _of_block(survey, block, last)
        last = max(last, block.last)
    if survey.missing:
        doubts.append((0, survey.missing.last))
    return Ranges.of(doubts)


def index_is_current(survey: StreamSurvey) -> bool:
    """Returns whether `index.db` was written after all records that are there."""
    known = survey.directory.index
    if known is None or not known.version:
        return False
    if any(each.file.number > known.last_block and each.records for each in survey.blocks):
        return False
    last = next((each for each in survey.blocks if each.file.number == known.last_block), None)
    if last is None or not last.readable or known.last > max(each.last for each in survey.blocks):
        return True
    found, more = False, 0
    for batch in survey.all_records(last):
        for end in (batch.offset + batch.length).tolist():
            more += 1
            if bytes(batch.buffer[end - HASH_SIZE : end]) == known.last_hash:
                found, more = True, 0
    return not more if found else bool(last.gaps) or not last.file.size


def tail_is_missing(survey: StreamSurvey) -> bool:
    """Returns whether consumers were sent messages beyond the end of the stream."""
    lasts = [each.state.delivered[1] for each in survey.directory.consumers if each.state]
    return max(lasts, default=0) > survey.last


def _of_block(survey: StreamSurvey, block: BlockSurvey, last: int) -> Iterator[tuple[int, int]]:
    if not block.readable or not block.file.size:
        yield 0, max(last, block.last)
        return
    if not block.gaps:
        return
    try:
        with survey.directory.content(block.file) as content:
            if content.damaged_chunks:
                yield 0, max(last, block.last)
            for gap in block.gaps:
                forgotten = _tombstones(content.data, gap)
                if forgotten is None:
                    yield 0, max(last, gap.before, gap.after)
                else:
                    yield from ((each, each) for each in forgotten)
    except StoreUnreadableError:
        yield 0, max(last, block.last)


def _tombstones(data: Buffer | bytes, gap: Gap) -> list[int] | None:
    """Returns the sequences in damaged tombstones; None if it is not clear what the damaged bytes were."""
    found, at = [], gap.start
    while at + EMPTY_RECORD_SIZE <= gap.end:
        size = int.from_bytes(data[at : at + _SEQUENCE_AT], "little") & 0x7FFFFFFF
        sequence = int.from_bytes(data[at + _SEQUENCE_AT : at + _TIME_AT], "little")
        if not EMPTY_RECORD_SIZE <= size <= min(MAX_RECORD_SIZE, gap.end - at):
            return None
        if sequence & TOMBSTONE or size == EMPTY_RECORD_SIZE:
            found.append(sequence & MAX_SEQUENCE)
        at += size
    return found if at == gap.end else None
