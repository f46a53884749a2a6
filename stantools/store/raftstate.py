"""Clients and subscriptions of a cluster, rebuilt from a snapshot and the later entries of a Raft log.

Facts: clustered-stores.md section 6. The rules are those by which a server applies its log, refusals included,
because clients' mistakes are in the log as well. There are two departures, in both cases because a server loses data
and a reader must not: a snapshot's channel is taken whether or not the file store has it (7.3), and pending messages
of a member that leaves a queue group stay with the group until another member got them (6.6).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from stantools.format.proto import store_pb2 as pb
from stantools.format.raftlog import LoggedPublishes, RaftEntry

_Op = pb.RaftOperation


class SubKind(enum.StrEnum):
    PLAIN = "plain"
    DURABLE = "durable"
    OFFLINE_DURABLE = "offline_durable"  #: its client is disconnected; it is kept
    QUEUE_MEMBER = "queue_member"
    QUEUE_SHADOW = "queue_shadow"  #: keeps the position of a durable queue group without members


@dataclass(eq=False)
class ClusterSubscription:
    state: pb.SubState  #: its fields, named as in subs.dat: the name of a durable queue group is `durable:group`
    pending: set[int] = field(default_factory=set)  #: sequences that were sent and not acknowledged
    kind: SubKind = SubKind.PLAIN

    @property
    def active(self) -> bool:
        return self.kind not in (SubKind.OFFLINE_DURABLE, SubKind.QUEUE_SHADOW)


@dataclass
class ClusterQueueGroup:
    last_sent: int = 0  #: the highest sequence that was sent to any member: the group's position
    members: list[ClusterSubscription] = field(default_factory=list)  #: active members, in order of arrival
    shadow: ClusterSubscription | None = None  #: keeps the position of a durable group without members
    #: sequences that were pending on members that left, and were not sent to another member since
    orphans: set[int] = field(default_factory=set)

    def pending(self) -> set[int]:
        """Returns the sequences that the group has not acknowledged."""
        found = {each for each in self.orphans if each <= self.last_sent}
        for each in (*self.members, self.shadow):
            found |= each.pending if each else set()
        return found

    def adopt(self) -> None:
        """Assigns the orphans and the group's position to one of its members."""
        successor = self.members[0] if self.members else self.shadow
        if successor is None:
            return
        held = set().union(*(each.pending for each in self.members))
        successor.pending |= {each for each in self.orphans if each <= self.last_sent} - held
        successor.state.last_sent = max(successor.state.last_sent, self.last_sent)
        self.orphans = set()


@dataclass
class ClusterChannel:
    name: bytes
    id: int = 0  #: distinguishes it from a deleted channel of the same name; 0 if unknown
    next_id: int = 1  #: id of the next subscription
    first: int = 0  #: first sequence in the snapshot, or in the log without one; 0 if there is no message
    last: int = 0  #: last sequence in the log, or in the snapshot
    subscriptions: dict[int, ClusterSubscription] = field(default_factory=dict)  #: by id
    groups: dict[bytes, ClusterQueueGroup] = field(default_factory=dict)  #: by name
    durables: dict[tuple[bytes, bytes], ClusterSubscription] = field(default_factory=dict, repr=False)
    ack_inboxes: dict[bytes, ClusterSubscription] = field(default_factory=dict, repr=False)
    inboxes: dict[bytes, ClusterSubscription] = field(default_factory=dict, repr=False)

    def find(self, inbox: bytes) -> ClusterSubscription | None:
        """Returns the active subscription with this ack inbox, or else with this inbox."""
        return self.ack_inboxes.get(inbox) or self.inboxes.get(inbox)


