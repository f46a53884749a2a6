"""A block of messages as a nats-server reads it: at a rebuild up to the first bad record, later by places.

Facts: jetstream-store.md sections 3, 4, 6 and 16.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.store.mapping import Buffer
from stantools.store.ranges import Ranges
from stantools.streamfiles import kernels
from stantools.streamfiles.layout import (
    EMPTY_RECORD_SIZE,
    HAS_HEADERS,
    HASH_SIZE,
    HEADER_LENGTH_SIZE,
    MAX_RECORD_SIZE,
    MAX_SEQUENCE,
    TOMBSTONE,
    RecordFlaw,
)
from stantools.streamfiles.record_batch import RecordBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS: Final = 65536
#: rows whose subjects are found faster one by one
_FEW_ROWS: Final = 64
_TOMBSTONE_FLAG: Final = 1


class BlockStop(enum.Enum):
    """Reasons of the end of a server's walk through a block."""

    END = enum.auto()
    BAD_LENGTH = enum.auto()
    BAD_HASH = enum.auto()


@dataclass(slots=True)
class RebuiltRecords:
    """The records of a block up to the first one that a rebuild does not accept."""

    sequence: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    length: NDArray[np.uint32]
    timestamp: NDArray[np.int64]
    subject: NDArray[np.uint64]  #: hash of each subject
    end: int  #: bytes of the records
    size: int  #: bytes of the block
    stop: BlockStop = BlockStop.END
    subjects: dict[int, bytes] = field(default_factory=dict)  #: text of each subject, by its hash
    headers_without_room: bool = False  #: the bad record claims headers and has no room for them

    def continuous(self, first: int) -> bool:
        """Returns whether they are messages with rising sequences without gaps, none before `first`."""
        numbers = self.sequence
        return (
            len(numbers) > 0
            and int(numbers[0]) >= first
            and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
            and not self.flags.any()
            and bool((numbers[1:] > numbers[:-1]).all())
        )


def rebuild_records(data: Buffer | bytes, key: bytes) -> RebuiltRecords:
    """Reads a block as a rebuild does."""
    parts: list[RecordBatch] = []
    hashes = [np.zeros(0, np.uint64)]
    position, stop, bare = 0, BlockStop.END, False
    subjects: dict[int, bytes] = {}
    flaw = RecordFlaw.FULL
    while flaw is RecordFlaw.FULL:
        batch, position, flaw = RecordBatch.read(data, position, key)
        parts.append(batch)
        hashes.append(batch.subject_hashes())
        many = len(batch) > _FEW_ROWS
        for row in np.unique(hashes[-1], return_index=True)[1].tolist() if many else range(len(batch)):
            if (subject := int(hashes[-1][row])) not in subjects:
                subjects[subject] = batch.subject(row)
        if flaw not in (RecordFlaw.FULL, RecordFlaw.NONE):
            odd = _RawRecord.at(data, position)
            bare = odd.headers and odd.size < EMPTY_RECORD_SIZE + odd.subject_size + HEADER_LENGTH_SIZE
            bare = bare and EMPTY_RECORD_SIZE + odd.subject_size <= odd.size <= len(data) - position
            stop = BlockStop.BAD_HASH if flaw is RecordFlaw.BAD_HASH else BlockStop.BAD_LENGTH
    return RebuiltRecords(
        np.concatenate([each.sequence for each in parts]),
        np.concatenate([each.flags for each in parts]),
        np.concatenate([each.length for each in parts]),
        np.concatenate([each.timestamp for each in parts]),
        np.concatenate(hashes),
        end=position,
        size=len(data),
        stop=stop,
        subjects=subjects,
        headers_without_room=bare,
    )


