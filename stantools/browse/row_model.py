"""A channel's slices as rows: runs of messages, and notes on missing and damaged parts.

A run stands for any number of messages and takes a few numbers; only its gaps take more, eight bytes each. Rows are
found by arithmetic and by searching sorted numbers, never by reading messages.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stantools.format.layout import Flag
from stantools.store.growing_channel import Sign
from stantools.store.ranges import Ranges

Positions = npt.NDArray[np.int64]
NO_POSITIONS: Positions = np.empty(0, np.int64)


class RowNoteKind(enum.StrEnum):
    GAP = "gap"  #: sequences without any byte
    DELETED = "deleted"  #: sequences of messages that were deleted
    DAMAGE = "damage"  #: bytes that are not a good record
    BACK = "back"  #: the sequence goes back: an earlier generation ends, or records are repeated
    INDEX = "index"  #: an index is wrong
    NAMED = "named"  #: messages that only an index names
    UNINDEXED = "unindexed"  #: the index does not name the messages from here on
    FOREIGN = "foreign"  #: messages of another subject begin
    FILE = "file"  #: a file cannot be read
    PENDING = "pending"  #: messages that are not read yet


@dataclass(frozen=True)
class RowNote:
    """A row between the messages."""

    kind: RowNoteKind
    text: str  #: in words, without the sequences
    file: str = ""  #: the slice, without its directory; "" if there is none
    offset: int | None = None  #: first byte, None if there is none
    length: int | None = None  #: number of bytes
    first: int = 0  #: first sequence, 0 if unknown
    last: int = 0  #: last sequence

    @property
    def messages(self) -> int:
        """Number of sequences, 0 if unknown."""
        return self.last - self.first + 1 if self.last else 0

    @property
    def sequences(self) -> str:
        """The sequences for people: `7`, `7–18`, or "" if unknown."""
        if not self.last:
            return ""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"

    def sentence(self) -> str:
        """Returns the text of the row: `12 missing (7–18)`, `damaged 81 bytes at msgs.2.dat:1234: …`."""
        if self.kind in (RowNoteKind.GAP, RowNoteKind.DELETED):
            return f"{self.messages:,} {self.text} ({self.sequences})"
        if self.kind is RowNoteKind.DAMAGE:
            what = f"damaged {self.length or 0:,} bytes" if self.length != 1 else "damaged 1 byte"
            where = f" at {self.file}:{self.offset}" if self.offset is not None else f" in {self.file}"
            whose = f" (sequence {self.sequences})" if self.last else ""
            return f"{what}{where}{whose}: {self.text}"
        if self.kind is RowNoteKind.NAMED:
            which = f"message {self.sequences}" if self.messages == 1 else f"messages {self.sequences}"
            return f"only the index names {which}: {self.text}"
        return self.text


def gap(first: int, last: int) -> RowNote:
    """Returns the row for missing sequences."""
    return RowNote(RowNoteKind.GAP, "missing", first=first, last=last)


class StretchFile(Protocol):
    """The slice or block that holds a run."""

    @property
    def name(self) -> str: ...

    @property
    def data(self) -> Path | None: ...

    @property
    def index(self) -> Path | None: ...


@dataclass(frozen=True)
class MessageStretch:
    """Consecutive messages of one slice or block, with strictly rising sequences."""

    files: StretchFile
    subject: bytes  #: subject of the records; empty if each has its own
    count: int  #: number of messages
    start: int  #: offset of the first record
    end: int  #: offset after the last one
    first: int  #: sequence of the first message
    last: int  #: sequence of the last one
    last_timestamp: int  #: of the last message, in nanoseconds
    #: Number of the first message's record in the index; None if the index is not used.
    index_from: int | None = None
    #: Positions of some messages, the first is 0, from which the data can be read.
    marks: Positions = field(default_factory=lambda: NO_POSITIONS)
    offsets: Positions = field(default_factory=lambda: NO_POSITIONS)  #: offsets of the records at the marks
    #: Positions of the messages before which sequences are missing, rising.
    breaks: Positions = field(default_factory=lambda: NO_POSITIONS)

    @property
    def rows(self) -> int:
        """Number of rows: its messages and its gaps."""
        return self.count + len(self.breaks)

    def row_of(self, position: int) -> int:
        """Returns the row of a message, counted from the first row of the run."""
        return position + int(np.searchsorted(self.breaks, position, side="right"))

    def at_row(self, row: int) -> tuple[int, bool]:
        """Returns the position of a message and False, or the position of the message after a gap and True."""
        breaks = self.breaks
        before = bisect_left(range(len(breaks)), row, key=lambda number: int(breaks[number]) + number)
        return row - before, before < len(breaks) and int(breaks[before]) + before == row


@dataclass(frozen=True)
class ProvenMessage:
    """A message whose record header is damaged and whose payload is proven by its CRC."""

    files: StretchFile
    offset: int  #: offset of the damaged record
    start: int  #: offset of its payload
    size: int  #: true length of the payload in bytes
    sequence: int
    timestamp: int  #: nanoseconds since 1970


@dataclass(frozen=True, slots=True)
class WindowMessage:
    """A message in a row."""

    sequence: int
    timestamp: int  #: nanoseconds since 1970
    subject: bytes  #: as stored
    reply: bytes  #: reply subject, empty if there is none
    data: bytes  #: payload, decrypted if a key was given and fits; only its beginning if `whole` is False
    size: int  #: bytes of the payload as stored
    file: str  #: the slice, without its directory
    offset: int  #: of its record
    record_size: int  #: bytes of the record without its header
    crc: int  #: CRC in the record's header; of a record in a stream's block, its hash
    flags: Flag  #: properties of the record
    error: str = ""  #: reason why the payload could not be decrypted, else ""
    encrypted: bool = False  #: it was decrypted, or seems to be encrypted
    whole: bool = True  #: all of the record was read, and it is good
    proven: bool = False  #: the record's header is damaged, its payload is good
    headers: bytes | None = None  #: header block of a message in a stream; None in a channel


Row = WindowMessage | RowNote
Piece = MessageStretch | ProvenMessage | RowNote


@dataclass(frozen=True)
class SliceParts:
    name: str  #: name of its data file, or of its index if there is no other
    mark: tuple[Sign, ...]  #: state of its files, to detect a change; () for none
    pieces: tuple[Piece, ...]  #: in the order of the file
    exact: bool = True  #: the pieces are final, except for damage that only reading every record reveals


def joined(parts: list[SliceParts], channel: bytes, absent: Callable[[int, int], RowNote] = gap) -> list[Piece]:
    """Joins slices (by number), with notes between them on missing sequences, repetitions and changes of the subject.

    `channel` is the name as stored in subjects; `absent` makes the row for sequences without a message.
    """
    pieces: list[Piece] = []
    subject, before = channel, 0
    since = 0  # index of the first note after the last message of the channel
    for piece in (piece for part in parts for piece in part.pieces):
        if isinstance(piece, RowNote):
            if piece.kind is RowNoteKind.PENDING:
                before = 0
            pieces.append(piece)
            continue
        theirs = piece.subject if isinstance(piece, MessageStretch) else channel
        if theirs != subject:
            text = "messages of this channel again" if theirs == channel else "messages of another subject from here on"
            pieces.append(RowNote(RowNoteKind.FOREIGN, text, piece.files.name, _start(piece)))
            subject = theirs
        if theirs == channel:
            first = piece.first if isinstance(piece, MessageStretch) else piece.sequence
            if before:
                _between(pieces, since, before, first, piece, absent)
            before = piece.last if isinstance(piece, MessageStretch) else piece.sequence
            since = len(pieces) + 1
        pieces.append(piece)
    return pieces


def _between(
    pieces: list[Piece],
    since: int,
    before: int,
    first: int,
    piece: MessageStretch | ProvenMessage,
    absent: Callable[[int, int], RowNote],
) -> None:
    """Accounts for the sequences between two messages: those in notes stay, the rest is missing."""
    if first <= before:
        text = f"the sequence goes back from {before} to {first}"
        pieces.append(RowNote(RowNoteKind.BACK, text, piece.files.name, _start(piece)))
        return
    if first == before + 1:
        return
    notes = [(place, each) for place in range(since, len(pieces)) if isinstance(each := pieces[place], RowNote)]
    reported = Ranges.of((each.first, each.last) for _, each in notes if each.last)
    left = Ranges.of([(before + 1, first - 1)]) - reported
    if not left:
        return
    silent = [(place, each) for place, each in notes if each.kind is RowNoteKind.DAMAGE and not each.last]
    if silent:
        place, damage = silent[0]
        pieces[place] = replace(damage, first=left.first, last=left.last)
        return
    pieces.extend(absent(low, high) for low, high in left)


def _start(piece: MessageStretch | ProvenMessage) -> int:
    return piece.start if isinstance(piece, MessageStretch) else piece.offset