class ClusterState:
    """The state that a node would have as a new leader, before it sends anything.

    It starts from a snapshot whose last entry has the term `term`, or empty. `index` and `term` are those of the
    last entry applied.
    """

    def __init__(self, snapshot: pb.RaftSnapshot | None = None, term: int = 0, index: int = 0) -> None:
        self.clients: dict[bytes, pb.ClientInfo] = {}  #: by id, in order of arrival
        self.channels: dict[bytes, ClusterChannel] = {}  #: by name
        self.term, self.index = term, index
        self.dropped = 0  #: number of the snapshot's subscriptions that no server keeps
        #: active subscriptions of each client, in order of arrival
        self._owned: dict[bytes, dict[ClusterSubscription, ClusterChannel]] = {}
        if snapshot is not None:
            self._load(snapshot)

    def _load(self, snapshot: pb.RaftSnapshot) -> None:
        for client in snapshot.clients:
            self.clients.setdefault(client.id, client)
        for saved in snapshot.channels:
            channel = self.channels[saved.channel] = ClusterChannel(saved.channel, saved.channel_id)
            channel.first, channel.last = saved.first, saved.last
            for each in saved.subscriptions:
                self._load_subscription(channel, each)
            channel.next_id = max(saved.next_sub_id, channel.next_id)

    def _load_subscription(self, channel: ClusterChannel, saved: pb.SubscriptionSnapshot) -> None:
        state = pb.SubState()
        state.CopyFrom(saved.state)
        sub = ClusterSubscription(state, set(saved.acks_pending))
        channel.next_id = max(channel.next_id, state.id + 1)
        known = state.client_id in self.clients
        if state.durable_name and (state.is_closed or not known):
            state.is_closed = True
            sub.kind = SubKind.OFFLINE_DURABLE
            channel.durables[state.client_id, state.durable_name] = sub
        elif known:
            self._activate(channel, sub)
        elif state.q_group and state.is_durable and not state.client_id:
            group = channel.groups.setdefault(state.q_group, ClusterQueueGroup())
            group.last_sent = max(group.last_sent, state.last_sent)
            if group.shadow:
                if group.shadow.state.last_sent >= state.last_sent:
                    return
                channel.subscriptions.pop(group.shadow.state.id, None)
            sub.kind, group.shadow = SubKind.QUEUE_SHADOW, sub
        else:
            self.dropped += 1
            return
        channel.subscriptions[state.id] = sub

    def advance(self, entry: RaftEntry, operation: pb.RaftOperation | None) -> None:
        """Applies an entry's operation, if it has one; an entry at or before the present index has no effect."""
        if entry.index > self.index:
            self.index, self.term = entry.index, entry.term
            if operation is not None:
                self.apply(operation)

    def advance_run(self, run: LoggedPublishes) -> None:
        """Applies a run of entries, which is entirely before or after the present index."""
        if run.last > self.index:
            self.index, self.term = run.last, run.term
            self._messages(run.channel, run.channel_id, run.first_sequence, run.last_sequence)

    def apply(self, operation: pb.RaftOperation) -> None:
        kind = operation.op_type
        if kind == _Op.PUBLISH:
            if messages := operation.publish_batch.messages:  # they are consecutive
                subject, first, last = messages[0].subject, messages[0].sequence, messages[-1].sequence
                self._messages(subject, operation.channel_id, first, last)
        elif kind == _Op.SEND_AND_ACK:
            self._send_and_ack(operation.sub_sent_ack)
        elif kind == _Op.SUBSCRIBE:
            channel = self._channel(operation.sub.request.subject, operation.channel_id)
            if channel:
                self._subscribe(channel, operation.sub)
        elif kind in (_Op.REMOVE_SUBSCRIPTION, _Op.CLOSE_SUBSCRIPTION):
            channel = self.channels.get(operation.unsub.subject)
            sub = channel.find(operation.unsub.inbox) if channel else None
            if channel and sub and sub.state.client_id == operation.unsub.client_id:
                self._remove(channel, sub, unsubscribe=kind == _Op.REMOVE_SUBSCRIPTION)
        elif kind == _Op.CONNECT:
            self._connect(operation.client_connect)
        elif kind == _Op.DISCONNECT:
            self._disconnect(operation.client_disconnect.client_id)
        elif kind == _Op.DELETE_CHANNEL:
            channel = self.channels.get(operation.channel)
            if channel and (not channel.id or not operation.channel_id or channel.id == operation.channel_id):
                self._delete(channel)

    def _channel(self, name: bytes, number: int) -> ClusterChannel | None:
        """Returns the channel of an operation, created if necessary; None if it was deleted before."""
        channel = self.channels.get(name)
        if channel and number and channel.id and channel.id != number:
            if channel.id > number:
                return None
            self._delete(channel)
            channel = None
        if channel is None:
            channel = self.channels[name] = ClusterChannel(name, number)
        return channel

    def _delete(self, channel: ClusterChannel) -> None:
        for sub in channel.subscriptions.values():
            self._owned.get(sub.state.client_id, {}).pop(sub, None)
        del self.channels[channel.name]

    def _messages(self, name: bytes, number: int, first: int, last: int) -> None:
        if channel := self._channel(name, number):
            channel.first = channel.first or first
            channel.last = max(channel.last, last)

    def _connect(self, added: pb.AddClient) -> None:
        request = added.request
        if added.refresh:
            self._disconnect(request.client_id)
        self.clients.setdefault(
            request.client_id,
            pb.ClientInfo(
                id=request.client_id,
                hb_inbox=request.heartbeat_inbox,
                conn_id=request.conn_id,
                protocol=request.protocol,
                ping_interval=request.ping_interval,
                ping_max_out=request.ping_max_out,
            ),
        )

    def _disconnect(self, client_id: bytes) -> None:
        for sub, channel in list(self._owned.get(client_id, {}).items()):
            self._remove(channel, sub, unsubscribe=False)
        self._owned.pop(client_id, None)
        self.clients.pop(client_id, None)

    def _subscribe(self, channel: ClusterChannel, added: pb.AddSubscription) -> None:
        request = added.request
        durable, queue = request.durable_name, request.q_group
        if request.client_id not in self.clients:
            return
        existing: ClusterSubscription | None = None
        if queue:
            if b":" in durable:
                return
            queue = durable + b":" + queue if durable else queue
            existing = channel.groups[queue].shadow if queue in channel.groups else None
        elif durable:
            existing = channel.durables.get((request.client_id, durable))
            if existing and existing.active:
                return
        sub = existing or ClusterSubscription(self._new_state(channel, added, queue))
        state = sub.state
        state.client_id, state.is_closed = request.client_id, False
        state.inbox, state.ack_inbox = request.inbox, added.ack_inbox
        state.max_in_flight, state.ack_wait_in_secs = request.max_in_flight, request.ack_wait_in_secs
        channel.subscriptions[state.id] = sub
        channel.next_id = max(channel.next_id, state.id + 1)
        self._activate(channel, sub)

    def _new_state(self, channel: ClusterChannel, added: pb.AddSubscription, queue: bytes) -> pb.SubState:
        request = added.request
        # a further member of a group continues at the group's position
        last_sent = 0 if queue in channel.groups else max(request.start_sequence, 1) - 1
        return pb.SubState(
            id=added.id or channel.next_id,
            q_group=queue,
            durable_name=b"" if queue else request.durable_name,
            is_durable=bool(request.durable_name),
            last_sent=last_sent,
        )

    def _activate(self, channel: ClusterChannel, sub: ClusterSubscription) -> None:
        state = sub.state
        if state.q_group:
            sub.kind = SubKind.QUEUE_MEMBER
            group = channel.groups.setdefault(state.q_group, ClusterQueueGroup())
            if group.shadow is sub:
                group.shadow = None
            group.members.append(sub)
            group.last_sent = max(group.last_sent, state.last_sent)
        elif state.durable_name:
            sub.kind = SubKind.DURABLE
            channel.durables[state.client_id, state.durable_name] = sub
        channel.ack_inboxes[state.ack_inbox] = sub
        channel.inboxes[state.inbox] = sub
        self._owned.setdefault(state.client_id, {})[sub] = channel

    def _remove(self, channel: ClusterChannel, sub: ClusterSubscription, *, unsubscribe: bool) -> None:
        """Takes a subscription from its client, because it unsubscribed, closed it or is gone."""
        state = sub.state
        self._owned.get(state.client_id, {}).pop(sub, None)
        for table, key in ((channel.ack_inboxes, state.ack_inbox), (channel.inboxes, state.inbox)):
            if table.get(key) is sub:
                del table[key]
        if sub.kind is SubKind.DURABLE and not unsubscribe:
            sub.kind, state.is_closed = SubKind.OFFLINE_DURABLE, True
            return
        if sub.kind is SubKind.DURABLE:
            del channel.durables[state.client_id, state.durable_name]
        elif sub.kind is SubKind.QUEUE_MEMBER and self._leave(channel, sub, unsubscribe=unsubscribe):
            return
        channel.subscriptions.pop(state.id, None)

    def _leave(self, channel: ClusterChannel, sub: ClusterSubscription, *, unsubscribe: bool) -> bool:
        """Takes a member from its queue group; returns whether it stays, as the group's shadow."""
        state = sub.state
        group = channel.groups[state.q_group]
        group.members.remove(sub)
        if group.members:
            group.orphans |= sub.pending
            if state.last_sent == group.last_sent:
                group.members[0].state.last_sent = group.last_sent
            return False
        if not state.is_durable or unsubscribe:
            del channel.groups[state.q_group]
            return False
        state.client_id, state.last_sent = b"", group.last_sent
        sub.kind, group.shadow = SubKind.QUEUE_SHADOW, sub
        return True

    def _send_and_ack(self, change: pb.SubSentAndAck) -> None:
        channel = self._channel(change.channel, 0)
        sub = channel.ack_inboxes.get(change.ack_inbox) if channel else None
        if channel is None or sub is None:
            return
        if change.sent:
            sub.state.last_sent = max(sub.state.last_sent, *change.sent)
            sub.pending.update(change.sent)
        sub.pending.difference_update(change.ack)
        if sub.kind is SubKind.QUEUE_MEMBER:
            group = channel.groups[sub.state.q_group]
            group.last_sent = max(group.last_sent, sub.state.last_sent if change.sent else 0)
            group.orphans.difference_update(change.sent, change.ack)

    def keep_pending(self, others: Sequence[ClusterState]) -> None:
        """Adds to each subscription the sequences that are pending in any of the other states of the same log.

        Facts: clustered-stores.md section 12.3.
        """
        for name, channel in self.channels.items():
            copies = [copy for state in others if (copy := state.channels.get(name)) and copy.id == channel.id]
            for number, sub in channel.subscriptions.items():
                position = channel.groups[sub.state.q_group].last_sent if sub.state.q_group else sub.state.last_sent
                for copy in copies:
                    same = copy.subscriptions.get(number)
                    if same and same.state.inbox == sub.state.inbox:
                        sub.pending |= {each for each in same.pending if each <= position}
            for key, group in channel.groups.items():
                for copy in copies:
                    if key in copy.groups:
                        group.orphans |= copy.groups[key].orphans
                group.adopt()
