"""Planned changes to files: what the server would do, said so exactly that `recovery.truncate` can do the same.

A change names its file, the size before and after, and an action. Nothing here touches a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE


@dataclass(frozen=True)
class Write:
    """The file gets this content."""

    data: bytes


@dataclass(frozen=True)
class Cut:
    """The file is truncated to its new size."""


@dataclass(frozen=True)
class Append:
    """Bytes are added at the end."""

    data: bytes = b""  #: the bytes, empty where only their number is known


@dataclass(frozen=True)
class Delete:
    """The file is removed."""


@dataclass(frozen=True)
class RebuildIndex:
    """The index is rewritten from the records of the data file."""

    data_file: str  #: the data file, relative to the store
    data_end: int  #: where its good records end; they begin at offset 4
    count: int  #: how many there are

    @property
    def size(self) -> int:
        """Size of the index in bytes."""
        return FILE_HEADER_SIZE + INDEX_RECORD_SIZE * self.count


Action = Write | Cut | Append | Delete | RebuildIndex


@dataclass(frozen=True)
class Change:
    """What happens to one file."""

    path: str  #: relative to the store
    before: int | None  #: size now; None if there is no file
    after: int | None  #: size then; None if there is no file
    action: Action  #: what is done


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
