"""What clients of NATS Streaming get, as a model says that serves one request at a time.

The model knows no time: nobody is silent for so long that anything is sent again because of that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.streaming import request_errors
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from tests.broker.nats.simulator import Peer

Delivered = tuple[int, bool, bytes]  # sequence, sent again, data


@dataclass(eq=False)
class Member:
    """One subscription, as long as it is active."""

    request: pb.SubscriptionRequest
    peer: Peer
    behind: int  #: new messages begin after this sequence
    resumed: Member | None = None  #: the subscription that it goes on with, if it does
    acked: set[int] = field(default_factory=set)
    ack_inbox: bytes = b""  #: as its client was told
    stopped: int = -1  #: the last sequence of the channel when it ended

    @property
    def active(self) -> bool:
        return self.stopped < 0


@dataclass(eq=False)
class Group:
    """A queue group: what came before it began, and all who ever were in it."""

    behind: int
    members: list[Member] = field(default_factory=list)


class Model:
    """Serves requests in the order in which they are read.

    Args:
        prefix: What begins the subjects of publishes.
        subjects: Subjects of requests, by what they ask for.
    """

    def __init__(self, prefix: bytes, subjects: dict[bytes, str]) -> None:
        self._prefix = prefix + b"."
        self._subjects = subjects
        self.channels: dict[bytes, list[bytes]] = {}  #: the data of all messages
        self.clients: dict[bytes, bytes] = {}  #: connection ids of clients
        self.members: list[Member] = []  #: all subscriptions that there ever were
        self._durables: dict[tuple[bytes, bytes, bytes], Member] = {}
        self._groups: dict[tuple[bytes, bytes], Group] = {}
        self._by_ack_inbox: dict[bytes, Member] = {}
        #: Client, reply subject, and how it was answered: what was asked for, the guid of a publish, the error.
        self.answers: list[tuple[Peer, bytes, str, bytes, bytes]] = []

    def serve(self, peer: Peer, subject: bytes, reply: bytes, payload: bytes) -> bool:
        """Serves a message that a client has sent. Returns whether it is one for the server."""
        if subject.startswith(self._prefix):
            self._publish(peer, reply, protocol.PubMsg.FromString(payload))
        elif subject in self._subjects:
            what = self._subjects[subject]
            self.answers.append((peer, reply, what, b"", getattr(self, "_" + what)(peer, payload)))
        elif (member := self._by_ack_inbox.get(subject)) is not None:
            if member.active:
                member.acked.add(protocol.Ack.FromString(payload).sequence)
        else:
            return False
        return True

    def told(self, inbox: bytes, ack_inbox: bytes) -> None:
        """A client has got the ack inbox of its subscription with an inbox."""
        member = next(each for each in self.members if each.request.inbox == inbox)
        member.ack_inbox = ack_inbox
        self._by_ack_inbox[ack_inbox] = member

    def _publish(self, peer: Peer, reply: bytes, message: protocol.PubMsg) -> None:
        good = message.conn_id in self.clients.values()
        if good:
            self.channels.setdefault(message.subject, []).append(message.data)
        error = b"" if good else request_errors.INVALID_PUBLISH
        self.answers.append((peer, reply, "publish", message.guid, error))

    def _connect(self, peer: Peer, payload: bytes) -> bytes:
        request = pb.ConnectRequest.FromString(payload)
        assert request.client_id not in self.clients, "no two clients of a simulation have one id"
        self.clients[request.client_id] = request.conn_id
        return b""

    def _ping(self, peer: Peer, payload: bytes) -> bytes:
        known = protocol.Ping.FromString(payload).conn_id in self.clients.values()
        return b"" if known else request_errors.CLIENT_REPLACED

    def _close(self, peer: Peer, payload: bytes) -> bytes:
        client_id = pb.CloseRequest.FromString(payload).client_id
        if self.clients.pop(client_id, None) is None:
            return request_errors.UNKNOWN_CLIENT
        for member in self.members:
            if member.active and member.request.client_id == client_id:
                self._stop(member)
        return b""

    def _subscribe(self, peer: Peer, payload: bytes) -> bytes:
        request = pb.SubscriptionRequest.FromString(payload)
        if request.client_id not in self.clients:
            return request_errors.UNKNOWN_CLIENT
        channel = self.channels.setdefault(request.subject, [])
        last = len(channel)
        behind = {
            pb.NEW_ONLY: last,
            pb.FIRST: 0,
            pb.LAST_RECEIVED: max(last - 1, 0),
            pb.SEQUENCE_START: min(max(request.start_sequence, 1) - 1, last),
        }[request.start_position]
        member = Member(request, peer, behind)
        if request.q_group:
            key = request.subject, request.q_group
            group = self._groups.get(key)
            if group is None or not any(each.active for each in group.members):
                group = self._groups[key] = Group(behind)
            group.members.append(member)
        elif request.durable_name:
            name = request.client_id, request.subject, request.durable_name
            known = self._durables.get(name)
            if known is not None and known.active:
                return request_errors.DUPLICATE_DURABLE
            member.resumed = known
            self._durables[name] = member
        self.members.append(member)
        return b""

    def _end(self, payload: bytes, *, for_good: bool) -> bytes:
        request = pb.UnsubscribeRequest.FromString(payload)
        if request.subject not in self.channels:
            return request_errors.UNKNOWN_CHANNEL
        member = self._by_ack_inbox.get(request.inbox)
        if member is None or not member.active:
            return request_errors.INVALID_SUBSCRIPTION
        self._stop(member)
        if for_good:
            asked = member.request
            self._durables.pop((asked.client_id, asked.subject, asked.durable_name), None)
        return b""

    def _unsubscribe(self, peer: Peer, payload: bytes) -> bytes:
        return self._end(payload, for_good=True)

    def _sub_close(self, peer: Peer, payload: bytes) -> bytes:
        return self._end(payload, for_good=False)

    def _stop(self, member: Member) -> None:
        member.stopped = len(self.channels[member.request.subject])

    # What came

    @staticmethod
    def delivered(member: Member) -> list[Delivered]:
        """Returns what a client has got on the inbox of a subscription."""
        found = []
        for frame in member.peer.messages(member.request.inbox):
            message = pb.MsgProto.FromString(frame[5])
            assert message.subject == member.request.subject
            found.append((message.sequence, message.redelivered, message.data))
        return found

    def check(self, gone: set[Peer]) -> None:
        """Compares what clients have got with what they should have, now that all was done.

        Args:
            gone: Whose connections have ended: they may have got less.
        """
        self.check_answers(gone)
        for member in self.members:
            if member.peer not in gone and not member.request.q_group:
                self._check_member(member)
        for (name, _), group in self._groups.items():
            self._check_group(self.channels[name], group, gone)

    def check_stored(self, reader: Peer) -> None:
        """Checks what a client has got that reads everything, where others may have been served in another order.

        What one of them has published is there once, in this order, and all got the same messages.
        """
        readers = {each.request.subject: self.delivered(each) for each in self.members if each.peer is reader}
        for name, wanted in self.channels.items():
            assert [sequence for sequence, _, _ in readers[name]] == list(range(1, len(wanted) + 1))
            stored = [data for _, _, data in readers[name]]
            for origin in {_origin(data) for data in wanted}:
                own = [[data for data in each if _origin(data) == origin] for each in (stored, wanted)]
                assert own[0] == own[1], (name, origin)
            self.channels[name] = stored
        for member in self.members:
            came = self.delivered(member)
            stored = self.channels[member.request.subject]
            assert [data for _, _, data in came] == [stored[sequence - 1] for sequence, _, _ in came]
            new = [sequence for sequence, redelivered, _ in came if not redelivered]
            assert new == sorted(set(new)), new

    def check_answers(self, gone: set[Peer]) -> None:
        wanted: dict[tuple[Peer, bytes, bool], list[tuple[str, bytes, bytes]]] = {}
        got: dict[tuple[Peer, bytes, bool], list[tuple[str, bytes, bytes]]] = {}
        kinds: dict[tuple[Peer, bytes], str] = {}
        for peer, reply, what, guid, error in self.answers:
            kinds[peer, reply] = what
            # A publish that is refused is answered at once.
            wanted.setdefault((peer, reply, bool(error)), []).append((what, guid, error))
        decoders = {
            "publish": protocol.PubAck,
            "connect": protocol.ConnectResponse,
            "ping": protocol.PingResponse,
            "close": protocol.CloseResponse,
        }
        for (peer, reply), what in kinds.items():
            for frame in peer.messages(reply):
                answer = decoders.get(what, protocol.SubscriptionResponse).FromString(frame[5])
                error = answer.error.encode() if isinstance(answer.error, str) else answer.error
                guid = answer.guid if what == "publish" else b""
                got.setdefault((peer, reply, bool(error)), []).append((what, guid, error))
        for key, answers in wanted.items():
            found = got.pop(key, [])
            assert found == (answers[: len(found)] if key[0] in gone else answers), key[1:]
        assert not got

    def _begin(self, member: Member) -> tuple[int, set[int]]:
        """Returns after which sequence the new messages of a subscription begin, and what it is sent again at first."""
        if (known := member.resumed) is None:
            return member.behind, set()
        behind, pending = self._begin(known)
        sent = [sequence for sequence, _, _ in self.delivered(known)]
        return max([behind, *sent]), (pending | set(sent)) - known.acked

    def _check_member(self, member: Member) -> None:
        name, came = member.request.subject, self.delivered(member)
        channel, (behind, pending) = self.channels[name], self._begin(member)
        again = [sequence for sequence, redelivered, _ in came if redelivered]
        new = [sequence for sequence, redelivered, _ in came if not redelivered]
        assert [data for _, _, data in came] == [channel[sequence - 1] for sequence, _, _ in came]
        assert new == list(range(behind + 1, behind + 1 + len(new))), (name, new)
        left = (pending | set(new)) - member.acked
        assert len(left) <= max(member.request.max_in_flight, len(pending)), "more than may be in flight"
        if member.active:
            assert again == sorted(pending), (name, again)
            full = len(left) >= member.request.max_in_flight
            assert full or behind + len(new) == len(channel), (name, len(left), new)
        else:
            assert set(again) <= pending and len(set(again)) == len(again)
            assert behind + len(new) <= member.stopped, "delivered after its end"

    def _check_group(self, channel: list[bytes], group: Group, gone: set[Peer]) -> None:
        """Each message has come to one member, and to each member in order."""
        all_of_them: list[int] = []
        for member in group.members:
            came = self.delivered(member)
            assert [data for _, _, data in came] == [channel[sequence - 1] for sequence, _, _ in came]
            new = [sequence for sequence, redelivered, _ in came if not redelivered]
            assert new == sorted(set(new)), new
            all_of_them += new
        assert len(set(all_of_them)) == len(all_of_them), "a message has come to two members"
        active = [member for member in group.members if member.active]
        if active and not any(member.peer in gone for member in group.members):
            assert sorted(all_of_them) == list(range(group.behind + 1, len(channel) + 1)), all_of_them


def _origin(data: bytes) -> bytes:
    """Returns who has published a message: its data begins with that."""
    return data.partition(b" ")[0]
