"""Clients and subscriptions for the new store, without losing the position of any durable.

Facts: filestore.md sections 4.3 and weakness W16. Records that the server would delete or could never use are turned
into records that it keeps: a member of a durable queue group whose client is gone passes its position and its
pending messages to the group.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
import numpy.typing as npt

from stantools.format.crc import Crc
from stantools.format.layout import SubFlag
from stantools.store.logwriter import encode_live
from stantools.store.sublog import STATUSES, StoredSubscription, SubsState, SubStatus, SubTable

#: Changes of a channel's subscriptions that are listed one by one; the others are counted.
_MAX_LISTED = 1000


class KeptSubscriptions(Sequence[StoredSubscription]):
    """The subscriptions of one channel of the new store, by id; each object is made on access.

    `rows` of the table are kept as they are, except positions beyond `last`, the channel's last sequence in the new
    store. `changed` has different ones, by id.
    """

    def __init__(
        self, table: SubTable, rows: npt.NDArray[np.int64], last: int, changed: dict[int, StoredSubscription]
    ) -> None:
        self._table = table
        self._last = last
        self._changed = changed
        ids = np.asarray(table.ids)
        differ = np.flatnonzero(np.isin(ids, np.array(list(changed), np.uint64)))
        rows = np.union1d(rows, differ)
        self._rows = rows[np.argsort(ids[rows], kind="stable")]
        self._count = len(rows)
        self._beyond = (np.asarray(table.last_sent) > np.uint64(last)) | (table.last_pending() > np.uint64(last))
        for row in differ.tolist():
            one = changed[table.ids[row]]
            self._beyond[row] = one.state.last_sent > last or max(one.pending, default=0) > last

    def release(self) -> None:
        """Releases the memory after they are written; only their number stays."""
        count = len(self)
        self._table, self._rows = SubsState().subscriptions, np.zeros(0, np.int64)
        self._beyond, self._count = np.zeros(0, np.bool_), count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> StoredSubscription: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StoredSubscription]: ...
    def __getitem__(self, place: int | slice) -> StoredSubscription | Sequence[StoredSubscription]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        return self._clamped(int(self._rows[place]))

    def _clamped(self, row: int) -> StoredSubscription:
        """Takes back a position beyond the last message: new messages will get its sequences, and must be delivered."""
        one = self._changed.get(self._table.ids[row]) or self._table.at(row)
        one.state.last_sent = min(one.state.last_sent, self._last)
        one.pending = {sequence for sequence in one.pending if sequence <= self._last}
        return one

    def encoded(self, crc: Crc) -> Iterator[bytes]:
        """Yields the records of each as a compaction writes them."""
        table = self._table
        touched = self._beyond | (table.waiting > 0) | np.isin(table.ids, np.array(list(self._changed), np.uint64))
        for row in map(int, self._rows):
            copied = None if touched[row] else table.encoded(row)
            if copied is not None:
                yield copied
            else:
                one = self._clamped(row)
                yield encode_live(one.state, one.pending, crc)

    def changes(self) -> Iterator[str]:
        """Describes positions and pending sequences beyond the last message, which are taken back."""
        last, table = self._last, self._table
        rows = self._rows[self._beyond[self._rows]]
        for row in rows[:_MAX_LISTED].tolist():
            one = self._changed.get(table.ids[row]) or table.at(row)
            if one.state.last_sent > last:
                yield (
                    f"subscription {one.state.id}: last sent {one.state.last_sent} became {last}, the last "
                    "message, so that new messages are delivered"
                )
            if beyond := sum(sequence > last for sequence in one.pending):
                yield f"subscription {one.state.id}: {beyond} pending sequences beyond the last message were removed"
        if len(rows) > _MAX_LISTED:
            more = len(rows) - _MAX_LISTED
            yield f"{more} more subscriptions: positions beyond the last message {last} were taken back"


#: The subscriptions of a channel that has none.
NONE_KEPT = KeptSubscriptions(SubsState().subscriptions, np.zeros(0, np.int64), 0, {})


@dataclass
class SubscriptionPlan:
    """The subscriptions of one channel, and their changes."""

    subscriptions: KeptSubscriptions  #: to write, by id
    changes: list[str] = field(default_factory=list)  #: differences from the old file, in words
    dropped: list[str] = field(default_factory=list)  #: subscriptions that are left out, in words


def plan_subscriptions(state: SubsState, known_clients: Container[bytes], last_sequence: int) -> SubscriptionPlan:
    """Plans a channel's subscriptions, from the intact records of its subs.dat.

    `known_clients` are the ids of the new store's clients, `last_sequence` the channel's last sequence there, 0 if
    it has no messages.
    """
    table = state.subscriptions
    order = np.asarray(table.by_id, np.int64)
    statuses = np.frombuffer(table.statuses(known_clients), np.uint8)[order]
    orphan, ghost = (statuses == STATUSES.index(each) for each in (SubStatus.ORPHAN, SubStatus.GHOST))
    changes: list[str] = []
    orphans = order[orphan]
    dropped = [
        f"subscription {one.id}: not durable, and its client {os.fsdecode(one.client_id)!r} is gone"
        for one, _ in table.each(orphans[:_MAX_LISTED])
    ]
    if len(orphans) > _MAX_LISTED:
        dropped.append(f"{len(orphans) - _MAX_LISTED} more subscriptions: not durable, and their clients are gone")
    changed = _pass_positions(table, order[ghost], order[~orphan & ~ghost], changes) if ghost.any() else {}
    kept = KeptSubscriptions(table, order[~orphan & ~ghost], last_sequence, changed)
    return SubscriptionPlan(kept, changes + list(kept.changes()), dropped)


def _pass_positions(
    table: SubTable, ghosts: npt.NDArray[np.int64], kept: npt.NDArray[np.int64], changes: list[str]
) -> dict[int, StoredSubscription]:
    """Passes the position and pending messages of ghosts on to their groups, or makes one the shadow of its group."""
    durable = SubFlag.HAS_GROUP | SubFlag.IS_DURABLE
    groups: dict[bytes, list[StoredSubscription]] = {}
    for row in kept[np.asarray(table.flags)[kept] & durable == durable].tolist():
        member = table.at(row)
        groups.setdefault(member.state.q_group, []).append(member)
    changed: dict[int, StoredSubscription] = {}
    for row in ghosts.tolist():
        ghost = table.at(row)
        group = groups.setdefault(ghost.state.q_group, [])
        name = os.fsdecode(ghost.state.q_group)
        heirs = [each for each in group if each.state.client_id] or group
        if heirs:
            heir = min(heirs, key=lambda each: len(each.pending))
            heir.pending |= ghost.pending
            heir.state.last_sent = max(heir.state.last_sent, ghost.state.last_sent)
            changed[heir.state.id] = heir
            changes.append(
                f"subscription {ghost.state.id}: its client is gone; its position and {len(ghost.pending)} pending "
                f"messages went to subscription {heir.state.id} of the durable queue group {name!r}"
            )
            continue
        client = os.fsdecode(ghost.state.client_id)
        ghost.state.client_id = b""
        group.append(ghost)
        changed[ghost.state.id] = ghost
        changes.append(
            f"subscription {ghost.state.id}: its client {client!r} is gone; it became the shadow of the durable queue "
            f"group {name!r}, so that the group keeps its position"
        )
    return changed
