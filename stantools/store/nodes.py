"""The directories of a clustered node.

Facts: clustered-stores.md section 1. Nothing is opened here, because every verb checks whether its path is a node.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.store.directory import CLIENTS_FILE, RAFT_LOG_FILE, SERVER_FILE, SLICE_NAME, SUBS_FILE
from stantools.store.names import is_system_name
from stantools.store.permissions import refusal

SNAPSHOTS = "snapshots"
#: The default path of a node's log is three directories below the server's working directory.
_DEPTH = 4
_MAX_DIRECTORIES = 2000


@dataclass(frozen=True)
class NodeFiles:
    path: Path  #: the path from the user; for directories named one by one, their common name
    raft: Path | None  #: the directory that holds `raft.log`; None if there is none
    data: Path | None  #: the file store; None if there is none

    def __str__(self) -> str:
        """Describes the node in the notation of `node_of`."""
        parts = [f"{kind}={each}" for kind, each in (("data", self.data), ("raft", self.raft)) if each]
        return f"{self.path.name}:{','.join(parts)}"

    @property
    def log(self) -> Path | None:
        return self.raft / RAFT_LOG_FILE if self.raft else None

    @property
    def cluster_id(self) -> str:
        """The cluster's id, after which a server names the directory of the log."""
        return self.raft.absolute().name if self.raft else ""


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
        logs, _stores, _closed = _search(raft)
        if len(logs) != 1:
            raise ValueError(f"{text!r}: there are {len(logs)} files {RAFT_LOG_FILE} in {raft}, expected one")
        found["raft"] = logs[0]
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
    logs, stores, closed = _search(path)
    if closed and (logs or stores):  # their content belongs to the node
        raise refusal(path, closed)
    if not logs:
        return None
    for what, found in (("Raft logs", logs), ("file stores", stores)):
        if len(found) > 1:
            raise StoreUnreadableError(
                f"{path}: holds {len(found)} {what}, expected those of one node: "
                + ", ".join(str(each.relative_to(path)) for each in found[:3]),
                "name the directory of one node",
            )
    return NodeFiles(path, logs[0], stores[0] if stores else None)


def _search(path: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Returns the directories with a Raft log, those with a file store, and those that cannot be listed."""
    logs: list[Path] = []
    stores: list[Path] = []
    closed: list[Path] = []
    level = [path]
    seen = 0
    for _ in range(_DEPTH + 1):
        deeper: list[Path] = []
        for directory in level:
            try:
                entries = list(os.scandir(directory))
            except OSError as error:
                closed += [directory] if isinstance(error, PermissionError) else []
                continue
            names = {entry.name for entry in entries}
            if RAFT_LOG_FILE in names:
                logs.append(directory)
                continue
            if SERVER_FILE in names:
                stores.append(directory)
            # Channels are many and hold no log; a log below a store belongs to a store of another kind.
            if SUBS_FILE not in names and not any(SLICE_NAME.fullmatch(name) for name in names):
                deeper += [
                    Path(e.path)
                    for e in entries
                    if e.is_dir(follow_symlinks=False) and e.name != SNAPSHOTS and not is_system_name(e.name)
                ]
        seen += len(deeper)
        level = sorted(deeper) if seen <= _MAX_DIRECTORIES else []
    return logs, stores, closed
