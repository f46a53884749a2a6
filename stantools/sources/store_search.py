"""The search for stores below a path: one rule for directories and for the members of an archive."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from posixpath import dirname, join
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
MAX_DEPTH: Final = 3
_ROOT_FILES: Final = {SERVER_FILE, CLIENTS_FILE, MANIFEST_FILE}


class DirectoryNames(NamedTuple):
    names: set[str]  #: all names in a directory
    folders: list[str]  #: those of the directories in it that may be searched


@dataclass
class StoresFound:
    """Directories, the nearest first."""

    logs: list[str] = field(default_factory=list)  #: with a Raft log
    stores: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)  #: channels whose store, the directory around, has no files


def find_stores(path: str, list_directory: Callable[[str], DirectoryNames], *, bounded: bool = False) -> StoresFound:
    """Finds stores and channels at or below a path, except in directories of a store, of a channel or of the system."""
    found = StoresFound()
    level, depth, seen = [path], 0, 0
    while level:
        deeper: list[str] = []
        for directory in level:
            names, folders = list_directory(directory)
            if RAFT_LOG_FILE in names:
                found.logs.append(directory)
            elif names & _ROOT_FILES:
                found.stores.append(directory)
            elif holds_channel(names):
                found.channels.append(directory)
                if (around := dirname(directory)) not in found.stores:
                    found.stores.append(around)
            else:
                deeper += [join(directory, each) for each in folders if not is_system_name(each)]
        depth, seen = depth + 1, seen + len(deeper)
        level = [] if bounded and (depth > MAX_DEPTH or seen > MAX_DIRECTORIES) else deeper
    return found


def holds_channel(names: set[str]) -> bool:
    """Returns whether the names in a directory are those of a channel's files."""
    return SUBS_FILE in names or any(SLICE_NAME.fullmatch(each) or INDEX_NAME.fullmatch(each) for each in names)


def list_directory(path: str) -> DirectoryNames:
    """Lists a directory of the file system; empty if it cannot be read."""
    listing = DirectoryNames(set(), [])
    with suppress(OSError), os.scandir(path or ".") as entries:
        for each in entries:
            listing.names.add(each.name)
            if each.is_dir(follow_symlinks=False):
                listing.folders.append(each.name)
    listing.folders.sort(key=os.fsencode)
    return listing
