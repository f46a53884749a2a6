"""`salvage` of several stores: `recovery.salvage` in tasks.

Stores are processed in batches, so that finished ones survive a killed job. Per batch, tasks survey all slices; the
driver plans each store from its surveys, as the local verb does; tasks copy the channels (see
`recovery.salvage.apply`); a store moves to its place as soon as its last channel is written. Then tasks verify the
new stores and forecast a start. Every file equals the one of the local verb.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stantools.errors import ExitCode, StantoolsError
from stantools.format.crc import Crc
from stantools.pipeline.jobs.salvageplans import (
    Reports,
    Request,
    SalvageJob,
    StoreWork,
    batches,
    check_same,
    check_target,
)
from stantools.pipeline.jobs.stores import JobResult, survey_stores, worst
from stantools.pipeline.jobs.verify import StoreVerdict, plan_verify, run_verify
from stantools.pipeline.tables.discovery import FoundStore
from stantools.pipeline.tables.listing import LocalPlace
from stantools.pipeline.tables.model import FailedRead, StoreRef
from stantools.pipeline.tables.table_options import TableOptions
from stantools.progress import Phase, Progress
from stantools.recovery.salvage.apply import Build, CopyItem, building, copy_channels, result_of
from stantools.recovery.salvage.check import NewStoreCheck, NewStoreStart, check_start
from stantools.recovery.salvage.manifest import report
from stantools.recovery.salvage.model import SalvagePlan, SalvageResult
from stantools.recovery.salvage.plan import plan_salvage
from stantools.recovery.streams.new_streams import StreamSalvageResult, write_streams
from stantools.recovery.streams.stream_plan import StreamSalvagePlan, plan_stream_salvage
from stantools.store.atomic import clear_leftovers
from stantools.store.directory import open_datastore
from stantools.store.locks import StoreUse, check_not_in_use
from stantools.work import ThreadWork, Work, WorkFailure

#: Threads that check whether stores are in use, which may take seconds each.
_CHECK_THREADS = 16
#: Bytes up to which channels are copied together.
GROUP_BYTES = 64 << 20


@dataclass(frozen=True)
class SalvagedStore:
    root: str
    name: str  #: name of the new store
    report: dict[str, Any]  #: as in the local verb
    kept: bool = False  #: an earlier run finished the new store

    @property
    def clean(self) -> bool:
        return self.exit_code == ExitCode.CLEAN

    @property
    def is_wrong(self) -> bool:
        """True if the new store is not fit for a server."""
        check = self.report["check"]
        return check is not None and not (check["clean"] and check["starts"])

    @property
    def exit_code(self) -> ExitCode:
        if self.is_wrong:
            return ExitCode.FINDINGS
        if not self.report["summary"]["lossy"]:
            return ExitCode.CLEAN
        return ExitCode.LOSS if self.report["written"] else ExitCode.FINDINGS

    def as_json(self) -> dict[str, Any]:
        return {"store": self.root, "name": self.name, "kept": self.kept, **self.report}


@dataclass
class SalvageJobResult(JobResult[SalvagedStore]):
    codes: list[int] = field(default_factory=list)  #: exit code of each failure
    #: Stores that seem to be in use, if the run ignores that.
    warnings: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return self.exit_code == ExitCode.CLEAN

    @property
    def exit_code(self) -> ExitCode:
        return worst([*self.codes, *(store.exit_code for store in self.stores)])


def run_salvage(work: Work, job: SalvageJob, phase: Phase) -> SalvageJobResult:
    """Salvages stores in tasks. Finished stores stay if the run fails."""
    run = _SalvageRun(work, job, phase)
    for group in batches(job.stores):
        run.batch(group)
    order = {work.root: number for number, work in enumerate(job.stores)}
    run.result.stores.sort(key=lambda store: order[store.root])
    if not run.result.stores:
        # If nothing was done at all, an unreadable store is more than a finding.
        run.result.codes = run.worst or [ExitCode.UNREACHABLE] * bool(job.failed)
    return run.result


@dataclass
class _StoreSalvage:
    """A store from planning to the end."""

    work: StoreWork
    plan: SalvagePlan
    request: Request  #: options of its salvage
    there: bool = False  #: the new store is already in its place
    build: Build | None = None  #: set while it is being written
    waiting: int = 0  #: groups of channels that tasks have yet to write
    failure: StantoolsError | None = None  #: why the salvage was abandoned
    result: SalvageResult | None = None
    _out: Path = Path()
    _stack: ExitStack = field(default_factory=ExitStack)

    def begin(self, out: Path, extra_bytes: int) -> None:
        self._out = out
        self.build = self._stack.enter_context(building(self.plan, out, extra_bytes=extra_bytes, group=GROUP_BYTES))
        self.waiting = len(self.build.items)

    def finish(self) -> None:
        assert self.build is not None
        try:
            if self.failure:
                raise self.failure
            self.build.complete()
        except BaseException as error:
            self.abandon(error)
            raise
        self._stack.close()
        self.result = result_of(self.plan, self._out)

    def abandon(self, error: BaseException) -> None:
        self._stack.__exit__(type(error), error, error.__traceback__)


class _SalvageRun:
    def __init__(self, work: Work, job: SalvageJob, phase: Phase) -> None:
        self._work = work
        self._job = job
        self._phase = phase
        self._reports = Reports(job.out) if job.out is not None else None
        self.result = SalvageJobResult(failed=list(job.failed), codes=[ExitCode.FINDINGS] * len(job.failed))
        self.worst: list[int] = []

    def batch(self, stores: Sequence[StoreWork]) -> None:
        waiting = [(work, request) for work in stores if (request := self._request(work)) is not None]
        self._streams([each for each in waiting if each[0].found.streams])
        waiting = [each for each in waiting if not each[0].found.streams]
        planned = self._plan([work for work, _ in waiting], [request for _, request in waiting])
        if self._job.out is None:
            for each in planned:
                self._done(each.work, each.request, report(each.plan, None, None))
            return
        self._write([each for each in planned if not each.there])
        written = [each for each in planned if each.result is not None]
        for each, check in zip(written, self._check(written), strict=True):
            self._done(each.work, each.request, report(each.plan, each.result, check), kept=each.there)

    def _streams(self, waiting: Sequence[tuple[StoreWork, Request]]) -> None:
        """Salvages JetStream directories, each in one task."""
        if not waiting:
            return
        free = self._unused_stores([work for work, _ in waiting])
        waiting, job = [waiting[number] for number in free], self._job
        directories = [_StreamsSalvage(work, job) for work, _ in waiting]
        plans: dict[int, StreamSalvagePlan] = {}
        with self._phase("plan", sum(work.size for work, _ in waiting)) as shown:
            inside = self._work.inside(shown.advance)
            for number, planned in self._work.map(lambda each: each.plan(inside), directories):
                if isinstance(planned, WorkFailure):
                    self._fail(waiting[number][0], planned.error())
                else:
                    plans[number] = planned
        with self._phase("write", sum(each.bytes for each in plans.values())) as shown:
            inside, numbers = self._work.inside(shown.advance), sorted(plans)
            items = [(directories[number], plans[number]) for number in numbers]
            for place, written in self._work.map(lambda item: item[0].write(item[1], inside), items):
                work, request = waiting[numbers[place]]
                if isinstance(written, WorkFailure):
                    self._fail(work, written.error(), writing=True)
                else:
                    self._done(work, request, written)

    def _request(self, work: StoreWork) -> Request | None:
        """Returns the request of a store; None if it is done or impossible."""
        request = self._job.request(work)
        if self._job.out is None or self._reports is None:
            return request
        kept = self._reports.find(work.root, request)
        if kept is not None:
            clear_leftovers(self._job.out / work.name)
            self.result.stores.append(SalvagedStore(work.root, work.name, kept, kept=True))
            return None
        try:
            check_target(work.root, self._job.out / work.name)
        except StantoolsError as error:
            self._fail(work, error, writing=True)
            return None
        return request

    def _plan(self, stores: Sequence[StoreWork], requests: Sequence[Request]) -> list[_StoreSalvage]:
        """Surveys stores; returns plans of the ones that can be salvaged."""
        free = self._unused_stores(stores)
        channels = [stores[number].channels for number in free]
        with self._phase("plan", sum(item.size for items in channels for item in items)) as shown:
            surveys = survey_stores(self._work, channels, progress=shown.advance)
        planned = []
        for number, survey in zip(free, surveys, strict=True):
            work = stores[number]
            try:
                if survey.failure:
                    raise survey.failure.error()
                store = work.found.opened().store()
                plan = plan_salvage(store, self._job.options, surveys=survey.channels)
            except (StantoolsError, OSError) as error:
                self._fail(work, error)
                continue
            planned.append(self._place(_StoreSalvage(work, plan, requests[number])))
        return [each for each in planned if each is not None]

    def _place(self, each: _StoreSalvage) -> _StoreSalvage | None:
        """Checks for a store already in its place: a killed run may not have recorded it."""
        out = self._job.out
        if out is None:
            return each
        target = out / each.work.name
        try:
            if check_target(each.work.root, target):
                check_same(each.plan, target)
                clear_leftovers(target)
                each.there = True
                each.result = result_of(each.plan, target)
        except StantoolsError as error:
            self._fail(each.work, error, writing=True)
            return None
        return each

    def _unused_stores(self, stores: Sequence[StoreWork]) -> list[int]:
        """Returns the positions of the stores that no server is using."""
        force = self._job.force or self._job.out is None

        def look(work: StoreWork) -> list[StoreUse]:
            source = work.found.source
            copied = source and (source.archived or source.sql)
            return [] if copied else check_not_in_use(Path(work.ref.root), force=force)

        free = []
        for number, uses in ThreadWork(_CHECK_THREADS).map(look, stores):
            if isinstance(uses, WorkFailure):
                self._fail(stores[number], uses.error())
                continue
            free.append(number)
            self.result.warnings += [use.warning for use in uses]
        return free

    def _write(self, planned: Sequence[_StoreSalvage]) -> None:
        """Writes stores; each moves to its place as soon as it is whole."""
        try:
            begun = self._begin(planned)
            items: list[CopyItem] = []
            owners: list[tuple[_StoreSalvage, int]] = []
            for each in begun:
                assert each.build is not None
                owners += [(each, number) for number in range(len(each.build.items))]
                items += each.build.items
                if not each.build.items:
                    self._finish(each)
            with self._phase("write", sum(item.size for item in items)) as shown:
                for place, copied in self._work.map(copy_channels, items, cost=lambda item: item.cost):
                    each, number = owners[place]
                    assert each.build is not None
                    each.waiting -= 1
                    shown.advance(items[place].size)
                    if isinstance(copied, WorkFailure):
                        each.failure = each.failure or copied.error()
                    else:
                        each.build.take(number, copied)
                    # Only after all its tasks have ended: they would write into the directory being removed.
                    if not each.waiting:
                        self._finish(each)
        except BaseException as error:
            for each in planned:
                each.abandon(error)
            raise

    def _begin(self, planned: Sequence[_StoreSalvage]) -> list[_StoreSalvage]:
        assert self._job.out is not None
        begun, besides = [], 0
        for each in planned:
            try:
                each.begin(self._job.out / each.work.name, besides)
            except (StantoolsError, OSError) as error:
                self._fail(each.work, error, writing=True)
                continue
            besides += each.plan.bytes
            begun.append(each)
        return begun

    def _finish(self, each: _StoreSalvage) -> None:
        try:
            each.finish()
        except (StantoolsError, OSError) as error:
            self._fail(each.work, error, writing=True)

    def _check(self, written: Sequence[_StoreSalvage]) -> list[dict[str, Any]]:
        """Verifies new stores and forecasts their start, in tasks."""
        assert self._job.out is not None
        stores = [
            _NewStore(
                self._job.out / each.work.name,
                each.work.ref.polynomial,
                each.plan.server.cluster_id.decode("utf-8", "surrogateescape"),
            )
            for each in written
        ]
        plan = plan_verify(TableOptions(()), [store.found() for store in stores])
        with self._phase("verify", plan.bytes) as shown:
            verified = run_verify(self._work, plan, progress=shown.advance)
            starts: dict[int, WorkFailure | NewStoreStart] = dict(self._work.map(_NewStore.start, stores))
        return [
            _check_report(verdict, verified.failed, starts[number]) for number, verdict in enumerate(verified.stores)
        ]

    def _done(self, work: StoreWork, request: Request, document: dict[str, Any], *, kept: bool = False) -> None:
        self.result.stores.append(SalvagedStore(work.root, work.name, document, kept=kept))
        if self._reports is not None:
            try:
                self._reports.keep(work.root, work.name, request, document)
            except StantoolsError as error:
                # The store exists; the next run checks it again.
                self._fail(work, error, writing=True)

    def _fail(self, work: StoreWork, error: StantoolsError | OSError, *, writing: bool = False) -> None:
        if isinstance(error, OSError):
            error = StantoolsError(f"{error.filename or work.root}: {error.strerror or error}")
        self.result.failed.append(FailedRead.of(work.root, error))
        code = error.exit_code
        self.worst.append(code)
        unread = not writing and code != ExitCode.REFUSED
        self.result.codes.append(ExitCode.FINDINGS if unread else code)


@dataclass(frozen=True)
class _StreamsSalvage:
    """A JetStream directory among several stores."""

    work: StoreWork
    job: SalvageJob

    @property
    def _out(self) -> Path | None:
        return None if self.job.out is None else self.job.out / self.work.name

    def plan(self, progress: Progress | None) -> StreamSalvagePlan:
        source = self.work.found.streams
        assert source
        return plan_stream_salvage(source, self.job.stream_options, self.job.options.patterns, progress)

    def write(self, plan: StreamSalvagePlan, progress: Progress | None) -> dict[str, Any]:
        """Writes the plan, unless nothing is to be written; returns the report."""
        result: StreamSalvageResult | None = None
        if self._out is not None:
            result = write_streams(plan, self._out, self.job.stream_options.to, progress)
        return self._report(plan, result)

    def _report(self, plan: StreamSalvagePlan, result: StreamSalvageResult | None) -> dict[str, Any]:
        """Returns the json of a salvage of this directory alone, with the members that reports of all stores have."""
        streams = plan.streams
        return {
            "kind": "jetstream",
            **plan.as_json(),
            "written": result is not None,
            "out": str(result.path) if result else None,
            "summary": {
                "channels": len(streams),
                "messages": plan.messages,
                "bytes": plan.bytes,
                "filled": 0,
                "subscriptions": sum(len(each.consumers) for each in streams),
                "missing_before": sum(each.lost.count() for each in streams),
                "lost_by_this_step": 0,
                "lossy": plan.lossy,
            },
            "dropped": [
                {
                    "fate": "lost",
                    "file": each.full_name,
                    "offset": None,
                    "length": 0,
                    "reason": "nowhere intact",
                    "sequences": each.lost.as_json(),
                    "loss": True,
                }
                for each in streams
                if each.lost
            ],
            "check": {"clean": result.good, "starts": True, "problems": result.problems} if result else None,
        }


@dataclass(frozen=True)
class _NewStore:
    root: Path
    polynomial: int
    cluster_id: str

    def found(self) -> FoundStore:
        """Returns it as `tables.discovery` finds it."""
        place = LocalPlace()
        entries = tuple(place.entries(str(self.root)))
        names = [entry.name for entry in entries if entry.directory and not entry.link]
        return FoundStore(StoreRef(str(self.root), self.polynomial), place, entries, names)

    def start(self) -> NewStoreStart:
        return check_start(open_datastore(self.root, Crc(self.polynomial)), self.cluster_id)


def _check_report(
    verdict: StoreVerdict, failed: Sequence[FailedRead], start: WorkFailure | NewStoreStart
) -> dict[str, Any]:
    """Joins the findings about a new store; an unreadable one is the worst case."""
    unread = [each.message for each in failed if f"{each.path}/".startswith(f"{verdict.root}/")]
    if isinstance(start, WorkFailure):
        unread.append(start.message)
        start = NewStoreStart(works=False)
    said = NewStoreCheck(verdict.verdict.findings, verdict.verdict.clean and not unread, start).as_json()
    return {**said, "error": unread[0]} if unread else said
