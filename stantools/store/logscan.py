"""Reading clients.dat and subs.dat record by record: as the server does, or through any damage.

Facts: filestore.md sections 7.2 and 7.4. `ServerScan` stops where the server stops and reports its error and its
truncation. `scan_log` continues after any damage, so that records and damaged ranges together cover the whole file.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.message import Message

from stantools.format import gogo, kernels
from stantools.format.columns import LogColumns
from stantools.format.crc import Crc
from stantools.format.envelope import EOF_TEXT, check_file_version, crc_error_text
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    MAX_TYPED_PAYLOAD,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    ScanStop,
)
from stantools.store.logrepair import LogLayout, PayloadReading, proven_size, read_payload, recognise
from stantools.store.mapping import Buffer, MappedWindow, find_in_data

#: rows of one batch
BATCH_ROWS = 16384
#: bytes of a log that stay mapped, twice: the folded state needs memory as well
_WINDOW = 4 << 20


@dataclass(frozen=True)
class LogEnd:
    """The place where the server stops reading a log, and the consequence."""

    offset: int  #: first byte that is not part of a good record
    stop: ScanStop | None  #: the reason; None if the file's version header is refused
    error: str  #: reason of its refusal to start (without the prefix that names the file); "" if it starts
    file_size: int

    @property
    def torn(self) -> bool:
        """The truncate option repairs this, by cutting the file at `offset`."""
        return self.stop in (ScanStop.SHORT_HEADER, ScanStop.SHORT_PAYLOAD)

    @property
    def early(self) -> bool:
        """The server does not read all of the file."""
        return bool(self.error) or self.offset < self.file_size

    def size_after(self, *, truncate: bool) -> int:
        """Returns the file's size after a start, with or without the truncate option.

        Padding is cut in both cases, a torn record only with the option, other damage never.
        """
        cuts = self.stop is ScanStop.ZEROS or (truncate and self.torn)
        return self.offset if cuts else self.file_size


class ServerScan(Iterator[LogColumns]):
    """The records of a log in batches, up to where the server stops.

    Only the types 3, 4 and 5 are decoded here. The caller, who knows the order of the records, checks other types
    and payloads and calls `refuse`.
    """

    def __init__(self, buffer: Buffer, layout: LogLayout, crc: Crc) -> None:
        self._buffer = buffer
        self._layout = layout
        self._crc = crc
        self._columns = _columns(buffer)
        self._window = MappedWindow(buffer, _WINDOW)
        self._at = FILE_HEADER_SIZE
        self._last: tuple[int, ScanStop] | None = None
        self.end: LogEnd | None = None  #: the end, set by the last step
        if text := check_file_version(buffer):
            self.end = LogEnd(0, None, text, len(buffer))

    def __next__(self) -> LogColumns:
        if self.end is None and self._last is not None:
            self.end = self._ending(*self._last)
        if self.end is not None:
            raise StopIteration
        self._window.reach(self._at)
        rows, self._at, stop = kernels.scan_log(self._buffer, self._at, len(self._buffer), self._crc, self._columns)
        if stop != ScanStop.FULL:
            self._last = self._at, ScanStop(stop)
        return self._columns.take(rows)

    def refuse(self, offset: int, error: str) -> None:
        """Ends the scan at a record of the last batch, which the server refuses."""
        self.end = LogEnd(offset, ScanStop.BAD_DECODE, error, len(self._buffer))

    def _ending(self, offset: int, stop: ScanStop) -> LogEnd:
        error = ""
        if stop in (ScanStop.SHORT_HEADER, ScanStop.SHORT_PAYLOAD):
            error = EOF_TEXT
        elif stop is ScanStop.BAD_CRC:
            _, _, stored, payload = record_at(self._buffer, offset)
            error = crc_error_text(stored, self._crc(payload))
        elif stop is ScanStop.BAD_DECODE:
            kind, _, _, payload = record_at(self._buffer, offset)
            error = _decode_error(self._layout, kind, payload)
        return LogEnd(offset, stop, error, len(self._buffer))


def _columns(buffer: Buffer) -> LogColumns:
    """Makes columns that fit the file: most logs are small, and each channel has one."""
    return LogColumns(min(BATCH_ROWS, len(buffer) // RECORD_HEADER_SIZE + 1))


def record_at(buffer: Buffer, offset: int) -> tuple[int, int, int, Buffer]:
    """Returns type, size, stored CRC and payload of the record whose header is at an offset.

    The payload is shorter than the size at the end of the file.
    """
    word, stored = RECORD_HEADER.unpack_from(buffer, offset)
    size = word & MAX_TYPED_PAYLOAD
    begin = offset + RECORD_HEADER_SIZE
    return word >> 24, size, stored, buffer[begin : begin + size]


def decode_record(layout: LogLayout, kind: int, payload: Buffer) -> Message:
    """Decodes a record of right CRC as the server does.

    Raises DecodeError with the server's text if it refuses the record for its type or its payload.
    """
    if kind not in layout.messages:
        raise gogo.DecodeError(layout.unknown_type.format(kind))
    return gogo.decode(layout.messages[kind], payload)


def _decode_error(layout: LogLayout, kind: int, payload: Buffer) -> str:
    try:
        decode_record(layout, kind, payload)
    except gogo.DecodeError as error:
        return str(error)
    return ""


class LogDamageKind(enum.StrEnum):
    VERSION = "version"  #: the version header, or the part of it that is there
    TORN = "torn"  #: the file ends inside a record
    ZEROS = "zeros"  #: zero bytes in place of a record
    PAYLOAD = "payload"  #: a whole record whose payload does not match its CRC
    LENGTH = "length"  #: the size in the header is wrong, the payload is proven by its CRC
    TYPE = "type"  #: the type in the header is wrong, the payload is proven by its CRC
    CRC_FIELD = "crc-field"  #: one byte of the CRC is wrong, the payload makes sense
    UNDECODABLE = "undecodable"  #: the CRC is right, the payload does not belong into this log
    GARBAGE = "garbage"  #: bytes without any recognisable record


@dataclass(frozen=True)
class LogDamage:
    offset: int
    length: int  #: bytes up to the next good record or the end
    kind: LogDamageKind
    stop: ScanStop | None  #: reason of the server's reader to stop here; None for the version header
    detail: str  #: the finding and the expectation
    reading: PayloadReading | None = None  #: the meaning of the payload, if it is proven in spite of the damage
    type: int | None = None  #: record type under which it was applied in spite of the damage; None if it was not

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def repaired(self) -> bool:
        """The record was recovered, so no data is lost here."""
        return self.type is not None

    @property
    def message(self) -> Message | None:
        """The payload, if it is proven."""
        return self.reading.message if self.reading else None


@dataclass
class LogState:
    rows: int = 0  #: number of good records in the file
    record_bytes: int = 0  #: their bytes, headers included: the size that the server tracks for its compaction
    end: LogEnd | None = None  #: the place where the server stops reading; None if reading continued after damage
    #: damaged ranges in file order, repaired ones included
    damages: list[LogDamage] = field(default_factory=list)


def scan_log(buffer: Buffer, layout: LogLayout, crc: Crc) -> Iterator[LogColumns | LogDamage]:
    """Scans a log from the first byte to the last, continuing after any damage.

    Yields batches, valid until the next step, and damaged ranges, in file order. Except for a good version header,
    they cover the whole file. Rows have a right CRC; the caller checks type and payload (`judge_row`).
    """
    columns, window = _columns(buffer), MappedWindow(buffer, _WINDOW)
    at, limit = 0, len(buffer)
    if text := check_file_version(buffer):
        found = kernels.find_log_record(buffer, 0, limit, crc, layout.max_type)
        # Records normally begin at 4; earlier only if the first bytes of the file were lost.
        at = found if 0 <= found < FILE_HEADER_SIZE else min(limit, FILE_HEADER_SIZE)
        if at or not limit:
            yield LogDamage(0, at, LogDamageKind.VERSION, None, text)
    else:
        at = FILE_HEADER_SIZE
    while at < limit:
        window.reach(at)
        rows, at, stop = kernels.scan_log(buffer, at, limit, crc, columns)
        if rows:
            yield columns.take(rows)
        if stop in (ScanStop.END, ScanStop.FULL):
            continue
        damage = _damage(buffer, layout, crc, at, ScanStop(stop))
        yield damage
        at = damage.end


def judge_row(layout: LogLayout, buffer: Buffer, offset: int) -> PayloadReading | LogDamage:
    """Judges a record of right CRC by its payload.

    Returns its reading, or the damage, with a reading if only the type byte is wrong.
    """
    kind, size, _, payload = record_at(buffer, offset)
    reading = read_payload(layout, kind, payload)
    if reading is not None and not reading.retyped:
        return reading
    error = _decode_error(layout, kind, payload) or f"record type {kind} does not go with this payload"
    what = LogDamageKind.TYPE if reading else LogDamageKind.UNDECODABLE
    return LogDamage(offset, RECORD_HEADER_SIZE + size, what, ScanStop.BAD_DECODE, error, reading)


@dataclass(frozen=True, slots=True)
class LogEntry:
    offset: int  #: offset of its header
    size: int  #: payload size in bytes
    type: int
    message: Message


def history(buffer: Buffer, layout: LogLayout, crc: Crc) -> Iterator[LogEntry | LogDamage]:
    for part in scan_log(buffer, layout, crc):
        if isinstance(part, LogDamage):
            yield part
            continue
        for offset, size in zip(part.offset, part.size, strict=True):
            judged = judge_row(layout, buffer, offset)
            if isinstance(judged, LogDamage):
                yield judged
            else:
                yield LogEntry(offset, size, judged.types[0], judged.message)


def _damage(buffer: Buffer, layout: LogLayout, crc: Crc, at: int, stop: ScanStop) -> LogDamage:
    limit = len(buffer)
    if stop is ScanStop.SHORT_HEADER:
        detail = f"{limit - at} bytes are left, a record header has {RECORD_HEADER_SIZE}"
        kind = LogDamageKind.TORN if any(buffer[at:]) else LogDamageKind.ZEROS
        return LogDamage(at, limit - at, kind, stop, detail)
    type_byte, size, stored, payload = record_at(buffer, at)
    if stop is ScanStop.BAD_DECODE:
        judged = judge_row(layout, buffer, at)
        assert isinstance(judged, LogDamage)
        return judged
    if stop is not ScanStop.ZEROS and (true_size := proven_size(buffer, at, limit, crc)):
        begin = at + RECORD_HEADER_SIZE
        reading = read_payload(layout, type_byte, buffer[begin : begin + true_size])
        if reading is not None:
            detail = f"the header says {size} bytes, the CRC matches {true_size}"
            if reading.retyped:
                detail += f", and record type {type_byte} does not go with them"
            length = RECORD_HEADER_SIZE + true_size
            return LogDamage(at, length, LogDamageKind.LENGTH, stop, detail, reading)

    def find(begin: int, until: int) -> int:
        return kernels.find_log_record(buffer, begin, limit, crc, layout.max_type, until)

    found = find_in_data(buffer, at + 1, limit, find)
    end = found if found >= 0 else limit
    length = end - at
    if stop is ScanStop.ZEROS:
        return LogDamage(at, length, LogDamageKind.ZEROS, stop, "zeros where a record header should be")
    if stop in (ScanStop.DANGLING, ScanStop.SHORT_PAYLOAD):
        kind = LogDamageKind.TORN if found < 0 else LogDamageKind.GARBAGE
        detail = f"the header announces {size} bytes, {len(payload)} are left in the file"
        return LogDamage(at, length, kind, stop, detail)
    computed = crc(payload)
    detail = crc_error_text(stored, computed)
    if at + RECORD_HEADER_SIZE + size != end:
        return LogDamage(at, length, LogDamageKind.GARBAGE, stop, detail)
    reading = recognise(layout, payload)
    different_bytes = sum(byte != 0 for byte in (stored ^ computed).to_bytes(4, "little"))
    if reading is not None and type_byte in reading.types and different_bytes == 1:
        reading = PayloadReading((type_byte,), reading.message)
        return LogDamage(at, length, LogDamageKind.CRC_FIELD, stop, detail, reading)
    return LogDamage(at, length, LogDamageKind.PAYLOAD, stop, detail)
