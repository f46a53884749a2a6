"""A store as the source of a migration: its channels, and their messages in batches.

It takes the messages that `recovery.salvage` would take: every intact one, in order, in whatever file. So a damaged
store is a source like any other; its losses are known in advance.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice

from stantools.format.crc import Crc
from stantools.format.encryption import master_key, may_be_encrypted
from stantools.format.envelope import Buffer
from stantools.format.message_batch import MessageBatch
from stantools.inspection.survey import ChannelSurvey
from stantools.migration.batches import BATCH_BYTES, MAX_SEQUENCE, BatchFinisher, StepReader
from stantools.progress import Progress
from stantools.recovery.merge import plan_merge
from stantools.recovery.recovery_options import MergeOptions
from stantools.recovery.salvage import SalvageOptions, SalvagePlan, plan_salvage
from stantools.recovery.salvage.model import SPLIT, ChannelSalvage, DroppedData, DropReason, RecordCopy, Step
from stantools.store.directory import Datastore, subject_matches
from stantools.store.nodes import NodeFiles
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions
from stantools.store.slice_reader import BATCH_ROWS
from stantools.store.sublog import StoredSubscription

#: placeholder for a lost cluster id: a migration needs none, so that a lost server.dat does not matter
_NO_CLUSTER = "lost"

#: sample of a channel: places, and messages from each
_SAMPLE_PLACES = 8
_SAMPLE_ROWS = 32
_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True)
class DecryptionKey:
    key: bytes | None = None  #: the encryption key given to the server; None: payloads stay as stored
    keep_sealed: bool = False  #: a payload that cannot be decrypted stays as stored


class ChannelSource:
    def __init__(self, plan: ChannelSalvage, crc: Crc, key: DecryptionKey | None = None) -> None:
        self._plan = plan
        self._crc = crc
        self._key = key or DecryptionKey()

    def __repr__(self) -> str:
        return f"ChannelSource({self.name!r}, {self.count} messages, {self.first} to {self.last})"

    @property
    def name(self) -> str:
        return os.fsdecode(self._plan.name)

    @property
    def raw_name(self) -> bytes:
        return self._plan.name

    @property
    def origin(self) -> str:
        """Description, if it is not simply the channel of that name."""
        return self._plan.origin

    @property
    def sequences(self) -> Ranges:
        """Sequences of intact messages."""
        return self._plan.sequences

    @property
    def lost(self) -> Ranges:
        """Sequences of damaged or lost messages, as far as known."""
        return self._plan.missing - self._plan.skipped

    @property
    def subscriptions(self) -> Sequence[StoredSubscription]:
        """Subscriptions as salvage plans them, with positions up to `last`."""
        return self._plan.subscriptions

    @cached_property
    def count(self) -> int:
        """Number of intact messages."""
        return self._plan.sequences.count()

    @property
    def first(self) -> int:
        """First intact sequence, 0 without messages."""
        return self._plan.sequences.first

    @property
    def last(self) -> int:
        """Last sequence, even if the message is lost and only an index names it; 0 if there is none."""
        return self._plan.last_known

    @cached_property
    def first_timestamp(self) -> int:
        """Nanoseconds since 1970, 0 without messages."""
        step = self._plan.steps[0] if self._plan.steps else None
        if isinstance(step, RecordCopy) and step.run.first == self.first:
            return step.run.first_timestamp
        return self._timestamp(self.first)

    @cached_property
    def last_timestamp(self) -> int:
        """Nanoseconds since 1970, 0 without messages."""
        step, last = self._plan.steps[-1] if self._plan.steps else None, self.sequences.last
        if isinstance(step, RecordCopy) and step.run.last == last:
            return step.run.last_timestamp
        return self._timestamp(last)

    @property
    def payload_bytes(self) -> int:
        """Bytes of stored payloads; approximate if only a part of a step is taken."""
        return sum(step.payload for step in self._plan.steps)

    @property
    def largest_payload(self) -> int:
        """Bytes of the largest stored payload, possibly one that is not taken."""
        return max((step.largest for step in self._plan.steps), default=0)

    @cached_property
    def encrypted(self) -> bool:
        """Payloads may be encrypted, judged by a sample."""
        return may_be_encrypted(chain.from_iterable(map(_stored, self._sample())))

    def check_key(self) -> None:
        """Decrypts a sample of the messages, if there is a key; raises DecryptError for a wrong one."""
        finisher = self._finisher()
        for batch in self._sample():
            finisher.finish(batch)

    def read(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        subject: bytes | None = None,
        batch_bytes: int = BATCH_BYTES,
        batch_rows: int = BATCH_ROWS,
        finish: bool = True,
    ) -> Iterator[MessageBatch]:
        """Yields the messages with sequences in (after, until], in rising order; thread-safe and repeatable.

        The default `subject` is the channel's name. `batch_bytes` counts records; a longer record has its own batch.
        Without `finish` messages stay as stored: encrypted, with any reply, CRCs unchecked. A batch is valid until
        the next one; its payloads are those of the mapped file unless decrypted. Raises StoreUnreadableError if a
        file has changed since it was planned, and DecryptError.
        """
        channel, crc = self.raw_name, self._crc if finish else self._crc.unchecked
        subject = channel if subject is None else subject
        reader = StepReader(channel, subject, crc, batch_bytes=batch_bytes, batch_rows=batch_rows)
        finisher = self._finisher()
        until = MAX_SEQUENCE if until is None else until
        for step in self._plan.steps:
            for batch in reader.read(step, after, until):
                yield finisher.finish(batch) if finish else batch

    def with_key(self, key: DecryptionKey) -> ChannelSource:
        """Returns the channel with another key; payloads stay as stored without one."""
        return ChannelSource(self._plan, self._crc, key)

    def cuts(self, size: int) -> list[int]:
        """Returns rising sequences that divide the channel into parts of about `size` bytes; [] for a small channel.

        A part is read from one of them, as `after`, to the next, as `until`.
        """
        cuts: list[int] = []
        total = begin = 0
        for step in self._plan.steps:
            for sequence, behind in _ends(step):
                if total + behind - begin >= size and sequence < self.sequences.last:
                    cuts.append(sequence)
                    begin = total + behind
            total += behind
        return cuts

    def narrowed(self, sequences: Ranges) -> ChannelSource:
        """Returns the channel with only these sequences; `last` stays."""
        steps = [step.narrowed(sequences) for step in self._plan.steps if step.sequences & sequences]
        plan = replace(self._plan, steps=steps, sequences=self._plan.sequences & sequences)
        return ChannelSource(plan, self._crc, self._key)

    def up_to(self, last: int) -> ChannelSource:
        """Returns the channel with an earlier last sequence."""
        known = Ranges.of([(1, last)])
        narrowed = self.narrowed(self.sequences & known)
        plan = replace(narrowed._plan, missing=self._plan.missing & known, last_known=min(self.last, last))
        return ChannelSource(plan, self._crc, self._key)

    def _finisher(self) -> BatchFinisher:
        return BatchFinisher(self._plan.stored_name, self._key.key, keep_sealed=self._key.keep_sealed)

    def _timestamp(self, sequence: int) -> int:
        for batch in self.read(after=sequence - 1, until=sequence, finish=False) if sequence else ():
            return int(batch.timestamp[0])
        return 0

    def _sample(self) -> Iterator[MessageBatch]:
        places: list[int] = []  # sequences at which a reader can start directly
        for step in self._plan.steps:
            first, last = step.sequences.first, step.sequences.last
            marks = step.run.marks if isinstance(step, RecordCopy) else ()
            places += (first, *(sequence for sequence, _ in marks if first < sequence <= last))
        chosen = {places[number * len(places) // _SAMPLE_PLACES] for number in range(_SAMPLE_PLACES) if places}
        for place in sorted(chosen):
            sample = self.read(after=place - 1, batch_bytes=_SAMPLE_BYTES, batch_rows=_SAMPLE_ROWS, finish=False)
            yield from islice(sample, 1)


def _stored(batch: MessageBatch) -> Iterator[tuple[int, Buffer]]:
    rows = zip(batch.sequence.tolist(), batch.data_start.tolist(), batch.data_size.tolist(), strict=True)
    yield from ((sequence, batch.buffer[start : start + size]) for sequence, start, size in rows if size)


def _ends(step: Step) -> Iterator[tuple[int, int]]:
    """Yields sequences after which a reader can stop, with the bytes of the step up to there; the last is its end."""
    first, last = step.sequences.first, step.sequences.last
    if not isinstance(step, RecordCopy):
        yield last, step.size
        return
    run = step.run
    for sequence, offset in run.marks:
        if first < sequence <= last:
            yield sequence - 1, offset - run.start
    yield last, run.end - run.start


@dataclass(frozen=True)
class StoreSource:
    """The intact part of a store."""

    plan: SalvagePlan  #: the plan of salvage
    channels: list[ChannelSource]  #: sorted by name as bytes
    key: DecryptionKey = DecryptionKey()
    nodes: tuple[NodeFiles, ...] = ()  #: merged nodes of a cluster; () for a single store

    def channel(self, name: str) -> ChannelSource | None:
        return next((channel for channel in self.channels if channel.name == name), None)


@dataclass(frozen=True)
class SourceOptions:
    patterns: tuple[str, ...] = ()  #: channels, with NATS wildcards; (): all
    generation: str = SPLIT  #: `split`, `newest` or a number, as for salvage, if sequences began again
    archived: bool = False  #: also messages from `.bak` slices
    keep_encrypted: bool = False  #: a payload that cannot be decrypted stays as stored, instead of an error
    workers: int = 2  #: slices scanned in parallel
    cluster_id: str = ""  #: for stores whose cluster id is lost


def open_source(
    store: Datastore,
    options: SourceOptions | None = None,
    *,
    progress: Progress | None = None,
    surveys: Iterable[ChannelSurvey] | None = None,
) -> StoreSource:
    """Reads a store in any state, read-only.

    `progress` gets bytes; `surveys` are those of its channels, if already made (see `plan_salvage`). Raises
    UsageError for an unknown generation or an empty key.
    """
    options = options or SourceOptions()
    if store.key is not None:
        master_key(store.key)
    salvaged = SalvageOptions(
        cluster_id=options.cluster_id or _NO_CLUSTER,
        generation=options.generation,
        archived=options.archived,
        patterns=options.patterns,
        workers=options.workers,
        keep_positions=True,
    )
    plan = plan_salvage(store, salvaged, progress=progress, surveys=surveys)
    plan.channels = _chosen(store, plan)
    key = DecryptionKey(store.key, options.keep_encrypted)
    return StoreSource(plan, [ChannelSource(channel, plan.crc, key) for channel in plan.channels], key)


def open_merged(
    nodes: Sequence[NodeFiles], read_options: ReadOptions, options: SourceOptions, *, progress: Progress | None = None
) -> StoreSource:
    """Reads the nodes of a cluster as one source, read-only; of several generations always the newest.

    `progress` gets bytes. Raises RefusedError if the nodes belong to different clusters.
    """
    merging = MergeOptions(
        options.patterns,
        options.cluster_id or _NO_CLUSTER,
        archived=options.archived,
        workers=options.workers,
        keep_positions=True,
    )
    plan = plan_merge(nodes, read_options, merging, progress=progress)
    key = DecryptionKey(read_options.encryption_key, options.keep_encrypted)
    channels = [ChannelSource(channel, plan.crc, key) for channel in plan.channels]
    return StoreSource(plan, channels, key, tuple(each.named for each in plan.nodes))


def _chosen(store: Datastore, plan: SalvagePlan) -> list[ChannelSalvage]:
    """Drops channels known only by stray messages in the directories of selected channels."""
    patterns, chosen = plan.options.patterns, []
    for channel in plan.channels:
        name = os.fsdecode(channel.stored_name)
        # without a directory of its own, the channel has no other messages
        matches = not patterns or any(subject_matches(pattern, name) for pattern in patterns)
        if matches or name not in store.channel_names:
            chosen.append(channel)
        else:
            reason = "messages in the directory of another channel, while their own channel is not selected"
            plan.dropped.append(DroppedData(name, -1, 0, reason, channel.sequences, fate=DropReason.LEFT_OUT))
    return chosen
