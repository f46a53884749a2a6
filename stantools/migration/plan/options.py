"""What users say of how a migration is planned. Nothing here imports numpy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.errors import UsageError
from stantools.migration.plan.model import Consumers, OriginHeaders, TargetRef, Way
from stantools.nats.stream_names import dotted, name_problem, subject_problem
from stantools.options import ARCHIVED, CHANNELS, GENERATION, Option, declared, option

if TYPE_CHECKING:
    from stantools.migration.plan.overrides import Override
    from stantools.migration.source import SourceOptions
    from stantools.store.limits import StoreLimits

#: What a broker decides that goes on with the streams.
_OF_THE_BROKER = ("via", "stream_prefix", "subject_prefix", "consumers", "push_prefix", "storage", "origin_headers")

KEEP_ENCRYPTED = Option(help="Migrate encrypted payloads as they are stored, without a key.", default=False)


@dataclass(frozen=True)
class PlanOptions:
    """How a migration is planned.

    Raises:
        UsageError: A prefix makes no sense.
    """

    channels: tuple[str, ...] = CHANNELS.field()
    via: str = option(
        "How: restore is exact in everything; publish is for servers where a restore is not permitted.",
        default="restore",
        choices=("restore", "publish"),
    )
    for_broker: str = option(
        "Into the streams of a broker with this cluster id, which goes on with channels, clients and subscriptions.",
        default="",
        metavar="CLUSTER_ID",
    )
    maps: tuple[str, ...] = option(
        "Put all channels that match into one stream: they are ordered by time and renumbered.",
        "--map",
        default=(),
        metavar="PATTERN=STREAM",
    )
    override: Path | None = option(
        "YAML with other settings for some channels; see the migration guide.", kind=Path, metavar="FILE"
    )
    stream_prefix: str = option("Prefix of the names of streams.", default="", metavar="TEXT")
    subject_prefix: str = option(
        "A token, or more, in front of every subject: stan makes stan.orders of orders.", default="", metavar="TEXT"
    )
    consumers: Consumers = option(
        "What becomes of durables and durable queue groups.", default=Consumers.PULL, choices=Consumers
    )
    push_prefix: str = option("Prefix of the deliver subjects of push consumers.", default="deliver", metavar="TEXT")
    storage: str = option("Of the streams.", default="file", choices=("file", "memory"))
    replicas: int = option("Of each stream.", default=1, kind=int, least=1, most=5)
    origin_headers: OriginHeaders = option(
        "Headers with channel, sequence and time; auto: only where the stream cannot hold these itself.",
        default=OriginHeaders.AUTO,
        choices=OriginHeaders,
    )
    generation: str = GENERATION.field(
        help="If sequences began again: older generations as streams of their own, only the newest, or the Nth."
    )
    archived: bool = ARCHIVED.field()
    keep_encrypted: bool = KEEP_ENCRYPTED.field()
    #: The limits that the streaming server had. They are not in the store; None is "not known".
    limits: StoreLimits | None = None
    workers: int = 2
    target: TargetRef = field(default_factory=TargetRef)  #: where it goes
    overrides: tuple[Override, ...] = ()  #: what is otherwise for some channels
    decrypted: bool = False  #: the store is read with its encryption key

    def __post_init__(self) -> None:
        if self.stream_prefix and (problem := name_problem(self.stream_prefix)):
            raise UsageError(f"the prefix of streams {self.stream_prefix!r}: {problem}", "choose another prefix")
        if len(self.stream_prefix.encode()) > 100:
            raise UsageError("the prefix of streams is longer than 100 bytes", "choose a shorter one")
        if self.subject_prefix and (problem := subject_problem(f"{self.subject_prefix}x")):
            raise UsageError(f"the prefix of subjects: {problem}", "choose another prefix, such as `stan.`")
        if problem := subject_problem(self.push_prefix):
            raise UsageError(f"the prefix of deliver subjects: {problem}", "choose another one, such as `deliver`")

    @property
    def way(self) -> Way:
        """How messages get into the streams."""
        return Way.PUBLISH if self.via == "publish" else Way.ARCHIVE

    def taking(self) -> SourceOptions:
        """Returns what is taken of a store."""
        from stantools.migration.source import SourceOptions

        return SourceOptions(
            self.channels, self.generation, self.archived, self.keep_encrypted, self.workers, self.for_broker
        )

    def all_overrides(self) -> tuple[Override, ...]:
        """Returns what is otherwise for some channels, as it is said here and in the file.

        Raises:
            UsageError: It makes no sense.
            StoreUnreadableError: The file of overrides cannot be read.
        """
        from stantools.migration.plan.overrides import mapping_override, read_overrides

        read = read_overrides(self.override) if self.override else ()
        return (*(mapping_override(text) for text in self.maps), *read)

    def settled(self, target: TargetRef, overrides: tuple[Override, ...], *, decrypted: bool) -> PlanOptions:
        """Returns what the planner takes: with whole prefixes, the target, and the overrides.

        Args:
            target: Where it goes.
            overrides: What is otherwise for some channels.
            decrypted: The store is read with its encryption key.

        Raises:
            UsageError: They make no sense.
        """
        from stantools.migration.plan.overrides import Override

        whole = replace(self, target=target, overrides=overrides, decrypted=decrypted)
        if not self.for_broker:
            return replace(whole, subject_prefix=dotted(self.subject_prefix))
        from stantools.nats.channel_streams import Names

        for name, each in declared(PlanOptions):
            if name in _OF_THE_BROKER and getattr(self, name) != each.default:
                raise UsageError(f"--for-broker and --{each.flag(name)} exclude each other", "leave one of them out")
        if any(replace(each, skip=None) != Override(each.pattern) for each in overrides):
            raise UsageError(
                "with --for-broker overrides can only leave channels out", "say `skip: yes`, and nothing else"
            )
        broker = Names(self.for_broker)
        return replace(whole, stream_prefix=broker.prefix, subject_prefix=broker.channels)
