"""Reading the messages of a run: their places, and their content.

Little is kept: a few blocks of places, a few open files.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stantools.browse.protobuf_fields import message_head
from stantools.browse.row_model import MessageStretch, ProvenMessage, RowNote, RowNoteKind
from stantools.errors import StoreUnreadableError
from stantools.format import gogo, kernels
from stantools.format.columns import MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, DecryptError, looks_encrypted, may_be_encrypted
from stantools.format.layout import (
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    Flag,
    ScanStop,
)
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.survey import stop_text
from stantools.store.indexes import SliceIndex
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
_SAMPLES = 8


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
    crc: int  #: CRC in the record's header
    flags: Flag  #: properties of the record
    error: str = ""  #: reason why the payload could not be decrypted, else ""
    encrypted: bool = False  #: it was decrypted, or seems to be encrypted
    whole: bool = True  #: all of the record was read, and it is good
    proven: bool = False  #: the record's header is damaged, its payload is good


Row = WindowMessage | RowNote


class StretchReader:
    """Reads the messages of runs. Not for several threads at once.

    `channel` is the name as stored in subjects. Without a key, payloads stay as they are stored.
    """

    def __init__(self, channel: bytes, crc: Crc, *, key: bytes | None) -> None:
        self._channel = channel
        self._crc = crc
        self.cipher = ChannelCipher(key, channel) if key else None  #: decrypts, if a key was given
        self.encrypted = False  #: payloads that look encrypted are taken as encrypted
        self._open = WindowFiles()
        self._blocks: OrderedDict[tuple[int, int], MessageRecords] = OrderedDict()

    def close(self) -> None:
        self._open.close()

    def read(self, stretch: MessageStretch, offset: int, size: int) -> bytes:
        """Reads bytes of the slice of a run; fewer if it ends before."""
        assert stretch.files.data is not None
        return self._open.read(stretch.files.data, offset, size)

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
        if stretch.index_from is not None:
            return self._indexed(stretch, begin, begin + BLOCK)
        place = int(np.searchsorted(stretch.marks, begin))
        following = place + 1
        end = int(stretch.offsets[following]) if following < len(stretch.offsets) else stretch.end
        stop = int(stretch.marks[following]) if following < len(stretch.marks) else stretch.count
        start = int(stretch.offsets[place])
        return self._scan(stretch, start, end, stop - begin)

    def _indexed(self, stretch: MessageStretch, low: int, high: int) -> MessageRecords:
        """Locates messages by the index, up to the first impossible place: the index has changed or is wrong."""
        assert stretch.files.index is not None and stretch.index_from is not None
        index = SliceIndex(partial(self._open.read, stretch.files.index), stretch.index_from + stretch.count)
        found = index.rows(stretch.index_from + low, stretch.index_from + high)
        ends = found.ends
        possible = (found.offset >= stretch.start) & (ends <= stretch.end)
        possible[1:] &= found.offset[1:] >= ends[:-1]
        return found if possible.all() else found.part(0, int(np.argmin(possible)))

    def _scan(self, stretch: MessageStretch, start: int, end: int, count: int) -> MessageRecords:
        """Locates messages by reading the data."""
        assert stretch.files.data is not None
        raw = self._open.read(stretch.files.data, start, end - start)
        columns = MessageColumns(count)
        rows, _, _ = kernels.scan_messages(raw, 0, len(raw), self._crc.unchecked, stretch.subject, columns)
        part = columns.take(rows)
        part.offset += start
        return part.copied()

    def messages(self, stretch: MessageStretch, located: MessageRecords, *, whole: bool = False) -> list[Row]:
        """Reads messages; each that is not good becomes a note."""
        assert stretch.files.data is not None
        path = stretch.files.data
        sizes = located.size.astype(np.int64) + RECORD_HEADER_SIZE
        if not whole:
            sizes = np.where(sizes > LARGE, HEAD, sizes)
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)[:-1])) if len(sizes) else sizes
        if len(sizes) and np.array_equal(located.offset - located.offset[0], starts):
            content = self._open.read(path, int(located.offset[0]), int(sizes.sum()))
        else:
            parts = zip(located.offset.tolist(), sizes.tolist(), strict=True)
            content = b"".join(
                self._open.read(path, offset, size).ljust(size, b"\0") if size <= LARGE or whole else b""
                for offset, size in parts
            )
        columns, stops = MessageColumns(len(sizes)), np.zeros(len(sizes), np.uint8)
        kernels.read_messages_at(content, len(content), starts, self._crc, stretch.subject, columns, stops)
        rows: list[Row] = []
        for row, (offset, size, sequence) in enumerate(
            zip(located.offset.tolist(), located.size.tolist(), located.sequence.tolist(), strict=True)
        ):
            start = int(starts[row])
            if not whole and size + RECORD_HEADER_SIZE > LARGE:
                head = content[start : start + HEAD]
                rows.append(self._of_head(stretch, head, offset, size, sequence, int(located.timestamp[row])))
            elif stops[row] != ScanStop.END or (columns.sequence[row], columns.size[row]) != (sequence, size):
                rows.append(_bad(stretch, content[start:], ScanStop(int(stops[row])), offset, size, sequence))
            else:
                rows.append(self._message(stretch, content, start, offset, columns, row))
        return rows

    def _message(
        self, stretch: MessageStretch, content: bytes, start: int, offset: int, columns: MessageColumns, row: int
    ) -> WindowMessage:
        flags = Flag(int(columns.flags[row]))
        size = int(columns.size[row])
        subject = stretch.subject
        if flags & Flag.FOREIGN_SUBJECT:
            begin = start + RECORD_HEADER_SIZE
            subject = bytes(gogo.decode(pb.MsgProto, content[begin : begin + size]).subject)
        elif subject != self._channel:
            flags |= Flag.FOREIGN_SUBJECT
        reply = int(columns.reply_start[row])
        begin, length = int(columns.data_start[row]), int(columns.data_size[row])
        message = WindowMessage(
            int(columns.sequence[row]),
            int(columns.timestamp[row]),
            subject,
            content[reply : reply + int(columns.reply_size[row])],
            content[begin : begin + length],
            length,
            stretch.files.name,
            offset,
            size,
            RECORD_HEADER.unpack_from(content, start)[1],
            flags,
        )
        return self._decrypted(message)

    def _decrypted(self, message: WindowMessage) -> WindowMessage:
        stored = message.data
        if not stored:
            return message
        if self.cipher is None:
            return replace(message, encrypted=self.encrypted and looks_encrypted(stored, message.sequence))
        try:
            data = self.cipher.decrypt(stored)
        except DecryptError as problem:
            return replace(message, error=problem.message, encrypted=True)
        return replace(message, data=data, encrypted=len(data) != len(stored))

    def _of_head(
        self, stretch: MessageStretch, head: bytes, offset: int, size: int, sequence: int, timestamp: int
    ) -> Row:
        """Returns a large message of which only the beginning was read."""
        if len(head) < RECORD_HEADER_SIZE or RECORD_HEADER.unpack_from(head)[0] != size:
            return _bad(stretch, head, ScanStop.BAD_DECODE, offset, size, sequence)
        crc = int(RECORD_HEADER.unpack_from(head)[1])
        fields = message_head(head[RECORD_HEADER_SIZE:])
        foreign = Flag.FOREIGN_SUBJECT if fields.subject != self._channel else Flag(0)
        flags = foreign | (Flag.HAS_REPLY if fields.reply else Flag(0))
        encrypted = looks_encrypted(fields.data, sequence) and (self.cipher is not None or self.encrypted)
        return WindowMessage(
            sequence,
            timestamp,
            fields.subject,
            fields.reply,
            fields.data,
            fields.data_size,
            stretch.files.name,
            offset,
            size,
            crc,
            flags,
            encrypted=encrypted,
            whole=False,
        )

    def proven(self, piece: ProvenMessage) -> Row:
        """Reads a message whose header is damaged."""
        assert piece.files.data is not None
        note = RowNote(RowNoteKind.DAMAGE, "it has changed since it was read", piece.files.name, piece.offset, 0)
        try:
            payload = self._open.read(piece.files.data, piece.start, piece.size)
            message = gogo.decode(pb.MsgProto, payload)
        except StoreUnreadableError as error:
            return RowNote(RowNoteKind.FILE, error.message, piece.files.name)
        except gogo.DecodeError:
            return note
        if len(payload) != piece.size or message.sequence != piece.sequence:
            return note
        foreign = Flag.FOREIGN_SUBJECT if message.subject != self._channel else Flag(0)
        return self._decrypted(
            WindowMessage(
                message.sequence,
                message.timestamp,
                bytes(message.subject),
                bytes(message.reply),
                bytes(message.data),
                len(message.data),
                piece.files.name,
                piece.offset,
                piece.size,
                self._crc(payload),
                foreign | (Flag.HAS_REPLY if message.reply else Flag(0)),
                proven=True,
            )
        )

    def looks_encrypted(self, stretch: MessageStretch) -> bool:
        """Returns whether the last messages may be encrypted."""
        try:
            rows = self.messages(stretch, self.located(stretch, max(stretch.count - _SAMPLES, 0), stretch.count))
        except StoreUnreadableError:
            return False
        return may_be_encrypted((row.sequence, row.data) for row in rows if isinstance(row, WindowMessage))

    def position_of(self, stretch: MessageStretch, value: int, name: str, side: str = "left") -> int:
        """Returns the position of the first message whose value is at least one, or the last at most one."""

        def head(number: int) -> int:
            if stretch.index_from is None:
                if name == "offset":
                    return int(stretch.offsets[number])
                one = self._first(stretch, number)
            else:
                one = self._indexed(stretch, int(heads[number]), int(heads[number]) + 1)
            return int(getattr(one, name)[0]) if len(one) else value + 1

        heads = stretch.marks if stretch.index_from is None else np.arange(0, stretch.count, BLOCK)
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

    def _first(self, stretch: MessageStretch, number: int) -> MessageRecords:
        """Locates the message at a mark by the data."""
        assert stretch.files.data is not None
        start = int(stretch.offsets[number])
        header = self._open.read(stretch.files.data, start, RECORD_HEADER_SIZE)
        if len(header) < RECORD_HEADER_SIZE:
            return MessageRecords.joined(())
        end = min(start + RECORD_HEADER_SIZE + int(RECORD_HEADER.unpack(header)[0]), stretch.end)
        return self._scan(stretch, start, end, 1)


def _bad(stretch: MessageStretch, found: bytes, stop: ScanStop, offset: int, size: int, sequence: int) -> RowNote:
    """Returns the note for a bad record."""
    text = stop_text(stop)
    if len(found) < RECORD_HEADER_SIZE:
        text = "the file ends before it"
    elif RECORD_HEADER.unpack_from(found)[0] != size:
        text = "its length is not the one in the index"
    elif stop is ScanStop.END:
        text = "another message is stored here than the index names"
    return RowNote(RowNoteKind.DAMAGE, text, stretch.files.name, offset, size + RECORD_HEADER_SIZE, sequence, sequence)
