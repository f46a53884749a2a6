"""Who subscribed to what: finds the subscriptions that match a subject.

Literal subjects, nearly all there are, stand in one dict; patterns with wildcards in a tree with one level a token.
What was found is kept in a cache of bounded size. A change takes out only what it can affect: the subject itself, or,
for a pattern, the subjects that begin with the same one or two literal tokens. Each entry that is taken out was put in
once, so a change costs no more than what it makes necessary again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from broker.wire.subjects import is_literal

#: A subscription: anything with a hash.
S = TypeVar("S")

#: Most subjects in the cache; where there are more, the oldest quarter goes.
CACHE_SIZE: Final = 4096
#: Most changes that are remembered.
CHANGES: Final = 256


class Matched(NamedTuple, Generic[S]):
    """Subscriptions that match a subject.

    Attributes:
        plain: Each of these gets every message.
        queues: Queue groups: one of each gets a message.
    """

    plain: tuple[S, ...]
    queues: tuple[tuple[S, ...], ...]

    @property
    def fanout(self) -> int:
        """Receivers of a message."""
        return len(self.plain) + len(self.queues)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers for monitoring (operations section 14)."""

    num_subscriptions: int
    num_cache: int
    num_inserts: int
    num_removes: int
    num_matches: int
    cache_hit_rate: float
    max_fanout: int
    avg_fanout: float


class _Subscribers(Generic[S]):
    """Those who subscribed to one subject or pattern. The dicts serve as sets that keep their order."""

    __slots__ = ("plain", "queues")

    def __init__(self) -> None:
        self.plain: dict[S, None] = {}
        self.queues: dict[bytes, dict[S, None]] = {}

    def add(self, subscription: S, queue: bytes) -> bool:
        members = self.queues.setdefault(queue, {}) if queue else self.plain
        if subscription in members:
            return False
        members[subscription] = None
        return True

    def discard(self, subscription: S, queue: bytes) -> bool:
        members = self.queues.get(queue) if queue else self.plain
        if members is None or subscription not in members:
            return False
        del members[subscription]
        if queue and not members:
            del self.queues[queue]
        return True

    def __bool__(self) -> bool:
        return bool(self.plain or self.queues)


class _Level(Generic[S]):
    """What follows after some tokens of patterns: `ends` for those that end here, `rest` for those with `>` next."""

    __slots__ = ("ends", "next", "rest")

    def __init__(self) -> None:
        self.next: dict[bytes, _Level[S]] = {}
        self.ends: _Subscribers[S] | None = None
        self.rest: _Subscribers[S] | None = None

    def __bool__(self) -> bool:
        return bool(self.next or self.ends or self.rest)


