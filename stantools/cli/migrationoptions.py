"""The options of `stantools migrate`, in groups: where to, how to plan, how to carry out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stantools.cli.options import (
    KEY_ENV,
    KEY_FILE,
    encryption_key,
    in_group,
    limit_options,
    options_of,
    reading_options,
    workers_option,
)
from stantools.errors import UsageError
from stantools.migration.plan.model import Places
from stantools.options import ACCEPT_LOSS, ARCHIVED, CHANNELS, GENERATION, WORKERS, Option, declared, option

if TYPE_CHECKING:
    from stantools.migration.plan.model import SourceRef, TargetRef
    from stantools.migration.plan.options import PlanOptions
    from stantools.migration.source import SourceOptions
    from stantools.migration.targets.loading import ApplyOptions
    from stantools.pipeline.tables.options import TableOptions
    from stantools.store.limits import StoreLimits
    from stantools.store.options import ReadOptions

_F = TypeVar("_F", bound=Callable[..., Any])

_PLACES = dict(declared(Places))
_KEEP_ENCRYPTED = Option(help="Migrate encrypted payloads as they are stored, without a key.", default=False)

place_options = options_of(Places, "places", title="Where to, if not to a running server")


@dataclass(frozen=True)
class Reopening:
    """How the store of a plan is found and read again, and where its target is."""

    store: Path | None = option("The store, if it is not where the plan says.", kind=Path, metavar="DIR")
    encryption_key_env: str | None = KEY_ENV.field()
    encryption_key_file: Path | None = KEY_FILE.field()
    keep_encrypted: bool = _KEEP_ENCRYPTED.field()
    account: str = _PLACES["account"].field(help="For a store directory: the account.")
    embedded_store: Path = _PLACES["embedded_store"].field()
    force: bool = _PLACES["force"].field()
    parallel: int = option("Streams read at the same time.", default=2, kind=int, least=1, most=64)
    workers: int = WORKERS.field()

    def reading(self, source: SourceRef) -> ReadOptions:
        """Returns how the store is read.

        Raises:
            UsageError: The plan needs the encryption key.
        """
        from stantools.store.options import ReadOptions

        key = encryption_key(self.encryption_key_env, self.encryption_key_file)
        if source.decrypted and key is None:
            raise UsageError(
                "the plan was made with the encryption key, which it does not hold",
                "give the key: --encryption-key-env or --encryption-key-file",
            )
        return ReadOptions(source.crc_poly, True, key)

    def taking(self, source: SourceRef) -> SourceOptions:
        """Returns what is taken of the store."""
        from stantools.migration.source import SourceOptions

        key = self.reading(source).encryption_key
        return SourceOptions(
            source.patterns, source.generation, source.archived, key, self.keep_encrypted, self.workers
        )


@dataclass(frozen=True)
class Planning:
    """How to plan, as it was given on the command line."""

    channels: tuple[str, ...] = CHANNELS.field()
    via: str = option(
        "How: restore is exact in everything; publish is for servers where a restore is not permitted.",
        default="restore",
        choices=("restore", "publish"),
    )
    maps: tuple[str, ...] = option(
        "Put all channels that match into one stream: they are ordered by time and numbered anew.",
        "--map",
        default=(),
        metavar="PATTERN=STREAM",
    )
    override: Path | None = option(
        "YAML with what is otherwise for some channels; see the migration guide.", kind=Path, metavar="FILE"
    )
    stream_prefix: str = option("What names of streams begin with.", default="", metavar="TEXT")
    subject_prefix: str = option(
        "A token, or more, in front of every subject: stan makes stan.orders of orders.", default="", metavar="TEXT"
    )
    consumers: str = option(
        "What becomes of durables and durable queue groups.", default="pull", choices=("pull", "push", "none")
    )
    push_prefix: str = option("What deliver subjects of push consumers begin with.", default="deliver", metavar="TEXT")
    storage: str = option("Of the streams.", default="file", choices=("file", "memory"))
    replicas: int = option("Of each stream.", default=1, kind=int, least=1, most=5)
    origin_headers: str = option(
        "Headers with channel, sequence and time; auto: only where the stream cannot hold these itself.",
        default="auto",
        choices=("auto", "on", "off"),
    )
    generation: str = GENERATION.field(
        help="If sequences began again: older generations as streams of their own, only the newest, or the Nth."
    )
    archived: bool = ARCHIVED.field()
    keep_encrypted: bool = _KEEP_ENCRYPTED.field()
    limits: StoreLimits | None = None
    reading: ReadOptions | TableOptions | None = None
    workers: int = 2

    @property
    def read_options(self) -> ReadOptions:
        """How the store is read here; not for tasks elsewhere."""
        return cast("ReadOptions", self.reading)

    def taking(self) -> SourceOptions:
        """Returns what is taken of the store."""
        from stantools.migration.source import SourceOptions

        key = self.read_options.encryption_key
        return SourceOptions(self.channels, self.generation, self.archived, key, self.keep_encrypted, self.workers)

    @property
    def decrypts(self) -> bool:
        """Whether there is an encryption key; tasks elsewhere look theirs up themselves."""
        return self.reading is not None and self.reading.has_key

    def options(self, target: TargetRef) -> PlanOptions:
        """Returns the options of the planner.

        Raises:
            UsageError: They make no sense.
            StoreUnreadableError: The file of overrides cannot be read.
        """
        from stantools.migration.plan.model import Way
        from stantools.migration.plan.options import (
            Consumers,
            OriginHeaders,
            PlanOptions,
            dotted,
            mapping_override,
            read_overrides,
        )

        overrides = read_overrides(self.override) if self.override else ()
        return PlanOptions(
            target=target,
            way=Way.PUBLISH if self.via == "publish" else Way.ARCHIVE,
            stream_prefix=self.stream_prefix,
            subject_prefix=dotted(self.subject_prefix),
            consumers=Consumers(self.consumers),
            push_prefix=self.push_prefix,
            storage=self.storage,
            replicas=self.replicas,
            limits=self.limits,
            origin_headers=OriginHeaders(self.origin_headers),
            decrypted=self.decrypts,
            overrides=(*(mapping_override(text) for text in self.maps), *overrides),
        )


def planning_options_with(*reading: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Returns what adds the options for planning as `planning: Planning`, with those of how stores are read."""
    limits = in_group("Limits of the streams", limit_options())
    return options_of(Planning, "planning", limits, *reading, title="What, and into what")


