"""One channel of several nodes: which message of which store counts.

Facts: clustered-stores.md section 12.4. Records are compared by sequence, time, size and CRC, without reading
payloads; only differing ones are read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, DecryptError
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.runs import read_records, same_records
from stantools.inspection.slicesummary import summarise
from stantools.recovery.merge.model import MergedNode, MessageConflict, MessageVersion
from stantools.recovery.salvage.model import ChannelSalvage, RecordCopy, Step
from stantools.store.ranges import Ranges

#: Conflicts of a channel that are listed one by one.
_MAX_CONFLICTS = 1000
_Content = tuple[int, bytes, bytes]


@dataclass
class NodeChannel:
    """The messages of a channel in one node's store."""

    node: MergedNode
    plan: ChannelSalvage  #: a salvage plan of this store alone
    taken: Ranges = field(default_factory=Ranges)  #: sequences taken from this store

    @property
    def place(self) -> tuple[int, int, int]:
        """Progress of the store; the most advanced store decides if nothing else does."""
        report = self.node.report
        return self.plan.sequences.last, report.last_term if report else 0, report.last if report else 0

    def messages(self, wanted: Ranges, crc: Crc) -> Iterator[pb.MsgProto]:
        for step in self.plan.steps:
            if part := step.sequences & wanted:
                if isinstance(step, RecordCopy):
                    yield from read_records(step.run, part, crc)
                else:
                    yield from step.narrowed(part).messages()


def first_to_keep(sources: list[NodeChannel]) -> int:
    """Returns the first sequence that limits have not removed, by the most advanced store; 0 without any.

    A store that was emptied does not count: it has fewer messages than one that is almost as advanced, which no
    limit of messages or bytes explains.
    """
    filled = [each for each in sources if each.plan.sequences]
    if not filled:
        return 0
    best = max(filled, key=lambda each: each.place)
    last, term, _ = best.place
    level = [each for each in filled if each.plan.sequences.last == last]
    count = max(each.plan.sequences.count() for each in level)
    size = max(each.plan.size for each in level)
    level += [
        each
        for each in filled
        if each.place[1] == term and each.plan.sequences.count() > count and each.plan.size > size
    ]
    return min(each.plan.sequences.first for each in level)


