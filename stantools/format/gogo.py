"""Protobuf decoding exactly as the server's decoder does it, down to the texts of its refusals.

The server's messages are decoded by generated code that is more lenient than Google's library in some
places and stricter in others (filestore.md section 3.1). The rules, in the order in which they
apply to each field; `tag` is a varint: its low three bits are the wire type, the rest, cut to a signed 32-bit
number, the field.

    what           must                                                   or else
    varint         have at most 10 bytes; bits beyond the 64th are lost   integer overflow
    length         not be negative as a signed 64-bit number              negative length found ...
    anything       not reach past the end                                 unexpected EOF
    wire type 4    not be where a field begins                            wiretype end group for non-group
    field number   be positive                                            illegal tag
    known field    have the wire type of its kind                         wrong wireType
    unknown field  not be of wire type 6 or 7; groups are skipped whole   illegal wireType

Of a repeated scalar the last one counts, a repeated sub-message is merged, lists of numbers may be packed or
not, and numbers are cut to the width of their field.
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import DecodeError as _UpbError
from google.protobuf.message import Message

from stantools.errors import StantoolsError

M = TypeVar("M", bound=Message)

_U64 = 2**64 - 1
_INT64_MAX = 2**63 - 1

_EOF = "unexpected EOF"
_OVERFLOW = "proto: integer overflow"
_NEGATIVE = "proto: negative length found during unmarshaling"
_TOO_MANY = "too many fields"

_VARINT, _LENGTH, _GROUP_START, _GROUP_END = 0, 2, 3, 4
_FIXED_SIZES = {1: 8, 5: 4}


class DecodeError(StantoolsError):
    """A payload that the server's decoder refuses; the message is the server's text."""


class _ValueKind(enum.Enum):
    UNSIGNED64 = enum.auto()
    SIGNED64 = enum.auto()
    UNSIGNED32 = enum.auto()
    SIGNED32 = enum.auto()
    BOOL = enum.auto()
    BYTES = enum.auto()
    MESSAGE = enum.auto()


_KINDS = {
    FieldDescriptorProto.TYPE_UINT64: _ValueKind.UNSIGNED64,
    FieldDescriptorProto.TYPE_INT64: _ValueKind.SIGNED64,
    FieldDescriptorProto.TYPE_UINT32: _ValueKind.UNSIGNED32,
    FieldDescriptorProto.TYPE_INT32: _ValueKind.SIGNED32,
    FieldDescriptorProto.TYPE_ENUM: _ValueKind.SIGNED32,
    FieldDescriptorProto.TYPE_BOOL: _ValueKind.BOOL,
    FieldDescriptorProto.TYPE_BYTES: _ValueKind.BYTES,
    FieldDescriptorProto.TYPE_MESSAGE: _ValueKind.MESSAGE,
}


@dataclass(frozen=True)
class _FieldRule:
    name: str
    server_name: str
    kind: _ValueKind
    repeated: bool


@cache
def _fields(descriptor: Descriptor) -> dict[int, _FieldRule]:
    declared = DescriptorProto()
    descriptor.CopyToProto(declared)
    repeated = FieldDescriptorProto.LABEL_REPEATED
    return {
        field.number: _FieldRule(field.name, field.json_name, _KINDS[field.type], field.label == repeated)
        for field in declared.field
    }


def decode(kind: type[M], payload: bytes | bytearray | memoryview, *, max_fields: int = sys.maxsize) -> M:
    """Decodes a payload as the server does, into a message class of `stantools.format.proto.store_pb2`.

    Raises DecodeError with the server's text if it refuses the payload, or if more than `max_fields` fields would
    have to be decoded one by one.
    """
    message, data = kind(), bytes(payload)
    if not _is_usual(message, data):
        _merge(message, data, max_fields)
    return message


def decode_partly(kind: type[M], payload: bytes | bytearray | memoryview) -> tuple[M, str]:
    """Decodes as `decode`; returns the fields before the one that the server refuses, and its text ("" for none)."""
    message, data = kind(), bytes(payload)
    try:
        if not _is_usual(message, data):
            _merge(message, data, sys.maxsize)
    except DecodeError as error:
        return message, str(error)
    return message, ""


def _is_usual(message: Message, data: bytes) -> bool:
    """Decodes the output of a proto3 encoder; returns False, with an empty message, for anything else.

    Such output means the same to every decoder, so the fast library may decode it. The rules above decide on payloads
    that do not encode to the same bytes.
    """
    try:
        message.ParseFromString(data)
        message.DiscardUnknownFields()
        if message.SerializeToString() == data:
            return True
    except _UpbError:
        pass
    message.Clear()
    return False


def _merge(message: Message, data: bytes, max_fields: int) -> None:
    fields = _fields(message.DESCRIPTOR)
    message_name = message.DESCRIPTOR.name
    at, end, left = 0, len(data), max_fields
    while at < end:
        if left == 0:
            raise DecodeError(_TOO_MANY)
        left -= 1
        start = at
        tag, at = _varint(data, at)
        number, wire = _signed32(tag >> 3), tag & 7
        if wire == _GROUP_END:
            raise DecodeError(f"proto: {message_name}: wiretype end group for non-group")
        if number <= 0:
            raise DecodeError(f"proto: {message_name}: illegal tag {number} (wire type {tag})")
        field = fields.get(number)
        if field is None:
            at = skip_field(data, start, max_fields=max_fields)
        else:
            at = _read(message, field, wire, data, at, max_fields)


def _read(message: Message, field: _FieldRule, wire: int, data: bytes, at: int, max_fields: int) -> int:
    """Reads one known field into the message and returns the offset after it."""
    if field.kind in (_ValueKind.BYTES, _ValueKind.MESSAGE):
        if wire != _LENGTH:
            raise DecodeError(f"proto: wrong wireType = {wire} for field {field.server_name}")
        at, stop = _extent(data, at)
        if field.kind is _ValueKind.BYTES:
            setattr(message, field.name, data[at:stop])
        else:
            target: Any = getattr(message, field.name)
            if field.repeated:
                target = target.add()
            else:
                target.SetInParent()
            _merge(target, data[at:stop], max_fields)
        return stop
    if field.repeated and wire == _LENGTH:
        at, stop = _extent(data, at)
        numbers = getattr(message, field.name)
        # As in the server, the last number of a list may reach past the end of the list.
        while at < stop:
            value, at = _varint(data, at)
            numbers.append(_number(field.kind, value))
        return at
    if wire != _VARINT:
        raise DecodeError(f"proto: wrong wireType = {wire} for field {field.server_name}")
    value, at = _varint(data, at)
    if field.repeated:
        getattr(message, field.name).append(_number(field.kind, value))
    else:
        setattr(message, field.name, _number(field.kind, value))
    return at


def _number(kind: _ValueKind, value: int) -> int | bool:
    if kind is _ValueKind.UNSIGNED64:
        return value
    if kind is _ValueKind.SIGNED64:
        return value - (value >> 63 << 64)
    if kind is _ValueKind.SIGNED32:
        return _signed32(value)
    if kind is _ValueKind.UNSIGNED32:
        return value & 0xFFFFFFFF
    return value != 0


def _signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (value >> 31 << 32)


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Returns the number at an offset (unsigned, 64 bits) and the offset after it."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            raise DecodeError(_EOF)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, at
    raise DecodeError(_OVERFLOW)


def _extent(data: bytes, at: int) -> tuple[int, int]:
    length, at = _varint(data, at)
    # also a positive length whose end does not fit 64 bits
    if at + length > _INT64_MAX:
        raise DecodeError(_NEGATIVE)
    if at + length > len(data):
        raise DecodeError(_EOF)
    return at, at + length


def skip_field(data: bytes | memoryview, start: int, *, max_fields: int = sys.maxsize) -> int:
    """Returns the offset after the field, tag included, that begins at `start`, without decoding its value.

    Raises DecodeError if there is no whole field, or if it is a group of more than `max_fields` fields.
    """
    at, depth, left = start, 0, max_fields
    while at < len(data):
        if left == 0:
            raise DecodeError(_TOO_MANY)
        left -= 1
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _LENGTH:
            length, at = _varint(data, at)
            if at - start + length > _INT64_MAX:
                raise DecodeError(_NEGATIVE)
            at += length
        elif wire == _GROUP_START:
            depth += 1
        elif wire == _GROUP_END:
            if depth == 0:
                raise DecodeError("proto: unexpected end of group")
            depth -= 1
        elif wire in _FIXED_SIZES:
            at += _FIXED_SIZES[wire]
        else:
            raise DecodeError(f"proto: illegal wireType {wire}")
        if depth == 0:
            if at > _INT64_MAX:
                raise DecodeError(_NEGATIVE)
            if at > len(data):
                raise DecodeError(_EOF)
            return at
    raise DecodeError(_EOF)
