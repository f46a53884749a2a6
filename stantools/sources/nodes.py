"""Finding the directories of a clustered node.

Facts: clustered-stores.md section 1. Nothing is opened here, because every verb checks whether its path is a node.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.sources.store_search import search
from stantools.store.names import CLIENTS_FILE, RAFT_LOG_FILE, SERVER_FILE
from stantools.store.nodes import NodeFiles
from stantools.store.permissions import refusal


def node_of(text: str) -> NodeFiles:
    """Parses `NAME:data=DIR,raft=DIR`: a node with separate directories, of which one may be omitted."""
    name, _, rest = text.partition(":")
    given = dict(each.partition("=")[::2] for each in re.split(r",(?=data=|raft=)", rest))
    if not name or "/" in name or not given or not given.keys() <= {"data", "raft"}:
        raise ValueError(f"{text!r}: expected NAME:data=DIR,raft=DIR, or one of the two")
    found = {kind: Path(path) for kind, path in given.items()}
    for kind, path in found.items():
        if not path.is_dir():
            raise ValueError(f"{text!r}: {kind}={path} is not a directory")
    if raft := found.get("raft"):
        logs = search(str(raft)).logs
        if len(logs) != 1:
            raise ValueError(f"{text!r}: there are {len(logs)} files {RAFT_LOG_FILE} in {raft}, expected one")
        found["raft"] = Path(logs[0])
    return NodeFiles(Path(name), found.get("raft"), found.get("data"))


def find_node(path: Path) -> NodeFiles | None:
    """Finds the parts of a node at or below a path, at the depths at which servers put them.

    The path is the directory of a node, its Raft directory at any level, or `raft.log`. Returns None if there is no
    Raft log, or the path is a file store by itself. Raises StoreUnreadableError if there are several Raft logs or
    stores, which belong to several nodes.
    """
    if path.name == RAFT_LOG_FILE and path.is_file():
        return NodeFiles(path, path.parent, None)
    if not path.is_dir() or any(os.path.exists(path / name) for name in (SERVER_FILE, CLIENTS_FILE)):  # noqa: PTH110
        return None
    found = search(str(path))
    logs, stores, closed = ([Path(each) for each in paths] for paths in (found.logs, found.stores, found.closed))
    if closed and (logs or stores):  # their content belongs to the node
        raise refusal(path, closed)
    if not logs:
        return None
    for what, parts in (("Raft logs", logs), ("file stores", stores)):
        if len(parts) > 1:
            raise StoreUnreadableError(
                f"{path}: holds {len(parts)} {what}, expected those of one node: "
                + ", ".join(str(each.relative_to(path)) for each in parts[:3]),
                "name the directory of one node",
            )
    return NodeFiles(path, logs[0], stores[0] if stores else None)
