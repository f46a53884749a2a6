"""Where messages go: from subjects over the interest to the clients, in runs of messages and not one by one.

A `Route` is a set of receivers. Subjects that go to the same receivers have the same route, so that a run of messages
to many subjects (the channels of a streaming server, say) is handed over as one. Each set of permissions has its own
table of subjects, which the parser looks into; a subject that is not in it, or no more since somebody subscribed or
went, is looked up here.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.log import NATS
from broker.nats.subscription import Client, Counters, Subscription
from broker.wire import subjects
from broker.wire.frames import PAYLOAD_SIZE, REPLY, REPLY_SIZE, SUBJECT, SUBJECT_SIZE
from broker.wire.interest import Interest
from broker.wire.kernels import Names

if TYPE_CHECKING:
    from broker.blocks import Payloads
    from broker.nats.connection import Connection
    from broker.nats.permissions import Permit
    from broker.wire.frames import Frames, Span
    from stantools.format.envelope import Buffer

#: Route of subjects that a client may not publish to.
DENIED: Final = 0
_UNFIT: Final = re.compile(rb"\A\.|\.\.|\.\Z|\s|\A\Z")
#: Subjects that are remembered, and receiver sets.
_SUBJECTS: Final = 65536
_ROUTES: Final = 16384
#: Subjects that were seen once; only when they come again they are remembered (reply subjects mostly do not).
_SEEN: Final = 4096


@dataclass(slots=True, eq=False)
class Route:
    """A set of receivers.

    Attributes:
        number: What stands in the tables.
        plain: Subscriptions without queue group.
        queues: Members of each queue group.
        only: The only receiver, if there is just one without queue group.
    """

    number: int
    plain: tuple[Subscription, ...] = ()
    queues: tuple[tuple[Subscription, ...], ...] = ()
    only: Subscription | None = field(init=False)

    def __post_init__(self) -> None:
        self.only = self.plain[0] if len(self.plain) == 1 and not self.queues else None


class SubjectTable:
    """The subjects that clients with the same permissions may, or may not, publish to."""

    def __init__(self, permit: Permit | None) -> None:
        self.permit = permit
        self.routes = Names()


class Router:
    """Knows all subscriptions and hands messages over.

    Attributes:
        interest: All subscriptions.
        counters: Messages and bytes of all clients together.
    """

    def __init__(self) -> None:
        self.interest: Interest[Subscription] = Interest()
        self.counters = Counters()
        self._routes: list[Route] = []
        self._by_targets: dict[tuple[object, ...], Route] = {}
        self._known: dict[bytes, Route] = {}
        # First token -> second token (empty if there is none) -> subjects in `_known`.
        self._by_tokens: dict[bytes, dict[bytes, set[bytes]]] = {}
        self._seen: set[bytes] = set()
        self._tables: dict[int, SubjectTable] = {}
        self._open = SubjectTable(None)
        self._forget_all()

    def table(self, permit: Permit | None) -> SubjectTable:
        """Returns the table of clients with these permissions."""
        if permit is None:
            return self._open
        table = self._tables.get(id(permit))
        if table is None:
            if len(self._tables) >= _ROUTES:
                self._tables.clear()
            table = self._tables[id(permit)] = SubjectTable(permit)
        return table

    def forget_permissions(self) -> None:
        """Forgets what was derived from permissions: there are new ones."""
        self._forget_all()
        self._tables.clear()

    # Interest

    def subscribe(self, subscription: Subscription) -> None:
        """Adds a subscription."""
        subscription.client.subscriptions[subscription.sid] = subscription
        self.interest.insert(subscription.subject, subscription, subscription.queue)
        self._changed(subscription.subject)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Removes a subscription, if it is still there."""
        if subscription.closed:
            return
        subscription.closed = True
        held = subscription.client.subscriptions
        if held.get(subscription.sid) is subscription:
            del held[subscription.sid]
        self.interest.remove(subscription.subject, subscription, subscription.queue)
        self._changed(subscription.subject)

    def _changed(self, pattern: bytes) -> None:
        if not self._known:
            return
        if subjects.is_literal(pattern):
            if pattern in self._known:
                self._forget(pattern)
            return
        first, second = _tokens(pattern)
        if first in (b"*", b">"):
            self._forget_all()
            return
        seconds = self._by_tokens.get(first, {})
        groups = list(seconds.values()) if second in (b"*", b">") else [seconds.get(second, set())]
        for subject in [s for group in groups for s in group if subjects.matches(pattern, s)]:
            self._forget(subject)

    def _forget(self, subject: bytes) -> None:
        del self._known[subject]
        first, second = _tokens(subject)
        seconds = self._by_tokens[first]
        seconds[second].discard(subject)
        if not seconds[second]:
            del seconds[second]
            if not seconds:
                del self._by_tokens[first]
        self._open.routes.discard(subject)
        for table in self._tables.values():
            table.routes.discard(subject)

    def _forget_all(self) -> None:
        # Numbers in tables of earlier routes must not live on; nobody holds one across calls.
        self._known.clear()
        self._by_tokens.clear()
        self._by_targets.clear()
        self._routes = [Route(DENIED)]
        for table in (self._open, *self._tables.values()):
            table.routes.clear()

    def route(self, subject: bytes, *, keep: bool = False) -> Route:
        """Returns the receivers of a subject.

        Args:
            subject: What is published to.
            keep: It will come again; otherwise it is remembered when it does.
        """
        known = self._known.get(subject)
        if known is not None:
            return known
        if _UNFIT.search(subject):
            # Nothing matches an empty token, not even `>`; and white space must not get into control lines.
            return Route(-1)
        matched = self.interest.match(subject)
        plain, queues = matched.plain, matched.queues
        if any(s.narrowed for s in plain) or any(s.narrowed for group in queues for s in group):
            plain = tuple(s for s in plain if _may_receive(s, subject))
            groups = (tuple(s for s in group if _may_receive(s, subject)) for group in queues)
            queues = tuple(group for group in groups if group)
        if not keep and subject not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen.add(subject)
            return Route(-1, plain, queues)
        if len(self._known) >= _SUBJECTS or len(self._routes) >= _ROUTES:
            self._forget_all()
        key = (tuple(map(id, plain)), tuple(tuple(map(id, group)) for group in queues))
        route = self._by_targets.get(key)
        if route is None:
            # The route holds on to the subscriptions, so that their ids stay theirs.
            route = Route(len(self._routes), plain, queues)
            self._routes.append(route)
            self._by_targets[key] = route
        self._known[subject] = route
        first, second = _tokens(subject)
        self._by_tokens.setdefault(first, {}).setdefault(second, set()).add(subject)
        return route

    # Messages from sockets

    def publish(
        self, origin: Connection, table: SubjectTable, buffer: Buffer, frames: Frames, spans: list[Span]
    ) -> None:
        """Hands over what a connection published."""
        routes, rows = self._routes, spans[-1][2]
        size_of_all = int(frames[0, PAYLOAD_SIZE] if rows == 1 else frames[:rows, PAYLOAD_SIZE].sum())
        for counters in (origin.counters, self.counters):
            counters.in_msgs += rows
            counters.in_bytes += size_of_all
        for number, begin, end in spans:
            if end - begin == rows:
                size = size_of_all
            else:
                size = int(frames[begin, PAYLOAD_SIZE] if end - begin == 1 else frames[begin:end, PAYLOAD_SIZE].sum())
            if number > 0 and routes is self._routes:
                route = routes[number]
                only = route.only
                if only is not None and not only.limit and not only.closed and only.client is not origin:
                    self._hand_over(origin, only, buffer, frames, begin, end, size)
                else:
                    self._deliver(origin, route, buffer, frames, begin, end, size)
            else:
                # Also if a receiver made us forget the routes while this batch is under way.
                self._publish_unknown(origin, table, buffer, frames, begin, end, size)

    def _publish_unknown(
        self, origin: Connection, table: SubjectTable, buffer: Buffer, frames: Frames, begin: int, end: int, size: int
    ) -> None:
        row = begin
        while row < end:
            # The rows of a known route may have several subjects.
            subject = _subject(buffer, frames, row)
            after = row + 1
            while after < end and _subject(buffer, frames, after) == subject:
                after += 1
            part = size if after - row == end - begin else int(frames[row:after, PAYLOAD_SIZE].sum())
            if table.permit is not None and not table.permit.may_publish(subject):
                if len(table.routes) < _SUBJECTS:
                    table.routes.add(subject, DENIED)
                self._publish_denied(origin, table.permit, subject, buffer, frames, row, after)
            else:
                route = self.route(subject, keep=after - row > 1)
                if route.number > 0 and route.number < len(self._routes) and self._routes[route.number] is route:
                    table.routes.add(subject, route.number)
                self._deliver(origin, route, buffer, frames, row, after, part)
            row = after

    def _publish_denied(
        self, origin: Connection, permit: Permit, subject: bytes, buffer: Buffer, frames: Frames, begin: int, end: int
    ) -> None:
        for row in range(begin, end):
            if permit.responses is not None and origin.may_respond(subject):
                size = int(frames[row, PAYLOAD_SIZE])
                self._deliver(origin, self.route(subject), buffer, frames, row, row + 1, size)
            else:
                origin.publish_denied(subject)

    def _deliver(
        self, origin: Connection, route: Route, buffer: Buffer, frames: Frames, begin: int, end: int, size: int
    ) -> None:
        delivered = False
        for subscription in route.plain:
            client = subscription.client
            if subscription.closed or (client is origin and not origin.echo):
                continue
            if subscription.limit:
                delivered |= self._deliver_some(origin, subscription, buffer, frames, begin, end) > 0
                continue
            self._hand_over(origin, subscription, buffer, frames, begin, end, size)
            delivered = True
        for group in route.queues:
            delivered |= self._deliver_group(origin, group, buffer, frames, begin, end, size)
        if not delivered and origin.no_responders and frames[begin:end, REPLY_SIZE].any():
            for row in range(begin, end):
                size = int(frames[row, REPLY_SIZE])
                if size:
                    start = int(frames[row, REPLY])
                    origin.nobody_there(bytes(memoryview(buffer)[start : start + size]))

    def _hand_over(
        self, origin: Client, to: Subscription, buffer: Buffer, frames: Frames, begin: int, end: int, size: int
    ) -> None:
        client = to.client
        count = end - begin
        to.delivered += count
        client.counters.out_msgs += count
        client.counters.out_bytes += size
        self.counters.out_msgs += count
        self.counters.out_bytes += size
        try:
            client.take(to, buffer, frames, begin, end, size)
        except Exception as problem:
            # Whatever a handler does, the connection that its messages came from goes on.
            NATS.error("%s: error in the handler of %r: %r", client.name, to.subject.decode(errors="replace"), problem)
            NATS.debug("Details", exc_info=True)
        client.stalls(origin)

    def _deliver_some(
        self, origin: Client, to: Subscription, buffer: Buffer, frames: Frames, begin: int, end: int
    ) -> int:
        """Delivers as many as the subscription still wants; it ends with the last."""
        end = min(end, begin + max(to.limit - to.delivered, 0))
        if to.delivered + end - begin >= to.limit:
            self.unsubscribe(to)
        if end > begin:
            self._hand_over(origin, to, buffer, frames, begin, end, int(frames[begin:end, PAYLOAD_SIZE].sum()))
        return end - begin

    def _deliver_group(
        self,
        origin: Client,
        group: tuple[Subscription, ...],
        buffer: Buffer,
        frames: Frames,
        begin: int,
        end: int,
        size: int,
    ) -> bool:
        """Delivers each message to one member of a queue group, drawn at random."""
        members = [s for s in group if not (s.closed or (s.client is origin and not origin.echo))]
        if not members:
            return False
        if len(members) == 1 and not members[0].limit:
            self._hand_over(origin, members[0], buffer, frames, begin, end, size)
        elif any(s.limit for s in members):
            for row in range(begin, end):
                open_members = [s for s in members if not s.closed]
                if not open_members:
                    return row > begin
                chosen = open_members[int(random.random() * len(open_members))]
                if chosen.limit:
                    self._deliver_some(origin, chosen, buffer, frames, row, row + 1)
                else:
                    self._hand_over(origin, chosen, buffer, frames, row, row + 1, int(frames[row, PAYLOAD_SIZE]))
        elif end - begin == 1:
            chosen = members[int(random.random() * len(members))]
            self._hand_over(origin, chosen, buffer, frames, begin, end, size)
        else:
            rows = frames[begin:end]
            draws = np.random.randint(0, len(members), end - begin)
            for i, member in enumerate(members):
                own = np.ascontiguousarray(rows[draws == i])
                if len(own):
                    self._hand_over(origin, member, buffer, own, 0, len(own), int(own[:, PAYLOAD_SIZE].sum()))
        return True

    # Messages from this process

    def publish_one(
        self, origin: Client, subject: bytes, reply: bytes, payload: bytes, header_size: int, *, keep: bool = False
    ) -> int:
        """Hands over one message. Returns the number of receivers."""
        count = 0
        for to in self._receivers(origin, self._known.get(subject) or self.route(subject, keep=keep)):
            self._account(to, 1, len(payload))
            to.client.take_one(to, subject, reply, payload, header_size)
            count += 1
        return count

    def publish_block(self, origin: Client, subject: bytes, block: Payloads, begin: int, end: int) -> int:
        """Hands over payloads of a block, all to one subject. Returns the number of receivers of the last one."""
        route = self._known.get(subject) or self.route(subject, keep=True)
        if route.queues or any(s.limit for s in route.plain):
            count = 0
            for row in range(begin, end):
                count = self.publish_one(origin, subject, b"", block.payload(row), 0, keep=True)
            return count
        size = int(block.sizes[begin] if end - begin == 1 else block.sizes[begin:end].sum())
        count = 0
        for to in route.plain:
            if not to.closed and (to.client is not origin or origin.echo):
                self._account(to, end - begin, size)
                to.client.take_block(to, subject, block, begin, end)
                count += 1
        return count

    def congested(self, subject: bytes) -> bool:
        """Tells whether a receiver of a subject does not keep up. What was never published to counts as empty."""
        route = self._known.get(subject)
        return route is not None and any(s.client.congested for s in route.plain)

    def _account(self, to: Subscription, count: int, size: int) -> None:
        to.delivered += count
        counters = to.client.counters
        counters.out_msgs += count
        counters.out_bytes += size
        self.counters.out_msgs += count
        self.counters.out_bytes += size

    def _receivers(self, origin: Client, route: Route) -> list[Subscription]:
        chosen = [s for s in route.plain if not (s.closed or (s.client is origin and not origin.echo))]
        for group in route.queues:
            members = [s for s in group if not (s.closed or (s.client is origin and not origin.echo))]
            if members:
                chosen.append(members[int(random.random() * len(members))])
        for subscription in chosen:
            if subscription.limit and subscription.delivered + 1 >= subscription.limit:
                self.unsubscribe(subscription)
        return chosen


def _tokens(subject: bytes) -> tuple[bytes, bytes]:
    tokens = subject.split(b".", 2)
    return tokens[0], tokens[1] if len(tokens) > 1 else b""


def _subject(buffer: Buffer, frames: Frames, row: int) -> bytes:
    start, size = int(frames[row, SUBJECT]), int(frames[row, SUBJECT_SIZE])
    return bytes(memoryview(buffer)[start : start + size])


def _may_receive(subscription: Subscription, subject: bytes) -> bool:
    permit = subscription.client.permit
    return not subscription.narrowed or permit is None or permit.may_receive(subject)
