"""Who gets what: all subscriptions, and what is remembered of the subjects that messages were published to.

A `Route` is a set of receivers. Subjects that go to the same receivers have the same route, so that a run of messages
to many subjects (the channels of a streaming server, say) is handed over as one. Each set of permissions has its own
table of subjects, which the parser looks into; a subject that is not in it, or no more since somebody subscribed or
went, is looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stantools.nats.interest import WILDCARDS, Interest, Remembered, finished
from stantools.nats.kernels import Names
from stantools.nats.subjects import matches, overlap

if TYPE_CHECKING:
    from broker.nats.abroad import Abroad, Mesh
    from broker.nats.auth import Permit
    from broker.nats.client import Client, NatsSubscription
    from stantools.nats.interest import Matched

_UNFIT: Final = re.compile(rb"\A\.|\.\.|\.\Z|\s|\A\Z")
#: What is remembered of all subjects with a head has this for a last token, which no subject has.
_ANY: Final = b" "
#: Bytes that remembered subjects and routes may take, about; then all are forgotten.
_MOST_BYTES: Final = 24 << 20
#: What a subject, a route, and a receiver of a route take, about (a subject: besides its name).
_SUBJECT_BYTES: Final = 300
_ROUTE_BYTES: Final = 400
_RECEIVER_BYTES: Final = 60
#: Heads of subjects that are known; where there are more, subjects are remembered one by one.
_MOST_HEADS: Final = 64
#: Entries of tables that a subscription may take out one by one; where there are more, all are forgotten.
_MOST_FORGOTTEN: Final = 4096
#: Subjects that were seen once; only when they come again they are remembered (reply subjects mostly do not).
_SEEN: Final = 4096


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

    def members(self, group: bytes) -> list[NatsSubscription]:
        """Returns the members of a queue group."""
        return [s for members in self.queues for s in members if s.queue == group and not s.closed]

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


class SubjectTable:
    """The subjects that clients with the same permissions may publish to, as far as they are known."""

    def __init__(self, permit: Permit | None) -> None:
        self.permit = permit
        self.routes = Names()


class Subscriptions:
    """All subscriptions, and the routes of subjects that were looked up."""

    def __init__(self) -> None:
        self.mesh: Mesh | None = None  #: the other servers; None if there are none
        self.interest: Interest[NatsSubscription] = Interest()  #: all subscriptions
        self.routes: list[Route] = []  #: by number; another list once they are forgotten
        self.version = 0  #: another one once a route of a subject is forgotten
        self.ranks = bytearray()  #: of their only receivers, by number as well; 0 where there is none
        #: How subjects begin that all have the same receivers, and the numbers of their routes.
        self._heads: dict[bytes, int] = {}
        self._by_targets: dict[tuple[object, ...], Route] = {}
        self.known: Remembered[Route] = Remembered()  #: the routes of subjects
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

    def statistics(self, matches: int) -> Statistics:
        """Returns numbers for monitoring; the fan-out is that of the subjects that are remembered.

        Args:
            matches: Messages whose receivers were asked for.
        """
        fanouts = [route.fanout for route in self.known.values.values()]
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

    def add(self, subscription: NatsSubscription) -> None:
        """Adds a subscription."""
        subscription.client.subscriptions[subscription.sid] = subscription
        self.interest.insert(subscription.subject, subscription, subscription.queue)
        self.changed(subscription.subject)
        if self.mesh is not None:
            self.mesh.interest(subscription.subject, subscription.queue, 1)

    def remove(self, subscription: NatsSubscription) -> None:
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
        first = pattern.partition(b".")[0]
        near = [head for head in self._heads if head.startswith(first + b".") or first in WILDCARDS]
        gone = {head for head in near if overlap(head + b">", pattern)}
        if gone:
            self.version += 1
            self._begin_with({head: number for head, number in self._heads.items() if head not in gone})
        if not self.known.values:
            return
        tables = (self._open, *self._tables.values())
        forgotten = self.known.changed(pattern, _MOST_FORGOTTEN // len(tables))
        if forgotten is None:
            self.forget()
            return
        self.version += bool(forgotten)
        for subject in forgotten:
            for table in tables:
                table.routes.discard(subject)

    def forget(self) -> None:
        """Forgets all that was remembered of subjects."""
        # Numbers in tables of earlier routes must not live on; nobody holds one across calls.
        self._bytes = 0
        self.version += 1
        self.known.clear()
        self._by_targets.clear()
        # Number 0 is for nobody: what is in no table has none.
        self.routes, self.ranks = [Route(0)], bytearray(1)
        self._heads = {}
        for table in (self._open, *self._tables.values()):
            table.routes.clear()

    def route(self, subject: bytes, *, keep: bool = False) -> Route:
        """Returns the receivers of a subject.

        Args:
            subject: What is published to.
            keep: It will come again; otherwise it is remembered when it does.
        """
        found = self.known.values.get(subject)
        if found is None and not keep:
            found = self._alike(subject)
        return found or finished(self.look_up(subject, keep))

    def _alike(self, subject: bytes) -> Route | None:
        """Returns the receivers of a subject whose last token does not matter; None if they are not known.

        Each request of a client has its own subject for the answer, which all go to one subscription.
        """
        found = self.known.values.get(subject[: subject.rfind(b".") + 1] + _ANY)
        if found is None or self.interest.is_literal(subject) or _UNFIT.search(subject):
            return None
        return found

    def look_up(self, subject: bytes, keep: bool) -> Generator[None, None, Route]:
        """As `route`, but work that can be interrupted."""
        known = self.known.values.get(subject)
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
        if len(plain) > 1 and any(s.but for s in plain):
            plain = tuple(s for s in plain if not (s.but and matches(s.but, subject)))
        narrowed = any(s.narrowed for s in plain) or any(s.narrowed for group in queues for s in group)
        if narrowed:
            plain = tuple(s for s in plain if _may_receive(s, subject))
            groups = (tuple(s for s in group if _may_receive(s, subject)) for group in queues)
            queues = tuple(group for group in groups if group)
        abroad = None if self.mesh is None else self.mesh.match(subject)
        head = b"" if keep or narrowed or self.mesh is not None else self._new_head(subject, matched)
        if not (keep or head or self._comes_again(subject)):
            once = Route(-1, plain, queues, abroad)
            if not narrowed and changes == interest.inserts + interest.removes:
                self._keep_alike(subject, once)
            return once
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
            route = Route(len(self.routes), plain, queues, abroad)
            self.routes.append(route)
            self.ranks.append(0 if route.only is None else route.only.rank)
            self._by_targets[key] = route
            self._bytes += size
        if head:
            others = {each: number for each, number in self._heads.items() if not each.startswith(head)}
            self._begin_with({**others, head: route.number})
        else:
            self._bytes += len(subject) + _SUBJECT_BYTES
            self.known.keep(subject, route)
        return route

    def _new_head(self, subject: bytes, matched: Matched[NatsSubscription]) -> bytes:
        """Returns how all subjects begin that have the receivers of this one; empty if there is no need to know."""
        found = matched.plain or matched.queues
        if not found or len(self._heads) >= _MOST_HEADS or any(map(subject.startswith, self._heads)):
            return b""
        head = self.interest.common_head(subject)
        for but in {each.but for each in matched.plain if head and each.but}:
            if overlap(head + b">", but) and not (but.endswith(b".>") and matches(but, head + b">")):
                return b""
        return head

    def _begin_with(self, heads: dict[bytes, int]) -> None:
        """Makes the parser know the routes of all subjects with these heads, where no permissions matter."""
        self._heads = heads
        self._open.routes.begin_with(heads)

    def _comes_again(self, subject: bytes) -> bool:
        """Returns whether a subject, or a head of subjects, was looked for before."""
        number = hash(subject)
        if number in self._seen:
            return True
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen.add(number)
        return False

    def _keep_alike(self, subject: bytes, route: Route) -> None:
        """Remembers the receivers of a subject for those that differ in the last token only, if it does not matter."""
        head = subject[: subject.rfind(b".") + 1]
        if self.mesh is not None or not head or self.interest.is_literal(subject) or head + _ANY in self.known.values:
            return
        if self._comes_again(head) and self.interest.is_same_for_all(head):
            if self._bytes > _MOST_BYTES:
                self.forget()
            self._bytes += _ROUTE_BYTES + _RECEIVER_BYTES * route.fanout + len(head) + _SUBJECT_BYTES
            self.known.keep(head + _ANY, route)

    def remember(self, table: SubjectTable, subject: bytes, route: Route) -> None:
        """Makes the parser know the route of a subject from now on, if it is one that is remembered by itself."""
        if self.known.values.get(subject) is route and route.number > 0:
            table.routes.add(subject, route.number)
            if table is not self._open:
                self._bytes += len(subject) + _SUBJECT_BYTES // 2

    def interested(self, subject: bytes, group: bytes = b"") -> bool:
        """Returns whether somebody has subscribed to a subject by itself, or in this queue group."""
        route = self.route(subject, keep=True)
        return bool(route.members(group)) if group else any(not s.closed for s in route.plain)

    def reaches(self, subject: bytes) -> bool:
        """Returns whether a subject has receivers."""
        route = self.route(subject, keep=True)
        return bool(route.fanout) or route.abroad is not None

    def takes_rows(self, subject: bytes) -> bool:
        """Returns whether a subject has receivers, all on sockets here, in no queue group and without a limit."""
        route = self.route(subject, keep=True)
        return (
            bool(route.plain)
            and not route.queues
            and route.abroad is None
            and all(to.handler is None and not to.limit for to in route.plain)
        )

    def congested(self, subject: bytes) -> bool:
        """Returns whether a receiver of a subject does not keep up."""
        # Others who come and go have subjects forgotten: that must not let more be sent.
        route = self.known.values.get(subject) or self.route(subject, keep=True)
        for to in route.plain:
            if to.client.congested:
                return True
        return route.abroad is not None and any(server.congested for server in route.abroad.plain)


def _may_receive(subscription: NatsSubscription, subject: bytes) -> bool:
    permit = subscription.client.permit
    return not subscription.narrowed or permit is None or permit.may_receive(subject)
