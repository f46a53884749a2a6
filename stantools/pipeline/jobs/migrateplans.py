"""Planning the migration of many stores: one task per store, and the obstacles of all plans together."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stantools.errors import ExitCode
from stantools.format.crc import Crc
from stantools.migration.plan.checks import find_encrypted, find_problems
from stantools.migration.plan.migration_plan import MigrationPlan, Remark, RemarkLevel, StreamPlan
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planner import make_plan
from stantools.migration.prepared_stream import PreparedStream
from stantools.migration.salvaged_streams import migration_of
from stantools.migration.source import ChannelSource, DecryptionKey, SourceOptions
from stantools.migration.stream_source import stream_source
from stantools.migration.targets.stream_load import ApplyOptions
from stantools.migration.targets.target import Destination
from stantools.migration.workflow import read_source, signs_of_use
from stantools.nats.stream_names import safe_name
from stantools.nats.subjects import SubjectOwners
from stantools.pipeline.tables.discovery import FoundStore
from stantools.pipeline.tables.model import FailedRead
from stantools.pipeline.tables.remote import is_remote
from stantools.pipeline.tables.table_options import TableOptions
from stantools.recovery.recovery_options import StreamSalvageOptions
from stantools.recovery.salvage.model import ChannelSalvage
from stantools.recovery.streams.stream_plan import plan_stream_salvage
from stantools.sources.source import Capability, Source
from stantools.store.serverinfo import refuse_0_1
from stantools.work import Work, WorkFailure

#: Placeholder for the store's name in the prefixes of streams and subjects.
STORE = "{store}"


@dataclass(frozen=True)
class Sources:
    #: Paths, polynomial, channels, and the place of the encryption key; also used by tasks.
    options: TableOptions
    generation: str = "split"  #: `split`, `newest` or a number
    archived: bool = False  #: include messages from `.bak` slices
    keep_encrypted: bool = False  #: keep stored payloads that cannot be decrypted

    def key(self) -> DecryptionKey:
        """Returns the key, looked up on this machine."""
        return DecryptionKey(self.options.key.key(), self.keep_encrypted)

    def source_options(self) -> SourceOptions:
        """Returns the options of a task for one store."""
        return SourceOptions(self.options.channels, self.generation, self.archived, self.keep_encrypted, workers=1)

    def unplanned(self, found: Sequence[FoundStore]) -> tuple[list[UnplannedStore], list[FailedRead]]:
        """Returns the stores to plan, and what cannot be migrated together with other stores."""
        stores, failed = [], []
        for store in found:
            root, loose, source = store.shown, store.loose is not None, store.source
            if source and (source.nodes or source.raft_groups):
                failed.append(FailedRead(root, f"{root}: is a clustered node, whose cluster is migrated whole", _NODES))
                continue
            if source and Capability.MIGRATION not in source.found.kind.capabilities:
                failed.append(FailedRead.of(root, source.found.refusal(Capability.MIGRATION)))
                continue
            if not store.streams and (loose or is_remote(store.ref.root)):
                what = "is a single slice or a directory of slices" if loose else "is not on a file system"
                failed.append(FailedRead(root, f"{root}: {what}; whole stores are migrated", _WHOLE))
                continue
            stores.append(UnplannedStore(store, store.data_size(self.options.channels)))
        return stores, failed


_NODES = "name all nodes of the cluster, and nothing else: stantools migrate NODE..."
_WHOLE = "copy it to a file system that all workers see; stantools salvage makes a store of slices"


@dataclass(frozen=True)
class UnplannedStore:
    """A store to plan, and the bytes of its selected channels."""

    found: FoundStore
    size: int

    @property
    def root(self) -> str:
        return self.found.shown


@dataclass(frozen=True)
class PlannedStore:
    root: str
    plan: MigrationPlan
    channels: Mapping[str, ChannelSalvage]  #: content of its channels by name
    polynomial: int  #: the store's CRC polynomial
    notes: tuple[Remark, ...] = ()  #: further notes of the planning task
    #: Of a JetStream directory: its streams by account and name, which are restored.
    restored: Mapping[str, PreparedStream] = field(default_factory=dict)

    @property
    def streams(self) -> list[PreparedStream]:
        """All streams with their messages, which are not read yet."""
        if self.restored:
            return [self.restored[each.origin] for each in self.plan.streams]
        return [prepared_stream(each, self.channels_of(each), self.polynomial) for each in self.plan.streams]

    def channels_of(self, stream: StreamPlan) -> list[ChannelSalvage]:
        return [self.channels[part.channel] for part in stream.parts]


def plan_stores(
    work: Work,
    stores: Sequence[UnplannedStore],
    sources: Sources,
    plan_options: PlanOptions,
    *,
    progress: Callable[[int], object] | None = None,
) -> tuple[list[PlannedStore], list[FailedRead]]:
    """Plans stores in tasks and returns the plans in order, and the failures. Changes nothing.

    `{store}` in the prefixes of `planning` stands for the name of each store's directory.
    """
    failed = []
    plan = functools.partial(_plan, sources=sources, plan_options=plan_options)
    planned: dict[int, PlannedStore] = {}
    for number, result in work.map(plan, stores, cost=lambda store: store.size):
        if progress:
            progress(stores[number].size)
        if isinstance(result, WorkFailure):
            if result.exit_code == ExitCode.USAGE:
                raise result.error()
            failed.append(FailedRead.of(stores[number].root, result))
        else:
            planned[number] = result
    return [planned[number] for number in sorted(planned)], failed


def find_obstacles(
    stores: Sequence[PlannedStore], target: Destination, options: ApplyOptions, begun: Mapping[str, Any]
) -> list[Remark]:
    """Returns the obstacles of all plans together, and other notes.

    `begun` holds the journals' entries by stream. Raises `StantoolsError` if the target fails.
    """
    notes = [
        note for store in stores for note in (*store.notes, *(() if store.restored else find_problems(store.plan)))
    ]
    notes += _conflicts(stores)
    if not any(note.level is RemarkLevel.PROBLEM for note in notes):
        notes += target.problems([stream for store in stores for stream in store.streams], options, begun)
    return [note for note in notes if note.level is not RemarkLevel.INFO]


def prepared_stream(
    stream: StreamPlan, channels: Sequence[ChannelSalvage], polynomial: int, key: DecryptionKey | None = None
) -> PreparedStream:
    """Joins the plan of a stream with its channels; the files of the store are not read yet."""
    crc = Crc(polynomial)
    parts = [
        (ChannelSource(channel, crc, key), part.subject.encode("utf-8", "surrogateescape"))
        for channel, part in zip(channels, stream.parts, strict=True)
    ]
    return PreparedStream(stream, stream_source(parts))


def _plan(item: UnplannedStore, *, sources: Sources, plan_options: PlanOptions) -> PlannedStore:
    if streams := item.found.streams:
        return _plan_streams(item, streams, sources, plan_options)
    opened = item.found.opened()
    store = replace(opened.store(), key=sources.options.key.key())
    refuse_0_1(store)
    notes = [] if opened.archived or opened.sql else signs_of_use(store.path)
    source = read_source(store, sources.source_options())
    name = safe_name(item.found.name)
    plan_options = replace(
        plan_options,
        stream_prefix=plan_options.stream_prefix.replace(STORE, name),
        subject_prefix=plan_options.subject_prefix.replace(STORE, name),
    )
    plan = make_plan(source, plan_options, plan_options.target.version)
    notes += [replace(note, about=f"{item.root}/{note.about}") for note in find_encrypted(plan, source)]
    return PlannedStore(
        item.root,
        plan,
        {os.fsdecode(channel.name): channel for channel in source.plan.channels},
        item.found.ref.polynomial,
        tuple(notes),
    )


def _plan_streams(item: UnplannedStore, source: Source, sources: Sources, plan_options: PlanOptions) -> PlannedStore:
    salvage = plan_stream_salvage(
        source, StreamSalvageOptions(replicas=plan_options.replicas), sources.options.channels
    )
    plan, inputs = migration_of(salvage, plan_options.target)
    notes = [] if source.archived else signs_of_use(source.place)
    restored = {each.plan.origin: each for each in inputs}
    return PlannedStore(item.root, plan, {}, item.found.ref.polynomial, tuple(notes), restored)


def _conflicts(stores: Sequence[PlannedStore]) -> Iterator[Remark]:
    """Yields conflicts: streams of two stores with the same name, or with overlapping subjects."""
    names: dict[str, str] = {}
    taken = SubjectOwners()
    for store in stores:
        for stream in store.plan.streams:
            other = names.setdefault(stream.name.casefold(), store.root)
            if other != store.root:
                yield _conflict(store, f"its stream {stream.name} is also planned for {other}")
                continue
            for subject in stream.subjects:
                others = [root for _, root in taken.add(subject, store.root) if root != store.root]
                if others:
                    yield _conflict(store, f"its subject {subject} is also planned for {others[0]}")


def _conflict(store: PlannedStore, text: str) -> Remark:
    remedy = f"--stream-prefix '{STORE}-' --subject-prefix '{STORE}' puts the name of each store in front"
    if store.restored:
        remedy = f"streams keep their names: restore them into another server or account; of channels, {remedy}"
    return Remark(RemarkLevel.PROBLEM, store.root, text, remedy)
