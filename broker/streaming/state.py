"""Clients, subscriptions, queue groups and channels: the state of the rules.

Facts: streaming-protocol.md sections 7, 14 and 18.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from broker.stores.interface import MessageStore, SubscriptionStore
from broker.streaming.names import text
from broker.streaming.pending import PendingByDeadline
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer
    from broker.stores.interface import Flush, SingleAppendStore
    from broker.streaming.context import Timer

_SECOND: Final = 1_000_000_000
#: Acknowledgements that arrive together count after one to two of these windows (ns).
_WINDOW: Final = 20_000_000
#: bytes of messages read at a time
_READ_SIZE = 1 << 20


@dataclass(slots=True, eq=False)
class StreamingSession:
    """A client that has connected; its connection may be lost."""

    #: stored record
    info: pb.ClientInfo
    id: bytes = field(init=False)
    #: number for the kernels
    number: int = -1
    #: consecutive heartbeats without an answer
    failures: int = 0
    #: timer of the next heartbeat; None while one is in progress
    heartbeat: Timer | None = None
    #: in the order of the requests
    subscriptions: dict[ChannelSubscription, None] = field(default_factory=dict)
    #: this is still the client of its id
    registered: bool = False

    def __post_init__(self) -> None:
        self.id = self.info.id

    @property
    def failed_heartbeat(self) -> bool:
        """The last heartbeat failed: queue groups prefer other members (streaming-protocol.md section 8.1.6)."""
        return self.failures > 0


class SubscriptionPhase(enum.Enum):
    """Phases of a subscription. It gets messages when its client knows it, and new ones when it is ACTIVE.

    A subscription begins as NEW, RESUMED or RECOVERED. When its client has the answer, or the server is ready, it is
    started (`STARTED`). Stalling is no phase: it follows from the number of pending messages.
    """

    NEW = enum.auto()  #: its client does not know it yet
    RESUMED = enum.auto()  #: a durable whose client does not know yet that it has resumed it
    RECOVERED = enum.auto()  #: found in the store; the server is not ready
    RESENDING = enum.auto()  #: after RESUMED: all pending messages are sent first (streaming-protocol.md section 17)
    #: after RECOVERED: pending messages get their deadlines first (streaming-protocol.md section 23.5)
    RESCHEDULING = enum.auto()
    ACTIVE = enum.auto()
    OFFLINE = enum.auto()  #: a durable without a client; in a group, its shadow
    ENDED = enum.auto()


# Constants for hot paths: looking up members of an enumeration is slow (Python 3.11).
NEW: Final = SubscriptionPhase.NEW
RESUMED: Final = SubscriptionPhase.RESUMED
RECOVERED: Final = SubscriptionPhase.RECOVERED
RESENDING: Final = SubscriptionPhase.RESENDING
RESCHEDULING: Final = SubscriptionPhase.RESCHEDULING
ACTIVE: Final = SubscriptionPhase.ACTIVE
OFFLINE: Final = SubscriptionPhase.OFFLINE
ENDED: Final = SubscriptionPhase.ENDED
#: The first phase after the start of a subscription.
STARTED: Final = {NEW: ACTIVE, RESUMED: RESENDING, RECOVERED: RESCHEDULING}
_NEXT: Final = {
    NEW: (ACTIVE, OFFLINE, ENDED),
    RESUMED: (RESENDING, OFFLINE, ENDED),
    RECOVERED: (RESCHEDULING, OFFLINE, ENDED),
    RESENDING: (ACTIVE, OFFLINE, ENDED),
    RESCHEDULING: (ACTIVE, OFFLINE, ENDED),
    ACTIVE: (OFFLINE, ENDED),
    OFFLINE: (RESUMED,),
    ENDED: (),
}


@dataclass(slots=True, eq=False)
class ChannelSubscription:
    """A plain subscription or a member of a queue group."""

    channel: Channel
    #: stored record
    state: pb.SubState
    #: queue group of a member
    group: QueueGroup | None
    phase: SubscriptionPhase = NEW
    #: None while offline
    client: StreamingSession | None = None
    #: current or last owner
    last_client_id: bytes = field(init=False)
    #: sequences that were sent and not acknowledged, with the times (monotonic ns) of their redelivery
    pending: PendingByDeadline = field(default_factory=PendingByDeadline)
    #: highest sequence ever sent to it
    last_sent: int = field(init=False)
    #: no new messages: max_in_flight is reached
    stalled: bool = False
    #: the pending messages to handle before new ones, in reverse; None until that begins
    held: list[int] | None = None
    #: timer of redelivery
    timer: Timer | None = None
    #: acknowledged messages that the group still counts as pending when it picks a member; those since its tick
    late_acks: int = 0
    latest_acks: int = 0
    #: redeliveries by sequence; members of a queue group share them
    counts: dict[int, int] = field(init=False)
    #: the bus's handle of the ack inbox
    listener: Any = None
    #: copies from the stored record; ack_wait in ns
    id: int = field(init=False)
    inbox: bytes = field(init=False)
    max_in_flight: int = field(init=False)
    ack_wait: int = field(init=False)

    def __post_init__(self) -> None:
        self.last_client_id = self.state.client_id
        self.last_sent = self.state.last_sent
        self.counts = {} if self.group is None else self.group.counts
        self.adopt()

    def adopt(self) -> None:
        """Copies fields of the stored record, as reading a protobuf message is slow."""
        self.id, self.inbox = self.state.id, self.state.inbox
        self.max_in_flight = max(self.state.max_in_flight, 1)
        self.ack_wait = max(self.state.ack_wait_in_secs, 1) * _SECOND

    def advance(self, phase: SubscriptionPhase) -> None:
        assert phase in _NEXT[self.phase], f"{self.phase} does not become {phase}"
        self.phase = phase

    @property
    def active(self) -> bool:
        """The client is connected, as far as known."""
        return self.client is not None

    @property
    def started(self) -> bool:
        """It may get messages, and new ones when it is ACTIVE."""
        phase = self.phase
        return phase is ACTIVE or phase is RESENDING or phase is RESCHEDULING

    @property
    def client_name(self) -> str:
        return text(self.state.client_id)

    def room(self) -> int:
        return self.max_in_flight - len(self.pending)

    def settle(self) -> bool:
        """Updates `stalled`. Returns True if stalling has ended (streaming-protocol.md section 14.6)."""
        stalled = len(self.pending) >= self.max_in_flight
        ended = self.stalled and not stalled
        self.stalled = stalled
        return ended

    def forget(self, sequences: list[int]) -> list[int]:
        """Removes sequences from the pending ones. Returns the removed ones."""
        pending, done = self.pending, []
        for sequence in sequences:
            if pending.pop(sequence, None) is not None:
                done.append(sequence)  # usually there is one, and a comprehension costs a call
        if self.counts:
            for sequence in done:
                self.counts.pop(sequence, None)
        return done


def log_text(what: str, subscription: ChannelSubscription, where: str = "") -> str:
    """Returns a subscription's text for the log (streaming-protocol.md section 20.5)."""
    state = subscription.state
    kind = ("durable " if state.is_durable else "") + ("queue " if state.q_group else "")
    name = ""
    if state.q_group:
        name = f" queue={text(state.q_group)},"
    elif state.durable_name:
        name = f" durable={text(state.durable_name)},"
    return (
        f"[Client:{text(subscription.last_client_id)}] {what} {kind}subscription, "
        f"subject={text(subscription.channel.name)}, inbox={text(state.inbox)},{name} subid={subscription.id}"
        + (f", sending {where}" if where else "")
    )


