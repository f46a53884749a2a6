"""Queue groups: who gets a message (streaming-protocol.md section 18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.streaming.channels import Channel
    from broker.streaming.subscriptions import Subscription

#: Acknowledgements that came together count after one to two of these (ns).
_WINDOW: Final = 20_000_000


class QueueGroup:
    """A group of subscriptions that share the messages of a channel.

    Acknowledgements arrive here by the read, hundreds of one member at once. If they all counted at once, the member
    that was read first would get nearly the whole next batch of a burst. So of those that came together one counts at
    once, and the others a little later, when the other members have been read too.

    Attributes:
        channel: What it is subscribed to.
        name: Its name; of a durable group `<durable>:<group>`.
        members: Who gets messages; the order changes by rule 3.
        last_sent: The highest sequence that was sent to any member.
        counts: How often messages were redelivered.
        shadow: While a durable group has no members: the record of its last one, with what was pending.
    """

    __slots__ = ("_window", "channel", "counts", "last_sent", "members", "name", "shadow")

    def __init__(self, channel: Channel, name: bytes) -> None:
        self.channel = channel
        self.name = name
        self.members: list[Subscription] = []
        self.last_sent = 0
        self.counts: dict[int, int] = {}
        self.shadow: Subscription | None = None
        self._window = 0

    def acknowledged(self, member: Subscription, count: int, now: int) -> None:
        """Takes note that a member has acknowledged messages, all at once, at a time (monotonic ns)."""
        if count > 1 and len(self.members) > 1:
            self.tick(now)
            member.late_acks += count - 1
            member.latest_acks += count - 1

    def tick(self, now: int) -> None:
        """Lets acknowledgements count whose time has come. To be called before members are picked."""
        window = now // _WINDOW
        if window == self._window:
            return
        for member in self.members:
            member.late_acks = member.latest_acks if window == self._window + 1 else 0
            member.latest_acks = 0
        self._window = window

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
