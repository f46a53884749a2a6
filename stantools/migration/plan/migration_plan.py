"""The data of a migration plan, shared by planning, plan file, applying and proof.

Units are those of JetStream: bytes, nanoseconds, sequences; -1 is "no limit" (0 for an age). The plan file shows
them as people write them.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stantools.errors import UsageError
from stantools.options import FORCE, option

#: bytes that a stream counts for each message besides subject, headers and payload
RECORD_OVERHEAD = 30

#: metadata key of a stream with its channel's name; for older servers, the beginning of its description
METADATA_CHANNEL = "stantools.channel"
DESCRIPTION = "NATS Streaming channel "

#: limits by age, number and size of a stream that is being loaded
UNLIMITED: Mapping[str, int] = {"max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1}


class LoadMethod(enum.StrEnum):
    ARCHIVE = "archive"  #: a stream archive that a server restores: exact in everything
    PUBLISH = "publish"  #: single messages: new timestamps, the old ones in headers


class TargetKind(enum.StrEnum):
    SERVER = "server"
    BACKUP = "backup"  #: a directory of backups, which the official CLI restores
    STORE = "store"


class ConsumerKind(enum.StrEnum):
    PULL = "pull"
    PUSH = "push"


class DurablesChoice(enum.StrEnum):
    PULL = ConsumerKind.PULL.value
    PUSH = ConsumerKind.PUSH.value
    NONE = "none"


class OriginHeaders(enum.StrEnum):
    """Headers with channel, sequence and time of the message in the store."""

    AUTO = "auto"  #: only if the stream itself cannot hold them (published or renumbered)
    ON = "on"
    OFF = "off"


class RemarkLevel(enum.StrEnum):
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"  #: the plan cannot be applied


@dataclass(frozen=True)
class SourceRef:
    path: str  #: directory
    crc_poly: int | None = None  #: CRC polynomial; None: detected
    patterns: tuple[str, ...] = ()  #: channels, with NATS wildcards; empty: all
    generation: str = "split"  #: as in `SalvageOptions.generation`
    archived: bool = False  #: `.bak` slices are read as well
    decrypted: bool = False  #: read with the encryption key, which is never part of a plan
    #: nodes of a cluster, merged for the migration, as --node describes them; `path` is their common parent
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetRef:
    kind: TargetKind = TargetKind.SERVER
    places: tuple[str, ...] = ()  #: URLs without user, password and token, or one directory
    version: tuple[int, int, int] | None = None  #: server version at planning time, None if unknown

    def __str__(self) -> str:
        return ",".join(self.places) or str(self.kind)

    def without_secrets(self) -> TargetRef:
        if self.kind is not TargetKind.SERVER:
            return self
        from stantools.nats.login import without_login

        return replace(self, places=tuple(map(without_login, self.places)))


@dataclass(frozen=True)
class TargetPaths:
    """Options for targets that are not a running server."""

    to: str = option("What to.", default="jetstream", choices=("jetstream",))
    out: Path | None = option(
        "No server: write a backup of each stream, for `nats stream restore`.", kind=Path, metavar="DIR"
    )
    jetstream_store: Path | None = option(
        "Put the streams into the store directory of a stopped nats-server.", kind=Path, metavar="DIR"
    )
    account: str = option("With --jetstream-store: the account.", default="$G")
    embedded_store: Path = option(
        "With --server embedded: the store directory of the server that is started.",
        default=Path("jetstream"),
        kind=Path,
        metavar="DIR",
    )
    force: bool = FORCE.field(
        help="Continue even though a server seems to use a node, or --jetstream-store's directory."
    )

    def __post_init__(self) -> None:
        if self.out and self.jetstream_store:
            raise UsageError("--out and --jetstream-store exclude each other", "give one of them, or --server")


@dataclass(frozen=True)
class ChannelPart:
    """A channel, or one generation of a channel whose sequences began again, as part of a stream."""

    channel: str  #: name; bytes that are not UTF-8 are surrogate escapes, as in file names
    subject: str  #: subject in the stream
    messages: int = 0
    first: int = 0  #: first sequence, 0 without messages
    last: int = 0  #: last sequence ever assigned; its message may be missing
    bytes: int = 0  #: sum of payloads
    lost: int = 0  #: messages known to be lost in the store
    first_timestamp: int = 0  #: nanoseconds since 1970, 0 without messages
    last_timestamp: int = 0  #: nanoseconds since 1970, 0 without messages
    fingerprint: str = ""  #: digest of messages and subscriptions, to notice a changed store


@dataclass(frozen=True)
class ConsumerProgress:
    """Position of a consumer, in sequences of its channel."""

    delivered: int = 0  #: last delivered sequence
    ack_floor: int = 0  #: all messages up to here are acknowledged
    pending: tuple[int, ...] = ()  #: delivered but unacknowledged, rising, in (ack_floor, delivered]

    @classmethod
    def of(cls, delivered: int, pending: Iterable[int]) -> ConsumerProgress:
        """Makes a position from the delivered sequence and its pending ones (jetstream-migration.md section 11)."""
        waiting = tuple(sorted(set(pending)))
        return cls(delivered, waiting[0] - 1 if waiting else delivered, waiting)

    def translated(self, position: Callable[[Sequence[int]], Sequence[int]]) -> ConsumerProgress:
        """Returns the position in sequences of a renumbered stream.

        `position` maps rising sequences of the channel to those of the stream: a missing message to the one before
        it, or 0.
        """
        delivered, *pending = position([self.delivered, *self.pending])
        return ConsumerProgress.of(delivered, pending)


@dataclass(frozen=True)
class ConsumerPlan:
    name: str
    kind: ConsumerKind = ConsumerKind.PULL
    channel: str = ""  #: its source
    durable: str = ""  #: name of the durable
    client: str = ""  #: owner, "" for a queue group
    group: str = ""  #: queue group, "" for a plain durable
    settings: dict[str, Any] = field(default_factory=dict)  #: fields of the consumer configuration except the name
    #: in sequences of the channel; translated when the numbers of a renumbered stream are known
    position: ConsumerProgress = ConsumerProgress()
    members: int = 1  #: number of merged subscriptions

    @property
    def config(self) -> dict[str, Any]:
        return {"durable_name": self.name, **self.settings}


@dataclass(frozen=True)
class StreamPlan:
    name: str
    subjects: tuple[str, ...]
    parts: tuple[ChannelPart, ...]  #: its channels, sorted by name
    settings: dict[str, Any] = field(
        default_factory=dict
    )  #: fields of the stream configuration except name and subjects
    renumbered: bool = False  #: several channels: ordered by time and numbered from 1
    origin_headers: bool = False  #: messages have headers with channel, sequence and time of their origin
    consumers: tuple[ConsumerPlan, ...] = ()  #: sorted by name
    created_ns: int = 0  #: creation time, nanoseconds since 1970

    @property
    def config(self) -> dict[str, Any]:
        return {"name": self.name, "subjects": list(self.subjects), **self.settings}

    @property
    def loading_config(self) -> dict[str, Any]:
        """The configuration without limits: all messages are compared before the limits apply."""
        return {**self.config, **{name: none for name, none in UNLIMITED.items() if name in self.settings}}

    @property
    def limited(self) -> bool:
        return self.loading_config != self.config

    @property
    def messages(self) -> int:
        return sum(part.messages for part in self.parts)

    @property
    def bytes(self) -> int:
        """Sum of payloads."""
        return sum(part.bytes for part in self.parts)

    def bytes_stored(self, headers: int) -> int:
        """Returns the size that a stream counts for its records (jetstream-migration.md section 5.2).

        `headers` is the number of header bytes of each record.
        """
        frame = RECORD_OVERHEAD + headers
        return sum(part.bytes + part.messages * (frame + len(os.fsencode(part.subject))) for part in self.parts)

    @property
    def lost(self) -> int:
        """Messages known to be lost in the channels."""
        return sum(part.lost for part in self.parts)

    @property
    def first(self) -> int:
        """First sequence, 0 without messages."""
        if self.renumbered:
            return 1 if self.messages else 0
        return self.parts[0].first if self.parts else 0

    @property
    def last(self) -> int:
        if self.renumbered:
            return self.messages
        return self.parts[0].last if self.parts else 0

    @property
    def origin(self) -> str:
        """The channel's name, or the number of channels, for people."""
        return self.parts[0].channel if len(self.parts) == 1 else f"{len(self.parts)} channels"

    @property
    def span(self) -> str:
        """The range of sequences, for people."""
        return f"{self.first}-{self.last}" if self.messages else f"none, next is {self.last + 1}"

    @property
    def remarks(self) -> list[str]:
        remarks = []
        if self.renumbered:
            remarks.append("renumbered")
        if self.origin_headers:
            remarks.append("origin headers")
        if self.lost:
            remarks.append(f"{self.lost} missing before")
        return remarks


