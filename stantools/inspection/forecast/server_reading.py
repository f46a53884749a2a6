"""The server's way to read data files, with its error texts (filestore.md sections 5.3, 7.2, 7.6 and 7.7).

read_payload, check_last_message     one record
scan_data                            all of them, from the first one on, to rebuild an index
Source, ReadAhead                    lookups of messages by the index, alone or with the read-ahead buffer
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stantools.format import gogo, kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, DecryptError
from stantools.format.envelope import EOF_TEXT, PADDED_TEXT, crc_error_text
from stantools.format.layout import FILE_HEADER_SIZE, MESSAGE_OVERHEAD, RECORD_HEADER, RECORD_HEADER_SIZE, ScanStop
from stantools.format.proto import store_pb2 as pb
from stantools.store.mapping import Buffer, MappedWindow

#: Result of a read at the very end of a file.
END_TEXT = "EOF"


def read_payload(buffer: Buffer, offset: int, limit: int, crc: Crc, *, size: int | None = None) -> tuple[Buffer, str]:
    """Reads the payload of the record at any offset; returns it and "", or nothing and the error text.

    `limit` is the end of the file. `size` replaces the size in the record's header, as the server's read-ahead does.
    """
    nothing = buffer[:0]
    left = limit - offset
    if offset < 0 or left <= 0:
        return nothing, END_TEXT
    if left < RECORD_HEADER_SIZE:
        return nothing, EOF_TEXT
    announced, stored = RECORD_HEADER.unpack_from(buffer, offset)
    if size is None:
        if announced == 0 and stored == 0:
            return nothing, PADDED_TEXT
        size = announced
    left -= RECORD_HEADER_SIZE
    if size > left:
        return nothing, EOF_TEXT if left else END_TEXT
    begin = offset + RECORD_HEADER_SIZE
    payload = buffer[begin : begin + size]
    if crc.check and (computed := crc(payload)) != stored:
        return nothing, crc_error_text(stored, computed)
    return payload, ""


def decode_message(payload: Buffer) -> tuple[pb.MsgProto | None, str]:
    """Decodes a message; returns it and "", or None and the server's error text."""
    try:
        return gogo.decode(pb.MsgProto, payload), ""
    except gogo.DecodeError as error:
        return None, str(error)


def check_last_message(buffer: Buffer, sequence: int, offset: int, size: int, crc: Crc, *, since_0_25: bool) -> str:
    """Checks the last message of a slice against its index record (filestore.md section 7.6).

    Returns "" if they agree, else the error text without its prefix. The CRC is checked even if the server has the
    check turned off.
    """
    if offset < 0:
        return f"unable to set position to {offset}"
    if since_0_25 and size and len(buffer) - offset >= RECORD_HEADER_SIZE:
        announced, stored = RECORD_HEADER.unpack_from(buffer, offset)
        if announced != size and (announced or stored):
            return f"unable to read last record: expected record size to be {size} bytes, got {announced} bytes"
    payload, error = read_payload(buffer, offset, len(buffer), crc.checking)
    if error:
        return f"unable to read last record: {error}"
    message, error = decode_message(payload)
    if message is None:
        return f"error decoding message: {error}"
    if not since_0_25 and len(payload) != size:
        return f"last message size in index is {size}, data file is {len(payload)}"
    if message.sequence != sequence:
        return f"last message sequence in index is {sequence}, data file is {message.sequence}"
    return ""


_ROWS = 16384


@dataclass(frozen=True)
class DataScan:
    count: int  #: good records
    bytes: int  #: their bytes in the server's accounting
    first: int  #: sequence of the first one, 0 if there is none
    last: int  #: sequence of the last one
    ascending: bool  #: sequences rise from record to record
    end: int  #: end of the scan
    stop: ScanStop  #: reason for the end
    error: str  #: the server's text for a wrong CRC or a payload that is not a message; else ""
    same_index: bool  #: the present index equals a new one


