"""Dumps of SQL databases as rows, without a database: `mysqldump`, `mariadb-dump`, and `pg_dump` in plain form.

A dump is read forwards, as bytes, one statement after the other. Statements other than `CREATE TABLE`, `INSERT`,
`REPLACE` and `COPY` are skipped as a whole, by their tokens, so that text in the rows of other tables is never taken
for a statement. A dump that ends early gives the whole rows before its end, and a flaw.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from stantools.errors import StoreUnreadableError
from stantools.notation import format_size
from stantools.sqlstore.literals import COPY, MYSQL, POSTGRES, POSTGRES_OLD, Notation, Token

#: bytes read at a time, and the most that one row or statement may have
_CHUNK: Final = 1 << 20
_MAX_STATEMENT: Final = 256 << 20
_MAX_ROWS: Final = 2000
_NAME: Final = rb'(?:`(?:[^`]|``)*`|"(?:[^"]|"")*"|[\w$]+)'
_TABLE: Final = rb"(" + _NAME + rb")(?:\s*\.\s*(" + _NAME + rb"))?"
_BLANK: Final = re.compile(rb"(?:\s+|--[^\n]*\n|#[^\n]*\n|/\*.*?\*/|\\[^\n]*\n|;)+", re.DOTALL)
_OPEN_COMMENT: Final = re.compile(rb"--|#|/\*|\\")
_WORD: Final = re.compile(rb"[A-Za-z]+")
_INSERT: Final = re.compile(
    rb"(?:INSERT|REPLACE)\s+(?:LOW_PRIORITY\s+|DELAYED\s+|IGNORE\s+)*(?:INTO\s+)?" + _TABLE + rb"\s*"
    rb"(?:\(([^)]*)\)\s*)?(?:OVERRIDING\s+\w+\s+VALUE\s+)?VALUES\s*(?=\()",
    re.IGNORECASE,
)
_COPY: Final = re.compile(rb"COPY\s+" + _TABLE + rb"\s*(?:\(([^)]*)\)\s*)?FROM\s+stdin\b[^;]*;[^\n]*\n", re.IGNORECASE)
_CREATE: Final = re.compile(
    rb"CREATE\s+(?:UNLOGGED\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?" + _TABLE + rb"\s*\(", re.IGNORECASE
)
_COLUMN: Final = re.compile(rb"\s*(" + _NAME + rb")\s")
_NO_COLUMN: Final = re.compile(
    rb"\s*(?:PRIMARY|UNIQUE|KEY|INDEX|CONSTRAINT|FULLTEXT|SPATIAL|CHECK|FOREIGN|EXCLUDE|LIKE)\b", re.IGNORECASE
)
_USE: Final = re.compile(rb"USE\s+(" + _NAME + rb")", re.IGNORECASE)
_CONNECT: Final = re.compile(rb"\\connect\s+(?:-reuse-previous=\w+\s+)?(?:\"dbname='?)?([^\s'\"]+)")
_SEARCH_PATH: Final = re.compile(rb"SET\s+search_path\s*=\s*(" + _NAME + rb")", re.IGNORECASE)
_OLD_STRINGS: Final = re.compile(rb"SET\s+standard_conforming_strings\s*=\s*'?(on|off)", re.IGNORECASE)
_CHARSET: Final = re.compile(rb"SET\s+(?:NAMES|client_encoding\s*=)\s*'?([\w-]+)", re.IGNORECASE)
_DELIMITER: Final = re.compile(rb"DELIMITER\s+(\S+)[^\n]*\n", re.IGNORECASE)
_RESYNC: Final = re.compile(rb"\n(?=(?:INSERT|REPLACE|CREATE|DROP|COPY|LOCK|UNLOCK|--|/\*)[ \n!])")
_SIGN_OF_POSTGRES: Final = re.compile(
    rb"PostgreSQL database|pg_catalog|standard_conforming_strings|^COPY\s.*FROM stdin;|^INSERT INTO \"?public\"?\."
    rb"|[(,]\s*'\\x[0-9A-Fa-f]*'\s*[,)]",  # in MySQL's dumps each backslash of a value is doubled
    re.MULTILINE,
)
_HEADING: Final = re.compile(rb"-- (?:(?:MySQL|MariaDB) dump |PostgreSQL database (?:cluster )?dump\r?\n)")
_COMPLETE: Final = re.compile(rb"-- (?:Dump completed|PostgreSQL database (?:cluster )?dump complete)")
_CHARSETS: Final = {b"latin1": "cp1252", b"sql_ascii": "utf-8", b"binary": "utf-8"}
_UNICODE: Final = (b"utf8", b"utf-8", b"utf8mb4", b"utf8mb3")


class DumpTable(NamedTuple):
    schema: bytes  #: database, or schema of PostgreSQL; b"" if the dump names none
    table: bytes  #: in lower case


@dataclass
class Rows:
    """Some rows of a table, as tokens."""

    name: DumpTable
    columns: tuple[bytes, ...]  #: in lower case; () if the dump does not name them
    notation: Notation
    charset: str  #: Python's name of the encoding of names; "" if the dump does not tell
    rows: list[tuple[Token, ...]] = field(default_factory=list)


@dataclass
class DumpFacts:
    """What a dump told besides its rows, once it was read."""

    postgres: bool = False
    tables: dict[DumpTable, tuple[bytes, ...]] = field(default_factory=dict)  #: columns of the tables made
    with_rows: set[DumpTable] = field(default_factory=set)
    headed: bool = False  #: it has the comments of a dump program
    complete: bool = False  #: its last line is there
    flaws: list[str] = field(default_factory=list)


class Dump:
    """Reads one dump, once; `read` returns at most some bytes of it, none at the end."""

    def __init__(self, path: str, read: Callable[[int], bytes], columns: dict[bytes, tuple[bytes, ...]]) -> None:
        """`columns` are those of the tables to read, for rows whose columns the dump does not name."""
        self.facts = DumpFacts()
        self._path, self._read = path, read
        self._columns = columns
        self._data = b""
        self._at = 0  # in _data
        self._offset = 0  # of _data in the dump
        self._ended = False
        self._database = b""  # of \\connect
        self._schema = b""
        self._notation = MYSQL
        self._charset = ""

    def rows(self, only: Collection[DumpTable] = ()) -> Iterator[Rows]:
        """Yields the rows of the tables, in their order; with `only`, those of some tables.

        Raises StoreUnreadableError for text that is no dump, or a statement that is too large.
        """
        self._begin()
        while self._skip_blank():
            word = _WORD.match(self._data, self._at)
            kind = word[0].upper() if word else b""
            if kind in (b"INSERT", b"REPLACE"):
                yield from self._inserted(only)
            elif kind == b"COPY":
                yield from self._copied(only)
            elif kind == b"CREATE":
                self._created()
            elif kind == b"DELIMITER":
                self._skip_program()
            else:
                text = self._statement()
                if found := _USE.match(text):
                    self._schema = _unquoted(found[1])
                self._set(text)
        if self.facts.headed and not self.facts.complete and not self.facts.flaws:
            self._flaw("the last line of the dump program is missing: rows and tables may be missing")

    def _begin(self) -> None:
        self._more()
        head = self._data[:3]
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise StoreUnreadableError(
                f"{self._path}: the dump was re-encoded as UTF-16, which changed the bytes of its messages",
                "make it again in a shell that writes bytes, or with --hex-blob or pg_dump -f FILE",
            )
        if head == b"\xef\xbb\xbf":
            self._at = 3
        if _SIGN_OF_POSTGRES.search(self._data):
            self.facts.postgres, self._notation = True, POSTGRES

    def _more(self) -> bool:
        """Reads more; returns False at the end."""
        if self._ended:
            return False
        rest = self._data[self._at :]
        if len(rest) > _MAX_STATEMENT:
            raise StoreUnreadableError(
                f"{self._path}: offset {self._offset + self._at}: a row of more than {format_size(_MAX_STATEMENT)}",
                "load the dump into a database, and name that",
            )
        more = self._read(max(_CHUNK, len(rest)))
        self._ended = not more
        self._offset += self._at
        self._data, self._at = rest + more, 0
        return bool(more)

    def _skip_blank(self) -> bool:
        """Skips to the next statement; returns False at the end."""
        while True:
            if found := _BLANK.match(self._data, self._at):
                self._note(self._data[self._at : found.end()])
                self._at = found.end()
            if self._at < len(self._data) and not _OPEN_COMMENT.match(self._data, self._at):
                # the beginning of a statement, perhaps cut
                if len(self._data) - self._at < 1 << 12:
                    self._more()
                if not _OPEN_COMMENT.match(self._data, self._at):
                    return True
            if not self._more():
                rest = self._data[self._at :]
                self._note(rest + b"\n")
                if rest.startswith(b"/*"):
                    self._flaw("it ends inside a comment")
                self._at = len(self._data)
                return False

    def _note(self, text: bytes) -> None:
        """Takes facts from comments, and from statements in comments for certain versions."""
        facts = self.facts
        facts.headed = facts.headed or _HEADING.search(text) is not None
        facts.complete = facts.complete or _COMPLETE.search(text) is not None
        if found := _CONNECT.search(text):
            self._database, self._schema = found[1], b""
        if b"SET" in text:
            self._set(text)

    def _set(self, text: bytes) -> None:
        if found := _OLD_STRINGS.search(text):
            self._notation = POSTGRES if found[1].lower() == b"on" else POSTGRES_OLD
        if found := _CHARSET.search(text):
            name = found[1].lower()
            self._charset = "utf-8" if name in _UNICODE else _CHARSETS.get(name, name.decode())
        if found := _SEARCH_PATH.search(text):
            self._schema = _unquoted(found[1])

    def _flaw(self, what: str) -> None:
        self.facts.flaws.append(f"offset {self._offset + self._at}: {what}")

    # Statements.

    def _head(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Matches the beginning of a statement, which may have to be read."""
        while not (found := pattern.match(self._data, self._at)):
            if len(self._data) - self._at > _CHUNK or not self._more():
                return None
        return found

    def _table(self, found: re.Match[bytes]) -> DumpTable:
        schema, table = (self._schema, found[1]) if found[2] is None else (_unquoted(found[1]), found[2])
        return DumpTable(b".".join(filter(None, (self._database, schema))), _unquoted(table).lower())

    def _wanted(self, name: DumpTable, only: Collection[DumpTable]) -> bool:
        return name.table in self._columns and (not only or name in only)

    def _created(self) -> None:
        text = self._statement()
        if found := _CREATE.match(text):
            name = self._table(found)
            if name.table in self._columns:
                token = _token_pattern(self._notation.string)
                self.facts.tables[name] = tuple(_columns_of(text[found.end() :], token))

    def _inserted(self, only: Collection[DumpTable]) -> Iterator[Rows]:
        found = self._head(_INSERT)
        if found is None:
            self._statement()
            return
        name = self._table(found)
        self.facts.with_rows.add(name)
        if not self._wanted(name, only):
            self._statement()
            return
        columns = _names(found[3]) if found[3] else self.facts.tables.get(name, ())
        self._at = found.end()
        pattern = _row_pattern(self._notation.value, len(columns or self._columns[name.table]))
        result = Rows(name, columns, self._notation, self._charset)
        while True:
            row = pattern.match(self._data, self._at)
            if row is None:
                cut = len(self._data) - self._at > _CHUNK and not self.facts.postgres and self._next_statement()
                if not cut and self._more():
                    continue
                yield result
                inside = self._next_statement()
                self._skip_broken("a row that is not as its columns" if inside else "an INSERT ends early")
                return
            self._at = row.end()
            result.rows.append(row.groups()[:-1])
            if row[row.lastindex or 0] != b",":
                break
            if len(result.rows) >= _MAX_ROWS:
                yield result
                result = Rows(name, columns, self._notation, self._charset)
        yield result
        if row[row.lastindex or 0] != b";":
            self._statement()

    def _next_statement(self) -> re.Match[bytes] | None:
        return _RESYNC.search(self._data, self._at)

    def _skip_broken(self, what: str) -> None:
        """Moves to the next line that begins a statement."""
        self._flaw(what)
        while not (found := self._next_statement()):
            self._at = max(self._at, len(self._data) - 16)
            if not self._more():
                self._at = len(self._data)
                return
        self._at = found.end()

    def _copied(self, only: Collection[DumpTable]) -> Iterator[Rows]:
        found = self._head(_COPY)
        if found is None:
            self._statement()
            return
        name = self._table(found)
        self.facts.with_rows.add(name)
        wanted = self._wanted(name, only)
        columns = _names(found[3]) if found[3] else self.facts.tables.get(name, ())
        count = len(columns or self._columns.get(name.table, ()))
        # Line breaks of Windows come from a change of the file: COPY writes a return in a value as \r.
        line_break = b"\r\n" if found[0].endswith(b"\r\n") else b"\n"
        self._at = found.end()
        while True:
            end = self._data.rfind(line_break, self._at)
            if end < 0:
                if self._more():
                    continue
                self._flaw(f"the rows of {name.table.decode(errors='replace')} end early")
                self._at = len(self._data)
                return
            lines = self._data[self._at : end].split(line_break)
            over = lines.index(b"\\.") if b"\\." in lines else -1
            if over >= 0:
                self._at += sum(map(len, lines[: over + 1])) + (over + 1) * len(line_break)
                lines = lines[:over]
            else:
                self._at = end + len(line_break)
            if wanted:
                rows: list[tuple[Token, ...]] = [tuple(line.split(b"\t")) for line in lines]
                whole = [row for row in rows if len(row) == count]
                if len(whole) < len(rows):
                    self._flaw(f"{len(rows) - len(whole)} rows that are not as their columns")
                yield Rows(name, columns, COPY, self._charset, whole)
            if over >= 0:
                return

    def _skip_program(self) -> None:
        """Skips triggers and routines, whose statements end with another delimiter."""
        found = self._head(_DELIMITER)
        self._at = found.end() if found else len(self._data)
        if found is None or found[1] == b";":
            return
        while not (end := re.compile(rb"^DELIMITER\s+;[^\n]*\n", re.MULTILINE).search(self._data, self._at)):
            if not self._more():
                self._at = len(self._data)
                return
        self._at = end.end()

    def _statement(self) -> bytes:
        """Moves past the `;` of a statement; returns its beginning."""
        token, head = _token_pattern(self._notation.string), bytearray()
        while True:
            found = token.match(self._data, self._at)
            if found is None or (found.end() == len(self._data) and not self._ended):
                if self._more():
                    continue
                if found is None:
                    if self._data[self._at :].strip():
                        self._flaw("a statement without an end")
                    self._at = len(self._data)
                    return bytes(head)
            assert found
            if len(head) < _CHUNK:
                head += found[0]
            self._at = found.end()
            if found[0] == b";":
                return bytes(head)


