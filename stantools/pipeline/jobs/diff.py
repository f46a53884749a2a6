"""`diff` of several pairs of stores: the comparison of `migration.proof.stores`, in tasks.

Tasks survey the stores first. As in the local verb, the surveys decide which data counts, in which order and as
what. Then tasks compare the messages of each channel; those of a big channel in ranges of sequences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from stantools.errors import StantoolsError, StoreUnreadableError, UsageError
from stantools.format.crc import Crc
from stantools.inspection.findings import Severity
from stantools.inspection.survey_jobs import ChannelRef
from stantools.migration.proof.stores import (
    ChannelComparison,
    Side,
    StoresDifference,
    add_channel,
    channel_pairs,
    compare_messages,
    only_in_one,
    root_differences,
)
from stantools.migration.source import ChannelSource, DecryptionKey, SourceOptions, StoreSource, open_source
from stantools.pipeline.jobs.stores import JobResult, channels_of, survey_stores
from stantools.pipeline.tables.discovery import FoundStore
from stantools.pipeline.tables.model import FailedRead, StoreRef
from stantools.pipeline.tables.remote import is_remote
from stantools.pipeline.tables.table_options import TableOptions
from stantools.sources.directories import CHANNEL
from stantools.store.directory import Datastore, open_datastore
from stantools.work import Work, WorkFailure

#: Payload bytes above which a channel is compared in ranges of sequences.
RANGE_BYTES = 256 << 20
_LAST = 2**64 - 1

_Progress = Callable[[int], object] | None


@dataclass(frozen=True)
class Pair:
    first: StoreRef  #: the expected state
    second: StoreRef  #: the store compared with it


@dataclass
class PairDifference:
    pair: Pair
    found: StoresDifference  #: as in the local verb

    @property
    def clean(self) -> bool:
        """True without differences other than informational ones."""
        return all(each.severity is Severity.INFO for each in self.found.findings)

    def as_json(self) -> dict[str, Any]:
        return {
            "store": self.pair.first.root,
            "other": self.pair.second.root,
            "clean": self.clean,
            "stream": None,
            "channels": self.found.channels,
            "messages": self.found.messages,
            "damaged": list(self.found.damaged),
            "findings": [each.as_json() for each in self.found.findings],
        }


def match_stores(
    first: Sequence[FoundStore], second: Sequence[FoundStore], paths: tuple[str, str]
) -> tuple[list[Pair], list[FailedRead]]:
    """Pairs the stores: one with one, or by equal path below the given ones. Also returns stores without a counterpart.

    Raises `UsageError` for a slice, a channel or a URL.
    """
    ones, others = (_by_name(found, path) for found, path in zip((first, second), paths, strict=True))
    failed: list[FailedRead] = []
    if len(ones) == len(others) == 1:
        return [Pair(*ones.values(), *others.values())], failed
    for mine, theirs, where in ((ones, others, paths[1]), (others, ones, paths[0])):
        for name, ref in mine.items():
            if name not in theirs:
                message = f"{ref.root}: has no counterpart {name} below {where}"
                failed.append(
                    FailedRead(ref.root, message, "stores are matched by their path below the given directories")
                )
    return [Pair(ref, others[name]) for name, ref in ones.items() if name in others], failed


def _by_name(found: Sequence[FoundStore], base: str) -> dict[str, StoreRef]:
    """Returns the stores of one side by their path below the given one."""
    while not os.path.isdir(base) and base != os.path.dirname(base):  # noqa: PTH112, PTH120
        base = os.path.dirname(base)  # noqa: PTH120
    named = {}
    for store in found:
        root = store.ref.root
        if is_remote(root):
            raise UsageError(f"{root}: stores at URLs cannot be compared", "mount or copy them")
        if store.loose is not None or (store.source and store.source.found.kind is CHANNEL):
            text = f"{store.shown}: slices without a store cannot be compared as a store"
            raise UsageError(text, "name stores, or directories of stores; `stantools diff` compares two channels")
        named[os.path.relpath(store.shown, base)] = store.reference
    return named


@dataclass
class DiffPlan:
    """A plan of comparisons, made without Spark so that a wrong path is reported at once."""

    failed: list[FailedRead]  #: stores without a counterpart, and unreadable ones
    options: TableOptions  #: channels to compare (none compares all, and clients and identity), and the key
    pairs: list[Pair] = field(default_factory=list)
    sides: list[tuple[Datastore, Datastore]] = field(default_factory=list)  #: both stores of each pair, opened
    #: Channels to survey: of the first store of the first pair, of the second, and so on.
    channels: list[list[ChannelRef]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes to read: each file once for the survey and once for the comparison."""
        return 2 * sum(channel.size for channels in self.channels for channel in channels)


