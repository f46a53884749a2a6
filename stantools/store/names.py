"""The names in a datastore directory: the server's files, and files of other programs.

Facts: filestore.md sections 1 and 7.5.
"""

from __future__ import annotations

import re
from typing import Final

SERVER_FILE = "server.dat"
CLIENTS_FILE = "clients.dat"
SUBS_FILE = "subs.dat"
FT_LOCK_FILE = ".rootdir.lck"
WITNESS_FILE = ".truncate.lck"
RAFT_LOG_FILE = "raft.log"
#: file that a salvage writes to a new store; servers ignore it
MANIFEST_FILE = "stantools-salvage.json"

#: Names of data files: the part that should be a number, and the suffix of an archived one.
SLICE_NAME = re.compile(r"msgs\.(.*)\.dat(\.bak)?", re.DOTALL)
INDEX_NAME = re.compile(r"msgs\.(.*)\.idx(\.bak)?", re.DOTALL)

#: directories that file systems, storage boxes and desktops create, in lower case
_SYSTEM_NAMES: Final = frozenset(
    {
        "lost+found",
        "@eadir",
        "@recycle",
        "@recently-snapshot",
        "#recycle",
        "#snapshot",
        "~snapshot",
        "$recycle.bin",
        "recycler",
        "system volume information",
        "__macosx",
    }
)


def is_system_name(name: str) -> bool:
    """Returns whether a directory has a name that operating systems give, or that no channel can have."""
    return name.startswith(".") or name.lower() in _SYSTEM_NAMES
