"""Clients, subscriptions, queue groups and channels: what the rules work on.

Facts: streaming-protocol.md sections 7, 14 and 18.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.streaming.names import text
from broker.streaming.pending import PendingByDeadline
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from broker.record_buffer import MessageRecordBuffer
    from broker.stores.interface import Flush, MessageStore, SingleAppendStore, SubscriptionStore
    from broker.streaming.context import Timer

_SECOND: Final = 1_000_000_000
#: Acknowledgements that came together count after one to two of these (ns).
_WINDOW: Final = 20_000_000
#: Bytes of messages that are read at a time.
_READ_SIZE = 1 << 20


@dataclass(slots=True, eq=False)
class StreamingSession:
    """A client that has connected, whether or not it is still alive."""

    #: What is stored about it.
    info: pb.ClientInfo
    id: bytes = field(init=False)
    #: What the kernels know it by.
    number: int = -1
    #: Heartbeats in a row that were not answered.
    failures: int = 0
    #: When the next heartbeat goes out; None while one is under way.
    heartbeat: Timer | None = None
    #: What it has subscribed to, in that order.
    subscriptions: dict[ChannelSubscription, None] = field(default_factory=dict)
    #: It is still the client under its id.
    registered: bool = False

    def __post_init__(self) -> None:
        self.id = self.info.id

    @property
    def failed_heartbeat(self) -> bool:
        """The last heartbeat was not answered, so that queue groups prefer other members.

        Facts: streaming-protocol.md section 8.1.6.
        """
        return self.failures > 0


class DeliveryHold(enum.Enum):
    """Why new messages are held back (`newOnHold`)."""

    #: They are not.
    NONE = enum.auto()
    #: A durable was resumed: all that is pending is sent again first (streaming-protocol.md section 17).
    RESUMED = enum.auto()
    #: The server has started: what is pending gets its deadlines first (streaming-protocol.md section 23.5).
    RECOVERED = enum.auto()


# Looked up with each message.
_NONE: Final = DeliveryHold.NONE


@dataclass(slots=True, eq=False)
class ChannelSubscription:
    """A plain subscription or a member of a queue group."""

    #: What it is subscribed to.
    channel: Channel
    #: What is stored of it.
    state: pb.SubState
    #: The queue group that it is a member of.
    group: QueueGroup | None
    #: Whose it is; None while it is offline.
    client: StreamingSession | None = None
    #: Whose it is or was.
    last_client_id: bytes = field(init=False)
    #: Sequences that were sent and not acknowledged, with the time (monotonic ns) of their redelivery.
    pending: PendingByDeadline = field(default_factory=PendingByDeadline)
    #: The highest sequence that was ever sent to it.
    last_sent: int = field(init=False)
    #: No new messages, as it has as many pending as it wants.
    stalled: bool = False
    #: The client knows of it.
    started: bool = False
    #: Why new messages are held back, and what is still to be seen to before, in reverse; None until that begins.
    hold: DeliveryHold = DeliveryHold.NONE
    held: list[int] | None = None
    #: When pending messages are looked at.
    timer: Timer | None = None
    #: How many acknowledged messages its group still counts as pending when it picks a member; those since its tick.
    late_acks: int = 0
    latest_acks: int = 0
    #: How often messages were redelivered; queue groups count for all their members.
    counts: dict[int, int] = field(init=False)
    #: What the bus calls the subscription of the ack inbox.
    listener: object = None
    #: Its number within the channel; where messages go; what the client wants.
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
        """Takes over what the stored state says: fields of a message are slow to read."""
        self.id, self.inbox = self.state.id, self.state.inbox
        self.max_in_flight = max(self.state.max_in_flight, 1)
        self.ack_wait = max(self.state.ack_wait_in_secs, 1) * _SECOND

    @property
    def active(self) -> bool:
        """Its client is there (or was, the last time it was heard of)."""
        return self.client is not None

    @property
    def ready(self) -> bool:
        """It may get new messages, unless it is stalled."""
        return self.started and self.client is not None and self.hold is _NONE

    @property
    def client_name(self) -> str:
        """Its client's id, for log lines."""
        return text(self.state.client_id)

    def room(self) -> int:
        """Returns how many new messages it may get."""
        return self.max_in_flight - len(self.pending)

    def settle(self) -> bool:
        """Stalls, or ends stalling, by what is pending. Returns True if stalling has ended.

        Facts: streaming-protocol.md section 14.6.
        """
        stalled = len(self.pending) >= self.max_in_flight
        ended = self.stalled and not stalled
        self.stalled = stalled
        return ended

    def forget(self, sequences: list[int]) -> list[int]:
        """Removes sequences from those that are pending. Returns the ones that were."""
        pending, done = self.pending, []
        for sequence in sequences:
            if pending.pop(sequence, None) is not None:
                done.append(sequence)  # mostly there is one, and a comprehension is a call
        if self.counts:
            for sequence in done:
                self.counts.pop(sequence, None)
        return done