def plan_diff(pairs: Sequence[Pair], failed: Sequence[FailedRead], options: TableOptions) -> DiffPlan:
    """Lists the surveys of some pairs; raises `UsageError` if channel patterns match none."""
    plan = DiffPlan(list(failed), options)
    for pair in pairs:
        try:
            first, second = (open_datastore(ref.root, Crc(ref.polynomial)) for ref in (pair.first, pair.second))
        except StoreUnreadableError as error:
            plan.failed.append(FailedRead.of(pair.first.root, error))
            continue
        plan.pairs.append(pair)
        plan.sides.append((first, second))
        plan.channels += (channels_of(side, side.crc.polynomial, options.channels) for side in (first, second))
    if options.channels and plan.pairs and not any(plan.channels):
        raise options.no_channel()
    return plan


def run_diff(work: Work, plan: DiffPlan, *, progress: _Progress = None) -> JobResult[PairDifference]:
    """Compares pairs of stores in tasks; changes nothing.

    `progress` is called with bytes surveyed, and again with bytes compared.
    """
    result = JobResult[PairDifference](failed=list(plan.failed))
    opened = _open_pairs(work, plan, result, progress)
    ranges = [each for pair in opened for each in pair.ranges()]
    for number, done in work.map(partial(_compare, plan.options), ranges, cost=lambda each: each.size):
        if progress:
            progress(ranges[number].size)
        opened[ranges[number].pair].take(ranges[number], done)
    for pair in opened:
        try:
            result.stores.append(pair.finished(everything=not plan.options.channels))
        except StantoolsError as error:
            result.failed.append(FailedRead.of(pair.pair.first.root, error))
        result.failed += pair.failed
    return result


def _open_pairs(work: Work, plan: DiffPlan, result: JobResult[PairDifference], progress: _Progress) -> list[_OpenPair]:
    """Surveys all channels and decides which data of each store counts; failures go to the result."""
    surveys = survey_stores(work, plan.channels, progress=progress)
    source_options = SourceOptions(plan.options.channels)
    opened: list[_OpenPair] = []
    for pair, sides, *found in zip(plan.pairs, plan.sides, surveys[::2], surveys[1::2], strict=True):
        sources: list[StoreSource] = []
        result.failed += (failed for survey in found for failed in survey.failed)
        if any(survey.failed for survey in found):
            continue
        for side, survey in zip(sides, found, strict=True):
            try:
                sources.append(open_source(side, source_options, surveys=survey.channels))
            except StantoolsError as error:
                result.failed.append(FailedRead.of(str(side.path), error))
                break
        else:
            matched = list(channel_pairs(*sources))
            damaged = (sources[0].plan.lossy, sources[1].plan.lossy)
            opened.append(_OpenPair(len(opened), pair, sides, matched, damaged))
    return opened


@dataclass
class _OpenPair:
    number: int  #: position among the open pairs
    pair: Pair
    sides: tuple[Datastore, Datastore]  #: the stores, opened
    matched: list[tuple[ChannelSource | None, ChannelSource | None]]  #: their channels
    damaged: tuple[bool, bool]  #: for each store, whether damage excludes part of it from the comparison
    compared: dict[int, ChannelComparison] = field(default_factory=dict)  #: results of the channels so far
    failed: list[FailedRead] = field(default_factory=list)  #: channels that could not be compared

    def ranges(self) -> Iterator[_Range]:
        for channel, (one, other) in enumerate(self.matched):
            if one is None or other is None:
                continue
            cuts = [0, *one.cuts(RANGE_BYTES), _LAST]
            size = (one.payload_bytes + other.payload_bytes) // (len(cuts) - 1)
            for after, until in pairwise(cuts):
                yield _Range(self.number, channel, one, other, after, until, size)

    def take(self, part: _Range, compared: ChannelComparison | WorkFailure) -> None:
        if isinstance(compared, WorkFailure):
            self.failed.append(FailedRead.of(f"{self.pair.first.root}/{part.one.name}", compared))
        else:
            self.compared.setdefault(part.channel, ChannelComparison()).add(compared)

    def finished(self, *, everything: bool) -> PairDifference:
        """Joins the findings in the order of the local verb."""
        found = StoresDifference(damaged=self.damaged)
        sides = Side(self.sides[0]), Side(self.sides[1])
        if everything:
            found.findings += root_differences(*sides)
        for channel, (one, other) in enumerate(self.matched):
            if one is None or other is None:
                found.findings.append(only_in_one(one, other))
            elif channel in self.compared:
                add_channel(found, sides, one, self.compared[channel])
        return PairDifference(self.pair, found)


@dataclass(frozen=True)
class _Range:
    """A range of sequences of a channel in both stores: above `after`, up to `until`."""

    pair: int
    channel: int
    one: ChannelSource
    other: ChannelSource
    after: int
    until: int
    size: int


def _compare(options: TableOptions, part: _Range) -> ChannelComparison:
    """In a task: compares messages; the key is looked up here."""
    key = options.key.key()
    one, other = (
        source.with_key(DecryptionKey(key)).read(after=part.after, until=part.until, finish=key is not None)
        for source in (part.one, part.other)
    )
    return compare_messages(one, other)
