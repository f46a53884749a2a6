"""Reading the messages of a channel: a selection of them, in order, as far as they are intact.

Slices with a good index are read through it, so that a few messages out of millions cost little; others are scanned.
If a record named by the index is not good, the rest of the slice is scanned, and the damage is reported in between
the messages. No content of a file raises an exception.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stantools.errors import StoreUnreadableError
from stantools.format.columns import MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher
from stantools.format.layout import FILE_HEADER_SIZE, ScanStop
from stantools.format.message_batch import MessageBatch
from stantools.inspection.slicesummary import channel_ends
from stantools.inspection.survey import stop_text
from stantools.store.directory import ChannelFiles, SliceFiles
from stantools.store.growing_channel import ChannelFollower, ChannelPiece, LostRange
from stantools.store.growing_slice import ChannelPosition
from stantools.store.indexes import SliceIndex
from stantools.store.mapping import mapped
from stantools.store.ranges import Bounds
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile

_BATCH = 4096
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_MAX_SEQUENCE = 2**64 - 1


@dataclass(frozen=True)
class Selection(Bounds):
    """Conditions on messages; all of them hold together."""

    tail: int | None = None  #: number of messages at the end of the channel
    pattern: re.Pattern[bytes] | None = None  #: pattern in the payload (decrypted, if a key was given)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    sequence: int
    timestamp: int  #: nanoseconds since 1970
    subject: bytes  #: as stored; the channel's name unless the record is foreign
    reply: bytes  #: reply subject, empty if there is none
    data: bytes  #: payload, decrypted if a key was given and fits
    file: str  #: slice that holds it
    offset: int  #: offset of its record in the slice
    error: str = ""  #: reason why the payload could not be decrypted, else ""
    headers: bytes | None = None  #: header block, empty without headers; None in a file store, which has none


@dataclass(frozen=True)
class ReadProblem:
    """Damage found while reading messages."""

    file: str  #: the slice, relative to the channel directory
    offset: int | None  #: first byte, None for the file as a whole
    length: int | None  #: number of bytes
    sequence: int | None  #: sequence that was stored there, if known
    detail: str


class MessageReader:
    """Reads the messages of one channel.

    Without a key, payloads stay as they are stored. `archived`: reads `.bak` slices as well.
    """

    def __init__(
        self,
        files: ChannelFiles,
        crc: Crc,
        *,
        key: bytes | None = None,
        archived: bool = False,
    ) -> None:
        self._channel = files.raw_name
        self._crc = crc
        self._cipher = ChannelCipher(key, self._channel) if key else None
        slices = [*files.slices, *(files.archived if archived else [])]
        self._slices = sorted((s for s in slices if s.data), key=lambda each: (each.number, not each.archived))
        self._columns = MessageColumns(_BATCH)

    def last_sequence(self) -> int:
        """Returns the channel's last sequence as the server counts, 0 if there is none."""
        return channel_ends(self._slices, self._channel, self._crc)[1]

    def read(self, selection: Selection) -> Iterator[StoredMessage | ReadProblem]:
        """Iterates over the selected messages in the order of the slices, with damage at its place.

        Damage in slices that need not be read is not reported.
        """
        if selection.counts_from_end:
            selection = selection.resolved(self.last_sequence())
        if selection.tail is None:
            for files in self._slices:
                yield from self._slice(files, selection)
            return
        yield from self._tail(selection)

    def read_piece(self, piece: ChannelPiece, selection: Selection) -> Iterator[StoredMessage | ReadProblem]:
        """Iterates over the selected messages of a part of a slice, which may be new since the reader was made."""
        assert piece.files.data is not None
        try:
            with mapped(piece.files.data) as data:
                opened = SliceFile(data[: piece.end], self._channel, self._crc)
                yield from self._scan(piece.files, opened, selection, start=piece.start)
        except StoreUnreadableError as error:
            yield ReadProblem(piece.files.name, None, None, None, error.message)

    def _tail(self, selection: Selection) -> Iterator[StoredMessage | ReadProblem]:
        wanted = selection.tail or 0
        parts: deque[list[StoredMessage | ReadProblem]] = deque()
        for files in reversed(self._slices):
            if wanted <= 0:
                break
            kept: deque[StoredMessage] = deque(maxlen=wanted)
            troubles: list[StoredMessage | ReadProblem] = []
            for item in self._slice(files, selection, limit=wanted):
                if isinstance(item, StoredMessage):
                    kept.append(item)
                else:
                    troubles.append(item)
            wanted -= len(kept)
            parts.appendleft([*troubles, *kept])
        for part in parts:
            yield from part

    def _slice(
        self, files: SliceFiles, selection: Selection, limit: int | None = None
    ) -> Iterator[StoredMessage | ReadProblem]:
        assert files.data is not None
        try:
            with SliceFile.open(files, self._channel, self._crc) as opened:
                if opened.index is not None:
                    yield from self._indexed(files, opened, opened.index, selection, limit)
                    return
                if opened.header_error:
                    size = min(len(opened.data), FILE_HEADER_SIZE)
                    yield ReadProblem(files.name, 0, size, None, opened.header_error)
                elif opened.problem:
                    yield ReadProblem((files.index or files.data).name, None, None, None, opened.problem)
                yield from self._scan(files, opened, selection)
        except StoreUnreadableError as error:
            yield ReadProblem(files.name, None, None, None, error.message)

    def _indexed(
        self, files: SliceFiles, opened: SliceFile, index: SliceIndex, selection: Selection, limit: int | None
    ) -> Iterator[StoredMessage | ReadProblem]:
        """Iterates over messages by their index records, as long as these are right, then by a scan."""
        given = -1
        for part in _chosen_rows(index, selection, None if selection.pattern else limit):
            batch, stops = MessageBatch.at(opened.data, part.offset, self._channel, self._crc, self._columns)
            good = (stops == ScanStop.END) & (batch.sequence == part.sequence) & (batch.size == part.size)
            wrong = np.flatnonzero(~good)
            right = batch.part(0, int(wrong[0]) if len(wrong) else len(part))
            yield from self._decode(files, right, selection)
            given = int(right.offset[-1]) if len(right) else given
            if len(wrong):
                # The index is wrong from here on: scan the data, and repeat nothing.
                yield from self._scan(files, opened, selection, given=given)
                return
        last = index[-1]
        if last.end < len(opened.data) and (selection.last is None or selection.last > last.sequence):
            yield from self._scan(files, opened, selection, start=last.end, unindexed=True, before=last.sequence)

    def _scan(
        self,
        files: SliceFiles,
        opened: SliceFile,
        selection: Selection,
        *,
        start: int = FILE_HEADER_SIZE,
        given: int = -1,
        unindexed: bool = False,
        before: int = 0,
    ) -> Iterator[StoredMessage | ReadProblem]:
        """Iterates over messages by reading the data file from an offset.

        Messages up to offset `given` were returned before. `unindexed`: the index is good and does not name the
        messages found here. `before` is the sequence of the message before the start.
        """
        pending: list[DamagedRange] = []
        for part in opened.records(start):
            if isinstance(part, DamagedRange):
                if part.offset > given:
                    pending.append(part)
                continue
            yield from self._damages(files, pending, selection, before, int(part.sequence[0]))
            pending.clear()
            if unindexed:
                unindexed = False
                yield ReadProblem(
                    files.name,
                    int(part.offset[0]),
                    None,
                    int(part.sequence[0]),
                    "messages from here on are not in the index: the server does not see them",
                )
            before = int(part.sequence[-1])
            wanted = chosen(part.sequence, part.timestamp, selection) & (part.offset > given)
            if wanted.all():
                yield from self._decode(files, part, selection)
            elif wanted.any():
                yield from self._decode(files, part.pick(wanted), selection)
        yield from self._damages(files, pending, selection, before, None)

    def _damages(
        self, files: SliceFiles, damages: Sequence[DamagedRange], selection: Selection, before: int, after: int | None
    ) -> Iterator[StoredMessage | ReadProblem]:
        """Reports damage, unless the messages around it show that it cannot concern the selection."""
        if selection.last is not None and before >= selection.last:
            return
        if selection.first is not None and after is not None and after <= selection.first:
            return
        for damage in damages:
            yield ReadProblem(
                files.name,
                damage.offset,
                damage.length,
                damage.sequence,
                f"{damage.kind.value}: {stop_text(damage.stop)}",
            )
            if damage.repair:
                proven = MessageBatch.of_messages([damage.repair.message], self._channel)
                proven.offset[0] = damage.offset
                if chosen(proven.sequence, proven.timestamp, selection).all():
                    yield from self._decode(files, proven, selection)

    def _decode(self, files: SliceFiles, batch: MessageBatch, selection: Selection) -> Iterator[StoredMessage]:
        pattern, foreign = selection.pattern, batch.has_foreign
        places = zip(batch.sequence.tolist(), batch.timestamp.tolist(), batch.offset.tolist(), strict=True)
        contents = zip(batch.replies(), batch.opened(self._cipher), strict=True)
        rows = enumerate(zip(places, contents, strict=True))
        for row, ((sequence, timestamp, offset), (reply, (data, error))) in rows:
            if pattern is None or pattern.search(data):
                subject = batch.record_subject(row) if foreign else self._channel
                yield StoredMessage(sequence, timestamp, subject, reply, data, files.name, offset, error)


