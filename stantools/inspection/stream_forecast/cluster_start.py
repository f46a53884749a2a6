"""The start of a cluster's nodes: the streams that each node deletes as orphans.

A leader of the meta group decides. 30 seconds after the group has recovered, every node deletes the streams that the
group does not assign to anybody; so do nodes that have lost the group's log and are a majority. Without a majority,
nothing is deleted. Replication after the start is not predicted: states are those of each node by itself. Facts:
jetstream-store.md section 21.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stantools.inspection.stream_forecast.versions import ServerRules
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.raft_group import META_GROUP, RaftGroup
from stantools.streamfiles.raft_operations import AssignedStream, assignments

ORPHAN_SECONDS: Final = 30
_SNAPSHOT_LINES: Final = (
    ("WRN", "RAFT [<peer> - _meta_] Snapshot corrupt, too short"),
    ("WRN", "Could not start metadata controller: raft: snapshot corrupt"),
    ("FTL", "Can't start JetStream: raft: snapshot corrupt"),
)

#: account and name
StreamKey = tuple[str, str]


class StreamFate(enum.Enum):
    """What the cluster does with a stream in the directory of a node."""

    KEPT = enum.auto()
    ORPHAN = enum.auto()  #: it is deleted: the meta group does not know it
    REMOVED = enum.auto()  #: it was deleted while the node was down, and the node learns that now


@dataclass
class MetaGroup:
    """What a node knows of the assignments of its cluster."""

    node: str
    last_index: int = 0
    term: int = 0
    members: int = 0
    assigned: Mapping[StreamKey, AssignedStream] | None = None  #: None if it has neither log nor snapshot
    broken_snapshot: bool = False

    @classmethod
    def of(cls, node: str, groups: Sequence[RaftGroup]) -> MetaGroup:
        group = next((each for each in groups if each.node == node and each.name == META_GROUP), None)
        if group is None:
            return cls(node)
        known = bool(group.snapshot or group.entries)
        return cls(
            node,
            group.last_index,
            group.term,
            len(group.peers),
            assignments(group) if known else None,
            any(each.startswith("snapshots/") for each in group.flaws),
        )


@dataclass
class ClusterStart:
    """Nodes of a cluster that are started together with one version; others count as stopped."""

    metas: Sequence[MetaGroup]
    rules: ServerRules

    def starts(self, node: str) -> bool:
        """Returns whether the server of a node starts: new ones end if the snapshot of the meta group is damaged."""
        return not (self._meta(node).broken_snapshot and self.rules.exits_on_snapshot)

    def refusal(self, node: str) -> list[tuple[str, str]]:
        return [] if self.starts(node) else list(_SNAPSHOT_LINES)

    def _meta(self, node: str) -> MetaGroup:
        return next(each for each in self.metas if each.node == node)

    @property
    def running(self) -> list[MetaGroup]:
        return [each for each in self.metas if self.starts(each.node)]

    @property
    def majority(self) -> int:
        return max(len(self.metas), *(each.members for each in self.metas)) // 2 + 1

    @property
    def newest(self) -> MetaGroup | None:
        """The node whose assignments count; None if none of them is known."""
        known = [each for each in self.running if each.assigned is not None]
        return max(known, key=lambda each: (each.last_index, each.term), default=None)

    def assigned(self, key: StreamKey) -> AssignedStream | None:
        newest = self.newest
        return newest.assigned.get(key) if newest and newest.assigned else None

    def fate(self, node: str, key: StreamKey) -> StreamFate:
        """Returns what a node does with a stream; KEPT if that cannot be told."""
        if not self.starts(node) or len(self.running) < self.majority:
            return StreamFate.KEPT
        own = self._meta(node).assigned
        known = [each for each in self.running if each.assigned is not None]
        if len(known) < self.majority:
            lost = len(self.running) - len(known) >= self.majority and own is None
            return StreamFate.ORPHAN if lost else StreamFate.KEPT
        if self.assigned(key):
            return StreamFate.KEPT
        if own is None or key not in own:
            return StreamFate.ORPHAN
        return StreamFate.REMOVED if self.rules.applies_removals else StreamFate.KEPT

    def may_be_orphan(self, node: str, key: StreamKey) -> bool:
        """Returns whether the node's own log of the meta group does not know a stream, whatever the others know."""
        assigned = self._meta(node).assigned
        return assigned is not None and key not in assigned


def cluster_start(
    streams: Sequence[StoredStream], groups: Sequence[RaftGroup], rules: ServerRules, empty: Sequence[str] = ()
) -> ClusterStart:
    """Prepares the start of all nodes that the streams and groups are of; `empty` are nodes without any directory."""
    nodes = dict.fromkeys([*(each.node for each in groups), *(each.node for each in streams), *empty])
    return ClusterStart([MetaGroup.of(node, groups) for node in nodes], rules)
