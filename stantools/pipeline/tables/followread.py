"""Reading what a stream has to read, on whatever machine; files that went away meanwhile are found or reported.

Between planning and reading a server may rename a slice for its archive script, or remove it. Then the archived copy is
read, or a row says what is missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stantools.errors import StoreUnreadableError
from stantools.pipeline.tables.arrow import pa
from stantools.pipeline.tables.batches import gathered, message_schema
from stantools.pipeline.tables.counter import ReadCounter
from stantools.pipeline.tables.follow import FollowWork
from stantools.pipeline.tables.messages import read_piece, read_unreadable
from stantools.pipeline.tables.model import Mode, Piece, Unreadable
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.positions import REMOVED, Lost
from stantools.pipeline.tables.text import plain_text, slice_name

LOG = logging.getLogger(__name__)

_BAK = ".bak"
REMEDY = "set the option mode to PERMISSIVE to have it reported as a row and to go on"


def read_work(
    work: Sequence[FollowWork], options: TableOptions, counter: ReadCounter | None = None
) -> Iterator[pa.RecordBatch]:
    """Reads in the order of the work; small pieces come together in one batch.

    Args:
        work: What to read; see `Follower.work`.
        options: Which columns and messages, and what to do with what cannot be read.
        counter: Counts what is read.

    Yields:
        Batches of the messages table with exactly the columns that are asked for.

    Raises:
        StoreUnreadableError: Something is damaged, gone or cannot be read, and the mode is FAILFAST.
    """
    yield from gathered((batch for each in work for batch in _read(each, options, counter)), options)


def _read(each: FollowWork, options: TableOptions, counter: ReadCounter | None) -> Iterator[pa.RecordBatch]:
    if isinstance(each, Lost):
        yield from lost_row(each, options)
    elif isinstance(each, Unreadable):
        yield from read_unreadable(each, options)
    elif (piece := _where_it_is(each)) is None:
        ref = each.slice
        what = f"{ref.data}: was removed before it was read, {each.cost} bytes from offset {each.start} on"
        LOG.warning("%s", what)
        name = slice_name(ref)
        yield from lost_row(
            Lost(ref.store.root, ref.channel, REMOVED, name, None, each.start, each.cost, what), options
        )
    else:
        yield from read_piece(piece, options, counter, named=each.slice)


def _where_it_is(piece: Piece) -> Piece | None:
    """Returns the piece in the file that it lies in by now; None if there is none."""
    ref = piece.slice
    if os.path.lexists(ref.data):
        return piece
    if ref.archived or not os.path.lexists(ref.data + _BAK):
        return None
    index = ref.index and (ref.index + _BAK if os.path.lexists(ref.index + _BAK) else ref.index)
    return replace(piece, slice=replace(ref, data=ref.data + _BAK, index=index, archived=True))


def lost_row(lost: Lost, options: TableOptions) -> Iterator[pa.RecordBatch]:
    """Gives the row of the messages table that says that something is missing.

    Raises:
        StoreUnreadableError: The mode is FAILFAST.
    """
    if options.mode is Mode.FAILFAST:
        raise StoreUnreadableError(lost.message, REMEDY)
    if options.mode is Mode.DROPMALFORMED:
        return
    sequence = lost.sequence if lost.sequence is not None and 0 <= lost.sequence < 1 << 63 else None
    values = {
        "store": plain_text(lost.root),
        "channel": plain_text(lost.channel),
        "seq": sequence,
        "slice": plain_text(lost.file) or None,
        "offset": lost.offset,
        "size": lost.size,
        "status": lost.status,
    }
    schema = message_schema(options.columns)
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