class ChannelUnion:
    """The messages of a channel, from all stores."""

    def __init__(self, name: bytes, crc: Crc, key: bytes | None) -> None:
        self._name, self._crc = name, crc
        self._cipher = ChannelCipher(key, name) if key else None
        self.sources: list[NodeChannel] = []  #: the stores, the most advanced first
        self.have = Ranges()  #: sequences in any store
        self.differing = Ranges()  #: sequences whose messages may differ between stores

    def add(self, source: NodeChannel, floor: int) -> bool:
        """Adds a store; less advanced stores come after more advanced ones.

        `floor` is the first sequence that counts. Returns whether the store has any message in common with those
        added before, within the sequences that both have.
        """
        mine = source.plan.sequences & Ranges.of([(floor, 2**64 - 1)])
        fresh, twice = mine - self.have, mine & self.have
        same = Ranges.union(self._same(source, other, twice & other.taken) for other in self.sources if twice)
        if twice and not same and source.node.report is None:
            return False
        source.taken = fresh
        self.sources.append(source)
        self.have |= fresh
        self.differing |= twice - same
        return True

    def _same(self, one: NodeChannel, other: NodeChannel, shared: Ranges) -> Ranges:
        found = []
        steps = [step for step in other.plan.steps if isinstance(step, RecordCopy)]
        for mine in one.plan.steps if shared else ():
            if not isinstance(mine, RecordCopy):
                continue
            for theirs in steps:
                if common := mine.sequences & theirs.sequences & shared:
                    sealed = self._sealed(mine) or self._sealed(theirs)
                    found.append(same_records(mine.run, theirs.run, common, self._crc, sealed=sealed))
        return Ranges.union(found)

    def _sealed(self, step: RecordCopy) -> bool:
        return summarise(step.run.slice, self._name, self._crc).encrypted

    def decide(self, logged: Mapping[int, pb.MsgProto]) -> list[MessageConflict]:
        """Decides which message counts where stores differ; returns these conflicts.

        `logged` are messages in the Raft log, by sequence.
        """
        if not self.differing:
            return []
        nearby = Ranges.of((first, last + 1) for first, last in self.differing)
        contents = [self._contents(each, nearby) for each in self.sources]
        conflicts: list[MessageConflict] = []
        moved: dict[int, list[int]] = {}
        for sequence in (each for a, b in self.differing for each in range(a, b + 1)):
            versions: dict[_Content, list[int]] = {}
            for number, have in enumerate(contents):
                if sequence in have:
                    versions.setdefault(have[sequence], []).append(number)
            if len(versions) < 2:
                continue
            fillers = {each for each, where in versions.items() if _is_filler(each, sequence, contents[where[0]])}
            taken, reason = self._winner(versions, fillers, logged.get(sequence))
            moved.setdefault(versions[taken][0], []).append(sequence)
            if len(conflicts) < _MAX_CONFLICTS:
                conflicts.append(self._conflict(sequence, versions, fillers, taken, reason))
        for number, sequences in moved.items():
            chosen = Ranges.of((each, each) for each in sequences)
            for each in self.sources:
                each.taken -= chosen
            self.sources[number].taken |= chosen
        return conflicts

    def _contents(self, source: NodeChannel, wanted: Ranges) -> dict[int, _Content]:
        found = {}
        for message in source.messages(wanted, self._crc):
            data = message.data
            if self._cipher:
                with suppress(DecryptError):  # then it is compared as stored
                    data = self._cipher.decrypt(data)
            found[message.sequence] = message.timestamp, message.reply, data
        return found

    def _winner(
        self, versions: Mapping[_Content, list[int]], fillers: set[_Content], logged: pb.MsgProto | None
    ) -> tuple[_Content, str]:
        real = [each for each in versions if each not in fillers] or list(versions)
        if len(real) == 1:
            return real[0], "the others put an empty message into a gap"
        if logged and (in_log := (logged.timestamp, logged.reply, logged.data)) in real:
            return in_log, "it is the one in the Raft log"
        count = max(len(versions[each]) for each in real)
        first = min((each for each in real if len(versions[each]) == count), key=lambda each: versions[each][0])
        alone = sum(len(versions[each]) == count for each in real) == 1
        return first, "most stores have it" if alone else "this store is the most advanced one"

    def _conflict(
        self,
        sequence: int,
        versions: Mapping[_Content, list[int]],
        fillers: set[_Content],
        taken: _Content,
        reason: str,
    ) -> MessageConflict:
        listed = [
            MessageVersion(
                tuple(self.sources[number].node.name for number in where),
                each[0],
                len(each[2]),
                each in fillers,
                each == taken,
            )
            for each, where in versions.items()
        ]
        return MessageConflict(os.fsdecode(self._name), sequence, tuple(listed), reason)

    def steps(self, others: list[Step]) -> list[Step]:
        """Returns the steps that make the messages, in the order of sequences.

        `others` are further steps, with sequences that no store has.
        """
        parts = [(step, step.sequences & each.taken) for each in self.sources for step in each.plan.steps]
        parts += [(step, step.sequences) for step in others]
        spans = sorted((first, last, at) for at, (_, sequences) in enumerate(parts) for first, last in sequences)
        return [
            parts[at][0].narrowed(Ranges.of((first, last) for first, last, _ in group))
            for at, group in groupby(spans, key=lambda span: span[2])
        ]

    def counts(self) -> Counter[str]:
        """Returns the number of messages from the store of each node."""
        return Counter({each.node.name: each.taken.count() for each in self.sources if each.taken})


def _is_filler(content: _Content, sequence: int, contents: Mapping[int, _Content]) -> bool:
    """Returns whether a message is a filler: empty, and stored at the time of the next one."""
    timestamp, reply, data = content
    following = contents.get(sequence + 1)
    return not data and not reply and following is not None and following[0] == timestamp
