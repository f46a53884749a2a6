"""Where messages go: from subjects over the interest to the clients, in runs of messages and not one by one.

A `Route` is a set of receivers. Subjects that go to the same receivers have the same route, so that a run of messages
to many subjects (the channels of a streaming server, say) is handed over as one. Each set of permissions has its own
table of subjects, which the parser looks into; a subject that is not in it, or no more since somebody subscribed or
went, is looked up here.

What takes longer than handing a run to one socket is work that can be interrupted: a generator, which goes on when the
others have had their turn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.log import NATS
from broker.nats.abroad import Abroad, Mesh, draw
from broker.nats.client import Client, Counters, NatsSubscription
from stantools.nats.frames import HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE, REPLY, REPLY_SIZE, SUBJECT, SUBJECT_SIZE
from stantools.nats.interest import Interest, Remembered, finished
from stantools.nats.kernels import Names

if TYPE_CHECKING:
    from broker.blocks import Payloads
    from broker.nats.auth import Permit
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Span

_UNFIT: Final = re.compile(rb"\A\.|\.\.|\.\Z|\s|\A\Z")
#: Bytes that remembered subjects and routes may take, about; then all are forgotten.
_MOST_BYTES: Final = 24 << 20
#: What a subject, a route, and a receiver of a route take, about (a subject: besides its name).
_SUBJECT_BYTES: Final = 300
_ROUTE_BYTES: Final = 400
_RECEIVER_BYTES: Final = 60
#: Entries of tables that a subscription may take out one by one; where there are more, all are forgotten.
_MOST_FORGOTTEN: Final = 4096
#: Subjects that were seen once; only when they come again they are remembered (reply subjects mostly do not).
_SEEN: Final = 4096
#: What a handler in this process may take (seconds) until it is given fewer rows at a time, or more.
_LONG: Final = 0.004
_SHORT: Final = 0.001
_MOST_ROWS: Final = 4096
#: Fewer rows than these are handed to a handler without a look at the clock.
_FEW_ROWS: Final = 4


@dataclass(slots=True, eq=False)
class Route:
    """A set of receivers."""

    number: int  #: its number in the tables
    plain: tuple[NatsSubscription, ...] = ()  #: subscriptions without queue group
    queues: tuple[tuple[NatsSubscription, ...], ...] = ()  #: members of each queue group
    abroad: Abroad | None = None  #: receivers on other servers; None if there are none
    only: NatsSubscription | None = field(init=False)  #: the only receiver, if there is just one without queue group

    @property
    def fanout(self) -> int:
        """Receivers of a message."""
        return len(self.plain) + len(self.queues)

    def __post_init__(self) -> None:
        alone = len(self.plain) == 1 and not self.queues and self.abroad is None
        self.only = self.plain[0] if alone else None


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers for monitoring (server-operations.md section 14)."""

    num_subscriptions: int
    num_cache: int
    num_inserts: int
    num_removes: int
    num_matches: int
    cache_hit_rate: float
    max_fanout: int
    avg_fanout: float


@dataclass(slots=True)
class _Delivery:
    """Rows of a table that are being delivered."""

    buffer: Buffer
    frames: Frames
    parts: list[_Delivery] = field(default_factory=list)

    def part(self, rows: Frames) -> _Delivery:
        """Returns a delivery of some of the rows."""
        self.parts.append(_Delivery(self.buffer, rows))
        return self.parts[-1]

    def keep(self, end: int) -> None:
        """Copies the rows up to `end`: buffer and table are about to be used again."""
        used = int(self.frames[end - 1, PAYLOAD]) + int(self.frames[end - 1, PAYLOAD_SIZE])
        self.buffer = bytes(memoryview(self.buffer)[:used])
        self.frames = self.frames[:end].copy()
        for part in self.parts:
            part.buffer = self.buffer


class SubjectTable:
    """The subjects that clients with the same permissions may publish to, as far as they are known."""

    def __init__(self, permit: Permit | None) -> None:
        self.permit = permit
        self.routes = Names()


