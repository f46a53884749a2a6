"""Databases read live: the golden dumps loaded into servers, a snapshot while a writer runs, and refusals."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import NotAStoreError, StantoolsError, UsageError
from stantools.sqlstore.address import is_address, parse_address
from stantools.sqlstore.database import DatabaseReader
from stantools.sqlstore.tables import RowSelection
from tests.sqlstore.cases import CASES, expected, opened
from tests.sqlstore.databases import Database, available


def test_addresses_are_shown_without_their_password() -> None:
    rows: list[tuple[str, str]] = [
        ("mysql://u:p%40w@h:3307/db", "mysql://u@h:3307/db"),
        ("mariadb:/u:a/b@c@h/db", "mysql://u@h/db"),
        ("postgres://u:pw9@h/db?sslmode=disable&schema=stan", "postgres://u@h/db?schema=stan"),
        ("u:p9:w@tcp(h:3306)/db?readTimeout=5s", "mysql://u@h/db"),
        ("u:pw9@unix(/run/s)/db", "mysql://u@localhost/db"),
        ("dbname=db host=h port=5433 user=u password='p w' readTimeout=5s", "postgres://u@h:5433/db"),
    ]
    for text, shown in rows:
        assert is_address(text), (text, shown)
        address = parse_address(text)
        assert address.shown == shown, (text, shown)
        assert address.password, (text, shown)
        assert address.password not in repr(address), (text, shown)
        assert not {"readTimeout", "writeTimeout"} & {name for name, _ in address.parameters}, (text, shown)


@pytest.mark.parametrize(
    ("text", "driver", "words"),
    [
        ("u:pw9@tcp(h:3306)/db", "postgres", "mysql://u@h/db: is an address of mysql, not of postgres"),
        ("postgres://u:pw9@h/db", "mysql", "is an address of postgres, not of mysql"),
        ("mysql://u:pw9@h:99999/db", None, "not a number up to 65535"),
        ("somewhere", None, "neither a URL nor"),
    ],
)
def test_addresses_that_are_wrong_are_refused(text: str, driver: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        parse_address(text, driver)
    assert "pw9" not in str(raised.value) + raised.value.remedy


@pytest.fixture(scope="module", params=["mysql", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if not available(request.param):
        pytest.skip(f"no server of {request.param} here (Debian: mariadb-server, postgresql)")
    # not below the folders of pytest, into which the user that runs the database may not look
    with tempfile.TemporaryDirectory() as folder, Database(request.param, Path(folder)).started() as found:
        yield found


def reader(database: Database, name: str) -> DatabaseReader:
    return DatabaseReader(parse_address(database.url(name)))


def content(found: Any) -> dict[str, Any]:
    tables = {name: sorted(map(repr, rows)) for name, rows in asdict(found.tables).items()}
    scans = {
        number: (each.rows, each.size, each.intact(None).as_json()) for number, each in found.scan.channels.items()
    }
    return {**tables, "messages": scans}


@pytest.mark.slow
def test_live_rows_are_those_of_the_dump(database: Database, golden_sql: Path) -> None:
    for case in CASES:
        facts = expected(golden_sql, case)
        if facts["database"]["driver"] != database.driver:
            continue
        database.load("golden", golden_sql / case / "dump.sql")
        after = facts.get("after_load") or ()
        for statement in (after,) if isinstance(after, str) else after:
            database.run("golden", statement.replace("<db>", "golden"))
        live = reader(database, "golden")
        try:
            assert content(live) == content(opened(golden_sql / case / "dump.sql")), case
        finally:
            live.close()


@pytest.mark.slow
def test_a_snapshot_does_not_change(database: Database, golden_sql: Path) -> None:
    database.load("moving", golden_sql / f"{database.driver[0]}_basic" / "dump.sql")
    live = reader(database, "moving")
    try:
        before = len(live.tables.channels)
        database.run("moving", "DELETE FROM Messages WHERE seq > 2")
        database.run("moving", "DELETE FROM Channels")
        messages = sum(len(rows) for rows in live.messages())
        assert before
        assert messages == sum(each.rows for each in live.scan.channels.values()) > 4
    finally:
        live.close()


@pytest.mark.slow
def test_a_snapshot_is_consistent_while_a_writer_runs(database: Database, tmp_path: Path) -> None:
    tables = tmp_path / "tables.sql"
    tables.write_text(
        "CREATE TABLE Channels (id INT, name CHAR(9), maxseq INT, maxmsgs INT, maxbytes INT, maxage INT, deleted INT);"
        "CREATE TABLE Messages (id INT, seq BIGINT, timestamp BIGINT, size INT, data VARCHAR(99));"
        "INSERT INTO Channels VALUES (1, 'c', 0, 0, 0, 0, 0);"
    )
    database.load("written", tables)
    steps = tmp_path / "steps.sql"
    with steps.open("w") as file:
        for seq in range(1, 20_001):
            message = f"INSERT INTO Messages VALUES (1, {seq}, {seq}, 1, 'x')"
            file.write(f"BEGIN; {message}; UPDATE Channels SET maxseq = {seq}; COMMIT;\n")
    seen: set[int] = set()
    with database.writing("written", steps) as writer:
        while writer.poll() is None and len(seen) < 8:
            live = reader(database, "written")
            try:
                (channel,) = live.tables.channels
                rows = [row.seq for part in live.messages() for row in part]
                assert rows == list(range(1, channel.maxseq + 1))
                seen.add(channel.maxseq)
            finally:
                live.close()
    assert len(seen) > 1


@pytest.mark.slow
def test_a_selection_reads_only_its_messages(database: Database, golden_sql: Path) -> None:
    database.load("chosen", golden_sql / f"{database.driver[0]}_durables" / "dump.sql")
    live = DatabaseReader(parse_address(database.url("chosen")), RowSelection((1,), 3, 7))
    try:
        assert [(row.id, row.seq) for rows in live.messages() for row in rows] == [(1, seq) for seq in range(3, 8)]
        assert list(live.scan.channels) == [1]
    finally:
        live.close()


@pytest.mark.slow
def test_tables_of_another_program_are_named(database: Database, tmp_path: Path) -> None:
    tables = tmp_path / "tables.sql"
    tables.write_text("CREATE TABLE Channels (id INT, title INT);CREATE TABLE Messages (id INT, text INT);")
    database.load("forum", tables)
    live = reader(database, "forum")
    try:
        for read in (lambda: live.tables, lambda: live.scan):
            with pytest.raises(NotAStoreError, match=r"has no column (name|seq): it is that of another program"):
                read()
    finally:
        live.close()


@pytest.mark.slow
def test_refusals_name_the_database_and_no_password(database: Database) -> None:
    name = "mysql" if database.driver == "mysql" else "postgres"
    with pytest.raises(NotAStoreError, match="no tables of a NATS Streaming store"):
        reader(database, name)
    url = database.url("nowhere").replace("@", ":secret@")
    with pytest.raises(StantoolsError, match="nowhere") as raised:
        DatabaseReader(parse_address(url))
    assert "secret" not in str(raised.value)


def test_the_broker_names_the_command_for_its_database() -> None:
    command = ("-st", "SQL", "-sql_driver", "mysql", "-sql_source", "u:secret@tcp(h:3306)/db")
    found = subprocess.run([sys.executable, "-m", "broker", *command], capture_output=True, text=True, check=False)
    assert found.returncode
    assert "`stantools salvage mysql://u@h/db --out NEW`" in found.stderr
    assert "secret" not in found.stderr
