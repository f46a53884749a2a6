"""A subscription: what it was sent and has not acknowledged (streaming-protocol.md section 14)."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from broker.streaming.names import text
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from broker.streaming.channels import Channel
    from broker.streaming.clients import Client
    from broker.streaming.queues import QueueGroup
    from broker.streaming.timers import Timer

SECOND = 1_000_000_000


class Hold(enum.Enum):
    """Why new messages are held back (`newOnHold`)."""

    #: They are not.
    NONE = enum.auto()
    #: A durable was resumed: all that is pending is sent again first (streaming-protocol.md section 17).
    RESUMED = enum.auto()
    #: The server has started: what is pending gets its deadlines first (streaming-protocol.md section 23.5).
    RECOVERED = enum.auto()


class Subscription:
    """A plain subscription or a member of a queue group.

    Attributes:
        channel: What it is subscribed to.
        state: What is stored of it.
        client: Whose it is; None while it is offline.
        last_client_id: Whose it is or was.
        group: The queue group that it is a member of.
        pending: Sequences that were sent and not acknowledged, with the time (monotonic ns) of their redelivery.
        last_sent: The highest sequence that was ever sent to it.
        stalled: No new messages, as it has as many pending as it wants.
        started: The client has been told of it.
        hold: Why new messages are held back.
        held_from: Where the pass over what is pending goes on, while they are.
        timer: When pending messages are looked at.
        late_acks: How many acknowledged messages its queue group still counts as pending when it picks a member.
        latest_acks: Those of them that came since the group's last tick.
        counts: How often messages were redelivered; queue groups count for all their members.
        listener: What the bus calls the subscription of the ack inbox.
    """

    __slots__ = (
        "ack_wait",
        "channel",
        "client",
        "counts",
        "group",
        "held_from",
        "hold",
        "last_client_id",
        "last_sent",
        "late_acks",
        "latest_acks",
        "listener",
        "max_in_flight",
        "pending",
        "stalled",
        "started",
        "state",
        "timer",
    )

    def __init__(self, channel: Channel, state: pb.SubState, group: QueueGroup | None) -> None:
        self.channel = channel
        self.state = state
        self.group = group
        self.client: Client | None = None
        self.last_client_id: bytes = state.client_id
        self.pending: dict[int, int] = {}
        self.last_sent: int = state.last_sent
        self.stalled = False
        self.started = False
        self.hold = Hold.NONE
        self.held_from = 0
        self.timer: Timer | None = None
        self.late_acks = self.latest_acks = 0
        self.counts: dict[int, int] = {} if group is None else group.counts
        self.listener: object = None
        self.adopt()

    def adopt(self) -> None:
        """Takes over what the stored state says about the client's wishes."""
        self.max_in_flight = max(self.state.max_in_flight, 1)
        self.ack_wait = max(self.state.ack_wait_in_secs, 1) * SECOND

    @property
    def id(self) -> int:
        """Its number within the channel."""
        return self.state.id

    @property
    def inbox(self) -> bytes:
        """Where messages go."""
        return self.state.inbox

    @property
    def active(self) -> bool:
        """Its client is there (or was, the last time it was heard of)."""
        return self.client is not None

    @property
    def ready(self) -> bool:
        """It may get new messages, unless it is stalled."""
        return self.started and self.client is not None and self.hold is Hold.NONE

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
        take = self.pending.pop
        done = [sequence for sequence in sequences if take(sequence, None) is not None]
        if self.counts:
            for sequence in done:
                self.counts.pop(sequence, None)
        return done


def told(what: str, subscription: Subscription, where: str = "") -> str:
    """Returns what the log tells about a subscription (streaming-protocol.md section 20.5)."""
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
