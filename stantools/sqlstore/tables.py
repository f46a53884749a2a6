"""The seven tables of a SQL store, and their rows (sql-stores.md section 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

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
    id: bytes | None
    proto: bytes | None
    version: int | None


class ClientsRow(NamedTuple):
    id: bytes
    hbinbox: bytes | None
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
