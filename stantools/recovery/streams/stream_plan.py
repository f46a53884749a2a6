"""The plan of a salvage of streams: of each stream its messages, last sequence, configuration and consumers.

Facts: jetstream-store.md sections 4, 22 and 24.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from stantools.errors import StoreUnreadableError
from stantools.notation import counted, describe_ranges
from stantools.progress import Progress
from stantools.recovery.recovery_options import StreamSalvageOptions
from stantools.recovery.streams.borders import known_subjects, mended_message
from stantools.recovery.streams.cluster import ClusterFacts, aligned
from stantools.recovery.streams.configs import (
    SalvagedConfig,
    StoredAmounts,
    lift_limits,
    mended,
    rebuilt_stream,
    stream_config,
)
from stantools.recovery.streams.doubts import in_doubt, tail_is_missing
from stantools.recovery.streams.positions import SalvagedConsumer, salvaged_consumers, within
from stantools.recovery.streams.record_files import (
    BlockFileRecords,
    ChosenRecords,
    MadeRecords,
    RecordFile,
    differing,
)
from stantools.recovery.streams.stream_directories import grouped, temporary_config
from stantools.sources.source import Source
from stantools.store.directory import subject_matches
from stantools.store.ranges import Ranges
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.flaws import FlawKind
from stantools.streamfiles.layout import MAX_SEQUENCE
from stantools.streamfiles.lifetimes import lifetime_of
from stantools.streamfiles.survey import StreamSurvey
from stantools.streamfiles.writer import ConsumerEntry, StreamArchive

#: Beyond the last message, sequences up to which a consumer's delivery is believed.
_MOST_DELIVERED: Final = 1 << 16


@dataclass
class SalvagedStream:
    account: str
    name: str
    config: SalvagedConfig
    chosen: ChosenRecords
    consumers: list[SalvagedConsumer]
    last: int  #: the last sequence ever used, as far as known
    resurrected: Ranges  #: messages of which nothing tells any more whether they were deleted
    lost: Ranges  #: live messages that are nowhere intact
    bytes: int = 0  #: of the messages' records
    notes: list[str] = field(default_factory=list)

    @cached_property
    def recovered(self) -> Ranges:
        return self.chosen.sequences

    @property
    def messages(self) -> int:
        return self.recovered.count()

    @property
    def full_name(self) -> str:
        return f"{self.account}/{self.name}"

    @property
    def lossy(self) -> bool:
        return bool(self.lost) or self.config.rebuilt or any(each.lossy for each in self.consumers)

    def entries(self) -> list[ConsumerEntry]:
        return [each.entry for each in self.consumers]

    def archive(self, config: Mapping[str, Any] | None = None, compression: str = "stored") -> StreamArchive:
        return StreamArchive(
            self.name,
            config or self.config.members,
            self.config.created_ns,
            origin=False,
            compression=compression,
            whole=True,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "account": self.account,
            "name": self.name,
            "recovered": self.recovered.as_json(),
            "resurrected": self.resurrected.as_json(),
            "lost": self.lost.as_json(),
            "messages": self.messages,
            "bytes": self.bytes,
            "sources": self.chosen.counts(),
        }


@dataclass
class StreamSalvagePlan:
    source: Path
    places: Sequence[Path]  #: the directories that are salvaged
    streams: list[SalvagedStream]
    notes: list[str] = field(default_factory=list)
    left_out: int = 0  #: streams that cannot be read

    @property
    def messages(self) -> int:
        return sum(each.messages for each in self.streams)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.streams)

    @property
    def lossy(self) -> bool:
        return bool(self.left_out) or any(each.lossy for each in self.streams)

    def all_notes(self) -> list[str]:
        found = list(self.notes)
        for each in self.streams:
            found += [f"{each.full_name}: {text}" for text in (*each.config.notes, *each.notes)]
            found += [
                f"{each.full_name}: consumer {consumer.name}: {text}"
                for consumer in each.consumers
                for text in consumer.notes
            ]
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "streams": [each.as_json() for each in self.streams],
            "consumers": [
                consumer.as_json(each.account, each.name) for each in self.streams for consumer in each.consumers
            ],
            "notes": self.all_notes(),
        }


def plan_stream_salvage(
    source: Source,
    options: StreamSalvageOptions,
    patterns: Sequence[str] = (),
    progress: Progress | None = None,
    places: Sequence[Path] = (),
) -> StreamSalvagePlan:
    """Plans the salvage of all streams of a source whose names match a pattern; nothing is written.

    `places` are the directories of several nodes that the source joins.
    """
    plan = StreamSalvagePlan(source.path, places or [source.path], [])
    subjects: dict[str, list[str]] = {}
    cluster = ClusterFacts(source.node_place, source.raft_groups)
    directories = grouped(source, patterns)
    for key in cluster.names():
        if not patterns or any(subject_matches(pattern, key[1]) for pattern in patterns):
            directories.setdefault(key, [])
    for (account, name), found in sorted(directories.items()):
        if cluster.was_removed((account, name)):
            plan.notes.append(f"{account}/{name}: the cluster deleted it; a node that was down still has it: left out")
            continue
        readable = []
        for each in found:
            if each.encrypted and each.server_keys is None:
                plan.notes.append(f"{account}/{name}: it is encrypted, and no key was given: left out")
            else:
                readable.append(each)
        if found and not readable:
            plan.left_out += 1
            continue
        taken = subjects.get(account, ())
        stream = _StreamPlanner(source.node_place, (account, name), readable, cluster, options, taken, progress).plan()
        if stream is None:
            if found:
                plan.left_out += 1
                plan.notes.append(f"{account}/{name}: nothing of it can be read: left out")
            continue
        subjects.setdefault(account, []).extend(stream.config.members.get("subjects") or [name])
        plan.streams.append(stream)
    if plan.left_out and not plan.streams:
        raise StoreUnreadableError(
            f"{source.path}: no stream can be salvaged: {'; '.join(plan.notes)}",
            "give the server's key with --encryption-key-env or --encryption-key-file, or look for another copy",
        )
    return plan


class _SeenSequences:
    """The sequences that are chosen; most files continue where the others end."""

    def __init__(self, chosen: ChosenRecords) -> None:
        self._chosen = chosen
        self._parts: list[Ranges] = []
        self._last = -1
        self._begins: list[tuple[int, int]] = []  #: first sequence and number of each part, by sequence
        self._span = 0  #: of the widest part

    def add(self, records: RecordFile, sequences: Ranges) -> None:
        """Chooses sequences of a file."""
        insort(self._begins, (sequences.first, len(self._chosen.parts)))
        self._chosen.parts.append((records, sequences))
        self._parts.append(sequences)
        self._last = max(self._last, sequences.last)
        self._span = max(self._span, sequences.last - sequences.first)

    def files(self, sequences: Ranges) -> Iterator[tuple[RecordFile, Ranges]]:
        """Yields the files from which some sequences were chosen, in the order of the choice."""
        begin = bisect_left(self._begins, (sequences.first - self._span, 0))
        end = bisect_right(self._begins, (sequences.last, len(self._chosen.parts)))
        for _, number in sorted(self._begins[begin:end], key=lambda each: each[1]):
            records, chosen = self._chosen.parts[number]
            if both := chosen & sequences:
                yield records, both

    def common(self, sequences: Ranges) -> Ranges:
        """Returns those of some sequences that are chosen."""
        if not sequences or sequences.first > self._last:
            return Ranges()
        self._parts = [Ranges.union(self._parts)]
        return sequences & self._parts[0]


class _StreamPlanner:
    def __init__(
        self,
        node_place: Callable[[str], Path],
        key: tuple[str, str],
        directories: Sequence[StoredStream],
        cluster: ClusterFacts,
        options: StreamSalvageOptions,
        taken: Sequence[str],
        progress: Progress | None,
    ) -> None:
        self._node_place = node_place
        self._key = key
        self._cluster = cluster
        self._options = options
        self._taken = taken
        self._notes: list[str] = []
        surveys = [StreamSurvey(each, progress) for each in directories]
        self._logs = cluster.logs(key)
        fresh = cluster.fresh_nodes(key)
        surveys.sort(key=lambda each: (fresh is not None and each.directory.node not in fresh, -each.last))
        self._surveys = surveys
        #: nodes whose directory tells deletions
        self._fresh = [each for each in surveys if fresh is None or each.directory.node in fresh] or surveys

    def plan(self) -> SalvagedStream | None:
        account, name = self._key
        surveys = self._same_history()
        chosen = self._choose(surveys)
        recovered = chosen.sequences
        values = self._config_values(surveys)
        blocks = [block for each in surveys for block in each.blocks]
        if values is None and not recovered and not any(each.records for each in blocks):
            return None
        assigned = self._cluster.assignment(self._key)
        size, first_time, per_subject, subjects = _measured(chosen, listed=values is None or not values.get("subjects"))
        last = max([recovered.last, *(each.last for each in surveys), *(log.last for _, log in self._logs)])
        if values is None:
            config = rebuilt_stream(name, subjects, first_time, self._taken)
        else:
            if isinstance(begin := values.get("first_seq"), int) and begin > 0:
                last = max(last, begin - 1)
            config = stream_config(values, name, self._options.version, self._options.replicas)
        expiry = _first_expiry(chosen) if config.members.get("allow_msg_ttl") else 0
        lift_limits(config, StoredAmounts(recovered.count(), size, first_time, per_subject, expiry))
        consumers = salvaged_consumers(
            [each.directory for each in surveys],
            self._options.version,
            self._options.replicas,
            assigned.consumers if assigned else {},
            self._cluster.consumers(self._key),
            self._notes,
        )
        end, last = last, self._with_deliveries(surveys, consumers, last)
        for consumer in consumers:
            within(consumer, recovered, last)
        lost = Ranges.union(each.live for each in surveys) - recovered - self._deleted(surveys)
        lost = lost | Ranges.of([(end + 1, last)])
        self._note_flaws(surveys)
        if config.members.get("retention") == "interest" and not consumers and recovered:
            self._notes.append(
                "it keeps messages for consumers and has none: the first consumer that is created and deleted takes "
                "all messages with it"
            )
        return SalvagedStream(
            account, name, config, chosen, consumers, last, recovered & self._doubts(surveys), lost, size, self._notes
        )

    # Messages

    def _same_history(self) -> list[StreamSurvey]:
        """Returns the surveys of directories that hold the same stream: a newer stream may have an older one's name."""
        kept = self._surveys[:1]
        created = (kept[0].directory.config or {}).get("Created") if kept else None
        for each in self._surveys[1:]:
            other = (each.directory.config or {}).get("Created")
            if created and other and created != other and each.directory.node == kept[0].directory.node:
                self._notes.append(f"{self._shown(each.directory.path)} is an older stream of that name: left out")
            else:
                kept.append(each)
        return kept

    def _deleted(self, surveys: Sequence[StreamSurvey]) -> Ranges:
        """Returns the messages known to be deleted.

        Tombstones and logs of any node tell it. An index tells absence alone: it does not count against another node
        as new that has the message.
        """
        told = Ranges.union(log.deleted for _, log in self._logs)
        if len(surveys) == 1:
            return surveys[0].deleted | told
        blocks = [block for each in surveys for block in (*each.blocks, *each.others)]
        told = Ranges.union(
            [told, *(Ranges.from_sequences(part) for each in blocks for part in (each.tombstones, each.erasures))]
        )
        fresh = [each for each in surveys if each in self._fresh]
        for each in fresh:
            others = [other.intact - in_doubt(other) for other in fresh if other is not each]
            told = told | (each.deleted - Ranges.union(others))
        return told

    def _doubts(self, surveys: Sequence[StreamSurvey]) -> Ranges:
        """Returns the sequences of which no node and no log tells whether they were deleted."""
        doubts = Ranges.of([(0, MAX_SEQUENCE)]) if surveys else Ranges()
        for each in surveys:
            own = in_doubt(each)
            if each in self._fresh:
                doubts = doubts & own
        told = max((log.told for _, log in self._logs), default=0)
        if not surveys:  # limits delete without an entry in the log
            doubts = Ranges.of([(0, MAX_SEQUENCE)])
        return doubts - Ranges.of([(0, told)])

    def _choose(self, surveys: Sequence[StreamSurvey]) -> ChosenRecords:
        chosen = ChosenRecords()
        seen = _SeenSequences(chosen)
        live = self._deleted(surveys).complement()
        for survey in surveys:
            for records, wanted in self._of_survey(survey):
                self._compare(seen, records)
                own = wanted & live
                if fresh := own - seen.common(own):
                    seen.add(records, fresh)
        for group, log in self._logs:
            wanted = Ranges.of((each.sequence, each.sequence) for each in log.messages) & live
            if not wanted - seen.common(wanted):
                continue
            messages = aligned(log, chosen)
            fresh = Ranges.of((each, each) for each in messages) & live
            fresh = fresh - seen.common(fresh)
            if left := len(log.messages) - len(messages):
                what = counted(left, "message")
                self._notes.append(f"{what} in the log of {group.name} failed, or fit at no sequence")
            if fresh:
                seen.add(self._cluster.records(group, messages, fresh), fresh)
        return chosen

    def _of_survey(self, survey: StreamSurvey) -> Iterator[tuple[RecordFile, Ranges]]:
        renumbered = {each.file for each in survey.flaws if each.kind is FlawKind.BLOCK_NUMBER}
        blocks = sorted(survey.blocks, key=lambda each: each.name in renumbered)
        for block in (*blocks, *survey.others):
            if block.readable and block.sequences:
                file = BlockFileRecords(survey, block, self._shown(block.file.path))
                yield file, block.sequences & survey.intact
        if survey.borders:
            yield from self._repaired(survey)

    def _compare(self, seen: _SeenSequences, records: RecordFile) -> None:
        """Names messages that are there twice with different contents."""
        common = seen.common(records.sequences)
        for kept, both in seen.files(common) if common else ():
            if others := differing(kept, records, both):
                self._notes.append(
                    f"{counted(others.count(), 'sequence')} {describe_ranges(others)}: {records.file} has other "
                    f"messages than {kept.file}, which counts"
                )

    def _repaired(self, survey: StreamSurvey) -> Iterator[tuple[RecordFile, Ranges]]:
        subjects = known_subjects(survey)
        for block in survey.blocks:
            wanted, found = block.sequences & survey.borders, []
            if not wanted:
                continue
            for rows in survey.records(block):
                odd = rows.take(wanted.select(rows.sequence))
                for row in range(len(odd)):
                    if message := mended_message(odd, row, subjects):
                        found.append(message)
            if found:
                records = MadeRecords(self._shown(block.file.path), found)
                self._notes.append(
                    f"{describe_ranges(records.sequences)}: the border between subject, headers and payload was "
                    "damaged, and is restored"
                )
                yield records, records.sequences
            if rest := wanted - Ranges.of((each.sequence, each.sequence) for each in found):
                self._notes.append(
                    f"{describe_ranges(rest)}: the border between subject, headers and payload is damaged, and more "
                    f"than one fits: not taken from {self._shown(block.file.path)}"
                )

    def _shown(self, path: Path) -> str:
        absolute = path.absolute()
        directories = (each.directory for each in self._surveys)
        stream = next(each for each in directories if absolute.is_relative_to(each.path.absolute()))
        root = self._node_place(stream.node)
        if not absolute.is_relative_to(root):  # one stream, whose parts were named
            root = stream.path.absolute()
        return str(Path(stream.node, os.path.relpath(absolute, root)))

    # Configuration, end, consumers

    def _config_values(self, surveys: Sequence[StreamSurvey]) -> Mapping[str, Any] | None:
        for survey in surveys:
            directory = survey.directory
            summed = any(each.kind is FlawKind.META_SUM for each in directory.flaws)
            if directory.config is None or summed:
                if values := mended(directory):
                    self._notes.append("a flipped bit of its configuration is restored; its hash proves it")
                    return values
                if directory.config is not None:
                    self._notes.append("the hash of its configuration is wrong, and is made anew")
            if directory.config is not None:
                return directory.config
            if values := temporary_config(directory):
                self._notes.append("its configuration is that of meta.inf.tmp")
                return values
        if assigned := self._cluster.assignment(self._key):
            self._notes.append("its configuration is that of the cluster's meta group")
            return assigned.config
        return None

    def _with_deliveries(
        self, surveys: Sequence[StreamSurvey], consumers: Sequence[SalvagedConsumer], last: int
    ) -> int:
        """Returns the last sequence, also if the messages at the end are gone and only consumers tell it."""
        if not surveys or self._logs:
            return last
        directory = surveys[0].directory
        certain = directory.index and directory.index.version and not directory.index_is_older
        delivered = [each.state.delivered[1] for each in consumers if each.state]
        told = max((each for each in delivered if each <= last + _MOST_DELIVERED), default=0)
        if told > last and not certain and tail_is_missing(surveys[0]):
            self._notes.append(f"messages {last + 1} to {told}, which consumers got, are gone; their numbers stay used")
            return told
        return last

    def _note_flaws(self, surveys: Sequence[StreamSurvey]) -> None:
        for survey in surveys:
            for each in survey.flaws:
                place = f" at {each.offset}" if each.offset is not None else ""
                self._notes.append(f"{self._shown(survey.directory.path / each.file)}{place}: {each.detail}")


