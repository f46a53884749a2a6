"""Reading messages in order of their sequences, as the server does with its read-ahead buffer.

The server looks a message up in the index of its slice. Without read-ahead it then reads the record at the indexed
offset, and the size in the record's header must be the indexed one. With read-ahead (the default) it reads the message
and as many following ones as fit into the buffer at once: from the offset of the first, each next one directly behind
the one before, all with the sizes of the index. Record headers are looked at for the CRC only. The first message that
is not good ends the buffer, without an error; the error shows when that message itself is asked for and begins a
buffer. So a wrong size in a header, or a wrong offset in the index, is not noticed by a reader that starts in front
of it (filestore.md sections 5.3 and 7.7; the golden stores show the details).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, DecryptError
from stantools.format.envelope import PADDED_TEXT
from stantools.format.layout import RECORD_HEADER, RECORD_HEADER_SIZE
from stantools.inspection.forecast.records import decode_message, read_payload
from stantools.store.mapping import Buffer


@dataclass(frozen=True)
class Source:
    """The data file of a slice, and how it is read.

    Attributes:
        data: The data file.
        end: Where it ends.
        crc: The server's CRC.
        check_crc: The server checks CRCs.
        cipher: The channel's cipher if the server has encryption turned on.
    """

    data: Buffer
    end: int
    crc: Crc
    check_crc: bool
    cipher: ChannelCipher | None

    def read_alone(self, offset: int, size: int) -> tuple[int, str]:
        """Reads one message without read-ahead.

        Args:
            offset: Offset in the index.
            size: Size in the index.

        Returns:
            The sequence of the message that is there and "", or 0 and the error.
        """
        if 0 <= offset <= self.end - RECORD_HEADER_SIZE:
            announced, stored = RECORD_HEADER.unpack_from(self.data, offset)
            if announced == 0 and stored == 0:
                return 0, PADDED_TEXT
            if announced != size and size:
                return 0, f"expected size to be {size}, got {announced}"
        return self._message(*read_payload(self.data, offset, self.end, self.crc, check_crc=self.check_crc))

    def read_buffered(self, offset: int, size: int) -> tuple[int, str]:
        """Reads one message as part of a read-ahead buffer; see `read_alone`."""
        return self._message(*read_payload(self.data, offset, self.end, self.crc, check_crc=self.check_crc, size=size))

    def _message(self, payload: Buffer, error: str) -> tuple[int, str]:
        if error:
            return 0, error
        message, error = decode_message(payload)
        if message is None:
            return 0, error
        if self.cipher is not None:
            try:
                self.cipher.decrypt(message.data)
            except DecryptError as problem:
                return 0, str(problem)
        return message.sequence, ""


class ReadAhead:
    """The state of the server's buffer while it reads a slice from one message to the next.

    Args:
        source: The slice.
        capacity: Size of the buffer in bytes.

    Attributes:
        capacity: As given.
    """

    def __init__(self, source: Source, capacity: int) -> None:
        self._source = source
        self.capacity = capacity
        self._next = -1  # where the buffer has the next message; -1: there is no buffer
        self._limit = 0

    def aligned(self, offset: int) -> bool:
        """Tells whether a message would be read where the index says it is."""
        return self._next in (-1, offset)

    def read(self, offset: int, size: int) -> tuple[int, str]:
        """Reads the next message; see `Source.read_alone`."""
        length = RECORD_HEADER_SIZE + size
        if self._next >= 0 and self._next + length <= self._limit:
            sequence, error = self._source.read_buffered(self._next, size)
            if not error:
                self._next += length
                return sequence, ""
        self._next = -1
        if length > self.capacity:
            return self._source.read_alone(offset, size)
        sequence, error = self._source.read_buffered(offset, size)
        if not error:
            self._next, self._limit = offset + length, offset + self.capacity
        return sequence, error

    def skip(self, offsets: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Reads messages that are good and lie one behind the other, the first where it is expected."""
        row = 0
        while row < len(ends):
            if self._next < 0 or ends[row] > self._limit:
                begin = int(offsets[row])
                if ends[row] - begin > self.capacity:
                    self._next = -1
                    row += 1
                    continue
                self._limit = begin + self.capacity
            row += int(np.searchsorted(ends[row:], self._limit, side="right"))
            self._next = int(ends[row - 1])
