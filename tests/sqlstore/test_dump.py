"""Dumps in any form, cut anywhere, and files that are none."""

from __future__ import annotations

import gzip
import io
import shutil
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stantools.errors import NotAStoreError, StoreUnreadableError, UsageError
from stantools.sources.door import open_source
from stantools.sqlstore.dump import Dump
from stantools.sqlstore.literals import COPY, MYSQL, POSTGRES, POSTGRES_OLD
from stantools.sqlstore.tables import COLUMNS
from tests.sqlstore.cases import opened, read

_MYSQL = {0: b"\\0", 10: b"\\n", 13: b"\\r", 26: b"\\Z", 34: b'\\"', 39: b"\\'", 92: b"\\\\"}
_COPY = {8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 92: b"\\\\"}


def mysql(data: bytes, quote: bytes = _MYSQL[39]) -> bytes:
    escapes = {**_MYSQL, 39: quote}
    return b"'" + b"".join(escapes.get(each, bytes([each])) for each in data) + b"'"


def escaped_bytea(data: bytes) -> bytes:
    """The text of bytes with bytea_output=escape."""
    return b"".join(b"\\\\" if each == 92 else bytes([each]) if 32 <= each < 127 else b"\\%03o" % each for each in data)


def copied(text: bytes) -> bytes:
    return b"".join(_COPY.get(each, bytes([each])) for each in text)


@example(b"'\\'")
@given(st.binary(max_size=60))
def test_values_are_read_as_they_were_written(data: bytes) -> None:
    assert MYSQL.binary(mysql(data)) == MYSQL.binary(b"_binary " + mysql(data)) == data
    assert MYSQL.binary(mysql(data, quote=b"''")) == data
    assert MYSQL.binary(b"0x" + data.hex().encode()) == MYSQL.binary(b"X'" + data.hex().encode() + b"'") == data
    hexed, text = b"\\x" + data.hex().encode(), escaped_bytea(data)
    assert POSTGRES.binary(b"'" + hexed + b"'") == COPY.binary(copied(hexed)) == data
    assert POSTGRES.binary(b"'" + text.replace(b"'", b"''") + b"'") == COPY.binary(copied(text)) == data
    doubled = text.replace(b"\\", b"\\\\").replace(b"'", b"''")
    assert POSTGRES_OLD.binary(b"'" + doubled + b"'") == POSTGRES.binary(b"E'" + doubled + b"'") == data


def test_a_schema_ends_with_its_database() -> None:
    made = b"CREATE TABLE channels (id int);\n"
    text = b"\\connect one\n\n%bSET search_path = s;\n%b\\connect two\n\n%b" % (made, made, made)
    dump = Dump("dump", io.BytesIO(text).read, COLUMNS)
    assert list(dump.rows()) == []
    assert [*dump.facts.tables] == [(schema, b"channels") for schema in (b"one", b"one.s", b"two")]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**63), st.binary(max_size=80)), max_size=12), st.booleans(), st.booleans())
def test_rows_do_not_depend_on_the_form(rows: list[tuple[int, bytes]], one: bool, quoted: bool) -> None:
    name = b"`Messages`" if quoted else b"Messages"
    written = [b"(1,%d,5,%d,%s)" % (seq, len(data), mysql(data)) for seq, data in rows]
    head = b"INSERT INTO " + name + b" VALUES "
    body = b"".join(head + each + b";\n" for each in written) if one else head + b",\n".join(written) + b";\n"
    other = b"INSERT INTO other VALUES (1,'INSERT INTO Messages VALUES (1,2,3,4,\\'\\');\n');\n"
    found = rows_of(other + (body if rows else b"") + other)
    assert found == rows


@given(st.binary(min_size=1, max_size=80), st.binary(max_size=80))
def test_rows_alone_tell_which_database_they_are_of(first: bytes, second: bytes) -> None:
    head = b"INSERT INTO Messages VALUES "
    hexed = [b"(1,%d,5,3,'\\x%s')" % (number, each.hex().encode()) for number, each in enumerate((first, second), 1)]
    assert rows_of(head + b",".join(hexed) + b";\n") == [(1, first), (2, second)]
    text = b"'\\x41'" + first + b",'\\x41')" + second
    assert rows_of(head + b"(1,1,5,3," + mysql(text) + b");\n") == [(1, text)]


