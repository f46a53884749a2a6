"""The seven tables of a SQL store, and their rows (sql-stores.md section 2)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: columns of each table in their order, by names in lower case
COLUMNS: Final = {
    b"serverinfo": (b"uniquerow", b"id", b"proto", b"version"),
    b"clients": (b"id", b"hbinbox", b"proto"),
    b"channels": (b"id", b"name", b"maxseq", b"maxmsgs", b"maxbytes", b"maxage", b"deleted"),
    b"messages": (b"id", b"seq", b"timestamp", b"size", b"data"),
    b"subscriptions": (b"id", b"subid", b"lastsent", b"proto", b"deleted"),
    b"subspending": (b"subid", b"row", b"seq", b"lastsent", b"pending", b"acks"),
    b"storelock": (b"id", b"tick"),
}


class ServerRow(NamedTuple):
    id: bytes
    proto: bytes | None
    version: int | None


class ClientsRow(NamedTuple):
    id: bytes
    hbinbox: bytes
    proto: bytes | None


class ChannelRow(NamedTuple):
    id: int
    name: bytes
    maxseq: int
    maxmsgs: int
    maxbytes: int
    maxage: int  #: ns
    deleted: bool


class MessageRow(NamedTuple):
    id: int  #: of the channel
    seq: int
    timestamp: int | None  #: ns since 1970
    size: int | None
    data: bytes | None


@dataclass(frozen=True)
class RowSelection:
    """Messages of some channels, or a range of one channel's sequences."""

    ids: tuple[int, ...]  #: of the channels
    first: int
    last: int

    def of(self, rows: Iterable[MessageRow]) -> Iterator[MessageRow]:
        return (row for row in rows if row.id in self.ids and self.first <= row.seq <= self.last)


class SubscriptionsRow(NamedTuple):
    id: int  #: of the channel
    subid: int
    lastsent: int
    proto: bytes | None
    deleted: bool


class PendingRow(NamedTuple):
    subid: int
    row: int
    seq: int
    lastsent: int
    pending: bytes | None
    acks: bytes | None


class LockRow(NamedTuple):
    id: bytes
    tick: int


@dataclass
class StoreTables:
    """All rows but the messages, in the order in which the database gave them."""

    server: list[ServerRow] = field(default_factory=list)
    clients: list[ClientsRow] = field(default_factory=list)
    channels: list[ChannelRow] = field(default_factory=list)
    subscriptions: list[SubscriptionsRow] = field(default_factory=list)
    pending: list[PendingRow] = field(default_factory=list)
    lock: list[LockRow] = field(default_factory=list)


class Cell(enum.Enum):
    """How a column is read."""

    INTEGER = enum.auto()  #: NULL is 0
    OPTIONAL = enum.auto()  #: an integer, or None for NULL
    TEXT = enum.auto()  #: in UTF-8, empty for NULL
    BYTES = enum.auto()  #: None for NULL, and for a column that the table does not have
    FLAG = enum.auto()


@dataclass(frozen=True)
class SmallTable:
    """A table that is held as a whole; the fields of its rows have the names of its columns."""

    member: str  #: of StoreTables
    row: Any  #: the class of its rows
    cells: tuple[Cell, ...]  #: of the fields of a row

    @property
    def columns(self) -> list[tuple[bytes, Cell]]:
        return [(name.encode(), cell) for name, cell in zip(self.row._fields, self.cells, strict=True)]


SMALL_TABLES: Final = {
    b"serverinfo": SmallTable("server", ServerRow, (Cell.TEXT, Cell.BYTES, Cell.OPTIONAL)),
    b"clients": SmallTable("clients", ClientsRow, (Cell.TEXT, Cell.TEXT, Cell.BYTES)),
    b"channels": SmallTable("channels", ChannelRow, (Cell.INTEGER, Cell.TEXT, *[Cell.INTEGER] * 4, Cell.FLAG)),
    b"subscriptions": SmallTable("subscriptions", SubscriptionsRow, (*[Cell.INTEGER] * 3, Cell.BYTES, Cell.FLAG)),
    b"subspending": SmallTable("pending", PendingRow, (*[Cell.INTEGER] * 4, Cell.BYTES, Cell.BYTES)),
    b"storelock": SmallTable("lock", LockRow, (Cell.TEXT, Cell.INTEGER)),
}
