"""The parts to read for a table, as values that can be sent to another process or machine.

Paths are strings, because fsspec may be needed to open a store; a string with `://` is a URL.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, overload

from stantools.escaping import known

if TYPE_CHECKING:
    from stantools.errors import StantoolsError
    from stantools.sqlstore.tables import RowSelection
    from stantools.store.directory import SliceFiles
    from stantools.work import WorkFailure


@overload
def plain_text(value: bytes | str) -> str: ...
@overload
def plain_text(value: None) -> None: ...
def plain_text(value: bytes | str | None) -> str | None:
    r"""Returns bytes, or a name with surrogate escapes, as text; each byte that is not UTF-8 becomes `\xNN`."""
    if value is None:
        return None
    if isinstance(value, str):
        value = known(value)
        if value.isascii():
            return value
        value = os.fsencode(value)
    return value.decode("utf-8", "backslashreplace")


class TableName(enum.StrEnum):
    MESSAGES = "messages"
    RECORDS = "records"
    SUBSCRIPTIONS = "subscriptions"
    CLIENTS = "clients"
    FINDINGS = "findings"
    SLICES = "slices"
    STREAM_MESSAGES = "stream-messages"  #: of JetStream directories; the others are of file stores


#: the tables of file stores
STORE_TABLES: Final = tuple(each for each in TableName if each is not TableName.STREAM_MESSAGES)


class Mode(enum.StrEnum):
    """The treatment of damaged or unreadable data, in Spark's words."""

    PERMISSIVE = "PERMISSIVE"  #: rows whose `status` names the damage
    DROPMALFORMED = "DROPMALFORMED"  #: left out
    FAILFAST = "FAILFAST"  #: the read fails with the file and the offset


@dataclass(frozen=True)
class StoreRef:
    """A store as a task needs it."""

    root: str  #: directory; the first part of every row
    polynomial: int  #: the CRC polynomial of its records


@dataclass(frozen=True)
class SliceRef:
    store: StoreRef  #: its store; for a slice named by itself, its directory
    channel: str
    number: int
    archived: bool  #: a `.bak` slice
    data: str
    index: str | None  #: None without index
    data_size: int
    index_size: int  #: bytes; 0 without index

    @property
    def name(self) -> str:
        """Value of the column `slice`: the path of the data file below the store (`orders/msgs.1.dat`)."""
        root, data = self.store.root, self.data
        if "://" in root and (chain := root.find("::", root.find("://"))) > 0:
            # In a chain of URLs, such as one of a zip file, the path ends at the next URL.
            data, root = data.removesuffix(root[chain:]), root[:chain]
        root = root.rstrip("/") + "/"
        if data.startswith(root):
            return plain_text(data[len(root) :].lstrip("/"))
        return plain_text(data.rpartition("/")[2])

    @property
    def files(self) -> SliceFiles:
        """The slice's files, which must be local."""
        from stantools.store.directory import SliceFiles  # lazy: more than the help of a verb may load

        index = None if self.index is None else Path(self.index)
        return SliceFiles(self.number, Path(self.data), index, self.archived, self.data_size, self.index_size)


@dataclass(frozen=True)
class SlicePiece:
    """A part of a slice: the records that begin from `start` on and before `end`."""

    slice: SliceRef
    start: int  #: offset of a record, or of the first byte after the file's header
    end: int  #: start of the next piece; for the last one the file size

    @property
    def cost(self) -> int:
        return max(self.end - self.start, 0)


@dataclass(frozen=True)
class StorePart:
    """A part of a store for the tables that are not about single messages."""

    store: StoreRef
    channel: str | None  #: one of its channels; None for the files in its root
    file: str | None  #: a single file, for raw records; None for all of the part
    cost: int  #: approximate bytes to read


@dataclass(frozen=True)
class StreamPart:
    """A stream of a JetStream directory."""

    store: str  #: the absolute path of the directory
    path: str  #: the directory of the stream
    account: str
    name: str
    other_names: tuple[str, ...]  #: of other streams, whose blocks may be here
    cost: int  #: bytes of its blocks

    @property
    def channel(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        """Name for people and sums, with the account if that is not the usual one."""
        return self.name if self.account == "$G" else f"{self.account}/{self.name}"


@dataclass(frozen=True)
class SqlPart:
    """Channels of a SQL store, of which a task makes a private file store."""

    path: str  #: of a dump, or the address of a database
    channels: tuple[str, ...]
    rows: RowSelection | None  #: the messages; None for all of the channels
    cost: int  #: bytes of the messages

    @property
    def channel(self) -> str | None:
        return self.channels[0] if self.channels else None


@dataclass(frozen=True)
class FailedRead:
    """Something that cannot be read, or that a job failed on; the rest is done."""

    root: str  #: the store as far as it is known, else the given path
    message: str  #: the reason, naming the path
    remedy: str = ""
    channel: str | None = None
    file: str = ""  #: relative to the root, or ""
    cost: int = 0
    damaged: bool = False  #: only a part of the file is unreadable; the table holds its intact records

    @classmethod
    def of(cls, path: str, problem: WorkFailure | StantoolsError) -> FailedRead:
        return cls(path, problem.message, problem.remedy)

    @property
    def path(self) -> str:
        return "/".join((self.root, self.file or self.channel or "")).removesuffix("/")

    def as_json(self) -> dict[str, str]:
        return {"path": self.path, "message": self.message, "remedy": self.remedy}


Part = SlicePiece | StorePart | StreamPart | SqlPart | FailedRead


@dataclass(frozen=True)
class Split:
    parts: tuple[Part, ...]

    @property
    def cost(self) -> int:
        return sum(part.cost for part in self.parts)


@dataclass
class ReadCounter:
    data_bytes: int = 0
    index_bytes: int = 0

    def data(self, size: int) -> None:
        self.data_bytes += size

    def index(self, size: int) -> None:
        self.index_bytes += size
