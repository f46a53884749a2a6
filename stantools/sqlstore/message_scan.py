"""The rows of table Messages, channel by channel: what the server counts, and which rows are intact.

A row is intact if its data decodes, sequence, timestamp and subject in it are those of the row and its channel, and
its size is the length of the data (sql-stores.md section 8). There is no checksum: a changed byte of a payload is
not seen.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from stantools.format.gogo import decode_partly
from stantools.format.proto import store_pb2 as pb
from stantools.sqlstore.tables import MessageRow
from stantools.store.ranges import Ranges


class SequenceSet:
    """Sequences that mostly rise by one; `ranges` is the set."""

    def __init__(self) -> None:
        self._pairs: list[list[int]] = []

    def add(self, sequence: int) -> None:
        pairs = self._pairs
        if pairs and pairs[-1][1] + 1 == sequence:
            pairs[-1][1] = sequence
        else:
            pairs.append([sequence, sequence])

    @property
    def ranges(self) -> Ranges:
        return Ranges.of(self._pairs)

    @property
    def count(self) -> int:
        """How many were added, each as often as it was."""
        return sum(last - first + 1 for first, last in self._pairs)

    def __bool__(self) -> bool:
        return bool(self._pairs)


@dataclass
class ChannelRows:
    """The rows of one channel id."""

    id: int
    rows: int = 0
    first: int = 0
    last: int = 0
    size: int = 0  #: sum of their sizes
    sequences: SequenceSet = field(default_factory=SequenceSet)
    ascending: bool = True  #: they came in the order of sequences, each once
    undecodable: SequenceSet = field(default_factory=SequenceSet)
    empty: SequenceSet = field(default_factory=SequenceSet)  #: of the undecodable ones, those without any field
    null: SequenceSet = field(default_factory=SequenceSet)  #: data or timestamp is NULL
    null_time: SequenceSet = field(default_factory=SequenceSet)
    sequence_differs: SequenceSet = field(default_factory=SequenceSet)
    timestamp_differs: SequenceSet = field(default_factory=SequenceSet)
    size_differs: SequenceSet = field(default_factory=SequenceSet)
    sizes_of_zero: SequenceSet = field(default_factory=SequenceSet)
    by_subject: dict[bytes, SequenceSet] = field(default_factory=lambda: defaultdict(SequenceSet))
    faulty: SequenceSet = field(default_factory=SequenceSet)  #: not intact, whatever their subject
    other_sequences: dict[int, int] = field(default_factory=dict)  #: sequence in the data, where it differs

    def add(self, row: MessageRow) -> None:
        sequence = row.seq
        self.ascending = self.ascending and (not self.rows or sequence > self.last)
        self.first = min(self.first, sequence) if self.rows else sequence
        self.last = max(self.last, sequence)
        self.rows += 1
        self.size += row.size or 0
        self.sequences.add(sequence)
        if not row.size:
            self.sizes_of_zero.add(sequence)
        data = row.data
        faulty = False
        if data is None or row.timestamp is None or row.size is None:
            self.null.add(sequence)
            faulty = True
            if row.timestamp is None:
                self.null_time.add(sequence)
        if row.size != len(data or b""):
            self.size_differs.add(sequence)
            faulty = True
        if data is None:
            self.empty.add(sequence)
            self.other_sequences[sequence] = 0
            self.faulty.add(sequence)
            return
        message, error = decode_partly(pb.MsgProto, data)
        if not message.ByteSize():
            self.empty.add(sequence)
        if message.sequence != sequence:
            self.other_sequences[sequence] = message.sequence
        if error:
            self.undecodable.add(sequence)
            self.faulty.add(sequence)
            return
        if message.sequence != sequence:
            self.sequence_differs.add(sequence)
            faulty = True
        if message.timestamp != row.timestamp:
            self.timestamp_differs.add(sequence)
            faulty = True
        self.by_subject[message.subject].add(sequence)
        if faulty:
            self.faulty.add(sequence)

    def subject_differs(self, name: bytes) -> Ranges:
        return Ranges.union(each.ranges for subject, each in self.by_subject.items() if subject != name)

    def intact(self, name: bytes | None) -> Ranges:
        """Returns the sequences of intact rows; without a `name` the subject is not compared."""
        differing = self.subject_differs(name) if name is not None else Ranges()
        return self.sequences.ranges - self.faulty.ranges - differing

    def whole(self, name: bytes) -> Ranges:
        """Returns the sequences whose data is that message, whatever size and timestamp of the row are."""
        decoded = Ranges.union(each.ranges for subject, each in self.by_subject.items() if subject == name)
        return decoded - self.sequence_differs.ranges

    def named(self) -> Ranges:
        """Returns the sequences that rows had when they were written."""
        return self.sequences.ranges - self.sequence_differs.ranges


class MessageScan:
    def __init__(self) -> None:
        self.channels: dict[int, ChannelRows] = {}
        self.seconds = 0.0  #: time of the scan, with that of reading

    def add(self, rows: Iterable[MessageRow]) -> None:
        channels, begin = self.channels, time.perf_counter()
        for row in rows:
            if (channel := channels.get(row.id)) is None:
                channel = channels[row.id] = ChannelRows(row.id)
            channel.add(row)
        self.seconds += time.perf_counter() - begin
