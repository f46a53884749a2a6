"""Options of a table: one value that can be sent to another process, parsed from option texts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stantools.errors import UsageError
from stantools.escaping import escape
from stantools.notation import parse_polynomial, parse_range, parse_time
from stantools.options import Option
from stantools.pipeline.tables.model import Mode, TableName
from stantools.pipeline.tables.option_texts import (
    NUMBER,
    SIZE,
    TRUTH,
    GivenOptions,
    instead,
    listed,
    names_of,
    spark_option,
)
from stantools.pipeline.tables.schema import column_names
from stantools.pipeline.tables.source_kinds import holds_streams
from stantools.secret import Secret
from stantools.sqlstore.address import is_address
from stantools.store.ranges import Bounds
from stantools.store.read_options import ReadOptions

#: Prefix of options that are passed to fsspec under the rest of their name.
STORAGE = "storage."


@dataclass(frozen=True)
class TableOptions:
    #: Stores, slices or directories of slices; glob patterns and URLs are allowed.
    paths: tuple[str, ...] = spark_option(
        (),
        path=Option(help="a store, a slice or a directory of them; glob patterns and URLs are allowed"),
        paths=Option(help="several paths as a json list"),
    )
    table: TableName = spark_option(TableName.MESSAGES, table=Option(help="|".join(TableName), choices=TableName))
    columns: tuple[str, ...] = spark_option(
        (), columns=Option(help="columns to read, separated by commas; default: all", read=listed)
    )
    mode: Mode = spark_option(Mode.PERMISSIVE, mode=Option(help="|".join(Mode), choices=Mode))
    channels: tuple[str, ...] = spark_option(
        (), channels=Option(help="channels to read, separated by commas; * is one token, > the rest", read=listed)
    )
    bounds: Bounds = spark_option(
        Bounds(),
        seq=Option(help="A:B, both ends included", read=parse_range),
        since=Option(help="messages from this time on: RFC 3339, or an age such as 1d3h", read=parse_time),
        until=Option(help="messages before this time: RFC 3339, or an age such as 1d3h", read=parse_time),
    )
    archived: bool = spark_option(False, archived=TRUTH.like(help="true reads .bak slices as well"))
    polynomial: int | None = spark_option(
        None, crcPoly=Option(help="auto, a number, ieee, castagnoli or koopman", read=parse_polynomial)
    )
    #: False counts messages with a wrong CRC as intact; without `data` the index alone then suffices.
    check_crc: bool = spark_option(True, checkCrc=TRUTH.like(help="false counts messages with a wrong CRC as intact"))
    #: The encryption key, looked up where the files are read.
    key: Secret = spark_option(
        Secret(),
        encryptionKey=Option(help="the server's encryption key"),
        encryptionKeyEnv=Option(help="the variable that holds the key where the files are read"),
        encryptionKeyFile=Option(help="the file that holds the key where the files are read"),
    )
    accept_unreadable: bool = spark_option(
        False,
        acceptUnreadable=TRUTH.like(help="true skips the files that this user may not read"),
    )
    split_bytes: int = spark_option(
        64 << 20, splitBytes=SIZE.like(help="larger slices (in bytes) are read in parts of about this size")
    )
    partition_bytes: int = spark_option(
        128 << 20,
        partitionBytes=SIZE.like(
            help="approximate bytes per task; by default more for large stores without the column data"
        ),
    )
    #: Limit in place of `partition_bytes` where that would give more than four tasks per `partitions`; a smaller value
    #: has no effect.
    largest_partition: int = 0
    partitions: int = spark_option(
        0, partitions=NUMBER.like(help="minimum number of tasks, as far as there is work for them")
    )
    batch_rows: int = spark_option(16384, batchRows=SIZE.like(help="maximum rows of an Arrow batch"))
    batch_bytes: int = spark_option(8 << 20, batchBytes=SIZE.like(help="approximate payload bytes of an Arrow batch"))
    storage: tuple[tuple[str, str], ...] = ()  #: options for fsspec by name
    sql_driver: str | None = spark_option(
        None, sqlDriver=Option(help="driver of a database that is named as in -sql_source: mysql or postgres")
    )
    #: The password of a database, looked up where it is read.
    sql_password: Secret = spark_option(
        Secret(),
        sqlPasswordEnv=Option(help="the variable that holds the password of a database where the tasks run"),
        sqlPasswordFile=Option(help="the file that holds the password of a database where the tasks run"),
    )

    def of(self, stores: Sequence[str], **changes: Any) -> TableOptions:
        """Returns the options for some stores: paths, patterns or URLs; relative paths become absolute."""
        if "" in stores:
            raise UsageError(
                "the path is empty; is a variable of the shell unset?", "name a directory; the current one is ."
            )
        # Links and `..` in patterns stay.
        paths = tuple(path if "://" in path or is_address(path) else os.path.abspath(path) for path in stores)  # noqa: PTH100
        return replace(self, paths=paths, **changes)

    def read_options(self, *, here: bool = True) -> ReadOptions:
        """Returns the same options for a store of this machine; tasks look up the secrets where they run."""
        options = ReadOptions(
            *(self.polynomial, self.check_crc, None, self.accept_unreadable, self.sql_driver),
            key_words=self.key.words("--encryption-key"),
        )
        return options.with_secrets(self.key, self.sql_password) if here else options

    def no_channel(self) -> UsageError:
        listed = ", ".join(map(escape, self.channels))
        return UsageError(f"no channel of any store matches {listed}", "see: stantools info STORE")


def table_options(values: Mapping[str, str]) -> TableOptions:
    """Parses the options of a table from texts by name (`names_of(TableOptions)`)."""
    storage = {
        name[len(STORAGE) :]: str(value)
        for name, value in values.items()
        if name.lower().startswith(STORAGE) and len(name) > len(STORAGE)
    }
    passed_over = {f"{STORAGE}{name}".lower() for name in storage}
    given = GivenOptions(values, names_of(TableOptions), passed_over)
    if given.text("encryptionKey") == "":
        raise UsageError("option encryptionKey: the key is empty", "give the key, or leave the option out")
    options = TableOptions(
        **given.fields(TableOptions),
        paths=_paths(given),
        bounds=_bounds(given),
        key=given.secret("encryptionKey"),
        sql_password=given.secret("sqlPassword"),
        storage=tuple(sorted(storage.items())),
    )
    options = fitting(options)
    return replace(options, columns=check_columns(options.table, options.columns))


def fitting(options: TableOptions) -> TableOptions:
    """Returns the options with the table of messages that fits the paths: that of streams for JetStream directories."""
    if options.table is TableName.MESSAGES and holds_streams(options.paths):
        return replace(options, table=TableName.STREAM_MESSAGES)
    return options


def check_columns(table: TableName, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the columns if the table has all of them; case does not matter."""
    have = column_names(table)
    canonical = {name.lower(): name for name in have}
    found = [canonical.get(name.lower(), "") for name in columns]
    for name, known in zip(columns, found, strict=True):
        if not known:
            raise UsageError(f"the table {table} has no column {name!r}", instead(name, list(have), "its columns are"))
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice:
        raise UsageError(f"the column {twice!r} is given twice", "name each column once")
    return tuple(found)


def _paths(given: GivenOptions) -> tuple[str, ...]:
    path, several = given.text("path"), given.text("paths")
    paths = [] if path is None else [path]
    if several is not None:
        try:
            more = json.loads(several)
        except ValueError:
            more = None
        if not isinstance(more, list) or not all(isinstance(each, str) for each in more):
            raise UsageError("option paths: is not a json list of texts", 'write it as ["/data/a", "/data/b"]')
        paths += more
    if not paths or not all(paths):
        raise UsageError(
            "no path is given" if not paths else "a path is empty", 'name a store: .option("path", …) or .load(…)'
        )
    return tuple(paths)


def _bounds(given: GivenOptions) -> Bounds:
    first, last = given.value("seq", (None, None))
    if (first or 0) < 0 or (last or 0) < 0:
        raise UsageError(
            f"option seq: {given.text('seq')!r} counts from the end, which differs for each channel of a table",
            "count from the start, such as 10:20, 10: or :20",
        )
    since, until = given.value("since"), given.value("until")
    if since is not None and until is not None and until <= since:
        raise UsageError("the options since and until select an empty range", "until must be later than since")
    return Bounds(first, last, since, until)