@lru_cache(maxsize=8)
def _token_pattern(string: bytes) -> re.Pattern[bytes]:
    return re.compile(
        string
        + rb"|\w+|[^;'\"`$/\-\w]+|"
        + rb'"(?:[^"]|"")*"'
        + rb"|`(?:[^`]|``)*`|\$(\w*)\$.*?\$\1\$|--[^\n]*\n|/\*.*?\*/"
        rb"|;|/(?!\*)|-(?!-)|\$(?!\w*\$)",
        re.DOTALL,
    )


@lru_cache(maxsize=64)
def _row_pattern(value: bytes, columns: int) -> re.Pattern[bytes]:
    separated = rb"\s*,\s*".join([rb"(" + value + rb")"] * columns)
    return re.compile(rb"\s*\(\s*" + separated + rb"\s*\)\s*(,|;|ON\b|AS\b)", re.DOTALL | re.IGNORECASE)


def _unquoted(name: bytes) -> bytes:
    quote = name[:1]
    return name[1:-1].replace(quote * 2, quote) if quote in (b"`", b'"') else name


def _names(listed: bytes) -> tuple[bytes, ...]:
    return tuple(_unquoted(each.strip()).lower() for each in listed.split(b","))


def _columns_of(body: bytes, token: re.Pattern[bytes]) -> Iterator[bytes]:
    """Yields the names of the columns in the body of CREATE TABLE."""
    begin = at = depth = 0
    while found := token.match(body, at):
        text = found[0]
        for place, each in enumerate(text) if text[:1] not in b"'\"`" else ():
            if each in b"(":
                depth += 1
            elif each in b")":
                depth -= 1
            if (depth < 0 or (depth == 0 and each in b",")) and begin >= 0:
                part = body[begin : at + place]
                if not _NO_COLUMN.match(part) and (column := _COLUMN.match(part)):
                    yield _unquoted(column[1]).lower()
                begin = at + place + 1 if depth == 0 else -1
        if begin < 0:
            return
        at = found.end()
