"""All subscriptions, and the cached receivers of subjects.

A `SubjectRoute` is a set of receivers. Subjects with the same receivers have the same route, so that a run of messages
to many subjects (such as the channels of a streaming server) is delivered at once. Each set of permissions has a table
of subjects for the parser. A subject that is not in the table, or was removed after a change of subscriptions, is
looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stantools.nats.interest import WILDCARDS, Interest, InterestCache, finished
from stantools.nats.kernels import Names
from stantools.nats.subjects import matches, overlap

if TYPE_CHECKING:
    from broker.nats.auth import Permit
    from broker.nats.client import BrokerClient, NatsSubscription
    from broker.nats.remote_interest import RemoteInterestTable, RemoteServers
    from stantools.nats.interest import MatchedSubscriptions

_INVALID: Final = re.compile(rb"\A\.|\.\.|\.\Z|\s|\A\Z")
#: Last token of the cache entry for all subjects with a common head; no subject has this token.
_LAST_TOKEN: Final = b" "
#: Approximate maximum bytes of cached subjects and routes; beyond it, the cache is cleared.
_MAX_BYTES: Final = 24 << 20
#: Approximate bytes of a subject (besides its name), a route, and a receiver of a route.
_SUBJECT_BYTES: Final = 300
_ROUTE_BYTES: Final = 400
_RECEIVER_BYTES: Final = 60
#: Maximum number of cached heads of subjects; beyond it, subjects are cached one by one.
_MAX_HEADS: Final = 64
#: Maximum number of table entries that one subscription removes singly; beyond it, the cache is cleared.
_MAX_REMOVALS: Final = 4096
#: Number of subjects seen once; a subject is cached at its second look-up (most reply subjects occur once).
_MAX_SEEN: Final = 4096


@dataclass(slots=True, eq=False)
class SubjectRoute:
    number: int  #: its number in the tables
    plain: tuple[NatsSubscription, ...] = ()  #: subscriptions without queue group
    queues: tuple[tuple[NatsSubscription, ...], ...] = ()  #: members of each queue group
    remote_interest: RemoteInterestTable | None = None  #: receivers on other servers, if any
    only: NatsSubscription | None = field(init=False)  #: the receiver, if there is exactly one and no queue group

    @property
    def fanout(self) -> int:
        return len(self.plain) + len(self.queues)

    def members(self, group: bytes) -> list[NatsSubscription]:
        return [s for members in self.queues for s in members if s.queue == group and not s.closed]

    def __post_init__(self) -> None:
        alone = len(self.plain) == 1 and not self.queues and self.remote_interest is None
        self.only = self.plain[0] if alone else None


@dataclass(frozen=True, slots=True)
class NatsStatistics:
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
    """The known subjects that clients with the same permissions may publish to."""

    def __init__(self, permit: Permit | None) -> None:
        self.permit = permit
        self.routes = Names()


class Subscriptions:
    """All subscriptions, and the routes of subjects looked up before."""

    def __init__(self) -> None:
        self.mesh: RemoteServers | None = None  #: the other servers, if any
        self.interest: Interest[NatsSubscription] = Interest()
        self.routes: list[SubjectRoute] = []  #: by number; a new list after the cache was cleared
        self.version = 0  #: changes when a route of a subject is invalidated
        self.ranks = bytearray()  #: rank of each route's only receiver, by number; 0 without one
        #: Heads of subjects with common receivers -> numbers of their routes.
        self._heads: dict[bytes, int] = {}
        self._by_targets: dict[tuple[object, ...], SubjectRoute] = {}
        self.known: InterestCache[SubjectRoute] = InterestCache()  #: the routes of subjects
        self._bytes = 0
        self._searches = 0
        self._seen: set[int] = set()
        self._tables: dict[int, SubjectTable] = {}
        self.unrestricted: Final = SubjectTable(None)  #: table of clients without permissions
        #: Called with each subject or pattern that gets or loses a subscription.
        self.watcher: Callable[[bytes], None] | None = None
        self.forget()

    def table(self, permit: Permit | None) -> SubjectTable:
        """Returns the table of clients with these permissions."""
        if permit is None:
            return self.unrestricted
        table = self._tables.get(id(permit))
        if table is None:
            table = self._tables[id(permit)] = SubjectTable(permit)
        return table

    def forget_permissions(self) -> None:
        """Clears the caches derived from permissions, after a change of them."""
        self.forget()
        self._tables.clear()

    def statistics(self, matches: int) -> NatsStatistics:
        """Returns numbers for monitoring; the fan-out is that of cached subjects, `matches` the number of look-ups."""
        fanouts = [route.fanout for route in self.known.values.values()]
        return NatsStatistics(
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
        subscription.client.subscriptions[subscription.sid] = subscription
        self.interest.insert(subscription.subject, subscription, subscription.queue)
        self.changed(subscription.subject)
        if self.mesh is not None:
            self.mesh.interest(subscription.subject, subscription.queue, 1)

    def remove(self, subscription: NatsSubscription) -> None:
        if subscription.closed:
            return
        subscription.closed = True
        held = subscription.client.subscriptions
        if held.get(subscription.sid) is subscription:
            del held[subscription.sid]
        self._remove(subscription)

    def leave(self, client: BrokerClient) -> Iterator[None]:
        """Removes all subscriptions of a client, which may be many: work that can be interrupted.

        They get no message from the first step on.
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
        """Invalidates cached subjects that a pattern matches: their receivers have changed."""
        if self.watcher is not None:
            self.watcher(pattern)
        first = pattern.partition(b".")[0]
        near = [head for head in self._heads if head.startswith(first + b".") or first in WILDCARDS]
        gone = {head for head in near if overlap(head + b">", pattern)}
        if gone:
            self.version += 1
            self._set_heads({head: number for head, number in self._heads.items() if head not in gone})
        if not self.known.values:
            return
        tables = (self.unrestricted, *self._tables.values())
        forgotten = self.known.changed(pattern, _MAX_REMOVALS // len(tables))
        if forgotten is None:
            self.forget()
            return
        self.version += bool(forgotten)
        for subject in forgotten:
            for table in tables:
                table.routes.discard(subject)

    def forget(self) -> None:
        """Clears the cache of subjects."""
        # Tables must not keep numbers of old routes; no caller keeps one across calls.
        self._bytes = 0
        self.version += 1
        self.known.clear()
        self._by_targets.clear()
        # Number 0 is the route of subjects without a table entry.
        self.routes, self.ranks = [SubjectRoute(0)], bytearray(1)
        self._heads = {}
        for table in (self.unrestricted, *self._tables.values()):
            table.routes.clear()

    def route(self, subject: bytes, *, keep: bool = False) -> SubjectRoute:
        """Returns the receivers of a subject. With `keep` it is cached at once, otherwise at its second look-up."""
        found = self.known.values.get(subject)
        if found is None and not keep:
            found = self._sibling_route(subject)
        return found or finished(self.look_up(subject, keep))

    def _sibling_route(self, subject: bytes) -> SubjectRoute | None:
        """Returns the receivers of a subject whose last token does not matter; None if they are unknown.

        Each request of a client has a reply subject of its own, and all of these lead to one subscription.
        """
        found = self.known.values.get(subject[: subject.rfind(b".") + 1] + _LAST_TOKEN)
        if found is None or self.interest.is_literal(subject) or _INVALID.search(subject):
            return None
        return found

    def look_up(self, subject: bytes, keep: bool) -> Generator[None, None, SubjectRoute]:
        """Does the work of `route` in steps that can be interrupted."""
        known = self.known.values.get(subject)
        if known is not None:
            return known
        if _INVALID.search(subject):
            # No pattern matches an empty token, not even `>`; and white space must not get into control lines.
            return SubjectRoute(-1)
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
        remote = None if self.mesh is None else self.mesh.match(subject)
        head = b"" if keep or narrowed or self.mesh is not None else self._new_head(subject, matched)
        if not (keep or head or self._is_second_lookup(subject)):
            once = SubjectRoute(-1, plain, queues, remote)
            if not narrowed and changes == interest.inserts + interest.removes:
                self._cache_for_siblings(subject, once)
            return once
        size = _ROUTE_BYTES + _RECEIVER_BYTES * (len(plain) + sum(map(len, queues)))
        if changes != interest.inserts + interest.removes or size > _MAX_BYTES // 4:
            return SubjectRoute(-1, plain, queues, remote)
        if self._bytes > _MAX_BYTES:
            self.forget()
        # The receivers on other servers are a new object for each subject; comparing them is not worthwhile.
        key = (tuple(map(id, plain)), tuple(tuple(map(id, group)) for group in queues), remote and id(remote))
        route = self._by_targets.get(key)
        if route is None:
            # The route references the subscriptions, so that their ids stay valid.
            route = SubjectRoute(len(self.routes), plain, queues, remote)
            self.routes.append(route)
            self.ranks.append(0 if route.only is None else route.only.rank)
            self._by_targets[key] = route
            self._bytes += size
        if head:
            others = {each: number for each, number in self._heads.items() if not each.startswith(head)}
            self._set_heads({**others, head: route.number})
        else:
            self._bytes += len(subject) + _SUBJECT_BYTES
            self.known.keep(subject, route)
        return route

    def _new_head(self, subject: bytes, matched: MatchedSubscriptions[NatsSubscription]) -> bytes:
        """Returns the head of all subjects with the same receivers as this one; empty if there is no use for it."""
        found = matched.plain or matched.queues
        if not found or len(self._heads) >= _MAX_HEADS or any(map(subject.startswith, self._heads)):
            return b""
        head = self.interest.common_head(subject)
        for but in {each.but for each in matched.plain if head and each.but}:
            if overlap(head + b">", but) and not (but.endswith(b".>") and matches(but, head + b">")):
                return b""
        return head

    def _set_heads(self, heads: dict[bytes, int]) -> None:
        """Gives the parser the routes of all subjects with these heads, for clients without permissions."""
        self._heads = heads
        self.unrestricted.routes.begin_with(heads)

    def _is_second_lookup(self, subject: bytes) -> bool:
        """Returns whether a subject, or a head of subjects, was looked up before."""
        number = hash(subject)
        if number in self._seen:
            return True
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen.add(number)
        return False

    def _cache_for_siblings(self, subject: bytes, route: SubjectRoute) -> None:
        """Caches the receivers for all subjects that differ in the last token only, if that token does not matter."""
        head = subject[: subject.rfind(b".") + 1]
        if (
            self.mesh is not None
            or not head
            or self.interest.is_literal(subject)
            or head + _LAST_TOKEN in self.known.values
        ):
            return
        if self._is_second_lookup(head) and self.interest.is_same_for_all(head):
            if self._bytes > _MAX_BYTES:
                self.forget()
            self._bytes += _ROUTE_BYTES + _RECEIVER_BYTES * route.fanout + len(head) + _SUBJECT_BYTES
            self.known.keep(head + _LAST_TOKEN, route)

    def remember(self, table: SubjectTable, subject: bytes, route: SubjectRoute) -> None:
        """Gives the parser the route of a subject, if it is cached by itself."""
        if self.known.values.get(subject) is route and route.number > 0:
            table.routes.add(subject, route.number)
            if table is not self.unrestricted:
                self._bytes += len(subject) + _SUBJECT_BYTES // 2

    def interested(self, subject: bytes, group: bytes = b"") -> bool:
        """Returns whether a subject has a subscription of its own, or one in this queue group."""
        route = self.route(subject, keep=True)
        return bool(route.members(group)) if group else any(not s.closed for s in route.plain)

    def reaches(self, subject: bytes) -> bool:
        route = self.route(subject, keep=True)
        return bool(route.fanout) or route.remote_interest is not None

    def takes_rows(self, subject: bytes) -> bool:
        """Returns whether a subject has only receivers on sockets here, without queue groups and limits."""
        route = self.route(subject, keep=True)
        return (
            bool(route.plain)
            and not route.queues
            and route.remote_interest is None
            and all(to.handler is None and not to.limit for to in route.plain)
        )

    def congested(self, subject: bytes) -> bool:
        # Changes of other subscriptions invalidate subjects; that must not let more be sent.
        route = self.known.values.get(subject) or self.route(subject, keep=True)
        for to in route.plain:
            if to.client.congested:
                return True
        return route.remote_interest is not None and any(server.congested for server in route.remote_interest.plain)


def _may_receive(subscription: NatsSubscription, subject: bytes) -> bool:
    permit = subscription.client.permit
    return not subscription.narrowed or permit is None or permit.may_receive(subject)
