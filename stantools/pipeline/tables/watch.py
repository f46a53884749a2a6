"""One channel that a server may be writing: where a stream continues, how far it can read, and its losses.

A position names a slice, an offset in it and the last message before. Lower slices are done. Of the higher slices,
all but the last one with messages are whole; the last one is read up to `safe_end`. Since the position was made,

* the files may have grown, or new slices begun: the stream continues at its position;
* limits may have removed unread slices: the loss is reported, and the stream continues with the first slice that
  exists. Slices that await an archive script (`.bak`) are read from there;
* the last message read may no longer be at its offset: the files were cut back, replaced by a copy, or rewritten.
  That is reported, and the stream continues with the first message later than the last one read.

A position does not distinguish data files of the same slice number. The stream follows the one with the plain name,
which the server writes, else the first by name; a `.bak` slice only if it is the only one. `aside` names the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.pipeline.tables.model import SlicePiece, SliceRef, StoreRef
from stantools.pipeline.tables.positions import ANYWHERE, BEGINNING, REMOVED, REPLACED, LostRange
from stantools.store.directory import SliceFiles, list_channel
from stantools.store.safe_end import (
    UNKNOWN,
    ChannelPosition,
    SlicePosition,
    WatchedSlice,
    growing_slice,
    has_messages,
    settling,
)


@dataclass
class ReadAllowance:
    """Budget of a read; None is no limit."""

    bytes: int | None = None  #: bytes of data files, about; at least one message is taken
    rows: int | None = None
    files: int | None = None

    @property
    def spent(self) -> bool:
        """True if one of the limits is used up."""
        return any(left is not None and left <= 0 for left in (self.bytes, self.rows, self.files))

    def share(self, shares: int) -> ReadAllowance:
        return ReadAllowance(
            *(None if left is None else -(-left // shares) for left in (self.bytes, self.rows, self.files))
        )

    def pairs(self, other: ReadAllowance) -> list[tuple[int | None, int | None]]:
        return [(self.bytes, other.bytes), (self.rows, other.rows), (self.files, other.files)]

    def take(self, size: int, rows: int, files: int) -> None:
        self.bytes = None if self.bytes is None else self.bytes - size
        self.rows = None if self.rows is None else self.rows - rows
        self.files = None if self.files is None else self.files - files


@dataclass
class ChannelWatch:
    store: StoreRef
    name: str
    crc: Crc
    archived: bool  #: begin with `.bak` slices, if there are any
    slices: dict[int, SliceFiles] = field(init=False)  #: by number: the live slice, else its archived copy
    #: The last live slice with messages; None if there is none.
    top: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Lists the channel; raises `StoreUnreadableError` if that fails."""
        files = list_channel(Path(self.store.root, self.name))
        self._channel = files.raw_name
        self.slices = {}
        self._aside: list[SliceFiles] = []
        for each in (*files.archived, *files.slices):
            plain_name = f"msgs.{each.number}.dat" + (".bak" if each.archived else "")
            have = self.slices.get(each.number)
            if have is None:
                self.slices[each.number] = each
            elif have.archived > each.archived or each.name == plain_name:
                self.slices[each.number] = each
                self._aside.append(have)
            else:
                self._aside.append(each)
        live = [self.slices[number] for number in sorted(self.slices) if not self.slices[number].archived]
        self.top = growing_slice(live, self._channel, self.crc)

    def begin(self) -> ChannelPosition:
        for number in sorted(self.slices):
            if self.archived or not self.slices[number].archived:
                with self.open(number) as watched:
                    first = watched.first()
                return ChannelPosition(number, FILE_HEADER_SIZE, first.sequence - 1 if first else UNKNOWN)
        return BEGINNING

    def latest(self) -> ChannelPosition | None:
        """Returns the position after the last readable message; None if there is none."""
        if self.top is None:
            return None
        with self.open(self.top) as watched:
            mark = watched.safe(FILE_HEADER_SIZE)
        return ChannelPosition(self.top, *mark) if mark else ChannelPosition(self.top, FILE_HEADER_SIZE, UNKNOWN)

    def resume(self, at: ChannelPosition, until: int | None = None) -> tuple[ChannelPosition | None, list[LostRange]]:
        """Returns the position to continue from, and the losses since `at` up to the sequence `until`.

        The position is None if the files were replaced and hold no later message.
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
            if at.offset == FILE_HEADER_SIZE and self._ends_before(at):
                return at, []
            found, lost = self._resume_by_time(at)
            natural = found is not None and found[:2] == at[:2] and at.offset == FILE_HEADER_SIZE
            return found, [] if natural else lost
        later = (n for n in sorted(self.slices) if n > at.slice)
        following = [n for n in later if has_messages(self.slices[n], self._channel, self.crc)]
        if not following:
            return self._resume_by_time(at)
        with self.open(following[0]) as watched:
            first = watched.first()
        if first is not None and at.sequence >= 0:
            if first.sequence == at.sequence + 1:
                return ChannelPosition(following[0], FILE_HEADER_SIZE, *at[2:]), []
            if first.sequence <= at.sequence:
                return self._resume_by_time(at)
        last = first.sequence - 1 if first else None
        if until is not None and until >= 0:
            last = until if last is None else min(last, until)
        return ChannelPosition(following[0], FILE_HEADER_SIZE, *at[2:]), [self.removed(at, last)]

    def aside(self, at: ChannelPosition) -> dict[str, str]:
        """Returns the data files that are not followed, relative to the root, each with the name of the followed one.

        Includes archived slices if these are requested, or if the slice being read was archived and its number is
        used again.
        """
        found = {}
        for each in self._aside:
            if not each.archived or self.archived or self._was_partly_read(each, at):
                found[f"{self.name}/{each.name}"] = self.slices[each.number].name
        return found

    def advance(
        self, at: ChannelPosition, allowance: ReadAllowance, until: ChannelPosition | None = None
    ) -> ChannelPosition:
        """Returns the furthest position within the allowance, from which it subtracts, and not beyond `until`."""
        before = self.begin() if at == ANYWHERE else at
        begin, _ = self.resume(before)
        if begin is None:
            return before
        at = begin
        done: tuple[int, SlicePosition] | None = None  # the last slice taken whole
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
                        end = SlicePosition(*until[1:])
                    reached = _take(watched, start, end, allowance)
            except StoreUnreadableError:
                if done is None:
                    raise
                break  # earlier data must be read first
            if reached == end and final and not (clipped and until is not None and end.end == until.offset):
                done = number, end
                continue
            return ChannelPosition(number, *reached)
        if done is None:
            return before
        number, end = done
        return ChannelPosition(number + 1, FILE_HEADER_SIZE, *end[1:])

    def backlog(self, at: ChannelPosition) -> int:
        """Returns the bytes after a position, complete or not."""
        return sum(
            max(self.slices[number].data_size - (at.offset if number == at.slice else FILE_HEADER_SIZE), 0)
            for number in self._numbers(at)
        )

    def settles(self) -> float:
        """Returns when the growing slice counts as settled, in seconds since 1970; infinity if none grows."""
        if self.top is None:
            return math.inf
        with self.open(self.top) as watched:
            return settling(watched.written)

    def has(self, path: str) -> bool:
        return any(str(each.data) == path for each in self.slices.values())

    def grows(self) -> tuple[str, str, str]:
        """Returns the files that change with new data: the growing data file and index, and the next data file."""
        directory = f"{self.store.root}/{self.name}"
        number = self.top if self.top is not None else 1
        following = min((n for n in self.slices if n > number), default=number + 1)
        paths = []
        for each in (number, following):
            files = self.slices.get(each)
            paths.append(str(files.data) if files else f"{directory}/msgs.{each}.dat")
        return paths[0], f"{directory}/msgs.{number}.idx", paths[1]

    def between(self, start: ChannelPosition, end: ChannelPosition) -> list[SlicePiece | LostRange]:
        """Returns the pieces and losses between two positions, in order."""
        at, lost = self.resume(start, end.sequence)
        if at is None:
            return [self.removed(start, end.sequence if end.sequence > start.sequence else None)]
        found: list[SlicePiece | LostRange] = list(lost)
        before: int | None = None
        for number in self._numbers(at):
            if number > end.slice:
                break
            if before is not None and number > before + 1:
                found += self._gap(before, number)
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
                found.append(SlicePiece(self._ref(number, stop), begin, stop))
        if at.slice <= end.slice and end.slice not in self.slices and end.offset > FILE_HEADER_SIZE and not lost:
            found.append(self.removed(ChannelPosition(end.slice, FILE_HEADER_SIZE, UNKNOWN), None))
        return found

    def open(self, number: int) -> WatchedSlice:
        return WatchedSlice(self.slices[number], self._channel, self.crc)

    def removed(self, at: ChannelPosition, last: int | None) -> LostRange:
        first = at.sequence + 1 if at.sequence >= 0 else None
        what = "messages" if first is None else f"message {first}"
        if first is not None and last is not None:
            what = f"message {first}" if first == last else f"messages {first} to {last}"
        return LostRange(
            self.store.root,
            self.name,
            REMOVED,
            f"{self.name}/msgs.{at.slice}.dat",
            first,
            at.offset,
            None,
            f"{self.store.root}/{self.name}: {what} were removed before they were read",
        )

    def _numbers(self, at: ChannelPosition) -> list[int]:
        """Returns the slices to read from a position on."""
        top = self.top
        return [
            n
            for n in sorted(self.slices)
            if n >= at.slice and ((top is not None and n <= top) or self.slices[n].archived)
        ]

    def _ends_before(self, at: ChannelPosition) -> bool:
        """Returns whether the slice before the next one ends with the last message read."""
        if at.slice - 1 not in self.slices or (self.top is not None and at.slice > self.top):
            return False
        with self.open(at.slice - 1) as watched:
            return watched.whole()[1:] == at[2:]

    def _gap(self, before: int, number: int) -> list[LostRange]:
        """Reports the messages missing between two slices if a number in between is missing."""
        with self.open(before) as watched:
            sequence = watched.whole().sequence
        with self.open(number) as watched:
            first = watched.first()
        if sequence < 0 or first is None or first.sequence <= sequence + 1:
            return []
        return [self.removed(ChannelPosition(before + 1, FILE_HEADER_SIZE, sequence), first.sequence - 1)]

    def _was_partly_read(self, archived: SliceFiles, at: ChannelPosition) -> bool:
        """Returns whether a stream stopped within a slice that was archived meanwhile, with unread messages in it."""
        if archived.number != at.slice or at.offset <= FILE_HEADER_SIZE or archived.data_size <= at.offset:
            return False
        with WatchedSlice(archived, self._channel, self.crc) as then, self.open(at.slice) as now:
            return then.continues(at) and not now.continues(at)

    def _resume_by_time(self, at: ChannelPosition) -> tuple[ChannelPosition | None, list[LostRange]]:
        """Continues with the first message later than the last one read, if there is one."""
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
                return ChannelPosition(number, offset, *at[2:]), [self._replaced(at, number, offset)]
        return None, []

    def _replaced(self, at: ChannelPosition, number: int, offset: int) -> LostRange:
        name = f"{self.name}/{self.slices[number].name}"
        return LostRange(
            self.store.root,
            self.name,
            REPLACED,
            name,
            None,
            offset,
            None,
            f"{self.store.root}/{self.name}: message {at.sequence}, the last one read, no longer ends at offset "
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


def _take(watched: WatchedSlice, start: int, end: SlicePosition, allowance: ReadAllowance) -> SlicePosition:
    """Takes the allowed part of a slice, at least a message; returns the end reached."""
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