@dataclass(frozen=True, slots=True)
class _RawRecord:
    """The sizes and the sequence of a record, unproven."""

    size: int
    headers: bool
    sequence: int  #: with its flags
    subject_size: int

    @classmethod
    def at(cls, data: Buffer | bytes, position: int) -> _RawRecord:
        head = bytes(data[position : position + 22]).ljust(22, b"\0")
        word = int.from_bytes(head[:4], "little")
        return cls(
            word & ~HAS_HEADERS,
            bool(word & HAS_HEADERS),
            int.from_bytes(head[4:12], "little"),
            int.from_bytes(head[20:22], "little"),
        )

    def is_whole(self, left: int, *, with_headers: bool) -> bool:
        """Returns whether its sizes are possible, for a server that builds a table of places."""
        least = EMPTY_RECORD_SIZE + self.subject_size + (HEADER_LENGTH_SIZE if with_headers and self.headers else 0)
        return least <= self.size <= min(left, MAX_RECORD_SIZE)

    def is_right(self, data: Buffer | bytes, position: int, key: bytes) -> bool:
        """Returns whether the hash of a record with headers is right, which does not cover their size."""
        record = bytes(data[position : position + self.size])
        rest = 22 + self.subject_size
        text = record[4:20] + record[22:rest] + record[rest + HEADER_LENGTH_SIZE : -HASH_SIZE]
        return kernels.hash64(text, key) == int.from_bytes(record[-HASH_SIZE:], "little")


@dataclass(slots=True)
class PlacedRecords:
    """The records of a block in the order of their places, whether their hash is right or not."""

    sequence: list[NDArray[np.uint64]] = field(default_factory=list)
    flags: list[NDArray[np.uint8]] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)  #: rows with another hash than their content
    corrupt_at: int | None = None  #: where a record with impossible sizes begins
    corrupt_text: str = ""  #: its sizes, in a server's words
    rows: int = 0
    #: rows whose headers end beyond the record, although its hash is right
    beyond: list[int] = field(default_factory=list)

    def add(self, sequence: NDArray[np.uint64], flags: NDArray[np.uint8]) -> None:
        self.sequence.append(sequence)
        self.flags.append(flags)
        self.rows += len(sequence)

    def longest_step(self, block: ServerBlock) -> int:
        """Returns the greatest distance from one record's sequence to that of the next one."""
        longest, last = 0, block.first - 1
        for numbers, flags in zip(self.sequence, self.flags, strict=True):
            own = numbers[(flags & _TOMBSTONE_FLAG == 0) & (numbers >= block.first)].astype(np.int64)
            if len(own):
                longest, last = max(longest, int(np.diff(own, prepend=last).max())), int(own[-1])
        return longest

    def begins_elsewhere(self, block: ServerBlock) -> bool:
        """Returns whether another record than the first message of a block comes first."""
        for numbers, flags in zip(self.sequence, self.flags, strict=True):
            own = np.flatnonzero((flags & _TOMBSTONE_FLAG == 0) & (numbers >= block.first))
            if len(own):
                return int(numbers[own[0]]) != block.first or bool(flags[own[0]])
        return False

    def contradicts(self, block: ServerBlock) -> bool:
        """Returns whether the records are others than the state of a block allows."""
        for numbers, flags in zip(self.sequence, self.flags, strict=True):
            own = (flags & _TOMBSTONE_FLAG == 0) & (numbers >= block.first)
            erased = numbers[own & (flags > _TOMBSTONE_FLAG)]
            if int(numbers[own].max(initial=0)) > block.last or not bool(block.deleted.select(erased).all()):
                return True
        return False


def place_records(data: Buffer | bytes, key: bytes, *, with_headers: bool) -> PlacedRecords:
    """Reads a block as a server does that knows its state from an index: hashes are checked at a lookup.

    `with_headers`: the size of a record has to leave room for that of its headers.
    """
    placed, position = PlacedRecords(), 0
    while position < len(data):
        batch, position, flaw = RecordBatch.read(data, position, key)
        placed.add(batch.sequence.copy(), batch.flags.copy())
        if flaw is RecordFlaw.NONE:
            break
        if flaw is RecordFlaw.FULL:
            continue
        odd = _RawRecord.at(data, position)
        if not odd.is_whole(len(data) - position, with_headers=with_headers):
            placed.corrupt_at = position
            placed.corrupt_text = (
                f"dlen {odd.size - 22} slen {odd.subject_size} index {position} rl {odd.size} lbuf {len(data)}"
            )
            break
        placed.wrong.append(placed.rows)
        if (
            odd.headers
            and flaw is RecordFlaw.BAD_LENGTH
            and not odd.sequence & TOMBSTONE
            and odd.is_right(data, position, key)
        ):
            placed.beyond.append(placed.rows)
        placed.add(
            np.array([odd.sequence & MAX_SEQUENCE], np.uint64),
            np.array([odd.sequence >> 62], np.uint8),
        )
        position += odd.size
    return placed


