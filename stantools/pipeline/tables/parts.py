"""Reading the tables that are not about single messages: rows of one part after the other, as Arrow batches.

Every such table is a module with a function `rows` that gives one mapping a row, the columns by name. They are as long
as stores have subscriptions, findings or slices, so that this is fast enough; that of raw records is for looking at
single files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.format.crc import Crc
from stantools.inspection.subscribers import Clients, load_clients
from stantools.inspection.verify import intact_clients
from stantools.pipeline.tables.arrow import pa
from stantools.pipeline.tables.listing import LocalPlace
from stantools.pipeline.tables.model import StorePart, Unreadable
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.schema import SCHEMAS
from stantools.pipeline.tables.text import plain_text
from stantools.store.directory import CLIENTS_FILE, ChannelFiles, list_channel

Row = dict[str, Any]

_REMEDY = "the rows are of what is intact in it; `stantools verify` says what is not"
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class LocalPart:
    """A part and where its files are.

    Attributes:
        part: What is read, under the names that it has in the table.
        root: The directory with the store's files, or with a copy of those that are needed.
        options: How the table is read.
        clients: What is known of the store's clients.
    """

    part: StorePart
    root: Path
    options: TableOptions
    clients: KnownClients

    @property
    def store(self) -> str:
        """The value of the column `store`."""
        return plain_text(self.part.store.root)

    @property
    def crc(self) -> Crc:
        """The CRC of the store's records."""
        return Crc(self.part.store.polynomial, self.options.check_crc)

    @property
    def file(self) -> Path:
        """The single file that is read."""
        assert self.part.file is not None
        return self.root / self.part.file

    def channel(self) -> ChannelFiles:
        """Lists the channel.

        Raises:
            StoreUnreadableError: It cannot be listed.
        """
        assert self.part.channel is not None
        return list_channel(self.root / self.part.channel)

    def damaged(self, file: str, problems: Iterable[str], channel: str | None = None) -> Iterator[Unreadable]:
        """Says what is wrong with a file of which only what is intact makes rows."""
        root = self.part.store.root
        for problem in problems:
            complete = problem.startswith(root)  # the whole file cannot be read
            message = problem if complete else f"{root}/{file}: {problem}"
            yield Unreadable(root, channel, file, message, _REMEDY, damaged=not complete)

    def directories(self) -> list[Path]:
        """Returns the channel directories of the store.

        Raises:
            StoreUnreadableError: The root cannot be listed.
        """
        entries = LocalPlace().entries(str(self.root))
        return [self.root / entry.name for entry in entries if entry.directory and not entry.link]


class KnownClients:
    """The clients of the stores that one task reads: each clients.dat is folded once, and only where it is needed."""

    def __init__(self) -> None:
        self._recovered: tuple[Path, Clients] | None = None
        self._intact: tuple[Path, frozenset[bytes]] | None = None

    def recovered(self, root: Path, crc: Crc) -> Clients:
        """Returns the clients as the server recovers them."""
        if self._recovered is None or self._recovered[0] != root:
            path = root / CLIENTS_FILE
            self._recovered = root, load_clients(path if path.exists() else None, crc)
        return self._recovered[1]

    def intact(self, root: Path, crc: Crc) -> frozenset[bytes]:
        """Returns the ids of the clients whose records are intact, as verify takes them."""
        if self._intact is None or self._intact[0] != root:
            path = root / CLIENTS_FILE
            self._intact = root, intact_clients(path if path.exists() else None, crc)
        return self._intact[1]


def batches(rows: Iterable[Row], options: TableOptions) -> Iterator[pa.RecordBatch]:
    """Puts rows into Arrow batches with the columns that are asked for.

    Args:
        rows: The rows; columns that are missing in one are null.
        options: The table, its columns, and how big a batch may be.
    """
    whole = SCHEMAS[options.table]
    schema = pa.schema([whole.field(name) for name in options.columns]) if options.columns else whole
    pending: list[Row] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += len(row.get("fields") or "")
        if len(pending) >= options.batch_rows or size >= options.batch_bytes:
            yield _batch(pending, schema)
            pending, size = [], 0
    if pending:
        yield _batch(pending, schema)


def _batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def int64(value: int | None) -> int | None:
    """Returns a number, or None for one that does not fit into the column."""
    return value if value is not None and -_INT64_MAX - 1 <= value <= _INT64_MAX else None


def text(value: str | bytes | None) -> str | None:
    """Returns a text for a column; None stays."""
    return None if value is None else plain_text(value)


def microseconds(timestamp: int) -> int:
    """Returns nanoseconds as the value of a timestamp column."""
    return timestamp // 1000
