"""What is found about stores that a job has written: their verification and the forecast of a start, in tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stantools.format.crc import Crc
from stantools.pipeline.jobs.outcome import Failed
from stantools.pipeline.jobs.verify import StoreVerdict, VerifyPlan, plan_verify, run_verify
from stantools.pipeline.tables.found import FoundStore
from stantools.pipeline.tables.listing import LocalPlace
from stantools.pipeline.tables.model import StoreRef
from stantools.pipeline.tables.options import TableOptions
from stantools.recovery.salvage.check import Start, check_start, checked
from stantools.store.directory import open_datastore
from stantools.work import Failure, Work

if TYPE_CHECKING:
    from collections.abc import Callable


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
    work: Work,
    stores: Sequence[NewStore],
    plan: VerifyPlan,
    *,
    progress: Callable[[int], object] | None = None,
) -> list[dict[str, Any]]:
    """Verifies new stores and forecasts their start.

    Args:
        work: Runs the tasks.
        stores: The stores.
        plan: Of these stores, from `plan_check`.
        progress: Told the number of bytes as they are done.

    Returns:
        For each store what `recovery.salvage.check.checked` says.
    """
    verified = run_verify(work, plan, progress=progress)
    starts: dict[int, Failure | Start] = dict(work.map(_forecast, stores))
    return [_checked(verdict, verified.failed, starts[number]) for number, verdict in enumerate(verified.stores)]


def _found(out: Path, polynomial: int) -> FoundStore:
    """Returns a new store as `tables.discovery` finds it."""
    place = LocalPlace()
    entries = tuple(place.entries(str(out)))
    names = [entry.name for entry in entries if entry.directory and not entry.link]
    return FoundStore(StoreRef(str(out), polynomial), place, entries, names)


def _forecast(item: NewStore) -> Start:
    """In a task: finds out how a server would start with a store."""
    return check_start(open_datastore(item.root), Crc(item.polynomial), item.cluster_id)


def _checked(verdict: StoreVerdict, failed: Sequence[Failed], start: Failure | Start) -> dict[str, Any]:
    """Puts together what was found about a new store; that it cannot be read is as bad as can be."""
    unread = [each.message for each in failed if f"{each.path}/".startswith(f"{verdict.root}/")]
    if isinstance(start, Failure):
        unread.append(start.message)
        start = Start(works=False)
    said = checked(verdict.verdict.findings, start, clean=verdict.verdict.clean and not unread)
    return {**said, "error": unread[0]} if unread else said
