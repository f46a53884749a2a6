"""The state of a slice that a writer needs, and reading it from the files.

Facts: filestore.md sections 2.3, 5.1 and 7.6. A slice is only continued if its data file ends exactly with the last
record of its index: appending after anything else would bury data (weaknesses W6, W11, W14).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stantools.errors import StoreUnwritableError
from stantools.format.crc import Crc
from stantools.format.envelope import check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, MESSAGE_OVERHEAD, ScanStop
from stantools.store.directory import SliceFiles, list_channel
from stantools.store.indexes import SliceIndex, scan_index
from stantools.store.mapping import mapped
from stantools.store.slice_reader import SliceFile

Progress = tuple[int, int, int, int, int]


@dataclass(slots=True)
class SliceState:
    number: int  #: N of `msgs.N.dat`
    first_sequence: int = 0  #: sequence of the first record, 0 if there is none
    last_sequence: int = 0  #: sequence of the last record, 0 if there is none
    first_timestamp: int = 0  #: timestamp of the first record, nanoseconds
    last_timestamp: int = 0  #: timestamp of the last record, nanoseconds
    count: int = 0  #: messages ever stored
    bytes: int = 0  #: bytes ever stored in the server's accounting: payloads plus 40 per message
    data_size: int = FILE_HEADER_SIZE  #: size of the data file, buffered records included

    def progress(self) -> Progress:
        """Returns the part that changes with new messages, for `return_to` if they cannot be written."""
        return self.count, self.bytes, self.data_size, self.last_sequence, self.last_timestamp

    def copy(self) -> SliceState:
        """Returns a copy with the fields that new messages do not change."""
        return SliceState(
            self.number,
            self.first_sequence,
            self.last_sequence,
            self.first_timestamp,
            self.last_timestamp,
            self.count,
            self.bytes,
            self.data_size,
        )

    def return_to(self, progress: Progress) -> None:
        self.count, self.bytes, self.data_size, self.last_sequence, self.last_timestamp = progress
        if not self.count:
            self.first_sequence = self.first_timestamp = 0


def last_slice(directory: Path, channel: bytes, crc: Crc) -> SliceState | None:
    """Returns the state of the highest-numbered slice that has messages, None if there is none.

    Errors as of `read_state`.
    """
    for files in reversed(list_channel(directory).slices):
        state = read_state(files, channel, crc)
        if state.count:
            return state
    return None


def read_state(files: SliceFiles, channel: bytes, crc: Crc) -> SliceState:
    """Reads the state of a healthy slice from its index and its last record."""
    assert files.data is not None
    if files.index is None:
        if files.data_size > FILE_HEADER_SIZE:
            raise _not_appendable(files.data, "its index is missing")
        return SliceState(files.number)
    with mapped(files.data) as data, mapped(files.index) as buffer:
        for path, content in ((files.data, data), (files.index, buffer)):
            if (text := check_file_version(content)) is not None:
                raise _not_appendable(path, text)
        count, stop, sizes, _ = scan_index(buffer, crc.checking)
        if stop != ScanStop.END:
            raise _not_appendable(files.index, f"index record {count} is damaged")
        if not count:
            if len(data) > FILE_HEADER_SIZE:
                raise _not_appendable(files.index, "is empty while the data file is not")
            return SliceState(files.number)
        index = SliceIndex(buffer, count)
        first, last = index[0], index[-1]
        if last.end != len(data) or not SliceFile(data, channel, crc).agrees(last):
            raise _not_appendable(files.data, "does not end with the last record of its index")
        return SliceState(
            files.number,
            first.sequence,
            last.sequence,
            first.timestamp,
            last.timestamp,
            count,
            sizes + count * MESSAGE_OVERHEAD,
            len(data),
        )


def _not_appendable(path: Path, reason: str) -> StoreUnwritableError:
    return StoreUnwritableError(
        f"{path}: cannot be appended to: {reason}", "see what `stantools verify` says, and use `stantools salvage`"
    )
