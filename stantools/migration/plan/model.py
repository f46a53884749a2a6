"""What a migration is going to do: plain data between planning, the plan file, applying and proving.

Units are those of JetStream everywhere: bytes, nanoseconds, sequences; -1 is "no limit" (for an age it is 0). The plan
file shows them as people write them.
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

#: What a stream counts for each message besides subject, headers and payload.
RECORD_OVERHEAD = 30

#: What says in the metadata of a stream which channel it is made of; its description begins so, for older servers.
METADATA_CHANNEL = "stantools.channel"
DESCRIPTION = "NATS Streaming channel "

#: A stream's limits by age, number and size, and what they are while it is loaded.
UNLIMITED: Mapping[str, int] = {"max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1}


class Way(enum.StrEnum):
    """How messages get into a stream."""

    ARCHIVE = "archive"  #: a stream archive that a server restores: everything exact
    PUBLISH = "publish"  #: published one after the other: new timestamps, the old ones in headers


class TargetKind(enum.StrEnum):
    """What a plan is applied to."""

    SERVER = "server"  #: a running server
    BACKUP = "backup"  #: a directory of backups that the official CLI restores
    STORE = "store"  #: the store directory of a stopped server


class ConsumerKind(enum.StrEnum):
    """How a consumer hands out its messages."""

    PULL = "pull"
    PUSH = "push"


class Consumers(enum.StrEnum):
    """What becomes of durables."""

    PULL = ConsumerKind.PULL.value
    PUSH = ConsumerKind.PUSH.value
    NONE = "none"


class OriginHeaders(enum.StrEnum):
    """Whether messages carry channel, sequence and time of their origin as headers."""

    AUTO = "auto"  #: where the stream cannot say it: published, or renumbered
    ON = "on"
    OFF = "off"


class Level(enum.StrEnum):
    """How much a note matters."""

    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"  #: applying is refused until it is settled


@dataclass(frozen=True)
class SourceRef:
    """The store that is migrated, and how it is read."""

    path: str  #: its directory
    crc_poly: int | None = None  #: its CRC polynomial, None to find out
    patterns: tuple[str, ...] = ()  #: channels to take, with NATS wildcards; none takes all
    generation: str = "split"  #: as in `SalvageOptions.generation`
    archived: bool = False  #: take messages from `.bak` slices too
    decrypted: bool = False  #: It is read with the encryption key. The key itself is never part of a plan.
    #: Of a cluster, which is merged for it: its nodes, as --node describes them. The path is above them all.
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetRef:
    """Where the streams go."""

    kind: TargetKind = TargetKind.SERVER  #: what it is
    places: tuple[str, ...] = ()  #: URLs of the servers without user, password or token, or the one directory
    version: tuple[int, int, int] | None = None  #: the server's version when the plan was made, None if it is not known

    def __str__(self) -> str:
        return ",".join(self.places) or str(self.kind)

    def without_secrets(self) -> TargetRef:
        """Returns it with users, passwords and tokens taken out of the URLs."""
        if self.kind is not TargetKind.SERVER:
            return self
        return replace(self, places=tuple(_without_user(place) for place in self.places))


@dataclass(frozen=True)
class Places:
    """Where streams go, if not to a running server."""

    to: str = option("What to.", default="jetstream", choices=("jetstream",))
    out: Path | None = option(
        "No server: write a backup of each stream, which `nats stream restore` takes.", kind=Path, metavar="DIR"
    )
    jetstream_store: Path | None = option(
        "Put the streams into the store directory of a stopped nats-server.", kind=Path, metavar="DIR"
    )
    account: str = option("With --jetstream-store: the account.", default="$G")
    embedded_store: Path = option(
        "With --server embedded: where the server that is started keeps its streams.",
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


def _without_user(url: str) -> str:
    scheme, mark, rest = url.rpartition("://")
    host, slash, path = rest.partition("/")
    return scheme + mark + host.rpartition("@")[2] + slash + path


@dataclass(frozen=True)
class ChannelPart:
    """A channel, or a split off generation of one, that goes into a stream."""

    channel: str  #: its name; bytes that are not UTF-8 are surrogate escapes, as in file names
    subject: str  #: what its messages have as subject in the stream
    messages: int = 0  #: how many there are
    first: int = 0  #: sequence of the first, 0 if there is none
    last: int = 0  #: the channel's last sequence ever known; there may be no message with it
    bytes: int = 0  #: sum of their payloads
    lost: int = 0  #: how many messages are known to be lost in the store
    first_timestamp: int = 0  #: time of the first message in nanoseconds since 1970, 0 if there is none
    last_timestamp: int = 0  #: time of the last one
    fingerprint: str = ""  #: what identifies the messages and subscriptions, to notice a store that has changed


@dataclass(frozen=True)
class Position:
    """How far a consumer is, in sequences of its channel."""

    delivered: int = 0  #: the last sequence that was sent to it
    ack_floor: int = 0  #: everything up to here is done with
    pending: tuple[int, ...] = ()  #: what was sent and not acknowledged, rising, in (ack_floor, delivered]

    @classmethod
    def of(cls, delivered: int, pending: Iterable[int]) -> Position:
        """Makes a position from what was delivered and what is pending of it (jetstream-migration.md section 11)."""
        waiting = tuple(sorted(set(pending)))
        return cls(delivered, waiting[0] - 1 if waiting else delivered, waiting)

    def translated(self, position: Callable[[Sequence[int]], Sequence[int]]) -> Position:
        """Returns it in sequences of a stream that numbers its messages anew.

        Args:
            position: Returns for rising sequences of the channel those in the stream, for one that is not there the
                one of the message before it; 0 where there is none.
        """
        delivered, *pending = position([self.delivered, *self.pending])
        return Position.of(delivered, pending)


@dataclass(frozen=True)
class ConsumerPlan:
    """A durable or a durable queue group that becomes a consumer."""

    name: str  #: the consumer's name
    kind: ConsumerKind = ConsumerKind.PULL  #: pull or push
    channel: str = ""  #: the channel that it was subscribed to
    durable: str = ""  #: name of the durable
    client: str = ""  #: the client that it belongs to, "" for a queue group
    group: str = ""  #: its queue group, "" for a plain durable
    settings: dict[str, Any] = field(default_factory=dict)  #: fields of the consumer configuration but its name
    #: Where it stands, in sequences of its channel. In a stream that is renumbered it has to be translated when the
    #: numbers are known.
    position: Position = Position()
    members: int = 1  #: subscriptions that were merged into it

    @property
    def config(self) -> dict[str, Any]:
        """The whole consumer configuration as the JetStream API takes it."""
        return {"durable_name": self.name, **self.settings}


@dataclass(frozen=True)
class StreamPlan:
    """A stream that will be made."""

    name: str
    subjects: tuple[str, ...]  #: the subjects that it listens on
    parts: tuple[ChannelPart, ...]  #: the channels that go into it, sorted by name
    settings: dict[str, Any] = field(default_factory=dict)  #: fields of the stream configuration but name and subjects
    renumbered: bool = False  #: several channels go in: ordered by time and numbered from 1
    origin_headers: bool = False  #: messages carry channel, sequence and time of their origin as headers
    consumers: tuple[ConsumerPlan, ...] = ()  #: its consumers, sorted by name
    created_ns: int = 0  #: the time that it says it was created at

    @property
    def config(self) -> dict[str, Any]:
        """The whole stream configuration as the JetStream API takes it."""
        return {"name": self.name, "subjects": list(self.subjects), **self.settings}

    @property
    def loading_config(self) -> dict[str, Any]:
        """The configuration without limits, so that all messages are there to be compared before the limits apply."""
        return {**self.config, **{name: none for name, none in UNLIMITED.items() if name in self.settings}}

    @property
    def limited(self) -> bool:
        """Whether `config` has limits that `loading_config` has not."""
        return self.loading_config != self.config

    @property
    def messages(self) -> int:
        """How many messages it gets."""
        return sum(part.messages for part in self.parts)

    @property
    def bytes(self) -> int:
        """Sum of their payloads."""
        return sum(part.bytes for part in self.parts)

    def bytes_stored(self, headers: int) -> int:
        """Returns how many bytes a stream counts for its records (jetstream-migration.md section 5.2).

        Args:
            headers: Bytes that each record has for its headers.
        """
        frame = RECORD_OVERHEAD + headers
        return sum(part.bytes + part.messages * (frame + len(os.fsencode(part.subject))) for part in self.parts)

    @property
    def lost(self) -> int:
        """How many messages are known to be lost in its channels."""
        return sum(part.lost for part in self.parts)

    @property
    def first(self) -> int:
        """First sequence that it will have, 0 if there will be no message."""
        if self.renumbered:
            return 1 if self.messages else 0
        return self.parts[0].first if self.parts else 0

    @property
    def last(self) -> int:
        """Last sequence that it will have."""
        if self.renumbered:
            return self.messages
        return self.parts[0].last if self.parts else 0

    @property
    def origin(self) -> str:
        """The channel that it is made of, or how many, for people."""
        return self.parts[0].channel if len(self.parts) == 1 else f"{len(self.parts)} channels"

    @property
    def span(self) -> str:
        """The sequences that it will have, for people."""
        return f"{self.first}-{self.last}" if self.messages else f"none, next is {self.last + 1}"

    @property
    def remarks(self) -> list[str]:
        """What is special about it, for people."""
        remarks = []
        if self.renumbered:
            remarks.append("renumbered")
        if self.origin_headers:
            remarks.append("origin headers")
        if self.lost:
            remarks.append(f"{self.lost} missing before")
        return remarks


def created_at(parts: Iterable[ChannelPart], made_at: int) -> int:
    """Returns when a stream of these channels says it was created: at the time of its first message.

    Args:
        parts: The channels.
        made_at: When the plan was made; taken where there is no message, or its time makes no sense.
    """
    first = min((part.first_timestamp for part in parts if part.messages), default=0)
    return first if 0 < first <= made_at else made_at


@dataclass(frozen=True)
class LeftOut:
    """Something of the store that does not go along."""

    what: str  #: kind of thing: subscription, queue group, durable, client, channel, message, limit or file
    channel: str  #: the channel that it belongs to, "" for the store as a whole
    detail: str  #: which one, and why it stays behind
    count: int = 1  #: how many of that kind
    loss: bool = False  #: data is lost by it: the store was damaged


@dataclass(frozen=True)
class Note:
    """Something that whoever reviews a plan must know."""

    level: Level  #: how much it matters
    about: str  #: the stream, channel or consumer concerned; "" for the plan as a whole
    text: str  #: what is the matter
    remedy: str = ""  #: what can be done about it


@dataclass(frozen=True)
class Plan:
    """A whole migration."""

    source: SourceRef  #: the store
    target: TargetRef = TargetRef()  #: where it goes
    way: Way = Way.ARCHIVE  #: how
    streams: tuple[StreamPlan, ...] = ()  #: what will be made there, sorted by name
    left_out: tuple[LeftOut, ...] = ()  #: what does not go along
    #: What was noticed when it was planned; problems are not here, they are found anew from the plan itself (see
    #: `checks.find_problems`).
    notes: tuple[Note, ...] = ()
    made_at: int = 0  #: when it was made, in nanoseconds since 1970
    broker: str = ""  #: cluster id of the broker that goes on with the streams, "" if none does

    @property
    def messages(self) -> int:
        """How many messages go along."""
        return sum(stream.messages for stream in self.streams)

    @property
    def bytes(self) -> int:
        """Sum of their payloads."""
        return sum(stream.bytes for stream in self.streams)

    @property
    def lost(self) -> int:
        """How many messages are known to be lost in the store."""
        return sum(stream.lost for stream in self.streams)

    @property
    def lossy(self) -> bool:
        """Something of the store was damaged and does not go along."""
        return bool(self.lost) or any(each.loss for each in self.left_out)

    @property
    def consumers(self) -> int:
        """How many consumers will be made."""
        return sum(len(stream.consumers) for stream in self.streams)

    @property
    def digest(self) -> str:
        """What identifies the work: equal for plans that make the same of the same store."""
        streams = [asdict(replace(each, created_ns=0)) for each in self.streams]
        source = asdict(self.source)
        if not self.source.nodes:
            del source["nodes"]  # earlier versions did not have them: their journals go on
        work = {"way": self.way, "source": source, "streams": streams}
        text = json.dumps(work, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def at(self, target: TargetRef) -> Plan:
        """Returns the plan for another target."""
        return replace(self, target=target)

    def as_json(self) -> dict[str, Any]:
        """Returns the plan with stable names for programs."""
        return {"schema": 1, **asdict(self), "messages": self.messages, "bytes": self.bytes, "digest": self.digest}
