"""Comparison of two JetStream directories: streams, every message, configurations, consumers.

Only intact messages are compared. Messages are told apart by a hash over sequence, time, subject, headers and payload;
those with another hash are compared part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from stantools.errors import UsageError
from stantools.escaping import escape
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.proof.stores import StoresDifference
from stantools.notation import counted, describe_ranges
from stantools.progress import Progress
from stantools.recovery.streams.record_files import hashes
from stantools.sources.source import Source
from stantools.store.ranges import Ranges
from stantools.streamfiles.directory import StoredConsumer, StoredStream
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.survey import StreamSurvey

#: parts of a message
_PARTS: Final = {"subject": RecordBatch.subject, "headers": RecordBatch.header, "payload": RecordBatch.data}
#: kinds of difference, in the order of the report
_CODES: Final = {
    "missing": "message-missing",
    "extra": "message-extra",
    "time": "message-timestamp",
    "subject": "message-subject",
    "headers": "message-headers",
    "payload": "message-payload",
}
#: members of a configuration that two copies of a stream may have differently
_NOT_COMPARED: Final = frozenset({"Created", "metadata", "num_replicas"})


def compare_directories(
    first: Source, second: Source, patterns: Sequence[str] = (), progress: Progress | None = None
) -> StoresDifference:
    """Compares the streams of two directories; no patterns compare all. `progress` is called with bytes.

    Raises `UsageError` if no stream matches, or a directory has several copies of one.
    """
    one, other = _by_name(first, patterns), _by_name(second, patterns)
    if patterns and not (one or other):
        raise UsageError(f"no stream of either directory matches {', '.join(map(escape, patterns))}")
    result = StoresDifference()
    damaged = [False, False]
    for name in sorted(one.keys() | other.keys()):
        a, b = one.get(name), other.get(name)
        if a is None or b is None:
            alone = a or b
            assert alone is not None
            survey = StreamSurvey(replace(alone, flaws=[]), progress)
            detail = f"{counted(survey.intact.count(), 'message')}, {counted(len(alone.consumers), 'consumer')}"
            result.findings.append(finding("channel-extra" if a is None else "channel-missing", detail, channel=name))
            continue
        if locked := {each.locked: each for each in (a, b) if each.locked}:
            for reason, each in locked.items():
                code = "js-key-missing" if each.server_keys is None else "js-key-wrong"
                detail = f"{each.path}: the stream is encrypted, and {reason}: it is not compared"
                result.findings.append(finding(code, detail, channel=name))
            continue
        surveys = [StreamSurvey(each, progress) for each in (a, b)]
        damaged = [known or bool(each.damaged | each.missing) for known, each in zip(damaged, surveys, strict=True)]
        result.channels += 1
        found, both = _compare_messages(name, *surveys)
        result.messages += both
        result.findings += found
        result.findings += _config_differences("stream-config", name, "", a.config, b.config)
        result.findings += _compare_consumers(name, a, b)
    result.damaged = damaged[0], damaged[1]
    return result


def _by_name(source: Source, patterns: Sequence[str]) -> dict[str, StoredStream]:
    found: dict[str, StoredStream] = {}
    for each in source.streams if not patterns else _matching(source, patterns):
        name = each.name if each.account == "$G" else f"{each.account}/{each.name}"
        if name in found:
            raise UsageError(
                f"{source.path}: has several copies of stream {escape(name)}", "name the directory of one node"
            )
        found[name] = each
    return found


def _matching(source: Source, patterns: Sequence[str]) -> Sequence[StoredStream]:
    try:
        return source.chosen_streams(patterns)
    except UsageError:
        return ()  # the other directory may have it


class _RisingMessages:
    """The intact messages of a stream in rising order, of which some are taken at a time."""

    def __init__(self, survey: StreamSurvey) -> None:
        self._batches = (batch for _, batch in survey.messages())
        self._rest: RecordBatch | None = None

    def rest(self) -> RecordBatch | None:
        """Returns the rows of the current batch that were not compared yet; None at the end."""
        while self._rest is None or not len(self._rest):
            self._rest = next(self._batches, None)
            if self._rest is None:
                return None
        return self._rest

    def up_to(self, sequence: np.uint64) -> RecordBatch:
        """Takes the rows of the current batch up to a sequence."""
        batch = self._rest
        assert batch is not None
        end = int(np.searchsorted(batch.sequence, sequence, side="right"))
        self._rest = batch.take(slice(end, None))
        return batch.take(slice(0, end))


def _compare_messages(name: str, one: StreamSurvey, other: StreamSurvey) -> tuple[list[Finding], int]:
    """Compares all messages; returns differences, and the number of messages in both."""
    found = dict.fromkeys(_CODES, Ranges())
    common = one.intact & other.intact
    found["missing"], found["extra"] = one.intact - common, other.intact - common
    left, right = _RisingMessages(one), _RisingMessages(other)
    while (a := left.rest()) is not None and (b := right.rest()) is not None:
        bound = min(a.sequence[-1], b.sequence[-1])
        for kind, ranges in _compare_rows(left.up_to(bound), right.up_to(bound)):
            found[kind] |= ranges
    findings = []
    for kind, ranges in found.items():
        if ranges:
            detail = f"{counted(ranges.count(), 'message')}: {describe_ranges(ranges)}"
            findings.append(finding(_CODES[kind], detail, channel=name, seq=ranges.first))
    return findings, common.count()


def _compare_rows(one: RecordBatch, other: RecordBatch) -> Iterator[tuple[str, Ranges]]:
    common, here, there = np.intersect1d(one.sequence, other.sequence, assume_unique=True, return_indices=True)
    if not len(common):
        return
    a, b = hashes(one)[here], hashes(other)[there]
    sizes = [
        (batch.subject_size[at].astype(np.int64) << 32) + batch.header_size[at]
        for batch, at in ((one, here), (other, there))
    ]
    different: dict[str, list[tuple[int, int]]] = {}
    for at in np.flatnonzero((a != b) | (sizes[0] != sizes[1])).tolist():
        mine, theirs, sequence = int(here[at]), int(there[at]), int(common[at])
        if one.timestamp[mine] != other.timestamp[theirs]:
            different.setdefault("time", []).append((sequence, sequence))
        for kind, part in _PARTS.items():
            if part(one, mine) != part(other, theirs):
                different.setdefault(kind, []).append((sequence, sequence))
    for kind, pairs in different.items():
        yield kind, Ranges.of(pairs)


def _config_differences(
    code: str, channel: str, about: str, one: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> Iterator[Finding]:
    if one is None or other is None:
        if one is not other:
            which = "first" if one is None else "second"
            yield finding(code, f"{about}the configuration in the {which} cannot be read", channel=channel)
        return
    names = sorted((one.keys() | other.keys()) - _NOT_COMPARED)
    texts = [
        f"{name} is {b!r} instead of {a!r}"
        for name, a, b in ((name, one.get(name), other.get(name)) for name in names)
        if a != b and (a or b)  # members without a value may be left out
    ]
    if texts:
        yield finding(code, f"{about}{'; '.join(texts)}", channel=channel)


def _compare_consumers(channel: str, a: StoredStream, b: StoredStream) -> Iterator[Finding]:
    one = {each.name: each for each in a.consumers}
    other = {each.name: each for each in b.consumers}
    for name in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(name), other.get(name)
        if mine is None or theirs is None:
            which = "second" if mine is None else "first"
            yield finding("consumer-missing", f"consumer {name}: only in the {which}", channel=channel)
            continue
        yield from _config_differences("consumer-config", channel, f"consumer {name}: ", mine.config, theirs.config)
        if texts := list(_position_differences(mine, theirs)):
            yield finding("consumer-position", f"consumer {name}: {'; '.join(texts)}", channel=channel)


def _position_differences(one: StoredConsumer, other: StoredConsumer) -> Iterator[str]:
    a, b = one.state, other.state
    if a is None or b is None:
        if a is not b:
            yield f"the position in the {'first' if a is None else 'second'} cannot be read"
        return
    if a.delivered != b.delivered:
        yield f"delivered up to {b.delivered[1]} instead of {a.delivered[1]}"
    if a.ack_floor != b.ack_floor:
        yield f"acknowledged up to {b.ack_floor[1]} instead of {a.ack_floor[1]}"
    if a.pending.keys() != b.pending.keys():
        yield f"{len(b.pending)} messages are pending instead of {len(a.pending)}"
