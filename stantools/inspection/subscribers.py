"""Subscriptions and clients for display and output: folded state, status, lag.

Facts: filestore.md sections 4.1 to 4.4. The state is the one that the server recovers; where it would refuse the
file, all intact records are folded instead and the problem is reported.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar, overload

from google.protobuf.message import Message

from stantools.errors import StoreUnreadableError
from stantools.escaping import text
from stantools.format.crc import Crc
from stantools.format.layout import SubFlag
from stantools.format.proto import store_pb2 as pb
from stantools.store.clientlog import ClientsState, read_clients, salvage_clients
from stantools.store.directory import FileSnapshot
from stantools.store.logscan import LogState
from stantools.store.mapping import Buffer, mapped
from stantools.store.sublog import STATUSES, SubsState, SubStatus, by_flags, read_subs, salvage_subs

S = TypeVar("S", bound=LogState)
_GROUPED = by_flags(lambda flags: flags & int(SubFlag.HAS_GROUP))


def as_ranges(sequences: Sequence[int]) -> list[tuple[int, int]]:
    """Joins ascending sequences into ranges (first, last)."""
    ranges: list[tuple[int, int]] = []
    for sequence in sequences:
        if ranges and ranges[-1][1] + 1 == sequence:
            ranges[-1] = (ranges[-1][0], sequence)
        else:
            ranges.append((sequence, sequence))
    return ranges


def first_ranges(sequences: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Joins ascending, distinct sequences into at most `limit` ranges.

    The time depends on the number of ranges, not of sequences.
    """
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(sequences) and len(ranges) < limit:
        # Sequences rise by one at least, so a part without a gap can be found by bisection.
        inside, outside = at, len(sequences)
        while outside - inside > 1:
            middle = (inside + outside) // 2
            if sequences[middle] - sequences[at] == middle - at:
                inside = middle
            else:
                outside = middle
        ranges.append((sequences[at], sequences[inside]))
        at = outside
    return ranges


class Subscriber(NamedTuple):
    """A subscription with values derived from its channel and clients."""

    state: pb.SubState  #: state as recovered
    pending: tuple[int, ...]  #: sequences sent and not acknowledged, ascending
    status: SubStatus  #: the server's treatment of it
    lag: int  #: messages in the channel that were not sent to it yet; for a queue group, not to any member

    @property
    def kind(self) -> str:
        """Its kind: plain, durable, queue, or durable queue."""
        if self.state.q_group:
            return "durable queue" if self.state.is_durable else "queue"
        return "durable" if self.state.durable_name else "plain"

    @property
    def name(self) -> str:
        """Name of its durable or queue group, "" if it has none."""
        return text(self.state.q_group or self.state.durable_name)

    @property
    def at_limit(self) -> bool:
        """The maximum number of messages is pending: the server sends nothing more before an acknowledgement."""
        return 0 < self.state.max_in_flight <= len(self.pending)

    def as_json(self) -> dict[str, Any]:
        """Returns all fields of the stored state in snake_case, with pending, status and lag."""
        return subscription_json(self.state, self.pending, self.status) | {"lag": self.lag}


def fields_json(message: Message) -> dict[str, Any]:
    """Returns all fields of a stored record in snake_case; names as text, the connection id as bytes."""
    values = {name: getattr(message, name) for name in message.DESCRIPTOR.fields_by_name}
    return {
        name: text(value) if isinstance(value, bytes) and name != "conn_id" else value for name, value in values.items()
    }


def subscription_json(state: pb.SubState, pending: Iterable[int], status: SubStatus) -> dict[str, Any]:
    """Returns all fields of a stored subscription in snake_case, with its pending sequences and status."""
    return {
        "id": state.id,
        "client_id": text(state.client_id),
        "q_group": text(state.q_group),
        "inbox": text(state.inbox),
        "ack_inbox": text(state.ack_inbox),
        "max_in_flight": state.max_in_flight,
        "ack_wait_in_secs": state.ack_wait_in_secs,
        "durable_name": text(state.durable_name),
        "last_sent": state.last_sent,
        "is_durable": state.is_durable,
        "is_closed": state.is_closed,
        "pending": list(pending),
        "status": status.value,
    }


