"""Whether two stores hold the same: channels, messages with all their fields, subscriptions, clients, identity.

What is compared is what is intact, as salvage would take it; how it is laid out in files does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stantools.errors import StoreUnreadableError
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.batches import Piece
from stantools.migration.source import ChannelSource, SourceOptions, StoreSource, open_source
from stantools.notation import counted, describe_ranges
from stantools.progress import Progress
from stantools.store.clientlog import salvage_clients
from stantools.store.directory import CLIENTS_FILE, SERVER_FILE, Datastore
from stantools.store.mapping import Buffer, mapped
from stantools.store.ranges import Ranges
from stantools.store.serverinfo import read_server_info
from stantools.store.sublog import Subscription, salvage_subs

_U64 = npt.NDArray[np.uint64]
_Rows = npt.NDArray[np.intp]

#: What can differ, in the order in which it is told.
KINDS = ("missing", "extra", "timestamp", "reply", "payload")


class Compared:
    """What a comparison of two channels came to.

    Attributes:
        both: Messages that both have.
    """

    def __init__(self) -> None:
        self.both = 0
        self._ranges = dict.fromkeys(KINDS, Ranges())

    def differing(self) -> Iterator[tuple[str, Ranges]]:
        """Yields each kind of difference there is, with the sequences."""
        return ((kind, ranges) for kind, ranges in self._ranges.items() if ranges)

    def add(self, other: Compared) -> None:
        """Adds what a comparison of other messages of the same channels came to."""
        self.both += other.both
        for kind, ranges in other.differing():
            self._ranges[kind] |= ranges

    def note(self, kind: str, sequences: _U64) -> None:
        """Takes note that sequences, which may be none, differ in one way."""
        if len(sequences):
            self._ranges[kind] |= Ranges.from_sequences(sequences)


class _Reader:
    """Goes through the pieces of one side.

    Attributes:
        buffer: What the columns of the present piece point into.
        columns: The present piece.
        at: Its first row that was not compared yet.
    """

    def __init__(self, pieces: Iterator[Piece], progress: Progress | None) -> None:
        self._pieces = pieces
        self._progress = progress
        self.buffer: Buffer = memoryview(b"")
        self.columns = MessageColumns(0)
        self.at = 0

    def load(self) -> bool:
        """Makes sure that there is a row to compare; False at the end."""
        while self.at == len(self.columns.sequence):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self.buffer, self.columns = piece
            self.at = 0
            if self._progress:
                sizes = int(self.columns.size.sum(dtype=np.int64))
                self._progress(sizes + RECORD_HEADER_SIZE * len(self.columns.size))
        return True

    @property
    def last(self) -> int:
        """The last sequence of the present piece."""
        return int(self.columns.sequence[-1])

    def up_to(self, sequence: int) -> slice:
        """Takes the rows up to a sequence."""
        end = int(np.searchsorted(self.columns.sequence, np.uint64(sequence), side="right"))
        rows, self.at = slice(self.at, end), end
        return rows


def compare_pieces(a: Iterator[Piece], b: Iterator[Piece], progress: Progress | None = None) -> Compared:
    """Compares the messages of two channels, each given in rising order.

    Args:
        a: Those of the first.
        b: Those of the second.
        progress: Told the number of bytes of both as they are compared.
    """
    compared = Compared()
    one, other = _Reader(a, progress), _Reader(b, progress)
    while True:
        left, right = one.load(), other.load()
        if not (left and right):
            break
        bound = min(one.last, other.last)
        rows, other_rows = one.up_to(bound), other.up_to(bound)
        _compare_rows(compared, one, rows, other, other_rows)
    for reader, kind in ((one, "missing"), (other, "extra")):
        while reader.load():
            compared.note(kind, reader.columns.sequence[reader.at :])
            reader.at = len(reader.columns.sequence)
    return compared


def _compare_rows(compared: Compared, one: _Reader, rows: slice, other: _Reader, other_rows: slice) -> None:
    a, b = one.columns.sequence[rows], other.columns.sequence[other_rows]
    if np.array_equal(a, b):
        here: _Rows = np.arange(rows.start, rows.stop)
        there: _Rows = np.arange(other_rows.start, other_rows.stop)
    else:
        common, here, there = np.intersect1d(a, b, assume_unique=True, return_indices=True)
        compared.note("missing", a[~np.isin(a, common, assume_unique=True)])
        compared.note("extra", b[~np.isin(b, common, assume_unique=True)])
        here, there = here + rows.start, there + other_rows.start
    if not len(here):
        return
    compared.both += len(here)
    sequences = one.columns.sequence[here]
    compared.note("timestamp", sequences[one.columns.timestamp[here] != other.columns.timestamp[there]])
    if _same_bytes(one, here, other, there):
        return
    for kind, start, size in (("payload", "data_start", "data_size"), ("reply", "reply_start", "reply_size")):
        parts, other_parts = _parts(one, here, start, size), _parts(other, there, start, size)
        differs = [x != y for x, y in zip(parts, other_parts, strict=True)]
        compared.note(kind, sequences[np.array(differs)])


def _same_bytes(one: _Reader, here: _Rows, other: _Reader, there: _Rows) -> bool:
    """Returns whether payloads and replies lie in the same order between the same bytes, which is quick to find out."""
    starts, sizes = _places(one, here)
    other_starts, other_sizes = _places(other, there)
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
    return np.array_equal(mine, np.frombuffer(other.buffer, np.uint8)[begin + shift : end + shift])


def _places(reader: _Reader, rows: _Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    columns = reader.columns
    starts = np.concatenate((columns.data_start[rows], columns.reply_start[rows]))
    sizes = np.concatenate((columns.data_size[rows], columns.reply_size[rows])).astype(np.int64)
    return starts, sizes


def _parts(reader: _Reader, rows: _Rows, start: str, size: str) -> Iterator[bytes]:
    starts, sizes = getattr(reader.columns, start)[rows].tolist(), getattr(reader.columns, size)[rows].tolist()
    return (bytes(reader.buffer[at : at + length]) for at, length in zip(starts, sizes, strict=True))


_MANY = 6


@dataclass(frozen=True)
class Side:
    """One of the two stores.

    Attributes:
        store: The store.
        crc: Its CRC.
        key: Its encryption key; None compares payloads as they are stored.
    """

    store: Datastore
    crc: Crc
    key: bytes | None = None


@dataclass
class StoresDifference:
    """What a comparison of two stores came to.

    Attributes:
        findings: What differs.
        channels: Channels that both have.
        messages: Messages that both have.
        damaged: For each store, whether something in it is damaged and so was not compared.
    """

    findings: list[Finding] = field(default_factory=list)
    channels: int = 0
    messages: int = 0
    damaged: tuple[bool, bool] = (False, False)


def compare_stores(
    first: Side, second: Side, *, patterns: Sequence[str] = (), workers: int = 2, progress: Progress | None = None
) -> StoresDifference:
    """Compares two stores; changes neither.

    Args:
        first: What should be.
        second: What is compared with it.
        patterns: Channels to compare, with NATS wildcards; none compares all of both, and clients and identity.
        workers: Slices that are scanned at the same time.
        progress: Told the number of bytes as they are scanned, and once more as they are compared.

    Raises:
        StoreUnreadableError: A file has changed meanwhile, or cannot be read.
        DecryptError: A payload cannot be decrypted.
    """
    a, b = (
        open_source(
            side.store, side.crc, SourceOptions(tuple(patterns), key=side.key, workers=workers), progress=progress
        )
        for side in (first, second)
    )
    result = StoresDifference(damaged=(a.lossy, b.lossy))
    sides = (first, second)
    if not patterns:
        result.findings += root_differences(*sides)
    finish = first.key is not None or second.key is not None
    for one, other in channel_pairs(a, b):
        if one and other:
            compared = compare_pieces(one.pieces(finish=finish), other.pieces(finish=finish), progress)
            add_channel(result, sides, one, compared)
        else:
            result.findings.append(only_in_one(one, other))
    return result


def channel_pairs(a: StoreSource, b: StoreSource) -> Iterator[tuple[ChannelSource | None, ChannelSource | None]]:
    """Yields the channels of two stores by name, None where one has no such channel."""
    ones = {channel.raw_name: channel for channel in a.channels}
    others = {channel.raw_name: channel for channel in b.channels}
    return ((ones.get(name), others.get(name)) for name in sorted(ones.keys() | others.keys()))


def root_differences(first: Side, second: Side) -> list[Finding]:
    """Compares what two stores hold besides channels: identity and clients."""
    return [*_identity(first, second), *_clients(first, second)]


def only_in_one(a: ChannelSource | None, b: ChannelSource | None) -> Finding:
    """Makes the finding of a channel that only one of the stores has."""
    only = a or b
    assert only is not None
    detail = f"{counted(only.count, 'message')}, {counted(len(only.subscriptions), 'subscription')}"
    return finding(_ONLY[a is None], detail, channel=only.name)


def add_channel(result: StoresDifference, sides: tuple[Side, Side], channel: ChannelSource, compared: Compared) -> None:
    """Adds what the comparison of a channel's messages came to, and compares its subscriptions."""
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


