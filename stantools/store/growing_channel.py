"""One channel that a server may be writing: where a reader continues, how far it can read, and its losses.

A position names a slice, an offset in it and the last message before. Lower slices are done. Of the higher slices,
all but the last one with messages are whole; the last one is read up to `GrowingSlice.safe`. Since the position was
made,

* the files may have grown, or new slices begun: the reader continues at its position;
* limits may have removed unread slices: the loss is reported, and the reader continues with the first slice that
  exists. Slices that await an archive script (`.bak`) are read from there;
* the last message read may no longer be at its offset: the files were cut back, replaced by a copy, or rewritten.
  That is reported, and the reader continues with the first message later than the last one read.

A position does not distinguish data files of the same slice number. The reader follows the one with the plain name,
which the server writes, else the first by name; a `.bak` slice only if it is the only one. `aside` names the others.

`ChannelFollower` looks at a channel again and again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from stantools.errors import StoreChangedError, StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE
from stantools.store.directory import SliceFiles, list_channel
from stantools.store.growing_slice import UNKNOWN, ChannelPosition, GrowingSlice, SlicePosition

#: Start of a channel created while its store is followed: none of its messages may be missed.
BEGINNING: Final = ChannelPosition(1)
#: Start of every other channel: its first available message.
ANYWHERE: Final = ChannelPosition(0, FILE_HEADER_SIZE, UNKNOWN)
#: Status of a loss: messages were removed before they were read.
REMOVED: Final = "removed"
#: Status of a loss: the files read before were replaced.
REPLACED: Final = "replaced"
#: Looks at a channel whose files change meanwhile; longer and longer pauses are between them.
_MAX_LOOKS = 5
_PAUSE_SECONDS = 0.001

_Answer = TypeVar("_Answer")
#: state of a file: inode, bytes, time of the last change in nanoseconds; None if it does not exist
Sign = tuple[int, int, int] | None


def sign(path: str | Path) -> Sign:
    """Returns the state of a file, to detect changes."""
    try:
        status = os.stat(path)  # noqa: PTH116 (a Path each time costs more than the call)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def repeated(read: Callable[[], _Answer]) -> _Answer:
    """Reads files of a running server; once more if they went away or changed meanwhile."""
    for attempt in range(_MAX_LOOKS - 1):
        try:
            return read()
        except (StoreUnreadableError, StoreChangedError):
            time.sleep(attempt * _PAUSE_SECONDS)
    return read()


@dataclass(frozen=True)
class ChannelPiece:
    """A part of a slice: the records that begin from `start` on and before `end`."""

    files: SliceFiles
    start: int
    end: int


@dataclass(frozen=True)
class LostRange:
    """A range or file that a reader of a growing channel does not read."""

    root: str
    channel: str
    status: str  #: `REMOVED`, `REPLACED`, or another one of the reader
    file: str  #: relative to the root, or ""
    sequence: int | None  #: first missing message, if known
    offset: int | None  #: its offset, if known
    size: int | None  #: missing bytes, if known
    message: str
    cost: int = 0


@dataclass
class ReadAllowance:
    """Budget of a read; None is no limit."""

    bytes: int | None = None  #: bytes of data files, about; at least one message is taken
    rows: int | None = None
    files: int | None = None
    whole: ReadAllowance | None = None  #: the budget of which it is a share

    @property
    def spent(self) -> bool:
        """True if one of the limits is used up."""
        return any(left is not None and left <= 0 for left in (self.bytes, self.rows, self.files))

    def share(self, shares: int) -> ReadAllowance:
        size, rows, files = (
            None if left is None else -(-left // shares) for left in (self.bytes, self.rows, self.files)
        )
        return ReadAllowance(size, rows, files, self)

    def take(self, size: int, rows: int, files: int) -> None:
        self.bytes = None if self.bytes is None else self.bytes - size
        self.rows = None if self.rows is None else self.rows - rows
        self.files = None if self.files is None else self.files - files
        if self.whole:
            self.whole.take(size, rows, files)


class GrowingChannel:
    """The slices of a channel as of one listing; raises `StoreUnreadableError` if it cannot be listed.

    `archived`: readers begin with `.bak` slices, if there are any.
    """

    def __init__(self, root: str, name: str, crc: Crc, *, archived: bool = False) -> None:
        self.root, self.name = root, name
        self._crc, self._archived = crc, archived
        self.files = list_channel(Path(root, name))
        self.slices: dict[int, SliceFiles] = {}  #: by number: the live slice, else its archived copy
        self._aside: list[SliceFiles] = []
        for each in (*self.files.archived, *self.files.slices):
            plain_name = f"msgs.{each.number}.dat" + (".bak" if each.archived else "")
            have = self.slices.get(each.number)
            if have is None:
                self.slices[each.number] = each
            elif have.archived > each.archived or each.name == plain_name:
                self.slices[each.number] = each
                self._aside.append(have)
            else:
                self._aside.append(each)
        live = (n for n in sorted(self.slices, reverse=True) if not self.slices[n].archived)
        #: the slice that a server writes: the last live one with messages; None if there is none
        self.top = next((n for n in live if self._has_messages(n)), None)

    def begin(self) -> ChannelPosition:
        for number in sorted(self.slices):
            if self._archived or not self.slices[number].archived:
                with self.open(number) as growing:
                    first = growing.first()
                return ChannelPosition(number, FILE_HEADER_SIZE, first.sequence - 1 if first else UNKNOWN)
        return BEGINNING

    def latest(self, *, stopped: bool = False) -> ChannelPosition:
        """Returns the position after the last readable message.

        `stopped`: no server writes the channel any more, so that all bytes count.
        """
        if self.top is None:
            return self.begin()
        with self.open(self.top) as growing:
            if stopped:
                return ChannelPosition(self.top + 1, FILE_HEADER_SIZE, *growing.whole()[1:])
            mark = growing.safe(FILE_HEADER_SIZE)
        return ChannelPosition(self.top, *mark) if mark else ChannelPosition(self.top, FILE_HEADER_SIZE, UNKNOWN)

    def resume(self, at: ChannelPosition, until: int | None = None) -> tuple[ChannelPosition | None, list[LostRange]]:
        """Returns the position to continue from, and the losses since `at` up to the sequence `until`.

        The position is None if the files were replaced and hold no later message.
        """
        if at == ANYWHERE:
            return self.begin(), []
        if at.slice in self.slices:
            with self.open(at.slice) as growing:
                same = growing.continues(at)
                first = growing.first() if at == BEGINNING else None
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
        following = [n for n in later if self._has_messages(n)]
        if not following:
            return self._resume_by_time(at)
        with self.open(following[0]) as growing:
            first = growing.first()
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
            if not each.archived or self._archived or self._was_partly_read(each, at):
                found[f"{self.name}/{each.name}"] = self.slices[each.number].name
        return found

    def advance(
        self,
        at: ChannelPosition,
        allowance: ReadAllowance,
        until: ChannelPosition | None = None,
        *,
        stopped: bool = False,
    ) -> ChannelPosition:
        """Returns the furthest position within the allowance, from which it subtracts, and not beyond `until`.

        `at` is a result of `resume`; it is returned if nothing can be read. `stopped` is as for `latest`.
        """
        done: tuple[int, SlicePosition] | None = None  # the last slice taken whole
        for number in self._numbers(at):
            start = at.offset if number == at.slice else FILE_HEADER_SIZE
            final = stopped or number != self.top
            clipped = until is not None and number >= until.slice
            if allowance.spent or (until is not None and (number, start) >= (until.slice, until.offset)):
                break
            try:
                with self.open(number) as growing:
                    end = growing.whole() if final else growing.safe(start)
                    if end is None:
                        break
                    if until is not None and clipped and end.end > until.offset:
                        end = SlicePosition(*until[1:])
                    reached = _take(growing, start, end, allowance)
            except StoreUnreadableError:
                if done is None:
                    raise
                break  # earlier data must be read first
            if reached == end and final and not (clipped and until is not None and end.end == until.offset):
                done = number, end
                continue
            return ChannelPosition(number, *reached)
        if done is None:
            return at
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
        with self.open(self.top) as growing:
            return growing.settles

    def has(self, path: str) -> bool:
        return any(str(each.data) == path for each in self.slices.values())

    def grows(self) -> tuple[str, str, str]:
        """Returns the files that change with new data: the growing data file and index, and the next data file."""
        directory = f"{self.root}/{self.name}"
        number = self.top if self.top is not None else 1
        following = min((n for n in self.slices if n > number), default=number + 1)
        paths = []
        for each in (number, following):
            files = self.slices.get(each)
            paths.append(str(files.data) if files else f"{directory}/msgs.{each}.dat")
        return paths[0], f"{directory}/msgs.{number}.idx", paths[1]

    def between(self, start: ChannelPosition, end: ChannelPosition) -> list[ChannelPiece | LostRange]:
        """Returns the pieces and losses between two positions, in order."""
        at, lost = self.resume(start, end.sequence)
        if at is None:
            return [self.removed(start, end.sequence if end.sequence > start.sequence else None)]
        found: list[ChannelPiece | LostRange] = list(lost)
        before: int | None = None
        for number in self._numbers(at):
            if number > end.slice:
                break
            if before is not None and number > before + 1:
                found += self._gap(before, number)
            before = number
            begin = at.offset if number == at.slice else FILE_HEADER_SIZE
            with self.open(number) as growing:
                stop = growing.size
                if number == end.slice:
                    if end.offset > FILE_HEADER_SIZE and not growing.continues(end):
                        last = end.sequence if end.sequence > start.sequence else None
                        found += [self.removed(start, last)] if not lost else []
                        break
                    stop = end.offset
            if stop > begin:
                found.append(ChannelPiece(self.slices[number], begin, stop))
        if at.slice <= end.slice and end.slice not in self.slices and end.offset > FILE_HEADER_SIZE and not lost:
            found.append(self.removed(ChannelPosition(end.slice, FILE_HEADER_SIZE, UNKNOWN), None))
        return found

    def open(self, number: int) -> GrowingSlice:
        return GrowingSlice(self.slices[number], self.files.raw_name, self._crc)

    def removed(self, at: ChannelPosition, last: int | None) -> LostRange:
        first = at.sequence + 1 if at.sequence >= 0 else None
        what = "messages" if first is None else f"message {first}"
        if first is not None and last is not None:
            what = f"message {first}" if first == last else f"messages {first} to {last}"
        return LostRange(
            self.root,
            self.name,
            REMOVED,
            f"{self.name}/msgs.{at.slice}.dat",
            first,
            at.offset,
            None,
            f"{self.root}/{self.name}: {what} were removed before they were read",
        )

    def _numbers(self, at: ChannelPosition) -> list[int]:
        """Returns the slices to read from a position on."""
        top = self.top
        return [
            n
            for n in sorted(self.slices)
            if n >= at.slice and ((top is not None and n <= top) or self.slices[n].archived)
        ]

    def _has_messages(self, number: int) -> bool:
        files = self.slices[number]
        if files.data_size <= FILE_HEADER_SIZE:
            return False
        if files.index_size >= FILE_HEADER_SIZE + INDEX_RECORD_SIZE:
            return True
        try:
            with self.open(number) as growing:
                return growing.first() is not None
        except StoreUnreadableError:
            return True  # its reader reports it

    def _ends_before(self, at: ChannelPosition) -> bool:
        """Returns whether the slice before the next one ends with the last message read."""
        if at.slice - 1 not in self.slices or (self.top is not None and at.slice > self.top):
            return False
        with self.open(at.slice - 1) as growing:
            return growing.whole()[1:] == at[2:]

    def _gap(self, before: int, number: int) -> list[LostRange]:
        """Reports the messages missing between two slices if a number in between is missing."""
        with self.open(before) as growing:
            sequence = growing.whole().sequence
        with self.open(number) as growing:
            first = growing.first()
        if sequence < 0 or first is None or first.sequence <= sequence + 1:
            return []
        return [self.removed(ChannelPosition(before + 1, FILE_HEADER_SIZE, sequence), first.sequence - 1)]

    def _was_partly_read(self, archived: SliceFiles, at: ChannelPosition) -> bool:
        """Returns whether a stream stopped within a slice that was archived meanwhile, with unread messages in it."""
        if archived.number != at.slice or at.offset <= FILE_HEADER_SIZE or archived.data_size <= at.offset:
            return False
        with GrowingSlice(archived, self.files.raw_name, self._crc) as then, self.open(at.slice) as now:
            return then.continues(at) and not now.continues(at)

    def _resume_by_time(self, at: ChannelPosition) -> tuple[ChannelPosition | None, list[LostRange]]:
        """Continues with the first message later than the last one read, if there is one."""
        for number in sorted(self.slices):
            if self.slices[number].archived and number < at.slice:
                continue
            with self.open(number) as growing:
                mark = growing.indexed()
                older = mark is not None and (mark.timestamp, mark.sequence) <= (at.timestamp, at.sequence)
                if mark is not None and older and mark.end == growing.size:
                    continue
                offset = growing.behind(at)
            if offset is not None:
                return ChannelPosition(number, offset, *at[2:]), [self._replaced(at, number, offset)]
        return None, []

    def _replaced(self, at: ChannelPosition, number: int, offset: int) -> LostRange:
        name = f"{self.name}/{self.slices[number].name}"
        return LostRange(
            self.root,
            self.name,
            REPLACED,
            name,
            None,
            offset,
            None,
            f"{self.root}/{self.name}: message {at.sequence}, the last one read, no longer ends at offset "
            f"{at.offset} of msgs.{at.slice}.dat any more; goes on with later ones, in {name} at offset {offset}",
        )


def _take(growing: GrowingSlice, start: int, end: SlicePosition, allowance: ReadAllowance) -> SlicePosition:
    """Takes the allowed part of a slice, at least a message; returns the end reached."""
    if allowance.rows is None and (allowance.bytes is None or end.end - start <= allowance.bytes):
        allowance.take(end.end - start, 0, 1)
        return end
    place = end
    while start < end.end:
        mark, rows = growing.part(start, end.end, allowance.bytes, allowance.rows)
        place = mark if mark is not None and mark.end < end.end else end
        allowance.take(place.end - start, rows, 0)
        start = place.end
        if allowance.spent:
            break
    allowance.take(0, 0, 1)
    return place


@dataclass(frozen=True)
class ChannelNews:
    """The readable part of a channel after a position."""

    channel: GrowingChannel
    start: ChannelPosition  #: the position; the first available message instead of `ANYWHERE`
    begin: ChannelPosition | None  #: the result of `GrowingChannel.resume`
    end: ChannelPosition  #: the furthest position; `start` if there is nothing to read
    replaced: bool  #: the files read before were replaced

    def part(self, allowance: ReadAllowance, until: ChannelPosition | None = None) -> ChannelPosition:
        """Returns the furthest position within the allowance, from which it subtracts, and not beyond `until`."""
        if self.begin is None:
            return self.start
        reached = self.channel.advance(self.begin, allowance, until)
        return self.start if reached == self.begin else reached

    def parts(self) -> list[ChannelPiece | LostRange]:
        return self.channel.between(self.start, self.end)


class ChannelFollower:
    """Looks at a channel, which a server may be writing, again and again.

    A channel with unchanged files costs four `stat` calls.
    """

    def __init__(self, root: str, name: str, crc: Crc, *, archived: bool = False) -> None:
        self._root, self._name, self._crc, self._archived = root, name, crc, archived
        #: the files that change with new data, as of the last look
        self.paths: tuple[str, ...] = ()
        self.waiting = 0  #: bytes after the position of the last look, complete or not
        self.aside: dict[str, str] = {}  #: `GrowingChannel.aside` as of the last look
        self._signs: tuple[Sign, ...] = ()
        self._position: ChannelPosition | None = None  #: where the last look ended; None if it does not count
        self._settles = math.inf  #: when time alone changes the readable part, seconds since 1970

    def unchanged(self, at: ChannelPosition) -> bool:
        """Returns whether the channel is certainly unchanged since a look that ended at a position."""
        known = at == self._position and time.time() < self._settles
        return known and tuple(map(sign, self.paths)) == self._signs

    def look(self, at: ChannelPosition, until: ChannelPosition | None = None, *, stopped: bool = False) -> ChannelNews:
        """Returns the news after a position; raises `StoreUnreadableError` if the channel cannot be read.

        `until` and `stopped` are as for `GrowingChannel.advance`.
        """
        self._position, self.waiting, self.aside = None, 0, {}
        directory = f"{self._root}/{self._name}"
        listed = sign(directory)

        def news(channel: GrowingChannel) -> ChannelNews:
            # Signs are taken before the look: the next look then sees a change made meanwhile.
            paths = channel.grows()
            signs = tuple(map(sign, paths))
            start = channel.begin() if at == ANYWHERE else at
            begin, lost = channel.resume(start)
            found = ChannelNews(channel, start, begin, start, begin is None or any(o.status == REPLACED for o in lost))
            if begin is not None:
                reached = channel.advance(begin, ReadAllowance(), until, stopped=stopped)
                found = replace(found, end=start if reached == begin else reached)
            self.waiting, self.aside = channel.backlog(found.end), channel.aside(at)
            self._settles = channel.settles() if self.waiting else math.inf
            self.paths, self._signs = (*paths, directory), (*signs, listed)
            # A slice that began after the listing would be missed otherwise.
            stale = signs[-1] is not None and not channel.has(paths[-1])
            self._position = None if stale else found.end
            return found

        return self.ask(news)

    def ask(self, question: Callable[[GrowingChannel], _Answer]) -> _Answer:
        """Asks a channel as of a new listing; once more if its files went away meanwhile."""
        return repeated(lambda: question(GrowingChannel(self._root, self._name, self._crc, archived=self._archived)))