@dataclass(slots=True, eq=False)
class ServerBlock:
    """A block in a server's memory."""

    number: int
    size: int  #: of its file
    first: int = 0  #: sequence of the first message; the one after `last` without messages
    last: int = 0  #: the last sequence that it covers
    first_time: int = 0
    last_time: int = 0
    bytes: int = 0  #: of its messages' records
    deleted: Ranges = field(default_factory=Ranges)  #: sequences without message between them
    messages: int = 0
    remembered: Ranges = field(default_factory=Ranges)  #: deleted sequences from before a late rebuild
    spoiled: bool = False  #: it is compressed, and was cut as if it were not
    unproven: bool = False  #: its state is that of an index; its records have not been read

    @property
    def live(self) -> Ranges:
        if self.first > self.last:
            return Ranges()
        return Ranges.of([(self.first, self.last)]) - self.deleted

    def apply(self, records: RebuiltRecords, *, counts_twice: bool) -> NDArray[np.uint64]:
        """Takes the state from records; returns the tombstones among them."""
        self.unproven = False
        if not self.deleted and records.continuous(self.first):
            numbers = records.sequence
            self.messages, self.bytes = len(numbers), int(records.length.sum())
            self.first, self.first_time = int(numbers[0]), int(records.timestamp[0])
            self.last, self.last_time = int(numbers[-1]), int(records.timestamp[-1])
            return numbers[:0]
        deletes = records.flags == _TOMBSTONE_FLAG
        tombstones: NDArray[np.uint64] = records.sequence[deletes]
        own = ~deletes
        numbers, erased = records.sequence[own], records.flags[own] > _TOMBSTONE_FLAG
        lengths, times = records.length[own], records.timestamp[own]
        head = self.first
        inside = numbers >= head
        if not bool(inside.all()):
            numbers, erased, lengths, times = numbers[inside], erased[inside], lengths[inside], times[inside]
        message = ~erased
        if self.deleted:
            message &= ~self.deleted.select(numbers)
        if counts_twice:
            counted = message
        else:
            rising = np.ones(len(numbers), np.bool_)
            if len(numbers) > 1:
                rising[1:] = numbers[1:] > np.maximum.accumulate(numbers)[:-1]
            counted = message & rising
        self.messages, self.bytes = int(np.count_nonzero(counted)), int(lengths[counted].sum())
        live = Ranges.from_sequences(np.unique(numbers[message])) if bool(message.any()) else Ranges()
        if len(numbers):
            place = len(numbers) - 1 if counts_twice else int(numbers.argmax())
            self.last, self.last_time = int(numbers[place]), int(times[place])
        else:
            self.last = self.last_time = 0
        live = live & Ranges.of([(0, self.last)])
        if live:
            self.first = live.first
            self.first_time = int(times[message][numbers[message].argmin()])
            self.deleted = Ranges.of([(self.first, self.last)]) - live
        else:
            self.first, self.first_time, self.deleted = max(self.last + 1 if self.last else 0, head), 0, Ranges()
            if self.first:
                self.last = self.first - 1
            elif len(tombstones):
                row = int(tombstones.argmin())
                self.first, self.last = int(tombstones[row]) + 1, int(tombstones[row])
                self.last_time = int(records.timestamp[deletes][row])
        return tombstones

    def remove(self, gone: Ranges, lengths: int) -> None:
        """Removes messages with records of `lengths` bytes."""
        live = self.live - gone
        self.messages -= (self.live & gone).count()
        self.bytes -= lengths
        if live:
            self.first = live.first
            self.deleted = Ranges.of([(self.first, self.last)]) - live
        else:
            self.first, self.deleted, self.messages = self.last + 1, Ranges(), 0
