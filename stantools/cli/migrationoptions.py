"""The options of `stantools migrate`, in groups: where to, how to plan, how to carry out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stantools.cli.options import GivenLimits, channel_option, in_group, limit_options, reading_options, workers_option
from stantools.errors import UsageError
from stantools.migration.plan.model import Places

if TYPE_CHECKING:
    from stantools.cli.pipelineoptions import Reading
    from stantools.migration.plan.model import TargetRef
    from stantools.migration.plan.options import PlanOptions
    from stantools.migration.targets.loading import ApplyOptions
    from stantools.store.options import ReadOptions

_F = TypeVar("_F", bound=Callable[..., Any])


def _together(title: str, name: str, make: Callable[..., Any], *decorators: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Adds a group of options and passes them on as one value; `make` is a dataclass whose fields they are."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def wrapper(*args: Any, **values: Any) -> Any:
            fields = make.__dataclass_fields__  # type: ignore[attr-defined]
            taken = {field: values.pop(field) for field in fields if field in values}
            return function(*args, **values, **{name: make(**taken)})

        return cast(_F, in_group(title, *decorators)(wrapper))

    return decorate


#: Of the stages that go by a plan as well as of the plain command.
embedded_store_option = click.option(
    "--embedded-store",
    type=click.Path(path_type=Path),
    default="jetstream",
    show_default=True,
    metavar="DIR",
    help="With --server embedded: where the server that is started keeps its streams.",
)
store_option = click.option(
    "--store", type=click.Path(path_type=Path), metavar="DIR", help="The store, if it is not where the plan says."
)
force_option = click.option(
    "--force", is_flag=True, help="With --jetstream-store: go on although a server seems to use the directory."
)


place_options = _together(
    "Where to, if not to a running server",
    "places",
    Places,
    click.option("--to", type=click.Choice(["jetstream"]), default="jetstream", show_default=True, help="What to."),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="No server: write a backup of each stream, which `nats stream restore` takes.",
    ),
    click.option(
        "--jetstream-store",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Put the streams into the store directory of a stopped nats-server.",
    ),
    click.option("--account", default="$G", show_default=True, help="With --jetstream-store: the account."),
    embedded_store_option,
    force_option,
)


@dataclass(frozen=True)
class Planning:
    """How to plan, as it was given on the command line."""

    channels: tuple[str, ...]
    via: str
    maps: tuple[str, ...]
    override: Path | None
    stream_prefix: str
    subject_prefix: str
    consumers: str
    push_prefix: str
    storage: str
    replicas: int
    origin_headers: str
    generation: str
    archived: bool
    limits: GivenLimits | None
    reading: ReadOptions | Reading
    keep_encrypted: bool
    workers: int = 2

    @property
    def read_options(self) -> ReadOptions:
        """How the store is read here; not for tasks elsewhere."""
        return cast("ReadOptions", self.reading)

    @property
    def decrypts(self) -> bool:
        """Whether there is an encryption key; tasks elsewhere look theirs up themselves."""
        given = ("encryption_key", "key_env", "key_file")
        return any(getattr(self.reading, name, None) is not None for name in given)

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
        from stantools.store.limits import ChannelLimits

        overrides = read_overrides(self.override) if self.override else ()
        unlimited = ChannelLimits()
        return PlanOptions(
            target=target,
            way=Way.PUBLISH if self.via == "publish" else Way.ARCHIVE,
            stream_prefix=self.stream_prefix,
            subject_prefix=dotted(self.subject_prefix),
            consumers=Consumers(self.consumers),
            push_prefix=self.push_prefix,
            storage=self.storage,
            replicas=self.replicas,
            limits=self.limits.over(unlimited) if self.limits else None,
            origin_headers=OriginHeaders(self.origin_headers),
            decrypted=self.decrypts,
            overrides=(*(mapping_override(text) for text in self.maps), *overrides),
        )


_planning = [
    channel_option,
    click.option(
        "--via",
        type=click.Choice(["restore", "publish"]),
        default="restore",
        show_default=True,
        help="How: restore is exact in everything; publish is for servers where a restore is not permitted.",
    ),
    click.option(
        "--map",
        "maps",
        multiple=True,
        metavar="PATTERN=STREAM",
        help="Put all channels that match into one stream: they are ordered by time and numbered anew.",
    ),
    click.option(
        "--override",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="YAML with what is otherwise for some channels; see the migration guide.",
    ),
    click.option("--stream-prefix", default="", metavar="TEXT", help="What names of streams begin with."),
    click.option(
        "--subject-prefix",
        default="",
        metavar="TEXT",
        help="A token, or more, in front of every subject: stan makes stan.orders of orders.",
    ),
    click.option(
        "--consumers",
        type=click.Choice(["pull", "push", "none"]),
        default="pull",
        show_default=True,
        help="What becomes of durables and durable queue groups.",
    ),
    click.option(
        "--push-prefix",
        default="deliver",
        show_default=True,
        metavar="TEXT",
        help="What deliver subjects of push consumers begin with.",
    ),
    click.option(
        "--storage", type=click.Choice(["file", "memory"]), default="file", show_default=True, help="Of the streams."
    ),
    click.option("--replicas", type=click.IntRange(1, 5), default=1, show_default=True, help="Of each stream."),
    click.option(
        "--origin-headers",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        show_default=True,
        help="Headers with channel, sequence and time; auto: only where the stream cannot hold these itself.",
    ),
    click.option(
        "--generation",
        default="split",
        show_default=True,
        metavar="split|newest|N",
        help="If sequences began again: older generations as streams of their own, only the newest, or the Nth.",
    ),
    click.option("--archived", is_flag=True, help="Take messages from .bak slices as well."),
    in_group("Limits of the streams", limit_options),
]


def planning_options_with(reading: Callable[[Any], Any], *more: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Returns what adds the options for planning as `planning: Planning`.

    Args:
        reading: What adds `reading`.
        more: What adds the number of workers, where that is asked for.
    """
    keep = click.option(
        "--keep-encrypted", is_flag=True, help="Migrate encrypted payloads as they are stored, without a key."
    )
    return _together("What, and into what", "planning", Planning, *_planning, reading, keep, *more)


