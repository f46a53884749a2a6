"""Delivery of the publishes of clients on sockets, in runs instead of one by one.

Work that takes longer than handing a run to one socket is a generator: it can be interrupted, and continues after
the turns of other work.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.nats.recipients import MessageRecipients, choose, report_failure
from broker.nats.remote_interest import RemoteInterestTable, draw
from stantools.nats.frames import HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE, REPLY, REPLY_SIZE, SUBJECT, SUBJECT_SIZE

if TYPE_CHECKING:
    from broker.nats.auth import Permit
    from broker.nats.client import BrokerClient, NatsSubscription
    from broker.nats.fair_scheduler import Mailbox
    from broker.nats.subscriptions import SubjectRoute, SubjectTable
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Share, Span

#: Seconds of a handler's call above which it gets fewer rows at a time, and below which it gets more.
_LONG_CALL: Final = 0.004
_SHORT_CALL: Final = 0.002
_MAX_ROWS: Final = 4096
#: Fewer rows are handed to the only receiver without measuring the time.
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


class ClientRouter:
    """Delivers the publishes of clients on sockets.

    `mailbox` holds messages between parts of this process; they are delivered before the next message of a socket.
    """

    def __init__(self, recipients: MessageRecipients, mailbox: Mailbox) -> None:
        self._recipients = recipients
        self._subscriptions = recipients.subscriptions
        self._mailbox = mailbox

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
        subscriptions, mailbox, rows, total = self._subscriptions, self._mailbox, 0, 0
        routes, version = subscriptions.routes, subscriptions.version
        rest: Iterator[None] | None = None
        for number, begin, end in spans:
            if end <= rows:
                continue
            if mailbox.waiting:
                mailbox.drain()
            begin = max(begin, rows)
            size = int(frames[begin, PAYLOAD_SIZE] if end - begin == 1 else frames[begin:end, PAYLOAD_SIZE].sum())
            rows, total = end, total + size
            only = None
            # A receiver's call may invalidate the routes; then they are looked up again.
            if number > 0 and version == subscriptions.version:
                only = routes[number].only
            if (
                only is not None
                and (only.handler is None or end - begin <= only.pace)
                and not only.limit
                and only.receives(origin)
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
        self._recipients.count_input(origin, rows, total)
        return rows, rest

    def publish_gathered(
        self, origins: Sequence[BrokerClient], buffer: Buffer, frames: Frames, shares: Iterable[Share]
    ) -> None:
        """Delivers gathered publishes of several clients, each share to the only receiver of its route, a handler.

        Single messages for handlers of a client with a common taker go to that in one call. The caller counts the input
        of the clients.
        """
        routes, counters, recipients = self._subscriptions.routes, self._recipients.counters, self._recipients
        alone: list[NatsSubscription] = []
        places: list[int] = []
        for number, begin, end, size in shares:
            to, count = routes[number].only, end - begin
            counters.in_msgs += count
            counters.in_bytes += size
            if to is None or to.handler is None or to.closed:
                for _ in _report_no_responders(origins, _RowDelivery(buffer, frames), begin, end):
                    pass
                continue
            if alone and (count > 1 or to.taker is not alone[0].taker):
                _take_each(alone, buffer, frames, places)
                alone, places = [], []
            if count == 1 and to.taker is not None:
                recipients.count_output(to, 1, size)
                alone.append(to)
                places.append(begin)
            elif wait := recipients.hand_rows(to, buffer, frames, begin, end, size):
                for origin in origins:
                    origin.stall(to.client, wait)
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
            if not subscription.receives(origin):
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
            yield from _report_no_responders((origin,), delivery, reached, end)

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
        wait = self._recipients.hand_rows(to, buffer, frames, begin, end, size)
        if wait and origin is not to.client:
            origin.stall(to.client, wait)

    def _deliver_limited(
        self, origin: BrokerClient, to: NatsSubscription, delivery: _RowDelivery, begin: int, end: int
    ) -> int:
        """Delivers rows up to the limit of a subscription, if it has one. Returns their number."""
        end = begin + self._recipients.within_limit(to, end - begin)
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
        members = [s for s in group if s.receives(origin)]
        if not members:
            return begin
        if any(s.limit for s in members):
            for row in range(begin, end):
                members = [s for s in members if not s.closed]
                if not members:
                    return row
                self._deliver_limited(origin, choose(members), delivery, row, row + 1)
                yield
        elif len(members) == 1 or end - begin == 1:
            yield from self._hand_over_all(origin, choose(members), delivery, begin, end, size)
        else:
            draws = np.random.randint(0, len(members), end - begin)
            for i in np.unique(draws).tolist():
                rows = delivery.frames[begin:end]
                own = delivery.part(np.ascontiguousarray(rows[draws == i]))
                size = int(own.frames[:, PAYLOAD_SIZE].sum())
                yield from self._hand_over_all(origin, members[i], own, 0, len(own.frames), size)
                yield
        return end

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
                self._deliver_limited(origin, chosen, delivery, row, row + 1)
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


def _report_no_responders(
    origins: Sequence[BrokerClient], delivery: _RowDelivery, begin: int, end: int
) -> Iterator[None]:
    """Reports requests without receivers to the clients that want to know."""
    for row in range(begin, end):
        size = int(delivery.frames[row, REPLY_SIZE])
        if size:
            start = int(delivery.frames[row, REPLY])
            reply = bytes(memoryview(delivery.buffer)[start : start + size])
            for origin in origins:
                if origin.no_responders:
                    origin.report_no_responders(reply)
            yield


def _take_each(to: list[NatsSubscription], buffer: Buffer, frames: Frames, places: list[int]) -> None:
    """Hands single messages to several handlers through their common taker."""
    taker = to[0].taker
    assert taker is not None
    try:
        taker.take_each(buffer, frames, [each.handler for each in to], places)
    except Exception as problem:
        report_failure(to[0], problem)


def _subject(delivery: _RowDelivery, row: int) -> bytes:
    start, size = int(delivery.frames[row, SUBJECT]), int(delivery.frames[row, SUBJECT_SIZE])
    return bytes(memoryview(delivery.buffer)[start : start + size])
