"""A clustered node: content of its Raft log and snapshots, their damage, and messages missing in its file store.

Facts: clustered-stores.md sections 5 to 8 and 10. The log is read once, in flat memory; besides clients and
subscriptions, only ranges of sequences are kept.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stantools.escaping import text
from stantools.format.bbolt import Fault, FaultKind
from stantools.format.crc import IEEE, Crc
from stantools.format.encryption import raft_cipher
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.proto import store_pb2 as pb
from stantools.format.raftlog import (
    OPERATIONS,
    EntryError,
    EntryType,
    LoggedPublishes,
    RaftEntry,
    RaftFlaw,
    RaftFlawKind,
    RaftServer,
    StableStore,
    decode_configuration,
    decode_operation,
    is_encrypted,
)
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.inspection.overview import ChannelOverview, Overview, overview
from stantools.inspection.subscribers import SubscriberList
from stantools.inspection.verify import Verdict, verify
from stantools.notation import counted, describe_ranges
from stantools.store.directory import matches_any
from stantools.store.limits import StoreLimits
from stantools.store.locks import find_uses
from stantools.store.logwriter import encode_live
from stantools.store.nodes import NodeFiles
from stantools.store.raft import Snapshot, open_log, read_snapshots
from stantools.store.raftstate import ClusterChannel, ClusterState
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions, open_store
from stantools.store.sublog import SubsState, read_subs

#: Findings of one code that are listed one by one; the rest is counted.
_MAX_LISTED = 100
_KEY_SIZE = 8


@dataclass
class NodeReport:
    """Contents of a node's directories."""

    files: NodeFiles
    node_id: str = ""  #: from its file store, or by its vote; "" if neither is known
    stable: StableStore = field(default_factory=StableStore)  #: terms, vote, ids of channels
    servers: tuple[RaftServer, ...] = ()  #: members of the cluster, by the newest configuration
    first: int = 0  #: index of the first entry; 0 if the log is empty
    last: int = 0  #: index of the last entry, in the log or in a snapshot
    last_term: int = 0
    entries: int = 0  #: number of entries
    operations: Counter[str] = field(default_factory=Counter)  #: commands by kind
    snapshots: list[Snapshot] = field(default_factory=list)  #: the newest first
    base: Snapshot | None = None  #: snapshot that the state begins with
    #: Clients and subscriptions as a leader would recover them.
    state: ClusterState = field(default_factory=ClusterState)
    published: dict[bytes, Ranges] = field(default_factory=dict)  #: sequences in entries of the log, by channel
    lost: Ranges = field(default_factory=Ranges)  #: indexes of missing entries that a start needs
    #: Up to this index entries do not count, as the newest snapshot came from another node and covers the hole after
    #: them; they may belong to an abandoned branch.
    settled: int = 0
    #: Indexes of entries in free pages only (deleted or lost), on request.
    in_free_pages: Ranges = field(default_factory=Ranges)
    used_by: list[str] = field(default_factory=list)  #: processes that have the log open for writing
    findings: list[Finding] = field(default_factory=list)
    bytes_scanned: int = 0  #: bytes of the log and of the snapshots

    @property
    def orphans(self) -> int:
        """Pending messages of members that left a queue group; servers count them as acknowledged."""
        groups = (group for channel in self.state.channels.values() for group in channel.groups.values())
        return sum(len(group.orphans) for group in groups)

    def facts(self) -> list[tuple[str, str]]:
        """Returns the node's state for people, as pairs of name and value."""
        members = ", ".join(each.id + ("" if each.voter else " (no voter)") for each in self.servers)
        operations = ", ".join(f"{count} {name}" for name, count in self.operations.most_common())
        facts = [
            ("raft directory", str(self.files.raft)),
            ("file store", str(self.files.data) if self.files.data else "not here"),
            ("members", members or "unknown"),
            ("term", f"{self.stable.term}, voted for {self.stable.vote or 'no node'} in term {self.stable.vote_term}"),
            ("log", f"entries {self.first} to {self.last}, the last of term {self.last_term}: {operations or 'none'}"),
            ("state", f"from snapshot {self.base.name} and the log" if self.base else "from the log alone"),
        ]
        if self.lost:
            facts.append(("entries lost", describe_ranges(self.lost, 6)))
        if self.in_free_pages:
            facts.append(("only in free pages", f"entries {describe_ranges(self.in_free_pages, 6)}"))
        if self.orphans:
            facts.append(("pending of members that left", counted(self.orphans, "message")))
        behind = [each for each in self.findings if each.code == "store-behind-log"]
        facts += [("not in the store yet", f"{each.channel}: {each.detail}") for each in behind]
        if self.used_by:
            facts.append(("in use", ", ".join(self.used_by)))
        return facts

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.node_id,
            "cluster_id": self.files.cluster_id,
            "raft": str(self.files.raft),
            "data": str(self.files.data) if self.files.data else None,
            "current_term": self.stable.term,
            "vote_term": self.stable.vote_term,
            "vote": self.stable.vote,
            "members": [{"id": each.id, "address": each.address, "voter": each.voter} for each in self.servers],
            "first_index": self.first,
            "last_index": self.last,
            "last_term": self.last_term,
            "entries": self.entries,
            "operations": dict(sorted(self.operations.items())),
            "lost": self.lost.as_json(),
            "in_free_pages": self.in_free_pages.as_json(),
            "snapshots": [
                {"name": each.name, "term": each.term, "index": each.index, "size": each.size, "usable": each.usable}
                for each in self.snapshots
            ],
            "channel_ids": {text(name): number for name, number in sorted(self.stable.channels.items())},
            "published": {text(name): ranges.as_json() for name, ranges in sorted(self.published.items())},
            "orphans": self.orphans,
            "used_by": self.used_by,
            "findings": [each.as_json() for each in self.findings],
        }


