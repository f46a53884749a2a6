"""The plan of a merge: a salvage whose messages come from several stores, and from Raft logs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stantools.escaping import text
from stantools.format.encryption import ChannelCipher, Cipher, raft_cipher
from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.clusterlog import ClusterLog, Publish
from stantools.inspection.node import NodeReport
from stantools.recovery.salvage.model import ChannelSalvage, Rewrite, SalvagePlan
from stantools.store.nodes import NodeFiles
from stantools.store.raft import read_operations
from stantools.store.ranges import Ranges


@dataclass(frozen=True)
class MessageVersion:
    """A message that several nodes have under one sequence."""

    nodes: tuple[str, ...]
    timestamp: int  #: nanoseconds since 1970
    size: int  #: bytes of its data
    filler: bool  #: it is an empty message that a server put into a gap
    taken: bool  #: it is the one in the new store


@dataclass(frozen=True)
class MessageConflict:
    """A sequence under which nodes have different messages."""

    channel: str
    sequence: int
    versions: tuple[MessageVersion, ...]
    why: str  #: reason why one of them was taken, in words

    def as_json(self) -> dict[str, Any]:
        return {"seq": self.sequence, "why": self.why, "versions": [vars(each) for each in self.versions]}

    def __str__(self) -> str:
        def said(one: MessageVersion) -> str:
            return f"{', '.join(one.nodes)} ({'a filler' if one.filler else f'{one.size} bytes'})"

        taken = " and ".join(said(one) for one in self.versions if one.taken)
        others = ", ".join(said(one) for one in self.versions if not one.taken)
        return f"{self.channel}: message {self.sequence} was taken from {taken}, not from {others}: {self.why}"


class LoggedMessages(Rewrite):
    """Messages that are in a Raft log and in no store.

    `places` are rows of first and last sequence, offset and size of the log's entries, rising. `size` and `largest`
    are bytes of payloads. With a `key`, messages that are encrypted in the log are encrypted in the store.
    """

    def __init__(
        self,
        path: Path,
        places: npt.NDArray[np.uint64],
        sequences: Ranges,
        *,
        size: int,
        largest: int,
        note: str,
        channel: bytes,
        key: bytes | None,
    ) -> None:
        self.path, self._places, self.sequences, self.note = path, places, sequences, note
        self.payload, self.largest = size, largest
        self.size = size + MESSAGE_OVERHEAD * sequences.count()
        self._channel, self._key = channel, key

    def messages(self) -> Iterator[pb.MsgProto]:
        key = self._key
        cipher = raft_cipher(key) if key else None
        sealing = ChannelCipher(key, self._channel, last_sequence=self.sequences.first) if key else None
        last = 0
        for operation, code in read_operations(self.path, self._places[:, 2:].tolist(), cipher):
            for message in operation.publish_batch.messages:
                if message.sequence > last and message.sequence in self.sequences:
                    last = message.sequence
                    if sealing and code in (Cipher.AES, Cipher.CHACHA):
                        message.data = sealing.encrypt(message.data, Cipher(code))
                    yield message

    def narrowed(self, sequences: Ranges) -> LoggedMessages:
        wanted = self.sequences & sequences
        rows = (self._places[:, 0] <= np.uint64(wanted.last)) & (self._places[:, 1] >= np.uint64(wanted.first))
        part = copy(self)
        part._places, part.sequences = self._places[rows], wanted
        part.payload = self.payload * wanted.count() // max(self.sequences.count(), 1)
        part.size = part.payload + MESSAGE_OVERHEAD * wanted.count()
        return part


class LogEntryPlaces:
    """Entries of Raft logs that hold messages of one channel: there may be millions."""

    def __init__(self) -> None:
        self._rows = array("Q")

    def add(self, one: Publish) -> None:
        self._rows.extend(
            (one.node, one.first_sequence, one.last_sequence, one.offset, one.size, one.payload, one.largest)
        )

    @property
    def sequences(self) -> Ranges:
        """The sequences of their messages."""
        table = self._table()
        return Ranges.of(zip(table[:, 1].tolist(), table[:, 2].tolist(), strict=True))

    def by_node(self) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
        """Iterates over the logs: the node's number, and rows of first and last sequence, offset, size and payload."""
        table = self._table()
        for node in np.unique(table[:, 0]).tolist():
            yield node, table[table[:, 0] == node][:, 1:]

    def _table(self) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self._rows, np.uint64).reshape(-1, 7)


@dataclass
class MergedNode:
    name: str  #: its id, or the name of its directory
    files: NodeFiles  #: its directories
    report: NodeReport | None = None  #: content of its Raft directory; None if it has none
    messages: int = 0  #: number of intact messages in its store
    stale: bool = True  #: its log ends before the one that counts, or it has none

    @property
    def named(self) -> NodeFiles:
        """Its directories, under its name."""
        return replace(self.files, path=Path(self.name))

    def as_json(self) -> dict[str, Any]:
        report = self.report
        return {
            "name": self.name,
            "data": str(self.files.data) if self.files.data else None,
            "raft": str(self.files.raft) if self.files.raft else None,
            "term": report.last_term if report else 0,
            "last_index": report.last if report else 0,
            "snapshot_index": report.base.index if report and report.base else 0,
            "messages": self.messages,
            "stale": self.stale,
            "findings": [each.as_json() for each in report.findings] if report else [],
        }


@dataclass
class MergePlan(SalvagePlan):
    """A plan of a whole merge."""

    VERB: ClassVar[str] = "merge"

    nodes: list[MergedNode] = field(default_factory=list)
    log: ClusterLog = field(default_factory=lambda: ClusterLog(()))  #: the merged log
    #: Sequences under which nodes have different messages; the first ones of each channel.
    conflicts: list[MessageConflict] = field(default_factory=list)
    #: Number of messages of each channel by source.
    sources: dict[bytes, dict[str, int]] = field(default_factory=dict)
    #: Messages in free pages only, by channel; taken on request.
    free_pages: dict[str, Ranges] = field(default_factory=dict)

    @property
    def directories(self) -> list[Path]:
        """Directories that are read, and must not be written into."""
        return [path for each in self.nodes for path in (each.files.data, each.files.raft) if path]

    def account(self) -> dict[str, Any]:
        """Returns the part of the report that only a merge has, with stable names."""
        log = self.log
        return {
            "nodes": [each.as_json() for each in self.nodes],
            "log": {
                "winner": log.winner,
                "voters": list(log.voters),
                "term": log.term,
                "last_index": log.index,
                "snapshot": log.begins or None,
                "missing": log.missing.as_json(),
                "proven_index": log.proven,
                "conflicts": [{**vars(each), "text": str(each)} for each in log.conflicts],
            },
            "free_pages": {name: found.as_json() for name, found in self.free_pages.items()},
        }

    def channel_json(self, channel: ChannelSalvage) -> dict[str, Any]:
        """Returns the report on a channel, with stable names."""
        name = text(channel.name)
        return {
            "name": name,
            "sequences": channel.sequences.as_json(),
            "lost": channel.missing.as_json(),
            "from": self.sources.get(channel.name, {}),
            "conflicts": [each.as_json() for each in self.conflicts if each.channel == name],
            "subscriptions": len(channel.subscriptions),
        }
