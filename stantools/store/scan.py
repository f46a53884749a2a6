"""Reading every record of a message slice, whatever state the file is in.

`scan_slice` is what verify, salvage and the tables are built on: it gives batches of good records as columns and, in
between, the damaged ranges, in file order and without a gap. However big the file is, only a window of it is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, Stop
from stantools.store.mapping import WINDOW, Buffer, Window
from stantools.store.resync import Damage, Resync

#: Rows of one batch: its columns stay in the processor's cache.
BATCH_ROWS = 16384
#: Bytes of a batch, about: what is touched at once of a mapped file. The first batch only finds out the sizes.
_BATCH_BYTES = WINDOW // 2
#: Bytes that a batch never goes beyond, unless it is one message: long messages may follow short ones.
_MOST_BYTES = WINDOW
_FIRST_ROWS = 64


def scan_slice(
    buffer: Buffer,
    channel: bytes,
    crc: Crc,
    *,
    index: npt.NDArray[np.void] | Callable[[], npt.NDArray[np.void] | None] | None = None,
    check_crc: bool = True,
    columns: MessageColumns | None = None,
    start: int = FILE_HEADER_SIZE,
    limit: int | None = None,
    until: int | None = None,
) -> Iterator[MessageColumns | Damage]:
    """Scans a data file from the first record to the last byte.

    Args:
        buffer: The mapped data file.
        channel: The channel's name as stored in subjects.
        crc: The store's CRC.
        index: Good records of the slice's index; they help to go on after damage. A function is asked for them at the
            first damage.
        check_crc: False takes records with a wrong CRC for good, as the server does with its check turned off.
        columns: Where to put the batches; made here if not given.
        start: Offset of the first record.
        limit: Where the readable bytes end; the end of the buffer if not given.
        until: Stop at the first record or damage that begins here or further on; what begins before is given whole. As
            `limit` if not given.

    Yields:
        Views of `columns` that are valid until the next step, and damaged ranges. Nothing is left out: a batch begins
        where the event before it ended.
    """
    columns = columns or MessageColumns(BATCH_ROWS)
    limit = len(buffer) if limit is None else limit
    until = limit if until is None else min(until, limit)
    resync: Resync | None = None
    # Nobody looks at a batch any more when the next one is read.
    window = Window(buffer, _BATCH_BYTES, behind=0)
    at, wanted = start, _FIRST_ROWS
    while at < until:
        window.reach(at)
        begin = at
        part = columns if wanted >= columns.capacity else columns.take(wanted)
        most = min(at + _MOST_BYTES, until)
        rows, at, stop = kernels.scan_messages(buffer, at, most, crc, check_crc, channel, part)
        if most < limit and stop not in (Stop.END, Stop.FULL):
            # Either the record goes on behind `most`, or it is bad, which shows when it is looked at by itself.
            stop = Stop.END
            if not rows:
                rows, at, stop = kernels.scan_messages(buffer, at, limit, crc, check_crc, channel, columns.take(1))
        if rows:
            wanted = max(1, min(columns.capacity, _BATCH_BYTES * rows // (at - begin)))
            yield columns.take(rows)
        if stop in (Stop.END, Stop.FULL):
            continue
        resync = resync or Resync(buffer, limit, channel, crc, index() if callable(index) else index)
        damage = resync.after(at, Stop(stop))
        yield damage
        at = damage.end
