"""The clients of a store: those that are registered, and those that only subscriptions know."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from stantools.format.proto import store_pb2 as pb
from stantools.inspection.overview import ChannelOverview
from stantools.store.sublog import SubStatus


class ClientStatus(enum.StrEnum):
    """Where a client is known."""

    REGISTERED = "registered"  #: it is in clients.dat
    AWAY = "away"  #: it left and has durables that wait for it
    GHOST = "ghost"  #: it is not in clients.dat, and has subscriptions that need it


@dataclass
class ClientSummary:
    """A client with what it owns.

    Attributes:
        id: Its id as stored.
        info: Its record in clients.dat; None if there is none.
        channels: Number of its subscriptions by channel.
        pending: Messages that were sent to it and not acknowledged.
        needed: Subscriptions that the server drops or deletes because it does not know the client.
    """

    id: bytes
    info: pb.ClientInfo | None = None
    channels: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    needed: int = 0

    @property
    def subscriptions(self) -> int:
        """How many subscriptions it has."""
        return sum(self.channels.values())

    @property
    def status(self) -> ClientStatus:
        """Where it is known."""
        if self.info is not None:
            return ClientStatus.REGISTERED
        return ClientStatus.GHOST if self.needed else ClientStatus.AWAY


class ClientList:
    """Puts clients together with their subscriptions, channel by channel.

    Args:
        registered: The clients of clients.dat, in their order.
    """

    def __init__(self, registered: Iterable[pb.ClientInfo]) -> None:
        self._clients = {info.id: ClientSummary(info.id, info) for info in registered}

    def add(self, channel: ChannelOverview) -> None:
        """Counts the subscriptions of another channel."""
        for each in channel.subscriptions:
            if not (name := each.state.client_id):
                continue
            client = self._clients.setdefault(name, ClientSummary(name))
            client.channels[channel.name] = client.channels.get(channel.name, 0) + 1
            client.pending += len(each.pending)
            client.needed += each.status in (SubStatus.GHOST, SubStatus.ORPHAN)

    def clients(self) -> list[ClientSummary]:
        """Returns the registered clients in their order, then the others by id."""
        others = sorted((each for each in self._clients.values() if each.info is None), key=lambda each: each.id)
        return [each for each in self._clients.values() if each.info is not None] + others
