"""Reading what one task has to read, as Arrow batches, whichever table it is of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from stantools.errors import StoreUnreadableError
from stantools.pipeline.tables import clients, findings, records, slices, subscriptions
from stantools.pipeline.tables.arrow import pa
from stantools.pipeline.tables.batches import gathered
from stantools.pipeline.tables.copies import copied_part, copied_pieces
from stantools.pipeline.tables.counter import ReadCounter
from stantools.pipeline.tables.messages import read_piece, read_unreadable
from stantools.pipeline.tables.model import Mode, Piece, Split, StorePart, Table, Unreadable
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.parts import KnownClients, LocalPart, Row, batches
from stantools.pipeline.tables.text import plain_text, slice_name

_READERS = {
    Table.RECORDS: records.rows,
    Table.SUBSCRIPTIONS: subscriptions.rows,
    Table.CLIENTS: clients.rows,
    Table.FINDINGS: findings.rows,
    Table.SLICES: slices.rows,
}


def read_split(split: Split, options: TableOptions, counter: ReadCounter | None = None) -> Iterator[pa.RecordBatch]:
    """Reads a split in the order of its work; small pieces come together in one batch.

    Args:
        split: What to read, as `planning.plan` gives it.
        options: The options it was planned with; other columns and batch sizes are possible.
        counter: Counts what is read of slices for messages.

    Yields:
        Batches with exactly the columns that are asked for.

    Raises:
        StoreUnreadableError: Something is damaged or cannot be read, and the mode is FAILFAST.
        StoreUnwritableError: There is no room for the copy of a remote file.
    """
    if options.table is Table.MESSAGES:
        yield from gathered(_messages(split, options, counter), options)
    else:
        yield from batches(_rows(split, options), options)


def _messages(split: Split, options: TableOptions, counter: ReadCounter | None) -> Iterator[pa.RecordBatch]:
    for part in split.work:
        if isinstance(part, Unreadable):
            yield from read_unreadable(part, options)
        elif isinstance(part, Piece):
            yield from _piece(part, options, counter)


def _piece(piece: Piece, options: TableOptions, counter: ReadCounter | None) -> Iterator[pa.RecordBatch]:
    with ExitStack() as stack:
        try:
            pieces = stack.enter_context(copied_pieces(piece, options, counter))
        except StoreUnreadableError as error:
            ref = piece.slice
            # A file on this machine that cannot be read is reported by `read_piece`.
            unreadable = Unreadable(ref.store.root, ref.channel, slice_name(ref), error.message, error.remedy)
            yield from read_unreadable(unreadable, options)
            return
        for each in pieces:
            yield from read_piece(each, options, counter, named=piece.slice)


def _rows(split: Split, options: TableOptions) -> Iterator[Row]:
    known = KnownClients()
    for part in split.work:
        if isinstance(part, Unreadable):
            yield from _unreadable(part, options)
        elif isinstance(part, StorePart):
            try:
                with copied_part(part, options) as root:
                    for row in _READERS[options.table](LocalPart(part, root, options, known)):
                        if isinstance(row, Unreadable):
                            yield from _unreadable(row, options)
                        else:
                            yield row
            except StoreUnreadableError as error:
                if options.mode is Mode.FAILFAST:
                    raise
                unreadable = Unreadable(part.store.root, part.channel, part.file or "", error.message, error.remedy)
                yield from _unreadable(unreadable, options)


def _unreadable(part: Unreadable, options: TableOptions) -> Iterator[Row]:
    """Gives the row for something that cannot be read."""
    if options.mode is Mode.FAILFAST:
        raise StoreUnreadableError(part.message, part.remedy)
    if options.mode is Mode.DROPMALFORMED:
        return
    base = {
        "store": plain_text(part.root),
        "channel": None if part.channel is None else plain_text(part.channel),
    }
    file, message = plain_text(part.file) or None, plain_text(part.message)
    if options.table is Table.FINDINGS:
        yield findings.unreadable_row(part)
    elif options.table is Table.RECORDS:
        yield {**base, "file": file, "status": "unreadable", "detail": message}
    elif options.table is Table.SLICES:
        yield {**base, "slice": file, "source": "nothing", "problems": [message]}
    else:
        yield {**base, "status": "damaged" if part.damaged else "unreadable", "detail": message}
