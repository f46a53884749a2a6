"""How a table is to be read: one value that can be sent to another process, also made of the texts of options.

Texts come from `spark.read.option` and the command line. Names are taken whatever their case, because Spark does so.
Nothing is guessed: what is not known or makes no sense is refused with what was expected.
"""

from __future__ import annotations

import difflib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from stantools.errors import UsageError
from stantools.escaping import escape
from stantools.notation import parse_polynomial, parse_range, parse_size, parse_time
from stantools.pipeline.tables.model import Mode, Table
from stantools.secret import Secret

_Value = TypeVar("_Value")

#: Every option, as it is written in the documentation, and what its value is.
NAMES = {
    "path": "a store, a slice or a directory of them; glob patterns and URLs are taken",
    "paths": "several paths as a json list",
    "table": "|".join(Table),
    "columns": "the columns that are wanted, with commas; all if not given",
    "mode": "|".join(Mode),
    "channels": "channels to take, with commas; * is one token, > the rest",
    "seq": "A:B, both ends included",
    "since": "not older: RFC 3339, or an age such as 1d3h",
    "until": "older than this: RFC 3339, or an age such as 1d3h",
    "archived": "true takes .bak slices as well",
    "crcPoly": "auto, a number, ieee, castagnoli or koopman",
    "checkCrc": "false counts messages with a wrong CRC as intact",
    "encryptionKey": "the server's encryption key",
    "encryptionKeyEnv": "the variable that holds the key where the files are read",
    "encryptionKeyFile": "the file that holds the key where the files are read",
    "splitBytes": "a slice with more bytes is read in parts of about this size",
    "partitionBytes": "bytes that one task reads, about; if not given, more of large stores without the column data",
    "partitions": "tasks there shall be at least, as far as there is work for them",
    "batchRows": "rows of one Arrow batch, at most",
    "batchBytes": "payload bytes of one Arrow batch, about",
}
#: What begins so is passed to fsspec under the rest of its name.
STORAGE = "storage."

_CANONICAL = {name.lower(): name for name in NAMES}


@dataclass(frozen=True)
class Bounds:
    """Which messages are wanted; None is no bound.

    Attributes:
        first: Lowest sequence.
        last: Highest sequence.
        since: Not older, nanoseconds since 1970.
        until: Older than this.
    """

    first: int | None = None
    last: int | None = None
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class TableOptions:
    """How a table is read.

    Attributes:
        paths: Stores, slices or directories of slices; with glob patterns or as URLs.
        table: Which table.
        columns: Columns that are wanted, in this order; all if empty.
        mode: What to do with damage and with what cannot be read.
        channels: Patterns with NATS wildcards; all channels if empty.
        stores: Only these stores, as the column `store` names them; all if empty.
        slices: Only these slices, as the column `slice` names them; all if empty.
        bounds: Which messages.
        archived: Take `.bak` slices as well.
        polynomial: CRC polynomial; None finds it out for each store.
        check_crc: False counts messages with a wrong CRC as intact; without `data` the index alone is then enough.
        key: The encryption key, looked up where the files are read.
        split_bytes: A slice with more bytes is read in parts of about this size.
        partition_bytes: Bytes that one task reads, about.
        largest_partition: The same where there would be more than four tasks for each of `partitions` otherwise;
            no more than `partition_bytes` if it is less.
        partitions: Tasks there shall be at least, as far as there is work for them.
        batch_rows: Rows of one Arrow batch, at most.
        batch_bytes: Payload bytes of one Arrow batch, about; a single longer message comes alone.
        storage: Options for fsspec, by name.
    """

    paths: tuple[str, ...]
    table: Table = Table.MESSAGES
    columns: tuple[str, ...] = ()
    mode: Mode = Mode.PERMISSIVE
    channels: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    bounds: Bounds = Bounds()
    archived: bool = False
    polynomial: int | None = None
    check_crc: bool = True
    key: Secret = Secret()
    split_bytes: int = 64 << 20
    partition_bytes: int = 128 << 20
    largest_partition: int = 0
    partitions: int = 0
    batch_rows: int = 16384
    batch_bytes: int = 8 << 20
    storage: tuple[tuple[str, str], ...] = ()

    def of(self, stores: Sequence[str], **changes: Any) -> TableOptions:
        """Returns the options for some stores.

        Args:
            stores: Paths, patterns or URLs; relative ones are taken from here.
            changes: Further fields that are otherwise.

        Raises:
            UsageError: A path is empty.
        """
        if "" in stores:
            raise UsageError("the path of a store is empty", "name a directory; the current one is .")
        # Links stay, and so do `..` in patterns.
        paths = tuple(path if "://" in path else os.path.abspath(path) for path in stores)  # noqa: PTH100
        return replace(self, paths=paths, **changes)

    def no_channel(self) -> UsageError:
        """Returns that none of the stores has a channel that was asked for."""
        listed = ", ".join(map(escape, self.channels))
        return UsageError(f"no channel of any store matches {listed}", "see: stantools info STORE")


