"""The search for stores below a path: one rule for directories, nodes, URLs and the members of an archive.

- A directory with server.dat, clients.dat or a salvage's account is a store.
- One with `raft.log` belongs to a clustered node. A store may have it below its root, where only logs are looked for.
- One with subs.dat or slices is a channel. The directory around it is a store that lost its own files, unless stores
  with files of their own are beside it, or the channel is reached through a link, or has archived slices only.
- Other directories are searched, except those of the system.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stantools.store.names import (
    CLIENTS_FILE,
    INDEX_NAME,
    MANIFEST_FILE,
    RAFT_LOG_FILE,
    SERVER_FILE,
    SLICE_NAME,
    SUBS_FILE,
    is_system_name,
)

#: maximum number and depth of the directories that are searched below a path of a file system
MAX_DIRECTORIES: Final = 2000
#: The default path of a node's log is three directories below the server's working directory.
MAX_DEPTH: Final = 4
_ROOT_FILES: Final = {SERVER_FILE, CLIENTS_FILE, MANIFEST_FILE}


class DirectoryNames(NamedTuple):
    names: set[str]  #: all names in a directory
    folders: list[str]  #: those of the directories in it that may be searched
    linked: frozenset[str] = frozenset()  #: those of the folders that are symbolic links
    closed: bool = False  #: the user is not permitted to list it


#: Lists directories, in their order.
DirectoryListing = Callable[[list[str]], Iterable[DirectoryNames]]


@dataclass
class StoresFound:
    """Directories, the nearest first."""

    logs: list[str] = field(default_factory=list)  #: with a Raft log
    stores: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)  #: of stores without files of their own, or of no store
    closed: list[str] = field(default_factory=list)  #: directories that the user is not permitted to list
    too_many: bool = False  #: the search ended at the limit of directories

    @property
    def nearest(self) -> list[str]:
        """The stores; if there are none, the directories around channels."""
        return self.stores or list(dict.fromkeys(map(posixpath.dirname, self.channels)))


class _Folder(NamedTuple):
    path: str
    around: str  #: the directory that holds it
    linked: bool = False  #: a symbolic link
    in_store: bool = False


def find_stores(
    path: str,
    listing: DirectoryListing,
    *,
    depth: int | None = None,
    most: int | None = None,
    in_stores: bool = True,
    join: Callable[[str, str], str] = posixpath.join,
) -> StoresFound:
    """Finds the sources at or below a path.

    Args:
        depth: Levels of directories to search below the path; None for all.
        most: Number of directories to search; None for all.
        in_stores: Look for Raft logs in stores.
        join: Returns the path of a folder in a directory.
    """
    found = StoresFound()
    stores: dict[str, bool] = {}  # whether it has files of its own
    beside: set[str] = set()  # the directories around those
    level, seen, levels = [_Folder(path, posixpath.dirname(path))], 0, 0
    while level:
        deeper: list[_Folder] = []
        for folder, listed in zip(level, listing([each.path for each in level]), strict=True):
            names, in_store = listed.names, folder.in_store
            if listed.closed:
                found.closed.append(folder.path)
            if RAFT_LOG_FILE in names:
                found.logs.append(folder.path)
                continue
            if names & _ROOT_FILES and not in_store:
                in_store = stores[folder.path] = True
                beside.add(folder.around)
            elif holds_channel(names):
                if not in_store:
                    found.channels.append(folder.path)
                    if not folder.linked and _is_live(names):
                        stores.setdefault(folder.around, False)
                continue
            if in_stores or not in_store:
                inside = (each for each in listed.folders if not is_system_name(each))
                deeper += [_Folder(join(folder.path, n), folder.path, n in listed.linked, in_store) for n in inside]
        seen, levels = seen + len(deeper), levels + 1
        found.too_many = most is not None and seen > most
        level = [] if found.too_many or (depth is not None and levels > depth) else deeper
    found.stores = [each for each, own in stores.items() if own or each not in beside]
    return found


def holds_channel(names: set[str]) -> bool:
    """Returns whether the names in a directory are those of a channel's files."""
    return SUBS_FILE in names or any(SLICE_NAME.fullmatch(each) or INDEX_NAME.fullmatch(each) for each in names)


def _is_live(names: set[str]) -> bool:
    slices = filter(None, map(SLICE_NAME.fullmatch, names))
    return SUBS_FILE in names or any(match[2] is None for match in slices)


def list_directories(paths: list[str]) -> Iterator[DirectoryNames]:
    """Lists directories of the file system; one that cannot be read is empty."""
    for path in paths:
        names, folders, closed = set(), [], False
        try:
            with os.scandir(path or ".") as entries:
                for each in entries:
                    names.add(each.name)
                    if each.is_dir(follow_symlinks=False):
                        folders.append(each.name)
        except OSError as error:
            closed = isinstance(error, PermissionError)
        folders.sort(key=os.fsencode)
        yield DirectoryNames(names, folders, closed=closed)


def search(path: str) -> StoresFound:
    """Finds the sources at or below a path of the file system, within the bounds for a path that a user names."""
    return find_stores(path, list_directories, depth=MAX_DEPTH, most=MAX_DIRECTORIES)
