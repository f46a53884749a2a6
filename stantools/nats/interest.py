"""Who subscribed to what: finds the subscriptions that match a subject.

Literal subjects, nearly all there are, stand in one dict; patterns with wildcards in a tree with one level a token.
A search goes through at most all levels of that tree. As clients can make many, it can be interrupted.

What was found can be `Remembered`. A change takes out only what it can affect: the subject itself, or, for a pattern,
the subjects that begin with the same one or two literal tokens. None of them is looked at, and each was put in once, so
a change costs no more than what it makes necessary again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from stantools.nats.subjects import is_literal

#: A subscription: anything with a hash.
S = TypeVar("S")
#: What is remembered of a subject.
V = TypeVar("V")
R = TypeVar("R")

#: Tokens of patterns that stand for others.
WILDCARDS: Final = (b"*", b">")
#: Levels that a search goes through in a row.
_STEP: Final = 1024


class Matched(NamedTuple, Generic[S]):
    """Subscriptions that match a subject."""

    plain: tuple[S, ...]  #: each of these gets every message
    queues: tuple[tuple[S, ...], ...]  #: queue groups: one of each gets a message


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
        inserts: How many there ever were.
        removes: How many were taken out.
    """

    __slots__ = ("_firsts", "_literals", "_patterns", "count", "inserts", "removes")

    def __init__(self) -> None:
        self.count = self.inserts = self.removes = 0
        self._literals: dict[bytes, _Subscribers[S]] = {}
        self._firsts: Counter[bytes] = Counter()  # literals by their first token
        self._patterns: _Level[S] = _Level()

    def insert(self, subject: bytes, subscription: S, queue: bytes = b"") -> bool:
        """Adds a subscription.

        Args:
            subject: A valid subject or pattern.
            subscription: Who; at most once for each subject and queue.
            queue: The queue group, if any.

        Returns:
            Whether it is new.
        """
        if is_literal(subject):
            subscribers = self._literals.get(subject)
            if subscribers is None:
                subscribers = self._literals[subject] = _Subscribers()
                self._firsts[subject.partition(b".")[0]] += 1
        else:
            subscribers = self._make(subject)
        if not subscribers.add(subscription, queue):
            return False
        self.count += 1
        self.inserts += 1
        return True

    def remove(self, subject: bytes, subscription: S, queue: bytes = b"") -> bool:
        """Takes a subscription out; False if there is none like this."""
        if is_literal(subject):
            subscribers = self._literals.get(subject)
            if subscribers is None or not subscribers.discard(subscription, queue):
                return False
            if not subscribers:
                del self._literals[subject]
                first = subject.partition(b".")[0]
                self._firsts[first] -= 1
                if not self._firsts[first]:
                    del self._firsts[first]
        elif not self._discard(subject, subscription, queue):
            return False
        self.count -= 1
        self.removes += 1
        return True

    def match(self, subject: bytes) -> Matched[S]:
        """Returns who gets a message to a subject. Queue groups of the same name are one, whatever their pattern."""
        return finished(self.search(subject))

    def search(self, subject: bytes) -> Generator[None, None, Matched[S]]:
        """As `match`, and yields where others may have a turn. What changes meanwhile may be found or not."""
        found: list[_Subscribers[S]] = []
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

    def __iter__(self) -> Iterator[S]:
        """Iterates over all subscriptions."""
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
        """Returns whether somebody has subscribed to just this subject."""
        return subject in self._literals

    def is_same_for_all(self, head: bytes) -> bool:
        """Returns whether the same patterns match all subjects that are `head`, ending with a point, and a token."""
        levels = [self._patterns]
        for token in head.split(b".")[:-1]:
            tokens = (token,) if token == b"*" else (token, b"*")
            levels = [level.next[each] for level in levels for each in tokens if each in level.next]
            if len(levels) > _STEP:
                return False
        return all(len(level.next) == (b"*" in level.next) for level in levels)

    def common_head(self, subject: bytes) -> bytes:
        """Returns the shortest beginning of a subject that is enough to know who gets it, up to a point.

        The same subscriptions match all subjects that begin so. Empty: there is none, or it takes long to find out.
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
                if head[: head.find(b".")] not in self._firsts:
                    return head
                if len(self._literals) > _STEP:
                    break
                if not any(each.startswith(head) for each in self._literals):
                    return head
        return b""

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


class Remembered(Generic[V]):
    """What is known about subjects, until a subscription changes it.

    How many there are is bounded by whoever fills it.
    """

    __slots__ = ("_groups", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, V] = {}  #: by subject
        # First token -> second token (empty if there is none) -> subjects. Some may be forgotten already.
        self._groups: dict[bytes, dict[bytes, list[bytes]]] = {}

    def keep(self, subject: bytes, value: V) -> None:
        """Remembers a subject that was not known."""
        self.values[subject] = value
        first, second = _key(subject)
        self._groups.setdefault(first, {}).setdefault(second, []).append(subject)

    def changed(self, pattern: bytes, most: int) -> list[bytes] | None:
        """Forgets what a subscription may concern.

        Args:
            pattern: What was subscribed to, or is no more.
            most: How many subjects may be gone through.

        Returns:
            The subjects that were forgotten; None if it is best to `clear` it all: they would be more.
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
        elif len(groups) <= most:
            chosen = list(groups.values())
        else:
            return None
        if sum(map(len, chosen)) > most:
            return None
        if second in WILDCARDS:
            del self._groups[first]
        else:
            groups.pop(second, None)
        return [subject for group in chosen for subject in group if self.values.pop(subject, None) is not None]

    def clear(self) -> None:
        """Forgets all."""
        self.values.clear()
        self._groups.clear()


def finished(work: Generator[None, None, R]) -> R:
    """Goes through with work that could be interrupted, and returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: R = end.value
            return result


def _key(subject: bytes) -> tuple[bytes, bytes]:
    """Returns the first two tokens, the second one empty if there is none."""
    tokens = subject.split(b".", 2)
    return tokens[0], tokens[1] if len(tokens) > 1 else b""
