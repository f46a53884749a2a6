"""SQL stores, live and as dumps, beside the programs of the databases themselves.

The servers are private ones on loopback. Each row is a whole command that runs once: its time, and the most memory it
had; those of the database's server are not counted.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import stores
from measure import MB, Memory, Options, peak_memory, reread, stantools, table, timed, verdict

from stantools.format.proto import store_pb2 as pb
from stantools.store.serverinfo import new_server_info
from tests.sqlstore.databases import Database, available, program

_CHANNELS, _SIZE, _BATCH = 4, 128, 1000
#: processor seconds for a million messages, and MiB for any number
_SECONDS, _MEMORY = 10, 200
_NAME = "stan"
_PRODUCTS = {"mysql": "MariaDB", "postgres": "PostgreSQL"}
#: how each driver writes types: numbers without sign, bytes, flags
_TYPES = {"mysql": ("BIGINT UNSIGNED", "BLOB", "TINYINT(1)"), "postgres": ("BIGINT", "BYTEA", "BOOLEAN")}
_TABLES = """
CREATE TABLE ServerInfo (uniquerow INT DEFAULT 1, id VARCHAR(1024), proto {bytes}, version INT,
  PRIMARY KEY (uniquerow));
CREATE TABLE Clients (id VARCHAR(1024), hbinbox TEXT, proto {bytes});
CREATE TABLE Channels (id INT, name VARCHAR(1024) NOT NULL, maxseq {number} DEFAULT 0, maxmsgs INT DEFAULT 0,
  maxbytes BIGINT DEFAULT 0, maxage BIGINT DEFAULT 0, deleted {flag} DEFAULT {no}, PRIMARY KEY (id));
CREATE TABLE Messages (id INT, seq {number}, timestamp BIGINT, size INT, data {bytes}, PRIMARY KEY (id, seq));
CREATE TABLE Subscriptions (id INT, subid {number}, lastsent {number} DEFAULT 0, proto {bytes},
  deleted {flag} DEFAULT {no}, PRIMARY KEY (id, subid));
CREATE TABLE SubsPending (subid {number}, {row} {number}, seq {number} DEFAULT 0, lastsent {number} DEFAULT 0,
  pending {bytes}, acks {bytes}, PRIMARY KEY (subid, {row}));
