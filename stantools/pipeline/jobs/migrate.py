"""Many stores into JetStream: each planned by a task, then every stream restored, or published, and proven by a task.

The driver has the plans, the journals and the consent of the user. A task gets what was planned for one stream, with
the places of its messages in the files of its store, so that it need not look for them again; it does what
`stantools migrate` does with that stream, and sends back what became of it with the steps for the journal.

A task that is repeated finds what the first attempt has done in the same way as the next run of `stantools migrate`
does: a restored stream is there or is not, a published one is gone on with. So is a whole job that was killed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.journal import UNWATCHED, Journal, Outcome, Steps, StreamResult, StreamState, Watch
from stantools.migration.plan.model import StreamPlan, Way
from stantools.migration.prepared import PreparedStream, estimated_bytes
from stantools.migration.targets.loading import ApplyOptions
from stantools.migration.targets.target import Destination
from stantools.pipeline.jobs.migrateplans import PlannedStore, Sources, prepared_stream
from stantools.pipeline.jobs.outcome import Failed
from stantools.recovery.salvage.model import ChannelPlan
from stantools.work import Failure, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class MigrateResult:
    """What became of all stores.

    Attributes:
        stores: The stores that were worked on, each with the results of its streams.
        failed: What could not be read.
    """

    stores: list[tuple[PlannedStore, list[StreamResult]]] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


def apply_stores(
    work: Work,
    stores: Sequence[PlannedStore],
    journals: Mapping[str, Journal],
    target: Destination,
    sources: Sources,
    options: ApplyOptions,
    *,
    there: frozenset[str] = frozenset(),
    watch: Watch = UNWATCHED,
) -> list[tuple[PlannedStore, list[StreamResult]]]:
    """Makes all streams what the plans say, a task each.

    Args:
        work: Runs the tasks.
        stores: The stores.
        journals: By store; each has steps added as streams are done.
        target: Where to; sent to the tasks.
        sources: How stores are read.
        options: How streams are made.
        there: Streams that were on the target before.
        watch: Told the streams that are done.

    Raises:
        StantoolsError: Spark cannot do it.
    """
    for store in stores:
        journal = journals[store.root]
        for stream in store.plan.streams:
            # Noted here, before anything is begun there: what a task that is lost has left must be known as ours.
            if journal.state(stream.name) is None and stream.name not in there:
                journal.note(stream.name, StreamState.STARTED, way=options.way)

    def steps(store: PlannedStore, stream: StreamPlan) -> dict[str, Any]:
        return journals[store.root].facts(stream.name)

    apply = functools.partial(_apply, target=target, sources=sources, options=replace(options, parallel=1))
    return _streams(work, stores, apply, steps, lambda root: journals[root].take_over, watch)


def verify_stores(
    work: Work,
    stores: Sequence[PlannedStore],
    target: Destination,
    sources: Sources,
    published: Callable[[PlannedStore, StreamPlan], bool],
    *,
    watch: Watch = UNWATCHED,
) -> list[tuple[PlannedStore, list[StreamResult]]]:
    """Compares all streams with the stores, a task each; `published` tells which were published, wholly or in part."""

    def steps(store: PlannedStore, stream: StreamPlan) -> dict[str, Any]:
        return {"way": Way.PUBLISH} if published(store, stream) else {}

    compare = functools.partial(_verify, target=target, sources=sources)
    return _streams(work, stores, compare, steps, lambda _: lambda _entries: None, watch)


@dataclass(frozen=True)
class _Stream:
    """A stream to make, or to compare."""

    root: str
    plan: StreamPlan
    channels: tuple[ChannelPlan, ...]
    polynomial: int
    steps: dict[str, Any]

    def prepared(self, sources: Sources) -> PreparedStream:
        return prepared_stream(self.plan, self.channels, self.polynomial, sources.key())


@dataclass(frozen=True)
class _Done:
    """What became of a stream, with the steps that were taken."""

    result: StreamResult
    taken: tuple[dict[str, Any], ...] = ()


def _streams(
    work: Work,
    stores: Sequence[PlannedStore],
    function: Callable[[_Stream], _Done],
    steps: Callable[[PlannedStore, StreamPlan], dict[str, Any]],
    remember: Callable[[str], Callable[[Sequence[dict[str, Any]]], None]],
    watch: Watch,
) -> list[tuple[PlannedStore, list[StreamResult]]]:
    """Does something with every stream, and puts the results together by store."""
    owners = [(number, stream) for number, store in enumerate(stores) for stream in store.plan.streams]
    items = [
        _Stream(
            store.root,
            stream,
            tuple(store.channels[part.channel] for part in stream.parts),
            store.polynomial,
            steps(store, stream),
        )
        for store in stores
        for stream in store.plan.streams
    ]
    results: dict[int, StreamResult] = {}
    for number, done in work.map(function, items, cost=lambda item: estimated_bytes(item.plan)):
        stream = owners[number][1]
        if isinstance(done, Failure):
            results[number] = StreamResult(stream.name, error=done.error())
        else:
            results[number] = done.result
            remember(items[number].root)(done.taken)
        watch.advance(stream.name, stream.messages)
    listed: list[tuple[PlannedStore, list[StreamResult]]] = [(store, []) for store in stores]
    for number, (owner, _) in enumerate(owners):
        listed[owner][1].append(results[number])
    return listed


def _apply(item: _Stream, *, target: Destination, sources: Sources, options: ApplyOptions) -> _Done:
    """In a task: makes one stream."""
    journal = Steps({item.plan.name: item.steps} if item.steps else {})
    (result,) = target.apply([item.prepared(sources)], journal, options, UNWATCHED)
    return _Done(_plain(result), tuple(journal.taken))


def _verify(item: _Stream, *, target: Destination, sources: Sources) -> _Done:
    """In a task: compares one stream."""
    published = {item.plan.name} if item.steps else set()
    (result,) = target.verify([item.prepared(sources)], published, UNWATCHED, 1)
    return _Done(_plain(result))


def _plain(result: StreamResult) -> StreamResult:
    """Returns a result whose error can be pickled, whatever kind it was of."""
    problem = result.error
    if problem is None:
        return result
    plain = StantoolsError(problem.message, problem.remedy)
    plain.exit_code = problem.exit_code
    return replace(result, outcome=Outcome.FAILED, error=plain)


def check_speculation(spark: SparkSession, way: Way) -> None:
    """Refuses to restore where Spark runs tasks twice at the same time: two restores of a stream harm each other.

    Raises:
        RefusedError: It would be so.
    """
    if way is Way.ARCHIVE and spark.conf.get("spark.speculation", "false") == "true":
        raise RefusedError(
            "spark.speculation is on: a stream could be restored by two tasks at the same time",
            "switch it off for this job: --conf spark.speculation=false; or publish: --via publish",
        )
