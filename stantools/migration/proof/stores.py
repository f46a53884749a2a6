"""Comparison of two stores: channels, messages with all their fields, subscriptions, clients, identity.

Only intact records are compared, as salvage would take them; the layout in files does not matter. Clients and
subscriptions of a clustered node are those of its Raft log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stantools.errors import StoreUnreadableError
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.message_batch import MessageBatch
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.inspection.node import fold
from stantools.migration.source import ChannelSource, SourceOptions, StoreSource, open_source
from stantools.notation import counted, describe_ranges
from stantools.progress import Progress
from stantools.store.clientlog import salvage_clients
from stantools.store.directory import CLIENTS_FILE, SERVER_FILE, Datastore
from stantools.store.mapping import mapped
from stantools.store.raftstate import ClusterState
from stantools.store.ranges import Ranges
from stantools.store.serverinfo import read_server_info
from stantools.store.sublog import StoredSubscription, salvage_subs

_U64 = npt.NDArray[np.uint64]

#: bytes compared at a time
_PIECE = 128 << 10
#: kinds of difference, in the order of the report
KINDS = ("missing", "extra", "timestamp", "reply", "payload")


class ChannelComparison:
    def __init__(self) -> None:
        self.both = 0  #: messages in both channels
        self._ranges = dict.fromkeys(KINDS, Ranges())

    def differing(self) -> Iterator[tuple[str, Ranges]]:
        """Yields each kind of difference with its sequences."""
        return ((kind, ranges) for kind, ranges in self._ranges.items() if ranges)

    def add(self, other: ChannelComparison) -> None:
        """Adds the result for other messages of the same channels."""
        self.both += other.both
        for kind, ranges in other.differing():
            self._ranges[kind] |= ranges

    def note(self, kind: str, sequences: _U64) -> None:
        """Records sequences with one kind of difference; there may be none."""
        if len(sequences):
            self._ranges[kind] |= Ranges.from_sequences(sequences)


class _StoreReader:
    def __init__(self, batches: Iterator[MessageBatch], progress: Progress | None) -> None:
        self._batches = batches
        self._progress = progress
        self._rest: MessageBatch | None = None

    def rest(self) -> MessageBatch | None:
        """Returns the rows of the current batch that were not compared yet; None at the end."""
        while not self._rest:
            self._rest = next(self._batches, None)
            if self._rest is None:
                return None
            if self._progress:
                sizes = int(self._rest.size.sum(dtype=np.int64))
                self._progress(sizes + RECORD_HEADER_SIZE * len(self._rest))
        return self._rest

    def up_to(self, sequence: np.uint64) -> MessageBatch:
        """Takes the rows of the current batch up to a sequence."""
        batch = self._rest
        assert batch is not None
        end = int(np.searchsorted(batch.stream_sequence, sequence, side="right"))
        self._rest = batch.part(end, len(batch))
        return batch.part(0, end)


def compare_messages(
    a: Iterator[MessageBatch], b: Iterator[MessageBatch], progress: Progress | None = None
) -> ChannelComparison:
    """Compares the messages of two channels, both in rising order. `progress` gets bytes of both channels."""
    compared = ChannelComparison()
    one, other = _StoreReader(a, progress), _StoreReader(b, progress)
    while True:
        left, right = one.rest(), other.rest()
        if left is None or right is None:
            break
        bound = min(left.stream_sequence[-1], right.stream_sequence[-1])
        _compare_rows(compared, one.up_to(bound), other.up_to(bound))
    for reader, kind in ((one, "missing"), (other, "extra")):
        while (rest := reader.rest()) is not None:
            compared.note(kind, reader.up_to(rest.stream_sequence[-1]).stream_sequence)
    return compared


def _compare_rows(compared: ChannelComparison, one: MessageBatch, other: MessageBatch) -> None:
    a, b = one.stream_sequence, other.stream_sequence
    if not np.array_equal(a, b):
        common, here, there = np.intersect1d(a, b, assume_unique=True, return_indices=True)
        compared.note("missing", a[~np.isin(a, common, assume_unique=True)])
        compared.note("extra", b[~np.isin(b, common, assume_unique=True)])
        one, other = one.pick(here), other.pick(there)
    if not len(one):
        return
    compared.both += len(one)
    compared.note("timestamp", one.stream_sequence[one.timestamp != other.timestamp])
    if _same_bytes(one, other):
        return
    for kind, contents in (("payload", MessageBatch.payloads), ("reply", MessageBatch.replies)):
        differs = [mine != theirs for mine, theirs in zip(contents(one), contents(other), strict=True)]
        compared.note(kind, one.stream_sequence[np.array(differs)])


def _same_bytes(one: MessageBatch, other: MessageBatch) -> bool:
    """Returns whether payloads and replies lie in the same order between equal bytes, a quick test."""
    starts, sizes = _places(one)
    other_starts, other_sizes = _places(other)
    if not np.array_equal(sizes, other_sizes):
        return False
    if not len(filled := np.flatnonzero(sizes)):
        return True
    starts, other_starts, sizes = starts[filled], other_starts[filled], sizes[filled]
    shift = int(other_starts[0] - starts[0])
    if not np.array_equal(starts + shift, other_starts):
        return False
    begin, end = int(starts.min()), int((starts + sizes).max())
    mine = np.frombuffer(one.buffer, np.uint8)[begin:end]
    theirs = np.frombuffer(other.buffer, np.uint8)[begin + shift : end + shift]
    # In pieces: numpy allocates the result of a comparison, which has to stay in the processor's cache.
    return all(np.array_equal(mine[at : at + _PIECE], theirs[at : at + _PIECE]) for at in range(0, len(mine), _PIECE))


def _places(batch: MessageBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    starts = np.concatenate((batch.data_start, batch.reply_start))
    return starts, np.concatenate((batch.data_size, batch.reply_size)).astype(np.int64)


_MANY = 6


@dataclass
class StoresDifference:
    findings: list[Finding] = field(default_factory=list)
    channels: int = 0  #: channels in both stores
    messages: int = 0  #: messages in both stores
    #: for each store: something in it is damaged and was not compared
    damaged: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Side:
    store: Datastore  #: the store with its messages
    #: result of a clustered node's Raft log; None for a store by itself
    state: ClusterState | None = None

    def server(self) -> pb.ServerInfo | None:
        """The server's identity, if the store has one."""
        if self.store.server is None:
            return None
        with mapped(self.store.server) as buffer:
            return read_server_info(memoryview(bytes(buffer)), self.store.crc).info

    def clients(self) -> Mapping[bytes, pb.ClientInfo]:
        if self.state is not None:
            return self.state.clients
        if self.store.clients is None:
            return {}
        with mapped(self.store.clients) as buffer:
            return salvage_clients(buffer, self.store.crc).clients

    def subscriptions(self, channel: str) -> Mapping[int, StoredSubscription]:
        if self.state is not None:
            known = self.state.channels.get(os.fsencode(channel))
            return fold(known).subscriptions if known else {}
        try:
            files = self.store.channel(channel)
        except StoreUnreadableError:
            return {}  # its messages lie in the directory of another channel
        if files.subs is None:
            return {}
        with mapped(files.subs) as buffer:
            return salvage_subs(buffer, self.store.crc).subscriptions


