"""A SQL store as a file store: the intact messages, byte for byte, with clients and subscriptions as recorded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

import numpy as np

from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER, RECORD_HEADER_SIZE
from stantools.sqlstore.sql_recovery import SqlState
from stantools.sqlstore.tables import MessageRow
from stantools.store.limits import SliceLimits
from stantools.store.logwriter import Live
from stantools.store.ranges import Ranges
from stantools.store.slicewriter import SliceWriter
from stantools.store.storewriter import StoreWriter

#: writers with open files at a time
_OPEN: Final = 100
_LIMITS: Final = SliceLimits(max_bytes=64 << 20)
_PLACE: Final = np.dtype([("seq", "<u8"), ("offset", "<i8"), ("size", "<i8"), ("timestamp", "<i8")])


@dataclass(frozen=True)
class ChannelContent:
    name: bytes
    wanted: Mapping[int, Ranges]  #: the messages to write, by id in the table
    ascending: bool  #: they come in the order of their sequences
    subscriptions: Sequence[Live]


def write_store(
    directory: Path,
    recovered: SqlState,
    channels: Sequence[ChannelContent],
    messages: Iterator[list[MessageRow]],
    progress: Callable[[int], object] | None = None,
) -> None:
    """Writes a file store with these channels into an empty directory. Raises StoreUnwritableError.

    Without a readable row of ServerInfo there is no server.dat: its cluster id is unknown.
    """
    crc = Crc()
    store = StoreWriter(directory, crc)
    if recovered.server:
        store.write_server(recovered.server)
    store.write_clients(recovered.clients)
    writers: dict[int, _ChannelWriter] = {}
    for channel in channels:
        store.write_subs(channel.name, channel.subscriptions)
        writer = _ChannelWriter(channel, store.slices(channel.name, _LIMITS), crc)
        writers |= dict.fromkeys(channel.wanted, writer)
    opened: OrderedDict[_ChannelWriter, None] = OrderedDict()
    try:
        for batch in messages:
            for number, part in _by_channel(batch).items():
                if (found := writers.get(number)) is None:
                    continue
                found.take(number, part)
                opened[found] = None
                opened.move_to_end(found)
                if len(opened) > _OPEN:
                    opened.popitem(last=False)[0].release()
            if progress:
                progress(sum(len(each.data or b"") for each in batch))
        for writer in dict.fromkeys(writers.values()):
            writer.finish()
    finally:
        for writer in dict.fromkeys(writers.values()):
            writer.abandon()


def _by_channel(batch: list[MessageRow]) -> dict[int, list[MessageRow]]:
    found: dict[int, list[MessageRow]] = {}
    for row in batch:
        if (part := found.get(row.id)) is None:
            part = found[row.id] = []
        part.append(row)
    return found


class _ChannelWriter:
    """Writes the intact messages of a channel in the order of their sequences.

    Rows that come in another order are put aside in a file, and sorted at the end.
    """

    def __init__(self, channel: ChannelContent, writer: SliceWriter, crc: Crc) -> None:
        self._wanted = channel.wanted
        self._writer, self._crc = writer, crc
        self._aside: IO[bytes] | None = None if channel.ascending else TemporaryFile()  # noqa: SIM115
        self._places: list[tuple[int, int, int, int]] = []

    def take(self, channel: int, rows: list[MessageRow]) -> None:
        wanted = self._wanted[channel]
        if not (len(rows) == rows[-1].seq - rows[0].seq + 1 and wanted.covers(rows[0].seq, rows[-1].seq)):
            rows = [each for each in rows if each.seq in wanted]
        if not rows:
            return
        if self._aside is None:
            self._append([(each.seq, each.timestamp or 0, each.data or b"") for each in rows])
            return
        for each in rows:
            data = each.data or b""
            self._places.append((each.seq, self._aside.tell(), len(data), each.timestamp or 0))
            self._aside.write(data)

    def _append(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        buffer, starts = bytearray(), []
        pack, crc = RECORD_HEADER.pack, self._crc
        for _, _, data in messages:
            starts.append(len(buffer) + RECORD_HEADER_SIZE)
            buffer += pack(len(data), crc(data))
            buffer += data
        self._writer.append_encoded(
            bytes(buffer),
            np.array(starts, np.int64),
            np.array([len(data) for _, _, data in messages], np.uint32),
            np.array([sequence for sequence, _, _ in messages], np.uint64),
            np.array([timestamp for _, timestamp, _ in messages], np.int64),
        )

    def release(self) -> None:
        self._writer.release()

    def finish(self) -> None:
        if self._aside is not None:
            places = np.array(self._places, _PLACE)
            _, first = np.unique(places["seq"], return_index=True)  # of equal rows the first
            for begin in range(0, len(first), 1000):
                part = []
                for sequence, offset, size, timestamp in places[first[begin : begin + 1000]].tolist():
                    self._aside.seek(offset)
                    part.append((sequence, timestamp, self._aside.read(size)))
                self._append(part)
            self._aside.close()
            self._aside = None
        self._writer.close()

    def abandon(self) -> None:
        self._writer.abandon()
        if self._aside is not None:
            self._aside.close()
