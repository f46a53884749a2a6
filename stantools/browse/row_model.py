"""What a channel's slices consist of, as rows: stretches of messages, and notes where something is missing or wrong.

A stretch stands for any number of messages and takes a few numbers; only its gaps take more, eight bytes each. Rows are
found by arithmetic and by searching sorted numbers, never by going through messages.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from stantools.store.directory import SliceFiles
from stantools.store.ranges import Ranges

Positions = npt.NDArray[np.int64]
NO_POSITIONS: Positions = np.empty(0, np.int64)


class NoteKind(enum.StrEnum):
    """What a row says that is not a message."""

    GAP = "gap"  #: sequences of which nothing is there
    DAMAGE = "damage"  #: bytes that are no good record
    BACK = "back"  #: the sequence goes back: an earlier generation ends, or records are there again
    INDEX = "index"  #: something is wrong with an index
    NAMED = "named"  #: messages that only an index names
    UNINDEXED = "unindexed"  #: the index does not name the messages from here on
    FOREIGN = "foreign"  #: messages of another subject begin
    FILE = "file"  #: a file cannot be read
    PENDING = "pending"  #: messages that are not looked at yet


@dataclass(frozen=True)
class Note:
    """A row between the messages."""

    kind: NoteKind  #: what it says
    text: str  #: in words, without the sequences
    file: str = ""  #: the slice, without its directory; "" if it concerns none
    offset: int | None = None  #: first byte concerned, None if there is none
    length: int | None = None  #: bytes concerned
    first: int = 0  #: first sequence concerned, 0 if that is not known
    last: int = 0  #: last sequence concerned

    @property
    def messages(self) -> int:
        """How many sequences it concerns, 0 if that is not known."""
        return self.last - self.first + 1 if self.last else 0

    @property
    def sequences(self) -> str:
        """The sequences for people: `7`, `7–18`, or "" if they are not known."""
        if not self.last:
            return ""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"

    def sentence(self) -> str:
        """Returns what the row says: `12 missing (7–18)`, `damaged 81 bytes at msgs.2.dat:1234: …`."""
        if self.kind is NoteKind.GAP:
            return f"{self.messages:,} missing ({self.sequences})"
        if self.kind is NoteKind.DAMAGE:
            what = f"damaged {self.length or 0:,} bytes" if self.length != 1 else "damaged 1 byte"
            where = f" at {self.file}:{self.offset}" if self.offset is not None else f" in {self.file}"
            whose = f" (sequence {self.sequences})" if self.last else ""
            return f"{what}{where}{whose}: {self.text}"
        if self.kind is NoteKind.NAMED:
            which = f"message {self.sequences}" if self.messages == 1 else f"messages {self.sequences}"
            return f"only the index names {which}: {self.text}"
        return self.text


def gap(first: int, last: int) -> Note:
    """Returns the row for sequences that are not there."""
    return Note(NoteKind.GAP, "missing", first=first, last=last)


@dataclass(frozen=True)
class Stretch:
    """Messages that lie side by side in one slice, with one subject and strictly rising sequences."""

    files: SliceFiles  #: the slice
    subject: bytes  #: subject of the records
    count: int  #: how many messages
    start: int  #: offset of the first record
    end: int  #: offset behind the last one
    first: int  #: sequence of the first message
    last: int  #: sequence of the last one
    last_timestamp: int  #: of the last message, in nanoseconds
    #: Number of the first message's record in the index; None if the index is not to be used.
    index_from: int | None = None
    #: Positions of messages here and there, the first is 0; from there on the data can be read.
    marks: Positions = field(default_factory=lambda: NO_POSITIONS)
    offsets: Positions = field(default_factory=lambda: NO_POSITIONS)  #: offsets of the records at the marks
    #: Positions of the messages in front of which sequences are missing, rising.
    breaks: Positions = field(default_factory=lambda: NO_POSITIONS)

    @property
    def rows(self) -> int:
        """Rows that it takes: its messages and its gaps."""
        return self.count + len(self.breaks)

    def row_of(self, position: int) -> int:
        """Returns the row of a message, from the first row of the stretch."""
        return position + int(np.searchsorted(self.breaks, position, side="right"))

    def at_row(self, row: int) -> tuple[int, bool]:
        """Returns what is in a row: the position of a message and False, or of the message behind a gap and True."""
        breaks = self.breaks
        before = bisect_left(range(len(breaks)), row, key=lambda number: int(breaks[number]) + number)
        return row - before, before < len(breaks) and int(breaks[before]) + before == row


@dataclass(frozen=True)
class Proven:
    """A message whose record header is damaged and whose payload is proven by its CRC."""

    files: SliceFiles  #: the slice
    offset: int  #: of the damaged record
    start: int  #: offset of its payload
    size: int  #: the payload's true length in bytes
    sequence: int  #: of the message
    timestamp: int  #: of the message, in nanoseconds


Piece = Stretch | Proven | Note


@dataclass(frozen=True)
class SliceParts:
    """One slice as pieces."""

    name: str  #: name of its data file, or of its index if there is no other
    mark: tuple[int, ...]  #: differs once the files have changed: sizes, inodes, times of change
    pieces: tuple[Piece, ...]  #: in the order of the file
    exact: bool = True  #: everything that can be known is known: only a look at every record can still find damage


def joined(parts: list[SliceParts], channel: bytes) -> list[Piece]:
    """Puts slices together: between their pieces comes what is missing, what goes back, and where subjects change.

    Args:
        parts: The slices, by number.
        channel: The channel's name as stored in subjects.
    """
    pieces: list[Piece] = []
    subject, before = channel, 0
    since = 0  # where the notes begin that follow the last message of the channel
    for piece in (piece for part in parts for piece in part.pieces):
        if isinstance(piece, Note):
            if piece.kind is NoteKind.PENDING:
                before = 0
            pieces.append(piece)
            continue
        theirs = piece.subject if isinstance(piece, Stretch) else channel
        if theirs != subject:
            text = "messages of this channel again" if theirs == channel else "messages of another subject from here on"
            pieces.append(Note(NoteKind.FOREIGN, text, piece.files.name, _start(piece)))
            subject = theirs
        if theirs == channel:
            first = piece.first if isinstance(piece, Stretch) else piece.sequence
            if before:
                _between(pieces, since, before, first, piece)
            before = piece.last if isinstance(piece, Stretch) else piece.sequence
            since = len(pieces) + 1
        pieces.append(piece)
    return pieces


def _between(pieces: list[Piece], since: int, before: int, first: int, piece: Stretch | Proven) -> None:
    """Accounts for the sequences between two messages: what notes say of them stays, the rest is missing."""
    if first <= before:
        text = f"the sequence goes back from {before} to {first}"
        pieces.append(Note(NoteKind.BACK, text, piece.files.name, _start(piece)))
        return
    if first == before + 1:
        return
    notes = [(place, each) for place in range(since, len(pieces)) if isinstance(each := pieces[place], Note)]
    reported = Ranges.of((each.first, each.last) for _, each in notes if each.last)
    left = Ranges.of([(before + 1, first - 1)]) - reported
    if not left:
        return
    silent = [(place, each) for place, each in notes if each.kind is NoteKind.DAMAGE and not each.last]
    if silent:
        place, damage = silent[0]
        pieces[place] = replace(damage, first=left.first, last=left.last)
        return
    pieces.extend(gap(low, high) for low, high in left)


def _start(piece: Stretch | Proven) -> int:
    return piece.start if isinstance(piece, Stretch) else piece.offset