def told(what: str, subscription: ChannelSubscription, where: str = "") -> str:
    """Returns what the log says about a subscription (streaming-protocol.md section 20.5)."""
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

    Acknowledgements arrive here by the read, hundreds of one member at once. If they all counted at once, the member
    that was read first would get nearly the whole next batch of a burst. So of those that came together one counts at
    once, and the others a little later, when the other members have been read too.
    """

    #: What it is subscribed to.
    channel: Channel
    #: Its name; of a durable group `<durable>:<group>`.
    name: bytes
    #: Who gets messages; the order changes by rule 3.
    members: list[ChannelSubscription] = field(default_factory=list)
    #: The highest sequence that was sent to any member.
    last_sent: int = 0
    #: How often messages were redelivered.
    counts: dict[int, int] = field(default_factory=dict)
    #: While a durable group has no members: the record of its last one, with what was pending.
    shadow: ChannelSubscription | None = None
    _window: int = 0

    def acknowledged(self, member: ChannelSubscription, count: int, now: int) -> None:
        """Takes note that a member has acknowledged messages, all at once, at a time (monotonic ns)."""
        if count > 1 and len(self.members) > 1:
            self.tick(now)
            member.late_acks += count - 1
            member.latest_acks += count - 1

    def tick(self, now: int) -> None:
        """Counts acknowledgements whose time has come. To be called before members are picked."""
        window = now // _WINDOW
        if window == self._window:
            return
        for member in self.members:
            member.late_acks = member.latest_acks if window == self._window + 1 else 0
            member.latest_acks = 0
        self._window = window

    def pick(self, *, force: bool) -> ChannelSubscription | None:
        """Returns the member that a message goes to. There is at least one member.

        The one with the fewest pending messages of those that are neither stalled nor without heartbeat, the first of
        several; if there is none, the first of all. The first of the list goes to its end when it is taken.

        Args:
            force: The message is sent again, so that it goes to a stalled member if need be; else None is returned
                when all are stalled.
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


@dataclass(slots=True, eq=False)
class Channel:
    """A channel: its stores, and who is subscribed."""

    name: bytes
    messages: MessageStore
    store: SubscriptionStore
    #: Until it is known whether it could be made: what the store returns then.
    making: Flush | None = None
    #: The messages once more, if single ones may be added.
    lone: SingleAppendStore | None = None
    #: What is sent and acknowledged is recorded.
    recorded: bool = field(init=False)
    #: What the kernels know it by.
    number: int = -1
    #: The last sequence that is stored and may be delivered.
    visible: int = field(init=False)
    #: Of the last message that this process stored; timestamps never go back (streaming-protocol.md section 11).
    timestamp: int = 0
    #: What is staged, being flushed or being delivered, so that it need not be read.
    #: Each with its first sequence and the one behind its last.
    fresh: list[tuple[int, int, MessageRecordBuffer]] = field(default_factory=list)
    #: Active plain subscriptions by number.
    plain: dict[int, ChannelSubscription] = field(default_factory=dict)
    #: Plain durables by key, active and offline.
    durables: dict[bytes, ChannelSubscription] = field(default_factory=dict)
    #: Queue groups by name.
    groups: dict[bytes, QueueGroup] = field(default_factory=dict)
    #: All active subscriptions.
    by_ack_inbox: dict[bytes, ChannelSubscription] = field(default_factory=dict)
    #: When messages were stored last (monotonic ns).
    last_activity: int = 0
    #: When the channel is deleted if nothing happens.
    idle: Timer | None = None
    #: When the next message is too old.
    ageing: Timer | None = None

    def __post_init__(self) -> None:
        self.visible = self.messages.last
        self.recorded = getattr(self.store, "recorded", True)

    @property
    def alone(self) -> SingleAppendStore | None:
        """Where a message goes that comes alone: nothing else is staged, and it is not for a queue group.

        None if it has to be staged as others are.
        """
        return self.lone if self.messages.last == self.visible and not self.groups else None

    @property
    def active(self) -> bool:
        """Somebody is subscribed; offline durables do not count (streaming-protocol.md section 21.1)."""
        return bool(self.by_ack_inbox)

    def subscriptions(self) -> Iterator[ChannelSubscription]:
        """Yields all: active plain ones, offline durables, then queue groups with their members, then their shadows."""
        return chain(
            self.plain.values(),
            (durable for durable in self.durables.values() if not durable.active),
            *(
                group.members if group.shadow is None else [*group.members, group.shadow]
                for group in self.groups.values()
            ),
        )

    def find(self, inbox: bytes) -> ChannelSubscription | None:
        """Returns the active subscription with an ack inbox or, failing that, with a delivery inbox.

        Facts: streaming-protocol.md section 20.
        """
        if (found := self.by_ack_inbox.get(inbox)) is not None:
            return found
        return next((each for each in self.by_ack_inbox.values() if each.inbox == inbox), None)

    def read(self, first: int, count: int) -> tuple[MessageRecordBuffer, int, Sequence[int]]:
        """Returns the next messages that may be delivered, maybe none: a block, their first row, their sequences.

        Args:
            first: The lowest sequence that is wanted.
            count: How many at most.
        """
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
        # Mostly there are no gaps.
        lowest, highest = int(sequences[0]), int(sequences[end - 1])
        return block, 0, range(lowest, highest + 1) if highest - lowest == end - 1 else sequences[:end].tolist()