class SubscriberList(Sequence[Subscriber]):
    """The subscriptions of a channel by id; `first_seq` and `last_seq` are those of the channel.

    There may be millions: each object is made on access.
    """

    def __init__(
        self, subs: SubsState, known_clients: Container[bytes] = (), first_seq: int = 0, last_seq: int = 0
    ) -> None:
        self._table = table = subs.subscriptions
        self._rows = table.by_id
        # By row of the table:
        self._statuses = table.statuses(known_clients)
        self._sent = table.last_sent
        self._bounds = max(first_seq - 1, 0), last_seq
        # A message sent to any member counts as sent to the queue group.
        groups: dict[tuple[bytes, bool], list[int]] = {}
        grouped = table.rows(_GROUPED)
        for row, (state, _) in zip(grouped, table.each(grouped), strict=True):
            groups.setdefault((state.q_group, state.is_durable), []).append(row)
        if groups:
            self._sent = self._sent[:]
        for members in groups.values():
            last_sent = max(map(table.last_sent.__getitem__, members))
            for row in members:
                self._sent[row] = last_sent

    def _lag(self, row: int) -> int:
        removed, last = self._bounds
        return max(last - max(self._sent[row], removed), 0)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Subscriber: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Subscriber]: ...
    def __getitem__(self, place: int | slice) -> Subscriber | Sequence[Subscriber]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        row = self._rows[place]
        return self._subscriber(row, self._table.state(row), self._table.pending(row))

    def __iter__(self) -> Iterator[Subscriber]:
        for row, (state, pending) in zip(self._rows, self._table.each(self._rows), strict=True):
            yield self._subscriber(row, state, pending)

    def _subscriber(self, row: int, state: pb.SubState, pending: Iterable[int]) -> Subscriber:
        return Subscriber(state, tuple(pending), STATUSES[self._statuses[row]], self._lag(row))

    def having(self, *statuses: SubStatus) -> Self:
        """Returns the subscriptions with some statuses, by id."""
        wanted = {STATUSES.index(each) for each in statuses}
        return self._select(row for row in self._rows if self._statuses[row] in wanted)

    def beyond(self, last: int) -> Self:
        """Returns the subscriptions that a server keeps although they stand beyond a channel's last sequence, by id."""
        dropped = STATUSES.index(SubStatus.ORPHAN)
        sent, statuses = self._table.last_sent, self._statuses
        return self._select(row for row in self._rows if sent[row] > last and statuses[row] != dropped)

    @property
    def furthest(self) -> int:
        """The highest sequence that was sent to any of them."""
        return max((self._table.last_sent[row] for row in self._rows), default=0)

    def with_ids(self, ids: Iterable[int]) -> Self:
        """Returns the subscriptions with the given ids, by id."""
        wanted = set(ids)
        return self._select(row for row in self._rows if self._table.ids[row] in wanted)

    def _select(self, rows: Iterable[int]) -> Self:
        part = copy(self)
        part._rows = array("q", rows)
        return part

    def with_most_lag(self, limit: int) -> Sequence[Subscriber]:
        """Returns up to `limit` subscriptions, those with the greatest lag first."""
        places = heapq.nlargest(limit, range(len(self)), key=lambda place: (self._lag(self._rows[place]), place))
        return [self[place] for place in places]

    def count(self, status: SubStatus) -> int:
        return bytes(map(self._statuses.__getitem__, self._rows)).count(STATUSES.index(status))


#: The subscriptions of a channel that has none.
NO_SUBSCRIPTIONS = SubscriberList(SubsState())


@dataclass(frozen=True)
class QueueGroupSummary:
    """The subscriptions of a channel that share its messages."""

    name: str  #: name of the group; of a durable one, after the durable's name, as stored
    durable: bool  #: it outlives its members
    #: Its subscriptions, by id, including the one that keeps the position of a group without members.
    members: tuple[Subscriber, ...]

    @property
    def last_sent(self) -> int:
        """Highest sequence that was sent to any member."""
        return max(each.state.last_sent for each in self.members)

    @property
    def pending(self) -> int:
        """Messages sent to members and not acknowledged."""
        return sum(len(each.pending) for each in self.members)

    @property
    def lag(self) -> int:
        """Messages not sent to any member yet."""
        return max(each.lag for each in self.members)

    @property
    def present(self) -> int:
        """Number of members whose client is known."""
        return sum(each.status is SubStatus.ACTIVE for each in self.members)

    @property
    def away(self) -> int:
        """Number of members whose client is missing, without the one that only keeps the position."""
        return sum(each.status not in (SubStatus.ACTIVE, SubStatus.SHADOW) for each in self.members)


def queue_groups(subscriptions: Iterable[Subscriber]) -> list[QueueGroupSummary]:
    """Returns the queue groups among a channel's subscriptions, in the order of their first member."""
    groups: dict[tuple[bytes, bool], list[Subscriber]] = {}
    for each in subscriptions:
        if each.state.q_group:
            groups.setdefault((each.state.q_group, each.state.is_durable), []).append(each)
    return [QueueGroupSummary(text(name), durable, tuple(members)) for (name, durable), members in groups.items()]


@dataclass
class FoldedLog(Generic[S]):
    """The folded content of clients.dat or a subs.dat."""

    state: S  #: empty if there is no file or it cannot be read
    problems: list[str] = field(default_factory=list)  #: problems of the file


def load_clients(path: Path | None, crc: Crc) -> FoldedLog[ClientsState]:
    """Folds clients.dat; never raises for its content, or if it is missing."""
    if path is None:
        return FoldedLog(ClientsState(), ["is missing"])
    return _load(path, crc, read_clients, salvage_clients, ClientsState)


def load_subs(path: Path | None, crc: Crc, snapshot: FileSnapshot | None = None) -> FoldedLog[SubsState]:
    """Folds a subs.dat, up to its size when `snapshot`; never raises for its content. A missing file is no problem."""
    return FoldedLog(SubsState()) if path is None else _load(path, crc, read_subs, salvage_subs, SubsState, snapshot)


def _load(
    path: Path,
    crc: Crc,
    read: Callable[[Buffer, Crc], S],
    salvage: Callable[[Buffer, Crc], S],
    nothing: Callable[[], S],
    snapshot: FileSnapshot | None = None,
) -> FoldedLog[S]:
    try:
        with mapped(path, snapshot=snapshot) as buffer:
            state = read(buffer, crc)
            if (end := state.end) is None or not end.early:
                return FoldedLog(state)
            reason = end.error or "no more records, but the file continues"
            problem = f"the server stops reading at offset {end.offset} of {end.file_size}: {reason}"
            return FoldedLog(salvage(buffer, crc), [problem])
    except StoreUnreadableError as error:
        return FoldedLog(nothing(), [error.message])
