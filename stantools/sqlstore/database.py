"""A database as the tables of a store: one snapshot of all seven, read only, without locks.

Facts: sql-stores.md section 9.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from stantools.errors import NotAStoreError, StantoolsError, StoreUnreadableError, UsageError
from stantools.home import below_home
from stantools.install_hints import install_command
from stantools.sqlstore.address import MYSQL, DatabaseAddress
from stantools.sqlstore.message_scan import MessageScan
from stantools.sqlstore.tables import COLUMNS, SMALL_TABLES, Cell, MessageRow, RowSelection, StoreTables

_ROWS: Final = 2000
#: seconds in which an active server of a fault tolerance group changes the lock twice
_LOCK_SECONDS: Final = 2.5
_RIGHTS: Final = "check user, password and host; SELECT on the seven tables is all that is needed"
_WHICH: Final = "name the database, and the schema (?schema=NAME), that the server has as -sql_source"
_ENGINE: Final = "InnoDB"
#: columns that a table may lack, by table
_OPTIONAL: Final = {
    name: {column.decode() for column, cell in table.columns if cell is Cell.BYTES}
    for name, table in SMALL_TABLES.items()
}


class DatabaseReader:
    """The tables of the store in a database; `close` ends the snapshot."""

    def __init__(self, address: DatabaseAddress, selection: RowSelection | None = None) -> None:
        self._address, self._selection = address, selection
        self._session: _Session = _MysqlSession(address) if address.driver == MYSQL else _PostgresSession(address)
        try:
            self._names = self._session.begin()
            self.missing = sorted(each.decode() for each in COLUMNS if each not in self._names)
            if {"channels", "messages"} & set(self.missing):
                raise NotAStoreError(
                    f"{address.shown}: has no tables of a NATS Streaming store (Messages, Channels, …)", _WHICH
                )
        except BaseException:
            self.close()
            raise
        self.flaws: list[str] = []
        self.notes = list(self._session.notes)

    def close(self) -> None:
        self._session.close()

    def _rows(self, table: bytes, columns: Sequence[str], after: str = "") -> Iterator[list[Any]]:
        """Yields rows in parts; NULL for a column that the table does not have. `after` follows the table's name."""
        if name := self._names.get(table):
            there = self._session.columns(name)
            if lost := [each for each in columns if each not in there and each not in _OPTIONAL.get(table, ())]:
                raise NotAStoreError(
                    f"{self._address.shown}: table {name} has no column {lost[0]}: it is that of another program",
                    _WHICH,
                )
            yield from self._session.rows(f"{name}{after}", [each if each in there else None for each in columns])

    @cached_property
    def tables(self) -> StoreTables:
        found = StoreTables()
        for name, table in SMALL_TABLES.items():
            listed = getattr(found, table.member)
            for rows in self._rows(name, table.row._fields):
                listed += [
                    table.row(*(_VALUES[cell](value) for cell, value in zip(table.cells, row, strict=True)))
                    for row in rows
                ]
        return found

    @cached_property
    def scan(self) -> MessageScan:
        scan = MessageScan()
        for rows in self.messages():
            scan.add(rows)
        return scan

    def messages(self) -> Iterator[list[MessageRow]]:
        chosen = ""
        if some := self._selection:
            chosen = f" WHERE id IN ({', '.join(map(str, some.ids))}) AND seq BETWEEN {some.first} AND {some.last}"
        for rows in self._rows(b"messages", MessageRow._fields, f"{chosen} ORDER BY id, seq"):
            yield [MessageRow(number, seq, at, size, _bytes(data)) for number, seq, at, size, data in rows]

    def active_server(self) -> str:
        """Describes a server that uses the database now; "" if there is no sign of one."""
        if (name := self._names.get(b"storelock")) and (lock := self._session.lock(name)) and lock[0]:
            time.sleep(_LOCK_SECONDS)
            if (after := self._session.lock(name)) != lock:
                return (
                    f"a server of a fault tolerance group is active: the tick of StoreLock became {after and after[1]}"
                )
        if others := self._session.others():
            return f"{others} other sessions on the database, perhaps of a running server"
        return ""


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return None if value is None else bytes(value)