planning_options = planning_options_with(
    in_group("Reading the store", reading_options(unchecked=False)),
    in_group("Reading the store", workers_option),
)


@dataclass(frozen=True)
class Applying:
    """How to carry a plan out, as it was given on the command line."""

    replace: bool
    append_missing: bool
    accept_loss: bool
    parallel: int
    proof: str
    compress: bool
    piece_timeout: float
    restore_timeout: float

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


applying_options = _together(
    "How it is carried out",
    "applying",
    Applying,
    click.option("--replace", is_flag=True, help="Delete streams that are there and different, and load them anew."),
    click.option(
        "--append-missing",
        is_flag=True,
        help="Publish what a stream that is there lacks at its end, if all that it has is equal.",
    ),
    click.option("--accept-loss", is_flag=True, help="Go on although the store is damaged and something is lost."),
    click.option(
        "--parallel",
        type=click.IntRange(1, 64),
        default=1,
        show_default=True,
        help="Streams loaded at the same time. nats-server 2.15.1 was seen to crash with several restores at once.",
    ),
    click.option(
        "--proof",
        type=click.Choice(["full", "counts"]),
        default="full",
        show_default=True,
        help="Compare every message afterwards, or only the numbers that the server tells.",
    ),
    click.option("--compress", is_flag=True, help="Compress what goes over the network (snappy)."),
    click.option(
        "--piece-timeout",
        type=click.FloatRange(1),
        default=30.0,
        show_default=True,
        metavar="S",
        help="Seconds in which the server has to take a piece of an archive.",
    ),
    click.option(
        "--restore-timeout",
        type=click.FloatRange(1),
        default=3600.0,
        show_default=True,
        metavar="S",
        help="Seconds in which the server has to unpack an archive.",
    ),
)
