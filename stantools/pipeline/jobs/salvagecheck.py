"""What is found about stores that a job has written: their verification and the forecast of a start, in tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stantools.inspection.forecast import ServerOptions, forecast
from stantools.pipeline.jobs.outcome import Failed
from stantools.pipeline.jobs.verify import StoreVerdict, VerifyPlan, plan_verify, run_verify
from stantools.pipeline.spark.tasks import Failure, distribute
from stantools.pipeline.tables.found import FoundStore
from stantools.pipeline.tables.listing import LocalPlace
from stantools.pipeline.tables.model import StoreRef
from stantools.pipeline.tables.options import TableOptions
from stantools.recovery.salvage.report import checked
from stantools.store.directory import open_datastore

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class NewStore:
    """A store that was written.

    Attributes:
        root: Where it is.
        polynomial: Its CRC polynomial.
        cluster_id: The cluster id that a server would be started with.
    """

    root: str
    polynomial: int
    cluster_id: str


def plan_check(stores: Sequence[NewStore]) -> VerifyPlan:
    """Lists what has to be read of new stores."""
    found = [_found(Path(store.root), store.polynomial) for store in stores]
    return plan_verify(found, (), TableOptions(tuple(store.root for store in stores)))


def check_stores(
    spark: SparkSession,
    stores: Sequence[NewStore],
    plan: VerifyPlan,
    *,
    partitions: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[dict[str, Any]]:
    """Verifies new stores and forecasts their start.

    Args:
        spark: The session.
        stores: The stores.
        plan: Of these stores, from `plan_check`.
        partitions: How many tasks; None decides by size and cores.
        progress: Told the number of bytes as they are done.

    Returns:
        For each store what `recovery.salvage.report.checked` says.
    """
    verified = run_verify(spark, plan, partitions=partitions, progress=progress)
    starts: dict[int, Failure | tuple[bool, str | None]] = dict(
        distribute(spark, _forecast, stores, partitions=partitions)
    )
    return [_checked(verdict, verified.failed, starts[number]) for number, verdict in enumerate(verified.stores)]


def _found(out: Path, polynomial: int) -> FoundStore:
    """Returns a new store as `tables.discovery` finds it."""
    place = LocalPlace()
    entries = tuple(place.entries(str(out)))
    names = [entry.name for entry in entries if entry.directory and not entry.link]
    return FoundStore(StoreRef(str(out), polynomial), place, entries, names)


def _forecast(item: NewStore) -> tuple[bool, str | None]:
    """In a task: tells whether a server would start with all of a store, and why not."""
    options = ServerOptions(polynomial=item.polynomial, cluster_id=item.cluster_id, workers=1)
    start = forecast(open_datastore(item.root), options, lookups=False)
    return start.starts and start.recovered, start.error


def _checked(
    verdict: StoreVerdict, failed: Sequence[Failed], start: Failure | tuple[bool, str | None]
) -> dict[str, Any]:
    """Puts together what was found about a new store; that it cannot be read is as bad as can be."""
    unread = [each.message for each in failed if f"{each.path}/".startswith(f"{verdict.root}/")]
    if isinstance(start, Failure):
        unread.append(start.message)
        start = False, None
    said = checked(
        verdict.verdict.findings, clean=verdict.verdict.clean and not unread, starts=start[0], error=start[1]
    )
    return {**said, "error": unread[0]} if unread else said
