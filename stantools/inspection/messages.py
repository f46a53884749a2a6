"""Reading the messages of a channel: a selection of them, in order, as far as they are intact.

Slices with a good index are read through it, so that a few messages out of millions cost little; others are scanned.
Where a record that the index promises is not good, the rest of the slice is scanned, and the damage is reported in
between the messages. Nothing raises for what is in the files.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stantools.errors import StoreUnreadableError
from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, DecryptError
from stantools.format.envelope import check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, RECORD_HEADER_SIZE, Flag, Stop
from stantools.inspection.slicesummary import SliceSummary, summarise, trusted_index
from stantools.store.directory import ChannelFiles, SliceFiles
from stantools.store.mapping import Buffer, mapped
from stantools.store.resync import Damage
from stantools.store.scan import scan_slice

_BATCH = 4096
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_MAX_SEQUENCE = 2**64 - 1


@dataclass(frozen=True)
class Selection:
    """Which messages are wanted; all conditions hold together.

    Attributes:
        first: Lowest sequence; a negative one counts from the end, -1 is the last message.
        last: Highest sequence, included; may be negative as well.
        since: Lowest timestamp in nanoseconds.
        until: Timestamps are below this.
        tail: At most so many, the last ones.
        pattern: Found in the payload (decrypted, if a key was given).
    """

    first: int | None = None
    last: int | None = None
    since: int | None = None
    until: int | None = None
    tail: int | None = None
    pattern: re.Pattern[bytes] | None = None

    def resolved(self, last_sequence: int) -> Selection:
        """Returns the selection with sequences counted from the end turned into absolute ones."""

        def absolute(sequence: int | None) -> int | None:
            if sequence is None or sequence >= 0:
                return sequence
            return max(last_sequence + 1 + sequence, 0)

        return Selection(absolute(self.first), absolute(self.last), self.since, self.until, self.tail, self.pattern)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message.

    Attributes:
        sequence: Its sequence.
        timestamp: Nanoseconds since 1970.
        subject: As stored; the channel's name unless the record is a stranger.
        reply: Reply subject, empty if there is none.
        data: Payload, decrypted if a key was given and fits.
        file: The slice that holds it.
        offset: Of its record in there.
        error: Why the payload could not be decrypted; "" if it could, or no key was given.
    """

    sequence: int
    timestamp: int
    subject: bytes
    reply: bytes
    data: bytes
    file: str
    offset: int
    error: str = ""


@dataclass(frozen=True)
class Trouble:
    """A place where something is not as it should be, met on the way.

    Attributes:
        file: The slice, relative to the channel directory.
        offset: First byte, None if it concerns the file as a whole.
        length: Bytes concerned.
        sequence: The sequence that was stored there, if that can be told.
        detail: What is wrong.
    """

    file: str
    offset: int | None
    length: int | None
    sequence: int | None
    detail: str


