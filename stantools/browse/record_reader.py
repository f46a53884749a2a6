"""Reading single records anywhere in a file of any size.

The file stays open and only requested parts are read. Nothing of it is mapped: if another program cuts the open
file, it yields fewer bytes, and nothing worse.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stantools.browse.record_fields import RecordPart, record_parts
from stantools.browse.record_map import RecordMap, RecordStretch, SingleRecord
from stantools.format import gogo, kernels
from stantools.format.columns import LogColumns, MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.layout import INDEX_RECORD, INDEX_RECORD_SIZE, RECORD_HEADER_SIZE
from stantools.inspection.records import INDEX_FIELDS, LOGS, FileKind, FileRecord
from stantools.inspection.subscribers import fields_json
from stantools.store.logscan import decode_record
from stantools.store.mapping import open_regular

#: Number of decoded entries that are kept.
_CACHED_ENTRIES = 8
#: Bytes of a record that are read; of a longer one the CRC is not computed.
MAX_RECORD = 4 << 20


class Decoded:
    """The records of an entry; each is decoded on access."""

    def __init__(
        self,
        offsets: npt.NDArray[np.int64],
        sequences: npt.NDArray[np.uint64],
        describe: Callable[[int, int], list[FileRecord]],
    ) -> None:
        self.offsets = offsets  #: offsets in the file
        self.sequences = sequences  #: sequences; none in a log
        self.describe = describe


class RecordReader:
    """An open file; `channel` is the name as stored in subjects.

    Raises `StoreUnreadableError` if it cannot be opened.
    """

    def __init__(self, path: Path, kind: FileKind, crc: Crc, channel: bytes = b"") -> None:
        self.path = path
        self.kind = kind
        self.map = RecordMap(kind)  #: map of its records; set by the caller once it is known
        self._crc = crc
        self._channel = channel
        self._decoded: OrderedDict[int, Decoded] = OrderedDict()
        self._descriptor, _ = open_regular(path)

    def close(self) -> None:
        """Closes the file; later reads return nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def size(self) -> int:
        """Present size of the file in bytes, 0 once it is closed."""
        return os.fstat(self._descriptor).st_size if self._descriptor >= 0 else 0

    def read(self, offset: int, length: int) -> bytes:
        """Reads bytes: fewer if the file ends or cannot be read."""
        if self._descriptor < 0 or length <= 0 or offset < 0:
            return b""
        try:
            return os.pread(self._descriptor, length, offset)
        except OSError:
            return b""

    def parts(self, row: FileRecord) -> list[RecordPart]:
        """Returns the meaning of every byte of a record."""
        return record_parts(
            self.read(row.offset, min(row.length, MAX_RECORD)),
            self.kind,
            self._crc,
            offset=row.offset,
            length=row.length,
        )

    def row(self, number: int) -> FileRecord | None:
        """Returns a record; None if there is none of this number, or the file has changed."""
        found = self.rows(number, number + 1)
        return found[0] if found else None

    def rows(self, start: int, stop: int) -> list[FileRecord]:
        """Returns records from one number up to another; fewer if the file has changed since it was mapped."""
        found: list[FileRecord] = []
        row = start
        while row < min(stop, self.map.rows):
            entry = self.map.at_row(row)
            if isinstance(entry, SingleRecord):
                size, crc = entry.end - entry.start, None
                hashed = self.kind is FileKind.BLOCK  # at the end of a record, whose place is not known
                if entry.type not in ("version", "zeros", "torn") and size >= RECORD_HEADER_SIZE and not hashed:
                    crc = self._stored(entry.start + (28 if self.kind is FileKind.INDEX else 4))
                fields = {} if entry.sequence is None else {"sequence": entry.sequence}
                found.append(
                    FileRecord(entry.start, size, entry.type, entry.ok, crc, detail=entry.detail, fields=fields)
                )
                row += 1
                continue
            part = self._stretch(entry).describe(row - entry.row, stop - entry.row)
            found += part
            row += max(len(part), 1)
            if not part or (row < min(stop, entry.row + entry.rows)):
                rest = min(stop, entry.row + entry.rows) - (start + len(found))
                text = "the file has changed"
                found += [FileRecord(entry.end, 0, "changed", False, detail=text)] * max(rest, 0)
                row = start + len(found)
        return found

    def row_at(self, offset: int) -> int:
        """Returns the number of the record that holds a byte, or of the last one before it."""
        entry = self.map.at_offset(offset)
        if entry is None:
            return 0
        if isinstance(entry, SingleRecord):
            return entry.row
        offsets = self._stretch(entry).offsets
        return entry.row + max(int(np.searchsorted(offsets, offset, side="right")) - 1, 0)

    def row_of_sequence(self, sequence: int) -> int | None:
        """Returns the number of the first record of a message; None if it is not here. Reads the whole file."""
        for entry in self.map.entries:
            if isinstance(entry, SingleRecord):
                if entry.sequence == sequence:
                    return entry.row
                continue
            # Not from the cache: this may run in the background.
            found = np.flatnonzero(self._decode(entry).sequences == np.uint64(sequence))
            if len(found):
                return entry.row + int(found[0])
        return None

    def _stretch(self, entry: RecordStretch) -> Decoded:
        known = self._decoded.get(entry.start)
        if known is not None:
            self._decoded.move_to_end(entry.start)
            return known
        decoded = self._decoded[entry.start] = self._decode(entry)
        while len(self._decoded) > _CACHED_ENTRIES:
            self._decoded.popitem(last=False)
        return decoded

    def _decode(self, entry: RecordStretch) -> Decoded:
        data = self.read(entry.start, entry.end - entry.start)
        if self.kind is FileKind.MESSAGES:
            return self._messages(data, entry)
        if self.kind is FileKind.INDEX:
            return self._index(data, entry)
        return self._log(data, entry)

    def _messages(self, data: bytes, entry: RecordStretch) -> Decoded:
        columns = MessageColumns(entry.rows)
        # The CRCs were checked when the file was mapped; that of the record at the cursor is checked again.
        rows, _, _ = kernels.scan_messages(data, 0, len(data), self._crc.unchecked, self._channel, columns)
        part = columns.take(rows)
        offsets = part.offset + entry.start

        def describe(low: int, high: int) -> list[FileRecord]:
            table = zip(
                offsets[low:high].tolist(),
                part.size[low:high].tolist(),
                part.sequence[low:high].tolist(),
                part.timestamp[low:high].tolist(),
                part.data_size[low:high].tolist(),
                strict=True,
            )
            found = []
            for at, size, sequence, timestamp, count in table:
                fields = {"sequence": sequence, "timestamp": timestamp, "size": count}
                crc = self._stored(at + 4)
                found.append(FileRecord(at, RECORD_HEADER_SIZE + size, "message", True, crc, fields=fields))
            return found

        return Decoded(offsets, part.sequence, describe)

    def _index(self, data: bytes, entry: RecordStretch) -> Decoded:
        count = min(len(data) // INDEX_RECORD_SIZE, entry.rows)

        def describe(low: int, high: int) -> list[FileRecord]:
            found = []
            places = slice(low * INDEX_RECORD_SIZE, min(high, count) * INDEX_RECORD_SIZE)
            for at, (*values, crc) in zip(
                offsets[low:high].tolist(), INDEX_RECORD.iter_unpack(data[places]), strict=True
            ):
                fields = dict(zip(INDEX_FIELDS, values, strict=True))
                found.append(FileRecord(at, INDEX_RECORD_SIZE, "index", True, crc, fields=fields))
            return found

        offsets = entry.start + INDEX_RECORD_SIZE * np.arange(count, dtype=np.int64)
        return Decoded(offsets, MessageRecords.of_index(data).sequence[:count], describe)

    def _log(self, data: bytes, entry: RecordStretch) -> Decoded:
        layout = LOGS[self.kind]
        columns = LogColumns(entry.rows)
        rows, _, _ = kernels.scan_log(data, 0, len(data), self._crc.unchecked, columns)
        part = columns.take(rows)

        def describe(low: int, high: int) -> list[FileRecord]:
            found = []
            table = zip(*(each[low:high].tolist() for each in (part.offset, part.size, part.type)), strict=True)
            for at, size, kind in table:
                begin = at + RECORD_HEADER_SIZE
                ok, detail = True, ""
                try:
                    fields = fields_json(decode_record(layout, kind, memoryview(data)[begin : begin + size]))
                except gogo.DecodeError as error:
                    fields, ok, detail = {}, False, str(error)
                name = layout.type_name(kind) or f"type {kind}"
                crc = int.from_bytes(data[at + 4 : begin], "little")
                length = RECORD_HEADER_SIZE + size
                found.append(FileRecord(entry.start + at, length, name, ok, crc, detail=detail, fields=fields))
            return found

        return Decoded(np.asarray(part.offset) + entry.start, np.empty(0, np.uint64), describe)

    def _stored(self, offset: int) -> int | None:
        stored = self.read(offset, 4)
        return int.from_bytes(stored, "little") if len(stored) == 4 else None


def part_at(parts: list[RecordPart], offset: int) -> int:
    """Returns the index of the part that holds a byte; -1 if none does."""
    place = bisect_right(parts, offset, key=lambda part: part.start) - 1
    return place if place >= 0 and offset < parts[place].end else -1
