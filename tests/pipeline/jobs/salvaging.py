"""Salvaging many stores without Spark: the job itself, with its tasks run in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from stantools.format.crc import Crc
from stantools.pipeline.jobs.salvage import SalvageJobResult, run_salvage
from stantools.pipeline.jobs.salvageplans import plan_job
from stantools.pipeline.tables.table_options import TableOptions
from stantools.recovery.salvage import SalvageOptions, SalvagePlan, apply_salvage, plan_salvage
from stantools.store.directory import open_datastore
from stantools.work import ThreadWork


class Pickled(ThreadWork):
    """Work in this process, with everything that goes to or from a task pickled as on its way to another machine."""

    here = False  # type: ignore[assignment]

    def inside(self, _progress: Any) -> None:
        """Nobody hears what is told elsewhere."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], **options: Any) -> Iterator[tuple[int, Any]]:
        """Does the items one by one."""
        run = pickle.loads(pickle.dumps(function))
        for number, result in super().map(lambda item: run(pickle.loads(pickle.dumps(item))), items, **options):
            yield number, pickle.loads(pickle.dumps(result))


class Silent(nullcontext["Silent"]):
    """Shows nothing."""

    def __init__(self, _task: str, _total: int) -> None:
        super().__init__(self)

    def advance(self, count: int) -> None:
        """Says nothing."""


def run_job(
    stores: Sequence[Path], out: Path | None, polynomial: int | None = None, **options: Any
) -> SalvageJobResult:
    """Does what the command does."""
    force = options.pop("force", False)
    reading = TableOptions((), polynomial=polynomial).of([str(store) for store in stores])
    where = None if out is None else str(out)
    job = plan_job(reading, SalvageOptions(**options), where, dry_run=out is None, force=force)
    return run_salvage(Pickled(1), job, Silent)


def salvage_here(root: Path, out: Path, polynomial: int, **options: Any) -> SalvagePlan:
    """Does what the local verb does."""
    plan = plan_salvage(open_datastore(root, Crc(polynomial)), SalvageOptions(**options))
    apply_salvage(plan, out)
    return plan