CREATE TABLE StoreLock (id VARCHAR(30), tick {number} DEFAULT 0);
"""


def section(options: Options) -> str:
    """Measures both databases."""
    return "\n\n".join(_compare(driver, options) for driver in _PRODUCTS)


def _compare(driver: str, options: Options) -> str:
    if not available(driver):
        return f"**{_PRODUCTS[driver]}: not installed here**"
    # Not below a private directory, into which the user that runs the database may not look.
    with (
        options.directory("databases") as place,
        tempfile.TemporaryDirectory(dir=options.place.parent, prefix="bench-") as folder,
        Database(driver, Path(folder)).started() as database,
    ):
        database.load(_NAME, _written(place / "made.sql", driver, options.rows))
        return _measured(database, place, options.rows)


def _measured(database: Database, place: Path, rows: int) -> str:
    url, dump, out = database.url(_NAME), place / "dump.sql", place / "out"
    own = _own_programs(database)
    with dump.open("wb") as file:
        subprocess.run(list(map(str, next(iter(own.values())))), stdout=file, check=True)
    commands: dict[str, Sequence[object]] = {
        **own,
        "cat of the dump": ("cat", dump),
        "verify of the dump": stantools("verify", dump),
        "verify of the database": stantools("verify", url),
        "salvage of the dump": stantools("salvage", dump, "--out", out),
        "salvage of the database": stantools("salvage", url, "--out", out),
    }
    lines = []
    for name, command in commands.items():
        reread([dump])
        found: list[Memory] = []
        took = timed(partial(_watched, command, found))
        memory, judged = found[0].peak, ""
        if name.startswith("verify"):
            limit = _SECONDS * rows / 1e6
            judged = verdict(f"≤ {limit:g} CPU s, ≤ {_MEMORY} MiB", took.processor <= limit and memory <= _MEMORY)
        figures = f"{rows / took.seconds / 1000:.0f}", f"{memory:.0f}", f"{took.others:.1f}"
        lines.append((name, took.seconds, took.processor, *figures, judged))
        shutil.rmtree(out, ignore_errors=True)
    headers = ("whole command", "s", "CPU s", "k msgs/s", "most MiB", "others", "target")
    size = f"a dump of {dump.stat().st_size / MB:.0f} MB"
    title = f"{_PRODUCTS[database.driver]}: {rows:,} messages of {_SIZE} bytes in {_CHANNELS} channels, {size}"
    return f"**{title}**\n\n{table(headers, lines)}"


def _watched(command: Sequence[object], found: list[Memory]) -> None:
    found.append(peak_memory(command)[1])


def _own_programs(database: Database) -> dict[str, Sequence[object]]:
    """Returns the programs of a database that read all of it; the first one makes a dump."""
    if database.driver == "mysql":
        options = ("--no-defaults", "-h127.0.0.1", f"-P{database.port}", "-uroot")
        query = ("--quick", "--batch", "--raw", "-e", "SELECT id, seq, timestamp, size, data FROM Messages")
        return {
            "mariadb-dump --single-transaction": (program("mariadb-dump"), *options, "--single-transaction", _NAME),
            "mariadb, SELECT of all messages": (program("mariadb"), *options, *query, _NAME),
        }
    options = ("-h127.0.0.1", f"-p{database.port}", "-Ustan")
    query = "COPY (SELECT id, seq, timestamp, size, data FROM messages ORDER BY id, seq) TO STDOUT"
    return {
        "pg_dump": (program("pg_dump"), *options, _NAME),
        "psql, COPY of all messages": (program("psql"), "-X", *options, "-c", query, _NAME),
        "psql, COPY in binary form": (program("psql"), "-X", *options, "-c", f"{query} (FORMAT binary)", _NAME),
    }


def _channel(number: int) -> bytes:
    return b"orders.eu.%05d" % number


def _written(path: Path, driver: str, rows: int) -> Path:
    """Writes the statements that make a store: messages in some channels, each with a durable a few messages behind."""
    mysql = driver == "mysql"
    number, content, flag = _TYPES[driver]
    words = {"number": number, "bytes": content, "flag": flag}
    more = {"no": "0", "row": "`row`"} if mysql else {"no": "FALSE", "row": "row"}
    server = new_server_info(stores.CLUSTER_ID)
    share, texts = max(rows // _CHANNELS, 1), stores.payloads(_SIZE)
    with path.open("wb") as file:
        file.write(_TABLES.format(**words, **more).encode())

        def insert(table: str, *values: object) -> None:
            cells = (_literal(each, mysql=mysql) if isinstance(each, bytes) else str(each).encode() for each in values)
            file.write(b"INSERT INTO %s VALUES (%s);\n" % (table.encode(), b",".join(cells)))

        insert("ServerInfo", 1, "'bench-cluster'", server.SerializeToString(), 1)
        client = pb.ClientInfo(id=b"bench", hb_inbox=b"_INBOX.bench")
        insert("Clients", "'bench'", "'_INBOX.bench'", client.SerializeToString())
        for channel in range(1, _CHANNELS + 1):
            name = _channel(channel - 1)
            insert("Channels", channel, f"'{name.decode()}'", 0, 0, 0, 0, "0" if mysql else "FALSE")
            state = pb.SubState(id=channel, client_id=b"bench", durable_name=b"d", is_durable=True, inbox=b"_INBOX.d")
            state.last_sent = share - 10
            insert("Subscriptions", channel, channel, share - 10, state.SerializeToString(), "0" if mysql else "FALSE")
            for first in range(1, share + 1, _BATCH):
                file.write(b"INSERT INTO Messages VALUES ")
                file.write(
                    b",".join(
                        _row(channel, name, seq, texts, mysql) for seq in range(first, min(first + _BATCH, share + 1))
                    )
                )
                file.write(b";\n")
    return path


def _row(channel: int, name: bytes, sequence: int, texts: Sequence[bytes], mysql: bool) -> bytes:
    at = stores.TIME + sequence * 1_000_000
    message = pb.MsgProto(sequence=sequence, subject=name, data=texts[sequence % len(texts)], timestamp=at)
    data = message.SerializeToString()
    return b"(%d,%d,%d,%d,%s)" % (channel, sequence, at, len(data), _literal(data, mysql=mysql))


def _literal(data: bytes, *, mysql: bool) -> bytes:
    return b"0x" + data.hex().encode() if mysql else b"'\\x" + data.hex().encode() + b"'"