def compare_stores(
    first: Datastore,
    second: Datastore,
    *,
    states: tuple[ClusterState | None, ClusterState | None] = (None, None),
    patterns: Sequence[str] = (),
    workers: int = 2,
    progress: Progress | None = None,
) -> StoresDifference:
    """Compares two stores, read-only.

    `states` are the results of the Raft logs of clustered nodes. Without `patterns` (NATS wildcards) all channels,
    clients and the identity are compared. `workers` slices are scanned in parallel. `progress` gets bytes twice:
    scanned, compared.
    """
    a, b = (
        open_source(store, SourceOptions(tuple(patterns), workers=workers), progress=progress)
        for store in (first, second)
    )
    result = StoresDifference(damaged=(a.plan.lossy, b.plan.lossy))
    sides = Side(first, states[0]), Side(second, states[1])
    if not patterns:
        result.findings += root_differences(*sides)
    finish = first.key is not None or second.key is not None
    for one, other in channel_pairs(a, b):
        if one and other:
            compared = compare_messages(one.read(finish=finish), other.read(finish=finish), progress)
            add_channel(result, sides, one, compared)
        else:
            result.findings.append(only_in_one(one, other))
    return result


def channel_pairs(a: StoreSource, b: StoreSource) -> Iterator[tuple[ChannelSource | None, ChannelSource | None]]:
    """Yields the channels of two stores by name; None for a channel that one of them lacks."""
    ones = {channel.raw_name: channel for channel in a.channels}
    others = {channel.raw_name: channel for channel in b.channels}
    return ((ones.get(name), others.get(name)) for name in sorted(ones.keys() | others.keys()))