@dataclass(slots=True, eq=False)
class QueueGroup:
    """A group of subscriptions that share the messages of a channel.

    Acknowledgements arrive by the socket read, hundreds of one member at once. If all counted at once, the member
    that was read first would get nearly the whole next batch of a burst. So one of them counts at once, and the
    others count a little later, when the other members have been read as well.
    """

    channel: Channel
    #: `<durable>:<group>` for a durable group
    name: bytes
    #: receivers; rule 3 changes their order
    members: list[ChannelSubscription] = field(default_factory=list)
    #: highest sequence sent to any member
    last_sent: int = 0
    #: redeliveries by sequence
    counts: dict[int, int] = field(default_factory=dict)
    #: record of the last member with its pending messages, while a durable group has no members
    shadow: ChannelSubscription | None = None
    _window: int = 0

    def acknowledged(self, member: ChannelSubscription, count: int, now: int) -> None:
        """Records acknowledgements that arrived together, at a time (monotonic ns)."""
        if count > 1 and len(self.members) > 1:
            self.tick(now)
            member.late_acks += count - 1
            member.latest_acks += count - 1

    def tick(self, now: int) -> None:
        """Counts acknowledgements of earlier windows. Must be called before members are picked."""
        window = now // _WINDOW
        if window == self._window:
            return
        for member in self.members:
            member.late_acks = member.latest_acks if window == self._window + 1 else 0
            member.latest_acks = 0
        self._window = window

    def pick(self, *, force: bool) -> ChannelSubscription | None:
        """Returns the member for the next message. The group must have members.

        It is the member with the fewest pending messages, the first of several, among members neither stalled nor
        without heartbeat; if there is none, the first of all. A picked first member moves to the end of the
        list. A redelivery (`force`) goes to a stalled member if necessary; otherwise the result is None if all are
        stalled.
        """
        members = self.members
        picked = None
        fewest = 0
        for member in members:
            if member.stalled or (member.client is not None and member.client.failures):
                continue
            pending = len(member.pending) if force else len(member.pending) + member.late_acks
            if picked is None or pending < fewest:
                picked = member
                fewest = pending
                if not pending:
                    break
        first = members[0]
        if picked is None:
            if not force and all(member.stalled for member in members):
                return None
            picked = first
        if picked is first and len(members) > 1:
            members.append(members.pop(0))
        return picked


