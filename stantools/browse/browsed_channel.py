"""The browser's needs of a channel, whatever kind of source it is in: rows, times, files, and the records of each.

A channel of a file store and a stream of a JetStream directory are such channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stantools.browse.record_map import RecordMap
from stantools.browse.record_reader import RecordReader
from stantools.browse.slice_map import ByteSegment, IndexState
from stantools.browse.timeline import Timeline
from stantools.browse.window import RowWindow
from stantools.progress import Progress
from stantools.store.growing_channel import Sign
from stantools.store.ranges import Ranges


@dataclass(frozen=True)
class ListedFile:
    """A file of a channel, or a heading between files."""

    path: Path | None  #: None for a heading
    text: str = ""  #: the heading, or the content of a file without messages
    level: str = "unknown"  #: severity of a heading
    size: int = 0  #: bytes
    number: int | None = None  #: of a slice or block
    index: Path | None = None  #: index of a slice
    archived: bool = False  #: a slice that a scan of the store leaves out


@dataclass(frozen=True)
class FileState:
    """The content of a scanned slice or block."""

    held: Ranges  #: sequences of its messages
    index: IndexState
    segments: Sequence[ByteSegment]
    size: int  #: bytes that the segments are part of; 0 if unknown
    messages: int = 0
    first: int | None = None  #: sequence of its first record
    times: tuple[int, int] | None = None  #: of the first and the last message
    error: str = ""  #: reason why it cannot be read
    header_error: str = ""
    gone: bool = False  #: only its index is there
    damages: Sequence[str] = ()
    #: Returns about where a message lies; None if it is not in this file.
    place: Callable[[int], int | None] = field(default=lambda _: None)

    @property
    def level(self) -> str:
        return "error" if self.error or self.header_error or self.damages or self.gone else self.index.level


@dataclass(frozen=True)
class OpenedRecords:
    """An open file, and the work that maps its records."""

    reader: RecordReader
    mapped: Callable[[Progress], RecordMap]


class BrowsedChannel(ABC):
    """A channel as its files are listed now."""

    @abstractmethod
    def signature(self) -> tuple[Sign, ...]:
        """Differs whenever the files have changed; begins with None if the directory is gone."""

    @abstractmethod
    def bytes_to_read(self) -> int:
        """Returns the bytes that `refine` reads."""

    @abstractmethod
    def open(self) -> RowWindow:
        """Returns rows at once: exact ones of a small channel, otherwise a part or an estimate of them."""

    @abstractmethod
    def refine(self, window: RowWindow | None, *, live: bool, progress: Progress) -> RowWindow:
        """Determines all rows. Files of `window` that have not changed are not read again; `live`: a server writes."""

    @abstractmethod
    def timeline(self, progress: Progress) -> Timeline:
        """Reads the times of the messages; `progress` is called with numbers of messages."""

    @abstractmethod
    def path_of(self, name: str) -> Path:
        """Returns the path of a slice or block."""

    @abstractmethod
    def files(self) -> Sequence[ListedFile]: ...

    @abstractmethod
    def states(self) -> dict[Path, FileState]:
        """Returns the content of the files that were scanned."""

    def scan(self, file: ListedFile, progress: Progress) -> FileState:
        """Scans an archived slice."""
        raise NotImplementedError
