"""Appending records so that a process that is killed leaves no torn one.

A server that finds half a record at the end of a log does not start (filestore.md section 7.4). Whoever is
killed (SIGKILL, out of memory) in the middle of a write may leave one: the system looks for signals before each page of
a file, and while it waits for a slow disk between two of them, and ends the write there. Within a page it does not.

Eight zero bytes where a record should begin are padding to every server: it cuts the file there and starts
(filestore.md section 7.2). So what does not fit into a page is written from behind: first all but the first record's
header, which leaves zeros where the header will be, then the header, which is what makes the records count.
"""

from __future__ import annotations

import mmap
from typing import Final

from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.store.durable import write_all_at

#: What every system has at least, and every larger page begins and ends with one of these.
PAGE: Final = 4096


def append_records(descriptor: int, data: bytes | bytearray | memoryview, end: int) -> None:
    """Appends whole records to a file: whenever the process is killed, all of them are there, or none.

    If none are there, the file may have zeros behind its last record, and something behind the zeros.

    Args:
        descriptor: Open for reading and writing, not in append mode.
        data: One or more records.
        end: Where the file ends.

    Raises:
        OSError: As from `os.pwrite`; a part may have been written.
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
        _store_at_once(descriptor, view[:RECORD_HEADER_SIZE], end)


def _store_at_once(descriptor: int, header: memoryview, at: int) -> None:
    """Puts a header that lies in two pages into the file by one instruction of the processor."""
    # Zeros once more: a full disk is an error here, and would be a signal below.
    write_all_at(descriptor, bytes(len(header)), at)
    start = at - at % mmap.ALLOCATIONGRANULARITY
    try:
        area = mmap.mmap(descriptor, at + len(header) - start, offset=start)
    except OSError:
        # A file system without mapped files.
        write_all_at(descriptor, header, at)
        return
    with area:
        area[at - start :] = bytes(header)
