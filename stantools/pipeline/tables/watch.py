"""One channel that a server may be writing: from where a stream continues, how far, and what it missed.

A position names a slice, a place in it and the last message before. Slices below it are done. Of the slices above it
all but the last one with messages are whole; the last one is read as far as `safe_end` says. What can have happened to
the files since the position was made:

* they grew, or new slices began: it continues where it was;
* limits removed slices that were not read: that is reported, and it continues with the first one that is there. Slices
  that an archive script is to fetch (`.bak`) are read from there;
* the last message that was read is not where it was: the files were cut back, replaced by a copy, rewritten. That is
  reported, and it continues with the first message that is later than the last one that was read.

A position cannot tell apart data files of the same slice number. Of several the one with the plain name is followed, as
the server writes that one, else the first by name; a `.bak` slice only where no other is. The rest is named (`aside`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE
from stantools.pipeline.tables.model import Piece, SliceRef, StoreRef
from stantools.pipeline.tables.positions import ANYWHERE, BEGINNING, REMOVED, REPLACED, Lost
from stantools.store.directory import SliceFiles, list_channel
from stantools.store.safe_end import UNKNOWN, Mark, Position, WatchedSlice, settling


@dataclass
class Allowance:
    """What may be taken; None is no limit."""

    bytes: int | None = None  #: of data files, about: one message at least is taken
    rows: int | None = None  #: messages
    files: int | None = None  #: slices

    @property
    def spent(self) -> bool:
        """Nothing is left of one of them."""
        return any(left is not None and left <= 0 for left in (self.bytes, self.rows, self.files))

    def share(self, of: int) -> Allowance:
        """Returns what one of several may take, when all may take the same."""
        return Allowance(*(None if left is None else -(-left // of) for left in (self.bytes, self.rows, self.files)))

    def pairs(self, other: Allowance) -> list[tuple[int | None, int | None]]:
        """Returns the values of two of them beside each other."""
        return [(self.bytes, other.bytes), (self.rows, other.rows), (self.files, other.files)]

    def take(self, size: int, rows: int, files: int) -> None:
        """Subtracts what was taken."""
        self.bytes = None if self.bytes is None else self.bytes - size
        self.rows = None if self.rows is None else self.rows - rows
        self.files = None if self.files is None else self.files - files


@dataclass
class ChannelWatch:
    """The slices of one channel as they are at this moment."""

    store: StoreRef
    name: str  #: the channel
    crc: Crc  #: the store's CRC
    archived: bool  #: begin with `.bak` slices, if there are any
    slices: dict[int, SliceFiles] = field(init=False)  #: what there is by number: the slice, else its archived copy
    #: The last slice with messages that is not archived; None if there is none.
    top: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Lists the channel.

        Raises:
            StoreUnreadableError: It cannot be listed.
        """
        files = list_channel(Path(self.store.root, self.name))
        self._channel = files.raw_name
        self.slices = {}
        self._aside: list[SliceFiles] = []
        for each in (*files.archived, *files.slices):
            have = self.slices.get(each.number)
            if have is None:
                self.slices[each.number] = each
            elif have.archived > each.archived or each.name == _plain_name(each):
                self.slices[each.number] = each
                self._aside.append(have)
            else:
                self._aside.append(each)
        for number in sorted(self.slices, reverse=True):
            if not self.slices[number].archived and self._has_messages(number):
                self.top = number
                break

    def begin(self) -> Position:
        """Returns the position before the first message there is."""
        for number in sorted(self.slices):
            if self.archived or not self.slices[number].archived:
                with self.open(number) as watched:
                    first = watched.first()
                return Position(number, FILE_HEADER_SIZE, first.sequence - 1 if first else UNKNOWN)
        return BEGINNING

    def latest(self) -> Position | None:
        """Returns the position behind the last message that can be read; None if there is none."""
        if self.top is None:
            return None
        with self.open(self.top) as watched:
            mark = watched.safe(FILE_HEADER_SIZE)
        return Position(self.top, *mark) if mark else Position(self.top, FILE_HEADER_SIZE, UNKNOWN)

    def resume(self, at: Position, until: int | None = None) -> tuple[Position | None, list[Lost]]:
        """Returns from where it continues after a position, and what can no longer be read.

        Args:
            at: The position.
            until: Sequence of the last message that is asked about, if not all are.

        Returns:
            The place, or None if there is nothing later in files that are not those that were read.
        """
        if at == ANYWHERE:
            return self.begin(), []
        if at.slice in self.slices:
            with self.open(at.slice) as watched:
                same = watched.continues(at)
                first = watched.first() if at == BEGINNING else None
            if first is not None and first.sequence > 1:
                return at, [self.removed(at, first.sequence - 1)]
            if same and (self.slices[at.slice].archived or self.top is None or at.slice <= self.top):
                return at, []
            if at.offset == FILE_HEADER_SIZE and self._ended_with(at):
                return at, []
            found, lost = self._by_time(at)
            natural = found is not None and found[:2] == at[:2] and at.offset == FILE_HEADER_SIZE
            return found, [] if natural else lost
        following = [n for n in sorted(self.slices) if n > at.slice and self._has_messages(n)]
        if not following:
            return self._by_time(at)
        with self.open(following[0]) as watched:
            first = watched.first()
        if first is not None and at.sequence >= 0:
            if first.sequence == at.sequence + 1:
                return Position(following[0], FILE_HEADER_SIZE, *at[2:]), []
            if first.sequence <= at.sequence:
                return self._by_time(at)
        last = first.sequence - 1 if first else None
        if until is not None and until >= 0:
            last = until if last is None else min(last, until)
        return Position(following[0], FILE_HEADER_SIZE, *at[2:]), [self.removed(at, last)]

    def aside(self, at: Position) -> dict[str, str]:
        """Returns data files that are not followed, each relative to the root with the name of the one that is instead.

        Archived slices are among them if they are asked for, or if the one that was being read became one while its
        number is used again.

        Args:
            at: Where the stream is.
        """
        found = {}
        for each in self._aside:
            if not each.archived or self.archived or self._was_being_read(each, at):
                found[f"{self.name}/{each.name}"] = self.slices[each.number].name
        return found

    def advance(self, at: Position, allowance: Allowance, until: Position | None = None) -> Position:
        """Returns how far it gets from a position.

        Args:
            at: The position.
            allowance: What may be taken; what is taken is subtracted.
            until: Not beyond this.
        """
        before = self.begin() if at == ANYWHERE else at
        begin, _ = self.resume(before)
        if begin is None:
            return before
        at = begin
        done: tuple[int, Mark] | None = None  # a slice that was taken whole
        for number in self._numbers(at):
            start = at.offset if number == at.slice else FILE_HEADER_SIZE
            final = number != self.top
            clipped = until is not None and number >= until.slice
            if allowance.spent or (until is not None and (number, start) >= (until.slice, until.offset)):
                break
            try:
                with self.open(number) as watched:
                    end = watched.whole() if final else watched.safe(start)
                    if end is None:
                        break
                    if until is not None and clipped and end.end > until.offset:
                        end = Mark(*until[1:])
                    reached = _take(watched, start, end, allowance)
            except StoreUnreadableError:
                if done is None:
                    raise
                break  # what comes before it is read first
            if reached == end and final and not (clipped and until is not None and end.end == until.offset):
                done = number, end
                continue
            return Position(number, *reached)
        if done is None:
            return before
        number, end = done
        return Position(number + 1, FILE_HEADER_SIZE, *end[1:])

    def backlog(self, at: Position) -> int:
        """Returns the bytes behind a position, complete or not."""
        return sum(
            max(self.slices[number].data_size - (at.offset if number == at.slice else FILE_HEADER_SIZE), 0)
            for number in self._numbers(at)
        )

    def settles(self) -> float:
        """Returns when the slice that grows will not have been written for a while, seconds since 1970; else never."""
        if self.top is None:
            return math.inf
        with self.open(self.top) as watched:
            return settling(watched.written)

    def has(self, path: str) -> bool:
        """Returns whether a data file was there."""
        return any(str(each.data) == path for each in self.slices.values())

    def grows(self) -> tuple[str, str, str]:
        """Returns the files in which something new shows: data and index that grow, and the next data file."""
        directory = f"{self.store.root}/{self.name}"
        number = self.top if self.top is not None else 1
        following = self._next(number)
        paths = []
        for each in (number, following):
            files = self.slices.get(each)
            paths.append(str(files.data) if files else f"{directory}/msgs.{each}.dat")
        return paths[0], f"{directory}/msgs.{number}.idx", paths[1]

    def between(self, start: Position, end: Position) -> list[Piece | Lost]:
        """Returns what lies between two positions, in order, and what of it cannot be read any more."""
        at, lost = self.resume(start, end.sequence)
        if at is None:
            return [self.removed(start, end.sequence if end.sequence > start.sequence else None)]
        found: list[Piece | Lost] = list(lost)
        before: int | None = None
        for number in self._numbers(at):
            if number > end.slice:
                break
            if before is not None and number > before + 1:
                found += self._hole(before, number)
            before = number
            begin = at.offset if number == at.slice else FILE_HEADER_SIZE
            with self.open(number) as watched:
                stop = watched.size
                if number == end.slice:
                    if end.offset > FILE_HEADER_SIZE and not watched.continues(end):
                        last = end.sequence if end.sequence > start.sequence else None
                        found += [self.removed(start, last)] if not lost else []
                        break
                    stop = end.offset
            if stop > begin:
                found.append(Piece(self._ref(number, stop), begin, stop))
        if at.slice <= end.slice and end.slice not in self.slices and end.offset > FILE_HEADER_SIZE and not lost:
            found.append(self.removed(Position(end.slice, FILE_HEADER_SIZE, UNKNOWN), None))
        return found

    def open(self, number: int) -> WatchedSlice:
        """Opens a slice for a look.

        Raises:
            StoreUnreadableError: It cannot be read, or is gone.
        """
        return self._opened(self.slices[number])

    def _opened(self, files: SliceFiles) -> WatchedSlice:
        assert files.data is not None
        try:
            index = str(files.index) if files.index else None
            return WatchedSlice(str(files.data), index, self._channel, self.crc)
        except FileNotFoundError as error:
            raise StoreUnreadableError(f"{files.data}: is gone since it was listed", "look again") from error

    def removed(self, at: Position, last: int | None) -> Lost:
        """Says that messages behind a position are gone."""
        first = at.sequence + 1 if at.sequence >= 0 else None
        what = "messages" if first is None else f"message {first}"
        if first is not None and last is not None:
            what = f"message {first}" if first == last else f"messages {first} to {last}"
        return Lost(
            self.store.root,
            self.name,
            REMOVED,
            f"{self.name}/msgs.{at.slice}.dat",
            first,
            at.offset,
            None,
            f"{self.store.root}/{self.name}: {what} were removed before they were read",
        )

    # Inside.

    def _numbers(self, at: Position) -> list[int]:
        """Returns the slices that are to be read from a position on."""
        top = self.top
        return [
            n
            for n in sorted(self.slices)
            if n >= at.slice and ((top is not None and n <= top) or self.slices[n].archived)
        ]

    def _ended_with(self, at: Position) -> bool:
        """Returns whether the slice before the one that comes next ends with the last message that was read."""
        if at.slice - 1 not in self.slices or (self.top is not None and at.slice > self.top):
            return False
        with self.open(at.slice - 1) as watched:
            return watched.whole()[1:] == at[2:]

    def _hole(self, before: int, number: int) -> list[Lost]:
        """Says what is missing between two slices with a number in between that is not there."""
        with self.open(before) as watched:
            sequence = watched.whole().sequence
        with self.open(number) as watched:
            first = watched.first()
        if sequence < 0 or first is None or first.sequence <= sequence + 1:
            return []
        return [self.removed(Position(before + 1, FILE_HEADER_SIZE, sequence), first.sequence - 1)]

    def _was_being_read(self, archived: SliceFiles, at: Position) -> bool:
        """Returns whether a stream was in the middle of a slice that was archived, and has something left of it."""
        if archived.number != at.slice or at.offset <= FILE_HEADER_SIZE or archived.data_size <= at.offset:
            return False
        with self._opened(archived) as then, self.open(at.slice) as now:
            return then.continues(at) and not now.continues(at)

    def _next(self, number: int) -> int:
        return min((n for n in self.slices if n > number), default=number + 1)

    def _has_messages(self, number: int) -> bool:
        files = self.slices[number]
        if files.data_size <= FILE_HEADER_SIZE:
            return False
        if files.index_size >= FILE_HEADER_SIZE + INDEX_RECORD_SIZE:
            return True
        try:
            with self.open(number) as watched:
                return watched.first() is not None
        except StoreUnreadableError:
            return True  # reading it reports it

    def _by_time(self, at: Position) -> tuple[Position | None, list[Lost]]:
        """Goes on with the first message that is later than the last one that was read, if there is one."""
        for number in sorted(self.slices):
            if self.slices[number].archived and number < at.slice:
                continue
            with self.open(number) as watched:
                mark = watched.indexed()
                older = mark is not None and (mark.timestamp, mark.sequence) <= (at.timestamp, at.sequence)
                if mark is not None and older and mark.end == watched.size:
                    continue
                offset = watched.behind(at)
            if offset is not None:
                return Position(number, offset, *at[2:]), [self._replaced(at, number, offset)]
        return None, []

    def _replaced(self, at: Position, number: int, offset: int) -> Lost:
        name = f"{self.name}/{self.slices[number].name}"
        return Lost(
            self.store.root,
            self.name,
            REPLACED,
            name,
            None,
            offset,
            None,
            f"{self.store.root}/{self.name}: message {at.sequence}, the last one that was read, does not end at offset "
            f"{at.offset} of msgs.{at.slice}.dat any more; goes on with later ones, in {name} at offset {offset}",
        )

    def _ref(self, number: int, size: int) -> SliceRef:
        files = self.slices[number]
        return SliceRef(
            self.store,
            self.name,
            number,
            files.archived,
            str(files.data),
            str(files.index) if files.index else None,
            size,
            files.index_size,
        )


def _plain_name(files: SliceFiles) -> str:
    return f"msgs.{files.number}.dat" + (".bak" if files.archived else "")


def _take(watched: WatchedSlice, start: int, end: Mark, allowance: Allowance) -> Mark:
    """Takes of a slice what is allowed, at least a message, and returns the place reached."""
    if allowance.rows is None and (allowance.bytes is None or end.end - start <= allowance.bytes):
        allowance.take(end.end - start, 0, 1)
        return end
    place = end
    while start < end.end:
        mark, rows = watched.part(start, end.end, allowance.bytes, allowance.rows)
        place = mark if mark is not None and mark.end < end.end else end
        allowance.take(place.end - start, rows, 0)
        start = place.end
        if allowance.spent:
            break
    allowance.take(0, 0, 1)
    return place
