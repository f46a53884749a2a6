"""The meaning of every byte of a record: size, type, CRC, and each field of its payload, good or damaged.

Any bytes are accepted. The parts cover them all, in order, without a gap and without overlap. Facts: filestore.md
sections 2 and 3.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from stantools.escaping import escape
from stantools.format import fieldscan, gogo
from stantools.format.crc import Crc
from stantools.format.layout import (
    FILE_HEADER,
    FILE_HEADER_SIZE,
    FILE_VERSION,
    INDEX_RECORD_SIZE,
    MAX_TYPED_PAYLOAD,
    RECORD_HEADER_SIZE,
)
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.records import LOGS, FileKind
from stantools.notation import cut, format_time

#: Fields and index records that are listed one by one; the rest is one part.
_MAX_PARTS = 512
#: Maximum number of characters of a value.
_MAX_VALUE = 80
_LENGTH_DELIMITED = 2


class PartRole(enum.StrEnum):
    VERSION = "version"  #: the file's version
    SIZE = "size"  #: size of a record
    TYPE = "type"  #: type of a record
    CRC = "crc"  #: a CRC that is right, or cannot be checked
    WRONG = "wrong"  #: a wrong value
    TAG = "tag"  #: number and length of the next field
    NUMBER = "number"
    TIME = "time"
    TEXT = "text"
    DATA = "data"  #: the payload published by a client
    ZEROS = "zeros"
    UNKNOWN = "unknown"  #: bytes without a meaning here


@dataclass(frozen=True, slots=True)
class RecordPart:
    """Some bytes of a record."""

    start: int  #: offset of the first one in the file
    end: int  #: offset after the last one
    name: str
    value: str  #: content, safe to show; for `WRONG` also the expected value
    role: PartRole


def record_parts(
    record: bytes, kind: FileKind, crc: Crc, *, offset: int, length: int | None = None
) -> list[RecordPart]:
    """Returns the meaning of every byte of a record, or of a damaged range; never raises for its content.

    `record` may be only the beginning of a range of `length` bytes. At offset 0 of the file is its version.
    """
    length = max(length or 0, len(record))
    parts = _RecordParts(offset)
    if offset < FILE_HEADER_SIZE and length:
        record = _version(parts, record, offset)
        length -= parts.end - offset
    if not length:
        return parts.list
    if record and not any(record):
        parts.add(len(record), "zeros", f"{len(record)} zero bytes", PartRole.ZEROS)
    elif kind is FileKind.INDEX:
        _index(parts, record, crc)
    else:
        _record(parts, record, kind, crc, length)
    parts.fill(parts.begin + length, "not read", PartRole.UNKNOWN)
    return parts.list


class _RecordParts:
    """Collects consecutive parts."""

    def __init__(self, offset: int) -> None:
        self.begin = offset  # of the record itself, after the version
        self.end = offset
        self.list: list[RecordPart] = []

    def add(self, length: int, name: str, value: str, role: PartRole) -> None:
        if length > 0:
            self.list.append(RecordPart(self.end, self.end + length, name, value, role))
            self.end += length

    def fill(self, end: int, name: str, role: PartRole) -> None:
        """Adds the rest up to an offset."""
        count = end - self.end
        self.add(count, name, "1 byte" if count == 1 else f"{count:,} bytes", role)


def _version(parts: _RecordParts, record: bytes, offset: int) -> bytes:
    whole = record[: FILE_HEADER_SIZE - offset]
    if offset == 0 and len(whole) == FILE_HEADER_SIZE:
        (version,) = FILE_HEADER.unpack(whole)
        good = version == FILE_VERSION
        value = f"{version}" if good else f"{version}, expected {FILE_VERSION}"
        parts.add(len(whole), "file version", value, PartRole.VERSION if good else PartRole.WRONG)
    else:
        parts.add(len(whole), "file version", f"{len(whole)} of {FILE_HEADER_SIZE} bytes", PartRole.WRONG)
    parts.begin = parts.end
    return record[len(whole) :]


def _index(parts: _RecordParts, data: bytes, crc: Crc) -> None:
    numbers = (("sequence", 8, False), ("offset", 8, True), ("timestamp", 8, True), ("size", 4, False))
    for at in range(0, min(len(data), _MAX_PARTS * INDEX_RECORD_SIZE), INDEX_RECORD_SIZE):
        record = data[at : at + INDEX_RECORD_SIZE]
        if len(record) < INDEX_RECORD_SIZE:
            what = f"{len(record)} of the {INDEX_RECORD_SIZE} bytes of a record"
            parts.add(len(record), "torn", what, PartRole.WRONG)
            return
        place = 0
        for name, size, signed in numbers:
            number = int.from_bytes(record[place : place + size], "little", signed=signed)
            time = name == "timestamp"
            text = f"{number} = {format_time(number)}" if time else f"{number:,}"
            parts.add(size, name, text, PartRole.TIME if time else PartRole.NUMBER)
            place += size
        _crc(parts, int.from_bytes(record[-4:], "little"), crc(record[:-4]))


def _crc(parts: _RecordParts, stored: int, computed: int | None) -> None:
    text = f"0x{stored:08x}"
    if computed is None:
        parts.add(4, "CRC", f"{text}, cannot be checked", PartRole.CRC)
    elif stored == computed:
        parts.add(4, "CRC", f"{text}, right", PartRole.CRC)
    else:
        parts.add(4, "CRC", f"{text}, the bytes have 0x{computed:08x}", PartRole.WRONG)


def _record(parts: _RecordParts, record: bytes, kind: FileKind, crc: Crc, length: int) -> None:
    if len(record) < RECORD_HEADER_SIZE:
        what = f"{len(record)} of the {RECORD_HEADER_SIZE} bytes of a record header"
        parts.add(len(record), "torn header", what, PartRole.WRONG)
        return
    word, stored = (int.from_bytes(record[at : at + 4], "little") for at in (0, 4))
    layout = LOGS.get(kind)
    size = word & MAX_TYPED_PAYLOAD if layout else word
    left = length - RECORD_HEADER_SIZE
    present = "1 byte is" if left == 1 else f"{left:,} bytes are"
    text = f"{size:,}" if size == left else f"{size:,}, but {present} here"
    parts.add(3 if layout else 4, "size", text, PartRole.SIZE if size == left else PartRole.WRONG)
    message: type[Message] | None = pb.ServerInfo if kind is FileKind.SERVER else pb.MsgProto
    if layout:
        code = word >> 24
        message = layout.messages.get(code)
        good = message is not None
        name = f"{code} = {layout.type_name(code)}" if good else f"{code}, there is no such type"
        parts.add(1, "type", name, PartRole.TYPE if good else PartRole.WRONG)
    payload = record[RECORD_HEADER_SIZE:]
    _crc(parts, stored, crc(payload[:size]) if size <= len(payload) else None)
    descriptor = cast(Descriptor, message.DESCRIPTOR) if message else None
    inner = payload[:size]
    # A size that is too small hides fields; one that is too big covers other records.
    if size < len(payload) and _whole_fields(payload) and not _whole_fields(inner):
        inner = payload
    _fields(parts, inner, descriptor)
    parts.fill(parts.begin + len(record), "no record", PartRole.UNKNOWN)


def _whole_fields(payload: bytes) -> bool:
    at = 0
    for _ in range(_MAX_PARTS):
        if at == len(payload):
            return True
        try:
            at = gogo.skip_field(payload, at, max_fields=fieldscan.MAX_FIELDS)
        except gogo.DecodeError:
            return False
        if at > len(payload):
            return False
    return False


def _fields(parts: _RecordParts, payload: bytes, descriptor: Descriptor | None) -> None:
    at = 0
    for _ in range(_MAX_PARTS):
        if at >= len(payload):
            return
        try:
            at = _field(parts, payload, at, descriptor)
        except (gogo.DecodeError, fieldscan.FieldScanError) as error:
            parts.add(len(payload) - at, "no field", f"{len(payload) - at:,} bytes: {error}", PartRole.WRONG)
            return
    parts.add(len(payload) - at, "more fields", f"{len(payload) - at:,} bytes", PartRole.UNKNOWN)


def _field(parts: _RecordParts, payload: bytes, at: int, descriptor: Descriptor | None) -> int:
    """Adds a field and returns the offset of the next one."""
    end = gogo.skip_field(payload, at, max_fields=fieldscan.MAX_FIELDS)
    if end > len(payload):
        raise gogo.DecodeError(f"a field announces {end - len(payload):,} bytes more than there are")
    tag, begin = fieldscan.varint(payload, at)
    number, wire = tag >> 3, tag & 7
    known = descriptor.fields_by_number.get(number) if descriptor else None
    name = known.name if known else f"field {number}"
    if wire == _LENGTH_DELIMITED:
        size, begin = fieldscan.varint(payload, begin)
        parts.add(begin - at, f"{name}: tag", f"field {number}, {size:,} bytes", PartRole.TAG)
    else:
        parts.add(begin - at, f"{name}: tag", f"field {number}, wire type {wire}", PartRole.TAG)
    value, role = _value(payload[begin:end], wire, known)
    if begin == end and wire == _LENGTH_DELIMITED:
        return end
    parts.add(end - begin, name, value, role)
    return end


def _value(data: bytes, wire: int, known: FieldDescriptor | None) -> tuple[str, PartRole]:
    if known is None:
        if wire == 0:
            return f"{fieldscan.varint(data, 0)[0]:,}", PartRole.UNKNOWN
        return cut(escape(data[: _MAX_VALUE + 1]), _MAX_VALUE), PartRole.UNKNOWN
    if (known.type == FieldDescriptor.TYPE_BYTES) != (wire == _LENGTH_DELIMITED) or wire not in (0, _LENGTH_DELIMITED):
        return f"wire type {wire} does not go with this field", PartRole.WRONG
    if wire == _LENGTH_DELIMITED:
        if known.name == "conn_id":
            return cut(data[:_MAX_VALUE].hex(), _MAX_VALUE), PartRole.TEXT
        role = PartRole.DATA if known.name == "data" else PartRole.TEXT
        return cut(escape(data[: _MAX_VALUE + 1]), _MAX_VALUE), role
    number = fieldscan.varint(data, 0)[0]
    if known.type == FieldDescriptor.TYPE_BOOL:
        return "yes" if number else "no", PartRole.NUMBER
    if known.type in (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_INT32):
        number = number - (number >> 63 << 64)
    if known.name == "timestamp":
        return f"{number} = {format_time(number)}", PartRole.TIME
    return f"{number:,}", PartRole.NUMBER
