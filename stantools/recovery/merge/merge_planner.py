"""Planning a merge: everything is read, nothing is changed.

Facts: clustered-stores.md section 12. Each store is planned like a salvage, with the same treatment of damage. Added
here: which of several copies counts, and the messages that only the logs hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stantools.errors import RefusedError, StoreUnreadableError, UsageError
from stantools.escaping import escape, fill_in, store_names, text
from stantools.format.crc import IEEE, Crc
from stantools.format.encryption import raft_cipher
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.clusterlog import ClusterLog, MergedLog
from stantools.inspection.node import NodeReport, examine, fold
from stantools.notation import counted, describe_ranges, describe_sequences
from stantools.progress import Progress
from stantools.recovery.merge.channel import ChannelUnion, NodeChannel, first_to_keep
from stantools.recovery.merge.model import LogEntryPlaces, LoggedMessages, MergedNode, MergePlan
from stantools.recovery.recovery_options import MergeOptions, SalvageOptions
from stantools.recovery.salvage.model import NEWEST, ChannelSalvage, DroppedData, DropReason, SalvagePlan
from stantools.recovery.salvage.plan import plan_salvage
from stantools.recovery.salvage.subscriptions import plan_subscriptions
from stantools.store.atomic import absolute
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE, Datastore, open_datastore, subject_matches
from stantools.store.nodes import NodeFiles
from stantools.store.raft import read_operations
from stantools.store.raftstate import ClusterChannel
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions, polynomial_name, resolve_crc
from stantools.store.serverinfo import new_server_info, readable_server_info


def plan_merge(
    nodes: Sequence[NodeFiles],
    read_options: ReadOptions,
    options: MergeOptions | None = None,
    *,
    progress: Progress | None = None,
) -> MergePlan:
    """Reads the directories of a cluster's nodes and plans one standalone store.

    Each node has a Raft log, a store, or both. `progress` is called with bytes of stores. Raises `RefusedError` if
    the nodes belong to different clusters or their CRC polynomials differ, `UsageError` if a node is named twice or
    no channel matches.
    """
    return _Merge(nodes, read_options, options or MergeOptions()).run(progress)


@dataclass
class _ChannelMerge:
    """A channel before the logs are searched for missing messages."""

    name: bytes
    union: ChannelUnion  #: messages of the stores
    known: ClusterChannel | None  #: the channel in the logs; None if they do not have it
    expected: Ranges = field(default_factory=Ranges)  #: sequences that should exist
    #: Log entries with messages that no store has, or about which stores differ.
    found: LogEntryPlaces = field(default_factory=LogEntryPlaces)
    deleted: LogEntryPlaces = field(default_factory=LogEntryPlaces)  #: such entries in free pages

    @property
    def missing(self) -> Ranges:
        return self.expected - self.union.have

    @property
    def wanted(self) -> Ranges:
        return self.missing | self.union.differing


class _Merge:
    def __init__(self, nodes: Sequence[NodeFiles], read_options: ReadOptions, options: MergeOptions) -> None:
        files = [
            replace(each, raft=each.raft and absolute(each.raft), data=each.data and absolute(each.data))
            for each in nodes
        ]
        self._named = nodes  # with the paths as the user wrote them
        self._key = read_options.encryption_key
        self._options = options
        reports = [examine(each, read_options) if each.raft else None for each in files]
        self._stores = [open_datastore(each.data) if each.data else None for each in files]
        for store in filter(None, self._stores):
            if not read_options.accept_unreadable:
                store.check_permitted(store.channel_names)
        polynomials = {resolve_crc(store, read_options).polynomial for store in self._stores if store}
        if len(polynomials) > 1:
            found = " and ".join(sorted(map(polynomial_name, polynomials)))
            raise RefusedError(f"the stores have different CRC polynomials: {found}", "give --crc-poly")
        self._crc = Crc(next(iter(polynomials), IEEE))
        for store in filter(None, self._stores):
            store.crc = self._crc
        self._nodes = [
            MergedNode(self._name(*each), each[0], each[1]) for each in zip(files, reports, self._stores, strict=True)
        ]
        if twice := {each.name for each in self._nodes if sum(e.name == each.name for e in self._nodes) > 1}:
            raise UsageError(f"named twice: node {', '.join(sorted(twice))}", "name each node of the cluster once")
        logs = [each for each in self._nodes if each.report]
        self._history = MergedLog([e.report for e in logs if e.report], [e.name for e in logs], self._key)
        self._log_nodes = logs if self._history.log.index else []
        if not self._log_nodes and not any(self._stores):
            where = ", ".join(str(each.path) for each in files)
            raise StoreUnreadableError(
                f"{where}: no entry of a Raft log, no snapshot and no file store",
                "name directories of a cluster's nodes",
            )
        server, note = self._identity()
        roots = [str(path) for each in files for path in (each.data, each.raft) if path]
        self.plan = MergePlan(Path(os.path.commonpath(roots)), self._crc, options, server, note, nodes=self._nodes)

    def _name(self, files: NodeFiles, report: NodeReport | None, store: Datastore | None) -> str:
        """Returns the id of a node, or the name of its directory if the id is unknown."""
        server = readable_server_info(store) if store else None
        known = text(server.node_id) if server else ""
        return known or (report.node_id if report else "") or files.path.absolute().name

    def _identity(self) -> tuple[pb.ServerInfo, str]:
        """Returns the server.dat for a standalone server."""
        asked = self._options.cluster_id
        found = []
        for named, node, store in zip(self._named, self._nodes, self._stores, strict=True):
            if store and (known := readable_server_info(store)):
                found.append(known)
                if not node.report and not known.node_id:
                    path = named.data or store.path
                    raise RefusedError(
                        f"{path}: is the store of a standalone server",
                        fill_in(
                            "`stantools salvage STORE --out NEW` makes a new store of it, "
                            "`stantools migrate STORE` moves it to JetStream",
                            store_names(path),
                        ),
                    )
        ids = {text(each.cluster_id) for each in found}
        ids |= {each.files.cluster_id for each in self._nodes if each.report}
        if len(ids) > 1:
            raise RefusedError(
                f"the nodes are of different clusters: {', '.join(sorted(ids))}", "merge the nodes of one cluster only"
            )
        (name,) = ids or {asked or ""}
        if not name:
            raise RefusedError("none of the nodes holds the cluster id", "give the cluster id: --cluster-id ID")
        server = pb.ServerInfo()
        server.CopyFrom(found[0] if found else new_server_info(name))
        server.cluster_id = os.fsencode(name)
        server.node_id = b""
        return server, "of a standalone server: without the id of a node"

    def run(self, progress: Progress | None) -> MergePlan:
        plan, log = self.plan, self._history.fold()
        plan.log = log
        for each in self._nodes:
            place = (each.report.last_term, each.report.last) if each.report else (0, 0)
            each.stale = place < (log.term, log.index)
        plans = [self._planned(node, store, progress) for node, store in zip(self._nodes, self._stores, strict=True)]
        plan.clients = list(log.state.clients.values())
        names = set(log.state.channels) | {each.name for one in plans if one for each in one.channels}
        patterns = self._options.patterns
        if patterns:
            names = {name for name in names if any(subject_matches(each, text(name)) for each in patterns)}
        channels = [self._begin(name, plans) for name in sorted(names)]
        chosen = [each for each in channels if each]
        if patterns and not chosen:
            raise UsageError(
                f"no channel matches {', '.join(map(escape, patterns))}",
                "stantools info NODE lists the channels of a node",
            )
        self._look_into_logs(chosen)
        for channel in chosen:
            self._complete(channel)
        stored = {each.name: each.union.have.last for each in chosen}
        self._add_losses(log, stored)
        return plan

    def _planned(self, node: MergedNode, store: Datastore | None, progress: Progress | None) -> SalvagePlan | None:
        """Plans the store of a node as a salvage would."""
        if store is None:
            return None
        options = SalvageOptions(
            self._options.patterns,
            text(self.plan.server.cluster_id),
            NEWEST,
            archived=self._options.archived,
            workers=self._options.workers,
            keep_positions=True,
        )
        found = plan_salvage(store, options, progress=progress)
        node.messages = found.messages
        for each in found.dropped:
            if not each.file.endswith((CLIENTS_FILE, SUBS_FILE)):
                # Lost sequences are reported after all nodes are read.
                lost = each.loss and not each.sequences and not self._log_nodes
                fate = each.fate if lost else DropReason.LEFT_OUT
                self.plan.dropped.append(replace(each, file=f"{node.name}: {each.file}", fate=fate))
        about_logs = (CLIENTS_FILE, SUBS_FILE, ": subscription ", "more subscriptions")
        self.plan.changes += [
            f"{node.name}: {change}" for change in found.changes if not any(each in change for each in about_logs)
        ]
        if any(channel.subscriptions for channel in found.channels) or found.clients:
            self.plan.changes.append(
                f"{node.name}: clients and subscriptions in its store were made without the cluster, and are not taken"
            )
        return found

    def _begin(self, name: bytes, plans: Sequence[SalvagePlan | None]) -> _ChannelMerge | None:
        """Combines the stores' messages of a channel; None if it was deleted."""
        known = self.plan.log.state.channels.get(name)
        sources = []
        for node, planned in zip(self._nodes, plans, strict=True):
            for each in planned.channels if planned else ():
                if each.name == name and (reason := self._reason_against(node, name, known)):
                    self._leave_out(node, name, each.sequences, reason)
                elif each.name == name:
                    sources.append(NodeChannel(node, each))
        if known is None and not sources:
            return None
        channel = _ChannelMerge(name, ChannelUnion(name, self._crc, self._key), known)
        floor = first_to_keep(sources)
        for source in sorted(sources, key=lambda each: each.place, reverse=True):
            if below := source.plan.sequences - Ranges.of([(floor, 2**64 - 1)]):
                self._leave_out(
                    source.node, name, below, f"limits have removed the messages below {floor} on other nodes"
                )
            if not channel.union.add(source, floor):
                reason = "its messages differ from those of all others, and no Raft log says of which channel they are"
                self._leave_out(source.node, name, source.plan.sequences, reason)
        first = floor or (known.first if known else 0)
        last = max(known.last if known else 0, *(each.plan.last_known for each in channel.union.sources), 0)
        channel.expected = Ranges.of([(first, last)]) if first else Ranges()
        return channel

    def _reason_against(self, node: MergedNode, name: bytes, known: ClusterChannel | None) -> str:
        """Returns why a channel of a store is not the one of the cluster; "" if it is."""
        report = node.report
        number = report.stable.channels.get(name, 0) if report else 0
        if known is None:
            if not self._log_nodes or self.plan.log.missing:
                return ""  # nothing says that it was deleted
            if report and (number or name in report.state.channels):
                return "the channel was deleted since"
            return "no Raft log knows this channel; stantools salvage takes it, with --channel, from this node's store"
        if number and known.id and number != known.id:
            return f"an older channel of this name, which was deleted (id {number}, now {known.id})"
        return ""

    def _leave_out(self, node: MergedNode, name: bytes, sequences: Ranges, reason: str) -> None:
        self.plan.dropped.append(
            DroppedData(f"{node.name}: {text(name)}", -1, 0, reason, sequences, fate=DropReason.LEFT_OUT)
        )

    def _look_into_logs(self, channels: Sequence[_ChannelMerge]) -> None:
        """Finds the entries with messages that no store has, and those about which stores differ."""
        by_name = {each.name: each for each in channels}
        wanted = {each.name: each.wanted for each in channels if each.wanted}
        if wanted and self._log_nodes:
            for publish in self._history.publishes(wanted):
                by_name[publish.channel].found.add(publish)
        if not self._options.free_pages:
            return
        gone = {each.name: each.missing - each.found.sequences for each in channels}
        gone = {name: left for name, left in gone.items() if left}
        if gone and self._log_nodes:
            for publish in self._history.deleted_publishes(gone):
                by_name[publish.channel].deleted.add(publish)

    def _complete(self, channel: _ChannelMerge) -> None:
        """Decides where stores differ, and plans the channel."""
        plan, union, name = self.plan, channel.union, channel.name
        plan.conflicts += union.decide(self._logged_messages(channel))
        steps, counts = [], union.counts()
        left = channel.missing
        for found, note in ((channel.found, "from the Raft log"), (channel.deleted, "from a deleted entry")):
            taken = Ranges()
            for node, rows in found.by_node():
                step = self._step(name, node, rows, left, note)
                left -= step.sequences
                taken |= step.sequences
                steps.append(step)
                counts[f"{self._log_nodes[node].name}: {step.path.name}"] += step.sequences.count()
            if taken and found is channel.deleted:
                plan.free_pages[text(name)] = taken
        target = ChannelSalvage(name, stored_name=name)
        target.steps = union.steps([each for each in steps if each.sequences])
        target.sequences = Ranges.union(step.sequences for step in target.steps)
        target.missing = channel.expected - target.sequences
        target.last_known = max(target.sequences.last, channel.known.last if channel.known else 0)
        if self._options.fill_gaps:
            target.filled = target.gaps
        if target.missing:
            plan.dropped.append(
                DroppedData(
                    text(name), -1, 0, "the messages are on none of these nodes", target.missing, DropReason.MISSING
                )
            )
        if channel.known:
            last = target.last_known if self._options.keep_positions else target.sequences.last
            decided = plan_subscriptions(fold(channel.known), set(self.plan.log.state.clients), last)
            target.subscriptions = decided.subscriptions
            plan.changes += [f"{text(name)}: {each}" for each in decided.changes]
            plan.dropped += [DroppedData(text(name), -1, 0, each, fate=DropReason.LEFT_OUT) for each in decided.dropped]
        else:
            plan.changes.append(f"{text(name)}: no subscriptions are known: the Raft logs given do not have them")
        plan.sources[name] = {where: count for where, count in counts.items() if count}
        plan.channels.append(target)
        plan.bytes += target.size

    def _step(self, name: bytes, node: int, rows: npt.NDArray[np.uint64], wanted: Ranges, note: str) -> LoggedMessages:
        path = self._log_nodes[node].files.log
        assert path
        return LoggedMessages(
            path,
            rows[:, :4],
            Ranges.of(zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True)) & wanted,
            size=int(rows[:, 4].sum()),
            largest=int(rows[:, 5].max()),
            note=note,
            channel=name,
            key=self._key,
        )

    def _logged_messages(self, channel: _ChannelMerge) -> dict[int, pb.MsgProto]:
        """Reads those messages from the log about which stores differ."""
        differing = channel.union.differing
        cipher = raft_cipher(self._key) if self._key else None
        messages: dict[int, pb.MsgProto] = {}
        for node, rows in channel.found.by_node() if differing else ():
            path = self._log_nodes[node].files.log
            assert path
            places = [(at, size) for first, last, at, size, *_ in rows.tolist() if differing.meets(first, last)]
            for operation, _ in read_operations(path, places, cipher):
                for each in operation.publish_batch.messages:
                    if each.sequence in differing:
                        messages.setdefault(each.sequence, each)
        return messages

    def _add_losses(self, log: ClusterLog, stored: dict[bytes, int]) -> None:
        plan = self.plan
        if not self._log_nodes:
            reason = "none of the nodes has a Raft log: clients and subscriptions are lost"
            plan.dropped.append(DroppedData("raft.log", -1, 0, reason, fate=DropReason.MISSING))
        if log.missing:
            reason = f"entries {describe_ranges(log.missing)} are on none of these nodes: subscriptions and "
            reason += "acknowledgements in them are unknown"
            plan.dropped.append(DroppedData("raft.log", -1, 0, reason, fate=DropReason.MISSING))
        if log.unreadable:
            reason = f"{counted(log.unreadable, 'command')} cannot be read: damaged on all nodes, or encrypted with "
            reason += "another key than the given one" if self._key else "a key that was not given"
            plan.dropped.append(DroppedData("raft.log", -1, 0, reason, fate=DropReason.MISSING))
        for name, count in log.branches.items():
            plan.changes.append(f"{name}: {counted(count, 'entry', 'is/are')} of an abandoned branch, and not taken")
        have = len(set(log.voters) & {each.name for each in self._log_nodes if each.report and each.report.last})
        if log.voters and have <= len(log.voters) // 2:
            plan.changes.append(
                f"{have} of {counted(len(log.voters), 'voter')} are here, fewer than a majority: commits "
                f"after entry {log.index} are unknown"
            )
        plan.changes += [str(each) for each in log.conflicts]
        plan.changes += [str(each) for each in plan.conflicts]
        plan.changes += _uncommitted_notes(log, stored)
        for found, sequences in plan.free_pages.items():
            plan.changes.append(f"{found}: {describe_sequences(sequences)} came from deleted entries of the Raft logs")


def _uncommitted_notes(log: ClusterLog, stored: Mapping[bytes, int]) -> list[str]:
    """Names entries at the end that may not be committed: their publishers may not have an acknowledgement.

    `stored` is the last sequence of each channel in any file store: stored messages are committed.
    """
    proven = max(
        (index for index, (_, each) in log.tail.items() if each and each.first_sequence <= stored.get(each.channel, 0)),
        default=log.proven,
    )
    log.proven = max(log.proven, proven)
    lines = []
    for index, (copies, each) in sorted(log.tail.items()):
        if index > log.proven:
            what = (
                f"message {each.first_sequence} to {each.last_sequence} of {text(each.channel)!r}"
                if each
                else "no message"
            )
            have = f"{counted(copies, 'node', 'has/have')} it of {len(log.voters)}"
            lines.append(f"entry {index} ({what}) was kept, but perhaps never acknowledged to its publisher: {have}")
    return lines
