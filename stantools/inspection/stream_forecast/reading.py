"""Lookups of messages in a stream that has started, one after the other, and a delivery from its beginning.

A block whose state is known from an index is read when the first message of it is wanted. Facts: jetstream-store.md
sections 13 and 16.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.inspection.stream_forecast.blocks import PlacedRecords, ServerBlock, place_records
from stantools.inspection.stream_forecast.recovery import RecoveredStream, ServerPanic
from stantools.store.ranges import Ranges
from stantools.streamfiles.layout import ArchiveError

#: sequences in a row that a server enters one by one into a table, for a wrong sequence; more end its memory
MAX_SPAN: Final = 1 << 24
_TOMBSTONE_FLAG: Final = 1


class ServerHangs(Exception):  # noqa: N818
    """The server fills its memory with a table of missing sequences."""


@dataclass
class StreamReading:
    """The outcome of lookups of all messages, and of a delivery from the first one on."""

    readable: Ranges = field(default_factory=Ranges)
    delivered: Ranges = field(default_factory=Ranges)
    stops: bool = False  #: the delivery stops here


class BlockReader:
    """Reads the blocks of a store at their first use, as lookups do."""

    def __init__(self, store: RecoveredStream) -> None:
        self.store = store
        self.panics = False  #: the lookup of a message ends the process
        self._found: dict[int, tuple[Ranges, Ranges | None]] = {}

    def found(self, block: ServerBlock) -> tuple[Ranges, Ranges | None]:
        """Returns what lookups find of a block's messages, and what a delivery finds; None if that stops there."""
        if block.number not in self._found:
            self._found[block.number] = self._read(block)
        return self._found[block.number]

    def touch(self, block: ServerBlock) -> bool:
        """Reads a block for another reason than a lookup; False if that fails at first."""
        if not block.messages or block.number in self._found:
            return True
        found, delivered = self._read(block)
        self._found[block.number] = (found if delivered is None else delivered, delivered)
        return found == delivered

    def countable(self, block: ServerBlock) -> Ranges:
        """Returns the messages of a block that a consumer counts."""
        return self._found[block.number][0] if block.number in self._found else block.live

    def _read(self, block: ServerBlock) -> tuple[Ranges, Ranges | None]:
        store, live = self.store, block.live
        if not live:
            return Ranges(), Ranges()
        if block.spoiled:
            return Ranges(), None
        if not block.unproven:
            return live, live
        try:
            with store.content(block) as data:
                placed = place_records(data, store.key_of(block), with_headers=store.rules.checks_places)
                size = len(data)
        except NotPermittedError:
            raise
        except FileNotFoundError:
            return Ranges(), Ranges()
        except (ArchiveError, StoreUnreadableError):
            if not store.path(block).exists():
                store.forget(block)
                return Ranges(), Ranges()
            return Ranges(), None
        if not size:
            if not store.rules.forgets_empty:
                store.warn(f"Filestore [{store.stream.name}] Cache lookup detected no cache: no cache")
                return Ranges(), None
            store.forget(block)
            return Ranges(), Ranges()
        contradicts = store.rules.checks_places and placed.begins_elsewhere(block)
        if not contradicts and placed.longest_step(block) > MAX_SPAN:
            raise ServerHangs
        contradicts = contradicts or (store.rules.checks_places and placed.contradicts(block))
        if placed.corrupt_at is not None or contradicts:
            if placed.corrupt_at is not None:
                store.warn(
                    f"Filestore [{store.stream.name}] indexCacheBuf corrupt record state in {store.path(block)}: "
                    f"{placed.corrupt_text}"
                )
            store.rebuild_late(block)
            kept = block.live
            first = Ranges() if store.rules.repeats_lookup else Ranges.of([(live.first, live.first)])
            return kept - first, kept
        found = self._places(block, placed) & live
        self.panics = self.panics or (bool(placed.beyond) and store.rules.panics_on_header_length)
        return found, found

    def _places(self, block: ServerBlock, placed: PlacedRecords) -> Ranges:
        """Returns the sequences at whose place in the table their own record with a right hash lies."""
        numbers = np.concatenate(placed.sequence)
        flags = np.concatenate(placed.flags)
        right = np.ones(len(numbers), np.bool_)
        right[placed.wrong] = False
        own = (flags & _TOMBSTONE_FLAG == 0) & (numbers >= block.first)
        numbers, right, flags = numbers[own], right[own], flags[own]
        if not len(numbers):
            return Ranges()
        if self.store.rules.keeps_places:
            # the sequences that are left out count as deleted from now on
            kept = np.maximum.accumulate(numbers) == numbers
            left_out = Ranges.of([(block.first, block.last)]) - Ranges.from_sequences(np.unique(numbers[kept]))
            block.deleted = block.deleted | left_out
        steps = np.diff(numbers.astype(np.int64), prepend=np.int64(block.first) - 1)
        good = right & (flags == 0)
        if bool((steps > 0).all()):
            return Ranges.from_sequences(numbers[good])
        # The table grows by one place for each record, after the places of the sequences that are left out.
        places: dict[int, int] = {}
        length = 0
        for row, sequence in enumerate(numbers.tolist()):
            slot = sequence - block.first
            if slot < length and self.store.rules.keeps_places:
                continue
            length = max(length, slot)
            places[length] = row
            length += 1
        found = [
            block.first + place
            for place, row in places.items()
            if good[row] and int(numbers[row]) == block.first + place
        ]
        return Ranges.of((each, each) for each in found)


def read_stream(store: RecoveredStream, reader: BlockReader) -> StreamReading:
    """Looks up every message, then delivers from the first one on."""
    reading = StreamReading()
    blocks = [each for each in store.blocks if each.messages]
    results = [reader.found(block) for block in blocks]
    if reader.panics:
        raise ServerPanic("runtime error: slice bounds out of range")
    reading.readable = Ranges.union(found for found, _ in results)
    delivered = []
    for _, found in results:
        if found is None:
            reading.stops = True
            break
        delivered.append(found)
    reading.delivered = Ranges.union(delivered)
    return reading
