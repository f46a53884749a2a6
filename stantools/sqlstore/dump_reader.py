"""A dump as the tables of a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from stantools.errors import NotAStoreError, StoreUnreadableError, UsageError, readable
from stantools.escaping import escape, shell_word
from stantools.sqlstore.dump import Dump, DumpFacts, DumpTable, Rows
from stantools.sqlstore.literals import Notation, Token
from stantools.sqlstore.message_scan import MessageScan
from stantools.sqlstore.tables import COLUMNS, SMALL_TABLES, Cell, MessageRow, RowSelection, StoreTables

Read = Callable[[int], bytes]


class DumpReader:
    """The tables of the store in a dump; `opened` opens the dump from its beginning."""

    def __init__(
        self,
        path: Path,
        opened: Callable[[], AbstractContextManager[Read]],
        schema: str | None = None,
        selection: RowSelection | None = None,
    ) -> None:
        self.path, self._opened, self._selection = path, opened, selection
        self._tables: dict[bytes, StoreTables] = defaultdict(StoreTables)
        self._scans: dict[bytes, MessageScan] = defaultdict(MessageScan)
        #: schemas whose tables only have the names of a store's
        self._foreign: dict[bytes, StoreUnreadableError] = {}
        self.facts = self._read_all()
        self.schema = self._chosen(schema)
        self.tables = self._tables[self.schema]
        self.scan = self._scans[self.schema]
        self._restore_names()
        defined = any(each.schema == self.schema for each in self.facts.tables)
        #: tables that are not in the dump; without definitions, empty tables are not either, and none is named
        self.missing = sorted(each.decode() for each in set(COLUMNS) - self._present(self.schema) if defined)

    @property
    def flaws(self) -> list[str]:
        return self.facts.flaws

    def active_server(self) -> str:
        return ""

    def _read_all(self) -> DumpFacts:
        with self._opened() as read:
            dump = Dump(str(self.path), read, COLUMNS)
            for rows in dump.rows():
                schema, name = rows.name
                try:
                    if table := SMALL_TABLES.get(name):
                        getattr(self._tables[schema], table.member).extend(self._flawless(_small_rows(rows), dump))
                    else:
                        self._scans[schema].add(self._flawless(message_rows(rows, self._selection), dump))
                except StoreUnreadableError as problem:
                    self._foreign.setdefault(schema, problem)
        return dump.facts

    def _flawless(self, rows: Iterator[Any], dump: Dump) -> Iterator[Any]:
        """Yields rows; a value that is none of its column's type ends them with a flaw."""
        try:
            yield from rows
        except (ValueError, LookupError) as problem:
            dump.facts.flaws.append(f"a row with a value that is none of its column: {problem}")

    def _present(self, schema: bytes) -> set[bytes]:
        facts = self.facts
        return {name.table for name in (*facts.tables, *facts.with_rows) if name.schema == schema} & set(COLUMNS)

    def _chosen(self, wanted: str | None) -> bytes:
        """Returns the schema with the store; the one with all tables, if there are several with some."""
        facts = self.facts
        schemas = sorted({name.schema for name in (*facts.tables, *facts.with_rows) if name.table in COLUMNS})
        if wanted is not None:
            if wanted.encode() in schemas:
                return self._own(wanted.encode())
            remedy = f"its schemas are: {_named(schemas)}" if any(schemas) else "leave ?schema= out: it names none"
            raise UsageError(f"{self.path}: no schema {wanted} with tables of a store", remedy)
        some = [each for each in schemas if {b"channels", b"messages"} & self._present(each)]
        whole = [each for each in schemas if len(self._present(each)) == len(COLUMNS)]
        found = whole or some
        if len(found) > 1:
            found = [each for each in found if each not in self._foreign] or found
        if not found:
            raise NotAStoreError(
                f"{self.path}: is a SQL dump without the tables of a NATS Streaming store (Messages, Channels, …)",
                "name the dump of the database that the server was started with (-sql_source)",
            )
        if len(found) > 1:
            word = shell_word(f"{self.path}?schema={found[0].decode(errors='replace')}")
            raise UsageError(f"{self.path}: holds several stores: {_named(found)}", f"name one, as in {word}")
        return self._own(found[0])

    def _own(self, schema: bytes) -> bytes:
        if schema in self._foreign:
            raise self._foreign[schema]
        return schema

    def _restore_names(self) -> None:
        """Takes letters that the charset of the dump lacks, written as `?`, from the subject of the messages."""
        for place, row in enumerate(self.tables.channels):
            subjects = self.scan.channels[row.id].by_subject if row.id in self.scan.channels else ()
            if b"?" not in row.name or len(subjects) != 1:
                continue
            (subject,) = subjects
            name, letters = row.name.decode(errors="replace"), subject.decode(errors="replace")
            if (
                name != letters
                and len(name) == len(letters)
                and all(one in ("?", other) for one, other in zip(name, letters, strict=True))
            ):
                self.tables.channels[place] = row._replace(name=subject)
                lost = f"its charset lacks letters of the channel {escape(letters)}, written as {escape(name)}"
                self.facts.flaws.append(f"{lost}; the name is that of the messages")

    def messages(self) -> Iterator[list[MessageRow]]:
        """Yields the rows of table Messages in the order of the dump, which is read again."""
        with self._opened() as read:
            dump = Dump(str(self.path), read, COLUMNS)
            for rows in dump.rows({DumpTable(self.schema, b"messages")}):
                yield list(self._flawless(message_rows(rows, self._selection), dump))


