"""What the Raft groups of nodes tell of a stream: which node is newest, its log, its consumers, its configuration.

A stale node contributes messages, never deletions by absence: jetstream-store.md section 21.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from stantools.recovery.streams.record_files import ChosenRecords, MadeRecords
from stantools.store.ranges import Ranges
from stantools.streamfiles.layout import MAX_SEQUENCE
from stantools.streamfiles.meta import ConsumerState
from stantools.streamfiles.raft_group import META_GROUP, RaftGroup
from stantools.streamfiles.raft_operations import (
    AssignedStream,
    LoggedMessage,
    LoggedStream,
    assignments,
    logged_consumer,
    logged_stream,
)


@dataclass
class ClusterFacts:
    """The Raft groups of one or several nodes."""

    node_place: Callable[[str], Path]  #: returns the directory of a node
    groups: Sequence[RaftGroup] = ()
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        metas = [each for each in self.groups if each.name == META_GROUP]
        metas.sort(key=lambda each: (each.last_index, each.term), reverse=True)
        #: the assignments that each node knows, the newest first
        self.assigned: list[dict[tuple[str, str], AssignedStream]] = [
            found for each in metas if (found := assignments(each))
        ]

    def names(self) -> Iterator[tuple[str, str]]:
        """Yields account and name of the streams that have a log."""
        for group in self.groups:
            account, stream, consumer = group.asset
            if account and stream and not consumer:
                yield account, stream

    def was_removed(self, key: tuple[str, str]) -> bool:
        """Returns whether the cluster deleted a stream that a stale node still has."""
        return bool(self.assigned) and key not in self.assigned[0] and any(key in each for each in self.assigned[1:])

    def assignment(self, key: tuple[str, str]) -> AssignedStream | None:
        return next((each[key] for each in self.assigned if key in each), None)

    def groups_of(self, key: tuple[str, str]) -> list[RaftGroup]:
        """Returns a stream's groups; of an older stream with the same name there may be groups as well."""
        found = [each for each in self.groups if each.asset == (*key, "")]
        newest = max(found, key=lambda each: str((each.directory.config or {}).get("Created")), default=None)
        return [each for each in found if newest and each.name == newest.name]

    def logs(self, key: tuple[str, str]) -> list[tuple[RaftGroup, LoggedStream]]:
        """Returns the logs of a stream, the newest first."""
        found = self.groups_of(key)
        found.sort(key=lambda each: (each.last_index, each.term), reverse=True)
        return [(each, logged_stream(each)) for each in found]

    def fresh_nodes(self, key: tuple[str, str]) -> set[str] | None:
        """Returns the nodes that have the end of a stream's log; None if there are no logs."""
        found = self.groups_of(key)
        if not found:
            return None
        last = max(each.last_index for each in found)
        return {each.node for each in found if each.last_index == last}

    def consumers(self, key: tuple[str, str]) -> dict[str, ConsumerState]:
        """Returns the positions that the groups of consumers tell."""
        found: dict[str, ConsumerState] = {}
        assigned = self.assignment(key)
        for group in self.groups:
            account, stream, consumer = group.asset
            if (account, stream) != key or not consumer:
                continue
            config = (assigned.consumers.get(consumer) if assigned else None) or {}
            state = logged_consumer(group, str(config.get("ack_policy", "explicit")))
            if state and (consumer not in found or state.delivered > found[consumer].delivered):
                found[consumer] = state
        return found

    def records(self, group: RaftGroup, messages: Mapping[int, LoggedMessage], wanted: Ranges) -> MadeRecords:
        """Returns messages of a log, by their sequences."""
        file = Path(group.node, os.path.relpath(group.path.absolute() / "msgs", self.node_place(group.node)))
        return MadeRecords(str(file), [messages[each] for each in sorted(messages) if each in wanted])


def aligned(log: LoggedStream, chosen: ChosenRecords) -> dict[int, LoggedMessage]:
    """Returns the messages of a log by their sequences in the stream.

    The log counts failed publishes as well, so that its own sequences may be too high from one of them on. Messages
    that blocks have too tell by how much. A message between two of them that tell different amounts may be the one that
    failed: it is left out.
    """
    known = _sequences_by_time(chosen, {each.time for each in log.messages})
    found: dict[int, LoggedMessage] = {}
    ahead: int | None = None
    waiting: list[LoggedMessage] = []

    def settle(by: int) -> None:
        for each in waiting:
            found.setdefault(each.sequence - by, replace(each, sequence=each.sequence - by))
        waiting.clear()

    for message in log.messages:
        sequence = known.get(message.time)
        if sequence is None:
            waiting.append(message)
            continue
        by = message.sequence - sequence
        if by == (ahead or 0):
            settle(by)
        waiting.clear()
        ahead = by
        found[sequence] = replace(message, sequence=sequence)
    settle(ahead or 0)
    return {sequence: each for sequence, each in found.items() if 0 < sequence <= MAX_SEQUENCE}


def _sequences_by_time(chosen: ChosenRecords, times: set[int]) -> dict[int, int]:
    wanted = np.fromiter(times, np.int64, len(times))
    found: dict[int, int] = {}
    for batch in chosen.read():
        rows = np.isin(batch.timestamp, wanted)
        found.update(zip(batch.timestamp[rows].tolist(), batch.sequence[rows].tolist(), strict=True))
    return found
