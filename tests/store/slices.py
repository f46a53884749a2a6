"""Reading slices in tests, record by record."""

from __future__ import annotations

from pathlib import Path

from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, ScanStop
from stantools.format.message_batch import MessageBatch

Message = tuple[int, int, bytes, bytes]


def scan(path: Path, channel: bytes, crc: Crc) -> MessageBatch:
    """All records of a healthy data file."""
    buffer = memoryview(path.read_bytes())
    columns = MessageColumns(len(buffer) // 8 + 1)
    rows, offset, stop = kernels.scan_messages(buffer, FILE_HEADER_SIZE, len(buffer), crc, channel, columns)
    assert (stop, offset) == (ScanStop.END, len(buffer)), path
    return MessageBatch(columns.take(rows), buffer, channel)


def messages(path: Path, channel: bytes, crc: Crc) -> list[Message]:
    """All messages of a healthy data file: sequence, timestamp, reply, data."""
    return list(scan(path, channel, crc).messages())


def slice_files(directory: Path) -> dict[str, bytes]:
    """Content of all files of a channel's slices, by name."""
    return {path.name: path.read_bytes() for path in sorted(directory.glob("msgs.*.*"))}


def all_messages(directory: Path, channel: bytes, crc: Crc) -> list[Message]:
    """All messages of a healthy channel in slice order."""
    numbers = sorted(int(path.name.split(".")[1]) for path in directory.glob("msgs.*.dat"))
    return [each for n in numbers for each in messages(directory / f"msgs.{n}.dat", channel, crc)]
