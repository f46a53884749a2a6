"""The server's options at the start, and the permissions of its user."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from stantools.errors import UsageError
from stantools.format.crc import Crc
from stantools.store.directory import Datastore
from stantools.store.limits import StoreLimits
from stantools.store.serverinfo import stored_cluster_id

DEFAULT_CLUSTER_ID = "test-cluster"
DEFAULT_READ_BUFFER = 2 * 1024 * 1024

#: Versions of the server with known behaviour; values of `--server-version`.
SERVER_VERSIONS = ("0.23.2", "0.25.6")

#: Bits of a file mode.
_READ, _WRITE, _SEARCH = 4, 2, 1


class FileAccess(ABC):
    """Permissions of the server's user: its open and create calls fail where this returns False.

    The server opens every file of a store for reading and writing, and creates missing ones.
    """

    def may_open(self, path: Path) -> bool:
        """Returns whether an existing file can be opened for reading and writing."""
        return self._may(path.parent, _SEARCH) and self._may(path, _READ | _WRITE)

    def may_change(self, directory: Path) -> bool:
        """Returns whether files can be created, renamed and removed in a directory."""
        return self._may(directory, _WRITE | _SEARCH)

    def may_list(self, directory: Path) -> bool:
        return self._may(directory, _READ | _SEARCH)

    @abstractmethod
    def _may(self, path: Path, wanted: int) -> bool:
        """Returns whether all of some mode bits are granted."""


@dataclass(frozen=True)
class CurrentUser(FileAccess):
    """The user that runs the forecast."""

    def _may(self, path: Path, wanted: int) -> bool:
        return os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)


@dataclass(frozen=True)
class OtherUser(FileAccess):
    """Any other user, judged by owner, group and mode bits."""

    uid: int  #: user id; 0 may do everything
    groups: frozenset[int] = field(default_factory=frozenset)

    def _may(self, path: Path, wanted: int) -> bool:
        status = path.stat()
        if self.uid == 0:
            return True
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.groups else 0
        return (stat.S_IMODE(status.st_mode) >> shift) & wanted == wanted


def owner_of(directory: Path) -> OtherUser:
    """Returns the owner of a directory, usually the user that runs the server."""
    status = directory.stat()
    return OtherUser(status.st_uid, frozenset({status.st_gid}))


@dataclass(frozen=True)
class ServerOptions:
    """Options of the server at the start; the defaults are the server's.

    Raises `UsageError` if the version is unknown or the read buffer size negative.
    """

    version: str = SERVER_VERSIONS[0]  #: one of `SERVER_VERSIONS`
    crc: Crc = field(default_factory=Crc)  #: `-file_crc_poly` and `-file_crc`
    #: `-mc`, `-mm`, `-mb`, `-ma`, `-msu`, `-mi` and the limits per channel.
    limits: StoreLimits = field(default_factory=StoreLimits)
    read_buffer_size: int = DEFAULT_READ_BUFFER  #: `-file_read_buffer_size` in bytes; 0 turns read-ahead off
    #: `-encryption_key`; None is a server without encryption
    encryption_key: bytes | None = field(default=None, repr=False)
    cluster_id: str = DEFAULT_CLUSTER_ID  #: `-cluster_id`
    store_name: str | None = None  #: the directory as given to `-dir`, for messages; the store's path if None
    now_ns: int | None = None  #: time of the start, for age limits; None is the time of the forecast
    #: Files that the server's user may open and create; None is the owner of the store's directory.
    access: FileAccess | None = None
    workers: int = 2  #: Threads of the forecast itself. The outcome does not depend on it.

    def __post_init__(self) -> None:
        if self.version not in SERVER_VERSIONS:
            raise UsageError(
                f"the behaviour of server version {self.version!r} is not known",
                f"use one of {', '.join(SERVER_VERSIONS)}",
            )
        if self.read_buffer_size < 0:
            raise UsageError("read buffer size value must be a positive number", "use 0 to turn reading ahead off")

    @property
    def since_0_25(self) -> bool:
        return self.version == "0.25.6"


def own_server(store: Datastore, *, version: str = SERVER_VERSIONS[0], workers: int = 2) -> ServerOptions:
    """Returns options for a start by the current user; settings that the store does not show are the server's defaults.

    The cluster id is the store's own: a start with another one fails anyway. `workers` are threads of the forecast.
    """
    return ServerOptions(
        version=version,
        crc=store.crc,
        encryption_key=store.key,
        cluster_id=stored_cluster_id(store.server, store.crc) or DEFAULT_CLUSTER_ID,
        access=CurrentUser(),
        workers=workers,
    )