def _identity(first: Side, second: Side) -> Iterator[Finding]:
    a, b = (_server(side) for side in (first, second))
    for text in _field_differences(a, b):
        yield finding("server-differs", text, file=SERVER_FILE)


def _server(side: Side) -> pb.ServerInfo | None:
    if side.store.server is None:
        return None
    with mapped(side.store.server) as buffer:
        return read_server_info(memoryview(bytes(buffer)), side.crc).info


def _clients(first: Side, second: Side) -> Iterator[Finding]:
    a, b = (_registered(side) for side in (first, second))
    for name in sorted(a.keys() | b.keys()):
        for text in _field_differences(a.get(name), b.get(name)):
            yield finding("client-differs", f"client {name.decode('utf-8', 'replace')}: {text}", file=CLIENTS_FILE)


def _registered(side: Side) -> Mapping[bytes, pb.ClientInfo]:
    if side.store.clients is None:
        return {}
    with mapped(side.store.clients) as buffer:
        return salvage_clients(buffer, side.crc).clients


def _subscriptions(sides: tuple[Side, Side], channel: str) -> Iterator[Finding]:
    a, b = (_folded(side, channel) for side in sides)
    for number in sorted(a.keys() | b.keys()):
        one, other = a.get(number), b.get(number)
        state = (one or other or next(iter(a.values()))).state
        texts = list(_field_differences(one.state if one else None, other.state if other else None))
        if one and other and one.pending != other.pending:
            texts.append(_pending_difference(one.pending, other.pending))
        if texts:
            detail = f"subscription {number} ({_named(state)}): {'; '.join(texts)}"
            yield finding("subscription-differs", detail, channel=channel, seq=number)


