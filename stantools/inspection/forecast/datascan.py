"""Scanning a data file from its first record, as the server does to rebuild an index (filestore.md section 7.6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.envelope import crc_error_text
from stantools.format.layout import FILE_HEADER_SIZE, MESSAGE_OVERHEAD, RECORD_HEADER, RECORD_HEADER_SIZE, Stop
from stantools.inspection.forecast.records import decode_message
from stantools.store.mapping import Buffer, Window

_ROWS = 16384


@dataclass(frozen=True)
class DataScan:
    """What a scan found.

    Attributes:
        count: Good records.
        bytes: Their bytes in the server's accounting.
        first: Sequence of the first one, 0 if there is none.
        last: Sequence of the last one.
        ascending: Sequences rise from record to record.
        end: Where the scan stopped.
        stop: Why.
        error: The server's text for a wrong CRC or a payload that is no message; else "".
        same_index: The index there is holds exactly what a new one would hold.
    """

    count: int
    bytes: int
    first: int
    last: int
    ascending: bool
    end: int
    stop: Stop
    error: str
    same_index: bool


def scan_data(buffer: Buffer, channel: bytes, crc: Crc, check_crc: bool, index: Buffer | None) -> DataScan:
    """Scans a data file up to the first problem.

    Args:
        buffer: The file; its version header was checked.
        channel: The channel's name.
        crc: The server's CRC.
        check_crc: The server checks CRCs.
        index: The index there is, to compare it with what a new one would hold.
    """
    columns = MessageColumns(_ROWS)
    window = Window(buffer)
    count = size = first = 0
    last = -1
    ascending = True
    compared = 0 if index is None else FILE_HEADER_SIZE
    at, stop = FILE_HEADER_SIZE, Stop.FULL
    while stop is Stop.FULL:
        window.reach(at)
        rows, at, code = kernels.scan_messages(buffer, at, len(buffer), crc, check_crc, channel, columns)
        stop = Stop(code)
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
                compared = _compare(index, compared, batch, crc)
    same = index is not None and compared > 0 and compared == len(index)
    error = _error(buffer, at, stop, crc)
    return DataScan(count, size, first, max(last, 0), ascending, at, stop, error, same)


def _compare(index: Buffer, position: int, batch: MessageColumns, crc: Crc) -> int:
    """Compares a batch with the index from a position on; returns the next position, 0 if they differ."""
    records = kernels.encode_index(batch.sequence, batch.offset, batch.timestamp, batch.size, crc)
    end = position + len(records)
    return end if index[position:end] == records else 0


def _error(buffer: Buffer, offset: int, stop: Stop, crc: Crc) -> str:
    if stop not in (Stop.BAD_CRC, Stop.BAD_DECODE):
        return ""
    size, stored = RECORD_HEADER.unpack_from(buffer, offset)
    begin = offset + RECORD_HEADER_SIZE
    payload = buffer[begin : begin + size]
    return crc_error_text(stored, crc(payload)) if stop is Stop.BAD_CRC else decode_message(payload)[1]
