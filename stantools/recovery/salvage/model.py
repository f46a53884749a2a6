"""What a salvage is going to do: plain data between planning, writing and the manifest."""

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
from stantools.inspection.outcomes import Totals
from stantools.inspection.runs import RecordRun
from stantools.recovery.options import SalvageOptions
from stantools.recovery.salvage.subscriptions import NONE_KEPT, KeptSubscriptions
from stantools.store.ranges import Ranges
from stantools.store.resync import Damage, Repair

#: What happens to older generations of a channel: kept beside it under another name, or only one is kept.
SPLIT, NEWEST = "split", "newest"

#: Empty messages that may fill a channel's gaps, however few messages it has.
_FILLERS = 1_000_000


@dataclass(frozen=True)
class Copy:
    """Whole records of a run, byte for byte."""

    run: RecordRun
    sequences: Ranges  #: which of its messages; never empty

    @property
    def path(self) -> Path:
        """The slice."""
        assert self.run.slice.data is not None
        return self.run.slice.data

    @property
    def size(self) -> int:
        """Bytes of the records, about."""
        return (self.run.end - self.run.start) * self.sequences.count() // max(self.run.count, 1)

    @property
    def payload(self) -> int:
        """Bytes of the payloads as they are stored, about."""
        return self.run.payload * self.sequences.count() // self.run.count

    @property
    def largest(self) -> int:
        """Bytes of the largest payload of the run; perhaps of one that is not taken."""
        return self.run.largest

    def narrowed(self, sequences: Ranges) -> Copy:
        """Returns the step with fewer of its messages."""
        return Copy(self.run, self.sequences & sequences)


class Rewrite(ABC):
    """Messages that get new records."""

    path: Path  #: the file that they are in
    sequences: Ranges  #: which messages; never empty
    note: str  #: what is said of them
    size: int  #: bytes of the records, about
    payload: int  #: bytes of their payloads, about
    largest: int  #: bytes of the largest payload

    @abstractmethod
    def messages(self) -> Iterator[pb.MsgProto]:
        """Iterates over the messages, in rising order.

        Raises:
            StoreUnreadableError: The file cannot be read any more, or is not as it was planned.
        """

    @abstractmethod
    def narrowed(self, sequences: Ranges) -> Rewrite:
        """Returns the step with fewer of its messages."""


#: Some messages of a channel, and where they come from.
Step = Copy | Rewrite


class Repaired(Rewrite):
    """A message whose record header was damaged: its payload under a new header.

    Args:
        path: The slice.
        damage: What was damaged.
        repair: The message.
    """

    def __init__(self, path: Path, damage: Damage, repair: Repair) -> None:
        self.path, self._message = path, repair.message
        self.sequence = int(repair.message.sequence)
        self.sequences = Ranges.of([(self.sequence, self.sequence)])
        self.note = f"new record header, the old one was damaged ({damage.kind})"
        self.size = RECORD_HEADER_SIZE + repair.size
        self.payload = self.largest = len(repair.message.data)

    def messages(self) -> Iterator[pb.MsgProto]:
        """Yields the message."""
        yield self._message

    def narrowed(self, sequences: Ranges) -> Repaired:
        """Returns the step, which has one message."""
        return self


class Fate(enum.StrEnum):
    """What it means that something of the old store is not in the new one."""

    MISSING = "missing before"
    GAP = "missing before, a gap"  #: nothing shows that it ever was there: no loss
    UNKNOWN = "unknown"
    LOST = "lost by this step"
    LEFT_OUT = "left out"  #: a copy of what is kept, or nothing of a store: no loss


@dataclass(frozen=True)
class Dropped:
    """Something that is in the old store and not in the new one."""

    file: str  #: relative to the root
    offset: int  #: first byte, -1 for a whole file
    length: int  #: bytes
    reason: str  #: why
    sequences: Ranges = field(default_factory=Ranges)  #: the sequences concerned, as far as they are known
    fate: Fate = Fate.LOST  #: what it means

    @property
    def loss(self) -> bool:
        """The new store lacks something by it."""
        return self.fate not in (Fate.LEFT_OUT, Fate.GAP)


