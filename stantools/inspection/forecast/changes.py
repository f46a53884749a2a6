"""Planned changes to files: what the server would do, said so exactly that `recovery.truncate` can do the same.

A change names its file, the size before and after, and an action. Nothing here touches a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE


@dataclass(frozen=True)
class Write:
    """The file gets this content.

    Attributes:
        data: All of it.
    """

    data: bytes


@dataclass(frozen=True)
class Cut:
    """The file is truncated to its new size."""


@dataclass(frozen=True)
class Append:
    """Bytes are added at the end.

    Attributes:
        data: The bytes, empty where only their number is known.
    """

    data: bytes = b""


@dataclass(frozen=True)
class Delete:
    """The file is removed."""


@dataclass(frozen=True)
class RebuildIndex:
    """The index is written anew from the records of the data file.

    Attributes:
        data_file: The data file, relative to the store.
        data_end: Where its good records end; they begin at offset 4.
        count: How many there are.
    """

    data_file: str
    data_end: int
    count: int

    @property
    def size(self) -> int:
        """Size of the index in bytes."""
        return FILE_HEADER_SIZE + INDEX_RECORD_SIZE * self.count


Action = Write | Cut | Append | Delete | RebuildIndex


@dataclass(frozen=True)
class Change:
    """What happens to one file.

    Attributes:
        path: Relative to the store.
        before: Size now; None if there is no file.
        after: Size then; None if there is no file.
        action: What is done.
    """

    path: str
    before: int | None
    after: int | None
    action: Action


def by_path(changes: Iterable[Change]) -> dict[str, Change]:
    """Combines changes in the order in which they happen; of one file the last one counts.

    A file that was created and removed again does not appear.
    """
    result: dict[str, Change] = {}
    for change in changes:
        first = result.get(change.path)
        before = first.before if first is not None else change.before
        if before is None and change.after is None:
            result.pop(change.path, None)
        else:
            result[change.path] = Change(change.path, before, change.after, change.action)
    return result
