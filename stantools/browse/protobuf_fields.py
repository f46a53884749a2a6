"""Reading protobuf without a schema: possible fields, and guesses at their meaning.

Bytes do not say that they are protobuf, nor the type of a field: the result is one possible reading. Nothing raises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Wire = Literal["varint", "fixed64", "bytes", "text", "message", "group", "fixed32"]

_MAX_DEPTH = 16
#: Maximum number of fields; messages with more are not for reading.
MAX_FIELDS = 2000
_MASK64 = (1 << 64) - 1


@dataclass
class WireField:
    """A field of a protobuf message, as encoded."""

    number: int
    wire: Wire  #: wire type; for bytes, their probable type
    offset: int  #: offset of its tag in the whole payload
    size: int  #: bytes, including its tag
    value: int | bytes = 0  #: a number, or the bytes
    fields: list[WireField] = field(default_factory=list)  #: content of a message or a group


@dataclass
class WireMessage:
    """The readable part of some bytes."""

    fields: list[WireField]  #: in order
    end: int  #: number of readable bytes
    problem: str = ""  #: reason why reading ended early, else ""


def read_wire(data: bytes) -> WireMessage:
    """Reads bytes as protobuf, as far as they make sense."""
    return _WireReader(data).read(0, len(data), 0)


class _WireReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MAX_FIELDS

    def read(self, at: int, end: int, depth: int, group: int = 0) -> WireMessage:
        fields: list[WireField] = []
        while at < end:
            tag = self._varint(at, end)
            if tag is None:
                return WireMessage(fields, at, "a field's tag is cut off or too long")
            number, wire = tag[0] >> 3, tag[0] & 7
            if wire == 4:
                if group and number == group:
                    return WireMessage(fields, tag[1])
                return WireMessage(fields, at, "a group ends that has not begun")
            if not 0 < number < 1 << 29:
                return WireMessage(fields, at, f"there is no field number {number}")
            if self._left <= 0:
                return WireMessage(fields, at, f"more than {MAX_FIELDS} fields")
            self._left -= 1
            found = self._field(number, wire, at, tag[1], end, depth)
            if isinstance(found, str):
                return WireMessage(fields, at, found)
            fields.append(found)
            at += found.size
        return WireMessage(fields, at, "a group does not end" if group else "")

    def _field(self, number: int, wire: int, begin: int, at: int, end: int, depth: int) -> WireField | str:
        if wire == 0:
            value = self._varint(at, end)
            if value is None:
                return "a number is cut off or too long"
            return WireField(number, "varint", begin, value[1] - begin, value[0])
        if wire in (1, 5):
            width = 8 if wire == 1 else 4
            if end - at < width:
                return f"fewer than {width} bytes are left"
            fixed = int.from_bytes(self._data[at : at + width], "little")
            return WireField(number, "fixed64" if wire == 1 else "fixed32", begin, at + width - begin, fixed)
        if wire == 2:
            length = self._varint(at, end)
            if length is None or length[0] > end - length[1]:
                return "a length goes beyond the end"
            return self._bytes(number, begin, length[1], length[1] + length[0], depth)
        if wire == 3:
            if depth >= _MAX_DEPTH:
                return "groups are nested too deeply"
            inner = self.read(at, end, depth + 1, number)
            if inner.problem:
                return inner.problem
            return WireField(number, "group", begin, inner.end - begin, 0, inner.fields)
        return f"there is no wire type {wire}"

    def _bytes(self, number: int, begin: int, start: int, stop: int, depth: int) -> WireField:
        value = self._data[start:stop]
        size = stop - begin
        if not value or is_text(value):
            return WireField(number, "text", begin, size, value)
        if depth < _MAX_DEPTH:
            left = self._left
            inner = self.read(start, stop, depth + 1)
            if not inner.problem and inner.fields:
                return WireField(number, "message", begin, size, value, inner.fields)
            self._left = left
        return WireField(number, "bytes", begin, size, value)

    def _varint(self, at: int, end: int) -> tuple[int, int] | None:
        value = shift = 0
        while at < end and shift < 70:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _MASK64, at
            shift += 7
        return None


def is_text(data: bytes) -> bool:
    """Returns whether bytes are printable text: UTF-8 whose only control characters are line breaks."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return text.isprintable() or all(each.isprintable() or each in "\n\r\t" for each in text)


def guesses(found: WireField) -> Iterator[str]:
    """Iterates over other possible meanings of a number."""
    value = found.value
    if isinstance(value, bytes):
        return
    if found.wire == "varint":
        if value >= 1 << 63:
            yield f"int64 {value - (1 << 64)}"
        elif value > 1:
            yield f"zigzag {(value >> 1) ^ -(value & 1)}"
    elif found.wire in ("fixed64", "fixed32"):
        code, width = ("d", 8) if found.wire == "fixed64" else ("f", 4)
        number = struct.unpack(f"<{code}", value.to_bytes(width, "little"))[0]
        yield f"{'double' if width == 8 else 'float'} {number:.9g}"
        if value >= 1 << (8 * width - 1):
            yield f"signed {value - (1 << 8 * width)}"


@dataclass(frozen=True)
class MessageHead:
    """The beginning of a stored message (msgs.N.dat, filestore.md section 3.5)."""

    subject: bytes = b""
    reply: bytes = b""  #: reply subject
    data: bytes = b""  #: the available part of the payload
    data_size: int = 0  #: bytes of the whole payload


def message_head(head: bytes) -> MessageHead:
    """Reads the fields in the available beginning of a message."""
    reader = _WireReader(head)
    at, found = 0, {2: b"", 3: b"", 4: b""}
    sizes = {4: 0}
    while at < len(head):
        tag = reader._varint(at, len(head))
        if tag is None:
            break
        number, wire = tag[0] >> 3, tag[0] & 7
        value = reader._varint(tag[1], len(head)) if wire in (0, 2) else None
        if value is None:
            break
        at = value[1]
        if wire == 2:
            if number in found:
                found[number] = head[at : at + value[0]]
                sizes[number] = value[0]
            at += value[0]
    return MessageHead(found[2], found[3], found[4], sizes[4])
