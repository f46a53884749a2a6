"""Reading one piece of a slice as rows of the messages table.

The table shows the content of the data files, whatever the index says. A piece is read record by record; its index
alone is read only if CRCs are not checked and all selected columns are in the index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stantools.errors import StoreUnreadableError
from stantools.format.columns import FewMessages, MessageColumns, MessageRecords
from stantools.format.envelope import check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE
from stantools.format.message_batch import MessageBatch
from stantools.inspection.stored_messages import Selection, chosen
from stantools.pipeline.tables.batches import REMEDY, RowStatus, SliceRowBuilder, gathered, odd_row
from stantools.pipeline.tables.model import FailedRead, ReadCounter, SlicePiece, SliceRef
from stantools.pipeline.tables.slice_pieces import (
    crc_of,
    mapped_index,
    records_of,
    selection_of,
    unchecked_index,
)
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.indexes import INDEX_ROWS, SliceIndex, scan_index
from stantools.store.mapping import Buffer, mapped
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns for which the index is enough if CRCs are not checked.
INDEXED_COLUMNS = frozenset(
    ("store", "channel", "seq", "timestamp", "timestamp_ns", "slice", "offset", "status"),
)


def read_piece(
    piece: SlicePiece, options: TableOptions, counter: ReadCounter | None = None, *, named: SliceRef | None = None
) -> Iterator[pa.RecordBatch]:
    """Reads a piece of a local slice; records that begin in it are read to their end, even beyond the piece.

    Yields batches with exactly the columns of `options.columns`, none empty, in the order of the file, in memory of
    their own. `named` is the slice to name in the rows, if the piece is of a copy. Raises `StoreUnreadableError` in
    mode FAILFAST for damage; in any mode if the piece does not end at the end of a record, so that the next piece
    would begin inside one.
    """
    rows = SliceRowBuilder(named or piece.slice, options)
    selection = selection_of(options.bounds)
    if selection is None:
        return
    with ExitStack() as stack:
        try:
            data = stack.enter_context(mapped(Path(piece.slice.data), sequential=True))
        except StoreUnreadableError as error:
            if (batch := rows.unreadable(error)) is not None:
                yield batch
            return
        reader = _PieceReader(piece, data, rows, selection, options, counter or ReadCounter(), stack)
        yield from gathered(reader.read(), options)


def read_unreadable(part: FailedRead, options: TableOptions) -> Iterator[pa.RecordBatch]:
    """Yields the row of the messages table for something unreadable; raises `StoreUnreadableError` in mode FAILFAST."""
    place = (part.root, part.channel, part.file)
    error = StoreUnreadableError(part.message, part.remedy)
    yield from odd_row(options, error, place, status=RowStatus.UNREADABLE.value)


class _Neighbour(NamedTuple):
    """An intact message next to damage."""

    sequence: int
    timestamp: int


class _PieceReader:
    def __init__(
        self,
        piece: SlicePiece,
        data: Buffer,
        rows: SliceRowBuilder,
        selection: Selection,
        options: TableOptions,
        counter: ReadCounter,
        stack: ExitStack,
    ) -> None:
        self._piece = piece
        self._data = data
        self._rows = rows
        self._selection = selection
        self._everything = selection == Selection()
        self._capacity = max(options.batch_rows, 1)
        self._counter = counter
        self._stack = stack
        self._crc = crc_of(piece.slice.store.polynomial, options.check_crc)
        self._file = SliceFile(data, os.fsencode(piece.slice.channel), self._crc)
        self._by_index = not options.check_crc and INDEXED_COLUMNS.issuperset(rows.names)

    def read(self) -> Iterator[pa.RecordBatch]:
        start = max(self._piece.start, FILE_HEADER_SIZE)
        if self._by_index:
            with unchecked_index(self._piece.slice, self._data) as index:
                if index is not None:
                    part = records_of(self._piece, index, self._data, self._crc, self._counter)
                    if part is not None:
                        yield from self._index_rows(part)
                        start = part.end
        yield from self._scan_rows(start)
        begin = max(self._piece.start, len(self._data))
        if self._piece.end > begin:
            error = StoreUnreadableError(
                f"{self._piece.slice.data}: has {len(self._data)} bytes and had {self._piece.slice.data_size} when it "
                "was listed",
                "make sure that nothing changes the store while it is read, and run again",
            )
            if (batch := self._rows.unreadable(error, begin, self._piece.end - begin)) is not None:
                yield batch

    def _index_rows(self, records: MessageRecords) -> Iterator[pa.RecordBatch]:
        for low in range(0, len(records), min(self._capacity, INDEX_ROWS)):
            part = records.part(low, low + min(self._capacity, INDEX_ROWS))
            columns = MessageColumns(len(part))
            columns.offset[:], columns.sequence[:], columns.timestamp[:] = part.offset, part.sequence, part.timestamp
            yield from self._messages(MessageBatch(columns, self._data, self._file.channel))

    def _scan_rows(self, start: int) -> Iterator[pa.RecordBatch]:
        piece = self._piece
        header = check_file_version(self._data) if piece.start <= FILE_HEADER_SIZE else None
        before: _Neighbour | None = None
        pending: list[DamagedRange] = []
        at = start
        for event in self._file.records(start, piece.end, index=self._good_index, rows=self._capacity):
            if header and isinstance(event, DamagedRange):
                yield from self._missing_version_row(header)
            header = None
            begin, at = at, event.end
            self._counter.data(at - begin)
            if isinstance(event, DamagedRange):
                pending.append(event)
                if self._everything:
                    yield from self._damage_rows(pending, None, None)
                    pending.clear()
                continue
            if pending:
                before = before or self._message_before(start)
                yield from self._damage_rows(pending, before, _neighbour(event, 0))
                pending.clear()
            before = _neighbour(event, -1)
            yield from self._messages(event)
        if header:
            yield from self._missing_version_row(header)
        if pending:
            found = self._file.message_at(at)
            after = None if found is None else _neighbour(found, 0)
            yield from self._damage_rows(pending, before or self._message_before(start), after)
        if at > piece.end and piece.end < min(piece.slice.data_size, len(self._data)):
            raise StoreUnreadableError(
                f"{piece.slice.data}: was cut at offset {piece.end} to be read in parts, where a record was expected "
                f"to begin, but what begins before it ends at offset {at}",
                f"read the slice as a whole: set splitBytes to {len(self._data)} or more, and leave bounds out",
            )

    def _good_index(self) -> SliceIndex | None:
        """Opens the good records of the index, which help to continue after damage and may name anything."""
        buffer = self._stack.enter_context(mapped_index(self._piece.slice))
        self._counter.index(len(buffer))
        count = scan_index(buffer, self._crc).rows if len(buffer) > FILE_HEADER_SIZE else 0
        return SliceIndex(buffer, count) if count else None

    def _messages(self, batch: MessageBatch, *, repaired: bool = False) -> Iterator[pa.RecordBatch]:
        if not self._everything:
            wanted = chosen(batch.sequence, batch.timestamp, self._selection)
            if not wanted.all():
                batch = batch.pick(wanted)
        if len(batch):
            yield from self._rows.messages(batch, repaired=repaired)

    def _damage_rows(
        self, damages: list[DamagedRange], before: _Neighbour | None, after: _Neighbour | None
    ) -> Iterator[pa.RecordBatch]:
        """Yields rows for damaged ranges, unless the messages around them show that nothing selected is in them."""
        if not _may_hold_selected(self._selection, before, after):
            return
        for damage in damages:
            if damage.repair is not None:
                proven = MessageBatch.of_messages([damage.repair.message], self._file.channel)
                proven.offset[0], proven.size[0] = damage.offset, damage.repair.size
                yield from self._messages(proven, repaired=True)
            elif (batch := self._rows.damages([damage])) is not None:
                yield batch

    def _missing_version_row(self, text: str) -> Iterator[pa.RecordBatch]:
        """Yields a row for a file without a version header, as far as it is unreadable."""
        error = StoreUnreadableError(
            f"{self._piece.slice.data}: at offset 0: {text}; expected a message slice that begins with its version",
            REMEDY,
        )
        size = min(len(self._data), FILE_HEADER_SIZE)
        if (batch := self._rows.unreadable(error, 0, size)) is not None:
            yield batch

    def _message_before(self, start: int) -> _Neighbour | None:
        """Returns the message before the piece according to the index, if known."""
        if start <= FILE_HEADER_SIZE:
            return None
        with unchecked_index(self._piece.slice, self._data) as index:
            row = index.first("offset", start) - 1 if index is not None else -1
            if index is None or row < 0:
                return None
            self._counter.index(INDEX_RECORD_SIZE)
            record = index[row]
            if record.end != start or not record.proven(self._crc):
                return None
            return _Neighbour(record.sequence, record.timestamp)


def _may_hold_selected(selection: Selection, before: _Neighbour | None, after: _Neighbour | None) -> bool:
    """Returns whether a selected message may lie between two messages; None is the end of the file."""
    if before is not None:
        if selection.last is not None and before.sequence >= selection.last:
            return False
        if selection.until is not None and before.timestamp >= selection.until:
            return False
    if after is not None:
        if selection.first is not None and after.sequence <= selection.first:
            return False
        if selection.since is not None and after.timestamp < selection.since:
            return False
    return True


def _neighbour(columns: MessageColumns | FewMessages, row: int) -> _Neighbour:
    return _Neighbour(int(columns.sequence[row]), int(columns.timestamp[row]))
