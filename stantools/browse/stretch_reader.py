"""Reading the messages of a run: their places, and their content.

Little is kept: a few blocks of places, a few open files. The readers of slices and of a stream's blocks share this.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stantools.browse.row_model import MessageStretch, ProvenMessage, Row, RowNote, gap
from stantools.errors import StoreUnreadableError
from stantools.format.columns import MessageRecords
from stantools.store.mapping import open_regular

#: Maximum number of open files.
_OPEN = 16


class WindowFiles:
    """A few open files, read in pieces. A file that is removed while it is open stays readable.

    They are not mapped: a kept mapping would end the program if another one cut the file.
    """

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Reads a part of a regular file; fewer bytes if the file ends before.

        Raises `StoreUnreadableError` if the file is missing, not a regular file, or cannot be read.
        """
        if size <= 0 or offset < 0:
            return b""
        try:
            return os.pread(self._descriptor(path), size, offset)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise StoreUnreadableError(f"{path}: cannot be read: {reason}") from error

    def _descriptor(self, path: Path) -> int:
        found = self._descriptors.get(path)
        if found is not None:
            self._descriptors.move_to_end(path)
            return found
        descriptor, _ = open_regular(path)
        self._descriptors[path] = descriptor
        if len(self._descriptors) > _OPEN:
            os.close(self._descriptors.popitem(last=False)[1])
        return descriptor

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __del__(self) -> None:
        self.close()


#: Messages that are located together.
BLOCK = 4096
_BLOCKS_KEPT = 8
#: Bytes of a record above which a table row reads only its beginning; bytes of that beginning.
LARGE, HEAD = 1 << 16, 1 << 12


@dataclass(frozen=True)
class StoredTexts:
    """The searchable texts of consecutive records, as places in their bytes."""

    raw: bytes
    offset: npt.NDArray[np.int64]  #: of each record in `raw`
    end: npt.NDArray[np.int64]
    good: npt.NDArray[np.bool_]  #: the record is what its place says
    #: starts and sizes of the payloads, then of the other texts; a size is 0 where there is none
    fields: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]]


class StretchReader(ABC):
    """Reads the messages of runs. Not for several threads at once.

    `channel` is the subject of the records of the channel's own runs. Without a key, payloads stay as they are stored.
    """

    has_subjects = False  #: messages have subjects of their own

    def __init__(self, channel: bytes, *, key: bytes | None) -> None:
        self.channel = channel
        self.key = key
        self.decrypts = False  #: a key was given for the payloads
        self.encrypted = False  #: payloads that look encrypted are taken as encrypted
        self._open = WindowFiles()
        self._blocks: OrderedDict[tuple[int, int], MessageRecords] = OrderedDict()

    def close(self) -> None:
        self._open.close()

    @abstractmethod
    def another(self, key: bytes | None) -> StretchReader:
        """Returns a reader with another key, for another thread."""

    @abstractmethod
    def read(self, stretch: MessageStretch, offset: int, size: int) -> bytes:
        """Reads bytes of the file of a run; fewer if it ends before."""

    @abstractmethod
    def messages(self, stretch: MessageStretch, located: MessageRecords, *, whole: bool = False) -> list[Row]:
        """Reads messages; each that is not good becomes a note."""

    @abstractmethod
    def texts(self, stretch: MessageStretch, located: MessageRecords) -> StoredTexts:
        """Reads the texts of consecutive messages."""

    def payload(self, stored: bytes) -> bytes:
        """Returns the payload that is searched for one that is stored."""
        return stored

    def proven(self, piece: ProvenMessage) -> Row:
        """Reads a message whose header is damaged."""
        raise NotImplementedError

    def looks_encrypted(self, _stretch: MessageStretch) -> bool:
        """Returns whether the last messages may be encrypted."""
        return False

    def absent(self, first: int, last: int) -> RowNote:
        """Returns the row for sequences between two messages."""
        return gap(first, last)

    def located(self, stretch: MessageStretch, low: int, high: int) -> MessageRecords:
        """Returns the places of messages of a run, from `low` to `high` (exclusive); fewer if the files changed."""
        parts: list[MessageRecords] = []
        while low < high:
            begin, block = self._block(stretch, low)
            part = block.part(low - begin, high - begin)
            parts.append(part)
            if not len(part):
                break
            low += len(part)
        return MessageRecords.joined(parts)

    def _heads(self, stretch: MessageStretch) -> npt.NDArray[np.int64]:
        """Returns the positions from which messages are located together."""
        return stretch.marks

    def _block(self, stretch: MessageStretch, position: int) -> tuple[int, MessageRecords]:
        """Returns the block of messages around one, and the position of its first."""
        if stretch.index_from is not None:
            begin = position // BLOCK * BLOCK
        else:
            begin = int(stretch.marks[np.searchsorted(stretch.marks, position, side="right") - 1])
        key = id(stretch), begin
        block = self._blocks.get(key)
        if block is None:
            block = self._load(stretch, begin)
            self._blocks[key] = block
            if len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        return begin, block

    def _load(self, stretch: MessageStretch, begin: int) -> MessageRecords:
        """Locates the messages from a mark up to the next one."""
        place = int(np.searchsorted(stretch.marks, begin))
        following = place + 1
        end = int(stretch.offsets[following]) if following < len(stretch.offsets) else stretch.end
        stop = int(stretch.marks[following]) if following < len(stretch.marks) else stretch.count
        return self._scan(stretch, int(stretch.offsets[place]), end, stop - begin)

    @abstractmethod
    def _scan(self, stretch: MessageStretch, start: int, end: int, count: int) -> MessageRecords:
        """Locates messages by reading the data."""

    @abstractmethod
    def _first(self, stretch: MessageStretch, number: int) -> MessageRecords:
        """Locates the message at a mark by the data; none if it is not there."""

    def _head(self, stretch: MessageStretch, number: int) -> MessageRecords:
        return self._first(stretch, number)

    def position_of(self, stretch: MessageStretch, value: int, name: str, side: str = "left") -> int:
        """Returns the position of the first message whose value is at least one, or the last at most one."""

        def head(number: int) -> int:
            if stretch.index_from is None and name == "offset":
                return int(stretch.offsets[number])
            one = self._head(stretch, number)
            return int(getattr(one, name)[0]) if len(one) else value + 1

        heads = self._heads(stretch)
        cut = bisect_left if side == "left" else bisect_right
        block = max(cut(range(len(heads)), value, key=head) - 1, 0)
        low = int(heads[block])
        high = int(heads[block + 1]) if block + 1 < len(heads) else stretch.count
        inside: npt.NDArray[np.int64] = getattr(self.located(stretch, low, high), name)
        wanted = np.asarray(min(value, 2**64 - 1 if inside.dtype == np.uint64 else 2**63 - 1), inside.dtype)
        if side == "right":
            return low + max(int(np.searchsorted(inside, wanted, side="right")) - 1, 0)
        # Times may go back: the first that is not below, as for a sequential reader.
        reached = np.flatnonzero(inside >= wanted)
        position = low + (int(reached[0]) if len(reached) else len(inside))
        return min(position, stretch.count - 1)
