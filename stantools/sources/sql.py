"""The kind of SQL stores: dumps of databases, and databases."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stantools.escaping import shell_word
from stantools.sources.source import (
    ArchiveFormat,
    Capability,
    PathFacts,
    RecognisedPath,
    Source,
    SourceKind,
    SourceRequest,
)

if TYPE_CHECKING:
    from stantools.sqlstore.dump_reader import Read
    from stantools.sqlstore.sql_store import SqlStore
    from stantools.store.directory import Datastore

_SQLITE: Final = b"SQLite format 3\0"
_SQL_WORDS: Final = ("--", "/*", "create ", "insert ", "drop ", "set ", "begin", "pragma ", "use ", "lock tables")
_PG_ARCHIVE: Final = b"PGDMP"
_PG_CONTENTS: Final = "toc.dat"
_PG_TAR: Final = b"toc.dat\0"
_SCHEMA: Final = "?schema="
_USES: Final = frozenset(Capability) - {
    *(Capability.CHANGE, Capability.COMPACTION, Capability.HISTORY, Capability.MERGE),
    Capability.TASKS,  # but those of tables, which open it anew
}


def recognise_pg_archive(facts: PathFacts) -> RecognisedPath | None:
    """Recognises a dump of pg_dump that is not plain: a file, a tar, or a directory."""
    path, head = facts.path, facts.head
    if stat.S_ISDIR(facts.mode):
        form = "directory" if _PG_CONTENTS in facts.names else ""
    else:
        form = "custom" if head.startswith(_PG_ARCHIVE) else "tar" if head.startswith(_PG_TAR) else ""
        if form == "custom" and path.name == _PG_CONTENTS:
            path, form = path.parent, "directory"
    if not form:
        return None
    plain = shell_word(f"{path.absolute().name.partition('.')[0]}.sql")
    remedy = f"make it plain: `pg_restore -f {plain} {shell_word(str(path))}`, and name that"
    return RecognisedPath(PG_ARCHIVE, facts.path, f" in its {form} format", remedy)


def recognise_sql(facts: PathFacts) -> RecognisedPath | None:
    """Recognises a file of SQL that is not compressed."""
    if facts.head.startswith(_SQLITE):
        return RecognisedPath(SQLITE, facts.path, "", "name the dump of the database that the server was started with")
    if facts.path.suffix.lower() == ".sql" or is_sql(facts.head):
        return dump_of(facts.path)
    return None


def file_of(path: Path) -> tuple[Path, str]:
    """Returns the file and the schema that `FILE?schema=NAME` names."""
    name, _, schema = path.name.partition(_SCHEMA)
    return path.with_name(name) if schema else path, schema


def dump_of(path: Path, compression: str = "") -> RecognisedPath:
    word = shell_word(str(path))
    remedy = f"`stantools doctor {word}` judges it; `stantools salvage {word} --out NEW` makes a file store of it"
    archive = ArchiveFormat(compression, "", "") if compression else None
    return RecognisedPath(DUMP, path, f" ({compression})" if compression else "", remedy, archive=archive)


def is_sql(head: bytes) -> bool:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        head = head.decode("utf-16", "replace").encode()
    text = head.decode("latin-1").lstrip("\xef\xbb\xbf \t\r\n").lower()
    return text.startswith(_SQL_WORDS) and "\0" not in text


def _open_dump(found: RecognisedPath, request: SourceRequest) -> Source:
    from stantools.sqlstore.dump_reader import DumpReader
    from stantools.sqlstore.sql_store import SqlStore

    file, schema = file_of(found.path)
    compression = found.archive.name if found.archive else ""
    reader = DumpReader(file, partial(_opened, file, compression), schema or None, request.rows)
    return _source(found, request, SqlStore(str(found.path), reader))


def _source(found: RecognisedPath, request: SourceRequest, store: SqlStore) -> Source:
    source = Source(found, request.read_options, found.path, sql=store)
    source.convert = partial(_converted, source, request.channels if request.rows else ())
    return source


def _converted(source: Source, channels: Sequence[str]) -> Datastore:
    """Writes the intact content of channels of a SQL store into a private directory, as a file store."""
    from stantools import escaping
    from stantools.sources.private_copy import private_directory, remove
    from stantools.store.directory import open_datastore
    from stantools.store.read_options import prepare_store

    assert source.sql
    directory = private_directory()
    before = source.release

    def release() -> None:
        before()
        remove(directory)

    source.release = release
    root = directory / "store"
    root.mkdir()
    escaping.show_as(root, source.sql.path, "", source.sql.path)
    source.sql.write(root, channels)
    return prepare_store(open_datastore(root), source.read_options)


@contextmanager
def _opened(path: Path, compression: str) -> Iterator[Read]:
    from stantools.sources.decompression import Decompressed
    from stantools.sqlstore.dump_reader import opened_file

    if not compression:
        with opened_file(path) as read:
            yield read
        return
    with Decompressed(path, compression) as stream:
        yield stream.read


def recognise_database(facts: PathFacts) -> RecognisedPath | None:
    """Recognises the address of a database; the result shows it without its password."""
    from stantools.sqlstore.address import is_address, parse_address

    text = str(facts.path)
    if facts.mode or not is_address(text):
        return None
    shown = parse_address(text).shown
    word = shell_word(shown)
    remedy = f"`stantools doctor {word}` judges it; `stantools salvage {word} --out NEW` makes a file store of it"
    return RecognisedPath(DATABASE, Path(shown), "", remedy, inner=text, url=shown)


def _open_database(found: RecognisedPath, request: SourceRequest) -> Source:
    from stantools.sqlstore.address import parse_address
    from stantools.sqlstore.database import DatabaseReader
    from stantools.sqlstore.sql_store import SqlStore

    options = request.read_options
    address = parse_address(found.inner, options.sql_driver)
    if options.sql_password is not None:
        address = replace(address, password=options.sql_password.decode(errors="surrogateescape"))
    reader = DatabaseReader(address, request.rows)
    source = _source(found, request, SqlStore(address.shown, reader))
    source.notes, source.release = reader.notes, reader.close
    return source


DUMP = SourceKind("is a SQL dump", recognise_sql, _open_dump, _USES)
DATABASE = SourceKind("is a database", recognise_database, _open_database, _USES)
SQLITE = SourceKind("is an SQLite database", recognise_sql)
PG_ARCHIVE = SourceKind("is a dump of pg_dump", recognise_pg_archive)