def scan_data(buffer: Buffer, channel: bytes, crc: Crc, index: Buffer | None) -> DataScan:
    """Scans a data file (after its version header) up to the first problem, and compares `index` with a new index."""
    columns = MessageColumns(_ROWS)
    window = MappedWindow(buffer)
    count = size = first = 0
    last = -1
    ascending = True
    compared = 0 if index is None else FILE_HEADER_SIZE
    at, stop = FILE_HEADER_SIZE, ScanStop.FULL
    while stop is ScanStop.FULL:
        window.reach(at)
        rows, at, code = kernels.scan_messages(buffer, at, len(buffer), crc, channel, columns)
        stop = ScanStop(code)
        if rows:
            batch = columns.take(rows)
            if not count:
                first = int(batch.sequence[0])
            ascending = (
                ascending and int(batch.sequence[0]) > last and bool((batch.sequence[1:] > batch.sequence[:-1]).all())
            )
            last = int(batch.sequence[-1])
            count += rows
            size += int(batch.size.sum(dtype=np.uint64)) + MESSAGE_OVERHEAD * rows
            if compared and index is not None:
                records = kernels.encode_index(batch.sequence, batch.offset, batch.timestamp, batch.size, crc)
                end = compared + len(records)
                compared = end if index[compared:end] == records else 0
    same = index is not None and compared > 0 and compared == len(index)
    error = _error(buffer, at, stop, crc)
    return DataScan(count, size, first, max(last, 0), ascending, at, stop, error, same)


def _error(buffer: Buffer, offset: int, stop: ScanStop, crc: Crc) -> str:
    if stop not in (ScanStop.BAD_CRC, ScanStop.BAD_DECODE):
        return ""
    size, stored = RECORD_HEADER.unpack_from(buffer, offset)
    begin = offset + RECORD_HEADER_SIZE
    payload = buffer[begin : begin + size]
    return crc_error_text(stored, crc(payload)) if stop is ScanStop.BAD_CRC else decode_message(payload)[1]


@dataclass(frozen=True)
class SliceData:
    """The data file of a slice, and the settings for reading it."""

    data: Buffer
    end: int  #: end of the file
    crc: Crc
    cipher: ChannelCipher | None  #: the channel's cipher if the server has encryption turned on

    def read_alone(self, offset: int, size: int) -> tuple[int, str]:
        """Reads one message, at offset and size of the index, without read-ahead.

        Returns the sequence of the message found and "", or 0 and the error.
        """
        if 0 <= offset <= self.end - RECORD_HEADER_SIZE:
            announced, stored = RECORD_HEADER.unpack_from(self.data, offset)
            if announced == 0 and stored == 0:
                return 0, PADDED_TEXT
            if announced != size and size:
                return 0, f"expected size to be {size}, got {announced}"
        return self._message(*read_payload(self.data, offset, self.end, self.crc))

    def read_buffered(self, offset: int, size: int) -> tuple[int, str]:
        """Reads one message as part of a read-ahead buffer; otherwise as `read_alone`."""
        return self._message(*read_payload(self.data, offset, self.end, self.crc, size=size))

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


class ServerReadAhead:
    """The state of the server's buffer while it reads a slice from one message to the next.

    The server looks a message up in the index of its slice. Without read-ahead it then reads the record at the
    indexed offset, and the size in the record's header must be the indexed one. With read-ahead (the default) it
    reads the message and the next ones, up to the size of the buffer: from the offset of the first, each next one
    directly after the one before, all with the sizes of the index. Record headers serve for the CRC only. The first
    message that is not good ends the buffer, without an error; the error shows when that message itself is read and
    begins a buffer. So a reader that starts before it does not notice a wrong size in a header, or a wrong offset in
    the index (the golden stores show the details).

    `capacity` is the size of the buffer in bytes.
    """

    def __init__(self, source: SliceData, capacity: int) -> None:
        self._source = source
        self.capacity = capacity
        self._next = -1  # offset of the next message in the buffer; -1: there is no buffer
        self._limit = 0

    def aligned(self, offset: int) -> bool:
        """Returns whether a message would be read at its indexed offset."""
        return self._next in (-1, offset)

    def read(self, offset: int, size: int) -> tuple[int, str]:
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
        """Reads consecutive good messages, the first of which is at the expected place."""
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
