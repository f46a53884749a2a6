"""The log of a cluster, merged from the Raft logs and snapshots of its nodes, and the resulting state.

Facts: clustered-stores.md sections 6.6 and 12. Nothing in a Raft log has a checksum, so only another copy reveals
damage: the copies of each entry are compared. Entries of an abandoned branch have another term and do not count. The
logs are read side by side, in flat memory; consecutive entries with messages that are byte by byte the same in all
logs are handled together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, cast

from stantools.errors import RefusedError
from stantools.format.encryption import DecryptError, raft_cipher
from stantools.format.proto import store_pb2 as pb
from stantools.format.raftlog import EntryError, EntryType, LoggedPublishes, RaftEntry, decode_operation, is_encrypted
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.inspection.node import NodeReport
from stantools.notation import counted
from stantools.store.raft import OpenLog, open_log
from stantools.store.raftstate import ClusterState
from stantools.store.ranges import Ranges

#: Entries kept at the end of a log until it is known whether a majority has a later one.
_MAX_TAIL = 10_000
#: Entries with different copies that are listed one by one.
_MAX_LISTED = 1000


@dataclass(frozen=True)
class EntryConflict:
    """An entry of which nodes have different copies."""

    index: int
    term: int
    taken: tuple[str, ...]  #: nodes whose copy counts
    others: tuple[str, ...]  #: nodes whose copy is damaged
    why: str  #: reason, in words

    def __str__(self) -> str:
        taken, others = ", ".join(self.taken), ", ".join(self.others)
        return f"entry {self.index}: the copy of {taken} counts, not that of {others}: {self.why}"


class Publish(NamedTuple):
    """An entry with messages: its channel, its sequences, and its place in the log."""

    channel: bytes
    channel_id: int
    first_sequence: int
    last_sequence: int
    node: int
    offset: int
    size: int
    payload: int
    largest: int


@dataclass
class ClusterLog:
    """The merged log, and the state after its last entry."""

    names: tuple[str, ...]  #: nodes with a Raft log
    winner: str = ""  #: node whose log counts where branches differ
    voters: tuple[str, ...] = ()  #: members with a vote, by its configuration
    term: int = 0
    index: int = 0
    state: ClusterState = field(default_factory=ClusterState)  #: clients and subscriptions after the last entry
    begins: str = ""  #: name of the snapshot that the state begins with, "" for the beginning of the log
    missing: Ranges = field(default_factory=Ranges)  #: entries after it that no node has: unknown effect
    proven: int = 0  #: up to this entry, all are certainly committed
    #: For each entry after the proven ones, the number of nodes that have it.
    tail: dict[int, tuple[int, Publish | None]] = field(default_factory=dict)
    conflicts: list[EntryConflict] = field(default_factory=list)
    conflict_count: int = 0  #: number of all conflicts, including those not listed
    unreadable: int = 0  #: commands after it that cannot be decoded or decrypted
    #: Number of entries of an abandoned branch, by node.
    branches: dict[str, int] = field(default_factory=dict)


class _Cursor:
    """The entries of one node in order, one read ahead; consecutive entries with messages form one part."""

    def __init__(self, number: int, report: NodeReport, log: OpenLog) -> None:
        self.number = number
        self.log = log
        self._max_term = report.stable.term
        self._settled = report.settled
        self._rest = self._all()
        self._queue: deque[RaftEntry | LoggedPublishes] = deque()
        self._before = 0
        self._fill_queue()

    def _all(self) -> Iterator[RaftEntry | LoggedPublishes]:
        log = self.log
        if log.bolt.meta is None:
            # No tree leads to the pages any more; of several copies of an entry the newest counts.
            for _ in log.entries():
                pass
            loose = sorted(log.free_entries(), key=lambda each: (each.index, each.term))
            for _, copies in groupby(loose, key=lambda each: each.index):
                *_, last = copies
                yield last
            return
        for each in log.runs(self._settled):
            if isinstance(each, RaftEntry | LoggedPublishes) and _first(each) > self._settled:
                yield each

    def _fill_queue(self) -> None:
        queue = self._queue
        while len(queue) < 2 and (more := next(self._rest, None)):
            queue.append(more)
        #: The next part; None at the end.
        self.head = queue[0] if queue else None
        self.index = _first(queue[0]) if queue else 0  #: index of its first entry

    @property
    def entry(self) -> RaftEntry | None:
        """The next entry, if it is a single one; None at the end."""
        head = self.head
        assert head is None or isinstance(head, RaftEntry)
        return head

    def expand(self) -> None:
        """Splits the next part into single entries."""
        if isinstance(self.head, LoggedPublishes):
            run = cast(LoggedPublishes, self._queue.popleft())
            self._queue.extendleft(reversed(list(self.log.expand(run))))
            self._fill_queue()

    def advance(self, part: LoggedPublishes | None = None) -> None:
        """Moves past the next entry, or past the first entries of the next part."""
        sound, head = self.sound, self._queue.popleft()
        if sound:
            self._before = head.term
        if part and isinstance(head, LoggedPublishes) and head.last > part.last:
            self._queue.appendleft(head.behind(part))
        self._fill_queue()

    @property
    def sound(self) -> bool:
        """The term fits between its neighbours; otherwise it, or one of them, is damaged."""
        term, following = self._queue[0].term, self._queue[1].term if len(self._queue) > 1 else None
        return self._before <= term and (following is None or term <= following) and term <= (self._max_term or term)


def _first(found: RaftEntry | LoggedPublishes) -> int:
    return found.index if isinstance(found, RaftEntry) else found.first


class MergedLog:
    """The merged log of nodes, which can be read any number of times.

    Raises `RefusedError` if the nodes belong to different clusters. Each node needs a Raft log.
    """

    def __init__(self, reports: Sequence[NodeReport], names: Sequence[str], key: bytes | None = None) -> None:
        self._reports = list(reports)
        self._names = list(names)
        self._cipher = raft_cipher(key) if key else None
        ends = [_end(each) for each in reports]
        self._best = max(range(len(reports)), key=lambda at: ends[at], default=0)
        self.log = ClusterLog(tuple(names))
        if reports:
            self.log.winner = names[self._best]
            self.log.term, self.log.index = ends[self._best]
            newest = max(reports, key=lambda each: (bool(each.servers), each.last_term, each.last))
            self.log.voters = tuple(each.id for each in newest.servers if each.voter)

    def entries(self) -> Iterator[tuple[RaftEntry, pb.RaftOperation | None, int, int]]:
        """Iterates over the log in order: the entry, its operation, its node, and how many nodes have it."""
        for found, *more in self.parts(lambda _run, _copies: True):
            assert isinstance(found, RaftEntry)
            yield found, *more  # type: ignore[misc]

    def parts(
        self,
        single: Callable[[LoggedPublishes, int], bool],
        stops: Sequence[int] = (),
        *,
        record_conflicts: bool = False,
    ) -> Iterator[tuple[RaftEntry | LoggedPublishes, pb.RaftOperation | None, int, int]]:
        """Iterates as `entries`, but consecutive entries with messages of one channel form one part.

        `single` is called with such a part and the number of nodes that have it, and returns whether its entries
        must come one by one. A part ends after each index in `stops` (ascending). `record_conflicts`: differences
        are recorded in `log`.
        """
        shared, equal = Counter[int](), Counter[int]()
        with ExitStack() as stack:
            cursors = [
                _Cursor(number, report, stack.enter_context(open_log(report.files.log)))
                for number, report in enumerate(self._reports)
                if report.files.log
            ]
            while live := [each for each in cursors if each.head]:
                index = min(each.index for each in live)
                here = [each for each in live if each.index == index]
                run = self.common_part(index, here, [each.index for each in live if each.index > index], cursors, stops)
                if run and not single(run, len(here)):
                    if len(here) > 1:
                        count = run.last - run.first + 1
                        shared.update({each.number: count for each in here})
                        equal.update({each.number: count for each in here})
                    yield run, None, here[0].number, len(here)
                    for each in here:
                        each.advance(run)
                    continue
                for each in here:
                    each.expand()
                chosen = self._chosen(here, cursors[self._best]) if index <= self.log.index else []
                if record_conflicts:
                    for each in here:
                        if each not in chosen:
                            name = self._names[each.number]
                            self.log.branches[name] = self.log.branches.get(name, 0) + 1
                if chosen:
                    taken = self._compare(index, chosen, shared, equal, record_conflicts)
                    assert taken.entry
                    yield taken.entry, self._operation(taken.entry), taken.number, len(chosen)
                for each in here:
                    each.advance()
        strangers = [self._names[at] for at in shared if shared[at] > 1 and not equal[at]]
        if strangers and record_conflicts:
            raise RefusedError(
                f"{', '.join(strangers)}: every entry differs from those of the others with the same index and term: "
                "these are nodes of different clusters",
                "merge the nodes of one cluster only",
            )

    def common_part(
        self, index: int, holders: list[_Cursor], others: list[int], cursors: list[_Cursor], stops: Sequence[int]
    ) -> LoggedPublishes | None:
        """Returns entries of which all `holders` have the same copy; None if the copies must be compared."""
        heads = [each.head for each in holders]
        first, best = heads[0], cursors[self._best].head
        # Entry 1, and terms that reveal damage or a branch, are for `_chosen` and `_compare`.
        if not isinstance(first, LoggedPublishes) or index == 1 or (best and best.term < first.term):
            return None
        stop = stops[at] if (at := bisect_left(stops, index)) < len(stops) else first.last
        end, last = min([first.last, stop, self.log.index, *(other - 1 for other in others)]), first.last_sequence
        if len(holders) == 1 and end < first.last:
            return None  # rare
        for each, head in zip(holders, heads, strict=True):
            if not isinstance(head, LoggedPublishes) or head.term != first.term or not each.sound:
                return None
            count, last = holders[0].log.same(first, each.log, head, min(end, head.last) - index + 1)
            end = index + count - 1
        return first.part(end - index + 1, last) if end >= index else None

    def _chosen(self, holders: list[_Cursor], best: _Cursor) -> list[_Cursor]:
        """Returns the copies of an entry with the term that counts."""
        sound = [each for each in holders if each.sound]
        candidates = sound or holders
        if best in candidates:
            term = best.head.term if best.head else 0
            # A node without the entries of a majority cannot be elected: so this log's copy is the damaged one.
            counts = Counter(each.entry.term for each in candidates if each.entry)
            needed = max(len(self.log.voters) // 2 + 1, 2)
            term = max((each for each, count in counts.items() if count >= needed and each > term), default=term)
        else:
            # A committed entry has the highest term at its index, and no term higher than a later one.
            max_term = best.head.term if best.head else max(each.entry.term for each in candidates if each.entry)
            term = max((t.entry.term for t in candidates if t.entry and t.entry.term <= max_term), default=0)
        return [each for each in candidates if each.entry and each.entry.term == term]

    def _compare(
        self, index: int, chosen: list[_Cursor], shared: Counter[int], equal: Counter[int], record_conflicts: bool
    ) -> _Cursor:
        """Returns the copy of an entry that counts."""
        if len(chosen) == 1 or index == 1:  # each node of a first start puts itself first in entry 1
            return chosen[0]
        copies: dict[bytes, list[_Cursor]] = {}
        for each in chosen:
            content = self._content(each)
            if content is not None:
                copies.setdefault(content, []).append(each)
        if not copies:
            return chosen[0]
        votes = sorted(copies.values(), key=len, reverse=True)
        taken, why = votes[0], "the majority has it"
        if len(votes) > 1 and len(votes[0]) == len(votes[1]):
            sane = [each for each in votes if self._decodes(each[0])]
            ours = [each for each in sane or votes if any(one.number == self._best for one in each)]
            taken = (ours or sane or votes)[0]
            why = "it can be decoded" if len(sane) == 1 else "its log counts, though it may be the damaged one"
        for readable in votes:
            for each in readable:
                shared[each.number] += 1
                equal[each.number] += len(readable) > 1
        if len(copies) > 1 and record_conflicts:
            self.log.conflict_count += 1
            if len(self.log.conflicts) < _MAX_LISTED:
                assert taken[0].entry
                others = tuple(self._names[e.number] for each in votes if each is not taken for e in each)
                ours_ = tuple(self._names[each.number] for each in taken)
                self.log.conflicts.append(EntryConflict(index, taken[0].entry.term, ours_, others, why))
        return taken[0]

    def _content(self, cursor: _Cursor) -> bytes | None:
        """Returns the content that is equal in all copies; None if it is encrypted, as each node has its own nonce."""
        entry = cursor.entry
        assert entry
        kind = bytes([entry.type & 0xFF])
        if entry.type == EntryType.COMMAND and is_encrypted(entry.data):
            if self._cipher is None:
                return None
            try:
                return kind + self._cipher.decrypt(entry.data)
            except DecryptError:
                pass
        return kind + bytes(entry.data)

    def _decodes(self, cursor: _Cursor) -> bool:
        assert cursor.entry
        return cursor.entry.type != EntryType.COMMAND or self._operation(cursor.entry) is not None

    def _operation(self, entry: RaftEntry) -> pb.RaftOperation | None:
        if entry.type != EntryType.COMMAND:
            return None
        try:
            return decode_operation(entry.data, self._cipher)
        except EntryError:
            return None

    def fold(self) -> ClusterLog:
        """Reads the log and rebuilds clients and subscriptions from every snapshot that it continues from."""
        log = self.log
        bases = {(0, 0, ""): ClusterState()}
        for report in self._reports:
            for each in report.snapshots:
                if each.usable and each.index <= log.index:
                    bases[each.index, each.term, each.name] = ClusterState(each.state, each.term, each.index)
        log.proven = max((index for index, _, _ in bases), default=0)
        lacking: dict[tuple[int, int, str], list[tuple[int, int]]] = {each: [] for each in bases}
        unreadable = Counter[tuple[int, int, str]]()
        needed = len(log.voters) // 2 + 1

        def perhaps_last(run: LoggedPublishes, copies: int) -> bool:
            return copies < needed and run.last > log.proven and len(log.tail) < _MAX_TAIL

        stops = sorted({index for index, _, _ in bases})
        for entry, operation, node, copies in self.parts(perhaps_last, stops, record_conflicts=True):
            first = _first(entry)
            for key, state in bases.items():
                if first > state.index + 1:
                    lacking[key].append((state.index + 1, first - 1))
            if isinstance(entry, LoggedPublishes):
                for state in bases.values():
                    state.advance_run(entry)
                if copies >= needed:
                    log.proven = max(log.proven, entry.last)
                    log.tail.clear()
                continue
            if operation is None and entry.type == EntryType.COMMAND:
                unreadable.update(key for key, state in bases.items() if entry.index > state.index)
            for state in bases.values():
                state.advance(entry, operation)
            if copies >= needed:
                log.proven = max(log.proven, entry.index)
                log.tail.clear()
            elif entry.index > log.proven and len(log.tail) < _MAX_TAIL:
                log.tail[entry.index] = copies, _publish(entry, operation, node)
        whole = [key for key in bases if not lacking[key] and bases[key].index == log.index]
        chosen = max(whole or bases)
        if not whole and bases[chosen].index < log.index:
            lacking[chosen].append((bases[chosen].index + 1, log.index))
        log.state, log.begins = bases[chosen], chosen[2]
        log.missing, log.unreadable = Ranges.of(lacking[chosen]), unreadable[chosen]
        log.state.keep_pending([bases[key] for key in whole])
        return log

    def publishes(self, wanted: Mapping[bytes, Ranges]) -> Iterator[Publish]:
        """Iterates over the entries with the given messages, by channel."""
        for entry, operation, node, _ in self.parts(lambda run, _copies: self._has_wanted(run, wanted)):
            found = _publish(entry, operation, node) if isinstance(entry, RaftEntry) else None
            if found and self._has_wanted(found, wanted):
                yield found

    def deleted_publishes(self, wanted: Mapping[bytes, Ranges]) -> Iterator[Publish]:
        """Iterates over such entries in free pages: deleted ones. Of several copies, the most frequent one counts."""
        found: dict[int, Counter[tuple[int, int]]] = {}
        places: dict[tuple[int, int, int], Publish] = {}
        for node, report in enumerate(self._reports):
            if not report.files.log:
                continue
            with open_log(report.files.log) as opened:
                for _ in opened.entries():
                    pass
                for entry in opened.free_entries():
                    if entry.index > self.log.index or entry.type != EntryType.COMMAND:
                        continue
                    operation = self._operation(entry)
                    publish = _publish(entry, operation, node)
                    if operation and publish and self._has_wanted(publish, wanted):
                        content = hash(operation.SerializeToString())
                        found.setdefault(entry.index, Counter())[entry.term, content] += 1
                        places.setdefault((entry.index, entry.term, content), publish)
        for index, votes in sorted(found.items()):
            newest = max(term for term, _ in votes)
            _, content = max((count, content) for (term, content), count in votes.items() if term == newest)
            yield places[index, newest, content]

    def _has_wanted(self, publish: Publish | LoggedPublishes, wanted: Mapping[bytes, Ranges]) -> bool:
        channel = self.log.state.channels.get(publish.channel)
        if channel and channel.id and publish.channel_id and channel.id != publish.channel_id:
            return False
        asked = wanted.get(publish.channel)
        return asked is not None and asked.meets(publish.first_sequence, publish.last_sequence)


def _end(report: NodeReport) -> tuple[int, int]:
    """Returns term and index of the last entry of a node, even if no meta page leads to the entries any more."""
    if report.last or not report.files.log or not any(each.code == "raft-metas" for each in report.findings):
        return report.last_term, report.last
    with open_log(report.files.log) as log:
        return max(((each.term, each.index) for each in log.free_entries()), default=(0, 0))


def _publish(entry: RaftEntry, operation: pb.RaftOperation | None, node: int) -> Publish | None:
    if operation is None or operation.op_type != pb.RaftOperation.PUBLISH:
        return None
    messages = operation.publish_batch.messages
    sizes = [len(each.data) for each in messages]
    sequences = [each.sequence for each in messages]
    # Without a checksum, this reveals damaged numbers: messages of an entry have consecutive sequences.
    if not sequences or sequences != list(range(sequences[0], sequences[0] + len(sequences))) or not sequences[0]:
        return None
    return Publish(
        messages[0].subject,
        operation.channel_id,
        sequences[0],
        sequences[-1],
        node,
        entry.offset,
        entry.size,
        sum(sizes),
        max(sizes),
    )


def log_differences(reports: Sequence[NodeReport], key: bytes | None = None) -> list[Finding]:
    """Compares the Raft logs of nodes, for entries that several nodes have."""
    names = [each.node_id or each.files.path.absolute().name for each in reports]
    if len(set(names)) < len(names):
        names = [str(each.files.path) for each in reports]
    history = MergedLog(reports, names, key)
    try:
        log = history.fold()
    except RefusedError as error:
        return [finding("entry-differs", error.message)]
    found = [finding("entry-differs", str(each), seq=each.index) for each in log.conflicts]
    if log.conflict_count > len(found):
        found.append(finding("entry-differs", f"{log.conflict_count - len(found)} more of this kind"))
    for name, count in log.branches.items():
        text_ = f"{name}: {counted(count, 'entry', 'is/are')} of an abandoned branch"
        found.append(finding("entry-branch", text_))
    for report, name in zip(reports, names, strict=True):
        if (end := _end(report)) < (log.term, log.index):
            text_ = f"{name} ends with entry {end[1]} of term {end[0]}, {log.winner} with {log.index} of {log.term}"
            found.append(finding("log-behind", text_, seq=end[1]))
    return found