class Router:
    """Knows all subscriptions and hands messages over."""

    def __init__(self) -> None:
        self.mesh: Mesh | None = None  #: the other servers; None if there are none
        self.interest: Interest[NatsSubscription] = Interest()  #: all subscriptions
        self.counters = Counters()  #: messages and bytes of all clients together
        self._routes: list[Route] = []
        self._by_targets: dict[tuple[object, ...], Route] = {}
        self._known: Remembered[Route] = Remembered()
        self._bytes = 0
        self._searches = 0
        self._seen: set[int] = set()
        self._tables: dict[int, SubjectTable] = {}
        self._open = SubjectTable(None)
        #: Called with each subject or pattern that somebody subscribes to, or does no more.
        self.watcher: Callable[[bytes], None] | None = None
        self.forget()

    def table(self, permit: Permit | None) -> SubjectTable:
        """Returns the table of clients with these permissions."""
        if permit is None:
            return self._open
        table = self._tables.get(id(permit))
        if table is None:
            table = self._tables[id(permit)] = SubjectTable(permit)
        return table

    def forget_permissions(self) -> None:
        """Forgets what was derived from permissions: there are new ones."""
        self.forget()
        self._tables.clear()

    def statistics(self) -> Statistics:
        """Returns numbers for monitoring; the fan-out is that of the subjects that are remembered."""
        fanouts = [route.fanout for route in self._known.values.values()]
        matches = self.counters.in_msgs
        return Statistics(
            num_subscriptions=self.interest.count,
            num_cache=len(fanouts),
            num_inserts=self.interest.inserts,
            num_removes=self.interest.removes,
            num_matches=matches,
            cache_hit_rate=max(0.0, 1 - self._searches / matches) if matches else 0.0,
            max_fanout=max(fanouts, default=0),
            avg_fanout=sum(fanouts) / len(fanouts) if fanouts else 0.0,
        )

    # Interest

    def subscribe(self, subscription: NatsSubscription) -> None:
        """Adds a subscription."""
        subscription.client.subscriptions[subscription.sid] = subscription
        self.interest.insert(subscription.subject, subscription, subscription.queue)
        self.changed(subscription.subject)
        if self.mesh is not None:
            self.mesh.interest(subscription.subject, subscription.queue, 1)

    def unsubscribe(self, subscription: NatsSubscription) -> None:
        """Removes a subscription, if it is still there."""
        if subscription.closed:
            return
        subscription.closed = True
        held = subscription.client.subscriptions
        if held.get(subscription.sid) is subscription:
            del held[subscription.sid]
        self._remove(subscription)

    def leave(self, client: Client) -> Iterator[None]:
        """Removes all subscriptions of a client, which may be many: work that can be interrupted.

        From the first step on nothing is delivered to them.
        """
        left = list(client.subscriptions.values())
        client.subscriptions.clear()
        for subscription in left:
            subscription.closed = True
        while left:
            self._remove(left.pop())
            yield

    def _remove(self, subscription: NatsSubscription) -> None:
        self.interest.remove(subscription.subject, subscription, subscription.queue)
        self.changed(subscription.subject)
        if self.mesh is not None:
            self.mesh.interest(subscription.subject, subscription.queue, -1)

    def changed(self, pattern: bytes) -> None:
        """Forgets what was remembered of the subjects that a pattern matches: their receivers are others now."""
        if self.watcher is not None:
            self.watcher(pattern)
        if not self._known.values:
            return
        tables = (self._open, *self._tables.values())
        forgotten = self._known.changed(pattern, _MOST_FORGOTTEN // len(tables))
        if forgotten is None:
            self.forget()
            return
        for subject in forgotten:
            for table in tables:
                table.routes.discard(subject)

    def forget(self) -> None:
        """Forgets all that was remembered of subjects."""
        # Numbers in tables of earlier routes must not live on; nobody holds one across calls.
        self._bytes = 0
        self._known.clear()
        self._by_targets.clear()
        # Number 0 is for nobody: what is in no table has none.
        self._routes = [Route(0)]
        for table in (self._open, *self._tables.values()):
            table.routes.clear()

    def route(self, subject: bytes, *, keep: bool = False) -> Route:
        """Returns the receivers of a subject.

        Args:
            subject: What is published to.
            keep: It will come again; otherwise it is remembered when it does.
        """
        return self._known.values.get(subject) or finished(self._look_up(subject, keep))

    def _look_up(self, subject: bytes, keep: bool) -> Generator[None, None, Route]:
        known = self._known.values.get(subject)
        if known is not None:
            return known
        if _UNFIT.search(subject):
            # Nothing matches an empty token, not even `>`; and white space must not get into control lines.
            return Route(-1)
        self._searches += 1
        interest = self.interest
        changes = interest.inserts + interest.removes
        matched = yield from interest.search(subject)
        plain, queues = matched.plain, matched.queues
        if any(s.narrowed for s in plain) or any(s.narrowed for group in queues for s in group):
            plain = tuple(s for s in plain if _may_receive(s, subject))
            groups = (tuple(s for s in group if _may_receive(s, subject)) for group in queues)
            queues = tuple(group for group in groups if group)
        abroad = None if self.mesh is None else self.mesh.match(subject)
        if not keep and hash(subject) not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen.add(hash(subject))
            return Route(-1, plain, queues, abroad)
        size = _ROUTE_BYTES + _RECEIVER_BYTES * (len(plain) + sum(map(len, queues)))
        if changes != interest.inserts + interest.removes or size > _MOST_BYTES // 4:
            return Route(-1, plain, queues, abroad)
        if self._bytes > _MOST_BYTES:
            self.forget()
        # What is abroad is found anew for each subject: not worth comparing.
        key = (tuple(map(id, plain)), tuple(tuple(map(id, group)) for group in queues), abroad and id(abroad))
        route = self._by_targets.get(key)
        if route is None:
            # The route holds on to the subscriptions, so that their ids stay theirs.
            route = Route(len(self._routes), plain, queues, abroad)
            self._routes.append(route)
            self._by_targets[key] = route
            self._bytes += size
        self._bytes += len(subject) + _SUBJECT_BYTES
        self._known.keep(subject, route)
        return route

    # Messages from sockets

    def publish(
        self,
        origin: Client,
        table: SubjectTable,
        buffer: Buffer,
        frames: Frames,
        spans: list[Span],
        deadline: float,
    ) -> tuple[int, Iterator[None] | None]:
        """Hands over what a client on a socket published.

        Args:
            origin: The client.
            table: What it may publish to.
            buffer: Where the frames are.
            frames: The table of frames.
            spans: Its runs of equal routes.
            deadline: When (`perf_counter`) it is the others' turn.

        Returns:
            How many rows were taken, one at least, and what is still to be done about them.
        """
        routes, rows, size_of_all = self._routes, 0, 0
        rest: Iterator[None] | None = None
        for number, begin, end in spans:
            size = int(frames[begin, PAYLOAD_SIZE] if end - begin == 1 else frames[begin:end, PAYLOAD_SIZE].sum())
            rows, size_of_all = end, size_of_all + size
            only = None
            # If a receiver made us forget the routes while this batch is under way, they are looked up again.
            if number > 0 and routes is self._routes:
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
                delivery = _Delivery(buffer, frames)
                if number > 0 and routes is self._routes:
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

    def _publish_unknown(
        self, origin: Client, table: SubjectTable, delivery: _Delivery, begin: int, end: int, size: int
    ) -> Iterator[None]:
        row = begin
        while row < end:
            # The rows of a known route may have several subjects.
            subject = _subject(delivery, row)
            after = row + 1
            while after < end and _subject(delivery, after) == subject:
                after += 1
            part = size if after - row == end - begin else int(delivery.frames[row:after, PAYLOAD_SIZE].sum())
            if table.permit is not None and not table.permit.may_publish(subject):
                yield from self._publish_denied(origin, table.permit, subject, delivery, row, after)
            else:
                route = yield from self._look_up(subject, after - row > 1)
                if route.number > 0 and route.number < len(self._routes) and self._routes[route.number] is route:
                    table.routes.add(subject, route.number)
                    if table is not self._open:
                        self._bytes += len(subject) + _SUBJECT_BYTES // 2
                yield from self._deliver(origin, route, delivery, row, after, part)
            row = after
            yield

    def _publish_denied(
        self, origin: Client, permit: Permit, subject: bytes, delivery: _Delivery, begin: int, end: int
    ) -> Iterator[None]:
        for row in range(begin, end):
            if permit.responses is not None and origin.may_respond(subject):
                size = int(delivery.frames[row, PAYLOAD_SIZE])
                route = yield from self._look_up(subject, False)
                yield from self._deliver(origin, route, delivery, row, row + 1, size)
            else:
                origin.publish_denied(subject)
            yield

    def _deliver(
        self, origin: Client, route: Route, delivery: _Delivery, begin: int, end: int, size: int
    ) -> Iterator[None]:
        delivered = False
        for subscription in route.plain:
            client = subscription.client
            if subscription.closed or (client is origin and not origin.echo):
                continue
            if subscription.limit:
                delivered |= self._deliver_some(origin, subscription, delivery, begin, end) > 0
            else:
                yield from self._hand_over_all(origin, subscription, delivery, begin, end, size)
                delivered = True
            yield
        if route.abroad is None:
            for group in route.queues:
                delivered |= yield from self._deliver_group(origin, group, delivery, begin, end, size)
        else:
            delivered |= yield from self._deliver_abroad(origin, route, route.abroad, delivery, begin, end)
        if not delivered and origin.no_responders and delivery.frames[begin:end, REPLY_SIZE].any():
            for row in range(begin, end):
                size = int(delivery.frames[row, REPLY_SIZE])
                if size:
                    start = int(delivery.frames[row, REPLY])
                    origin.nobody_there(bytes(memoryview(delivery.buffer)[start : start + size]))
                    yield

    def _hand_over_all(
        self, origin: Client, to: NatsSubscription, delivery: _Delivery, begin: int, end: int, size: int
    ) -> Iterator[None]:
        """Hands over rows: to a socket all at once, to a handler as many as it takes in a short time."""
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
        self, origin: Client, to: NatsSubscription, buffer: Buffer, frames: Frames, begin: int, end: int, size: int
    ) -> None:
        """Hands as many rows to a handler as it may get at a time, and finds out how many it may get next time."""
        start = perf_counter()
        self._hand_over(origin, to, buffer, frames, begin, end, size)
        took = perf_counter() - start
        if took > _LONG:
            to.pace = max(1, (end - begin) // 2)
        elif took < _SHORT and end - begin == to.pace:
            to.pace = min(2 * to.pace, _MOST_ROWS)

    def _hand_over(
        self, origin: Client, to: NatsSubscription, buffer: Buffer, frames: Frames, begin: int, end: int, size: int
    ) -> None:
        client = to.client
        self._account(to, end - begin, size)
        try:
            client.take(to, buffer, frames, begin, end, size)
        except Exception as problem:
            # Whatever a handler does, the connection that its messages came from goes on.
            NATS.error("%s: error in the handler of %r: %r", client.name, to.subject.decode(errors="replace"), problem)
            NATS.debug("Details", exc_info=True)
        client.stalls(origin)

    def _deliver_some(self, origin: Client, to: NatsSubscription, delivery: _Delivery, begin: int, end: int) -> int:
        """Delivers as many as the subscription still wants; it ends with the last."""
        end = min(end, begin + max(to.limit - to.delivered, 0))
        if to.delivered + end - begin >= to.limit:
            self.unsubscribe(to)
        if end > begin:
            size = int(delivery.frames[begin:end, PAYLOAD_SIZE].sum())
            self._hand_over(origin, to, delivery.buffer, delivery.frames, begin, end, size)
        return end - begin

    def _deliver_group(
        self, origin: Client, group: tuple[NatsSubscription, ...], delivery: _Delivery, begin: int, end: int, size: int
    ) -> Generator[None, None, bool]:
        """Delivers each message to one member of a queue group, drawn at random. Returns whether there was one."""
        members = [s for s in group if not (s.closed or (s.client is origin and not origin.echo))]
        if not members:
            return False
        if len(members) == 1 and not members[0].limit:
            yield from self._hand_over_all(origin, members[0], delivery, begin, end, size)
        elif any(s.limit for s in members):
            for row in range(begin, end):
                open_members = [s for s in members if not s.closed]
                if not open_members:
                    return row > begin
                chosen = open_members[int(random.random() * len(open_members))]
                if chosen.limit:
                    self._deliver_some(origin, chosen, delivery, row, row + 1)
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
        return True

    # Messages to and from other servers

    def _deliver_abroad(
        self, origin: Client, route: Route, abroad: Abroad, delivery: _Delivery, begin: int, end: int
    ) -> Generator[None, None, bool]:
        """Delivers to other servers, and to queue groups that have members there. Returns whether to anybody."""
        delivered = False
        for row in range(begin, end):
            near, far = draw(origin, route.queues, abroad)
            for chosen in near:
                if chosen.limit:
                    self._deliver_some(origin, chosen, delivery, row, row + 1)
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
            delivered |= bool(near or far)
            yield
        return delivered

    def arrive(self, subject: bytes, reply: bytes, payload: bytes, header_size: int, queues: tuple[bytes, ...]) -> None:
        """Hands over a message from another server: to all here who are in no group, and one of each of these groups.

        It goes to no further server.
        """
        route = self.route(subject)
        self.counters.in_msgs += 1
        self.counters.in_bytes += len(payload)
        groups = [group for group in route.queues if group[0].queue in queues]
        for to in self._receivers(None, route, groups):
            self._account(to, 1, len(payload))
            to.client.take_one(to, subject, reply, payload, header_size)

    # Messages from this process

    def publish_one(
        self,
        origin: Client,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_size: int,
        *,
        keep: bool = False,
    ) -> int:
        """Hands over one message. Returns the number of receivers, another server being one."""
        route = self.route(subject, keep=keep)
        count = 0
        if route.abroad is None:
            chosen = self._receivers(origin, route, route.queues)
        else:
            near, far = draw(origin, route.queues, route.abroad)
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
        origin: Client,
        to: bytes,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_size: int,
        group: bytes,
    ) -> None:
        """Hands one message to those who have subscribed to `to`, or to one of a queue group; they see `subject`."""
        route = self.route(to, keep=True)
        if group:
            members = self._members(route, group)
            receivers = [members[int(random.random() * len(members))]] if members else []
            for chosen in receivers:
                if chosen.limit and chosen.delivered + 1 >= chosen.limit:
                    self.unsubscribe(chosen)
        else:
            receivers = self._receivers(origin, route, route.queues)
        for receiver in receivers:
            self._account(receiver, 1, len(payload))
            receiver.client.take_one(receiver, subject, reply, payload, header_size)

    def interested(self, subject: bytes, group: bytes = b"") -> bool:
        """Returns whether somebody has subscribed to a subject by itself, or in this queue group."""
        route = self.route(subject, keep=True)
        return bool(self._members(route, group)) if group else any(not s.closed for s in route.plain)

    @staticmethod
    def _members(route: Route, group: bytes) -> list[NatsSubscription]:
        return [s for members in route.queues for s in members if s.queue == group and not s.closed]

    def publish_block(self, origin: Client, subject: bytes, block: Payloads, begin: int, end: int) -> int:
        """Hands over payloads of a block, all to one subject. Returns the number of receivers of the last one."""
        route = self._known.values.get(subject) or self.route(subject, keep=True)
        size = int(block.sizes[begin] if end - begin == 1 else block.sizes[begin:end].sum())
        only, count = route.only, 0
        if only is not None and only.client is not origin and not (only.limit or only.closed):
            self._account(only, end - begin, size)
            only.client.take_block(only, subject, block, begin, end)
            return 1
        if route.queues or route.abroad is not None or any(s.limit for s in route.plain):
            for row in range(begin, end):
                count = self.publish_one(origin, subject, b"", block.payload(row), 0, keep=True)
            return count
        for to in route.plain:
            if not to.closed and (to.client is not origin or origin.echo):
                self._account(to, end - begin, size)
                to.client.take_block(to, subject, block, begin, end)
                count += 1
        return count

    def congested(self, subject: bytes) -> bool:
        """Returns whether a receiver of a subject does not keep up. What was never published to counts as empty."""
        route = self._known.values.get(subject)
        if route is None:
            return False
        for to in route.plain:
            if to.client.congested:
                return True
        return route.abroad is not None and any(server.congested for server in route.abroad.plain)

    def _account(self, to: NatsSubscription, count: int, size: int) -> None:
        to.delivered += count
        counters = to.client.counters
        counters.out_msgs += count
        counters.out_bytes += size
        self.counters.out_msgs += count
        self.counters.out_bytes += size

    def _receivers(
        self, origin: Client | None, route: Route, groups: Iterable[tuple[NatsSubscription, ...]]
    ) -> list[NatsSubscription]:
        """Returns who gets one message: all in no group, and one of each of some; for some it is the last."""
        chosen = [s for s in route.plain if not (s.closed or (s.client is origin and not s.client.echo))]
        for group in groups:
            members = [s for s in group if not (s.closed or (s.client is origin and not s.client.echo))]
            if members:
                chosen.append(members[int(random.random() * len(members))])
        for subscription in chosen:
            if subscription.limit and subscription.delivered + 1 >= subscription.limit:
                self.unsubscribe(subscription)
        return chosen


def _subject(delivery: _Delivery, row: int) -> bytes:
    start, size = int(delivery.frames[row, SUBJECT]), int(delivery.frames[row, SUBJECT_SIZE])
    return bytes(memoryview(delivery.buffer)[start : start + size])


def _may_receive(subscription: NatsSubscription, subject: bytes) -> bool:
    permit = subscription.client.permit
    return not subscription.narrowed or permit is None or permit.may_receive(subject)