def examine(
    files: NodeFiles,
    read_options: ReadOptions,
    *,
    free_pages: bool = False,
) -> NodeReport:
    """Reads a node's Raft directory.

    `free_pages`: looks for entries in free pages as well. Raises `StoreChangedError` if the log gets shorter
    meanwhile.
    """
    return _NodeExamination(files, read_options).run(free_pages)


class _NodeExamination:
    """One pass over a node's Raft directory."""

    def __init__(self, files: NodeFiles, read_options: ReadOptions) -> None:
        assert files.raft and files.log
        self._raft, self._path = files.raft, files.log
        self._file = _relative(files.log, files.path)
        self._cipher = raft_cipher(read_options.encryption_key) if read_options.encryption_key else None
        self._listed: Counter[str] = Counter()
        self._sealed = 0
        self._gaps: list[RaftFlaw] = []
        self._lost: list[tuple[int, int]] = []
        #: Spans of sequences by channel; a span covers consecutive entries.
        self._published: dict[bytes, list[tuple[int, int]]] = {}
        self.report = NodeReport(files)

    def run(self, free_pages: bool) -> NodeReport:
        report = self.report
        report.used_by = [use.detail for use in find_uses(self._raft, quiet=0)]
        self._read_snapshots()
        with open_log(self._path) as log:
            report.stable = log.stable
            report.bytes_scanned += self._path.stat().st_size
            for fault in log.faults:
                self._fault(fault, fatal=log.bolt.meta is None)
            for each in log.runs(report.state.index):
                if isinstance(each, LoggedPublishes):
                    self._count(each.first, each.last, each.term)
                    self.report.operations[OPERATIONS[pb.RaftOperation.PUBLISH]] += each.last - each.first + 1
                    self._span(each.channel, each.first_sequence, each.last_sequence)
                    self.report.state.advance_run(each)
                elif isinstance(each, RaftEntry):
                    self._entry(each)
                elif isinstance(each, Fault):
                    self._fault(each)
                else:
                    self._flaw(each)
            self._gap_findings()
            if free_pages:
                gaps = [(gap.first, gap.last) for gap in self._gaps]
                have = Ranges.of([(report.first, report.last)]) - Ranges.of(self._lost + gaps)
                free = {each.index for each in log.free_entries()}
                report.in_free_pages = Ranges.of((index, index) for index in free) - have
        if self._sealed:
            text_ = f"{counted(self._sealed, 'command')} in the log cannot be read without the encryption key"
            self._add(finding("raft-encrypted", text_))
        self._add_rest()
        if not report.node_id and report.files.raft:
            # Its path may name it as its vote does: a default path contains the id before the log.
            parent = report.files.raft.absolute().parent.name
            report.node_id = parent if parent in {each.id for each in report.servers} else ""
        return report

    def _add(self, one: Finding) -> None:
        one = one if one.file else replace(one, file=self._file)
        self._listed[one.code] += 1
        if self._listed[one.code] <= _MAX_LISTED:
            self.report.findings.append(one)

    def _add_rest(self) -> None:
        """Counts the findings beyond the limit per code."""
        last = {each.code: each for each in self.report.findings}
        for code, count in self._listed.items():
            if count > _MAX_LISTED:
                text_ = f"{count - _MAX_LISTED} more of this kind"
                self.report.findings.append(replace(last[code], detail=text_, offset=None, length=None, seq=None))

    def _read_snapshots(self) -> None:
        report = self.report
        report.snapshots = read_snapshots(self._raft)
        for each in report.snapshots:
            file = _relative(each.path, report.files.path)
            report.bytes_scanned += each.size
            if each.temporary:
                self._add(finding("snapshot-temporary", "it was being written when the server ended", file=file))
            elif each.errors:
                self._add(finding("snapshot-damaged", "; ".join(each.errors), file=file))
        report.base = next((each for each in report.snapshots if each.usable), None)
        if report.base:
            base = report.base
            report.state = ClusterState(base.state, base.term, base.index)
            report.servers = base.servers
            report.last, report.last_term = base.index, base.term

    def _fault(self, fault: Fault, *, fatal: bool = False) -> None:
        place: dict[str, Any] = {"offset": fault.offset, "length": fault.length}
        detail = fault.detail + _range_of_keys(fault)
        if fault.kind is FaultKind.META and fatal:
            self._add(finding("raft-metas", detail, **place))
        elif fault.kind is FaultKind.META:
            self._add(finding("raft-meta", detail, **place))
        elif fault.kind is FaultKind.KEYS:
            self._add(finding("raft-stale-page", detail, **place))
        else:
            self._add(finding("raft-page", detail, **place))

    def _flaw(self, flaw: RaftFlaw) -> None:
        if flaw.kind is RaftFlawKind.GAP:
            self._gaps.append(flaw)
            return
        self._add(finding("raft-entry", flaw.detail, offset=flaw.offset, length=flaw.length, seq=flaw.first))
        if flaw.kind is not RaftFlawKind.TERM:
            self._lost.append((flaw.first, flaw.last))

    def _count(self, first: int, last: int, term: int) -> None:
        report = self.report
        report.entries += last - first + 1
        report.first = report.first or first
        # A term above the newest that the node has heard of is damaged.
        if last > report.last and term <= (report.stable.term or term):
            report.last, report.last_term = last, term

    def _span(self, channel: bytes, first: int, last: int) -> None:
        spans = self._published.setdefault(channel, [])
        if spans and spans[-1][1] + 1 == first:
            first = spans.pop()[0]
        spans.append((first, last))

    def _entry(self, entry: RaftEntry) -> None:
        report = self.report
        self._count(entry.index, entry.index, entry.term)
        operation: pb.RaftOperation | None = None
        try:
            if entry.type == EntryType.COMMAND:
                operation = decode_operation(entry.data, self._cipher)
            elif entry.type == EntryType.CONFIGURATION:
                report.servers = decode_configuration(entry.data)
        except EntryError as error:
            if entry.type == EntryType.COMMAND and self._cipher is None and is_encrypted(entry.data):
                self._sealed += 1
            else:
                place: dict[str, Any] = {"offset": entry.offset, "length": entry.size, "seq": entry.index}
                self._add(finding("raft-operation", f"entry {entry.index}: {error.message}", **place))
        if operation is None:
            report.operations[entry.type_name if entry.type else "unreadable"] += 1
        else:
            report.operations[OPERATIONS[operation.op_type]] += 1
            messages = operation.publish_batch.messages
            if messages and operation.op_type == pb.RaftOperation.PUBLISH:
                self._span(messages[0].subject, messages[0].sequence, messages[-1].sequence)
        report.state.advance(entry, operation)

    def _gap_findings(self) -> None:
        """Reports missing entries, except holes that a snapshot covers."""
        report = self.report
        base = report.base.index if report.base else 0
        if report.first > base + 1:
            behind = f"the snapshot, which ends at {base}" if base else "the beginning, and there is no usable snapshot"
            self._add(finding("raft-start-missing", f"the log begins with entry {report.first}, after {behind}"))
            self._lost.append((base + 1, report.first - 1))
        for gap in self._gaps:
            if gap.last > base:
                self._add(finding("raft-gap", gap.detail, seq=gap.first))
                self._lost.append((max(gap.first, base + 1), gap.last))
            elif not any(self._listed[code] for code in ("raft-page", "raft-stale-page", "raft-entry")):
                report.settled = gap.last  # where something is damaged, the damage made the hole
        report.lost = Ranges.of(self._lost)
        report.published = {name: Ranges.of(spans) for name, spans in self._published.items()}


