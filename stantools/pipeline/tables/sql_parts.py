"""SQL stores as parts of a table: a task opens the dump or database itself, and makes file stores of its rows.

A part has the messages of some channels, or a range of the sequences of one; tables of anything else have one part.
Each task of a database has a snapshot of its own: later messages are not read, but messages that limits remove
meanwhile are missing. A task of a dump reads the whole file, so there are no more parts than tasks that run at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.errors import StoreUnreadableError, UsageError
from stantools.pipeline.tables.listing import is_pattern
from stantools.pipeline.tables.model import FailedRead, SqlPart, TableName
from stantools.pipeline.tables.table_options import TableOptions
from stantools.sources.door import open_source, recognise
from stantools.sources.source import Capability, Source, SourceRequest
from stantools.sources.sql import DATABASE, DUMP
from stantools.sqlstore.address import is_address, parse_address, without_password
from stantools.sqlstore.tables import RowSelection

if TYPE_CHECKING:
    from stantools.sqlstore.sql_store import SqlStore

#: least bytes of messages for which a task opens the source once more
_LEAST = 16 << 20


def is_sql_store(path: str) -> bool:
    if is_address(path):
        return True
    if "://" in path or is_pattern(path) or Path(path).is_dir():
        return False
    return recognise(Path(path)).kind in (DUMP, DATABASE)


def check_password(path: str) -> None:
    """Raises UsageError for an address with a password, which Spark would show in its plans."""
    if is_address(path) and parse_address(path).password:
        raise UsageError(
            f"{without_password(path)}: Spark would write the password of this address into its plans",
            "leave it out, and name its place: --sql-password-env or --sql-password-file (sqlPasswordEnv, "
            "sqlPasswordFile), or ~/.pgpass or ~/.my.cnf where the tasks run",
        )


def sql_parts(path: str, options: TableOptions) -> Iterator[SqlPart | FailedRead]:
    """Yields the parts of a SQL store, and what its file stores leave out."""
    try:
        with _opened(path, options) as source:
            source.choose_rows(Capability.TABLE)
            store = source.sql
            assert store
            findings = options.table is TableName.FINDINGS  # which have the flaws as well
            for flaw in () if findings else (*store.reader.flaws, *source.flaws):
                yield FailedRead(source.shown, f"{source.shown}: {flaw}", f"see: stantools verify {source.shown}")
            names = sorted(store.matching(options.channels))
            sizes = {name: sum(max(store.rows(row).size, 0) for row in store.channels[name]) for name in names}
            if options.table is TableName.MESSAGES:
                yield from _divided(path, store, sizes, options.partitions)
            else:
                yield SqlPart(path, tuple(names), None, sum(sizes.values()))
    except StoreUnreadableError as error:
        yield FailedRead.of(without_password(path), error)


def _divided(path: str, store: SqlStore, sizes: Mapping[str, int], tasks: int) -> Iterator[SqlPart]:
    """Yields parts of similar sizes: channels together, and large ones in ranges of sequences."""
    size = max(-(-sum(sizes.values()) // max(tasks, 1)), _LEAST)
    together: list[str] = []
    for name in sizes:
        if sizes[name] > size:
            yield from _ranges(path, store, [name], -(-sizes[name] // size), sizes[name])
            continue
        if together and sum(sizes[each] for each in together) + sizes[name] > size:
            yield from _ranges(path, store, together, 1, sum(sizes[each] for each in together))
            together = []
        together.append(name)
    if together:
        yield from _ranges(path, store, together, 1, sum(sizes[each] for each in together))


def _ranges(path: str, store: SqlStore, names: Sequence[str], count: int, size: int) -> Iterator[SqlPart]:
    """Yields channels in parts, each a range of sequences."""
    ids = tuple(row.id for name in names for row in store.channels[name])
    there = [store.scan.channels[each] for each in ids if each in store.scan.channels]
    first, last = min((each.first for each in there), default=0), max((each.last for each in there), default=0)
    bounds = [first + (last + 1 - first) * number // count for number in range(count + 1)]
    for low, high in itertools.pairwise(bounds):
        yield SqlPart(path, tuple(names), RowSelection(ids, low, high - 1), size // count)


@contextmanager
def opened_part(part: SqlPart, options: TableOptions) -> Iterator[Source]:
    """Opens a part; `store()` of the source is a private file store of its rows, which goes with the block."""
    with _opened(part.path, replace(options, channels=part.channels), part.rows) as source:
        yield source


@contextmanager
def _opened(path: str, options: TableOptions, rows: RowSelection | None = None) -> Iterator[Source]:
    source = open_source(Path(path), SourceRequest(options.read_options(), options.channels, rows=rows))
    try:
        yield source
    finally:
        source.release()