class MessageReader:
    """Reads the messages of one channel.

    Args:
        files: The channel.
        crc: The store's CRC.
        check_crc: False takes messages with a wrong CRC for good.
        key: The encryption key given to the server; None leaves payloads as they are stored.
        archived: Read `.bak` slices as well.
    """

    def __init__(
        self,
        files: ChannelFiles,
        crc: Crc,
        *,
        check_crc: bool = True,
        key: bytes | None = None,
        archived: bool = False,
    ) -> None:
        self._files = files
        self._channel = files.raw_name
        self._crc = crc
        self._check_crc = check_crc
        self._cipher = ChannelCipher(key, self._channel) if key else None
        slices = [*files.slices, *(files.archived if archived else [])]
        self._slices = sorted((s for s in slices if s.data), key=lambda each: (each.number, not each.archived))
        self._columns = MessageColumns(_BATCH)
        self._stops: npt.NDArray[np.uint8] = np.zeros(_BATCH, np.uint8)

    def last_sequence(self) -> int:
        """Returns the last sequence of the last slice that holds a message, 0 if there is none."""
        for files in reversed(self._slices):
            if (summary := self._summary(files)).count:
                return summary.last_seq
        return 0

    def read(self, selection: Selection) -> Iterator[StoredMessage | Trouble]:
        """Gives the selected messages in the order of the slices, with every trouble where it is met.

        Troubles of slices that need not be read are not met.
        """
        counted_from_end = (selection.first or 0) < 0 or (selection.last or 0) < 0
        selection = selection.resolved(self.last_sequence() if counted_from_end else 0)
        if selection.tail is None:
            for files in self._slices:
                yield from self._slice(files, selection)
            return
        yield from self._tail(selection)

    def _tail(self, selection: Selection) -> Iterator[StoredMessage | Trouble]:
        wanted = selection.tail or 0
        parts: deque[list[StoredMessage | Trouble]] = deque()
        for files in reversed(self._slices):
            if wanted <= 0:
                break
            kept: deque[StoredMessage] = deque(maxlen=wanted)
            troubles: list[StoredMessage | Trouble] = []
            for item in self._slice(files, selection, most=wanted):
                if isinstance(item, StoredMessage):
                    kept.append(item)
                else:
                    troubles.append(item)
            wanted -= len(kept)
            parts.appendleft([*troubles, *kept])
        for part in parts:
            yield from part

    def _summary(self, files: SliceFiles) -> SliceSummary:
        return summarise(files, self._channel, self._crc, check_crc=self._check_crc)

    def _slice(
        self, files: SliceFiles, selection: Selection, most: int | None = None
    ) -> Iterator[StoredMessage | Trouble]:
        assert files.data is not None
        try:
            with mapped(files.data) as data:
                if text := check_file_version(data):
                    yield Trouble(files.name, 0, len(data), None, text)
                    return
                with trusted_index(files, data, self._channel, self._crc, check_crc=self._check_crc) as (view, problem):
                    if view is None or not len(view):
                        if problem and problem != "the index is missing":
                            yield Trouble((files.index or files.data).name, None, None, None, problem)
                        yield from self._scan(files, data, selection, FILE_HEADER_SIZE)
                        return
                    rows = _chosen(view["sequence"], view["timestamp"], selection)
                    if most is not None and selection.pattern is None:
                        rows = rows[-most:]
                    broken_at = yield from self._through_index(files, data, view, rows, selection)
                    last = view[-1]
                    end = int(last["offset"]) + RECORD_HEADER_SIZE + int(last["size"])
                if broken_at is not None:
                    yield from self._scan(files, data, selection, broken_at)
                elif end < len(data) and len(rows):
                    yield Trouble(
                        files.name, end, len(data) - end, None, "behind the last message that the index names"
                    )
                    yield from self._scan(files, data, selection, end)
        except StoreUnreadableError as error:
            yield Trouble(files.name, None, None, None, error.message)

    def _through_index(
        self,
        files: SliceFiles,
        data: Buffer,
        view: npt.NDArray[np.void],
        rows: npt.NDArray[np.int64],
        selection: Selection,
    ) -> Iterator[StoredMessage | Trouble]:
        """Gives messages by their index records; returns where a scan must go on if one of them is not right."""
        for begin in range(0, len(rows), _BATCH):
            part = view[rows[begin : begin + _BATCH]]
            offsets = np.ascontiguousarray(part["offset"])
            kernels.read_messages_at(
                data,
                len(data),
                offsets,
                self._crc,
                self._check_crc,
                self._channel,
                self._columns,
                self._stops,
            )
            columns = self._columns.take(len(part))
            good = self._stops[: len(part)] == Stop.END
            good &= (columns.sequence == part["sequence"]) & (columns.size == part["size"])
            wrong = np.flatnonzero(~good)
            upto = int(wrong[0]) if len(wrong) else len(part)
            yield from self._give(files, data, columns.take(upto), selection)
            if len(wrong):
                return self._end_before(view, int(rows[begin + upto]))
        return None
