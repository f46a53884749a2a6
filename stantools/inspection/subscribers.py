"""Subscriptions and clients as people and programs want to see them: folded state, status, lag.

Facts: filestore specification, sections 4.1 to 4.4. The state is the one that the server recovers; where it would
refuse the file, whatever is intact in it is folded instead and the problem is told.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.clientlog import ClientsState, read_clients, salvage_clients
from stantools.store.mapping import mapped
from stantools.store.sublog import Subscription, SubsState, SubStatus, classify, read_subs, salvage_subs


def text(value: bytes) -> str:
    """Returns stored bytes as text; what is not UTF-8 becomes surrogate escapes, as in file names."""
    return value.decode("utf-8", "surrogateescape")


def as_ranges(sequences: Sequence[int]) -> list[tuple[int, int]]:
    """Joins ascending sequences to ranges (first, last)."""
    ranges: list[tuple[int, int]] = []
    for sequence in sequences:
        if ranges and ranges[-1][1] + 1 == sequence:
            ranges[-1] = (ranges[-1][0], sequence)
        else:
            ranges.append((sequence, sequence))
    return ranges


@dataclass(frozen=True)
class Subscriber:
    """A subscription with what follows from the channel and the clients around it.

    Attributes:
        state: Its state as recovered.
        pending: Sequences that were sent and not acknowledged, ascending.
        status: What the server makes of it.
        lag: Messages in the channel that were not sent to it yet; for a queue group not to any member.
    """

    state: pb.SubState
    pending: tuple[int, ...]
    status: SubStatus
    lag: int

    def as_json(self) -> dict[str, Any]:
        """Returns all fields of the stored state in snake_case, with pending, status and lag."""
        return subscription_json(self.state, self.pending, self.status) | {"lag": self.lag}


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


def subscribers(subs: SubsState, known_clients: Container[bytes], first_seq: int, last_seq: int) -> list[Subscriber]:
    """Puts the subscriptions of a channel beside its messages and the store's clients.

    Args:
        subs: The fold of the channel's subs.dat.
        known_clients: Ids of the clients recovered from clients.dat.
        first_seq: The channel's first sequence.
        last_seq: The channel's last sequence.
    """
    sent_to_group: dict[tuple[bytes, bool], int] = {}
    for each in subs.subscriptions.values():
        if each.state.q_group:
            key = (each.state.q_group, each.state.is_durable)
            sent_to_group[key] = max(sent_to_group.get(key, 0), each.state.last_sent)

    def lag(one: Subscription) -> int:
        sent = sent_to_group.get((one.state.q_group, one.state.is_durable), one.state.last_sent)
        return max(last_seq - max(sent, first_seq - 1), 0)

    return [
        Subscriber(one.state, tuple(sorted(one.pending)), classify(one.state, known_clients), lag(one))
        for _, one in sorted(subs.subscriptions.items())
    ]


def client_json(info: pb.ClientInfo) -> dict[str, Any]:
    """Returns all fields of a stored client in snake_case; the connection id as bytes."""
    return {
        "id": text(info.id),
        "hb_inbox": text(info.hb_inbox),
        "conn_id": info.conn_id,
        "protocol": info.protocol,
        "ping_interval": info.ping_interval,
        "ping_max_out": info.ping_max_out,
    }


@dataclass
class Clients:
    """The clients of a store.

    Attributes:
        state: The fold of clients.dat; empty if there is none or it cannot be read.
        problems: What is wrong with the file.
    """

    state: ClientsState = field(default_factory=ClientsState)
    problems: list[str] = field(default_factory=list)


@dataclass
class Subs:
    """The subscriptions of a channel.

    Attributes:
        state: The fold of subs.dat; empty if there is none or it cannot be read.
        problems: What is wrong with the file.
    """

    state: SubsState = field(default_factory=SubsState)
    problems: list[str] = field(default_factory=list)


def load_clients(path: Path | None, crc: Crc, *, check_crc: bool = True) -> Clients:
    """Folds clients.dat; never raises for what is in the file, or if it is missing."""
    if path is None:
        return Clients(problems=["is missing"])
    try:
        with mapped(path) as buffer:
            state = read_clients(buffer, crc, check_crc=check_crc)
            if not _stopped_early(state):
                return Clients(state)
            problems = [_why(state)]
            return Clients(salvage_clients(buffer, crc, check_crc=check_crc), problems)
    except StoreUnreadableError as error:
        return Clients(problems=[error.message])


def load_subs(path: Path | None, crc: Crc, *, check_crc: bool = True) -> Subs:
    """Folds a subs.dat; never raises for what is in the file. A missing one is no problem by itself."""
    if path is None:
        return Subs()
    try:
        with mapped(path) as buffer:
            state = read_subs(buffer, crc, check_crc=check_crc)
            if not _stopped_early(state):
                return Subs(state)
            problems = [_why(state)]
            return Subs(salvage_subs(buffer, crc, check_crc=check_crc), problems)
    except StoreUnreadableError as error:
        return Subs(problems=[error.message])


def _stopped_early(state: ClientsState | SubsState) -> bool:
    return state.end is not None and (bool(state.end.error) or state.end.offset < state.end.file_size)


def _why(state: ClientsState | SubsState) -> str:
    end = state.end
    assert end is not None
    reason = end.error or "no more records, but the file goes on"
    return f"the server stops reading at offset {end.offset} of {end.file_size}: {reason}"
