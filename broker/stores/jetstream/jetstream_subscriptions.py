"""The subscriptions of a channel, as records of the state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.stores.interface import Flush, RecoveredSubscription, StorageError
from stantools.format.proto import store_pb2 as pb
from stantools.nats.channel_streams import SUBSCRIPTION, encode_members
from stantools.store.sublog import StoredSubscription

if TYPE_CHECKING:
    from broker.stores.jetstream.state import BrokerState
    from stantools.store.limits import ChannelLimits


@dataclass(slots=True, eq=False)
class SubscriptionRecord:
    """A subscription, or all members of a queue group: they share one record."""

    subject: bytes
    members: dict[int, StoredSubscription] = field(default_factory=dict)
    last: int = 0  #: last sequence that was sent to any member

    @property
    def gone(self) -> bool:
        return not self.members

    def encode(self, largest: int) -> bytes:
        """Returns the record, empty if there are no members any more."""
        try:
            return encode_members(list(self.members.values()), self.last, largest) if self.members else b""
        except ValueError as problem:
            raise StorageError(str(problem)) from problem


class JetStreamSubscriptions:
    """A `SubscriptionStore`. `found` has the existing records, by subject."""

    def __init__(
        self,
        channel: bytes,
        limits: ChannelLimits,
        state: BrokerState,
        found: Iterable[tuple[bytes, list[StoredSubscription]]] = (),
    ) -> None:
        self._prefix = SUBSCRIPTION + channel + b"."
        self._limits = limits
        self._state = state
        self._units: dict[int, SubscriptionRecord] = {}
        self._groups: dict[bytes, SubscriptionRecord] = {}
        self._changed: dict[SubscriptionRecord, None] = {}
        self._last_id = 0
        for subject, members in found:
            unit = SubscriptionRecord(subject)
            state.add(unit)
            for member in members:
                unit.members[member.state.id] = member
                unit.last = max(unit.last, member.state.last_sent)
                self._units[member.state.id] = unit
                self._last_id = max(self._last_id, member.state.id, int(subject.rpartition(b".")[2]))
                if member.state.q_group:
                    self._groups[member.state.q_group] = unit

    def recovered(self) -> list[RecoveredSubscription]:
        return [
            RecoveredSubscription(_copy(unit.members[number].state), sorted(unit.members[number].pending))
            for number, unit in sorted(self._units.items())
        ]

    @property
    def last(self) -> int:
        """The last sequence that was sent to any subscription."""
        return max((unit.last for unit in self._units.values()), default=0)

    def create(self, state: pb.SubState) -> None:
        if 0 < self._limits.max_subs <= len(self._units):
            state.id = 0
            raise StorageError("too many subscriptions per channel")
        self._last_id += 1
        state.id = self._last_id
        unit = self._groups.get(state.q_group) if state.q_group else None
        if unit is None:
            unit = SubscriptionRecord(self._prefix + b"%d" % state.id, last=state.last_sent)
            if state.q_group:
                self._groups[state.q_group] = unit
        unit.members[state.id] = StoredSubscription(_copy(state), set())
        self._units[state.id] = unit
        self._changed[unit] = None

    def update(self, state: pb.SubState) -> None:
        unit = self._units.get(state.id)
        if unit is None:
            raise StorageError("not found")
        unit.members[state.id].state = _copy(state)
        self._changed[unit] = None

    def delete(self, subscription: int) -> None:
        unit = self._units.pop(subscription, None)
        if unit is None:
            return
        group = unit.members.pop(subscription).state.q_group
        if not unit.members and self._groups.get(group) is unit:
            del self._groups[group]
        self._changed[unit] = None

    def sent(self, subscription: int, sequences: Sequence[int]) -> None:
        unit = self._units.get(subscription)
        if unit is not None and sequences:
            unit.members[subscription].pending.update(sequences)
            unit.last = max(unit.last, max(sequences))
            self._state.note(unit)

    def acked(self, subscription: int, sequences: Sequence[int]) -> None:
        unit = self._units.get(subscription)
        if unit is not None and sequences:
            unit.members[subscription].pending.difference_update(sequences)
            self._state.note(unit)

    def flush(self) -> Flush | None:
        """Stores the changes. Returns None if only progress has changed, which is stored periodically."""
        if not self._changed:
            return None
        changed, self._changed = list(self._changed), {}
        # The records are stored in order: the last one is stored after all others.
        return [self._state.write(unit) for unit in changed][-1]

    def remove(self) -> None:
        """Removes all records, for a deleted channel."""
        for unit in dict.fromkeys(self._units.values()):
            unit.members.clear()
            self._state.write(unit)
        self._units.clear()
        self._groups.clear()
        self._changed.clear()


def _copy(state: pb.SubState) -> pb.SubState:
    copy = pb.SubState()
    copy.CopyFrom(state)
    return copy