class Interest(Generic[S]):
    """The subscriptions of a server.

    Attributes:
        count: Number of subscriptions.
        generation: Changes with every insert and remove: what was derived from an older one may be wrong.
    """

    __slots__ = (
        "_cache",
        "_cached_by_tokens",
        "_changes",
        "_hits",
        "_inserts",
        "_literals",
        "_matches",
        "_patterns",
        "_removes",
        "count",
        "generation",
    )

    def __init__(self) -> None:
        self.count = 0
        self.generation = 0
        self._literals: dict[bytes, _Subscribers[S]] = {}
        self._patterns: _Level[S] = _Level()
        self._cache: dict[bytes, Matched[S]] = {}
        # First token -> second token (empty if there is none) -> subjects in the cache.
        self._cached_by_tokens: dict[bytes, dict[bytes, set[bytes]]] = {}
        self._changes: deque[bytes] = deque(maxlen=CHANGES)
        self._inserts = self._removes = self._matches = self._hits = 0

    def insert(self, subject: bytes, subscription: S, queue: bytes = b"") -> bool:
        """Adds a subscription.

        Args:
            subject: A valid subject or pattern.
            subscription: Who; at most once for each subject and queue.
            queue: The queue group, if any.

        Returns:
            Whether it is new.
        """
        literal = is_literal(subject)
        if literal:
            subscribers = self._literals.get(subject)
            if subscribers is None:
                subscribers = self._literals[subject] = _Subscribers()
        else:
            subscribers = self._make(subject)
        if not subscribers.add(subscription, queue):
            return False
        self.count += 1
        self._inserts += 1
        self._changed(subject, literal)
        return True

    def remove(self, subject: bytes, subscription: S, queue: bytes = b"") -> bool:
        """Takes a subscription out; False if there is none like this."""
        literal = is_literal(subject)
        if literal:
            subscribers = self._literals.get(subject)
            if subscribers is None or not subscribers.discard(subscription, queue):
                return False
            if not subscribers:
                del self._literals[subject]
        elif not self._discard(subject, subscription, queue):
            return False
        self.count -= 1
        self._removes += 1
        self._changed(subject, literal)
        return True

    def match(self, subject: bytes) -> Matched[S]:
        """Returns who gets a message to a subject. Queue groups of the same name are one, whatever their pattern."""
        self._matches += 1
        found = self._cache.get(subject)
        if found is not None:
            self._hits += 1
            return found
        found = self._find(subject)
        self._keep(subject, found)
        return found

    def changes(self, since: int) -> list[bytes] | None:
        """Returns the subjects and patterns whose subscriptions changed since a generation.

        Returns:
            Oldest first; None if it is too long ago to be known.
        """
        number = self.generation - since
        if number > len(self._changes):
            return None
        return [self._changes[i] for i in range(len(self._changes) - number, len(self._changes))]

    def statistics(self) -> Statistics:
        """Returns numbers for monitoring; the fan-out is that of the subjects in the cache."""
        fanouts = [matched.fanout for matched in self._cache.values()]
        return Statistics(
            num_subscriptions=self.count,
            num_cache=len(fanouts),
            num_inserts=self._inserts,
            num_removes=self._removes,
            num_matches=self._matches,
            cache_hit_rate=self._hits / self._matches if self._matches else 0.0,
            max_fanout=max(fanouts, default=0),
            avg_fanout=sum(fanouts) / len(fanouts) if fanouts else 0.0,
        )

    def _make(self, pattern: bytes) -> _Subscribers[S]:
        """Returns those who subscribed to a pattern; makes the way to it."""
        level = self._patterns
        tokens = pattern.split(b".")
        rest = tokens[-1] == b">"
        for token in tokens[:-1] if rest else tokens:
            following = level.next.get(token)
            if following is None:
                following = level.next[token] = _Level()
            level = following
        if rest:
            if level.rest is None:
                level.rest = _Subscribers()
            return level.rest
        if level.ends is None:
            level.ends = _Subscribers()
        return level.ends

    def _discard(self, pattern: bytes, subscription: S, queue: bytes) -> bool:
        """Takes a subscription to a pattern out, and the levels that became empty by it."""
        level = self._patterns
        tokens = pattern.split(b".")
        rest = tokens[-1] == b">"
        way: list[tuple[_Level[S], bytes]] = []
        for token in tokens[:-1] if rest else tokens:
            following = level.next.get(token)
            if following is None:
                return False
            way.append((level, token))
            level = following
        subscribers = level.rest if rest else level.ends
        if subscribers is None or not subscribers.discard(subscription, queue):
            return False
        if subscribers:
            return True
        if rest:
            level.rest = None
        else:
            level.ends = None
        for above, token in reversed(way):
            if above.next[token]:
                break
            del above.next[token]
        return True

    def _find(self, subject: bytes) -> Matched[S]:
        found: list[_Subscribers[S]] = []
        literal = self._literals.get(subject)
        if literal is not None:
            found.append(literal)
        if self._patterns:
            levels = [self._patterns]
            for token in subject.split(b"."):
                following = []
                for level in levels:
                    if level.rest is not None:
                        found.append(level.rest)
                    one = level.next.get(token)
                    if one is not None:
                        following.append(one)
                    one = level.next.get(b"*")
                    # To a subject with a "*" of its own, the two are the same.
                    if one is not None and token != b"*":
                        following.append(one)
                levels = following
                if not levels:
                    break
            found.extend(level.ends for level in levels if level.ends is not None)
        if len(found) == 1 and not found[0].queues:
            return Matched(tuple(found[0].plain), ())
        queues: dict[bytes, list[S]] = {}
        for subscribers in found:
            for queue, members in subscribers.queues.items():
                queues.setdefault(queue, []).extend(members)
        return Matched(
            tuple(one for subscribers in found for one in subscribers.plain),
            tuple(tuple(members) for members in queues.values()),
        )

    def _keep(self, subject: bytes, found: Matched[S]) -> None:
        if len(self._cache) >= CACHE_SIZE:
            for old in [old for old, _ in zip(self._cache, range(CACHE_SIZE // 4), strict=False)]:
                self._forget(old)
        self._cache[subject] = found
        first, second = _key(subject)
        self._cached_by_tokens.setdefault(first, {}).setdefault(second, set()).add(subject)

    def _forget(self, subject: bytes) -> None:
        if self._cache.pop(subject, None) is None:
            return
        first, second = _key(subject)
        seconds = self._cached_by_tokens[first]
        seconds[second].discard(subject)
        if not seconds[second]:
            del seconds[second]
            if not seconds:
                del self._cached_by_tokens[first]

    def _changed(self, subject: bytes, literal: bool) -> None:
        self.generation += 1
        self._changes.append(subject)
        if not self._cache:
            return
        if literal:
            self._forget(subject)
            return
        first, second = _key(subject)
        if first in (b"*", b">"):
            self._cache.clear()
            self._cached_by_tokens.clear()
        elif second in (b"*", b">"):
            for subjects in self._cached_by_tokens.pop(first, {}).values():
                self._drop(subjects)
        else:
            seconds = self._cached_by_tokens.get(first, {})
            self._drop(seconds.pop(second, set()))
            if not seconds:
                self._cached_by_tokens.pop(first, None)

    def _drop(self, subjects: set[bytes]) -> None:
        for subject in subjects:
            del self._cache[subject]


def _key(subject: bytes) -> tuple[bytes, bytes]:
    """Returns the first two tokens, the second one empty if there is none."""
    tokens = subject.split(b".", 2)
    return tokens[0], tokens[1] if len(tokens) > 1 else b""
