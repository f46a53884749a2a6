"""The record envelope: a header of 8 bytes before every protobuf payload, and the version at the start of a file.

Facts: filestore.md sections 2.1, 2.2 and 7.2 (see `layout` for the picture). The CRC covers the payload only: a
wrong size or type byte is detected only by its consequences.

This module reads single records and small files. Whole slices and logs are scanned by `kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stantools.errors import UsageError
from stantools.format.crc import Crc
from stantools.format.layout import (
    FILE_HEADER,
    FILE_HEADER_SIZE,
    FILE_VERSION,
    MAX_TYPED_PAYLOAD,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    ScanStop,
)

Buffer = bytes | bytearray | memoryview

#: Computes the CRC-32 of bytes: `crc.Crc` for any polynomial.
CrcFunction = Callable[[Buffer], int]

EOF_TEXT = "unexpected EOF"
PADDED_TEXT = "end of file padded with zeros"

#: content of a file before its first record
FILE_HEADER_BYTES = FILE_HEADER.pack(FILE_VERSION)


@dataclass(frozen=True, slots=True)
class RecordEnvelope:
    offset: int  #: offset of the header in the file
    type: int | None  #: type byte; None in untyped files
    size: int  #: payload size by the header
    crc: int
    payload: memoryview  #: the payload; shorter than `size` at the end of the file

    @property
    def end(self) -> int:
        return self.offset + RECORD_HEADER_SIZE + self.size


def check_file_version(buffer: Buffer) -> str | None:
    """Returns the server's error text if it would reject the version header of a file, else None."""
    if len(buffer) < FILE_HEADER_SIZE:
        return f"unable to verify file version: {EOF_TEXT if len(buffer) else 'EOF'}"
    (version,) = FILE_HEADER.unpack_from(buffer)
    if version != FILE_VERSION:
        return f"unsupported file version: {version} (supports [{FILE_VERSION}..{FILE_VERSION}])"
    return None


def read_record(
    buffer: Buffer, offset: int, limit: int, *, typed: bool, crc: Crc
) -> tuple[ScanStop | None, RecordEnvelope | None]:
    """Reads the record at an offset as the server does; bytes at or after `limit` are not touched.

    Returns None and the record if it is good; else the reason why the server stops here, and the part of the record
    that is there (None without a header).
    """
    limit = min(limit, len(buffer))
    left = limit - offset
    if left <= 0:
        return ScanStop.END, None
    if left < RECORD_HEADER_SIZE:
        return ScanStop.SHORT_HEADER, None
    word, stored = RECORD_HEADER.unpack_from(buffer, offset)
    size = word & MAX_TYPED_PAYLOAD if typed else word
    begin = offset + RECORD_HEADER_SIZE
    payload = memoryview(buffer)[begin : min(begin + size, limit)]
    record = RecordEnvelope(offset, word >> 24 if typed else None, size, stored, payload)
    if word == 0 and stored == 0:
        return ScanStop.ZEROS, record
    if len(payload) < size:
        return (ScanStop.SHORT_PAYLOAD if len(payload) else ScanStop.DANGLING), record
    if crc.check and crc(payload) != stored:
        return ScanStop.BAD_CRC, record
    return None, record


def crc_error_text(stored: int, computed: int) -> str:
    return f"corrupted data, expected crc to be 0x{stored:08x}, got 0x{computed:08x}"


def encode(payload: Buffer, crc: CrcFunction, type: int | None = None) -> bytes:
    """Puts a payload into its envelope; `type` is None for an untyped record."""
    size = len(payload)
    if type is None:
        if size > 0xFFFFFFFF:
            raise UsageError(f"a record payload of {size} bytes does not fit its 32-bit size field")
        return RECORD_HEADER.pack(size, crc(payload)) + payload
    if size > MAX_TYPED_PAYLOAD:
        raise UsageError(f"a typed record payload of {size} bytes is too big, the maximum is {MAX_TYPED_PAYLOAD}")
    if not 0 <= type <= 0xFF:
        raise UsageError(f"there is no record type {type}, it must fit one byte")
    return RECORD_HEADER.pack(type << 24 | size, crc(payload)) + payload