def _first_expiry(chosen: ChosenRecords) -> int:
    """Returns the first end of a lifetime that a message has in its headers, in nanoseconds since 1970; 0 for none."""
    first = 0
    for batch in chosen.read():
        for row in np.flatnonzero(batch.header_size).tolist():
            lifetime = lifetime_of(batch.header(row))
            if lifetime > 0:
                end = int(batch.timestamp[row]) + lifetime
                first = min(first, end) if first else end
    return first


def _measured(chosen: ChosenRecords, *, listed: bool) -> tuple[int, int, int, set[bytes]]:
    """Returns the size of the records, the time of the first message, and the messages of the most frequent subject.

    The subjects come last, if they are to be `listed`.
    """
    size, first_time = 0, 0
    counts: Counter[int] = Counter()
    subjects: dict[int, bytes] = {}
    for batch in chosen.read():
        size += int(batch.length.sum(dtype=np.int64))
        first_time = first_time or int(batch.timestamp[0])
        keys, firsts, numbers = np.unique(batch.subject_hashes(), return_index=True, return_counts=True)
        counts.update(dict(zip(keys.tolist(), numbers.tolist(), strict=True)))
        if listed:
            for key, row in zip(keys.tolist(), firsts.tolist(), strict=True):
                subjects.setdefault(key, batch.subject(row))
    return size, first_time, max(counts.values(), default=0), set(subjects.values())
