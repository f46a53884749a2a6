"""Receivers on other servers, as the router sees them, and which member of a queue group gets a message."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.nats.client import Client, NatsSubscription


class Far(Protocol):
    """Another server, with clients of its own."""

    @property
    def congested(self) -> bool:
        """So much waits for it that whoever can wait should."""

    def deliver(self, subject: bytes, reply: bytes, queues: list[bytes], header_size: int, payload: bytes) -> None:
        """Sends a message for clients there: for all in no group, and one of each of these groups."""


@dataclass(frozen=True, slots=True)
class Abroad:
    """Who gets a subject on other servers."""

    plain: tuple[Far, ...]  #: servers with clients that each get every message
    groups: dict[bytes, tuple[tuple[Far, int], ...]]  #: queue groups there: servers, and how many members each has


class Mesh(Protocol):
    """The other servers."""

    def match(self, subject: bytes) -> Abroad | None:
        """Returns who gets a subject there; None if nobody does."""

    def interest(self, subject: bytes, queue: bytes, change: int) -> None:
        """Takes note that there are more or fewer subscriptions here."""


def draw(
    origin: Client, groups: tuple[tuple[NatsSubscription, ...], ...], abroad: Abroad
) -> tuple[list[NatsSubscription], dict[Far, list[bytes]]]:
    """Draws a member of each queue group, wherever it is: only here all of them are known.

    Args:
        origin: Who has published.
        groups: The members here.
        abroad: Those on other servers.

    Returns:
        The members drawn here, and the servers that get the message, each with the groups that it is to choose in.
    """
    near: list[NatsSubscription] = []
    far: dict[Far, list[bytes]] = {server: [] for server in abroad.plain}
    here = {group[0].queue: group for group in groups}
    for queue in here.keys() | abroad.groups.keys():
        members = [s for s in here.get(queue, ()) if not (s.closed or (s.client is origin and not origin.echo))]
        there = abroad.groups.get(queue, ())
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
