"""The plan of a salvage: plain data between planning, writing and the manifest."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.outcomes import OutcomeTotals
from stantools.inspection.runs import RecordRun
from stantools.recovery.recovery_options import SalvageOptions
from stantools.recovery.salvage.subscriptions import NONE_KEPT, KeptSubscriptions
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange, Repair

#: Older generations of a channel: each becomes a channel of its own, or only the newest is kept.
SPLIT, NEWEST = "split", "newest"

#: Maximum number of empty messages to fill a channel's gaps, however few messages it has.
_FILLERS = 1_000_000


@dataclass(frozen=True)
class RecordCopy:
    """Whole records of a run, byte for byte."""

    run: RecordRun
    sequences: Ranges  #: sequences of its messages; never empty

    @property
    def path(self) -> Path:
        assert self.run.slice.data is not None
        return self.run.slice.data

    @property
    def size(self) -> int:
        """Approximate bytes of the records."""
        return (self.run.end - self.run.start) * self.sequences.count() // max(self.run.count, 1)

    @property
    def payload(self) -> int:
        """Approximate bytes of the payloads as stored."""
        return self.run.payload * self.sequences.count() // self.run.count

    @property
    def largest(self) -> int:
        """Bytes of the largest payload of the run; perhaps of one that is not taken."""
        return self.run.largest

    def narrowed(self, sequences: Ranges) -> RecordCopy:
        """Returns the step with fewer of its messages."""
        return RecordCopy(self.run, self.sequences & sequences)


class Rewrite(ABC):
    """Messages that get new records."""

    path: Path  #: file that holds them
    sequences: Ranges  #: never empty
    note: str  #: remark on them
    size: int  #: approximate bytes of the records
    payload: int  #: approximate bytes of their payloads
    largest: int  #: bytes of the largest payload

    @abstractmethod
    def messages(self) -> Iterator[pb.MsgProto]:
        """Iterates over the messages, in rising order.

        Raises `StoreUnreadableError` if the file cannot be read any more, or differs from the plan.
        """

    @abstractmethod
    def narrowed(self, sequences: Ranges) -> Rewrite:
        """Returns the step with fewer of its messages."""


#: Some messages of a channel, and their source.
Step = RecordCopy | Rewrite


class RepairedMessage(Rewrite):
    """A message whose record header was damaged: its payload under a new header."""

    def __init__(self, path: Path, damage: DamagedRange, repair: Repair) -> None:
        self.path, self._message = path, repair.message
        self.sequence = int(repair.message.sequence)
        self.sequences = Ranges.of([(self.sequence, self.sequence)])
        self.note = f"new record header, the old one was damaged ({damage.kind})"
        self.size = RECORD_HEADER_SIZE + repair.size
        self.payload = self.largest = len(repair.message.data)

    def messages(self) -> Iterator[pb.MsgProto]:
        yield self._message

    def narrowed(self, sequences: Ranges) -> RepairedMessage:
        """Returns the step, which has one message."""
        return self


class DropReason(enum.StrEnum):
    """The meaning of data of the old store that is not in the new one."""

    MISSING = "missing before"
    GAP = "missing before, a gap"  #: nothing shows that it ever existed: no loss
    UNKNOWN = "unknown"
    LOST = "lost by this step"
    LEFT_OUT = "left out"  #: a copy of kept data, or no part of a store: no loss


@dataclass(frozen=True)
class DroppedData:
    """Data of the old store that is not in the new one."""

    file: str  #: relative to the root
    offset: int  #: first byte, -1 for a whole file
    length: int  #: number of bytes
    reason: str
    sequences: Ranges = field(default_factory=Ranges)  #: its sequences, as far as they are known
    fate: DropReason = DropReason.LOST

    @property
    def loss(self) -> bool:
        """It is a loss."""
        return self.fate not in (DropReason.LEFT_OUT, DropReason.GAP)


@dataclass
class ChannelSalvage:
    """One channel of the new store."""

    name: bytes  #: as bytes
    steps: list[Step] = field(default_factory=list)  #: steps that make its messages, in the order of sequences
    sequences: Ranges = field(default_factory=Ranges)  #: sequences that it will hold, without fillers
    filled: Ranges = field(default_factory=Ranges)  #: sequences that become empty messages
    origin: str = ""  #: its origin, if it is not simply the channel of that name
    subscriptions: KeptSubscriptions = NONE_KEPT  #: its subscriptions, changed where necessary
    stored_name: bytes = b""  #: name in its records; different for an older generation
    #: Sequences whose messages were missing before, if known; none for an older generation.
    missing: Ranges = field(default_factory=Ranges)
    skipped: Ranges = field(default_factory=Ranges)  #: missing sequences without a trace of a message
    archived: Ranges = field(default_factory=Ranges)  #: sequences in archived slices only, which are left out
    unknown: list[str] = field(default_factory=list)  #: unknown contents, in words
    last_known: int = 0  #: its last sequence, even if only the index of a slice names it

    @property
    def size(self) -> int:
        """Approximate bytes of its data files without fillers."""
        return sum(step.size for step in self.steps)

    @property
    def gaps(self) -> Ranges:
        """Sequences between its messages without a message, or with a filler only."""
        return self.sequences.holes()

    @property
    def fillable(self) -> bool:
        """Its gaps can be filled; no absurd sequence has made them."""
        return self.gaps.count() <= max(_FILLERS, self.sequences.count())


@dataclass
class SalvagePlan:
    """A plan of a whole salvage."""

    #: Its name in reports.
    VERB: ClassVar[str] = "salvage"

    source: Path  #: the old store
    crc: Crc  #: its CRC, also for the new store
    options: SalvageOptions
    server: pb.ServerInfo  #: the new server.dat
    server_note: str = ""  #: origin of its content, if it is not simply the old record
    clients: list[pb.ClientInfo] = field(default_factory=list)
    channels: list[ChannelSalvage] = field(default_factory=list)  #: by name
    dropped: list[DroppedData] = field(default_factory=list)  #: data that is left out
    changes: list[str] = field(default_factory=list)  #: differences of the new store, in words
    bytes: int = 0  #: approximate size of the new data files, without fillers

    @property
    def directories(self) -> list[Path]:
        """Directories that are read, and must not be written into."""
        return [self.source]

    def account(self) -> dict[str, Any]:
        """Returns further entries of the manifest, with stable names."""
        return {}

    @property
    def messages(self) -> int:
        """Messages that are kept."""
        return sum(channel.sequences.count() for channel in self.channels)

    @property
    def missing(self) -> int:
        """Messages that were missing before."""
        return sum(d.sequences.count() for d in self.dropped if d.fate in (DropReason.MISSING, DropReason.GAP))

    @property
    def lost(self) -> int:
        """Messages of the old store that this step leaves out."""
        return sum(d.sequences.count() for d in self.dropped if d.fate is DropReason.LOST)

    @property
    def gone(self) -> int:
        """Messages that existed once and are not in the new store: missing before, or lost by this step."""
        return sum(d.sequences.count() for d in self.dropped if d.loss)

    @property
    def outcome(self) -> OutcomeTotals:
        """The messages of the old store, in numbers."""
        return OutcomeTotals(
            intact=self.messages + self.lost,
            archived=sum(channel.archived.count() for channel in self.channels),
            missing=self.missing,
            lost=self.lost,
            unknown=sum(bool(channel.unknown) for channel in self.channels),
        )

    @property
    def lossy(self) -> bool:
        """Some data of the old store could not be kept."""
        return any(d.loss for d in self.dropped)


@dataclass(frozen=True)
class SalvageResult:
    path: Path  #: the new store
    manifest: Path  #: the report on it, a file in the new store that servers ignore
    messages: int  #: messages in it, without fillers
    filled: int  #: empty messages in it
    bytes: int  #: bytes of its data files
