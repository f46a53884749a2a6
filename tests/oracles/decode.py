"""Decoding one message at a time: where the fields of a PubMsg are, what an Ack says (streaming-protocol.md section 2).

What decoders may disagree about (known fields of a wrong wire type, groups, field numbers above 2047) is left to the
caller.
"""

from __future__ import annotations

from typing import Final

#: Start and size.
Span = tuple[int, int]
#: A row of the table of publishes.
Row = tuple[int, int, int, int, int, int, int, int]

_CONN_ID, _SHA256 = 6, 10
_LAST_USUAL_TAG: Final = _CONN_ID << 3 | 2
_ACK_SUBJECT, _ACK_SEQUENCE = 1, 2
_MAX_TAG_BYTES, _MAX_LENGTH_BYTES, _MAX_VARINT_BYTES = 2, 5, 10
_MAX_UINT64: Final = (1 << 64) - 1
_NOTHING: Final[Span] = (0, 0)


class Pattern:
    """What messages of one publisher to one channel have in common when only guid and data differ.

        head: client id, tag and size of the guid | guid | middle: subject, reply, tag of the data | size, data | tail

    A message of the same head, size of guid, middle and tail has the same fields at the same places. That holds for
    whatever the fields are, if guid, reply and data are in this order.

    Args:
        payload: A PubMsg that was decoded.
        client: Its publisher.
        guid: Where its guid is.
        reply: Where its reply is.
        data: Where its data is.
    """

    __slots__ = ("_channel", "_client", "_guid", "_guid_end", "_head", "_middle", "_middle_end", "_reply", "_tail")

    def __init__(self, payload: bytes, client: int, channel: int, guid: Span, reply: Span, data: Span) -> None:
        self._client = client
        self._channel = channel
        self._guid = guid
        self._reply = reply
        self._head = payload[: guid[0]]
        self._guid_end = sum(guid)
        self._middle_end = data[0] - (1 if data[1] < 0x80 else 2)
        self._middle = payload[self._guid_end : self._middle_end]
        self._tail = payload[sum(data) :]
        if not (data[1] and self._middle.endswith(b"\x2a") and sum(reply) <= self._middle_end and data[1] < 1 << 14):
            self._middle = b""  # not in this order

    def row(self, base: int, data: Span) -> Row:
        """Returns the row of the table for a message that begins at `base`."""
        guid, guid_size = self._guid
        reply, reply_size = self._reply
        start, size = data
        return (
            self._client,
            self._channel,
            base + guid,
            guid_size,
            base + reply if reply_size else 0,
            reply_size,
            base + start if size else 0,
            size,
        )

    def read(self, payload: bytes, base: int) -> Row | None:
        """Returns the row of the table for another message; None if it does not look like that."""
        if not (self._middle and payload.startswith(self._head) and payload.startswith(self._middle, self._guid_end)):
            return None
        start = self._middle_end + 1
        length = len(payload)
        if start >= length:
            return None
        size = payload[start - 1]
        if size >= 0x80:
            if payload[start] >= 0x80:
                return None
            size = size & 0x7F | payload[start] << 7
            start += 1
        end = start + size
        if end > length or payload[end:] != self._tail:
            return None
        return self.row(base, (start, size))


class _StrangeError(Exception):
    """Bytes that the general decoder should judge."""


def _varint(payload: bytes, position: int, longest: int) -> tuple[int, int]:
    value = 0
    for i in range(longest):
        if position >= len(payload):
            raise _StrangeError
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value > _MAX_UINT64:
                raise _StrangeError
            return value, position
    raise _StrangeError


def _field(payload: bytes, position: int) -> tuple[int, int, int, int, int]:
    """Returns number, wire type, value (of a varint, else the size), where the bytes begin, and where the next is."""
    tag, position = _varint(payload, position, _MAX_TAG_BYTES)
    number, wire = tag >> 3, tag & 7
    if number == 0:
        raise _StrangeError
    if wire == 0:
        value, position = _varint(payload, position, _MAX_VARINT_BYTES)
        return number, wire, value, position, position
    if wire == 2:
        value, position = _varint(payload, position, _MAX_LENGTH_BYTES)
    elif wire in (1, 5):
        value = 8 if wire == 1 else 4
    else:
        raise _StrangeError
    if value > len(payload) - position:
        raise _StrangeError
    return number, wire, value, position, position + value


def publish_fields(payload: bytes) -> list[Span] | None:
    """Returns where the fields 1 to 6 of a PubMsg are; None if the general decoder should look."""
    spans = [_NOTHING] * _CONN_ID
    position = 0
    length = len(payload)
    try:
        while position < length:
            tag = payload[position]
            if tag <= _LAST_USUAL_TAG and tag & 7 == 2 and position + 1 < length and payload[position + 1] < 0x80:
                number, size, start = tag >> 3, payload[position + 1], position + 2
                position = start + size
                if position > length or number == 0:
                    return None
            else:
                number, wire, size, start, position = _field(payload, position)
                if (number <= _CONN_ID or number == _SHA256) and wire != 2:
                    return None
            if number <= _CONN_ID:
                spans[number - 1] = (start, size) if size else _NOTHING
    except _StrangeError:
        return None
    return spans


def whole_varint(text: bytes) -> int | None:
    """Returns a number that takes all of the bytes, at most nine; None if it does not, or is longer."""
    value = shift = 0
    for byte in text:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value if shift == 7 * len(text) <= 63 else None
    return None


def ack_sequence(payload: bytes, channel: bytes) -> int | None:
    """Returns the sequence of an Ack; None if it is not one of that channel, or the general decoder should look."""
    subject = b""
    sequence = position = 0
    try:
        while position < len(payload):
            number, wire, value, start, position = _field(payload, position)
            if number == _ACK_SUBJECT:
                if wire != 2:
                    return None
                subject = payload[start : start + value]
            elif number == _ACK_SEQUENCE:
                if wire != 0:
                    return None
                sequence = value
    except _StrangeError:
        return None
    return sequence if subject == channel else None