def chosen(sequence: npt.NDArray[Any], timestamp: npt.NDArray[Any], selection: Selection) -> npt.NDArray[np.bool_]:
    """Returns the rows within the sequences and times of a selection, before `resolved`."""
    taken = np.ones(len(sequence), bool)
    if selection.first is not None:
        taken &= sequence >= np.uint64(min(selection.first, _MAX_SEQUENCE))
    if selection.last is not None:
        taken &= sequence <= np.uint64(min(selection.last, _MAX_SEQUENCE))
    if selection.since is not None:
        taken &= timestamp >= np.int64(min(max(selection.since, _LOWEST), _HIGHEST))
    if selection.until is not None:
        taken &= timestamp < np.int64(min(max(selection.until, _LOWEST), _HIGHEST))
    return taken


def _chosen_rows(index: SliceIndex, selection: Selection, limit: int | None) -> Iterator[MessageRecords]:
    """Iterates over the records of an index that a selection takes, or the last `limit` of them, in batches."""
    for begin in range(0 if limit is None else _tail_start(index, selection, limit), len(index), _BATCH):
        part = index.rows(begin, begin + _BATCH)
        taken = chosen(part.sequence, part.timestamp, selection)
        if taken.any():
            yield part.pick(taken)


def _tail_start(index: SliceIndex, selection: Selection, count: int) -> int:
    """Returns the row of the first of the last `count` records that a selection takes, 0 if there are fewer."""
    for high in range(len(index), 0, -_BATCH):
        low = max(high - _BATCH, 0)
        part = index.rows(low, high)
        taken = np.flatnonzero(chosen(part.sequence, part.timestamp, selection))
        if len(taken) >= count:
            return low + int(taken[-count])
        count -= len(taken)
    return 0


def follow(
    reader: MessageReader,
    follower: ChannelFollower,
    at: ChannelPosition,
    after: tuple[int, int],
    wait: Callable[[], bool],
    selection: Selection,
) -> Iterator[StoredMessage | ReadProblem]:
    """Iterates over the messages that a running server adds after a position, as soon as they are safe to read.

    `after` is timestamp and sequence of the last message that is known, which may be after the position. `wait` waits
    for the next look, and returns False to end.
    """
    fresh = replace(selection, tail=None)
    while (selection.last is None or at.sequence < selection.last) and wait():
        if follower.unchanged(at):
            continue
        news = follower.look(at)
        for part in news.parts() if news.end != at or news.replaced else ():
            if isinstance(part, LostRange):
                detail = part.message.removeprefix(f"{part.root}/{part.channel}: ")
                yield ReadProblem(part.file.rpartition("/")[2], None, None, None, detail)
                continue
            for item in reader.read_piece(part, fresh):
                if isinstance(item, ReadProblem) or (item.timestamp, item.sequence) > after:
                    yield item
        at = news.end
