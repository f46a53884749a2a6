"""Decodes many message records at once with numpy.

Messages of the shape that the server writes are decoded in columns, field by field; whatever differs in any way (order,
padding, unknown fields) goes to `fieldscan.message`, one by one.

    08 sequence | 12 size subject | [1a size reply] | [22 size data] | 28 timestamp
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.format import fieldscan
from stantools.format.columns import MessageColumns
from stantools.format.layout import RECORD_HEADER_SIZE, Flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Positions = NDArray[np.int64]

#: One row of `MessageColumns`.
ROW: Final = np.dtype([(name, getattr(MessageColumns(0), name).dtype) for name in MessageColumns.names])

#: So many records at a time stay in the processor's cache.
_BLOCK: Final = 2048
_LONGEST_VARINT: Final = 10
_SHIFTS: Final = np.arange(_LONGEST_VARINT, dtype=np.uint64) * np.uint64(7)
#: Sizes from here on are too large for any file; they are cut so that sums do not overflow.
_HUGE: Final = np.uint64(1 << 62)


class _Fields:
    """Reads one field after the other in all records; `good` says in which all has been as usual so far."""

    def __init__(self, data: NDArray[np.uint8], position: Positions, end: Positions) -> None:
        self._data = data
        self._last = len(data) - 1
        self.position = position
        self.end = end
        self.good: Bools = np.ones(len(position), np.bool_)

    def _bytes(self, count: int) -> NDArray[np.uint8]:
        """The next bytes of each record, shape (records, count); beyond the end of the file, whatever."""
        taken: NDArray[np.uint8] = self._data[np.minimum(self.position[:, None] + np.arange(count), self._last)]
        return taken

    def has(self, expected: bytes) -> Bools:
        """Where these bytes come next; nothing is read."""
        found: Bools = self.position + len(expected) <= self.end
        found &= (self._bytes(len(expected)) == np.frombuffer(expected, np.uint8)).all(axis=1)
        return found

    def skip(self, expected: bytes) -> None:
        """Reads these bytes."""
        self.good &= self.has(expected)
        self.position = self.position + len(expected)

    def varint(self) -> NDArray[np.uint64]:
        """Reads a number above zero in as few bytes as possible."""
        read = self._bytes(_LONGEST_VARINT)
        stops = read < 0x80
        last = stops.argmax(axis=1)
        value: NDArray[np.uint64] = np.where(
            np.arange(_LONGEST_VARINT) <= last[:, None], (read & 0x7F).astype(np.uint64) << _SHIFTS, np.uint64(0)
        ).sum(axis=1, dtype=np.uint64)
        highest = read[np.arange(len(read)), last]
        self.position = self.position + last + 1
        self.good &= stops.any(axis=1) & (highest > 0) & (self.position <= self.end)
        # The tenth byte has room for one bit.
        self.good &= (last < _LONGEST_VARINT - 1) | (highest == 1)
        return value

    def optional(self, tag: bytes) -> tuple[Positions, Positions]:
        """Start and size of a length-delimited field, both 0 where it is not there."""
        there = self.has(tag)
        before, good = self.position, self.good.copy()
        self.position = self.position + len(tag)
        size = np.minimum(self.varint(), _HUGE).astype(np.int64)
        start = self.position
        self.good &= size <= self.end - start
        self.good = np.where(there, self.good, good)
        # Records that are not usual any more stay where they are: nothing may grow out of bounds.
        self.position = np.where(there & self.good, start + size, before)
        return np.where(there, start, 0), np.where(there, size, 0)


def decode(view: memoryview, position: Positions, size: Positions, channel: bytes) -> tuple[NDArray[Any], Bools]:
    """Decodes the messages in the records at the given places.

    Args:
        view: The file.
        position: Offsets of the records' headers.
        size: Payload sizes; the payloads lie within the file.
        channel: The subject that they should have.

    Returns:
        Rows of the type `ROW`, and for each whether the server's decoder accepts it. Where it does not, the row
        holds the offset and the size only.
    """
    rows = np.zeros(len(position), ROW)
    rows["offset"], rows["size"] = position, size
    accepted = np.ones(len(position), np.bool_)
    usual = np.zeros(len(position), np.bool_)
    for first in range(0, len(position), _BLOCK):
        part = slice(first, first + _BLOCK)
        usual[part] = _usual(view, position[part] + RECORD_HEADER_SIZE, size[part], channel, rows[part])
    for i in np.flatnonzero(~usual).tolist():
        begin = int(position[i]) + RECORD_HEADER_SIZE
        try:
            message = fieldscan.message(bytes(view[begin : begin + int(size[i])]))
        except fieldscan.FieldScanError:
            accepted[i] = False
            continue
        rows[i] = (
            position[i],
            size[i],
            message.sequence,
            message.timestamp,
            begin + message.data_start if message.data_size else 0,
            message.data_size,
            begin + message.reply_start if message.reply_size else 0,
            message.reply_size,
            message.flags | (0 if message.subject == channel else Flag.FOREIGN_SUBJECT),
        )
    return rows, accepted


def _usual(view: memoryview, begin: Positions, size: Positions, channel: bytes, rows: NDArray[Any]) -> Bools:
    """Fills the rows of messages that look as usual; returns which those are."""
    if not len(begin) or not channel:
        return np.zeros(len(begin), np.bool_)
    fields = _Fields(np.frombuffer(view, np.uint8), begin, begin + size)
    fields.skip(b"\x08")
    sequence = fields.varint()
    fields.skip(b"\x12" + fieldscan.encode_varint(len(channel)) + channel)
    reply_start, reply_size = fields.optional(b"\x1a")
    data_start, data_size = fields.optional(b"\x22")
    fields.skip(b"\x28")
    timestamp = fields.varint().view(np.int64)
    usual: Bools = fields.good & (fields.position == fields.end)
    flags = np.where(reply_size > 0, np.uint8(Flag.HAS_REPLY), np.uint8(0))
    columns = (sequence, timestamp, data_start, data_size, reply_start, reply_size, flags)
    for name, column in zip(MessageColumns.names[2:], columns, strict=True):
        rows[name][usual] = column[usual]
    return usual
