"""Forecast of a cluster's start: nodes that start, nodes that can lead, channels that the cluster then forgets.

Facts: clustered-stores.md sections 7 and 10. Elections compare the logs only. So a node that lost channels of its
file store can win if its log was cut after a snapshot: then the cluster has lost these channels with their
subscriptions, and the other nodes delete their intact messages when the first message is published to the channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stantools.escaping import text
from stantools.inspection.node import NodeReport
from stantools.inspection.overview import Overview

#: Findings that prevent a start, with the server's text.
_FATAL = {
    "raft-metas": "Failed to start: checksum error, invalid database or version mismatch",
    "raft-page": "panic or fault while it walks the pages of the log",
    "raft-gap": "panic: log not found",
    "raft-start-missing": "panic: log not found",
}
_NO_SNAPSHOT = "Failed to start: failed to load any existing snapshots"


@dataclass(frozen=True)
class ForgottenChannel:
    """A channel that a leader does not have."""

    channel: str
    first: int  #: first sequence in its snapshot
    last: int  #: last sequence in its log
    subscriptions: int  #: number of subscriptions


@dataclass(frozen=True)
class ElectionOutcome:
    """One possible result of the election."""

    leader: str
    forgets: tuple[ForgottenChannel, ...]  #: channels that the cluster loses when this node leads


@dataclass(frozen=True)
class NodeStart:
    name: str  #: id, or the name of the directory if the id is unknown
    error: str  #: reason why it does not start; "" if it starts


@dataclass(frozen=True)
class ClusterForecast:
    """The forecast of a start of some nodes."""

    voters: tuple[str, ...]  #: ids of the voting members, by the newest configuration
    nodes: tuple[NodeStart, ...]  #: the nodes given
    outcomes: tuple[ElectionOutcome, ...]  #: one for each node that can be elected; none if there can be no leader

    @property
    def majority(self) -> int:
        """Number of votes that a leader needs."""
        return len(self.voters) // 2 + 1

    @property
    def harmless(self) -> bool:
        """Every node starts, one will lead, and no possible leader forgets anything."""
        lost = any(each.forgets for each in self.outcomes) or any(each.error for each in self.nodes)
        return bool(self.outcomes) and not lost

    def as_json(self) -> dict[str, Any]:
        return {
            "voters": list(self.voters),
            "majority": self.majority,
            "nodes": [{"name": each.name, "starts": not each.error, "error": each.error} for each in self.nodes],
            "outcomes": [
                {"leader": each.leader, "forgets": [vars(lost) for lost in each.forgets]} for each in self.outcomes
            ],
        }


def forecast_cluster(nodes: Sequence[tuple[NodeReport, Overview]]) -> ClusterForecast:
    """Predicts a start of these nodes and no others; `nodes` are results of `node_overview`."""
    newest = max((report for report, _ in nodes), key=lambda report: (report.last_term, report.last))
    voters = tuple(each.id for each in newest.servers if each.voter)
    starts = []
    for report, _ in nodes:
        directory = report.files.path.absolute().name
        name = directory if not report.node_id and directory in voters else report.node_id or directory
        starts.append(NodeStart(name, start_error(report)))
    running = [
        (start.name, report, view)
        for start, (report, view) in zip(starts, nodes, strict=True)
        if not start.error and start.name in voters
    ]
    outcomes = []
    for name, report, view in running:
        place = report.last_term, report.last
        # No node votes for a log that is older than its own.
        votes = sum((other.last_term, other.last) <= place for _, other, _ in running)
        if votes > len(voters) // 2:
            outcomes.append(ElectionOutcome(name, forgotten(report, view)))
    return ClusterForecast(voters, tuple(starts), tuple(outcomes))


def start_error(report: NodeReport) -> str:
    if report.snapshots and not report.base and not all(each.temporary for each in report.snapshots):
        return _NO_SNAPSHOT
    return next((_FATAL[each.code] for each in report.findings if each.code in _FATAL), "")


def forgotten(report: NodeReport, view: Overview) -> tuple[ForgottenChannel, ...]:
    if report.base is None or report.base.state is None:
        return ()  # the whole log is there: it restores everything
    saved = {text(each.channel) for each in report.base.state.channels}
    in_store = {each.name for each in view.channels if each.slices or each.disk_bytes}
    lost = []
    for raw, channel in sorted(report.state.channels.items()):
        name = text(raw)
        if name in saved and name not in in_store:
            lost.append(ForgottenChannel(name, channel.first, channel.last, len(channel.subscriptions)))
    return tuple(lost)
