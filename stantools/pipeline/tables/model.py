"""What has to be read for a table, as values that can be sent to another process or machine.

Paths are strings, because a store may also lie where only fsspec can open it; a string with `://` is a URL.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from stantools.errors import StantoolsError
    from stantools.store.directory import SliceFiles
    from stantools.work import Failure


@overload
def plain_text(value: bytes | str) -> str: ...
@overload
def plain_text(value: None) -> None: ...
def plain_text(value: bytes | str | None) -> str | None:
    r"""Returns bytes as text; each byte that does not belong to UTF-8 becomes `\xNN`, because tables hold nothing else.

    Args:
        value: Bytes, or a name as the operating system's functions give it, with surrogate escapes; None stays.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if value.isascii():
            return value
        value = os.fsencode(value)
    return value.decode("utf-8", "backslashreplace")


class Table(enum.StrEnum):
    """The tables that a store has."""

    MESSAGES = "messages"
    RECORDS = "records"
    SUBSCRIPTIONS = "subscriptions"
    CLIENTS = "clients"
    FINDINGS = "findings"
    SLICES = "slices"


class Mode(enum.StrEnum):
    """What to do with what is damaged or cannot be read, in the words that Spark users know."""

    PERMISSIVE = "PERMISSIVE"  #: it arrives as rows whose `status` says so
    DROPMALFORMED = "DROPMALFORMED"  #: it is left out
    FAILFAST = "FAILFAST"  #: the read fails with the file and the offset


@dataclass(frozen=True)
class StoreRef:
    """What a task has to know of a store."""

    root: str  #: its directory; the first part of every row
    polynomial: int  #: the CRC polynomial that its records were written with


@dataclass(frozen=True)
class SliceRef:
    """One message slice."""

    store: StoreRef  #: the store that it belongs to; for a slice that was named by itself, the directory it lies in
    channel: str  #: the channel's name; bytes that are not UTF-8 are surrogate escapes
    number: int
    archived: bool  #: it is a `.bak` slice
    data: str  #: the data file
    index: str | None  #: the index file, or None
    data_size: int  #: bytes
    index_size: int  #: bytes, 0 without index

    @property
    def name(self) -> str:
        """The value of the column `slice`: the path of the data file below the store (`orders/msgs.1.dat`)."""
        root, data = self.store.root, self.data
        if "://" in root and (chain := root.find("::", root.find("://"))) > 0:
            # In a chain of URLs, such as that of a zip file, the path ends where the next one begins.
            data, root = data.removesuffix(root[chain:]), root[:chain]
        root = root.rstrip("/") + "/"
        if data.startswith(root):
            return plain_text(data[len(root) :].lstrip("/"))
        return plain_text(data.rpartition("/")[2])

    @property
    def files(self) -> SliceFiles:
        """Its files, which have to be local ones."""
        from stantools.store.directory import SliceFiles  # more than the help of a verb may load

        index = None if self.index is None else Path(self.index)
        return SliceFiles(self.number, Path(self.data), index, self.archived, self.data_size, self.index_size)


@dataclass(frozen=True)
class Piece:
    """A part of a slice: the records that begin at `start` or behind it and before `end`."""

    slice: SliceRef
    start: int  #: offset of a record, or of the first byte behind the file's header
    end: int  #: where the next piece begins; the size of the file for the last one

    @property
    def cost(self) -> int:
        """Bytes that have to be read for it, about."""
        return max(self.end - self.start, 0)


@dataclass(frozen=True)
class StorePart:
    """What is read of a store for the tables that are not about single messages."""

    store: StoreRef
    channel: str | None  #: a channel of it; None for the files in its root
    file: str | None  #: a single file of it, for raw records; None for all that belongs to it
    cost: int  #: bytes that have to be read, about


@dataclass(frozen=True)
class Failed:
    """Something that cannot be read, or that a job could not deal with; the rest is done."""

    root: str  #: the store, as far as it is known, else the path as it was given
    message: str  #: why, naming the path
    remedy: str = ""  #: what to do
    channel: str | None = None  #: the channel, or None
    file: str = ""  #: the file relative to the root, or ""
    cost: int = 0  #: nothing has to be read for it
    damaged: bool = False  #: only a part of the file cannot be read; the table has what is intact in it

    @classmethod
    def of(cls, path: str, problem: Failure | StantoolsError) -> Failed:
        """Takes over what a task said, or what was raised here."""
        return cls(path, problem.message, problem.remedy)

    @property
    def path(self) -> str:
        """Where it is, for reports."""
        return "/".join((self.root, self.file or self.channel or "")).removesuffix("/")

    def as_json(self) -> dict[str, str]:
        """Returns it as every report has it under `failed`."""
        return {"path": self.path, "message": self.message, "remedy": self.remedy}


#: One thing to read.
Part = Piece | StorePart | Failed


@dataclass(frozen=True)
class Split:
    """What one task reads, in this order."""

    parts: tuple[Part, ...]

    @property
    def cost(self) -> int:
        """Bytes that have to be read, about."""
        return sum(part.cost for part in self.parts)


@dataclass
class ReadCounter:
    """What was looked at."""

    data_bytes: int = 0  #: bytes of data files
    index_bytes: int = 0  #: bytes of index files

    def data(self, size: int) -> None:
        """Counts bytes of a data file."""
        self.data_bytes += size

    def index(self, size: int) -> None:
        """Counts bytes of an index file."""
        self.index_bytes += size
