"""Options of planning, and of targets. Nothing here imports numpy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.errors import UsageError
from stantools.migration.plan.choices import DurablesChoice, LoadMethod, OriginHeaders
from stantools.nats.stream_names import dotted, name_problem, subject_problem
from stantools.options import ARCHIVED, CHANNELS, FORCE, GENERATION, Option, declared, option

if TYPE_CHECKING:
    from stantools.migration.plan.migration_plan import TargetRef
    from stantools.migration.plan.overrides import Override
    from stantools.migration.source import SourceOptions
    from stantools.store.limits import StoreLimits

#: options that `--for-broker` decides
_OF_THE_BROKER = ("via", "stream_prefix", "subject_prefix", "consumers", "push_prefix", "storage", "origin_headers")

KEEP_ENCRYPTED = Option(help="Migrate encrypted payloads as they are stored, without a key.", default=False)


def _server() -> TargetRef:
    from stantools.migration.plan.migration_plan import TargetRef

    return TargetRef()


@dataclass(frozen=True)
class PlanOptions:
    channels: tuple[str, ...] = CHANNELS.field()
    via: str = option(
        "Method: restore is exact in everything; publish is for servers that do not permit a restore.",
        default="restore",
        choices=("restore", "publish"),
    )
    for_broker: str = option(
        "Fill the streams of a broker with this cluster id, which takes over channels, clients and subscriptions.",
        default="",
        metavar="CLUSTER_ID",
    )
    maps: tuple[str, ...] = option(
        "Put all matching channels into one stream: messages are ordered by time and renumbered.",
        "--map",
        default=(),
        metavar="PATTERN=STREAM",
    )
    override: Path | None = option(
        "YAML with settings for single channels; see the migration guide.", kind=Path, metavar="FILE"
    )
    stream_prefix: str = option("Prefix of stream names.", default="", metavar="TEXT")
    subject_prefix: str = option(
        "One or more tokens before every subject: stan turns orders into stan.orders.", default="", metavar="TEXT"
    )
    consumers: DurablesChoice = option(
        "Consumers for durables and durable queue groups.", default=DurablesChoice.PULL, choices=DurablesChoice
    )
    push_prefix: str = option("Prefix of the deliver subjects of push consumers.", default="deliver", metavar="TEXT")
    storage: str = option("Of the streams.", default="file", choices=("file", "memory"))
    replicas: int = option("Of each stream.", default=1, kind=int, least=1, most=5)
    origin_headers: OriginHeaders = option(
        "Headers with channel, sequence and time; auto: only if the stream itself cannot hold them.",
        default=OriginHeaders.AUTO,
        choices=OriginHeaders,
    )
    generation: str = GENERATION.field(
        help="If sequences began again: split older generations into their own streams, keep the newest, or the Nth."
    )
    archived: bool = ARCHIVED.field()
    keep_encrypted: bool = KEEP_ENCRYPTED.field()
    #: limits of the streaming server, which the store does not hold; None: unknown
    limits: StoreLimits | None = None
    workers: int = 2
    target: TargetRef = field(default_factory=_server)
    overrides: tuple[Override, ...] = ()  #: settings for single channels
    decrypted: bool = False  #: the store is read with its encryption key

    def __post_init__(self) -> None:
        if self.stream_prefix and (problem := name_problem(self.stream_prefix)):
            raise UsageError(f"the stream prefix {self.stream_prefix!r}: {problem}", "choose another prefix")
        if len(self.stream_prefix.encode()) > 100:
            raise UsageError("the stream prefix is longer than 100 bytes", "choose a shorter one")
        if self.subject_prefix and (problem := subject_problem(f"{self.subject_prefix}x")):
            raise UsageError(f"the subject prefix: {problem}", "choose another prefix, such as `stan.`")
        if problem := subject_problem(self.push_prefix):
            raise UsageError(f"the prefix of deliver subjects: {problem}", "choose another one, such as `deliver`")

    @property
    def way(self) -> LoadMethod:
        return LoadMethod.PUBLISH if self.via == "publish" else LoadMethod.ARCHIVE

    def source_options(self) -> SourceOptions:
        from stantools.migration.source import SourceOptions

        return SourceOptions(
            self.channels, self.generation, self.archived, self.keep_encrypted, self.workers, self.for_broker
        )

    def all_overrides(self) -> tuple[Override, ...]:
        """Returns the overrides of the options and those of the file."""
        from stantools.migration.plan.overrides import mapping_override, read_overrides

        read = read_overrides(self.override) if self.override else ()
        return (*(mapping_override(text) for text in self.maps), *read)

    def settled(self, target: TargetRef, overrides: tuple[Override, ...], *, decrypted: bool) -> PlanOptions:
        """Returns the planner's options: with complete prefixes, target and overrides."""
        from stantools.migration.plan.overrides import Override

        whole = replace(self, target=target, overrides=overrides, decrypted=decrypted)
        if not self.for_broker:
            return replace(whole, subject_prefix=dotted(self.subject_prefix))
        from stantools.nats.channel_streams import StreamNames

        for name, each in declared(PlanOptions):
            if name in _OF_THE_BROKER and getattr(self, name) != each.default:
                raise UsageError(f"--for-broker and --{each.flag(name)} exclude each other", "remove one of them")
        if any(replace(each, skip=None) != Override(each.pattern) for each in overrides):
            raise UsageError("with --for-broker, overrides can only skip channels", "use only `skip: yes`")
        broker = StreamNames(self.for_broker)
        return replace(whole, stream_prefix=broker.prefix, subject_prefix=broker.channels)


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
    force: bool = FORCE.field(help="Continue even though a server seems to use a node, or the directory of the target.")

    def __post_init__(self) -> None:
        if self.out and self.jetstream_store:
            raise UsageError("--out and --jetstream-store exclude each other", "give one of them, or --server")