def rows_of(text: bytes) -> list[tuple[int, bytes]]:
    dump = Dump("x.sql", io.BytesIO(text).read, COLUMNS)
    found = []
    for rows in dump.rows():
        for _, seq, _, _, data in rows.rows:
            found.append((rows.notation.integer(seq) or 0, rows.notation.binary(data) or b""))
    assert not dump.facts.flaws
    return found


@pytest.mark.parametrize("case", ["m_basic", "p_basic", "m_mysql8_form", "p_bytea_escape"])
def test_a_cut_dump_has_the_rows_before_the_cut(golden_sql: Path, case: str, tmp_path: Path) -> None:
    content = (golden_sql / case / "dump.sql").read_bytes()
    whole = opened(golden_sql / case / "dump.sql")
    messages = {number: set(each.sequences.ranges) for number, each in whole.scan.channels.items()}
    cut = tmp_path / "dump.sql"
    begin = content.lower().rindex(b"messages", 0, content.lower().index(b"serverinfo"))
    for end in range(begin, len(content) - 80, max(1, (len(content) - begin) // 12)):
        cut.write_bytes(content[:end])
        found = opened(cut)
        for number, each in found.scan.channels.items():
            assert each.last <= max(last for _, last in messages[number])
            assert not each.faulty
        assert found.reader.flaws


def test_a_dump_is_read_compressed(golden_sql: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "dump.sql.gz"
    zipped.write_bytes(gzip.compress((golden_sql / "m_basic" / "dump.sql").read_bytes()))
    source = open_source(zipped)
    assert source.sql
    assert source.sql.channels.keys() == opened(golden_sql / "m_basic" / "dump.sql").channels.keys()


def test_one_of_several_stores_is_named(golden_sql: Path, tmp_path: Path) -> None:
    content = (golden_sql / "p_basic" / "dump.sql").read_bytes()
    dump = tmp_path / "two.sql"
    dump.write_bytes(content + content.replace(b"public.", b"other."))
    with pytest.raises(UsageError, match="several stores: other, public"):
        read(dump)
    source = open_source(Path(f"{dump}?schema=other"))
    assert source.sql
    assert source.sql.scan.channels


def test_tables_of_other_programs_in_other_databases_do_not_matter(golden_sql: Path, tmp_path: Path) -> None:
    content = (golden_sql / "m_basic" / "dump.sql").read_bytes()
    shop = (
        b"USE `shop`;\nCREATE TABLE `Clients` (`number` int, `city` text);\nINSERT INTO `Clients` VALUES (1,'Ulm');\n"
    )
    dump = tmp_path / "all.sql"
    dump.write_bytes(shop + b"USE `stan`;\n" + content)
    whole = opened(golden_sql / "m_basic" / "dump.sql").tables
    assert opened(dump).tables == whole
    # Nor if both have some of the tables only.
    shop = b"USE `shop`;\nCREATE TABLE `Messages` (`number` int);\nINSERT INTO `Messages` VALUES (1);\n"
    begin, end = content.index(b"DROP TABLE IF EXISTS `Clients`"), content.index(b"DROP TABLE IF EXISTS `Messages`")
    dump.write_bytes(shop + b"USE `stan`;\n" + content[:begin] + content[end:])
    found = opened(dump)
    assert found.tables.channels == whole.channels and not found.tables.clients


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"CREATE TABLE `users` (`id` int);\nINSERT INTO `users` VALUES (1);\n", NotAStoreError, "without the tables"),
        ("CREATE TABLE `Messages` (`id` int);\n".encode("utf-16"), StoreUnreadableError, "re-encoded as UTF-16"),
        (b"-- dump\nCREATE TABLE Messages (a int);INSERT INTO Messages VALUES (1);", StoreUnreadableError, "no column"),
        (b"PGDMP\x01\x0e", NotAStoreError, "custom format"),
        (
            b"toc.dat".ljust(257, b"\0") + b"ustar".ljust(255, b"\0"),
            NotAStoreError,
            "dump of pg_dump in its tar format",
        ),
        (b"SQLite format 3\0", NotAStoreError, "SQLite"),
    ],
)
def test_other_files_are_named(content: bytes, kind: type[Exception], words: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.sql"
    path.write_bytes(content)
    with pytest.raises(kind, match=words):
        open_source(path)


def test_a_directory_of_pg_dump_is_named(tmp_path: Path) -> None:
    (tmp_path / "toc.dat").write_bytes(b"PGDMP\x01\x0e")
    for path in (tmp_path, tmp_path / "toc.dat"):
        with pytest.raises(NotAStoreError, match="in its directory format") as raised:
            open_source(path)
        assert f"pg_restore -f {tmp_path.name}.sql {tmp_path}" in raised.value.remedy


@pytest.mark.parametrize("case", ["m_durables", "p_durables"])
def test_line_breaks_of_windows_do_not_matter(golden_sql: Path, case: str, tmp_path: Path) -> None:
    content = (golden_sql / case / "dump.sql").read_bytes()
    dump = tmp_path / "dump.sql"
    dump.write_bytes(content.replace(b"\n", b"\r\n"))
    found, wanted = opened(dump), opened(golden_sql / case / "dump.sql")
    assert not found.reader.flaws
    assert found.tables == wanted.tables
    assert list(chain.from_iterable(found.reader.messages())) == list(chain.from_iterable(wanted.reader.messages()))
    dump.write_bytes(content.replace(b"\n", b"\r\n")[:-200])
    assert opened(dump).reader.flaws


def test_names_are_read_in_a_charset_that_lacks_their_letters(golden_sql: Path, tmp_path: Path) -> None:
    content = (golden_sql / "m_utf8_names" / "dump.sql").read_bytes()
    wanted = opened(golden_sql / "m_utf8_names" / "dump.sql")
    names = {row.name.decode() for row in wanted.tables.channels}
    begin = content.index(b"INSERT INTO `Channels`")
    end = content.index(b";\n", begin)
    rows = content[begin:end].decode().encode("cp1252", "replace")
    dump = tmp_path / "dump.sql"
    lost = sum(name.encode("cp1252", "replace").decode("cp1252") != name for name in names)
    assert lost
    for charset in (b"latin1", b""):
        head = content[:begin].replace(
            b"SET NAMES utf8mb4", b"SET NAMES latin1" if charset else b"SET TIME_ZONE='+00:00'"
        )
        dump.write_bytes(head + rows + content[end:])
        found = opened(dump)
        assert {row.name.decode() for row in found.tables.channels} == names
        assert len([each for each in found.reader.flaws if "its charset lacks letters" in each]) == lost
    # Without a charset, UTF-8 is what it looks like.
    dump.write_bytes(content.replace(b"SET NAMES utf8mb4", b"SET TIME_ZONE='+00:00'"))
    assert opened(dump).tables.channels == wanted.tables.channels
    # A name of another length is not that of the subject.
    name = next(row.name for row in wanted.tables.channels if not row.name.isascii())
    dump.write_bytes(content[:begin] + content[begin:end].replace(b"'%b'" % name, b"'??'") + content[end:])
    assert b"??" in {row.name for row in opened(dump).tables.channels}


def test_a_schema_that_is_not_there_is_named(golden_sql: Path, tmp_path: Path) -> None:
    for case, remedy in (("m_basic", "leave ?schema= out"), ("p_basic", "its schemas are: public")):
        with pytest.raises(UsageError, match="no schema nope") as raised:
            open_source(Path(f"{golden_sql / case / 'dump.sql'}?schema=nope"))
        assert remedy in raised.value.remedy


def test_a_changed_row_is_a_flaw_and_the_rest_is_read(golden_sql: Path, tmp_path: Path) -> None:
    content = (golden_sql / "m_basic" / "dump.sql").read_bytes()
    dump = tmp_path / "dump.sql"
    shutil.copy(golden_sql / "m_basic" / "dump.sql", dump)
    place = content.index(b"INSERT INTO `Messages`")
    row = content.index(b"\n(", place) + 1
    dump.write_bytes(content[:row] + b"(1,oops" + content[row:])
    found = opened(dump)
    assert len(found.reader.flaws) == 1
    assert str(row) in found.reader.flaws[0]
    assert found.tables.server