def _relative(path: Path, root: Path) -> str:
    """Names a file of a node as findings do: relative to the node's directory where it lies there."""
    if root == path:
        return path.name
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _range_of_keys(fault: Fault) -> str:
    """Names the entries that a page should hold, if the keys around it are indexes."""
    if len(fault.low) != _KEY_SIZE or (fault.high is not None and len(fault.high) != _KEY_SIZE):
        return ""
    first = int.from_bytes(fault.low, "big")
    return (
        f"; entries {first} to {int.from_bytes(fault.high, 'big') - 1}" if fault.high else f"; entries from {first} on"
    )


def fold(channel: ClusterChannel) -> SubsState:
    """Returns the subscriptions of a channel in the log as if a subs.dat had held them."""
    crc = Crc(IEEE)
    records = [encode_live(sub.state, sub.pending, crc) for _, sub in sorted(channel.subscriptions.items())]
    return read_subs(memoryview(FILE_HEADER_BYTES + b"".join(records)), crc)


def subscribers(channel: ClusterChannel | None, clients: Sequence[bytes], first: int, last: int) -> SubscriberList:
    """Returns the subscriptions of a channel in the log like those of a store: status, pending, lag.

    `clients` are the ids of registered clients, `first` and `last` the channel's sequences. Without a channel there
    are none.
    """
    return SubscriberList(fold(channel) if channel else SubsState(), clients, first, last)


