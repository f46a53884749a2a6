"""The rows of a channel, any of them at any time: messages in the order of the slices, with notes in between.

    row  0  message 1
    row  1  message 2
    row  2  — 12 missing (3–14) —
    row  3  message 15
    …

Of a channel of any size only its outline is in memory (`windowparts`); messages are read when their rows are asked for.
Where a record is not what the outline promises, its row says so: looking at rows never raises for what is in the files.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from stantools.errors import StoreUnreadableError
from stantools.format import gogo, index, kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, DecryptError, looks_encrypted
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    INDEX_RECORD_SIZE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    Flag,
    Stop,
)
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.payloadviews import message_head
from stantools.inspection.survey import ChannelSurvey, stop_text
from stantools.inspection.windowbuild import Builder, is_small, roughly
from stantools.inspection.windowfiles import OpenFiles
from stantools.inspection.windowparts import (
    Note,
    NoteKind,
    Piece,
    Proven,
    SliceParts,
    Stretch,
    gap,
    joined,
)
from stantools.progress import Progress
from stantools.store.directory import ChannelFiles

#: Messages that are located together.
BLOCK = 4096
_BLOCKS_KEPT = 8
#: A record of more bytes is not read whole for a row of a table; only so much of it is.
LARGE, HEAD = 1 << 16, 1 << 12
_SAMPLES = 8


@dataclass(frozen=True)
class Located:
    """Where messages lie, as columns of the same length: sequence, offset of the record, timestamp, payload size."""

    sequence: npt.NDArray[np.uint64]
    offset: npt.NDArray[np.int64]
    timestamp: npt.NDArray[np.int64]
    size: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.offset)

    def part(self, low: int, high: int) -> Located:
        """Returns the messages from `low` up to but without `high`."""
        return Located(self.sequence[low:high], self.offset[low:high], self.timestamp[low:high], self.size[low:high])


@dataclass(frozen=True, slots=True)
class WindowMessage:
    """A message in a row.

    Attributes:
        sequence: Its sequence.
        timestamp: Nanoseconds since 1970.
        subject: As stored.
        reply: Reply subject, empty if there is none.
        data: Payload, decrypted if a key was given and fits; only its beginning if `whole` is False.
        size: Bytes of the payload as it is stored.
        file: The slice, without its directory.
        offset: Of its record.
        record_size: Bytes of the record without its header.
        crc: The CRC in the record's header.
        flags: What is special about the record.
        error: Why the payload could not be decrypted; "" if it could, or no key was given.
        encrypted: It was decrypted, or it is encrypted as far as one can tell.
        whole: All of the record was read, and it is good.
        proven: The record's header is damaged, and its payload is good nevertheless.
    """

    sequence: int
    timestamp: int
    subject: bytes
    reply: bytes
    data: bytes
    size: int
    file: str
    offset: int
    record_size: int
    crc: int
    flags: Flag
    error: str = ""
    encrypted: bool = False
    whole: bool = True
    proven: bool = False


Row = WindowMessage | Note


class Window:
    """The rows of a channel. Not for several threads at once; `another` makes one more on the same outline.

    Args:
        files: The channel.
        crc: The store's CRC.
        parts: Its slices, as `windowbuild` gives them.
        check_crc: False takes messages with a wrong CRC for good.
        key: The encryption key given to the server; None leaves payloads as they are stored.

    Attributes:
        parts: As given.
        encrypted: The last messages look encrypted; found out with the first rows.
    """

    def __init__(
        self,
        files: ChannelFiles,
        crc: Crc,
        parts: list[SliceParts],
        *,
        check_crc: bool = True,
        key: bytes | None = None,
    ) -> None:
        self.parts = parts
        self._files = files
        self._channel = files.raw_name
        self._crc = crc
        self._check_crc = check_crc
        self._key = key
        self._cipher = ChannelCipher(key, self._channel) if key else None
        self._open = OpenFiles()
        self._blocks: OrderedDict[tuple[int, int], Located] = OrderedDict()
        self._pieces: list[Piece] = joined(parts, self._channel)
        self._starts = [0, *accumulate(_rows(piece) for piece in self._pieces)]
        self._encrypted: bool | None = None

    @property
    def exact(self) -> bool:
        """Nothing more is to be found out but by reading every record."""
        return all(part.exact for part in self.parts)

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return sum(piece.count if isinstance(piece, Stretch) else 1 for piece in self._pieces if not _is_note(piece))

    @property
    def decrypts(self) -> bool:
        """A key was given."""
        return self._cipher is not None

    @property
    def encrypted(self) -> bool:
        """The last messages look encrypted."""
        if self._encrypted is None:
            self._encrypted = False  # while the samples are looked at
            self._encrypted = self._looks_encrypted()
        return self._encrypted

    def another(self) -> Window:
        """Returns a window with the same rows, for another thread."""
        return Window(self._files, self._crc, self.parts, check_crc=self._check_crc, key=self._key)

    def close(self) -> None:
        """Closes the files."""
        self._open.close()

    def __len__(self) -> int:
        return self._starts[-1]

    # rows

    def row(self, row: int) -> Row:
        """Returns one row, with a payload of any size and everything checked."""
        found = self.rows(row, row + 1)
        if not found:
            return Note(NoteKind.FILE, "there is no such row")
        if isinstance(found[0], Note) or found[0].whole:
            return found[0]
        piece, position = self._at(row)
        assert isinstance(piece, Stretch)
        return self._messages(piece, self.located(piece, position, position + 1), whole=True)[0]

    def rows(self, start: int, stop: int) -> list[Row]:
        """Returns rows from `start` up to but without `stop`. Of large records only the beginning is read."""
        start, stop = max(start, 0), min(stop, len(self))
        rows: list[Row] = []
        place = bisect_right(self._starts, start) - 1
        while start < stop:
            piece, begin = self._pieces[place], self._starts[place]
            end = min(self._starts[place + 1], stop)
            if isinstance(piece, Stretch):
                rows += self._of_stretch(piece, start - begin, end - begin)
            else:
                rows.append(self._proven(piece) if isinstance(piece, Proven) else piece)
            start, place = end, place + 1
        return rows

    def _of_stretch(self, stretch: Stretch, low: int, high: int) -> list[Row]:
        first, _ = stretch.at_row(low)
        last, at_gap = stretch.at_row(high - 1)
        stop = last if at_gap else last + 1
        try:
            located = self.located(stretch, first, stop)
            messages = self._messages(stretch, located)
        except StoreUnreadableError as error:
            text = f"{stretch.files.name}: {error.message}"
            return [Note(NoteKind.FILE, text, stretch.files.name)] * (high - low)
        breaks = np.searchsorted(stretch.breaks, [first, last], side="left")
        gaps = set(stretch.breaks[breaks[0] : breaks[1] + 1].tolist())
        rows: list[Row] = []
        row, position = low, first
        while row < high:
            if position in gaps and stretch.row_of(position) == row + 1:
                rows.append(self._gap(stretch, position))
            else:
                place = position - first
                rows.append(messages[place] if place < len(messages) else _changed(stretch))
                position += 1
            row += 1
        return rows

    def _gap(self, stretch: Stretch, position: int) -> Note:
        try:
            around = self.located(stretch, position - 1, position + 1).sequence
        except StoreUnreadableError:
            around = np.empty(0, np.uint64)
        if len(around) < 2 or around[1] <= around[0]:
            return Note(NoteKind.GAP, "missing", stretch.files.name)
        return gap(int(around[0]) + 1, int(around[1]) - 1)

    # where messages lie

    def stretches(self, first: int, last: int) -> Iterator[tuple[Stretch, int, int, int]]:
        """Gives what lies in a range of rows, for who reads many messages.

        Yields:
            A stretch, the row it begins at, and which positions of it are in the range: from, up to but without.
        """
        place = bisect_right(self._starts, first) - 1
        while place < len(self._pieces) and self._starts[place] < last:
            piece, begin = self._pieces[place], self._starts[place]
            if isinstance(piece, Stretch):
                low, _ = piece.at_row(max(first - begin, 0))
                high = piece.count
                if last < self._starts[place + 1]:
                    high, at_gap = piece.at_row(last - begin)
                yield piece, begin, low, high
            place += 1

    def located(self, stretch: Stretch, low: int, high: int) -> Located:
        """Tells where messages of a stretch lie; fewer if the files have changed.

        Args:
            stretch: One of this window.
            low: Position of the first message in the stretch.
            high: Position behind the last one.

        Raises:
            StoreUnreadableError: A file cannot be read.
        """
        parts: list[Located] = []
        while low < high:
            begin, block = self._block(stretch, low)
            part = block.part(low - begin, high - begin)
            parts.append(part)
            if not len(part):
                break
            low += len(part)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return _NOTHING
        return Located(
            np.concatenate([part.sequence for part in parts]),
            np.concatenate([part.offset for part in parts]),
            np.concatenate([part.timestamp for part in parts]),
            np.concatenate([part.size for part in parts]),
        )

    def _block(self, stretch: Stretch, position: int) -> tuple[int, Located]:
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

    def _load(self, stretch: Stretch, begin: int) -> Located:
        if stretch.index_from is not None:
            assert stretch.files.index is not None
            count = min(BLOCK, stretch.count - begin)
            at = FILE_HEADER_SIZE + (stretch.index_from + begin) * INDEX_RECORD_SIZE
            raw = self._open.read(stretch.files.index, at, count * INDEX_RECORD_SIZE)
            records = np.frombuffer(raw, index.DTYPE, len(raw) // INDEX_RECORD_SIZE)
            return Located(records["sequence"], records["offset"], records["timestamp"], records["size"])
        place = int(np.searchsorted(stretch.marks, begin))
        following = place + 1
        end = int(stretch.offsets[following]) if following < len(stretch.offsets) else stretch.end
        stop = int(stretch.marks[following]) if following < len(stretch.marks) else stretch.count
        start = int(stretch.offsets[place])
        return self._scan(stretch, start, end, stop - begin)

    def _scan(self, stretch: Stretch, start: int, end: int, count: int) -> Located:
        """Locates messages by reading the data."""
        assert stretch.files.data is not None
        raw = self._open.read(stretch.files.data, start, end - start)
        columns = MessageColumns(count)
        rows, _, _ = kernels.scan_messages(raw, 0, len(raw), self._crc, False, stretch.subject, columns)
        part = columns.take(rows)
        return Located(part.sequence, part.offset + start, part.timestamp, part.size)

    # messages

    def _messages(self, stretch: Stretch, located: Located, *, whole: bool = False) -> list[Row]:
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
        kernels.read_messages_at(
            content, len(content), starts, self._crc, self._check_crc, stretch.subject, columns, stops
        )
        rows: list[Row] = []
        for row, (offset, size, sequence) in enumerate(
            zip(located.offset.tolist(), located.size.tolist(), located.sequence.tolist(), strict=True)
        ):
            start = int(starts[row])
            if not whole and size + RECORD_HEADER_SIZE > LARGE:
                head = content[start : start + HEAD]
                rows.append(self._of_head(stretch, head, offset, size, sequence, int(located.timestamp[row])))
            elif stops[row] != Stop.END or (columns.sequence[row], columns.size[row]) != (sequence, size):
                rows.append(_bad(stretch, Stop(int(stops[row])), offset, size + RECORD_HEADER_SIZE, sequence))
            else:
                rows.append(self._message(stretch, content, start, offset, columns, row))
        return rows

    def _message(
        self, stretch: Stretch, content: bytes, start: int, offset: int, columns: MessageColumns, row: int
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
        if self._cipher is None:
            return replace(message, encrypted=self.encrypted) if looks_encrypted(stored) else message
        try:
            data = self._cipher.decrypt(stored)
        except DecryptError as problem:
            return replace(message, error=problem.message, encrypted=True)
        return replace(message, data=data, encrypted=len(data) != len(stored))

    def _of_head(
        self, stretch: Stretch, head: bytes, offset: int, size: int, sequence: int, timestamp: int
    ) -> Row:
        """Returns a large message of which only the beginning was read."""
        if len(head) < RECORD_HEADER_SIZE or RECORD_HEADER.unpack_from(head)[0] != size:
            return _bad(stretch, Stop.BAD_DECODE, offset, size + RECORD_HEADER_SIZE, sequence)
        crc = int(RECORD_HEADER.unpack_from(head)[1])
        fields = message_head(head[RECORD_HEADER_SIZE:])
        foreign = Flag.FOREIGN_SUBJECT if fields.subject != self._channel else Flag(0)
        flags = foreign | (Flag.HAS_REPLY if fields.reply else Flag(0))
        encrypted = looks_encrypted(fields.data) and (self._cipher is not None or self.encrypted)
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

    def _proven(self, piece: Proven) -> Row:
        assert piece.files.data is not None
        note = Note(NoteKind.DAMAGE, "it has changed since it was looked at", piece.files.name, piece.offset, 0)
        try:
            payload = self._open.read(piece.files.data, piece.start, piece.size)
            message = gogo.decode(pb.MsgProto, payload)
        except StoreUnreadableError as error:
            return Note(NoteKind.FILE, error.message, piece.files.name)
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

    def _looks_encrypted(self) -> bool:
        for piece in reversed(self._pieces):
            if isinstance(piece, Stretch):
                low = max(piece.count - _SAMPLES, 0)
                try:
                    rows = self._messages(piece, self.located(piece, low, piece.count))
                except StoreUnreadableError:
                    return False
                looks = [looks_encrypted(row.data) for row in rows if isinstance(row, WindowMessage) and row.size]
                return sum(looks) * 2 > len(looks)
        return False

    # finding rows

    def row_of_sequence(self, sequence: int) -> int:
        """Returns the row of a message, or the one where it would be.

        Where several have the sequence (a copied slice, a restart) it is the last one.
        """
        note, after = -1, -1
        for place in reversed(range(len(self._pieces))):
            piece, begin = self._pieces[place], self._starts[place]
            if isinstance(piece, Stretch):
                if piece.first <= sequence <= piece.last:
                    position = self._search(piece, sequence, "sequence")
                    row = piece.row_of(position)
                    exact = self.located(piece, position, position + 1).sequence
                    if len(exact) and int(exact[0]) == sequence:
                        return begin + row
                    note = begin + row - 1 if note < 0 else note
                if piece.first > sequence or after < 0:
                    after = begin if piece.first > sequence else begin + piece.rows - 1
            elif isinstance(piece, Proven):
                if piece.sequence == sequence:
                    return begin
            elif note < 0 and piece.first <= sequence <= piece.last and piece.last:
                note = begin
        return note if note >= 0 else max(after, 0)

    def row_of_time(self, timestamp: int) -> int:
        """Returns the row of the first message that is not older, the last row if all are."""
        for place, piece in enumerate(self._pieces):
            if isinstance(piece, Stretch) and piece.last_timestamp >= timestamp:
                return self._starts[place] + piece.row_of(self._search(piece, timestamp, "timestamp"))
            if isinstance(piece, Proven) and piece.timestamp >= timestamp:
                return self._starts[place]
        return max(len(self) - 1, 0)

    def row_of_place(self, file: str, offset: int) -> int | None:
        """Returns the row of the record or damage at a byte of a slice, None if the file has no row.

        Args:
            file: Name of the slice, with or without directories; an index stands for its data file.
            offset: A byte in it.
        """
        name = file.rpartition("/")[2]
        found = None
        for place, piece in enumerate(self._pieces):
            begin = self._starts[place]
            if (piece.file if isinstance(piece, Note) else piece.files.name) != name:
                continue
            if isinstance(piece, Stretch):
                if piece.start <= offset < piece.end:
                    return begin + piece.row_of(self._search(piece, offset, "offset", side="right"))
            elif isinstance(piece, Note) and piece.offset is not None:
                if piece.offset <= offset < piece.offset + max(piece.length or 1, 1):
                    return begin
            elif isinstance(piece, Proven) and piece.offset <= offset < piece.start + piece.size:
                return begin
            at = piece.offset if isinstance(piece, Note | Proven) else piece.start
            if found is None or (at is not None and at <= offset):
                found = begin
        return found

    def row_of_share(self, share: float) -> int:
        """Returns the row at a share of all rows, from 0 to 1."""
        return round(min(max(share, 0.0), 1.0) * max(len(self) - 1, 0))

    def sequence_from_end(self, number: int) -> int:
        """Returns the sequence of the last message for 1, of the one before for 2 and so on."""
        for place in reversed(range(len(self._pieces))):
            piece = self._pieces[place]
            if isinstance(piece, Stretch):
                if number <= piece.count:
                    at = piece.count - number
                    return int(self.located(piece, at, at + 1).sequence[0])
                number -= piece.count
            elif isinstance(piece, Proven):
                number -= 1
                if not number:
                    return piece.sequence
        return 0

    def row_from_end(self, number: int) -> int:
        """Returns the row of the last message for 1, of the one before for 2 and so on; the first if there are fewer."""
        for place in reversed(range(len(self._pieces))):
            piece, begin = self._pieces[place], self._starts[place]
            if isinstance(piece, Stretch):
                if number <= piece.count:
                    return begin + piece.row_of(piece.count - number)
                number -= piece.count
            elif isinstance(piece, Proven):
                number -= 1
                if not number:
                    return begin
        return 0

    def _search(self, stretch: Stretch, value: int, name: str, side: str = "left") -> int:
        """Returns the position of the first message whose value is not below one, or the last not above it."""

        def values(low: int, high: int) -> npt.NDArray[np.int64]:
            found: npt.NDArray[np.int64] = getattr(self.located(stretch, low, high), name)
            return found

        def head(number: int) -> int:
            position = int(heads[number])
            if stretch.index_from is None and name != "timestamp":
                if name == "offset":
                    return int(stretch.offsets[number])
                first = self._scan(stretch, int(stretch.offsets[number]), self._end_of(stretch, number), 1)
                return int(first.sequence[0]) if len(first) else value + 1
            first = self._first(stretch, number) if stretch.index_from is None else self._one(stretch, position)
            found = getattr(first, name)
            return int(found[0]) if len(found) else value + 1

        heads = stretch.marks if stretch.index_from is None else np.arange(0, stretch.count, BLOCK)
        cut = bisect_left if side == "left" else bisect_right
        block = max(cut(range(len(heads)), value, key=head) - 1, 0)
        low = int(heads[block])
        high = int(heads[block + 1]) if block + 1 < len(heads) else stretch.count
        inside = values(low, high)
        wanted = np.asarray(min(value, 2**64 - 1 if inside.dtype == np.uint64 else 2**63 - 1), inside.dtype)
        if side == "right":
            return low + max(int(np.searchsorted(inside, wanted, side="right")) - 1, 0)
        # Times may go back: the first that is not below, as somebody who reads on would find it.
        reached = np.flatnonzero(inside >= wanted)
        position = low + (int(reached[0]) if len(reached) else len(inside))
        return min(position, stretch.count - 1)

    def _one(self, stretch: Stretch, position: int) -> Located:
        """Locates a single message by the index."""
        assert stretch.files.index is not None and stretch.index_from is not None
        at = FILE_HEADER_SIZE + (stretch.index_from + position) * INDEX_RECORD_SIZE
        raw = self._open.read(stretch.files.index, at, INDEX_RECORD_SIZE)
        records = np.frombuffer(raw, index.DTYPE, len(raw) // INDEX_RECORD_SIZE)
        return Located(records["sequence"], records["offset"], records["timestamp"], records["size"])

    def _first(self, stretch: Stretch, number: int) -> Located:
        """Locates the message at a mark by the data."""
        return self._scan(stretch, int(stretch.offsets[number]), self._end_of(stretch, number), 1)

    def _end_of(self, stretch: Stretch, number: int) -> int:
        return int(stretch.offsets[number + 1]) if number + 1 < len(stretch.offsets) else stretch.end

    def _at(self, row: int) -> tuple[Piece, int]:
        place = bisect_right(self._starts, row) - 1
        piece = self._pieces[place]
        return piece, piece.at_row(row - self._starts[place])[0] if isinstance(piece, Stretch) else 0

    # notes

    def next_note(self, row: int, *, backward: bool = False) -> int | None:
        """Returns the next row that is no message, from a row on; None if there is none."""
        place = min(bisect_right(self._starts, row) - 1, len(self._pieces) - 1)
        places = range(place, -1, -1) if backward else range(place, len(self._pieces))
        for each in places:
            piece, begin = self._pieces[each], self._starts[each]
            if isinstance(piece, Note):
                if (begin < row) if backward else (begin > row):
                    return begin
            elif isinstance(piece, Stretch) and len(piece.breaks):
                numbers = range(len(piece.breaks))
                rows = lambda number, piece=piece, begin=begin: begin + int(piece.breaks[number]) + number  # noqa: E731
                cut = bisect_left(numbers, row, key=rows) - 1 if backward else bisect_right(numbers, row, key=rows)
                if 0 <= cut < len(piece.breaks):
                    return rows(cut)
        return None


def open_window(
    files: ChannelFiles,
    crc: Crc,
    *,
    check_crc: bool = True,
    key: bytes | None = None,
    survey: ChannelSurvey | None = None,
) -> Window:
    """Opens a channel at once: a small one exactly, a large one as its indexes say (`refine` finds out the rest).

    Args:
        files: The channel.
        crc: The store's CRC.
        check_crc: False takes messages with a wrong CRC for good.
        key: The encryption key given to the server; None leaves payloads as they are stored.
        survey: What a scan has found, if there was one.
    """
    if is_small(files):
        parts = Builder(files.raw_name, crc, check_crc=check_crc).exactly(files, {}, survey)
    else:
        parts = roughly(files)
    return Window(files, crc, parts, check_crc=check_crc, key=key)


def refine(
    window: Window | None,
    files: ChannelFiles,
    crc: Crc,
    *,
    check_crc: bool = True,
    key: bytes | None = None,
    survey: ChannelSurvey | None = None,
    live: bool = False,
    progress: Progress | None = None,
) -> Window:
    """Finds out all rows of a channel as it is now.

    Args:
        window: What is known so far; slices whose files are the same are not looked at again.
        files: The channel.
        crc: The store's CRC.
        check_crc: False takes messages with a wrong CRC for good.
        key: The encryption key given to the server; None leaves payloads as they are stored.
        survey: What a scan has found, if there was one.
        live: A server is writing.
        progress: Told the number of bytes as they are done.
    """
    known = {part.name: part for part in window.parts} if window else {}
    builder = Builder(files.raw_name, crc, check_crc=check_crc, live=live)
    return Window(files, crc, builder.exactly(files, known, survey, progress), check_crc=check_crc, key=key)


def _rows(piece: Piece) -> int:
    return piece.rows if isinstance(piece, Stretch) else 1


def _is_note(piece: Piece) -> bool:
    return isinstance(piece, Note)


def _bad(stretch: Stretch, stop: Stop, offset: int, length: int, sequence: int) -> Note:
    text = "what is stored here is not the message that the index names" if stop is Stop.END else stop_text(stop)
    return Note(NoteKind.DAMAGE, text, stretch.files.name, offset, length, sequence, sequence)


def _changed(stretch: Stretch) -> Note:
    return Note(NoteKind.FILE, f"{stretch.files.name} has changed since it was looked at", stretch.files.name)


_NOTHING = Located(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))
