"""`doctor` of several sources: the diagnosis of each, as if it were alone, in tasks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from stantools.inspection.advice import Health
from stantools.inspection.source_queries import doctor_source
from stantools.inspection.start_options import StartOptions
from stantools.pipeline.jobs.stores import JobResult, StoreDocument, map_stores
from stantools.pipeline.tables.discovery import FoundStore
from stantools.pipeline.tables.model import FailedRead
from stantools.pipeline.tables.table_options import TableOptions
from stantools.progress import PhaseCounter, Progress
from stantools.work import Work


class StoreDiagnosis(StoreDocument):
    @property
    def state(self) -> Health:
        return Health(self.document["state"])

    @property
    def clean(self) -> bool:
        return self.state is Health.HEALTHY


@dataclass(frozen=True)
class _TaskPhase:
    """The phases of a task, whose bytes are those of the whole job."""

    progress: Progress | None

    def __call__(self, _name: str, _total: int) -> AbstractContextManager[PhaseCounter]:
        return nullcontext(self)

    def advance(self, count: int) -> None:
        if self.progress:
            self.progress(count)

    def found(self, *findings: object) -> None: ...


def run_doctor(
    work: Work,
    found: Sequence[FoundStore],
    failed: Sequence[FailedRead],
    options: TableOptions,
    server: StartOptions,
    *,
    progress: Progress | None = None,
) -> JobResult[StoreDiagnosis]:
    """Judges stores; `progress` is called with bytes."""
    diagnose = partial(_diagnose, options=options, server=replace(server, workers=1), progress=work.inside(progress))
    return map_stores(work, diagnose, found, failed)


def _diagnose(
    store: FoundStore, options: TableOptions, server: StartOptions, progress: Progress | None
) -> StoreDiagnosis:
    """In a task: the diagnosis of one store."""
    report = doctor_source(store.opened_in_task(options), server, _TaskPhase(progress))
    return StoreDiagnosis(store.shown, dict(report.document()))