def node_overview(
    files: NodeFiles,
    read_options: ReadOptions,
    *,
    patterns: Sequence[str] = (),
    limits: StoreLimits | None = None,
    free_pages: bool = False,
) -> tuple[NodeReport, Overview]:
    """Reads a node: its store, as `overview` does, with clients and subscriptions from its log and snapshots.

    With `limits`, each channel is shown as by a server with these limits. `free_pages`: looks for entries in free
    pages as well.
    """
    report = examine(files, read_options, free_pages=free_pages)
    if files.data:
        store = open_store(files.data, read_options)
        result = overview(store, patterns=patterns, limits=limits)
        report.node_id = text(result.server.node_id) if result.server and result.server.node_id else report.node_id
    else:
        result = Overview(str(files.path))
        result.problems.append("the file store of the node is not here: messages are in the log only")
    _check_store(report, result, patterns)
    state = report.state
    result.clients = list(state.clients.values())
    clients = list(state.clients)
    for channel in result.channels:
        known = state.channels.get(channel.name.encode("utf-8", "surrogateescape"))
        last = max(channel.last_seq, known.last if known else 0)
        channel.subscriptions = subscribers(known, clients, channel.first_seq, last)
    return report, result


def _check_store(report: NodeReport, result: Overview, patterns: Sequence[str]) -> None:
    """Adds the channels that only the log knows, and findings about messages missing in the store."""
    in_store = {each.name: each for each in result.channels}
    names = [name for name in map(text, report.state.channels) if matches_any(name, patterns)]
    saved = {each.channel for each in report.base.state.channels} if report.base and report.base.state else set()
    for name in sorted(names):
        raw = name.encode("utf-8", "surrogateescape")
        known = report.state.channels[raw]
        have = in_store.get(name)
        if have is None:
            result.channels.append(ChannelOverview(name, known.first, known.last))
            if raw in saved and report.files.data:
                detail = (
                    f"sequences {known.first} to {known.last} and {counted(len(known.subscriptions), 'subscription')}"
                )
                report.findings.append(finding("snapshot-channel-missing", detail, channel=name))
        elif known.last > have.last_seq:
            missing = Ranges.of([(have.last_seq + 1, known.last)])
            in_log = missing & report.published.get(raw, Ranges())
            absent = missing - in_log
            detail = f"the store ends at {have.last_seq}, log and snapshot at {known.last}; "
            detail += f"in the log are {describe_ranges(in_log, 4)}" if in_log else "none of the rest is in the log"
            code = "store-behind-snapshot" if absent else "store-behind-log"
            report.findings.append(finding(code, detail, channel=name, seq=have.last_seq + 1))
    result.channels.sort(key=lambda each: each.name.encode("utf-8", "surrogateescape"))


def verify_node(
    files: NodeFiles,
    read_options: ReadOptions,
    *,
    patterns: Sequence[str] = (),
    workers: int = 2,
    on_finding: Callable[[Finding], object] | None = None,
) -> Verdict:
    """Checks a node completely: its log and snapshots, then its file store.

    `workers` slices are scanned at the same time. `on_finding` is called with each finding at once.
    """
    begin = time.perf_counter()
    report, result = node_overview(files, read_options, patterns=patterns)
    verdict = Verdict(list(report.findings), bytes_scanned=report.bytes_scanned)
    for one in report.findings if on_finding else ():
        on_finding(one)  # type: ignore[misc]
    if files.data is None:
        verdict.findings.append(finding("node-store-missing", result.problems[0]))
    else:
        store = open_store(files.data, read_options)
        found = verify(store, patterns=patterns, workers=workers, on_finding=on_finding)
        verdict.findings += [replace(one, file=_relative(files.data / one.file, files.path)) for one in found.findings]
        verdict.channels, verdict.bytes_scanned = found.channels, verdict.bytes_scanned + found.bytes_scanned
    verdict.seconds = time.perf_counter() - begin
    return verdict
