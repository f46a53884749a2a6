"""What a start of a cluster's nodes comes to: which start, which of them can lead, and what the cluster forgets then.

Facts: clustered-stores.md sections 7 and 10. Elections look at the logs only. So a node that lost channels of its file
store, and whose log was cut behind a snapshot, can win: then the cluster has lost these channels with their
subscriptions, and the other nodes delete their intact messages at the first one that is published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stantools.escaping import text
from stantools.inspection.node import NodeReport
from stantools.inspection.overview import Overview

#: Findings that end a start, with what the server says.
_FATAL = {
    "raft-metas": "Failed to start: checksum error, invalid database or version mismatch",
    "raft-page": "panic or fault while it walks the pages of the log",
    "raft-gap": "panic: log not found",
    "raft-start-missing": "panic: log not found",
}
_NO_SNAPSHOT = "Failed to start: failed to load any existing snapshots"


@dataclass(frozen=True)
class Forgotten:
    """A channel that a leader does not bring along."""

    channel: str  #: its name
    first: int  #: first sequence that its snapshot knows
    last: int  #: last sequence that its log knows
    subscriptions: int  #: how many it has


@dataclass(frozen=True)
class Outcome:
    """One way in which the election may end."""

    leader: str  #: the node
    forgets: tuple[Forgotten, ...]  #: what the cluster loses when it leads


@dataclass(frozen=True)
class NodeStart:
    """Whether a node starts."""

    name: str  #: its id, or the name of its directory where the id is not known
    error: str  #: what stops it; "" if nothing does


@dataclass(frozen=True)
class ClusterForecast:
    """What a start of some nodes comes to."""

    voters: tuple[str, ...]  #: ids of the members that vote, by the newest configuration
    nodes: tuple[NodeStart, ...]  #: those that were given
    outcomes: tuple[Outcome, ...]  #: one for each node that can be elected; none if no leader can be

    @property
    def majority(self) -> int:
        """How many votes a leader needs."""
        return len(self.voters) // 2 + 1

    @property
    def harmless(self) -> bool:
        """Every node starts, one will lead, and none that can forgets anything."""
        lost = any(each.forgets for each in self.outcomes) or any(each.error for each in self.nodes)
        return bool(self.outcomes) and not lost

    def as_json(self) -> dict[str, Any]:
        """Returns the forecast with the names of docs/reference/json.md."""
        return {
            "voters": list(self.voters),
            "majority": self.majority,
            "nodes": [{"name": each.name, "starts": not each.error, "error": each.error} for each in self.nodes],
            "outcomes": [
                {"leader": each.leader, "forgets": [vars(lost) for lost in each.forgets]} for each in self.outcomes
            ],
        }


def forecast_cluster(nodes: Sequence[tuple[NodeReport, Overview]]) -> ClusterForecast:
    """Predicts what happens when these nodes are started, and no others.

    Args:
        nodes: The nodes, as `node_overview` returns them.
    """
    newest = max((report for report, _ in nodes), key=lambda report: (report.last_term, report.last))
    voters = tuple(each.id for each in newest.servers if each.voter)
    starts = tuple(NodeStart(_name(report, voters), _error(report)) for report, _ in nodes)
    running = [
        (start.name, report, view)
        for start, (report, view) in zip(starts, nodes, strict=True)
        if not start.error and start.name in voters
    ]
    outcomes = []
    for name, report, view in running:
        place = report.last_term, report.last
        # Nobody votes for a log that is behind the own one.
        votes = sum((other.last_term, other.last) <= place for _, other, _ in running)
        if votes > len(voters) // 2:
            outcomes.append(Outcome(name, _forgotten(report, view)))
    return ClusterForecast(voters, starts, tuple(outcomes))


def _name(report: NodeReport, voters: Sequence[str]) -> str:
    directory = report.files.path.absolute().name
    return directory if not report.node_id and directory in voters else report.node_id or directory


def _error(report: NodeReport) -> str:
    if report.snapshots and not report.base and not all(each.temporary for each in report.snapshots):
        return _NO_SNAPSHOT
    return next((_FATAL[each.code] for each in report.findings if each.code in _FATAL), "")


def _forgotten(report: NodeReport, view: Overview) -> tuple[Forgotten, ...]:
    if report.base is None or report.base.state is None:
        return ()  # the whole log is there: it brings everything back
    saved = {text(each.channel) for each in report.base.state.channels}
    in_store = {each.name for each in view.channels if each.slices or each.disk_bytes}
    lost = []
    for raw, channel in sorted(report.state.channels.items()):
        name = text(raw)
        if name in saved and name not in in_store:
            lost.append(Forgotten(name, channel.first, channel.last, len(channel.subscriptions)))
    return tuple(lost)