@dataclass
class ChannelPlan:
    """One channel of the new store."""

    name: bytes  #: its name as bytes
    steps: list[Step] = field(default_factory=list)  #: how its messages are made, in the order of sequences
    sequences: Ranges = field(default_factory=Ranges)  #: which sequences it will hold, without fillers
    filled: Ranges = field(default_factory=Ranges)  #: which sequences become empty messages
    origin: str = ""  #: what it is, if it is not simply the channel of that name
    subscriptions: KeptSubscriptions = NONE_KEPT  #: its subscriptions, changed where they must be
    stored_name: bytes = b""  #: the name that its records carry; another one for an older generation
    #: Sequences whose messages were missing before, as far as that is known; of an older generation none.
    missing: Ranges = field(default_factory=Ranges)
    skipped: Ranges = field(default_factory=Ranges)  #: of the missing ones those that nothing shows to have been there
    archived: Ranges = field(default_factory=Ranges)  #: sequences that only archived slices hold, which are left out
    unknown: list[str] = field(default_factory=list)  #: what nothing shows, in words
    last_known: int = 0  #: its last sequence, also where only the index of a slice still names it

    @property
    def size(self) -> int:
        """Bytes of its data files without fillers, about."""
        return sum(step.size for step in self.steps)

    @property
    def gaps(self) -> Ranges:
        """Sequences between its messages of which nothing is there, or nothing but a filler."""
        return self.sequences.holes()

    @property
    def fillable(self) -> bool:
        """Its gaps can be filled; no absurd sequence has made them."""
        return self.gaps.count() <= max(_FILLERS, self.sequences.count())


@dataclass
class SalvagePlan:
    """A whole salvage."""

    #: Its name in reports.
    VERB: ClassVar[str] = "salvage"

    source: Path  #: the store to be salvaged
    crc: Crc  #: its CRC; the new store is written with the same
    options: SalvageOptions  #: what was asked for
    server: pb.ServerInfo  #: the new server.dat
    server_note: str = ""  #: where its content comes from, if it is not simply the old record
    clients: list[pb.ClientInfo] = field(default_factory=list)
    channels: list[ChannelPlan] = field(default_factory=list)  #: the channels, by name
    dropped: list[Dropped] = field(default_factory=list)  #: what is left behind
    changes: list[str] = field(default_factory=list)  #: what is written differently, in words
    bytes: int = 0  #: size of the data files that will be written, without fillers (about)

    @property
    def directories(self) -> list[Path]:
        """What is read, and must not be written into."""
        return [self.source]

    def account(self) -> dict[str, Any]:
        """Returns what else the manifest says, with stable names."""
        return {}

    @property
    def messages(self) -> int:
        """Messages that are kept."""
        return sum(channel.sequences.count() for channel in self.channels)

    @property
    def missing(self) -> int:
        """Messages that were missing before."""
        return sum(d.sequences.count() for d in self.dropped if d.fate in (Fate.MISSING, Fate.GAP))

    @property
    def lost(self) -> int:
        """Messages that are there, and are left out by this step."""
        return sum(d.sequences.count() for d in self.dropped if d.fate is Fate.LOST)

    @property
    def gone(self) -> int:
        """Messages that the new store lacks and that were there once: missing before, or lost by this step."""
        return sum(d.sequences.count() for d in self.dropped if d.loss)

    @property
    def outcome(self) -> Totals:
        """What became of the messages of the old store."""
        return Totals(
            intact=self.messages + self.lost,
            archived=sum(channel.archived.count() for channel in self.channels),
            missing=self.missing,
            lost=self.lost,
            unknown=sum(bool(channel.unknown) for channel in self.channels),
        )

    @property
    def lossy(self) -> bool:
        """Something of the old store could not be kept."""
        return any(d.loss for d in self.dropped)


@dataclass(frozen=True)
class SalvageResult:
    """What was written."""

    path: Path  #: the new store
    manifest: Path  #: the account of it, a file in the new store that servers ignore
    messages: int  #: messages in it, fillers not counted
    filled: int  #: empty messages in it
    bytes: int  #: bytes of its data files