planning_options = planning_options_with(
    in_group("Reading the store", reading_options(unchecked=False), workers_option)
)


@dataclass(frozen=True)
class Applying:
    """How to carry a plan out, as it was given on the command line."""

    replace: bool = option("Delete streams that are there and different, and load them anew.", default=False)
    append_missing: bool = option(
        "Publish what a stream that is there lacks at its end, if all that it has is equal.", default=False
    )
    accept_loss: bool = ACCEPT_LOSS.field()
    parallel: int = option(
        "Streams loaded at the same time. nats-server 2.15.1 was seen to crash with several restores at once.",
        default=1,
        kind=int,
        least=1,
        most=64,
    )
    proof: str = option(
        "Compare every message afterwards, or only the numbers that the server tells.",
        default="full",
        choices=("full", "counts"),
    )
    compress: bool = option("Compress what goes over the network (snappy).", default=False)
    piece_timeout: float = option(
        "Seconds in which the server has to take a piece of an archive.",
        default=30.0,
        kind=float,
        least=1,
        metavar="S",
    )
    restore_timeout: float = option(
        "Seconds in which the server has to unpack an archive.", default=3600.0, kind=float, least=1, metavar="S"
    )

    def __post_init__(self) -> None:
        if self.replace and self.append_missing:
            raise UsageError("--replace and --append-missing exclude each other", "give one of them")
        if self.compress:
            from stantools.migration.archive.framing import SNAPPY, Framer

            Framer(SNAPPY)

    def options(self, way: Any) -> ApplyOptions:
        """Returns the options of `apply_streams`."""
        from stantools.migration.targets.loading import ApplyOptions, Existing

        existing = Existing.REPLACE if self.replace else Existing.APPEND if self.append_missing else Existing.REFUSE
        return ApplyOptions(
            way=way,
            existing=existing,
            parallel=self.parallel,
            prove=self.proof == "full",
            compression="snappy" if self.compress else "stored",
            chunk_timeout=self.piece_timeout,
            final_timeout=self.restore_timeout,
        )


applying_options = options_of(Applying, "applying", title="How it is carried out")
