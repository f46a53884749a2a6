"""Decodes messages and subscription updates as the server's decoder does, into plain numbers.

Facts: filestore.md section 3.1.

The server's decoder takes more than its encoder writes: fields in any order, the last of a repeated scalar,
unknown fields of any wire type, groups included. This module accepts what it accepts and nothing else. The
compiled kernels repeat these rules; tests hold both to the general decoder of `stantools.format.gogo`.

    tag = varint: field number * 8 + wire type
    wire types: 0 varint | 1 eight bytes | 2 length and bytes | 3 group begins | 4 group ends | 5 four bytes
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from stantools.format.layout import Flag

Bytes: TypeAlias = bytes | memoryview

_MASK64: Final = (1 << 64) - 1
_MAX_LENGTH: Final = (1 << 63) - 1

#: Maximum number of fields of a payload that `is_message` and `is_fields` accept, so that a search through garbage
#: stays linear. Real records have at most 11.
MAX_FIELDS: Final = 16


class FieldScanError(Exception):
    """The server's decoder would refuse these bytes. Stays inside `stantools.format`."""


class MessageFields(NamedTuple):
    """A decoded message; starts are positions in the payload, 0 for an empty value."""

    sequence: int
    timestamp: int
    subject: Bytes
    reply_start: int
    reply_size: int
    data_start: int
    data_size: int
    flags: int  # without FOREIGN_SUBJECT


def varint(payload: Bytes, position: int) -> tuple[int, int]:
    """Reads an unsigned varint; returns it with the position after it.

    Bits beyond 64 are lost, as in the server. Raises DecodeError for more than ten bytes, or if the payload ends
    within.
    """
    value = shift = 0
    end = len(payload)
    while shift < 70:
        if position >= end:
            raise FieldScanError("unexpected EOF")
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, position
        shift += 7
    raise FieldScanError("integer overflow")


def _tag(payload: Bytes, position: int) -> tuple[int, int, int]:
    value, position = varint(payload, position)
    number = value >> 3 & 0xFFFFFFFF  # the server keeps 32 bits of the field number, signed
    if value & 7 == 4 or not 0 < number < 1 << 31:
        raise FieldScanError("illegal tag")
    return number, value & 7, position


def _span(payload: Bytes, position: int) -> tuple[int, int]:
    length, start = varint(payload, position)
    if length > len(payload) - start:
        raise FieldScanError("negative length" if length > _MAX_LENGTH else "unexpected EOF")
    return start, start + length


def _skip(payload: Bytes, position: int, wire: int, budget: list[int]) -> int:
    """The position after the value of an unknown field."""
    depth = 0
    while True:
        if wire == 0:
            _, position = varint(payload, position)
        elif wire == 1:
            position += 8
        elif wire == 2:
            _, position = _span(payload, position)
        elif wire == 3:
            depth += 1
        elif wire == 4:
            depth -= 1
        elif wire == 5:
            position += 4
        else:
            raise FieldScanError("illegal wire type")
        if position > len(payload):
            raise FieldScanError("unexpected EOF")
        if depth == 0:
            return position
        budget[0] -= 1
        if budget[0] < 0:
            raise FieldScanError("too many fields")
        value, position = varint(payload, position)
        wire = value & 7


def message(payload: Bytes, max_fields: int = 1 << 62) -> MessageFields:
    """Decodes a MsgProto (filestore.md section 3.5).

    Raises DecodeError if the server's decoder would refuse it, or if it has more than `max_fields` fields.
    """
    sequence = timestamp = redelivered = deliveries = crc = 0
    subject = reply = data = (0, 0)
    position = last = 0
    # "Usual": encoding the decoded values yields exactly these bytes.
    usual = True
    budget = [max_fields]
    while position < len(payload):
        budget[0] -= 1
        if budget[0] < 0:
            raise FieldScanError("too many fields")
        begin = position
        number, wire, position = _tag(payload, position)
        usual = usual and last < number and position == begin + 1
        last = number
        if number in (2, 3, 4):
            if wire != 2:
                raise FieldScanError("wrong wire type")
            begin = position
            span = _span(payload, position)
            position = span[1]
            size = position - span[0]
            usual = usual and size > 0 and span[0] - begin == max(1, (size.bit_length() + 6) // 7)
            if number == 2:
                subject = span
            elif number == 3:
                reply = span
            else:
                data = span
        elif number in (1, 5, 6, 7, 10):
            if wire != 0:
                raise FieldScanError("wrong wire type")
            begin = position
            value, position = varint(payload, position)
            if number == 1:
                sequence = value
            elif number == 5:
                timestamp = value
            elif number == 6:
                redelivered = value = int(value != 0)
            elif number == 7:
                deliveries = value = value & 0xFFFFFFFF
            else:
                crc = value = value & 0xFFFFFFFF
            # A value of more than 64 bits is never minimal: its tenth byte is above 1.
            usual = usual and value > 0 and payload[begin:position] == encode_varint(value)
        else:
            usual = False
            position = _skip(payload, position, wire, budget)
    flags = 0 if usual else int(Flag.UNUSUAL)
    if redelivered or deliveries or crc:
        flags |= Flag.REDELIVERED
    reply_size = reply[1] - reply[0]
    if reply_size:
        flags |= Flag.HAS_REPLY
    data_size = data[1] - data[0]
    return MessageFields(
        sequence,
        timestamp - (1 << 64) if timestamp >> 63 else timestamp,
        payload[subject[0] : subject[1]],
        reply[0] if reply_size else 0,
        reply_size,
        data[0] if data_size else 0,
        data_size,
        int(flags),
    )


def is_message(payload: Bytes) -> bool:
    """Returns whether a payload is certainly a stored message: it decodes, and has a sequence and a subject."""
    try:
        decoded = message(payload, MAX_FIELDS)
    except FieldScanError:
        return False
    return decoded.sequence > 0 and bool(decoded.subject)


def update(payload: Bytes, *, with_sequence: bool) -> tuple[int, int]:
    """Decodes a SubStateUpdate, or a SubStateDelete, which has no field 2 (filestore.md section 3.4).

    Returns the subscription's id and the sequence; raises DecodeError if the server's decoder would refuse it.
    """
    values = [0, 0, 0]
    position = 0
    known = 2 if with_sequence else 1
    while position < len(payload):
        number, wire, position = _tag(payload, position)
        if number <= known:
            if wire != 0:
                raise FieldScanError("wrong wire type")
            values[number], position = varint(payload, position)
        else:
            position = _skip(payload, position, wire, [1 << 62])
    return values[1], values[2]


def is_fields(payload: Bytes) -> bool:
    """Returns whether a payload is a sequence of protobuf fields that fill it exactly."""
    position = 0
    budget = [MAX_FIELDS]
    try:
        while position < len(payload):
            budget[0] -= 1
            if budget[0] < 0:
                return False
            _, wire, position = _tag(payload, position)
            position = _skip(payload, position, wire, budget)
    except FieldScanError:
        return False
    return True


def encode_varint(value: int) -> bytes:
    """Encodes an unsigned number in as few bytes as possible."""
    if value < 0x80:
        return bytes((value,))
    encoded = []
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
