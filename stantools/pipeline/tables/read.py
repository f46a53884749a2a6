"""Reading the parts of one task, or of a stream's batch, as Arrow batches of any table.

Between the planning of a stream and its reading a server may rename a slice for its archive script, or remove it.
The reader then uses the archived copy, or returns a row that names the missing messages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from stantools.errors import StoreUnreadableError
from stantools.pipeline.tables.batches import gathered, odd_row
from stantools.pipeline.tables.copies import copied_part, copied_pieces
from stantools.pipeline.tables.follow import FollowPart
from stantools.pipeline.tables.message_rows import read_piece, read_unreadable
from stantools.pipeline.tables.model import (
    FailedRead,
    Mode,
    ReadCounter,
    SlicePiece,
    Split,
    SqlPart,
    StorePart,
    TableName,
    plain_text,
)
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.sql_parts import opened_part
from stantools.pipeline.tables.storetables import (
    READERS,
    KnownClients,
    LocalPart,
    Row,
    batches,
    finding_row,
    int64,
    unreadable_finding,
)
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.growing_channel import REMOVED, LostRange

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger(__name__)

_BAK = ".bak"
FOLLOW_REMEDY = "set the option mode to PERMISSIVE to report it as a row and continue"


def read_split(split: Split, options: TableOptions, counter: ReadCounter | None = None) -> Iterator[pa.RecordBatch]:
    """Reads the parts of a split of `planning.plan` in order; joins small pieces into one batch.

    Other columns and batch sizes than those of the plan are allowed. Raises `StoreUnreadableError` for damage in
    mode FAILFAST, `StoreUnwritableError` if the copy of a remote file cannot be written.
    """
    if any(isinstance(each, SqlPart) for each in split.parts):
        for part in split.parts:
            yield from _sql(part, options) if isinstance(part, SqlPart) else read_split(Split((part,)), options)
    elif options.table is TableName.STREAM_MESSAGES:
        from stantools.pipeline.tables.stream_messages import read_streams

        yield from read_streams(split, options, counter)
    elif options.table is TableName.MESSAGES:
        yield from gathered(_messages(split, options, counter), options)
    else:
        yield from batches(_rows(split, options), options)


def _sql(part: SqlPart, options: TableOptions) -> Iterator[pa.RecordBatch]:
    """Reads a part of a SQL store: findings of the store itself, all else by a private copy of its rows."""
    from stantools.inspection.sql_inspection import verify_sql

    with opened_part(part, options) as source:
        if options.table is TableName.FINDINGS:
            assert source.sql
            found = verify_sql(source.sql, part.channels).findings
            yield from batches((finding_row(source.shown, each) for each in found), options)
            return
        inside = replace(options, paths=(str(source.store().path),), channels=part.channels, partitions=1)
        for split in plan(inside).splits:
            yield from read_split(split, inside)


def _messages(split: Split, options: TableOptions, counter: ReadCounter | None) -> Iterator[pa.RecordBatch]:
    for part in split.parts:
        if isinstance(part, FailedRead):
            yield from read_unreadable(part, options)
        elif isinstance(part, SlicePiece):
            yield from _piece(part, options, counter)


def _piece(piece: SlicePiece, options: TableOptions, counter: ReadCounter | None) -> Iterator[pa.RecordBatch]:
    with ExitStack() as stack:
        try:
            pieces = stack.enter_context(copied_pieces(piece, options, counter))
        except StoreUnreadableError as error:
            ref = piece.slice
            # `read_piece` reports a local file that cannot be read.
            unreadable = FailedRead(ref.store.root, error.message, error.remedy, ref.channel, ref.name)
            yield from read_unreadable(unreadable, options)
            return
        for each in pieces:
            yield from read_piece(each, options, counter, named=piece.slice)


def _rows(split: Split, options: TableOptions) -> Iterator[Row]:
    known = KnownClients()
    for part in split.parts:
        if isinstance(part, FailedRead):
            yield from _unreadable(part, options)
        elif isinstance(part, StorePart):
            try:
                with copied_part(part, options) as root:
                    for row in READERS[options.table](LocalPart(part, root, options, known)):
                        if isinstance(row, FailedRead):
                            yield from _unreadable(row, options)
                        else:
                            yield row
            except StoreUnreadableError as error:
                if options.mode is Mode.FAILFAST:
                    raise
                unreadable = FailedRead(part.store.root, error.message, error.remedy, part.channel, part.file or "")
                yield from _unreadable(unreadable, options)


def _unreadable(part: FailedRead, options: TableOptions) -> Iterator[Row]:
    if options.mode is Mode.FAILFAST:
        raise StoreUnreadableError(part.message, part.remedy)
    if options.mode is Mode.DROPMALFORMED:
        return
    base = {
        "store": plain_text(part.root),
        "channel": plain_text(part.channel),
    }
    file, message = plain_text(part.file) or None, plain_text(part.message)
    if options.table is TableName.FINDINGS:
        yield unreadable_finding(part)
    elif options.table is TableName.RECORDS:
        yield {**base, "file": file, "status": "unreadable", "detail": message}
    elif options.table is TableName.SLICES:
        yield {**base, "slice": file, "source": "nothing", "problems": [message]}
    else:
        yield {**base, "status": "damaged" if part.damaged else "unreadable", "detail": message}


def read_work(work: Sequence[FollowPart], options: TableOptions) -> Iterator[pa.RecordBatch]:
    """Reads the work of `Follower.work` in order; joins small pieces into one batch.

    Raises `StoreUnreadableError` in mode FAILFAST if something is damaged, gone or unreadable.
    """
    yield from gathered((batch for each in work for batch in _followed(each, options)), options)


def _followed(each: FollowPart, options: TableOptions) -> Iterator[pa.RecordBatch]:
    if isinstance(each, LostRange):
        yield from _loss_row(each, options)
    elif isinstance(each, FailedRead):
        yield from read_unreadable(each, options)
    elif (piece := _present_piece(each)) is None:
        ref = each.slice
        what = f"{ref.data}: was removed before it was read, {each.cost} bytes from offset {each.start} on"
        LOG.warning("%s", what)
        yield from _loss_row(
            LostRange(ref.store.root, ref.channel, REMOVED, ref.name, None, each.start, each.cost, what), options
        )
    else:
        yield from read_piece(piece, options, named=each.slice)


def _present_piece(piece: SlicePiece) -> SlicePiece | None:
    """Returns the piece in the present file, which may have been archived meanwhile; None if it is gone."""
    ref = piece.slice
    if os.path.lexists(ref.data):
        return piece
    if ref.archived or not os.path.lexists(ref.data + _BAK):
        return None
    index = ref.index and (ref.index + _BAK if os.path.lexists(ref.index + _BAK) else ref.index)
    return replace(piece, slice=replace(ref, data=ref.data + _BAK, index=index, archived=True))


def _loss_row(lost: LostRange, options: TableOptions) -> Iterator[pa.RecordBatch]:
    """Yields the row of the messages table for missing messages."""
    return odd_row(
        options,
        StoreUnreadableError(lost.message, FOLLOW_REMEDY),
        (lost.root, lost.channel, lost.file),
        seq=int64(lost.sequence),
        offset=lost.offset,
        size=lost.size,
        status=lost.status,
    )
