"""`export` into databases: the rows of ndjson, read back by sqlite3 and DuckDB; whole or not there."""

from __future__ import annotations

import base64
import importlib.util
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stantools.pipeline.tables.model import STORE_TABLES, TableName
from stantools.pipeline.tables.schema import schema_of
from stantools.store.sample import SampleOptions, write_sample

Row = dict[str, Any]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every kind of row: messages that are whole and not, durables, clients, findings."""
    store = tmp_path_factory.mktemp("databases") / "store"
    write_sample(store, SampleOptions(names=["orders", "ünï \"x'"], damage=["flipped-length", "flipped-byte"]))
    return store


def of_sqlite(path: Path, table: str) -> list[Row]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        assert [row["name"] for row in connection.execute("SELECT name FROM sqlite_schema")] == [table]
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]


def of_duckdb(path: Path, table: str) -> list[Row]:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.execute("SHOW TABLES").fetchall() == [(table,)]
        times = [each.name for each in schema_of(TableName(table)) if str(each.type).startswith("timestamp")]
        kinds = dict(connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE {table})").fetchall())
        assert all(kinds[name] == "TIMESTAMP WITH TIME ZONE" for name in times)
        utc = ", ".join(
            f"strftime(timezone('UTC', \"{name}\"), '%Y-%m-%dT%H:%M:%S.%fZ') AS \"{name}\"" for name in times
        )
        found = connection.execute(f"SELECT * {f'REPLACE ({utc})' if utc else ''} FROM {table}")
        names = [each[0] for each in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def as_json(row: Row, lists: list[str]) -> Row:
    """A row as ndjson has it."""
    found = {name: base64.b64encode(each).decode() if isinstance(each, bytes) else each for name, each in row.items()}
    return found | {name: json.loads(found[name]) for name in lists if isinstance(found[name], str)}


@pytest.mark.parametrize("table", [each.value for each in STORE_TABLES])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_every_table_has_the_rows_of_ndjson(run, damaged: Path, tmp_path: Path, table: str, kind: str) -> None:
    if kind == "duckdb":
        pytest.importorskip("duckdb")
    target = tmp_path / f"x.{kind}"
    outcome = run("export", damaged, "--table", table, "--to", target)
    text = run("export", damaged, "--table", table, "--to", "-")
    assert outcome.code == text.code
    rows = (of_sqlite if kind == "sqlite" else of_duckdb)(target, table)
    lists = [each.name for each in schema_of(TableName(table)) if str(each.type).startswith("list")]
    assert [as_json(row, lists) for row in rows] == text.ndjson()
    assert len(rows) > 2 and list(rows[0]) == schema_of(TableName(table)).names
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert outcome.out.endswith(f"1 file, {outcome.out.split('1 file, ')[1].split(',')[0]}, {kind}\n")


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_columns_bounds_and_an_earlier_file(run, damaged: Path, tmp_path: Path, kind: str) -> None:
    read = of_sqlite if kind == "sqlite" else of_duckdb
    if kind == "duckdb":
        pytest.importorskip("duckdb")
    words = ("export", damaged, "--format", kind, "--to", tmp_path / "x.db")
    assert run(*words, "--channel", "orders", "--seq", "5:6", "--columns", "seq,offset").code == 0
    first = (tmp_path / "x.db").read_bytes()
    again = run(*words)
    assert again.code == 3 and "x.db: exists already" in again.err and "--overwrite" in again.err
    assert (tmp_path / "x.db").read_bytes() == first
    if kind == "sqlite":
        assert [row["seq"] for row in read(tmp_path / "x.db", "messages")] == [5, 6]
    assert run(*words, "--overwrite", "--mode", "DROPMALFORMED").code == 1
    failed = run(*words, "--overwrite", "--mode", "FAILFAST")
    assert failed.code == 3 and "offset" in failed.err
    with closing(sqlite3.connect(tmp_path / "x.db")) if kind == "sqlite" else _duckdb(tmp_path / "x.db") as connection:
        (rows,) = connection.execute("SELECT count(*) FROM messages WHERE status IN ('ok', 'repaired')").fetchone()
    assert rows == 199
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]


def _duckdb(path: Path) -> Any:
    import duckdb

    return duckdb.connect(str(path), read_only=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export", "--to", "x.sqlite", "--by", "channel"), "names a single file"),
        (("export", "--to", "x.sqlite", "--compression", "gzip"), "cannot be compressed with gzip"),
        (("export", "--to", "x.sqlite.gz"), ".gz implies no format"),
        (("export", "--to", "x.sqlite", "--format", "duckdb"), "the name implies sqlite"),
        (("export", "--to", "-", "--format", "sqlite"), "SQLite cannot be written to a stream"),
        (("export", "--to", "out/", "--format", "sqlite"), "SQLite is one file, written by one process"),
        (("pipeline", "export", "--to", "x.sqlite"), "SQLite is one file, written by one process"),
        (("export", "--to", "a.txt"), "--to a.txt: .txt implies no format"),
        (("export", "--to", "a.parquet.gz"), "--to a.parquet.gz: .gz implies no format"),
    ],
)
def test_what_is_refused(
    run, damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(*words, damaged)
    assert outcome.code == 2 and said in outcome.err and "  -> " in outcome.err, outcome.err
    assert ".sqlite.sqlite" not in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_what_a_name_makes(run, damaged: Path, tmp_path: Path) -> None:
    """An ending makes a file, whose format may be said; none, a number, or a slash makes a directory."""
    words = ("export", damaged, "--channel", "orders", "--to")
    assert run(*words, tmp_path / "a.txt", "--format", "csv").code == 1
    assert (tmp_path / "a.txt").read_text().count("\n") == 101
    for name in ("b.txt/", "export-2026.11.21", "c"):
        assert run(*words, f"{tmp_path}/{name}").code == 1
        assert (tmp_path / name / "_SUCCESS").exists()
    assert run(*words, tmp_path / "d", "--format", "sqlite").code == 1
    assert len(of_sqlite(tmp_path / "d", "messages")) == 100


def test_duckdb_is_missing(run, damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "duckdb" else find(name, *more)
    )
    outcome = run("export", damaged, "--to", tmp_path / "x.duckdb")
    assert outcome.code == 3 and outcome.err.startswith("stantools: error: a DuckDB database needs duckdb, which")
    assert "pip install 'duckdb>=1.1'; or choose sqlite" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_remedies_of_findings_can_be_pasted(run, damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(damaged.parent)
    rows = run("export", "store", "--table", "findings", "--to", "-").ndjson()
    remedies = [row["remedy"] for row in rows if "stantools" in (row["remedy"] or "")]
    assert any(f"`stantools salvage {damaged} --out {damaged}.salvaged`" in each for each in remedies)
    assert not any("STORE" in each or "NEW" in each for each in remedies)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_all_tables_are_in_one_database(run, damaged: Path, tmp_path: Path, kind: str) -> None:
    if kind == "duckdb":
        pytest.importorskip("duckdb")
    target = tmp_path / f"all.{kind}"
    outcome = run("export", damaged, "--table", "all", "--to", target, "-o", "json")
    assert outcome.code == 1
    assert {each["table"] for each in outcome.json()["tables"]} == {each.value for each in STORE_TABLES}
    for each in outcome.json()["tables"]:
        with _counter(target, kind) as rows_of:
            assert rows_of(each["table"]) == each["rows"]


@contextmanager
def _counter(path: Path, kind: str) -> Iterator[Callable[[str], int]]:
    """Counts the rows of a table."""
    if kind == "sqlite":
        connection: Any = sqlite3.connect(path)
    else:
        connection = pytest.importorskip("duckdb").connect(str(path), read_only=True)
    with closing(connection):
        yield lambda table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.mark.parametrize(
    "words", [("--to", "all.csv"), ("--to", "all"), ("--to", "-"), ("--to", "a.sqlite", "--columns", "seq")]
)
def test_all_tables_need_a_database(run, damaged: Path, words: tuple[str, ...]) -> None:
    outcome = run("export", damaged, "--table", "all", *words)
    assert outcome.code == 2
    assert "--table" in outcome.err or "--columns" in outcome.err
