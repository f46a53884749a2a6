"""A store as the source of a migration: its channels, and their messages in batches.

What is taken is what `recovery.salvage` would take: every intact message, in order, wherever it lies. So a damaged
store is a source like any other; what it lost is known beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice

from stantools.format.crc import Crc
from stantools.format.encryption import master_key, may_be_encrypted
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.survey import ChannelSurvey
from stantools.migration.batches import BATCH_BYTES, MAX_SEQUENCE, Finisher, StepReader
from stantools.progress import Progress
from stantools.recovery.merge import plan_merge
from stantools.recovery.options import MergeOptions
from stantools.recovery.salvage import SalvageOptions, SalvagePlan, plan_salvage
from stantools.recovery.salvage.model import SPLIT, ChannelPlan, Copy, Dropped, Fate, Step
from stantools.store.directory import Datastore, subject_matches
from stantools.store.mapping import Buffer
from stantools.store.nodes import NodeFiles
from stantools.store.options import ReadOptions
from stantools.store.ranges import Ranges
from stantools.store.reading import BATCH_ROWS
from stantools.store.sublog import StoredSubscription
from stantools.streamfiles.batch import Batch

#: Stands for a cluster id that is lost: a migration needs none, so that a lost server.dat is no obstacle.
_NO_CLUSTER = "lost"

#: A sample of a channel: so many places, and so many messages from each.
_SAMPLE_PLACES = 8
_SAMPLE_ROWS = 32
_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True)
class Key:
    """How payloads are decrypted."""

    key: bytes | None = None  #: the encryption key given to the server; None leaves payloads as they are stored
    keep_sealed: bool = False  #: leave a payload as it is stored where it cannot be decrypted


class ChannelSource:
    """One channel.

    Args:
        plan: What of it is taken.
        crc: The store's CRC.
        key: How payloads are decrypted.
    """

    def __init__(self, plan: ChannelPlan, crc: Crc, key: Key | None = None) -> None:
        self._plan = plan
        self._crc = crc
        self._key = key or Key()

    def __repr__(self) -> str:
        return f"ChannelSource({self.name!r}, {self.count} messages, {self.first} to {self.last})"

    @property
    def name(self) -> str:
        """Its name."""
        return os.fsdecode(self._plan.name)

    @property
    def raw_name(self) -> bytes:
        """Its name as bytes."""
        return self._plan.name

    @property
    def origin(self) -> str:
        """What it is, if it is not simply the channel of that name."""
        return self._plan.origin

    @property
    def sequences(self) -> Ranges:
        """The sequences of its intact messages."""
        return self._plan.sequences

    @property
    def lost(self) -> Ranges:
        """The sequences of messages that were missing before: damaged or gone, as far as that is known."""
        return self._plan.missing - self._plan.skipped

    @property
    def subscriptions(self) -> Sequence[StoredSubscription]:
        """Its subscriptions as salvage plans them, but with positions up to `last`."""
        return self._plan.subscriptions

    @cached_property
    def count(self) -> int:
        """How many intact messages there are."""
        return self._plan.sequences.count()

    @property
    def first(self) -> int:
        """The sequence of its first intact message, 0 if there is none."""
        return self._plan.sequences.first

    @property
    def last(self) -> int:
        """Its last sequence, also where the message is lost and only an index still names it; 0 if there is none."""
        return self._plan.last_known

    @cached_property
    def first_timestamp(self) -> int:
        """When its first intact message was stored, in nanoseconds since 1970; 0 if there is none.

        Raises:
            StoreUnreadableError: As from `read`.
        """
        step = self._plan.steps[0] if self._plan.steps else None
        if isinstance(step, Copy) and step.run.first == self.first:
            return step.run.first_timestamp
        return self._timestamp(self.first)

    @cached_property
    def last_timestamp(self) -> int:
        """When its last intact message was stored, in nanoseconds since 1970; 0 if there is none.

        Raises:
            StoreUnreadableError: As from `read`.
        """
        step, last = self._plan.steps[-1] if self._plan.steps else None, self.sequences.last
        if isinstance(step, Copy) and step.run.last == last:
            return step.run.last_timestamp
        return self._timestamp(last)

    @property
    def payload_bytes(self) -> int:
        """Bytes of its payloads as they are stored; about, where only a part of a stretch is taken."""
        return sum(step.payload for step in self._plan.steps)

    @property
    def largest_payload(self) -> int:
        """Bytes of its largest payload as it is stored; perhaps of one that is not taken."""
        return max((step.largest for step in self._plan.steps), default=0)

    @cached_property
    def encrypted(self) -> bool:
        """Whether payloads may be stored encrypted, going by a sample.

        Raises:
            StoreUnreadableError: As from `read`.
        """
        return may_be_encrypted(chain.from_iterable(map(_stored, self._sample())))

    def check_key(self) -> None:
        """Decrypts a sample of the messages, if there is a key.

        Raises:
            DecryptError: A payload cannot be decrypted.
            StoreUnreadableError: As from `read`.
        """
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
    ) -> Iterator[Batch]:
        """Yields the messages in rising order; may be called any number of times, by several threads.

        Args:
            after: Only messages with higher sequences.
            until: Only messages up to this sequence.
            subject: The subject that they get; the channel's name if not given.
            batch_bytes: Bytes of records in one batch, at most; a longer one comes alone.
            batch_rows: Messages in one batch, at most.
            finish: Decrypt payloads, make replies fit for headers and check CRCs; else all is as it is stored.

        Yields:
            Batches that are valid until the next one is asked for. Payloads are those of the mapped file itself, unless
            they had to be decrypted.

        Raises:
            StoreUnreadableError: A file cannot be read any more, or has changed since it was planned.
            DecryptError: A payload cannot be decrypted.
        """
        channel, crc = self.raw_name, self._crc if finish else self._crc.unchecked
        subject = channel if subject is None else subject
        reader = StepReader(channel, subject, crc, batch_bytes=batch_bytes, batch_rows=batch_rows)
        finisher = self._finisher()
        until = MAX_SEQUENCE if until is None else until
        for step in self._plan.steps:
            for batch in reader.read(step, after, until):
                yield finisher.finish(batch) if finish else batch

    def with_key(self, key: Key) -> ChannelSource:
        """Returns the channel with payloads decrypted by another key, or left as they are stored."""
        return ChannelSource(self._plan, self._crc, key)

    def cuts(self, size: int) -> list[int]:
        """Returns rising sequences that cut the channel into parts of about so many bytes each, none if it is small.

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
        """Returns the channel with only those of its messages whose sequences are in a set; `last` stays."""
        steps = [step.narrowed(sequences) for step in self._plan.steps if step.sequences & sequences]
        plan = replace(self._plan, steps=steps, sequences=self._plan.sequences & sequences)
        return ChannelSource(plan, self._crc, self._key)

    def up_to(self, last: int) -> ChannelSource:
        """Returns the channel as if a sequence were its last one."""
        known = Ranges.of([(1, last)])
        narrowed = self.narrowed(self.sequences & known)
        plan = replace(narrowed._plan, missing=self._plan.missing & known, last_known=min(self.last, last))
        return ChannelSource(plan, self._crc, self._key)

    def _finisher(self) -> Finisher:
        return Finisher(self._plan.stored_name, self._key.key, keep_sealed=self._key.keep_sealed)

    def _timestamp(self, sequence: int) -> int:
        for batch in self.read(after=sequence - 1, until=sequence, finish=False) if sequence else ():
            return int(batch.columns.timestamp[0])
        return 0

    def _sample(self) -> Iterator[Batch]:
        """Yields some messages from a few places."""
        places = [place for step in self._plan.steps for place in _places(step)]
        chosen = {places[number * len(places) // _SAMPLE_PLACES] for number in range(_SAMPLE_PLACES) if places}
        for place in sorted(chosen):
            sample = self.read(after=place - 1, batch_bytes=_SAMPLE_BYTES, batch_rows=_SAMPLE_ROWS, finish=False)
            yield from islice(sample, 1)


def _stored(batch: Batch) -> Iterator[tuple[int, Buffer]]:
    columns = batch.columns
    rows = zip(columns.sequence.tolist(), columns.data_start.tolist(), columns.data_size.tolist(), strict=True)
    yield from ((sequence, batch.buffer[start : start + size]) for sequence, start, size in rows if size)


def _places(step: Step) -> list[int]:
    """Returns sequences at which a reader can begin without going through what is before them."""
    first, last = step.sequences.first, step.sequences.last
    marks = step.run.marks if isinstance(step, Copy) else ()
    return [first, *(sequence for sequence, _ in marks if first < sequence <= last)]


def _ends(step: Step) -> Iterator[tuple[int, int]]:
    """Yields sequences after which a reader can stop, with the bytes of the step up to there; the last is its end."""
    first, last = step.sequences.first, step.sequences.last
    if not isinstance(step, Copy):
        yield last, step.size
        return
    run = step.run
    for sequence, offset in run.marks:
        if first < sequence <= last:
            yield sequence - 1, offset - run.start
    yield last, run.end - run.start


@dataclass(frozen=True)
class StoreSource:
    """A store, as far as it is intact."""

    plan: SalvagePlan  #: what salvage would do with it
    channels: list[ChannelSource]  #: its channels, sorted by name as bytes
    key: Key = Key()  #: how payloads are decrypted
    nodes: tuple[NodeFiles, ...] = ()  #: the nodes of the cluster that it was merged from; none for a store by itself

    @property
    def dropped(self) -> list[Dropped]:
        """What cannot be taken, or is left out."""
        return self.plan.dropped

    @property
    def changes(self) -> list[str]:
        """What is taken differently from how it is stored, in words."""
        return self.plan.changes

    @property
    def lost(self) -> int:
        """How many messages are missing, or left out although they are there."""
        return self.plan.gone

    @property
    def lossy(self) -> bool:
        """Whether something of the store cannot be taken."""
        return self.plan.lossy

    @property
    def clients(self) -> list[pb.ClientInfo]:
        """The clients."""
        return self.plan.clients

    def channel(self, name: str) -> ChannelSource | None:
        """Returns the channel of a name, if there is one."""
        return next((channel for channel in self.channels if channel.name == name), None)


@dataclass(frozen=True)
class SourceOptions:
    """What is taken of a store, and how it is read."""

    patterns: tuple[str, ...] = ()  #: channels to take, with NATS wildcards; none takes all
    generation: str = SPLIT  #: `split`, `newest` or a number, as for salvage, where sequences began again
    archived: bool = False  #: also take messages from `.bak` slices
    keep_encrypted: bool = False  #: leave a payload as it is stored where it cannot be decrypted, instead of giving up
    workers: int = 2  #: slices that are scanned at the same time
    cluster_id: str = ""  #: counts where the store does not tell it any more


def open_source(
    store: Datastore,
    options: SourceOptions | None = None,
    *,
    progress: Progress | None = None,
    surveys: Iterable[ChannelSurvey] | None = None,
) -> StoreSource:
    """Reads a store and says what can be migrated from it.

    Args:
        store: The store, in any state; nothing in it is changed.
        options: What is taken; every channel if not given.
        progress: Called with the number of bytes as they are read.
        surveys: Those of its channels, if they were made already; see `plan_salvage`.

    Raises:
        UsageError: There is no such generation, or the key is empty.
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
    key = Key(store.key, options.keep_encrypted)
    return StoreSource(plan, [ChannelSource(channel, plan.crc, key) for channel in plan.channels], key)


def open_merged(
    nodes: Sequence[NodeFiles], reading: ReadOptions, options: SourceOptions, *, progress: Progress | None = None
) -> StoreSource:
    """Reads the nodes of a cluster and says what can be migrated from what they have together; nothing is written.

    Args:
        nodes: Their directories.
        reading: How to read them.
        options: What is taken; of several generations always the newest.
        progress: Called with the number of bytes as they are read.

    Raises:
        RefusedError: They are not of one cluster.
        StoreUnreadableError: Something cannot be read at all.
        UsageError: The key is empty.
    """
    merging = MergeOptions(
        options.patterns,
        options.cluster_id or _NO_CLUSTER,
        archived=options.archived,
        workers=options.workers,
        keep_positions=True,
    )
    plan = plan_merge(nodes, reading, merging, progress=progress)
    key = Key(reading.encryption_key, options.keep_encrypted)
    channels = [ChannelSource(channel, plan.crc, key) for channel in plan.channels]
    return StoreSource(plan, channels, key, tuple(each.named for each in plan.nodes))


def _chosen(store: Datastore, plan: SalvagePlan) -> list[ChannelPlan]:
    """Leaves out channels of which only strays in the directories of chosen channels were seen."""
    patterns, chosen = plan.options.patterns, []
    for channel in plan.channels:
        name = os.fsdecode(channel.stored_name)
        # Without a directory of its own there is no more of it than this.
        if not patterns or _matches(patterns, name) or name not in store.channel_names:
            chosen.append(channel)
        else:
            reason = "messages in the directory of another channel, and their own was not chosen"
            plan.dropped.append(Dropped(name, -1, 0, reason, channel.sequences, fate=Fate.LEFT_OUT))
    return chosen


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(subject_matches(pattern, name) for pattern in patterns)
