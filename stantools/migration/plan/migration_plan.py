"""The data of a migration plan, shared by planning, plan file, applying and proof.

The records declare their lines in the plan file; see `fields`.

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
from typing import Annotated, Any

from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.fields import (
    CRC_POLYNOMIAL,
    DERIVED,
    IN_QUOTES,
    LONG_LIST,
    PATH,
    PATTERNS,
    REQUIRED,
    SUBJECT,
    TIME,
    NoDefault,
    PlanField,
    name,
)

#: bytes that a stream counts for each message besides subject, headers and payload
RECORD_OVERHEAD = 30

#: metadata key of a stream with its channel's name; for older servers, the beginning of its description
METADATA_CHANNEL = "stantools.channel"
DESCRIPTION = "NATS Streaming channel "

#: limits by age, number and size of a stream that is being loaded
UNLIMITED: Mapping[str, int] = {"max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1}


class TargetKind(enum.StrEnum):
    SERVER = "server"
    BACKUP = "backup"  #: a directory of backups, which the official CLI restores
    STORE = "store"


class ConsumerKind(enum.StrEnum):
    PULL = "pull"
    PUSH = "push"


class RemarkLevel(enum.StrEnum):
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"  #: the plan cannot be applied


@dataclass(frozen=True)
class SourceRef:
    path: Annotated[str, PlanField("store", PATH)]  #: directory
    #: nodes of a cluster, merged for the migration, as --node describes them; `path` is their common parent
    nodes: Annotated[tuple[str, ...], PlanField(codec=LONG_LIST)] = ()
    patterns: Annotated[tuple[str, ...], PlanField("channels")] = ()  #: with NATS wildcards; empty: all
    generation: Annotated[str, PlanField(shown=True)] = "split"  #: as in `SalvageOptions.generation`
    #: `.bak` slices are read as well
    archived: Annotated[bool, PlanField(shown=True, comment="also take messages from .bak slices")] = False
    #: read with the encryption key, which is never part of a plan
    decrypted: Annotated[
        bool, PlanField(shown=True, comment="read with the encryption key, which is given each time")
    ] = False
    crc_poly: Annotated[int | None, PlanField(codec=CRC_POLYNOMIAL)] = None  #: None: detected


@dataclass(frozen=True)
class TargetRef:
    kind: Annotated[TargetKind, REQUIRED] = TargetKind.SERVER
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
class ChannelPart:
    """A channel, or one generation of a channel whose sequences began again, as part of a stream.

    All but the first two fields record what the store held.
    """

    channel: str  #: name; bytes that are not UTF-8 are surrogate escapes, as in file names
    subject: Annotated[str, PlanField(codec=SUBJECT)]  #: subject in the stream
    messages: Annotated[int, REQUIRED] = 0
    first: Annotated[int, REQUIRED] = 0  #: first sequence, 0 without messages
    last: Annotated[int, REQUIRED] = 0  #: last sequence ever assigned; its message may be missing
    bytes: Annotated[int, REQUIRED] = 0  #: sum of payloads
    lost: Annotated[int, REQUIRED] = 0  #: messages known to be lost in the store
    #: nanoseconds since 1970, 0 without messages
    first_timestamp: Annotated[int, PlanField("from", TIME, default=NoDefault.REQUIRED)] = 0
    last_timestamp: Annotated[int, PlanField("to", TIME, default=NoDefault.REQUIRED)] = 0  #: as `first_timestamp`
    #: digest of messages and subscriptions, to notice a changed store
    fingerprint: Annotated[str, PlanField(codec=IN_QUOTES, default=NoDefault.REQUIRED)] = ""


@dataclass(frozen=True)
class ConsumerProgress:
    """Position of a consumer, in sequences of its channel."""

    delivered: Annotated[int, REQUIRED] = 0  #: last delivered sequence
    ack_floor: Annotated[int, DERIVED] = 0  #: all messages up to here are acknowledged
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
    name: Annotated[str, PlanField("consumer", name("consumer"))]
    channel: Annotated[str, PlanField(default=NoDefault.ABSENT)] = ""  #: its source
    durable: Annotated[str, PlanField(shown=True)] = ""  #: name of the durable
    group: str = ""  #: queue group, "" for a plain durable
    client: str = ""  #: owner, "" for a queue group
    members: int = 1  #: number of merged subscriptions
    kind: Annotated[ConsumerKind, REQUIRED] = ConsumerKind.PULL
    settings: dict[str, Any] = field(default_factory=dict)  #: fields of the consumer configuration except the name
    #: in sequences of the channel; translated when the numbers of a renumbered stream are known
    position: ConsumerProgress = ConsumerProgress()

    @property
    def config(self) -> dict[str, Any]:
        return {"durable_name": self.name, **self.settings}


@dataclass(frozen=True)
class StreamPlan:
    name: Annotated[str, PlanField("stream", name("stream"))]
    subjects: Annotated[tuple[str, ...], PlanField(codec=PATTERNS, default=NoDefault.ABSENT)]
    parts: tuple[ChannelPart, ...]  #: its channels, sorted by name
    #: fields of the stream configuration except name and subjects
    settings: dict[str, Any] = field(default_factory=dict)
    renumbered: Annotated[bool, DERIVED] = False  #: several channels: ordered by time and numbered from 1
    #: messages have headers with channel, sequence and time of their origin
    origin_headers: Annotated[
        bool, PlanField(default=NoDefault.ABSENT, comment="channel, sequence and time of origin as headers")
    ] = False
    consumers: tuple[ConsumerPlan, ...] = ()  #: sorted by name
    #: creation time, nanoseconds since 1970
    created_ns: Annotated[int, PlanField("created", TIME, default=NoDefault.ABSENT)] = 0

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
    channel: Annotated[str, PlanField(default="")]  #: channel, "" for the whole store
    detail: Annotated[str, PlanField("why")]  #: which one, and why
    count: int = 1
    loss: bool = False  #: data is lost, because the store was damaged


@dataclass(frozen=True)
class Remark:
    """A remark for the review of a plan."""

    level: RemarkLevel
    about: Annotated[str, PlanField(default="")]  #: stream, channel or consumer; "" for the whole plan
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class MigrationPlan:
    source: SourceRef
    target: TargetRef = TargetRef()
    way: Annotated[LoadMethod, REQUIRED] = LoadMethod.ARCHIVE
    streams: tuple[StreamPlan, ...] = ()  #: sorted by name
    left_out: tuple[OmittedPart, ...] = ()  #: parts of the store that are not migrated
    #: remarks of the planner; `checks.find_problems` finds problems anew from the plan
    notes: tuple[Remark, ...] = ()
    made_at: Annotated[int, PlanField(codec=TIME)] = 0  #: nanoseconds since 1970
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