class ChannelState(enum.Enum):
    MAKING = enum.auto()  #: the store is about to make it
    READY = enum.auto()
    GONE = enum.auto()  #: the store could not make it, or has it no longer


MAKING: Final = ChannelState.MAKING
READY: Final = ChannelState.READY
GONE: Final = ChannelState.GONE
_NEXT_CHANNEL: Final = {MAKING: (READY, GONE), READY: (GONE,), GONE: ()}


@dataclass(slots=True, eq=False)
class Channel:
    """A channel with its stores and subscriptions."""

    name: bytes
    messages: MessageStore
    store: SubscriptionStore
    #: flush that makes the channel in the store, until its outcome is known
    making: Flush | None = None
    state: ChannelState = field(init=False)
    #: the message store, if it accepts single messages
    single_store: SingleAppendStore | None = None
    #: the store records deliveries and acknowledgements
    recorded: bool = field(init=False)
    #: messages expire
    limited_age: bool = field(init=False)
    #: number for the kernels
    number: int = -1
    #: last sequence that is stored and may be delivered
    visible: int = field(init=False)
    #: time of the last message stored by this process; timestamps never go back (streaming-protocol.md section 11)
    timestamp: int = 0
    #: Messages that are staged, flushed or delivered at the moment, so that they need not be read: first sequence,
    #: sequence after the last, records.
    fresh: list[tuple[int, int, MessageRecordBuffer]] = field(default_factory=list)
    #: active plain subscriptions by id
    plain: dict[int, ChannelSubscription] = field(default_factory=dict)
    #: plain durables by key, active and offline
    durables: dict[bytes, ChannelSubscription] = field(default_factory=dict)
    #: queue groups by name
    groups: dict[bytes, QueueGroup] = field(default_factory=dict)
    #: all active subscriptions
    by_ack_inbox: dict[bytes, ChannelSubscription] = field(default_factory=dict)
    #: time of the last stored message (monotonic ns)
    last_activity: int = 0
    #: timer of the deletion for inactivity
    idle: Timer | None = None
    #: timer of the next message to expire
    ageing: Timer | None = None

    def __post_init__(self) -> None:
        self.state = READY if self.making is None else MAKING
        self.visible = self.messages.last
        self.limited_age = self.messages.limits.max_age_ns > 0
        self.recorded = getattr(self.store, "recorded", True)

    def advance(self, state: ChannelState) -> None:
        assert state in _NEXT_CHANNEL[self.state], f"{self.state} does not become {state}"
        self.state = state

    @property
    def active(self) -> bool:
        """A client is subscribed; offline durables do not count (streaming-protocol.md section 21.1)."""
        return bool(self.by_ack_inbox)

    def subscriptions(self) -> Iterator[ChannelSubscription]:
        """Yields active plain subscriptions, offline durables, then the members and shadow of each queue group."""
        return chain(
            self.plain.values(),
            (durable for durable in self.durables.values() if not durable.active),
            *(
                group.members if group.shadow is None else [*group.members, group.shadow]
                for group in self.groups.values()
            ),
        )

    def find(self, inbox: bytes) -> ChannelSubscription | None:
        """Finds an active subscription by ack inbox, else by delivery inbox (streaming-protocol.md section 20)."""
        if (found := self.by_ack_inbox.get(inbox)) is not None:
            return found
        return next((each for each in self.by_ack_inbox.values() if each.inbox == inbox), None)

    def read(self, first: int, count: int) -> tuple[MessageRecordBuffer, int, Sequence[int]]:
        """Returns up to `count` deliverable messages from `first` on: a block, their first row, their sequences."""
        last = self.visible
        if first < self.messages.first:
            first = self.messages.first
        for lowest, following, block in self.fresh:
            if lowest <= first < following:
                return block, first - lowest, range(first, min(following, first + count, last + 1))
        block = self.messages.read(first, min(count, max(last - first + 1, 0)), _READ_SIZE)
        sequences = block.sequences
        end = len(sequences)
        if end and int(sequences[-1]) > last:
            end = int(np.searchsorted(sequences, np.uint64(last), "right"))
        if not end:
            return block, 0, ()
        # Gaps are rare.
        lowest, highest = int(sequences[0]), int(sequences[end - 1])
        return block, 0, range(lowest, highest + 1) if highest - lowest == end - 1 else sequences[:end].tolist()
