"""How a table is to be read: one value that can be sent to another process, and reading the texts of options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from stantools.errors import UsageError
from stantools.pipeline.tables.model import Mode, Table
from stantools.store.options import key_from_file, key_from_variable


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
        key_env: Variable with the encryption key, looked up where the files are read.
        key_file: File with the encryption key, read where the files are read.
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
    key: bytes | None = field(default=None, repr=False)
    key_env: str | None = None
    key_file: str | None = None
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

    @property
    def has_key(self) -> bool:
        """An encryption key was named; whether it can be found is not looked at."""
        return self.key is not None or self.key_env is not None or self.key_file is not None

    def encryption_key(self) -> bytes | None:
        """Returns the key that the server was given, None if none was named. To be asked for where files are read.

        Raises:
            StoreUnreadableError: The file with the key cannot be read.
            UsageError: The variable is not set, or the file is empty.
        """
        if self.key is not None:
            return self.key
        if self.key_env is not None:
            return key_from_variable(self.key_env)
        return None if self.key_file is None else key_from_file(Path(self.key_file))


_Value = TypeVar("_Value")


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