def _named(schemas: Sequence[bytes]) -> str:
    return ", ".join(escape(each.decode(errors="surrogateescape")) or "(no name)" for each in schemas) or "none"


@contextmanager
def opened_file(path: Path) -> Iterator[Read]:
    with readable(path), path.open("rb") as file:
        yield file.read


class _Columns:
    """Reads the cells of rows by the names of their columns."""

    def __init__(self, rows: Rows) -> None:
        names = rows.columns or COLUMNS[rows.name.table]
        self._places = {name: place for place, name in enumerate(names)}
        self._notation: Notation = rows.notation
        self._charset = rows.charset

    def place(self, name: bytes) -> int:
        try:
            return self._places[name]
        except KeyError:
            raise StoreUnreadableError(
                f"the dump's table has no column {name.decode()}", "the table is that of another program"
            ) from None

    def cell(self, row: tuple[Token, ...], name: bytes, cell: Cell) -> Any:
        notation = self._notation
        match cell:
            case Cell.INTEGER:
                return notation.integer(row[self.place(name)]) or 0
            case Cell.OPTIONAL:
                return notation.integer(row[self.place(name)])
            case Cell.FLAG:
                return notation.flag(row[self.place(name)])
            case Cell.BYTES:
                return notation.binary(row[self._places[name]]) if name in self._places else None
            case Cell.TEXT:
                return self._text(notation.content(row[self.place(name)]) or b"")

    def _text(self, content: bytes) -> bytes:
        """Returns text in UTF-8, as the server gets it."""
        if self._charset == "utf-8" or (not self._charset and _is_utf8(content)):
            return content
        return content.decode(self._charset or "cp1252", "surrogateescape").encode("utf-8", "surrogateescape")


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def message_rows(rows: Rows, selection: RowSelection | None = None) -> Iterator[MessageRow]:
    chosen = _message_rows(rows)
    return selection.of(chosen) if selection else chosen


def _message_rows(rows: Rows) -> Iterator[MessageRow]:
    columns = _Columns(rows)
    places = [columns.place(each) for each in COLUMNS[b"messages"]]
    number, binary = rows.notation.integer, rows.notation.binary
    ident, seq, timestamp, size, data = places
    for row in rows.rows:
        yield MessageRow(
            number(row[ident]) or 0, number(row[seq]) or 0, number(row[timestamp]), number(row[size]), binary(row[data])
        )


def _small_rows(rows: Rows) -> Iterator[Any]:
    table, columns = SMALL_TABLES[rows.name.table], _Columns(rows)
    for row in rows.rows:
        yield table.row(*(columns.cell(row, name, cell) for name, cell in table.columns))
