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
from stantools.migration.options import KEEP_ENCRYPTED, Applying
from stantools.migration.options import Planning as Planned
from stantools.migration.plan.model import Places
from stantools.options import WORKERS, declared, option

if TYPE_CHECKING:
    from stantools.migration.plan.model import SourceRef, TargetRef
    from stantools.migration.plan.options import PlanOptions
    from stantools.migration.source import SourceOptions
    from stantools.pipeline.tables.options import TableOptions
    from stantools.store.options import ReadOptions

_F = TypeVar("_F", bound=Callable[..., Any])

_PLACES = dict(declared(Places))

place_options = options_of(Places, "places", title="Where to, if not to a running server")


@dataclass(frozen=True)
class Reopening:
    """How the store of a plan is found and read again, and where its target is."""

    store: Path | None = option("The store, if it is not where the plan says.", kind=Path, metavar="DIR")
    encryption_key_env: str | None = KEY_ENV.field()
    encryption_key_file: Path | None = KEY_FILE.field()
    keep_encrypted: bool = KEEP_ENCRYPTED.field()
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
class Planning(Planned):
    """How to plan, and how stores are read: here, or by tasks elsewhere."""

    reading: ReadOptions | TableOptions | None = None

    def here(self) -> tuple[ReadOptions, SourceOptions]:
        """Returns how a store is read here, and what is taken of it."""
        reading = cast("ReadOptions", self.reading)
        return reading, self.taking(reading.encryption_key)

    def plan_options(self, target: TargetRef) -> PlanOptions:
        """Returns the options of the planner."""
        return self.options(target, self.overrides(), decrypted=self.reading is not None and self.reading.has_key)


def planning_options_with(*reading: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Returns what adds the options for planning as `planning: Planning`, with those of how stores are read."""
    limits = in_group("Limits of the streams", limit_options())
    return options_of(Planning, "planning", limits, *reading, title="What, and into what")


planning_options = planning_options_with(
    in_group("Reading the store", reading_options(unchecked=False), workers_option)
)


applying_options = options_of(Applying, "applying", title="How it is carried out")
