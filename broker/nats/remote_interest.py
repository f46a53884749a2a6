"""Interest of other servers as the router sees it, and the choice of a queue group's member."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.nats.client import BrokerClient, NatsSubscription


class RemoteServer(Protocol):
    """Another server with clients."""

    @property
    def congested(self) -> bool:
        """Its backlog is long enough that patient senders should pause."""

    def deliver(self, subject: bytes, reply: bytes, queues: list[bytes], header_size: int, payload: bytes) -> None:
        """Sends a message for its clients: all outside of queue groups, and one member of each of `queues`."""


@dataclass(frozen=True, slots=True)
class RemoteInterestTable:
    """Receivers of a subject on other servers."""

    plain: tuple[RemoteServer, ...]  #: servers with clients outside of queue groups
    groups: dict[bytes, tuple[tuple[RemoteServer, int], ...]]  #: queue group -> servers with members, and their number


class RemoteServers(Protocol):
    """The other servers."""

    def match(self, subject: bytes) -> RemoteInterestTable | None:
        """Returns the receivers of a subject on other servers; None if there are none."""

    def interest(self, subject: bytes, queue: bytes, change: int) -> None:
        """Announces a change in the number of subscriptions here."""


def draw(
    origin: BrokerClient, groups: tuple[tuple[NatsSubscription, ...], ...], remote_interest: RemoteInterestTable
) -> tuple[list[NatsSubscription], dict[RemoteServer, list[bytes]]]:
    """Draws a member of each queue group among all servers.

    `groups` are the members here, `remote_interest` the other servers. Returns the members drawn here, and the servers
    that get the message, each with the groups in which it must choose a member.
    """
    near: list[NatsSubscription] = []
    far: dict[RemoteServer, list[bytes]] = {server: [] for server in remote_interest.plain}
    here = {group[0].queue: group for group in groups}
    for queue in here.keys() | remote_interest.groups.keys():
        members = [s for s in here.get(queue, ()) if s.receives(origin)]
        there = remote_interest.groups.get(queue, ())
        number = int(random.random() * (len(members) + sum(weight for _, weight in there)))
        if number < len(members):
            near.append(members[number])
            continue
        number -= len(members)
        for server, weight in there:
            number -= weight
            if number < 0:
                far.setdefault(server, []).append(queue)
                break
    return near, far