def table_options(values: Mapping[str, str]) -> TableOptions:
    """Reads the options of a table.

    Args:
        values: What was given, by name; see `NAMES`.

    Raises:
        UsageError: A name is not known, or a value makes no sense.
    """
    given, storage = _sorted(values)
    options = TableOptions(_paths(given), storage=storage)
    if "table" in given:
        options = replace(options, table=_choice("table", given["table"].strip().lower(), list(Table), Table))
    if "mode" in given:
        options = replace(options, mode=_choice("mode", given["mode"].strip().upper(), list(Mode), Mode))
    if given.get("encryptionKey") == "":
        raise UsageError("option encryptionKey: the key is empty", "give the key, or leave the option out")
    return replace(
        options,
        columns=check_columns(options.table, _listed(given.get("columns", ""))),
        channels=_listed(given.get("channels", "")),
        bounds=_bounds(given),
        archived=read_value(given, "archived", truth, options.archived, NAMES),
        polynomial=read_value(given, "crcPoly", parse_polynomial, None, NAMES),
        check_crc=read_value(given, "checkCrc", truth, options.check_crc, NAMES),
        key=secret_of(given, "encryptionKey"),
        split_bytes=read_value(given, "splitBytes", _size, options.split_bytes, NAMES),
        partition_bytes=read_value(given, "partitionBytes", _size, options.partition_bytes, NAMES),
        partitions=read_value(given, "partitions", count, options.partitions, NAMES),
        batch_rows=read_value(given, "batchRows", _size, options.batch_rows, NAMES),
        batch_bytes=read_value(given, "batchBytes", _size, options.batch_bytes, NAMES),
    )


