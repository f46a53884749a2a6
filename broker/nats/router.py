"""Delivery of messages to subscribers, in runs instead of one by one.

Work that takes longer than handing a run to one socket is a generator: it can be interrupted, and continues after
the turns of other work.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from broker.log import NATS
from broker.nats.client import CLOSED, BrokerClient, Counters, NatsSubscription
from broker.nats.remote_interest import RemoteInterestTable, draw
from stantools.nats.frames import HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE, REPLY, REPLY_SIZE, SUBJECT, SUBJECT_SIZE, rows
from stantools.nats.kernels import hand_out, hand_out_runs, subject_runs

if TYPE_CHECKING:
    from broker.nats.auth import Permit
    from broker.nats.fair_scheduler import Mailbox
    from broker.nats.subscriptions import SubjectRoute, SubjectTable, Subscriptions
    from broker.reserved import ReservedSubjects
    from broker.rounds import LoopRounds
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Payloads, Share, Span

#: Seconds of a handler's call above which it gets fewer rows at a time, and below which it gets more.
_LONG_CALL: Final = 0.004
_SHORT_CALL: Final = 0.002
_MAX_ROWS: Final = 4096
#: Seconds of pause for a client that sends more than a handler can take; then it may send another read.
_STALL = 1.0
#: Fewer rows are handed to a handler without measuring the time.
_FEW_ROWS: Final = 4


@dataclass(slots=True)
class _RowDelivery:
    buffer: Buffer
    frames: Frames
    parts: list[_RowDelivery] = field(default_factory=list)

    def part(self, rows: Frames) -> _RowDelivery:
        self.parts.append(_RowDelivery(self.buffer, rows))
        return self.parts[-1]

    def keep(self, end: int) -> None:
        """Copies the rows up to `end`, because buffer and table are about to be reused."""
        used = int(self.frames[end - 1, PAYLOAD]) + int(self.frames[end - 1, PAYLOAD_SIZE])
        self.buffer = bytes(memoryview(self.buffer)[:used])
        self.frames = self.frames[:end].copy()
        for part in self.parts:
            part.buffer = self.buffer


class Router:
    """Delivers messages to subscribers.

    `mailbox` holds messages between parts of this process; they are delivered before the next message of a socket.
    `dirty` registers connections with output.
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        mailbox: Mailbox,
        rounds: LoopRounds,
        dirty: Callable[[Iterable[Any]], None],
    ) -> None:
        self.counters = Counters()  #: messages and bytes of all clients
        self.tracing = False  #: log protocol messages
        self._subscriptions = subscriptions
        self._mailbox = mailbox
        self._rounds = rounds
        self._dirty = dirty

    # Messages from sockets

    def publish(
        self,
        origin: BrokerClient,
        table: SubjectTable,
        buffer: Buffer,
        frames: Frames,
        spans: list[Span],
        deadline: float,
    ) -> tuple[int, Iterator[None] | None]:
        """Delivers the publishes of a client on a socket.

        Args:
            origin: The client.
            table: Subjects that it may publish to.
            buffer: Buffer with the frames.
            frames: Table of frames.
            spans: Runs of rows with equal routes.
            deadline: End of the turn (`perf_counter`).

        Returns:
            The number of handled rows, at least one, and the remaining work for them, if any.
        """
        subscriptions, mailbox, rows, size_of_all = self._subscriptions, self._mailbox, 0, 0
        routes, version = subscriptions.routes, subscriptions.version
        rest: Iterator[None] | None = None
        for number, begin, end in spans:
            if end <= rows:
                continue
            if mailbox.waiting:
                mailbox.drain()
            begin = max(begin, rows)
            size = int(frames[begin, PAYLOAD_SIZE] if end - begin == 1 else frames[begin:end, PAYLOAD_SIZE].sum())
            rows, size_of_all = end, size_of_all + size
            only = None
            # A receiver's call may invalidate the routes; then they are looked up again.
            if number > 0 and version == subscriptions.version:
                only = routes[number].only
            if (
                only is not None
                and (only.handler is None or end - begin <= only.pace)
                and not only.limit
                and not only.closed
                and only.client is not origin
            ):
                if only.handler is None or end - begin < _FEW_ROWS:
                    self._hand_over(origin, only, buffer, frames, begin, end, size)
                else:
                    self._hand_over_paced(origin, only, buffer, frames, begin, end, size)
            else:
                delivery = _RowDelivery(buffer, frames)
                if number > 0 and version == subscriptions.version:
                    work: Iterator[None] = self._deliver(origin, routes[number], delivery, begin, end, size)
                else:
                    work = self._publish_unknown(origin, table, delivery, begin, end, size)
                for _ in work:
                    if perf_counter() > deadline:
                        delivery.keep(end)
                        rest = work
                        break
            if perf_counter() > deadline:
                break
        for counters in (origin.counters, self.counters):
            counters.in_msgs += rows
            counters.in_bytes += size_of_all
        return rows, rest

    def publish_gathered(
        self, origins: Sequence[BrokerClient], buffer: Buffer, frames: Frames, shares: Iterable[Share]
    ) -> None:
        """Delivers gathered publishes of several clients, each share to the only receiver of its route, a handler.

        Single messages for handlers of a client with a common taker go to that in one call. The caller counts the input
        of the clients.
        """
        routes, counters = self._subscriptions.routes, self.counters
        alone: list[NatsSubscription] = []
        places: list[int] = []
        for number, begin, end, size in shares:
            to, count = routes[number].only, end - begin
            counters.in_msgs += count
            counters.in_bytes += size
            if to is None or to.handler is None or to.closed:
                for _, reply, _, _ in rows(buffer, frames, begin, end):
                    for origin in origins if reply else ():
                        if origin.no_responders:
                            origin.report_no_responders(reply)
                continue
            client = to.client
            to.delivered += count
            counters.out_msgs += count
            counters.out_bytes += size
            received = client.counters
            received.out_msgs += count
            received.out_bytes += size
            if alone and (count > 1 or to.taker is not alone[0].taker):
                _take_each(alone, buffer, frames, places)
                alone, places = [], []
            if count == 1 and to.taker is not None:
                alone.append(to)
                places.append(begin)
                continue
            client.full = False
            try:
                to.handler(buffer, frames, begin, end)
            except Exception as problem:
                _report(to, problem)
                continue
            if client.full:
                for origin in origins:
                    origin.stall(client, _STALL)
        if alone:
            _take_each(alone, buffer, frames, places)

    def _publish_unknown(
        self, origin: BrokerClient, table: SubjectTable, delivery: _RowDelivery, begin: int, end: int, size: int
    ) -> Iterator[None]:
        row = begin
        while row < end:
            # The rows of a known route may have different subjects.
            subject = _subject(delivery, row)
            after = row + 1
            while after < end and _subject(delivery, after) == subject:
                after += 1
            part = size if after - row == end - begin else int(delivery.frames[row:after, PAYLOAD_SIZE].sum())
            if table.permit is not None and not table.permit.may_publish(subject):
                yield from self._publish_denied(origin, table.permit, subject, delivery, row, after)
            else:
                route = yield from self._subscriptions.look_up(subject, after - row > 1)
                self._subscriptions.remember(table, subject, route)
                yield from self._deliver(origin, route, delivery, row, after, part)
            row = after
            yield

    def _publish_denied(
        self, origin: BrokerClient, permit: Permit, subject: bytes, delivery: _RowDelivery, begin: int, end: int
    ) -> Iterator[None]:
        for row in range(begin, end):
            if permit.responses is not None and origin.may_respond(subject):
                size = int(delivery.frames[row, PAYLOAD_SIZE])
                route = yield from self._subscriptions.look_up(subject, False)
                yield from self._deliver(origin, route, delivery, row, row + 1, size)
            else:
                origin.publish_denied(subject)
            yield

    def _deliver(
        self, origin: BrokerClient, route: SubjectRoute, delivery: _RowDelivery, begin: int, end: int, size: int
    ) -> Iterator[None]:
        reached = begin  # the first row without a receiver
        for subscription in route.plain:
            client = subscription.client
            if subscription.closed or (client is origin and not origin.echo):
                continue
            if subscription.limit:
                reached = max(reached, begin + self._deliver_limited(origin, subscription, delivery, begin, end))
            else:
                yield from self._hand_over_all(origin, subscription, delivery, begin, end, size)
                reached = end
            yield
        if route.remote_interest is None:
            for group in route.queues:
                reached = max(reached, (yield from self._deliver_group(origin, group, delivery, begin, end, size)))
        else:
            reached = max(
                reached, (yield from self._deliver_remote(origin, route, route.remote_interest, delivery, begin, end))
            )
        if reached < end and origin.no_responders and delivery.frames[reached:end, REPLY_SIZE].any():
            for row in range(reached, end):
                size = int(delivery.frames[row, REPLY_SIZE])
                if size:
                    start = int(delivery.frames[row, REPLY])
                    origin.report_no_responders(bytes(memoryview(delivery.buffer)[start : start + size]))
                    yield

    def _hand_over_all(
        self, origin: BrokerClient, to: NatsSubscription, delivery: _RowDelivery, begin: int, end: int, size: int
    ) -> Iterator[None]:
        """Hands over rows: to a socket all at once, to a handler a number that takes it a short time."""
        if to.handler is None:
            self._hand_over(origin, to, delivery.buffer, delivery.frames, begin, end, size)
            return
        row = begin
        while row < end and not to.closed:
            after = min(end, row + to.pace)
            part = size if after - row == end - begin else int(delivery.frames[row:after, PAYLOAD_SIZE].sum())
            self._hand_over_paced(origin, to, delivery.buffer, delivery.frames, row, after, part)
            row = after
            yield

    def _hand_over_paced(
        self,
        origin: BrokerClient,
        to: NatsSubscription,
        buffer: Buffer,
        frames: Frames,
        begin: int,
        end: int,
        size: int,
    ) -> None:
        """Hands rows to a handler at its pace, and adapts the pace to its speed."""
        start = perf_counter()
        self._hand_over(origin, to, buffer, frames, begin, end, size)
        took = perf_counter() - start
        if took > _LONG_CALL:
            to.pace = max(1, (end - begin) // 2)
        elif took < _SHORT_CALL and end - begin == to.pace:
            to.pace = min(2 * to.pace, _MAX_ROWS)

    def _hand_over(
        self,
        origin: BrokerClient,
        to: NatsSubscription,
        buffer: Buffer,
        frames: Frames,
        begin: int,
        end: int,
        size: int,
    ) -> None:
        wait = self._take(to, buffer, frames, begin, end, size)
        if wait and origin is not to.client:
            origin.stall(to.client, wait)

    def _take(self, to: NatsSubscription, buffer: Buffer, frames: Frames, begin: int, end: int, size: int) -> float:
        """Hands rows to a handler or client. Returns the seconds that the publishers should pause."""
        self._account(to, end - begin, size)
        client, handler = to.client, to.handler
        try:
            if handler is None:
                return client.take(to, buffer, frames, begin, end, size)
            client.full = False
            handler(buffer, frames, begin, end)
            return _STALL if client.full else 0
        except Exception as problem:
            _report(to, problem)
            return 0

    def _deliver_limited(
        self, origin: BrokerClient, to: NatsSubscription, delivery: _RowDelivery, begin: int, end: int
    ) -> int:
        """Delivers the number of messages left before the subscription's limit; ends the subscription at the limit."""
        end = min(end, begin + max(to.limit - to.delivered, 0))
        if to.delivered + end - begin >= to.limit:
            self._subscriptions.remove(to)
        if end > begin:
            size = int(delivery.frames[begin:end, PAYLOAD_SIZE].sum())
            self._hand_over(origin, to, delivery.buffer, delivery.frames, begin, end, size)
        return end - begin

    def _deliver_group(
        self,
        origin: BrokerClient,
        group: tuple[NatsSubscription, ...],
        delivery: _RowDelivery,
        begin: int,
        end: int,
        size: int,
    ) -> Generator[None, None, int]:
        """Delivers each message to a random member of a queue group. Returns the first row without one, or the end."""
        members = [s for s in group if not (s.closed or (s.client is origin and not origin.echo))]
        if not members:
            return begin
        if len(members) == 1 and not members[0].limit:
            yield from self._hand_over_all(origin, members[0], delivery, begin, end, size)
        elif any(s.limit for s in members):
            for row in range(begin, end):
                open_members = [s for s in members if not s.closed]
                if not open_members:
                    return row
                chosen = open_members[int(random.random() * len(open_members))]
                if chosen.limit:
                    self._deliver_limited(origin, chosen, delivery, row, row + 1)
                else:
                    one = int(delivery.frames[row, PAYLOAD_SIZE])
                    self._hand_over(origin, chosen, delivery.buffer, delivery.frames, row, row + 1, one)
                yield
        elif end - begin == 1:
            chosen = members[int(random.random() * len(members))]
            yield from self._hand_over_all(origin, chosen, delivery, begin, end, size)
        else:
            draws = np.random.randint(0, len(members), end - begin)
            for i in np.unique(draws).tolist():
                rows = delivery.frames[begin:end]
                own = delivery.part(np.ascontiguousarray(rows[draws == i]))
                size = int(own.frames[:, PAYLOAD_SIZE].sum())
                yield from self._hand_over_all(origin, members[i], own, 0, len(own.frames), size)
                yield
        return end

    # Messages to and from other servers

    def _deliver_remote(
        self,
        origin: BrokerClient,
        route: SubjectRoute,
        remote_interest: RemoteInterestTable,
        delivery: _RowDelivery,
        begin: int,
        end: int,
    ) -> Generator[None, None, int]:
        """Delivers to other servers, and to queue groups with members there.

        Returns:
            The first row without a receiver, or the end.
        """
        reached = begin
        for row in range(begin, end):
            near, far = draw(origin, route.queues, remote_interest)
            for chosen in near:
                if chosen.limit:
                    self._deliver_limited(origin, chosen, delivery, row, row + 1)
                else:
                    size = int(delivery.frames[row, PAYLOAD_SIZE])
                    self._hand_over(origin, chosen, delivery.buffer, delivery.frames, row, row + 1, size)
            if far:
                values = delivery.frames[row].tolist()
                view = memoryview(delivery.buffer)
                subject, reply, payload = (
                    bytes(view[values[at] : values[at] + values[size]])
                    for at, size in ((SUBJECT, SUBJECT_SIZE), (REPLY, REPLY_SIZE), (PAYLOAD, PAYLOAD_SIZE))
                )
                for server, queues in far.items():
                    server.deliver(subject, reply, queues, values[HEADER_SIZE], payload)
            if near or far:
                reached = row + 1
            yield
        return reached

    def arrive(self, subject: bytes, reply: bytes, payload: bytes, header_size: int, queues: tuple[bytes, ...]) -> None:
        """Delivers a message from another server to all clients outside of queue groups, and a member of each queue."""
        route = self._subscriptions.route(subject)
        self.counters.in_msgs += 1
        self.counters.in_bytes += len(payload)
        groups = [group for group in route.queues if group[0].queue in queues]
        for to in self._receivers(None, route, groups):
            self._account(to, 1, len(payload))
            to.client.take_one(to, subject, reply, payload, header_size)

    # Messages from this process

    def answer(
        self, origin: BrokerClient, subject: bytes, payload: bytes, header_size: int, reply: bytes = b""
    ) -> None:
        """Delivers one message of the server itself, usually the answer to a client."""
        size, counters = len(payload), self.counters
        counters.in_msgs += 1
        counters.in_bytes += size
        route = self._subscriptions.known.values.get(subject)
        only = route.only if route is not None else None
        if only is None or only.limit or only.closed:
            self.publish_one(origin, subject, reply, payload, header_size)
            return
        only.delivered += 1
        counters.out_msgs += 1
        counters.out_bytes += size
        counters = only.client.counters
        counters.out_msgs += 1
        counters.out_bytes += size
        only.client.take_one(only, subject, reply, payload, header_size)

    def publish_one(
        self,
        origin: BrokerClient,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_size: int,
        *,
        keep: bool = False,
    ) -> int:
        """Delivers one message. Returns the number of receivers; another server counts as one."""
        route = self._subscriptions.route(subject, keep=keep)
        count = 0
        if route.remote_interest is None:
            chosen = self._receivers(origin, route, route.queues)
        else:
            near, far = draw(origin, route.queues, route.remote_interest)
            chosen = self._receivers(origin, route, [(each,) for each in near])
            count = len(far)
            for server, queues in far.items():
                server.deliver(subject, reply, queues, header_size, payload)
        for to in chosen:
            self._account(to, 1, len(payload))
            to.client.take_one(to, subject, reply, payload, header_size)
            count += 1
        return count

    def hand_to(
        self,
        origin: BrokerClient,
        to: bytes,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_size: int,
        group: bytes,
    ) -> None:
        """Delivers one message to the subscribers of `to`, or to a member of the queue group; they see `subject`."""
        route = self._subscriptions.known.values.get(to) or self._subscriptions.route(to, keep=True)
        if group:
            members = route.members(group)
            receivers = [members[int(random.random() * len(members))]] if members else []
            for chosen in receivers:
                if chosen.limit and chosen.delivered + 1 >= chosen.limit:
                    self._subscriptions.remove(chosen)
        else:
            receivers = self._receivers(origin, route, route.queues)
        for receiver in receivers:
            self._account(receiver, 1, len(payload))
            receiver.client.take_one(receiver, subject, reply, payload, header_size)

    def hand_rows(self, to: bytes, buffer: Buffer, frames: Frames, size: int) -> None:
        """Delivers the rows of a table to the subscribers of `to`; `size` are their payload bytes.

        The subscribers must satisfy `Subscriptions.takes_rows`.
        """
        for receiver in self._subscriptions.route(to, keep=True).plain:
            if not receiver.closed:
                self._account(receiver, len(frames), size)
                receiver.client.take(receiver, buffer, frames, 0, len(frames), size)

    def publish_rows(self, origin: BrokerClient, buffer: Buffer, frames: Frames, reserved: ReservedSubjects) -> None:
        """Delivers the rows of a table, each to its subject; rows for reserved subjects are dropped."""
        begin, last = 0, None
        for at, after in pairwise((*subject_runs(buffer, frames, 0, len(frames)), len(frames))):
            start, length = frames[at, SUBJECT : SUBJECT_SIZE + 1].tolist()
            subject = bytes(memoryview(buffer)[start : start + length])
            if subject in reserved:
                self._hand_run(last, buffer, frames, begin, at)
                begin, last = after, None
                continue
            only = self._subscriptions.route(subject, keep=after - at > 1).only
            if only is not None and (only.handler is not None or only.limit or only.closed):
                only = None
            if only is not last:
                self._hand_run(last, buffer, frames, begin, at)
                begin, last = at, only
            if only is None:
                for _, reply, header, payload in rows(buffer, frames, at, after):
                    self.publish_one(origin, subject, reply, header + payload, len(header))
        self._hand_run(last, buffer, frames, begin, len(frames))

    def _hand_run(self, to: NatsSubscription | None, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        """Hands rows to a socket; for None there is no receiver."""
        if to is not None:
            size = int(frames[begin, PAYLOAD_SIZE] if end - begin == 1 else frames[begin:end, PAYLOAD_SIZE].sum())
            self._account(to, end - begin, size)
            to.client.take(to, buffer, frames, begin, end, size)

    def publish_block(self, origin: BrokerClient, subject: bytes, block: Payloads, begin: int, end: int) -> int:
        """Delivers payloads `begin` to `end` of a block, one message each. Returns the number of receivers.

        The block is not referenced after the call.
        """
        if origin.state is CLOSED or not subject or begin >= end:
            return 0
        if origin.permit is not None and not origin.may_publish(subject, 0):
            return 0
        origin.last_activity = time.time_ns()
        return self._deliver_block(origin, subject, block, begin, end)

    def publish_runs(self, origin: BrokerClient, runs: Sequence[tuple[bytes, int, int]], block: Payloads) -> None:
        """Delivers payloads of a block to several subjects; each run is a subject with its range of rows."""
        if origin.state is CLOSED:
            return
        if origin.permit is not None:
            runs = [run for run in runs if origin.may_publish(run[0], 0)]
        origin.last_activity = self._rounds.now
        place, total = 0, len(runs)
        while place < total:
            if not self.tracing:
                place, count, size, fresh = hand_out_runs(runs, block, place, self._subscriptions.known.values)
                self._account_handed_out(origin, count, size, fresh)
                if place == total:
                    return
            subject, begin, end = runs[place]
            if subject and begin < end:
                self._deliver_block(origin, subject, block, begin, end)
            place += 1

    def publish_each(self, origin: BrokerClient, messages: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
        """Delivers messages, each with its subject, to receivers that keep up; messages without a subject are dropped.

        Returns the positions of the messages with congested receivers.
        """
        if origin.state is CLOSED:
            return ()
        if origin.permit is not None:
            messages = [each if origin.may_publish(each[0], 0) else (b"", b"") for each in messages]
        origin.last_activity = self._rounds.now
        late: list[int] = []
        place, total = 0, len(messages)
        while place < total:
            if not self.tracing:
                place, count, size, fresh = hand_out(messages, place, self._subscriptions.known.values, True)
                self._account_handed_out(origin, count, size, fresh)
                if place == total:
                    break
            subject, payload = messages[place]
            if subject and self._subscriptions.congested(subject):
                late.append(place)
            elif subject:
                for each in (origin.counters, self.counters):
                    each.in_msgs += 1
                    each.in_bytes += len(payload)
                self.publish_one(origin, subject, b"", payload, 0, keep=True)
            place += 1
        return late

    def _account_handed_out(self, origin: BrokerClient, count: int, size: int, fresh: Sequence[Any]) -> None:
        """Counts messages that a kernel has added to the output of clients; `fresh` had none before."""
        if fresh:
            self._dirty(fresh)
        counters = origin.counters
        counters.in_msgs += count
        counters.in_bytes += size
        counters = self.counters
        counters.in_msgs += count
        counters.in_bytes += size
        counters.out_msgs += count
        counters.out_bytes += size

    def _deliver_block(self, origin: BrokerClient, subject: bytes, block: Payloads, begin: int, end: int) -> int:
        route = self._subscriptions.known.values.get(subject) or self._subscriptions.route(subject, keep=True)
        rows, size = end - begin, block.size(begin, end)
        for counters in (origin.counters, self.counters):
            counters.in_msgs += rows
            counters.in_bytes += size
        only, count = route.only, 0
        if only is not None and only.client is not origin and not (only.limit or only.closed):
            self._account(only, rows, size)
            only.client.take_block(only, subject, block, begin, end)
            return 1
        if route.queues or route.remote_interest is not None or any(s.limit for s in route.plain):
            for row in range(begin, end):
                count = self.publish_one(origin, subject, b"", block.payload(row), 0, keep=True)
            return count
        for to in route.plain:
            if not to.closed and (to.client is not origin or origin.echo):
                self._account(to, rows, size)
                to.client.take_block(to, subject, block, begin, end)
                count += 1
        return count

    def _account(self, to: NatsSubscription, count: int, size: int) -> None:
        to.delivered += count
        counters = to.client.counters
        counters.out_msgs += count
        counters.out_bytes += size
        self.counters.out_msgs += count
        self.counters.out_bytes += size

    def _receivers(
        self, origin: BrokerClient | None, route: SubjectRoute, groups: Iterable[tuple[NatsSubscription, ...]]
    ) -> list[NatsSubscription]:
        """Returns the receivers of one message: all outside of queue groups, and one member of each.

        For some of them it may be the last message.
        """
        only = route.only
        if only is not None and only.client is not origin and not (only.limit or only.closed):
            # usually the requester, for the answer
            return [only]
        chosen = [s for s in route.plain if not (s.closed or (s.client is origin and not s.client.echo))]
        for group in groups:
            members = [s for s in group if not (s.closed or (s.client is origin and not s.client.echo))]
            if members:
                chosen.append(members[int(random.random() * len(members))])
        for subscription in chosen:
            if subscription.limit and subscription.delivered + 1 >= subscription.limit:
                self._subscriptions.remove(subscription)
        return chosen


def _take_each(to: list[NatsSubscription], buffer: Buffer, frames: Frames, places: list[int]) -> None:
    """Hands single messages to several handlers through their common taker."""
    taker = to[0].taker
    assert taker is not None
    try:
        taker.take_each(buffer, frames, [each.handler for each in to], places)
    except Exception as problem:
        _report(to[0], problem)


def _report(to: NatsSubscription, problem: Exception) -> None:
    """Logs an error of a handler; the connections of the publishers stay open."""
    NATS.error("%s: error in the handler of %r: %r", to.client.name, to.subject.decode(errors="replace"), problem)
    NATS.debug("Details", exc_info=True)


def _subject(delivery: _RowDelivery, row: int) -> bytes:
    start, size = int(delivery.frames[row, SUBJECT]), int(delivery.frames[row, SUBJECT_SIZE])
    return bytes(memoryview(delivery.buffer)[start : start + size])
