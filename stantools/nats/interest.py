"""Subscriptions by subject: finds the ones that match a subject.

Literal subjects, the vast majority, are in one dict; patterns with wildcards in a tree with one level per token. A
search visits at limit all levels of that tree. As clients can create many, it can be interrupted.

Results can be `InterestCache`. A change removes only the results that it can affect: the subject itself, or, for a
pattern, the subjects that begin with the same one or two literal tokens. They are removed without being examined,
and each was added once, so a change costs no more than the searches that it makes necessary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from stantools.nats.subjects import is_literal

#: a subscription: anything with a hash
S = TypeVar("S")
#: the remembered result for a subject
V = TypeVar("V")
R = TypeVar("R")

#: tokens of patterns that stand for others
WILDCARDS: Final = (b"*", b">")
#: levels per step of a search
_STEP: Final = 1024


class MatchedSubscriptions(NamedTuple, Generic[S]):
    plain: tuple[S, ...]  #: each of these gets every message
    queues: tuple[tuple[S, ...], ...]  #: queue groups: one member of each gets a message


class _SubscriptionSet(Generic[S]):
    """The subscriptions of one subject or pattern. The dicts serve as ordered sets."""

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


class _PatternLevel(Generic[S]):
    """Patterns after some common tokens: `ends` for patterns that end here, `rest` for patterns with `>` next."""

    __slots__ = ("ends", "next", "rest")

    def __init__(self) -> None:
        self.next: dict[bytes, _PatternLevel[S]] = {}
        self.ends: _SubscriptionSet[S] | None = None
        self.rest: _SubscriptionSet[S] | None = None

    def __bool__(self) -> bool:
        return bool(self.next or self.ends or self.rest)


class Interest(Generic[S]):
    """The subscriptions of a server.

    `count` is their number; `inserts` and `removes` count all changes.
    """

    __slots__ = ("_first_tokens", "_literals", "_patterns", "count", "inserts", "removes")

    def __init__(self) -> None:
        self.count = self.inserts = self.removes = 0
        self._literals: dict[bytes, _SubscriptionSet[S]] = {}
        self._first_tokens: Counter[bytes] = Counter()  # number of literals by their first token
        self._patterns: _PatternLevel[S] = _PatternLevel()

    def insert(self, subject: bytes, subscription: S, queue: bytes = b"") -> bool:
        """Adds a subscription, at limit once for each subject (or pattern) and queue; returns whether it is new."""
        if is_literal(subject):
            subscribers = self._literals.get(subject)
            if subscribers is None:
                subscribers = self._literals[subject] = _SubscriptionSet()
                self._first_tokens[subject.partition(b".")[0]] += 1
        else:
            subscribers = self._create(subject)
        if not subscribers.add(subscription, queue):
            return False
        self.count += 1
        self.inserts += 1
        return True

    def remove(self, subject: bytes, subscription: S, queue: bytes = b"") -> bool:
        if is_literal(subject):
            subscribers = self._literals.get(subject)
            if subscribers is None or not subscribers.discard(subscription, queue):
                return False
            if not subscribers:
                del self._literals[subject]
                first = subject.partition(b".")[0]
                self._first_tokens[first] -= 1
                if not self._first_tokens[first]:
                    del self._first_tokens[first]
        elif not self._discard(subject, subscription, queue):
            return False
        self.count -= 1
        self.removes += 1
        return True

    def match(self, subject: bytes) -> MatchedSubscriptions[S]:
        return finished(self.search(subject))

    def search(self, subject: bytes) -> Generator[None, None, MatchedSubscriptions[S]]:
        """Searches as `match`, yielding between steps. Changes made meanwhile may or may not be in the result."""
        found: list[_SubscriptionSet[S]] = []
        literal = self._literals.get(subject)
        if literal is not None:
            found.append(literal)
        if self._patterns:
            levels = [self._patterns]
            step = 0
            for token in subject.split(b"."):
                following = []
                for level in levels:
                    step += 1
                    if step % _STEP == 0:
                        yield
                    if level.rest is not None:
                        found.append(level.rest)
                    one = level.next.get(token)
                    if one is not None:
                        following.append(one)
                    one = level.next.get(b"*")
                    # for a subject with a "*" of its own, the two are the same
                    if one is not None and token != b"*":
                        following.append(one)
                levels = following
                if not levels:
                    break
            found.extend(level.ends for level in levels if level.ends is not None)
        if len(found) == 1 and not found[0].queues:
            return MatchedSubscriptions(tuple(found[0].plain), ())
        queues: dict[bytes, list[S]] = {}
        for subscribers in found:
            for queue, members in subscribers.queues.items():
                queues.setdefault(queue, []).extend(members)
        return MatchedSubscriptions(
            tuple(one for subscribers in found for one in subscribers.plain),
            tuple(tuple(members) for members in queues.values()),
        )

    def __iter__(self) -> Iterator[S]:
        some = list(self._literals.values())
        levels = [self._patterns]
        while levels:
            level = levels.pop()
            levels += level.next.values()
            some += [each for each in (level.ends, level.rest) if each is not None]
        for subscribers in some:
            yield from subscribers.plain
            for members in subscribers.queues.values():
                yield from members

    def is_literal(self, subject: bytes) -> bool:
        """Returns whether there is a subscription to exactly this subject."""
        return subject in self._literals

    def is_same_for_all(self, head: bytes) -> bool:
        """Returns whether the same patterns match all subjects of `head`, which ends with a dot, and one more token."""
        levels = [self._patterns]
        for token in head.split(b".")[:-1]:
            tokens = (token,) if token == b"*" else (token, b"*")
            levels = [level.next[each] for level in levels for each in tokens if each in level.next]
            if len(levels) > _STEP:
                return False
        return all(len(level.next) == (b"*" in level.next) for level in levels)

    def common_head(self, subject: bytes) -> bytes:
        """Returns the shortest prefix, up to a dot, that determines a subject's subscriptions.

        The same subscriptions match all subjects with this prefix. Empty if there is none, or it takes long to find.
        """
        if not is_literal(subject):
            return b""
        levels, at = [self._patterns], 0
        for token in subject.split(b".")[:-1]:
            levels = [level.next[each] for level in levels for each in (token, b"*") if each in level.next]
            at += len(token) + 1
            if len(levels) > _STEP:
                break
            if not any(level.next for level in levels):
                head = subject[:at]
                if head[: head.find(b".")] not in self._first_tokens:
                    return head
                if len(self._literals) > _STEP:
                    break
                if not any(each.startswith(head) for each in self._literals):
                    return head
        return b""

    def _create(self, pattern: bytes) -> _SubscriptionSet[S]:
        level = self._patterns
        tokens = pattern.split(b".")
        rest = tokens[-1] == b">"
        for token in tokens[:-1] if rest else tokens:
            following = level.next.get(token)
            if following is None:
                following = level.next[token] = _PatternLevel()
            level = following
        if rest:
            if level.rest is None:
                level.rest = _SubscriptionSet()
            return level.rest
        if level.ends is None:
            level.ends = _SubscriptionSet()
        return level.ends

    def _discard(self, pattern: bytes, subscription: S, queue: bytes) -> bool:
        level = self._patterns
        tokens = pattern.split(b".")
        rest = tokens[-1] == b">"
        way: list[tuple[_PatternLevel[S], bytes]] = []
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


class InterestCache(Generic[V]):
    """Results by subject, until a change of subscriptions affects them. The caller bounds their number."""

    __slots__ = ("_groups", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, V] = {}
        # First token -> second token (empty if there is none) -> subjects. Some may be forgotten already.
        self._groups: dict[bytes, dict[bytes, list[bytes]]] = {}

    def keep(self, subject: bytes, value: V) -> None:
        """Remembers the result for a new subject."""
        self.values[subject] = value
        first, second = _key(subject)
        self._groups.setdefault(first, {}).setdefault(second, []).append(subject)

    def changed(self, pattern: bytes, limit: int) -> list[bytes] | None:
        """Forgets the results that a new or removed subscription to `pattern` may affect.

        Returns the forgotten subjects; None if there are more than `limit`, so that `clear` is better.
        """
        if is_literal(pattern):
            return [] if self.values.pop(pattern, None) is None else [pattern]
        first, second = _key(pattern)
        if first in WILDCARDS:
            return None
        groups = self._groups.get(first)
        if groups is None:
            return []
        if second not in WILDCARDS:
            chosen = [groups[second]] if second in groups else []
        elif len(groups) <= limit:
            chosen = list(groups.values())
        else:
            return None
        if sum(map(len, chosen)) > limit:
            return None
        if second in WILDCARDS:
            del self._groups[first]
        else:
            groups.pop(second, None)
        return [subject for group in chosen for subject in group if self.values.pop(subject, None) is not None]

    def clear(self) -> None:
        self.values.clear()
        self._groups.clear()


def finished(work: Generator[None, None, R]) -> R:
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: R = end.value
            return result


def _key(subject: bytes) -> tuple[bytes, bytes]:
    tokens = subject.split(b".", 2)
    return tokens[0], tokens[1] if len(tokens) > 1 else b""
