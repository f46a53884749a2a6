"""The records of a file one by one, as the server reads them: what the faster ways are compared with."""

from __future__ import annotations

from collections.abc import Iterator

from stantools.format.crc import Crc
from stantools.format.envelope import EOF_TEXT, RecordEnvelope, crc_error_text, read_record
from stantools.format.layout import ScanStop


class Records(Iterator[RecordEnvelope]):
    """The records of a file one by one, until the first that is not good.

    Attributes:
        stop: Why it ended; None before the end.
        offset: Where the next record begins, at the end where it stopped.
        bad: The record at which it stopped, as far as it is there.
        error: The server's error text at the end: "" where the server goes on as if the file ended there.
    """

    def __init__(self, buffer: memoryview, start: int, limit: int, *, typed: bool, crc: Crc) -> None:
        self._buffer = buffer
        self._limit = limit
        self._typed = typed
        self._crc = crc
        self.offset = start
        self.stop: ScanStop | None = None
        self.bad: RecordEnvelope | None = None
        self.error = ""

    def __next__(self) -> RecordEnvelope:
        if self.stop is not None:
            raise StopIteration
        stop, record = read_record(
            self._buffer,
            self.offset,
            self._limit,
            typed=self._typed,
            crc=self._crc,
        )
        if stop is None:
            assert record is not None
            self.offset = record.end
            return record
        self.stop, self.bad = stop, record
        if stop in (ScanStop.SHORT_HEADER, ScanStop.SHORT_PAYLOAD):
            self.error = EOF_TEXT
        elif stop is ScanStop.BAD_CRC:
            assert record is not None
            self.error = crc_error_text(record.crc, self._crc(record.payload))
        raise StopIteration
