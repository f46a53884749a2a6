"""A streaming server in a world of its own: simulated time, a bus of lists, and clients that are a few lines."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.stores.interface import Lock, StateStore
from broker.stores.memory import MemoryStore
from broker.streaming.context import Context
from broker.streaming.ports import Recipients, RequestAnswer, RequestOutcome, Role
from broker.streaming.server import StreamingServer
from broker.streaming.state import ENDED, GONE, OFFLINE, RESCHEDULING, RESENDING, Channel
from broker.streaming.streaming_options import StreamingOptions
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from stantools.nats import subjects
from stantools.nats.frames import FrameHandler, Frames, Handler, Payloads, frame_table

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND

_inboxes = itertools.count(1)
matches = functools.lru_cache(1 << 16)(subjects.matches)


class Time:
    """A clock that others move; each look at it may cost some time."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND
        self.start = START
        self.cost = 0

    def monotonic(self) -> int:
        self.now += self.cost
        return self.now

    def wall(self) -> int:
        self.now += self.cost
        return self.start + self.now


class Wishes:
    """A driver that remembers what it was asked for."""

    def __init__(self) -> None:
        self.commit = False
        self.by: int | None = None  # when it commits, unless it has before
        self.paused = 0  # how often it was asked for that
        self.written = 0  # how often it was asked to write
        self.due: int | None = None
        self.fatal_message: str | None = None
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.aborted: list[str] = []

    def commit_soon(self) -> None:
        self.commit = True

    def wake(self) -> None:
        self.commit = True

    def write_now(self) -> None:
        self.written += 1

    def commit_by(self, time: int) -> None:
        self.by = time
        self.paused += 1

    def wake_at(self, time: int) -> None:
        self.due = time

    def aside(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((job, done))

    def fatal(self, message: str) -> None:
        self.fatal_message = message

    def abort(self, message: str) -> None:
        self.aborted.append(message)


@dataclass
class Sent:
    """Something that the server has published."""

    role: Role
    subject: bytes
    payload: bytes
    reply: bytes = b""


@dataclass(order=True)
class _Timeout:
    time: int
    number: int
    answer: Callable[[RequestAnswer], None] = field(compare=False)
    reply: bytes = field(compare=False)


class Bus:
    """NATS: what servers listen to, and who answers requests.

    Attributes:
        sent: Everything that was published, in order.
        responders: What becomes of requests to a subject: an answer, or None for silence.
        connected: Publishing works.
        deliverable: See `Bus` of the server; nothing larger is published.
        deserted: Subjects of which nobody gets messages; what is sent there is in `sent` all the same.
        slowed: Publishers are read more slowly.
    """

    max_payload = 1 << 20
    deliverable = 1 << 62

    def __init__(self, time: Time) -> None:
        self._time = time
        self.listeners: dict[int, tuple[bytes, Handler]] = {}
        self._takers: dict[Handler, FrameHandler] = {}
        self._numbers = itertools.count(1)
        self._queue: list[tuple[bytes, bytes, bytes]] = []
        self._timeouts: list[_Timeout] = []
        self._answers: list[tuple[Callable[[RequestAnswer], None], RequestAnswer]] = []
        self.barriers: list[Callable[[], None]] | None = None
        self.sent: list[Sent] = []
        self.full: set[bytes] = set()
        self.deserted: set[bytes] = set()
        self.requests: list[tuple[int, bytes]] = []
        self.responders: dict[bytes, bytes | None] = {}
        self.connected = True
        self.slowed = False

    # The side of the server.
    def publish(
        self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"", *, to_servers: bool = False
    ) -> bool:
        if not self.connected:
            return False
        assert len(payload) <= self.deliverable
        if subject:
            self.sent.append(Sent(role, subject, payload, reply))
            self._route(subject, payload, reply)
        return True

    def publish_block(self, role: Role, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        assert 0 <= begin < end <= len(block)
        return all(self.publish(role, subject, block.payload(row)) for row in range(begin, end))

    def publish_runs(self, role: Role, runs: Sequence[tuple[bytes, int, int]], block: Payloads) -> None:
        for subject, begin, end in runs:
            self.publish_block(role, subject, block, begin, end)

    def publish_each(self, role: Role, messages: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
        return [
            place
            for place, (subject, payload) in enumerate(messages)
            if self.congested(subject) or not self.publish(role, subject, payload)
        ]

    def congested(self, subject: bytes) -> bool:
        return subject in self.full

    def has_receiver(self, subject: bytes) -> bool:
        return subject not in self.deserted

    def slow_down(self) -> None:
        self.slowed = True

    def end_slowdown(self) -> None:
        self.slowed = False

    def request(
        self,
        role: Role,
        subject: bytes,
        payload: bytes,
        timeout: int,
        answer: Callable[[RequestAnswer], None],
        *,
        to_servers: bool = False,
    ) -> None:
        self.requests.append((self._time.now, subject))
        reply = b"_INBOX.request.%d" % next(self._numbers)
        if self.is_heard(subject):
            heapq.heappush(self._timeouts, _Timeout(self._time.now + timeout, next(self._numbers), answer, reply))
            self._route(subject, payload, reply)
        elif subject in self.responders:
            response = self.responders[subject]
            if response is None:
                heapq.heappush(self._timeouts, _Timeout(self._time.now + timeout, next(self._numbers), answer, reply))
            else:
                self._answers.append((answer, RequestAnswer(RequestOutcome.REPLY, response)))
        else:
            self._answers.append((answer, RequestAnswer(RequestOutcome.NO_RESPONDERS)))

    def listen(
        self, role: Role, subject: bytes, handler: Handler, *, gathered: bool = False, taker: FrameHandler | None = None
    ) -> object:
        number = next(self._numbers)
        self.listeners[number] = (subject, handler)
        if taker is not None:
            self._takers[handler] = taker
        return number

    def unlisten(self, subscription: object) -> None:
        assert isinstance(subscription, int)
        del self.listeners[subscription]

    def barrier(self, done: Callable[[], None]) -> None:
        if self.barriers is None:
            done()
        else:
            self.barriers.append(done)

    # The side of the test.
    def is_heard(self, subject: bytes) -> bool:
        return any(matches(pattern, subject) for pattern, _ in self.listeners.values())

    def listened(self) -> list[bytes]:
        return [subject for subject, _ in self.listeners.values()]

    def _route(self, subject: bytes, payload: bytes, reply: bytes) -> None:
        for timeout in self._timeouts:
            if timeout.reply == subject:
                self._timeouts.remove(timeout)
                heapq.heapify(self._timeouts)
                self._answers.append((timeout.answer, RequestAnswer(RequestOutcome.REPLY, payload)))
                return
        if self.is_heard(subject):
            self._queue.append((subject, payload, reply))

    def next_timeout(self) -> int | None:
        return self._timeouts[0].time if self._timeouts else None

    def feed(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        """Hands messages over as one socket read does: spans of those with the same handlers."""
        for (patterns, handlers), group in itertools.groupby(messages, lambda each: self._handlers(each[0])):
            del patterns
            buffer, frames = _laid_out(list(group))
            for handler in handlers:
                handler(buffer, frames, 0, len(frames))

    def feed_each(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        """Hands over what was gathered, one message for each of several handlers, to who takes it for them."""
        buffer, frames = _laid_out(messages)
        handlers = [handler for subject, _, _ in messages for handler in self._handlers(subject)[1]]
        for taker, group in itertools.groupby(range(len(messages)), lambda row: self._takers[handlers[row]]):
            rows = list(group)
            taker.take_each(buffer, frames, [handlers[row] for row in rows], rows)

    def _handlers(self, subject: bytes) -> tuple[list[int], list[Handler]]:
        found = {number: handler for number, (pattern, handler) in self.listeners.items() if matches(pattern, subject)}
        return list(found), list(found.values())

    def run(self) -> bool:
        """Hands over what is there. Returns whether there was anything."""
        queue, self._queue = self._queue, []
        for message in queue:
            self.feed([message])
        answers, self._answers = self._answers, []
        for answer, outcome in answers:
            answer(outcome)
        due = False
        while self._timeouts and self._timeouts[0].time <= self._time.now:
            due = True
            heapq.heappop(self._timeouts).answer(RequestAnswer(RequestOutcome.TIMEOUT))
        return bool(queue or answers or due)


def _laid_out(batch: list[tuple[bytes, bytes, bytes]]) -> tuple[bytes, Frames]:
    """Subject, payload and reply of each in one buffer, and the table that says where."""
    frames = frame_table(len(batch))
    buffer = bytearray()
    for row, (subject, payload, reply) in enumerate(batch):
        start = len(buffer)
        buffer += subject + reply + payload
        body = start + len(subject) + len(reply)
        frames[row] = (start, len(subject), start + len(subject), len(reply), 0, body, len(payload), 0)
    return bytes(buffer), frames


@dataclass
class Delivered:
    """A message as a subscriber saw it."""

    time: float
    sequence: int
    data: bytes
    redelivered: bool
    count: int


class World:
    """A server and its surroundings. Times are seconds since the server began."""

    def __init__(
        self,
        options: StreamingOptions | None = None,
        store: StateStore | None = None,
        *,
        start: bool = True,
        time: Time | None = None,
        bus: Bus | None = None,
        lock: Lock | None = None,
        audience: Recipients | None = None,
        **more: Any,
    ) -> None:
        self.time = time or Time()
        self.bus = bus or Bus(self.time)
        self.driver = Wishes()
        self.store = store or MemoryStore()
        self.options = options or StreamingOptions(**more)
        self.context = Context(self.options, self.store, self.bus, self.time, self.driver, audience)
        self.server = StreamingServer(self.context, lock=lock)
        self.began = self.time.now
        self.started = False
        self.failure: str | None = None
        self._seen = 0
        if start:
            self.start()

    def start(self) -> None:
        self.server.start(self._ready, self._failed)
        self.settle()

    def _ready(self) -> None:
        self.started = True

    def _failed(self, reason: str) -> None:
        self.failure = reason

    def settle(self) -> None:
        """Lets everything happen that happens now."""
        for _ in range(10_000):
            moved = self.bus.run()
            if self.driver.due is not None and self.driver.due <= self.time.now:
                self.driver.due = None
                self.server.run_timers()
                moved = True
            if self.driver.commit or (self.driver.by is not None and self.driver.by <= self.time.now):
                self.driver.commit, self.driver.by = False, None
                self.server.commit()
                moved = True
            jobs, self.driver.jobs = self.driver.jobs, []
            for job, done in jobs:
                done(job())
                moved = True
            if not moved:
                for channel in self.server.channels:
                    check_memberships(channel)
                return
        raise AssertionError("it never ends")

    def advance(self, seconds: float) -> None:
        """Lets time pass, stopping where something happens."""
        end = self.time.now + round(seconds * SECOND)
        self.settle()
        while True:
            wishes = (self.driver.due, self.driver.by, self.bus.next_timeout())
            times = [each for each in wishes if each is not None and each <= end]
            if not times:
                break
            self.time.now = max(self.time.now, min(times))
            self.settle()
        self.time.now = end
        self.settle()

    @property
    def now(self) -> float:
        return (self.time.now - self.began) / SECOND

    # What clients do.
    def ask(self, subject: bytes, payload: bytes) -> list[bytes]:
        """Sends a request and returns the answers that come at once."""
        reply = self.inbox()
        at = len(self.bus.sent)
        self.bus.feed([(subject, payload, reply)])
        self.settle()
        return [sent.payload for sent in self.bus.sent[at:] if sent.subject == reply]

    def inbox(self) -> bytes:
        return b"_INBOX.client.%d" % next(_inboxes)

    def connect(
        self, client_id: bytes = b"me", *, alive: bytes | None = b"", connection: bytes = b"", **more: Any
    ) -> protocol.ConnectResponse:
        """Connects. `alive` is the answer to heartbeats, None for a client that is silent."""
        heartbeat = more.pop("heartbeat_inbox", b"_HB." + client_id)
        self.bus.responders[heartbeat] = alive
        request = pb.ConnectRequest(
            client_id=client_id, heartbeat_inbox=heartbeat, conn_id=connection or client_id + b"-conn", **more
        )
        answers = self.ask(self.subjects.discovery, request.SerializeToString())
        return protocol.ConnectResponse.FromString(answers[0]) if answers else protocol.ConnectResponse(error=b"none")

    @property
    def subjects(self) -> Any:
        return self.server.subjects

    def message(
        self, channel: bytes, data: bytes = b"", client: bytes = b"me", guid: bytes = b"g", connection: bytes = b""
    ) -> bytes:
        return protocol.PubMsg(
            client_id=client, guid=guid, subject=channel, data=data, conn_id=connection
        ).SerializeToString()

    def publish(self, channel: bytes, *data: bytes, client: bytes = b"me", connection: bytes = b"") -> list[bytes]:
        """Publishes as one batch and returns the error texts of the acks, in the order in which they came."""
        reply = self.inbox()
        at = len(self.bus.sent)
        subject = self.subjects.publish + b"." + (channel or b"x")
        self.bus.feed(
            [
                (subject, self.message(channel, each, client, b"%d" % number, connection), reply)
                for number, each in enumerate(data)
            ]
        )
        self.settle()
        return [protocol.PubAck.FromString(sent.payload).error for sent in self.bus.sent[at:] if sent.subject == reply]

    def publish_raw(self, payload: bytes, channel: bytes = b"foo") -> list[protocol.PubAck]:
        return [protocol.PubAck.FromString(each) for each in self.ask(self.subjects.publish + b"." + channel, payload)]

    def request(self, channel: bytes, client: bytes = b"me", **more: Any) -> pb.SubscriptionRequest:
        wishes: dict[str, Any] = {
            "max_in_flight": 1024,
            "ack_wait_in_secs": 30,
            "inbox": self.inbox(),
            "start_position": pb.FIRST,
        }
        return pb.SubscriptionRequest(client_id=client, subject=channel, **(wishes | more))

    def subscribe(self, channel: bytes, client: bytes = b"me", **more: Any) -> Subscriber:
        """Subscribes, from the first message on if nothing else is said."""
        request = self.request(channel, client, **more)
        answers = self.ask(self.subjects.subscribe, request.SerializeToString())
        response = protocol.SubscriptionResponse.FromString(answers[0])
        return Subscriber(self, request, response.ack_inbox, response.error)

    def close(self, client: bytes = b"me") -> bytes:
        answers = self.ask(self.subjects.close, pb.CloseRequest(client_id=client).SerializeToString())
        return protocol.CloseResponse.FromString(answers[0]).error

    def ping(self, connection: bytes) -> list[bytes]:
        return self.ask(self.subjects.pings, protocol.Ping(conn_id=connection).SerializeToString())

    def channel(self, name: bytes) -> Any:
        return self.server.channels.get(name)


class Subscriber:
    """A subscription as its client sees it."""

    def __init__(self, world: World, request: pb.SubscriptionRequest, ack_inbox: bytes, error: bytes) -> None:
        self.world = world
        self.request = request
        self.ack_inbox = ack_inbox
        self.error = error
        self.at = 0
        self.messages: list[Delivered] = []

    def new(self) -> list[Delivered]:
        """Returns what has come since the last call. Times are those of the call."""
        fresh = self.world.bus.sent[self.at :]
        self.at = len(self.world.bus.sent)
        found = []
        for sent in fresh:
            if sent.subject == self.request.inbox:
                assert sent.role is Role.SEND
                message = pb.MsgProto.FromString(sent.payload)
                assert message.subject == self.request.subject
                found.append(
                    Delivered(
                        self.world.now, message.sequence, message.data, message.redelivered, message.redelivery_count
                    )
                )
        return found

    def sequences(self) -> list[int]:
        """Returns the sequences of what has come since the last call."""
        return [each.sequence for each in self.new()]

    def ack(self, *sequences: int, channel: bytes = b"") -> None:
        name = channel or self.request.subject
        self.world.bus.feed(
            [
                (self.ack_inbox, protocol.Ack(subject=name, sequence=sequence).SerializeToString(), b"")
                for sequence in sequences
            ]
        )
        self.world.settle()

    def _end(self, subject: bytes, inbox: bytes, client: bytes) -> bytes:
        request = pb.UnsubscribeRequest(
            client_id=client or self.request.client_id, subject=self.request.subject, inbox=inbox or self.ack_inbox
        )
        answers = self.world.ask(subject, request.SerializeToString())
        return protocol.SubscriptionResponse.FromString(answers[0]).error

    def unsubscribe(self, *, inbox: bytes = b"", client: bytes = b"") -> bytes:
        return self._end(self.world.subjects.unsubscribe, inbox, client)

    def close(self, *, inbox: bytes = b"", client: bytes = b"") -> bytes:
        return self._end(self.world.subjects.sub_close, inbox, client)


def check_memberships(channel: Channel) -> None:
    """Each subscription is where its phase says, and nowhere else."""
    assert channel.state is not GONE
    known = [*channel.by_ack_inbox.values(), *channel.durables.values()]
    for group in channel.groups.values():
        assert group.members or group.shadow is not None
        assert group.shadow is None or group.shadow.phase is OFFLINE
        known += group.members
    for each in known[:100]:
        assert each.channel is channel and each.phase is not ENDED
        assert (each.client is None) == (each.phase is OFFLINE)
        there = each.client is not None
        assert there == (channel.by_ack_inbox.get(each.state.ack_inbox) is each)
        assert each.client is None or each in each.client.subscriptions
        assert (there and each.group is None) == (channel.plain.get(each.id) is each)
        assert each.group is None or (there and each in each.group.members) or each.group.shadow is each
        assert each.held is None or each.phase in (RESENDING, RESCHEDULING)
        assert each.timer is None or there
    assert len(channel.plain) + sum(len(each.members) for each in channel.groups.values()) == len(channel.by_ack_inbox)


def everything(subscribers: list[Subscriber]) -> list[int]:
    """Returns the sequences that have come to any of them, sorted."""
    return sorted(sequence for each in subscribers for sequence in each.sequences())
