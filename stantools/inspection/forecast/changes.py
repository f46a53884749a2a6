"""Planned changes to files: the server's changes, described so exactly that `recovery.truncate` can make the same ones.

A change consists of a file, its sizes before and after, and an action. Nothing here touches a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE


@dataclass(frozen=True)
class WriteChange:
    """The file gets this content."""

    data: bytes


@dataclass(frozen=True)
class CutChange:
    pass


@dataclass(frozen=True)
class AppendChange:
    data: bytes = b""  #: the bytes; empty if only their number is known


@dataclass(frozen=True)
class DeleteChange:
    pass


@dataclass(frozen=True)
class RebuildIndex:
    """The index is rewritten from the records of the data file."""

    data_file: str  #: relative to the store
    data_end: int  #: end of its good records, which begin at offset 4
    count: int  #: number of records

    @property
    def size(self) -> int:
        """Size of the index in bytes."""
        return FILE_HEADER_SIZE + INDEX_RECORD_SIZE * self.count


Action = WriteChange | CutChange | AppendChange | DeleteChange | RebuildIndex


@dataclass(frozen=True)
class Change:
    path: str  #: relative to the store
    before: int | None  #: size now; None if there is no file
    after: int | None  #: size afterwards; None if there is no file
    action: Action


def by_path(changes: Iterable[Change]) -> dict[str, Change]:
    """Combines changes in the order in which they happen; of one file, the last one counts.

    A file that is created and removed again does not appear.
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
