"""What the server's user may do with files: its open and create calls fail where this says no.

The server opens every file of a store for reading and writing, and creates those that are missing.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_READ_WRITE = 6
_WRITE_SEARCH = 3
_SEARCH = 1


class Access(Protocol):
    """Answers for a user."""

    def may_open(self, path: Path) -> bool:
        """Tells whether an existing file can be opened for reading and writing."""

    def may_change(self, directory: Path) -> bool:
        """Tells whether files can be created, renamed and removed in a directory."""

    def may_list(self, directory: Path) -> bool:
        """Tells whether a directory can be listed."""


@dataclass(frozen=True)
class CurrentUser:
    """The user that runs the forecast."""

    def may_open(self, path: Path) -> bool:
        """Tells whether an existing file can be opened for reading and writing."""
        return _access(path, os.R_OK | os.W_OK)

    def may_change(self, directory: Path) -> bool:
        """Tells whether files can be created, renamed and removed in a directory."""
        return _access(directory, os.W_OK | os.X_OK)

    def may_list(self, directory: Path) -> bool:
        """Tells whether a directory can be listed."""
        return _access(directory, os.R_OK | os.X_OK)


@dataclass(frozen=True)
class OtherUser:
    """Any other user, judged by owner, group and mode bits.

    Attributes:
        uid: User id; 0 may do everything.
        groups: Group ids.
    """

    uid: int
    groups: frozenset[int] = field(default_factory=frozenset)

    def may_open(self, path: Path) -> bool:
        """Tells whether an existing file can be opened for reading and writing."""
        return self._may(path.parent, _SEARCH) and self._may(path, _READ_WRITE)

    def may_change(self, directory: Path) -> bool:
        """Tells whether files can be created, renamed and removed in a directory."""
        return self._may(directory, _WRITE_SEARCH)

    def may_list(self, directory: Path) -> bool:
        """Tells whether a directory can be listed."""
        return self._may(directory, 5)

    def _may(self, path: Path, wanted: int) -> bool:
        status = path.stat()
        if self.uid == 0:
            return True
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.groups else 0
        return (stat.S_IMODE(status.st_mode) >> shift) & wanted == wanted


def owner_of(directory: Path) -> OtherUser:
    """Returns the user that owns a directory: mostly the one that runs the server."""
    status = directory.stat()
    return OtherUser(status.st_uid, frozenset({status.st_gid}))


def _access(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