def check_columns(table: Table, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the columns if the table has them all; the case of their names does not matter.

    Raises:
        UsageError: It does not have one of them, or one is named twice.
    """
    from stantools.pipeline.tables.schema import SCHEMAS  # loads Arrow, which options alone do not need

    have = SCHEMAS[table].names
    canonical = {name.lower(): name for name in have}
    found = [canonical.get(name.lower(), "") for name in columns]
    for name, known in zip(columns, found, strict=True):
        if not known:
            raise UsageError(f"the table {table} has no column {name!r}", _instead(name, have, "its columns are"))
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice:
        raise UsageError(f"the column {twice!r} is asked for twice", "name each column once")
    return tuple(found)


def _sorted(values: Mapping[str, str]) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Returns the options under their documented names, and those for fsspec."""
    given: dict[str, str] = {}
    storage: dict[str, str] = {}
    for name, value in values.items():
        if name.lower().startswith(STORAGE) and len(name) > len(STORAGE):
            storage[name[len(STORAGE) :]] = str(value)
            continue
        known = _CANONICAL.get(name.lower())
        if known is None:
            raise UsageError(f"there is no option {name!r}", _instead(name, list(NAMES), "the options are"))
        given[known] = str(value)
    return given, tuple(sorted(storage.items()))


def _instead(name: str, have: list[str], words: str) -> str:
    by_case = {each.lower(): each for each in have}
    close = [by_case[each] for each in difflib.get_close_matches(name.lower(), by_case, n=3)]
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{guess}{words}: {', '.join(have)}"


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    paths = [given["path"]] if "path" in given else []
    if "paths" in given:
        try:
            several = json.loads(given["paths"])
        except ValueError:
            several = None
        if not isinstance(several, list) or not all(isinstance(each, str) for each in several):
            raise UsageError("option paths: is not a json list of texts", 'write it as ["/data/a", "/data/b"]')
        paths += several
    if not paths or not all(paths):
        raise UsageError(
            "no path is given" if not paths else "a path is empty", 'name a store: .option("path", …) or .load(…)'
        )
    return tuple(paths)


def _choice(name: str, text: str, have: list[str], kind: Callable[[str], _Value]) -> _Value:
    if text not in have:
        raise UsageError(f"option {name}: {text!r} is not known", _instead(text, have, "it takes one of"))
    return kind(text)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for each in text.split(",") if (part := each.strip()))


def _size(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ValueError(f"{text!r} is not 1 or more")
    return size


def _bounds(given: Mapping[str, str]) -> Bounds:
    everything: tuple[int | None, int | None] = (None, None)
    first, last = read_value(given, "seq", parse_range, everything, NAMES)
    if (first or 0) < 0 or (last or 0) < 0:
        raise UsageError(
            f"option seq: {given['seq']!r} counts from the end, and every channel of a table has another end",
            "give sequences that count from the start, such as 10:20, 10: or :20",
        )
    now = time.time_ns()
    since = read_value(given, "since", lambda text: parse_time(text, now), None, NAMES)
    until = read_value(given, "until", lambda text: parse_time(text, now), None, NAMES)
    if since is not None and until is not None and until <= since:
        raise UsageError("the options since and until leave no time in between", "until has to be later than since")
    return Bounds(first, last, since, until)


def read_value(
    given: Mapping[str, str], name: str, read: Callable[[str], _Value], default: _Value, names: Mapping[str, str]
) -> _Value:
    """Returns the value of an option.

    Args:
        given: The options that are there.
        name: The option.
        read: Reads its text; raises ValueError saying what is wrong with it.
        default: Its value if it is not there.
        names: What each option is, for the message.

    Raises:
        UsageError: It cannot be read.
    """
    if name not in given:
        return default
    try:
        return read(given[name].strip())
    except ValueError as problem:
        raise UsageError(f"option {name}: {problem}", f"{name} is {names[name]}") from problem


def secret_of(given: Mapping[str, str], name: str) -> Secret:
    """Returns the secret that an option gives, or says where to find: `name`, `nameEnv` or `nameFile`.

    Raises:
        UsageError: More than one was given.
    """
    names = [each for each in (name, f"{name}Env", f"{name}File") if each in given]
    if len(names) > 1:
        raise UsageError(f"the options {' and '.join(names)} exclude each other", "give one of them")
    value, file = given.get(name), given.get(f"{name}File")
    return Secret(
        None if value is None else value.encode("utf-8", "surrogateescape"),
        given.get(f"{name}Env"),
        None if file is None else Path(file),
    )


def truth(text: str) -> bool:
    """Reads true or false.

    Raises:
        ValueError: It is neither.
    """
    lowered = text.lower()
    if lowered in ("true", "yes", "on", "1"):
        return True
    if lowered in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def count(text: str) -> int:
    """Reads a number of 0 or more.

    Raises:
        ValueError: It is none.
    """
    # Only digits: int() would take signs, blanks and underscores as well.
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number of 0 or more")
    return int(text)
