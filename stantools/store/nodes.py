"""The directories of a clustered node; facts: clustered-stores.md section 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stantools.store.names import RAFT_LOG_FILE

SNAPSHOTS = "snapshots"


@dataclass(frozen=True)
class NodeFiles:
    path: Path  #: the path from the user; for directories named one by one, their common name
    raft: Path | None  #: the directory that holds `raft.log`; None if there is none
    data: Path | None  #: the file store; None if there is none

    def __str__(self) -> str:
        """Describes the node in the notation of `sources.nodes.node_of`."""
        parts = [f"{kind}={each}" for kind, each in (("data", self.data), ("raft", self.raft)) if each]
        return f"{self.path.name}:{','.join(parts)}"

    @property
    def log(self) -> Path | None:
        return self.raft / RAFT_LOG_FILE if self.raft else None

    @property
    def cluster_id(self) -> str:
        """The cluster's id, after which a server names the directory of the log."""
        return self.raft.absolute().name if self.raft else ""
