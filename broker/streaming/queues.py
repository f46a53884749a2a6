"""Queue groups: who gets a message (protocol section 18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.streaming.channels import Channel
    from broker.streaming.subscriptions import Subscription


class QueueGroup:
    """A group of subscriptions that share the messages of a channel.

    Attributes:
        channel: What it is subscribed to.
        name: Its name; of a durable group `<durable>:<group>`.
        members: Who gets messages; the order changes by rule 3.
        last_sent: The highest sequence that was sent to any member.
        counts: How often messages were redelivered.
        shadow: While a durable group has no members: the record of its last one, with what was pending.
    """

    __slots__ = ("channel", "counts", "last_sent", "members", "name", "shadow")

    def __init__(self, channel: Channel, name: bytes) -> None:
        self.channel = channel
        self.name = name
        self.members: list[Subscription] = []
        self.last_sent = 0
        self.counts: dict[int, int] = {}
        self.shadow: Subscription | None = None

    def pick(self, *, force: bool) -> Subscription | None:
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
            pending = len(member.pending)
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
