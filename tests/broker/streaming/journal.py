"""A store that keeps its records in a list, so that tests see them, and can be opened again from them."""

from __future__ import annotations

from collections.abc import Sequence

from broker.stores.interface import ChannelStore, Recovered, RecoveredSubscription
from broker.stores.memory import MemoryStore
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import StoreLimits


class JournalSubscriptions:
    """The subscriptions of a channel: records as in `subs.dat`, with those that are not flushed apart."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int, int]] = []
        self.states: list[tuple[str, pb.SubState]] = []
        self.flushed = 0
        self.last_id = 0
        self.shown = 0

    def _add(self, kind: str, number: int, sequence: int = 0, state: pb.SubState | None = None) -> None:
        copy = pb.SubState()
        if state is not None:
            copy.CopyFrom(state)
        self.records.append((kind, number, sequence))
        self.states.append((kind, copy))

    def create(self, state: pb.SubState) -> None:
        self.last_id += 1
        state.id = self.last_id
        self._add("new", state.id, state=state)

    def update(self, state: pb.SubState) -> None:
        self._add("update", state.id, state=state)

    def delete(self, subscription: int) -> None:
        self._add("del", subscription)

    def sent(self, subscription: int, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self._add("msg", subscription, sequence)

    def acked(self, subscription: int, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self._add("ack", subscription, sequence)

    def flush(self) -> None:
        self.flushed = len(self.records)

    def crash(self) -> None:
        """Forgets what was not flushed."""
        del self.records[self.flushed :], self.states[self.flushed :]

    def recover(self) -> list[RecoveredSubscription]:
        found: dict[int, RecoveredSubscription] = {}
        for (kind, number, sequence), (_, state) in zip(self.records, self.states, strict=True):
            if kind in ("new", "update"):
                copy = pb.SubState()
                copy.CopyFrom(state)
                found[number] = RecoveredSubscription(copy, found[number].pending if number in found else [])
            elif kind == "del":
                found.pop(number, None)
            elif number in found:
                each = found[number]
                if kind == "msg" and sequence not in each.pending:
                    each.pending = sorted([*each.pending, sequence])
                    each.state.last_sent = max(each.state.last_sent, sequence)
                elif kind == "ack" and sequence in each.pending:
                    each.pending.remove(sequence)
        return list(found.values())


class Journal(MemoryStore):
    """A store in memory that can be opened again; without `singles` it takes blocks of messages only."""

    def __init__(self, limits: StoreLimits | None = None, *, singles: bool = True) -> None:
        super().__init__(limits)
        self._singles = singles
        self.server: pb.ServerInfo | None = None
        self.clients: list[tuple[str, bytes]] = []
        self.infos: dict[bytes, pb.ClientInfo] = {}

    def init(self, server: pb.ServerInfo) -> None:
        self.server = pb.ServerInfo.FromString(server.SerializeToString())

    def add_client(self, client: pb.ClientInfo) -> None:
        self.clients.append(("add", client.id))
        self.infos[client.id] = client

    def delete_client(self, client_id: bytes) -> None:
        self.clients.append(("del", client_id))
        del self.infos[client_id]

    def create_channel(self, name: bytes) -> ChannelStore:
        store = super().create_channel(name)
        store.subscriptions = JournalSubscriptions()
        if not self._singles:
            store.single_store = None
        return store

    def subscriptions(self, name: bytes) -> JournalSubscriptions:
        store = self._channels[name].subscriptions
        assert isinstance(store, JournalSubscriptions)
        return store

    def records(self, name: bytes) -> list[str]:
        """Returns and forgets the records of a channel, as `kind id` or `kind id/sequence`."""
        store = self.subscriptions(name)
        fresh, store.shown = store.records[store.shown :], len(store.records)
        return [f"{kind} {number}/{sequence}" if sequence else f"{kind} {number}" for kind, number, sequence in fresh]

    def close(self) -> None:
        for store in self._channels.values():
            store.subscriptions.flush()

    def recover(self) -> Recovered | None:
        if self.server is None:
            return None
        channels = {}
        for name, store in self._channels.items():
            assert isinstance(store.subscriptions, JournalSubscriptions)
            channels[name] = (store, store.subscriptions.recover())
        return Recovered(self.server, list(self.infos.values()), channels)

    def crash(self) -> None:
        """Forgets what was not flushed."""
        for name in self._channels:
            self.subscriptions(name).crash()