def _folded(side: Side, channel: str) -> Mapping[int, Subscription]:
    try:
        files = side.store.channel(channel)
    except StoreUnreadableError:
        return {}  # its messages lie in the directory of another channel
    if files.subs is None:
        return {}
    with mapped(files.subs) as buffer:
        return salvage_subs(buffer, side.crc).subscriptions


def _named(state: pb.SubState) -> str:
    parts = (("client", state.client_id), ("durable", state.durable_name), ("queue group", state.q_group))
    return ", ".join(f"{word} {value.decode('utf-8', 'replace')}" for word, value in parts if value) or "no name"


def _pending_difference(a: set[int], b: set[int]) -> str:
    texts = []
    for word, extra in (("only in the first", a - b), ("only in the second", b - a)):
        if extra:
            listed = ", ".join(map(str, sorted(extra)[:_MANY])) + (", …" if len(extra) > _MANY else "")
            texts.append(f"{len(extra)} {word} ({listed})")
    return f"pending messages: {', '.join(texts)}"


def _field_differences(a: Any, b: Any) -> Iterator[str]:
    """Compares two messages of the same type field by field; None is one that is not there."""
    if a is None and b is None:
        return
    if a is None or b is None:
        yield "only in the second store" if a is None else "only in the first store"
        return
    for each in a.DESCRIPTOR.fields:
        one, other = getattr(a, each.name), getattr(b, each.name)
        if one != other:
            yield f"{each.name} is {_value(other)} instead of {_value(one)}"


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        return repr(value.decode("utf-8", "replace"))
    return repr(value)