def root_differences(first: Side, second: Side) -> list[Finding]:
    findings = []
    # two nodes of a cluster have different ids
    without = ("node_id",) if first.state is not None and second.state is not None else ()
    for text in _field_differences(first.server(), second.server(), without):
        findings.append(finding("server-differs", text, file=SERVER_FILE))
    a, b = first.clients(), second.clients()
    file = CLIENTS_FILE if first.state is None and second.state is None else None
    for name in sorted(a.keys() | b.keys()):
        for text in _field_differences(a.get(name), b.get(name)):
            text = f"client {name.decode('utf-8', 'replace')}: {text}"
            findings.append(finding("client-differs", text, file=file))
    return findings


def only_in_one(a: ChannelSource | None, b: ChannelSource | None) -> Finding:
    only = a or b
    assert only is not None
    detail = f"{counted(only.count, 'message')}, {counted(len(only.subscriptions), 'subscription')}"
    return finding(_ONLY[a is None], detail, channel=only.name)


def add_channel(
    result: StoresDifference, sides: tuple[Side, Side], channel: ChannelSource, compared: ChannelComparison
) -> None:
    """Adds the comparison of a channel's messages, and compares its subscriptions."""
    result.channels += 1
    result.messages += compared.both
    for kind, ranges in compared.differing():
        detail = f"{counted(ranges.count(), 'message')}: {describe_ranges(ranges)}"
        result.findings.append(finding(_CODES[kind], detail, channel=channel.name, seq=ranges.first))
    if not channel.origin:
        result.findings += _subscriptions(sides, channel.name)


_ONLY = {False: "channel-missing", True: "channel-extra"}
_CODES = {
    "missing": "message-missing",
    "extra": "message-extra",
    "timestamp": "message-timestamp",
    "reply": "message-reply",
    "payload": "message-payload",
}


def _subscriptions(sides: tuple[Side, Side], channel: str) -> Iterator[Finding]:
    a, b = (each.subscriptions(channel) for each in sides)
    for number in sorted(a.keys() | b.keys()):
        one, other = a.get(number), b.get(number)
        state = (one or other or next(iter(a.values()))).state
        texts = list(_field_differences(one.state if one else None, other.state if other else None))
        if one and other and one.pending != other.pending:
            texts.append(_pending_difference(one.pending, other.pending))
        if texts:
            parts = (("client", state.client_id), ("durable", state.durable_name), ("queue group", state.q_group))
            names = ", ".join(f"{word} {value.decode('utf-8', 'replace')}" for word, value in parts if value)
            detail = f"subscription {number} ({names or 'no name'}): {'; '.join(texts)}"
            yield finding("subscription-differs", detail, channel=channel, seq=number)


def _pending_difference(a: set[int], b: set[int]) -> str:
    texts = []
    for word, extra in (("only in the first", a - b), ("only in the second", b - a)):
        if extra:
            listed = ", ".join(map(str, sorted(extra)[:_MANY])) + (", …" if len(extra) > _MANY else "")
            texts.append(f"{len(extra)} {word} ({listed})")
    return f"pending messages: {', '.join(texts)}"


def _field_differences(a: Any, b: Any, without: Sequence[str] = ()) -> Iterator[str]:
    """Compares two messages of one type field by field; None is a missing message."""
    if a is None and b is None:
        return
    if a is None or b is None:
        yield "only in the second store" if a is None else "only in the first store"
        return
    for each in a.DESCRIPTOR.fields:
        one, other = getattr(a, each.name), getattr(b, each.name)
        if one != other and each.name not in without:
            yield f"{each.name} is {_value(other)} instead of {_value(one)}"


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        return repr(value.decode("utf-8", "replace"))
    return repr(value)


def in_both(messages: int, channels: int) -> str:
    verb = "is" if messages == 1 else "are"
    return f"{counted(messages, 'message')} in {counted(channels, 'channel')} {verb} in both stores"