_VALUES: Final[dict[Cell, Callable[[Any], Any]]] = {
    Cell.INTEGER: lambda value: value or 0,
    Cell.OPTIONAL: lambda value: value,
    Cell.TEXT: lambda value: _bytes(value) or b"",
    Cell.BYTES: _bytes,
    Cell.FLAG: bool,
}


class _Session:
    """A connection with a snapshot."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address
        self.notes: list[str] = []
        self._connection = self._reading(self._connect)
        self._outside: Any = None  # a second connection, outside of the snapshot

    def _connect(self) -> Any:
        raise NotImplementedError

    def begin(self) -> dict[bytes, str]:
        """Begins the snapshot; returns the names of the store's tables, as they are written in statements."""
        raise NotImplementedError

    def rows(self, place: str, columns: list[str | None]) -> Iterator[list[tuple[Any, ...]]]:
        """Yields columns of rows in parts; `place` is the table, with conditions and order."""
        raise NotImplementedError

    def columns(self, table: str) -> set[str]:
        raise NotImplementedError

    def others(self) -> int:
        """Number of other sessions that look like those of a server."""
        raise NotImplementedError

    def _reading(self, action: Any, *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except StantoolsError:
            raise
        except Exception as problem:
            text = " ".join(str(problem.args[-1] if problem.args else problem).split())
            if self._address.password:
                text = text.replace(self._address.password, "***")
            raise StoreUnreadableError(f"{self._address.shown}: {text}", _RIGHTS) from problem

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._query(self._connection, statement, *values)

    def _query(self, connection: Any, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        def run() -> list[tuple[Any, ...]]:
            with connection.cursor() as cursor:
                cursor.execute(statement, values or None)
                return list(cursor.fetchall()) if cursor.description else []

        found: list[tuple[Any, ...]] = self._reading(run)
        return found

    def lock(self, table: str) -> tuple[Any, ...] | None:
        """Returns the row of StoreLock as it is now."""
        if self._outside is None:
            self._outside = self._reading(self._connect)
        found = self._query(self._outside, f"SELECT id, tick FROM {table}")
        self._outside.rollback()
        return found[0] if found else None

    def close(self) -> None:
        for each in (self._connection, self._outside):
            if each is not None:
                with suppress(Exception):
                    each.close()


def _select(place: str, columns: list[str | None]) -> str:
    return f"SELECT {', '.join(each or 'NULL' for each in columns)} FROM {place}"


class _MysqlSession(_Session):
    def _connect(self) -> Any:
        address = self._address
        options: dict[str, Any] = {"database": address.name, "charset": "utf8mb4"}
        if address.user:
            options["user"] = address.user
        if address.password:
            options["password"] = address.password
        if address.socket:
            options["unix_socket"] = address.socket
        elif address.host:
            options |= {"host": address.host, "port": address.port or 3306}
        defaults = below_home(".my.cnf")
        if defaults.is_file():
            options["read_default_file"] = str(defaults)
        try:
            import MySQLdb
            import MySQLdb.cursors

            self._stream: Any = MySQLdb.cursors.SSCursor
            return MySQLdb.connect(**options, use_unicode=True)
        except ImportError:
            pass
        try:
            import pymysql
            import pymysql.cursors
        except ImportError as problem:
            raise StantoolsError(
                f"{address.shown}: databases of MySQL and MariaDB need PyMySQL", install_command("PyMySQL")
            ) from problem
        self._stream = pymysql.cursors.SSCursor
        return pymysql.connect(**options)

    def begin(self) -> dict[bytes, str]:
        self.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.query("SET SESSION net_write_timeout = 3600")
        self.query("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        found = {}
        torn = []
        statement = "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()"
        for name, engine in self.query(statement):
            key = name.lower().encode()
            if key in COLUMNS:
                found[key] = f"`{name}`"
                torn += [name] if engine != _ENGINE else []
        if torn:
            self.notes.append(f"tables without snapshots, which may be of different moments: {', '.join(sorted(torn))}")
        return found

    def columns(self, table: str) -> set[str]:
        return {row[0].lower() for row in self.query(f"SHOW COLUMNS FROM {table}")}

    def rows(self, place: str, columns: list[str | None]) -> Iterator[list[tuple[Any, ...]]]:
        listed = [each and f"`{each}`" for each in columns]
        cursor = self._connection.cursor(self._stream)
        try:
            self._reading(cursor.execute, _select(place, listed))
            while rows := self._reading(cursor.fetchmany, _ROWS):
                yield list(rows)
        finally:
            cursor.close()

    def others(self) -> int:
        own = self.query("SELECT CONNECTION_ID()")[0][0]
        count = 0
        for row in self.query("SHOW PROCESSLIST"):
            count += row[0] != own and row[3] == self._address.name and row[4] == "Sleep"
        return count if count > 1 else 0


class _PostgresSession(_Session):
    def _connect(self) -> Any:
        try:
            import psycopg
        except ImportError as problem:
            raise StantoolsError(
                f"{self._address.shown}: databases of PostgreSQL need psycopg", install_command("psycopg")
            ) from problem
        address = self._address
        options: dict[str, Any] = {"dbname": address.name, "client_encoding": "utf8", **dict(address.parameters)}
        for name, value in (
            ("user", address.user),
            ("password", address.password),
            ("host", address.socket or address.host),
            ("port", address.port),
        ):
            if value:
                options[name] = value
        connection = psycopg.connect(**options)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        return connection

    def begin(self) -> dict[bytes, str]:
        self.query("SET LOCAL statement_timeout = 0")
        self.query("SET LOCAL idle_in_transaction_session_timeout = 0")
        statement = (
            "SELECT schemaname, tablename, schemaname = ANY(current_schemas(false)) FROM pg_catalog.pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        by_schema: dict[str, set[bytes]] = {}
        searched: set[str] = set()
        for schema, table, found in self.query(statement):
            if table.encode() in COLUMNS:
                by_schema.setdefault(schema, set()).add(table.encode())
                searched |= {schema} if found else set()
        whole = [each for each, tables in by_schema.items() if len(tables) == len(COLUMNS)]
        chosen = [self._address.schema] if self._address.schema else [each for each in whole if each in searched]
        chosen = chosen or whole or [each for each in by_schema if each in searched] or list(by_schema)
        if len(chosen) > 1:
            listed = ", ".join(sorted(chosen))
            raise UsageError(f"{self._address.shown}: several schemas hold a store: {listed}", "add ?schema=NAME")
        if not chosen or chosen[0] not in by_schema:
            return {}
        schema = chosen[0].replace('"', '""')
        return {table: f'"{schema}".{table.decode()}' for table in by_schema[chosen[0]]}

    def columns(self, table: str) -> set[str]:
        with self._connection.cursor() as cursor:
            self._reading(cursor.execute, f"SELECT * FROM {table} LIMIT 0")
            return {each.name for each in cursor.description}

    def rows(self, place: str, columns: list[str | None]) -> Iterator[list[tuple[Any, ...]]]:
        listed = [each and f'"{each}"' for each in columns]
        with self._connection.cursor("stantools", binary=True) as cursor:
            cursor.itersize = _ROWS
            self._reading(cursor.execute, _select(place, listed))
            while rows := self._reading(cursor.fetchmany, _ROWS):
                yield rows

    def others(self) -> int:
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND application_name = '' AND query ~* '(Messages|Subscriptions|SubsPending|Channels|Clients|StoreLock)'"
        )
        return int(self.query(statement)[0][0])
