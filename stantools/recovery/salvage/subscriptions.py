"""Clients and subscriptions for the new store, without losing the position of any durable.

Facts: filestore.md sections 4.3 and weakness W16. What the server would delete or could never use is turned
into what it keeps: a member of a durable queue group whose client is gone hands its position and its pending messages
to the group.
"""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import dataclass, field

from stantools.format.proto import store_pb2 as pb
from stantools.store.sublog import Subscription, SubsState, SubStatus, classify


@dataclass
class SubscriptionPlan:
    """The subscriptions of one channel, and what was changed.

    Attributes:
        subscriptions: What to write, by id.
        changes: What differs from the old file, in words.
        dropped: Subscriptions that are left out, in words.
    """

    subscriptions: list[Subscription] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def plan_subscriptions(state: SubsState, known_clients: Container[bytes], last_sequence: int) -> SubscriptionPlan:
    """Decides what becomes of a channel's subscriptions.

    Args:
        state: The fold of the intact records of subs.dat.
        known_clients: Ids of the clients that the new store will have.
        last_sequence: Last sequence of the channel in the new store, 0 if it has no messages.
    """
    plan = SubscriptionPlan()
    ghosts: list[Subscription] = []
    for number, subscription in sorted(state.subscriptions.items()):
        copied = pb.SubState()
        copied.CopyFrom(subscription.state)
        kept = Subscription(copied, set(subscription.pending))
        status = classify(copied, known_clients)
        if status == SubStatus.ORPHAN:
            client = os.fsdecode(copied.client_id)
            plan.dropped.append(f"subscription {number}: not durable, and its client {client!r} is gone")
        elif status == SubStatus.GHOST:
            ghosts.append(kept)
        else:
            plan.subscriptions.append(kept)
    for ghost in ghosts:
        _hand_over(plan, ghost)
    for subscription in plan.subscriptions:
        _clamp(plan, subscription, last_sequence)
    plan.subscriptions.sort(key=lambda s: s.state.id)
    return plan


def _hand_over(plan: SubscriptionPlan, ghost: Subscription) -> None:
    """Gives a ghost's position and pending messages to its group, or makes it the group's shadow."""
    group = [s for s in plan.subscriptions if s.state.q_group == ghost.state.q_group and s.state.is_durable]
    name = os.fsdecode(ghost.state.q_group)
    members = [s for s in group if s.state.client_id]
    heirs = members or group
    if heirs:
        heir = min(heirs, key=lambda s: len(s.pending))
        heir.pending |= ghost.pending
        heir.state.last_sent = max(heir.state.last_sent, ghost.state.last_sent)
        plan.changes.append(
            f"subscription {ghost.state.id}: its client is gone; its position and {len(ghost.pending)} pending "
            f"messages went to subscription {heir.state.id} of the durable queue group {name!r}"
        )
        return
    client = os.fsdecode(ghost.state.client_id)
    ghost.state.client_id = b""
    plan.subscriptions.append(ghost)
    plan.changes.append(
        f"subscription {ghost.state.id}: its client {client!r} is gone; it became the shadow of the durable queue "
        f"group {name!r}, so that the group keeps its position"
    )


def _clamp(plan: SubscriptionPlan, subscription: Subscription, last_sequence: int) -> None:
    """Takes back a position beyond the last message: its sequences will be given again, and must be delivered."""
    state = subscription.state
    if state.last_sent > last_sequence:
        plan.changes.append(
            f"subscription {state.id}: last sent {state.last_sent} became {last_sequence}, the last message there is, "
            "so that new messages are delivered"
        )
        state.last_sent = last_sequence
    beyond = {sequence for sequence in subscription.pending if sequence > last_sequence}
    if beyond:
        plan.changes.append(
            f"subscription {state.id}: {len(beyond)} pending sequences beyond the last message were taken out"
        )
        subscription.pending -= beyond
