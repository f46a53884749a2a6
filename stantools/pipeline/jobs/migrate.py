"""Many stores into JetStream: a task plans each store; a task restores or publishes each stream and proves it.

The driver has the plans, the journals and the user's consent. A task gets the plan of one stream with the offsets of
its messages in the store's files, so that it need not search them again; it does the same as `stantools migrate` for
that stream, and returns its result with the steps for the journal.

A repeated task finds the work of the first attempt as the next run of `stantools migrate` does: a restored stream
exists or not, a published one is continued. The same holds for a whole job that was killed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stantools.errors import ExitCode, RefusedError, StantoolsError, UsageError
from stantools.migration.journal import (
    UNWATCHED,
    Journal,
    JournalObserver,
    StepLog,
    StreamOutcome,
    StreamResult,
    StreamState,
    remembered_streams,
)
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import Remark, StreamPlan
from stantools.migration.plan.planfile import read_plan, write_plan
from stantools.migration.prepared_stream import PreparedStream, estimated_bytes
from stantools.migration.targets.directories import BackupDirectory
from stantools.migration.targets.server_destination import ServerDestination
from stantools.migration.targets.stream_load import ApplyOptions
from stantools.migration.targets.target import Destination
from stantools.migration.workflow import exit_code, refuse_problems
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.stream_names import digits
from stantools.notation import counted
from stantools.pipeline.jobs.migrateplans import PlannedStore, Sources, find_obstacles, prepared_stream
from stantools.pipeline.jobs.stores import worst
from stantools.pipeline.spark.tasks import SparkWork
from stantools.pipeline.tables.model import FailedRead
from stantools.recovery.salvage.model import ChannelSalvage
from stantools.store.durable import writing
from stantools.work import Work, WorkFailure


@dataclass
class MigrateResult:
    #: The processed stores, each with the results of its streams.
    stores: list[tuple[PlannedStore, list[StreamResult]]] = field(default_factory=list)
    failed: list[FailedRead] = field(default_factory=list)  #: everything that could not be read
    changed: bool = False  #: the run was to change streams, not only to compare them

    @property
    def exit_code(self) -> ExitCode:
        codes = {exit_code(store.plan, streams, changed=self.changed) for store, streams in self.stores}
        if self.failed:
            codes.add(ExitCode.FINDINGS)
        return worst(codes)


@dataclass(frozen=True)
class StoresMigration:
    """The plans of many stores with their target, as `workflow.Migration` for one store."""

    stores: Sequence[PlannedStore]
    sources: Sources
    target: Destination  #: sent to the tasks
    options: ApplyOptions
    folder: Path  #: directory of the plan files and journals

    @property
    def messages(self) -> int:
        return sum(store.plan.messages for store in self.stores)

    @property
    def lossy(self) -> list[PlannedStore]:
        """Stores whose migration loses data."""
        return [store for store in self.stores if store.plan.lossy]

    @functools.cached_property
    def _files(self) -> dict[str, Path]:
        """The plan file of each store; directories of equal name get digits of their paths."""
        names = [Path(store.root).name.lstrip(".-") or "store" for store in self.stores]
        files = {}
        for store, name in zip(self.stores, names, strict=True):
            apart = f"-{digits(store.root)}" if names.count(name) > 1 else ""
            files[store.root] = self.folder / f"{name}{apart}.migration.yaml"
        return files

    def problems(self) -> list[Remark]:
        """Returns the obstacles of all plans together, and other notes; raises `StantoolsError` if the target fails."""
        begun = {name: entry for file in self._files.values() for name, entry in remembered_streams(file).items()}
        return find_obstacles(self.stores, self.target, self.options, begun)

    def refuse(self, problems: Sequence[Remark], *, accept_loss: bool) -> None:
        """Raises `RefusedError` for an obstacle, or for loss without consent."""
        refuse_problems(problems)
        if (lossy := self.lossy) and not accept_loss:
            lost = sum(store.plan.lost for store in lossy)
            what = counted(lost, "message", "is/are") if lost else "something is"
            raise RefusedError(
                f"no stream was changed: {what} missing in {len(lossy)} of {counted(len(self.stores), 'store')}: "
                f"{lossy[0].root}",
                "--accept-loss migrates the intact messages; `stantools pipeline verify` lists the damage",
            )

    def keep_plans(self) -> None:
        """Writes the plans that do not exist yet; raises `RefusedError` if one exists and differs."""
        for store in self.stores:
            file = self._files[store.root]
            with writing(file.parent):
                file.parent.mkdir(parents=True, exist_ok=True)
            if store.restored:
                continue  # the plan of a restore is made anew; its journal suffices
            if not file.exists():
                write_plan(file, store.plan)
            elif read_plan(file).digest != store.plan.digest:
                raise RefusedError(
                    f"{file}: already exists, and differs from the plan that {store.root} needs now",
                    "finish that one with `stantools migrate apply`, or remove it; --plans names another directory",
                )

    def apply(self, work: Work, watch: JournalObserver) -> MigrateResult:
        """Applies the plans, one task per stream; `watch` learns of each finished stream."""
        there = self.target.stream_names() if isinstance(self.target, ServerDestination) else frozenset()
        with ExitStack() as stack:
            journals = {}
            for store in self.stores:
                journal = Journal(self._files[store.root], store.plan.digest, str(store.plan.target))
                journals[store.root] = stack.enter_context(journal)
            items = []
            for store in self.stores:
                journal = journals[store.root]
                for stream in store.plan.streams:
                    # Recorded before the task begins: its stream must be known as ours even if the task is lost.
                    if journal.state(stream.name) is None and stream.name not in there:
                        journal.note(stream.name, StreamState.STARTED, way=self.options.way)
                    items.append(_StreamTask.of(store, stream, journal.facts(stream.name)))
            options = replace(self.options, parallel=1)
            apply = functools.partial(_apply, target=self.target, sources=self.sources, options=options)
            return self._carry_out(work, apply, items, watch, lambda done: journals[done.root].take_over(done.steps))

    def verify(self, work: Work, watch: JournalObserver) -> MigrateResult:
        """Compares all streams with the stores, one task per stream."""
        items = []
        for store in self.stores:
            # Streams published wholly or in part, according to the journal.
            remembered = remembered_streams(self._files[store.root])
            for stream in store.plan.streams:
                noted = remembered.get(stream.name, {}).get("way")
                published = self.options.way is LoadMethod.PUBLISH or noted == LoadMethod.PUBLISH
                items.append(_StreamTask.of(store, stream, {"way": LoadMethod.PUBLISH} if published else {}))
        verify = functools.partial(_verify, target=self.target, sources=self.sources)
        return self._carry_out(work, verify, items, watch, None)

    def _carry_out(
        self,
        work: Work,
        function: Callable[[_StreamTask], _JobStreamOutcome],
        items: Sequence[_StreamTask],
        watch: JournalObserver,
        on_outcome: Callable[[_JobStreamOutcome], object] | None,
    ) -> MigrateResult:
        """Runs a function for every stream; joins the results by store."""
        results: dict[int, StreamResult] = {}
        for number, done in work.map(function, items, cost=lambda item: estimated_bytes(item.plan)):
            stream = items[number].plan
            if isinstance(done, WorkFailure):
                results[number] = StreamResult(stream.name, error=done.error())
            else:
                results[number] = done.result
                if on_outcome:
                    on_outcome(done)
            watch.advance(stream.name, stream.messages)
        ordered = (results[number] for number in range(len(items)))
        stores = [(store, [next(ordered) for _ in store.plan.streams]) for store in self.stores]
        return MigrateResult(stores, changed=on_outcome is not None)


@dataclass(frozen=True)
class _StreamTask:
    root: str
    plan: StreamPlan
    channels: tuple[ChannelSalvage, ...]
    polynomial: int
    steps: dict[str, Any]
    restored: PreparedStream | None = None  #: the stream itself, of a JetStream directory

    @classmethod
    def of(cls, store: PlannedStore, stream: StreamPlan, steps: dict[str, Any]) -> _StreamTask:
        restored = store.restored.get(stream.origin)
        channels = () if restored else tuple(store.channels_of(stream))
        return cls(store.root, stream, channels, store.polynomial, steps, restored)

    def prepared(self, sources: Sources) -> PreparedStream:
        return self.restored or prepared_stream(self.plan, self.channels, self.polynomial, sources.key())


@dataclass(frozen=True)
class _JobStreamOutcome:
    root: str
    result: StreamResult
    steps: tuple[dict[str, Any], ...] = ()


def _apply(item: _StreamTask, *, target: Destination, sources: Sources, options: ApplyOptions) -> _JobStreamOutcome:
    journal = StepLog({item.plan.name: item.steps} if item.steps else {})
    (result,) = target.apply([item.prepared(sources)], journal, options, UNWATCHED)
    return _JobStreamOutcome(item.root, _plain(result), tuple(journal.taken))


def _verify(item: _StreamTask, *, target: Destination, sources: Sources) -> _JobStreamOutcome:
    published = {item.plan.name} if item.steps else set()
    (result,) = target.verify([item.prepared(sources)], published, UNWATCHED, 1)
    return _JobStreamOutcome(item.root, _plain(result))


def _plain(result: StreamResult) -> StreamResult:
    """Returns a result whose error can be pickled."""
    problem = result.error
    if problem is None:
        return result
    plain = StantoolsError(problem.message, problem.remedy)
    plain.exit_code = problem.exit_code
    return replace(result, outcome=StreamOutcome.FAILED, error=plain)


def target_of_tasks(out: Path | None, connect_options: ConnectOptions) -> BackupDirectory | ServerDestination:
    """Returns a target that tasks on other machines, in other directories, reach as well.

    `out` is the directory of backups; None for a server. Raises `UsageError` if tasks could not reach the target.
    """
    if out is not None:
        return BackupDirectory(out)
    if connect_options.embedded:
        raise UsageError("tasks cannot reach --server embedded", "start one, and give its URL")
    return ServerDestination(connect_options.absolute())


def check_speculation(work: Work, method: LoadMethod) -> None:
    """Refuses to restore while Spark may run a task twice: two restores of a stream harm each other."""
    if not isinstance(work, SparkWork) or method is not LoadMethod.ARCHIVE:
        return
    if work.spark.conf.get("spark.speculation", "false") == "true":
        raise RefusedError(
            "spark.speculation is on: a stream could be restored by two tasks at the same time",
            "switch it off for this job: --conf spark.speculation=false; or publish: --via publish",
        )
