"""Appending records so that a killed process leaves no torn one.

A server that finds half a record at the end of a log does not start (filestore.md section 7.4). A process killed
during a write (SIGKILL, out of memory) may leave one: the system checks for signals before each page of a file, also
while it waits for a slow disk between two pages, and ends the write there. It never ends a write within a page.

Eight zero bytes in place of a record are padding to every server: it cuts the file there and starts (filestore.md
section 7.2). So data that crosses a page is written backwards: first everything except the first record's header,
which leaves zeros in its place, then the header, which makes the records valid.
"""

from __future__ import annotations

import mmap
from typing import Final

from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.store.durable import write_all_at

#: smallest page size of any system; larger pages are multiples of it
PAGE: Final = 4096


def append_records(descriptor: int, data: bytes | bytearray | memoryview, end: int) -> None:
    """Appends whole records to a file: if the process is killed, either all of them are there or none.

    If none are there, the file may have zeros after its last record, followed by other bytes. `descriptor` is open
    for reading and writing, not in append mode; `end` is the file's size. An OSError may leave a part of the data.
    """
    room = PAGE - end % PAGE
    if len(data) <= room:
        write_all_at(descriptor, data, end)
        return
    view = memoryview(data).cast("B")
    write_all_at(descriptor, view[RECORD_HEADER_SIZE:], end + RECORD_HEADER_SIZE)
    if room >= RECORD_HEADER_SIZE:
        write_all_at(descriptor, view[:RECORD_HEADER_SIZE], end)
    else:
        _store_atomically(descriptor, view[:RECORD_HEADER_SIZE], end)


def _store_atomically(descriptor: int, header: memoryview, at: int) -> None:
    """Stores a header that crosses two pages with one instruction of the processor."""
    # Zeros first: a full disk raises an error here, but a signal below.
    write_all_at(descriptor, bytes(len(header)), at)
    start = at - at % mmap.ALLOCATIONGRANULARITY
    try:
        area = mmap.mmap(descriptor, at + len(header) - start, offset=start)
    except OSError:
        # a file system without mapped files
        write_all_at(descriptor, header, at)
        return
    with area:
        area[at - start :] = bytes(header)
