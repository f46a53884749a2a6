"""Options of tables as texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stantools.errors import UsageError
from stantools.format.crc import CASTAGNOLI
from stantools.pipeline.tables.model import Mode, TableName
from stantools.pipeline.tables.option_texts import names_of
from stantools.pipeline.tables.table_options import TableOptions, check_columns, table_options
from stantools.secret import Secret
from stantools.store.ranges import Bounds


def test_everything_has_a_default() -> None:
    assert table_options({"path": "/data"}) == TableOptions(("/data",))


def test_every_option_whatever_its_case() -> None:
    given = {
        "PATH": "/data/a",
        "paths": json.dumps(["/data/b", "s3://c/d"]),
        "Table": "Messages",
        "columns": "seq, DATA",
        "mode": "failfast",
        "channels": "orders.>, audit",
        "seq": "10:20",
        "since": "2026-11-21T03:00:00Z",
        "until": "2026-11-22",
        "archived": "true",
        "crcpoly": "castagnoli",
        "checkCRC": "no",
        "encryptionKeyEnv": "KEY",
        "acceptUnreadable": "yes",
        "splitBytes": "1m",
        "partitionbytes": "4096",
        "partitions": "7",
        "batchRows": "100",
        "batchBytes": "2MB",
        "storage.anon": "true",
    }
    assert table_options(given) == TableOptions(
        ("/data/a", "/data/b", "s3://c/d"),
        TableName.MESSAGES,
        ("seq", "data"),
        Mode.FAILFAST,
        ("orders.>", "audit"),
        bounds=Bounds(10, 20, 1795230000000000000, 1795305600000000000),
        archived=True,
        polynomial=CASTAGNOLI,
        check_crc=False,
        key=Secret(variable="KEY"),
        accept_unreadable=True,
        split_bytes=1 << 20,
        partition_bytes=4096,
        partitions=7,
        batch_rows=100,
        batch_bytes=2 << 20,
        storage=(("anon", "true"),),
    )
    assert {name.lower() for name in names_of(TableOptions)} - {name.lower() for name in given} == {
        "encryptionkey",
        "encryptionkeyfile",
        "sqldriver",
        "sqlpasswordenv",
        "sqlpasswordfile",
    }
    assert table_options({"path": "x", "encryptionKey": "sécret"}).key == Secret("sécret".encode())
    assert table_options({"path": "x", "encryptionKeyFile": "/k"}).key == Secret(file=Path("/k"))


def test_what_makes_no_sense_is_refused() -> None:
    rows: list[tuple[dict[str, str], str, str]] = [
        ({"chanels": "a"}, "unknown option 'chanels'", "did you mean channels"),
        ({"wholly": "a"}, "unknown option 'wholly'", "the options are: path, paths, table"),
        ({"table": "message"}, "option table: 'message' is not known", "did you mean messages"),
        ({"mode": "strict"}, "option mode: 'STRICT' is not known", "PERMISSIVE, DROPMALFORMED, FAILFAST"),
        ({"columns": "seq,payload"}, "the table messages has no column 'payload'", "its columns are: store, channel"),
        ({"columns": "seq,Seq"}, "'seq' is given twice", "once"),
        ({"table": "clients", "columns": "seq"}, "the table clients has no column 'seq'", "conn_id"),
        ({"seq": "-10:"}, "counts from the end", "10:20"),
        ({"seq": "20:10"}, "ends before it begins", "both ends"),
        ({"since": "yesterday"}, "option since: 'yesterday' is neither a time", "RFC 3339"),
        ({"since": "1h", "until": "2h"}, "select an empty range", "later"),
        ({"archived": "perhaps"}, "neither true nor false", ".bak"),
        ({"crcPoly": "foo"}, "not a polynomial", "castagnoli"),
        ({"splitBytes": "0"}, "not 1 or more", "parts of about this size"),
        ({"partitions": "-1"}, "not a number of 0 or more", "tasks"),
        ({"batchRows": "many"}, "not a number of bytes", "rows"),
        ({"paths": "[1]"}, "not a json list", "/data/a"),
        ({"path": ""}, "a path is empty", "name a store"),
        ({"encryptionKey": ""}, "the key is empty", "leave the option out"),
        ({"encryptionKey": "a", "encryptionKeyFile": "b"}, "exclude each other", "one of them"),
        ({"storage.": "a"}, "unknown option 'storage.'", "options"),
    ]
    for given, message, remedy in rows:
        with pytest.raises(UsageError) as refused:
            table_options({"path": "/data"} | given)
            pytest.fail(f"accepted: {(given, message, remedy)!r}")
        assert message in refused.value.message, (given, message, remedy)
        assert remedy in refused.value.remedy, (given, message, remedy)
        assert refused.value.exit_code == 2, (given, message, remedy)


def test_a_path_is_needed() -> None:
    with pytest.raises(UsageError, match="no path is given"):
        table_options({})


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(table_options({"path": "x", "encryptionKey": "secret"}))


def test_columns_keep_the_order_in_which_they_are_asked_for() -> None:
    assert check_columns(TableName.SLICES, ("Last_Seq", "store")) == ("last_seq", "store")