def created_at(parts: Iterable[ChannelPart], made_at: int) -> int:
    """Returns the creation time of a stream of these channels: the time of its first message.

    `made_at`, when the plan was made, is used if there is no message or its time makes no sense.
    """
    first = min((part.first_timestamp for part in parts if part.messages), default=0)
    return first if 0 < first <= made_at else made_at


@dataclass(frozen=True)
class OmittedPart:
    """A part of the store that is not migrated."""

    what: str  #: subscription, queue group, durable, client, channel, message, limit or file
    channel: str  #: channel, "" for the whole store
    detail: str  #: which one, and why
    count: int = 1
    loss: bool = False  #: data is lost, because the store was damaged


@dataclass(frozen=True)
class Remark:
    """A remark for the review of a plan."""

    level: RemarkLevel
    about: str  #: stream, channel or consumer; "" for the whole plan
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class MigrationPlan:
    source: SourceRef
    target: TargetRef = TargetRef()
    way: LoadMethod = LoadMethod.ARCHIVE
    streams: tuple[StreamPlan, ...] = ()  #: sorted by name
    left_out: tuple[OmittedPart, ...] = ()  #: parts of the store that are not migrated
    #: remarks of the planner; `checks.find_problems` finds problems anew from the plan
    notes: tuple[Remark, ...] = ()
    made_at: int = 0  #: nanoseconds since 1970
    broker: str = ""  #: cluster id of the broker that takes over the streams, or ""

    @property
    def messages(self) -> int:
        return sum(stream.messages for stream in self.streams)

    @property
    def bytes(self) -> int:
        """Sum of payloads."""
        return sum(stream.bytes for stream in self.streams)

    @property
    def lost(self) -> int:
        """Messages known to be lost in the store."""
        return sum(stream.lost for stream in self.streams)

    @property
    def lossy(self) -> bool:
        """A damaged part of the store is not migrated."""
        return bool(self.lost) or any(each.loss for each in self.left_out)

    @property
    def consumers(self) -> int:
        return sum(len(stream.consumers) for stream in self.streams)

    @property
    def digest(self) -> str:
        """Identifies the result: equal for plans that make the same streams of the same store."""
        streams = [asdict(replace(each, created_ns=0)) for each in self.streams]
        source = asdict(self.source)
        if not self.source.nodes:
            del source["nodes"]  # earlier versions did not have them; their journals stay valid
        work = {"way": self.way, "source": source, "streams": streams}
        text = json.dumps(work, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def at(self, target: TargetRef) -> MigrationPlan:
        return replace(self, target=target)

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self), "messages": self.messages, "bytes": self.bytes, "digest": self.digest}
