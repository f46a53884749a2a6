"""Trees of subjects and of patterns, one level per token: matching subjects, and overlapping patterns.

A `SubjectTree` holds subjects, up to millions. All patterns of a search walk through it together, so that their
common parts are visited once, and a search costs the branches that some pattern reaches. A subject is kept at the
first token that no other subject shares, so most subjects take one entry of a dict, whatever number of tokens
follows.

A `PatternTree` holds patterns. Two of them are walked in parallel, which finds the pairs that overlap.

Searches can be interrupted: they yield results, and None in between where other work may run. Changes made meanwhile
may or may not be found; the caller checks whether a found subject still exists.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import product
from typing import Generic, Protocol, TypeVar

from stantools.nats.interest import finished

#: branches per step
STEP = 1024


class NamedSubject(Protocol):
    name: bytes


E = TypeVar("E", bound=NamedSubject)
V = TypeVar("V")
W = TypeVar("W")


class _SubjectNode(Generic[E]):
    """The continuations after some tokens: nodes, or subjects that are unique from here on."""

    __slots__ = ("end", "next")

    def __init__(self) -> None:
        self.next: dict[bytes, _SubjectNode[E] | E] = {}
        self.end: E | None = None


class _PatternNode(Generic[V]):
    """The continuations after some tokens of patterns."""

    __slots__ = ("ends", "next", "rests", "star")

    def __init__(self) -> None:
        self.next: dict[bytes, _PatternNode[V]] = {}
        self.star: _PatternNode[V] | None = None
        self.ends: dict[V, None] | None = None  #: values of patterns that end here
        self.rests: dict[V, None] | None = None  #: values of patterns that end with `>` here

    def __bool__(self) -> bool:
        return bool(self.next or self.star or self.ends or self.rests)


class PatternTree(Generic[V]):
    """Patterns, each with values; `root` is the node of their common start."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root: _PatternNode[V] = _PatternNode()

    def add(self, pattern: bytes, value: V) -> None:
        node = self.root
        tokens = pattern.split(b".")
        rest = tokens[-1] == b">"
        for token in tokens[:-1] if rest else tokens:
            if token == b"*":
                following = node.star
                if following is None:
                    following = node.star = _PatternNode()
            else:
                following = node.next.get(token)
                if following is None:
                    following = node.next[token] = _PatternNode()
            node = following
        values = node.rests if rest else node.ends
        if values is None:
            values = {}
            if rest:
                node.rests = values
            else:
                node.ends = values
        values[value] = None

    def merge(self, other: PatternTree[V]) -> None:
        """Takes over another tree, which must not be used afterwards; visits only branches that both have."""
        stack = [(self.root, other.root)]
        while stack:
            own, taken = stack.pop()
            for token, below in taken.next.items():
                if (known := own.next.setdefault(token, below)) is not below:
                    stack.append((known, below))
            if own.star is None:
                own.star = taken.star
            elif taken.star is not None:
                stack.append((own.star, taken.star))
            own.ends = {**own.ends, **taken.ends} if own.ends and taken.ends else own.ends or taken.ends
            own.rests = {**own.rests, **taken.rests} if own.rests and taken.rests else own.rests or taken.rests

    def remove(self, pattern: bytes, value: V) -> None:
        """Removes a value of a pattern, which must have it."""
        node, way = self.root, []
        tokens = pattern.split(b".")
        rest = tokens[-1] == b">"
        for token in tokens[:-1] if rest else tokens:
            way.append((node, token))
            following = node.star if token == b"*" else node.next[token]
            assert following is not None
            node = following
        values = node.rests if rest else node.ends
        assert values is not None
        del values[value]
        for above, token in reversed(way):
            if token == b"*":
                if above.star:
                    break
                above.star = None
            else:
                if above.next[token]:
                    break
                del above.next[token]

    def overlaps(self, others: PatternTree[W]) -> Iterator[tuple[V, W] | None]:
        stack = [(self.root, others.root)]
        steps = 0
        while stack:
            one, two = stack.pop()
            steps += 1
            if one.ends and two.ends:
                yield from product(one.ends, two.ends)
            if one.rests:
                for below in _below(two):
                    yield from ((a, below[0]) for a in one.rests) if below else (None,)
            if two.rests:
                for other in _below(one):
                    yield from ((other[0], b) for b in two.rests) if other else (None,)
            shared = one.next.keys() & two.next.keys()
            stack += ((one.next[token], two.next[token]) for token in shared)
            steps += min(len(one.next), len(two.next))
            if one.star is not None:
                stack += ((one.star, each) for each in two.next.values())
                if two.star is not None:
                    stack.append((one.star, two.star))
                steps += len(two.next)
            if two.star is not None:
                stack += ((each, two.star) for each in one.next.values())
                steps += len(one.next)
            if steps >= STEP:
                steps = 0
                yield None


def _below(node: _PatternNode[V]) -> Iterator[tuple[V] | None]:
    for value in node.rests or ():
        yield (value,)
    stack = [*node.next.values(), *([node.star] if node.star is not None else [])]
    steps = 0
    while stack:
        node = stack.pop()
        for value in (*(node.ends or ()), *(node.rests or ())):
            yield (value,)
        stack += node.next.values()
        if node.star is not None:
            stack.append(node.star)
        steps += 1
        if steps % STEP == 0:
            yield None


def grow(patterns: Iterable[tuple[bytes, V]]) -> Generator[None, None, PatternTree[V]]:
    """Makes a tree of patterns, each with a value, as interruptible work."""
    tree: PatternTree[V] = PatternTree()
    for row, (pattern, value) in enumerate(patterns, 1):
        tree.add(pattern, value)
        if row % STEP == 0:
            yield
    return tree


def tree_of(patterns: Iterable[bytes]) -> PatternTree[bytes]:
    """Makes a tree of patterns with themselves as values."""
    return finished(grow((pattern, pattern) for pattern in patterns))


def first_overlap(tree: PatternTree[bytes], limit: int) -> Generator[None, None, tuple[bytes, bytes] | None]:
    """Finds two different patterns of a tree that overlap, as interruptible work; None if none do.

    Raises OverflowError if about `limit` branches were not enough.
    """
    pauses = 0
    for pair in tree.overlaps(tree):
        if pair is None:
            yield
            pauses += 1
            if pauses * STEP >= limit:
                raise OverflowError
        elif pair[0] != pair[1]:
            return pair
    return None


def overlap_each_other(patterns: Iterable[bytes], limit: int) -> bool:
    """Returns whether two different patterns overlap, or `limit` branches are not enough to tell."""
    try:
        return finished(first_overlap(tree_of(patterns), limit)) is not None
    except OverflowError:
        return True


class SubjectTree(Generic[E]):
    """Subjects, each at most once. A `*` or `>` in one of them is a token as any other.

    `steps` counts the branches that searches have visited so far.
    """

    __slots__ = ("_root", "steps")

    def __init__(self) -> None:
        self._root: _SubjectNode[E] = _SubjectNode()
        self.steps = 0

    def add(self, entry: E) -> None:
        node = self._root
        depth = 0
        for token in entry.name.split(b"."):
            child = node.next.get(token)
            if child is None:
                node.next[token] = entry
                return
            depth += 1
            if isinstance(child, _SubjectNode):
                node = child
                continue
            if child is entry:
                return
            below: _SubjectNode[E] = _SubjectNode()
            node.next[token] = below
            tokens = child.name.split(b".", depth + 1)
            if len(tokens) == depth:
                below.end = child
            else:
                below.next[tokens[depth]] = child
            node = below
        node.end = entry

    def discard(self, entry: E) -> None:
        node = self._root
        way: list[tuple[_SubjectNode[E], bytes]] = []
        for token in entry.name.split(b"."):
            child = node.next.get(token)
            if child is None:
                return
            way.append((node, token))
            if not isinstance(child, _SubjectNode):
                if child is not entry:
                    return
                del node.next[token]
                way.pop()
                break
            node = child
        else:
            if node.end is not entry:
                return
            node.end = None
        for above, token in reversed(way):
            if node.next or node.end is not None:
                break
            del above.next[token]
            node = above

    def select(self, patterns: PatternTree[V]) -> Iterator[E | None]:
        """Iterates over the subjects that match a pattern, each once."""
        active: list[_PatternNode[V]]
        stack: list[tuple[_SubjectNode[E] | E, list[_PatternNode[V]], int]] = [(self._root, [patterns.root], 0)]
        steps = 0
        while stack:
            node, active, depth = stack.pop()
            steps += len(active)
            if steps >= STEP:
                self.steps += steps
                steps = 0
                yield None
            if not isinstance(node, _SubjectNode):
                if _fits(node.name, active, depth):
                    yield node
                continue
            if node.end is not None and any(each.ends for each in active):
                yield node.end
            if any(each.rests for each in active):
                yield from self._below(node)
                continue
            stars = [each.star for each in active if each.star is not None]
            named = [each.next for each in active if each.next]
            depth += 1
            if not stars and sum(map(len, named)) <= len(node.next):
                steps += sum(map(len, named))
                found: dict[bytes, list[_PatternNode[V]]] = {}
                for some in named:
                    for token, each in some.items():
                        if token in node.next:
                            found.setdefault(token, []).append(each)
                stack += ((node.next[token], reached, depth) for token, reached in found.items())
            elif not named:
                # copies, as the tree may change in between
                yield from self._each(node, stack, stars, depth)
            else:
                for token, child in zip(list(node.next), list(node.next.values()), strict=True):
                    reached = stars + [some[token] for some in named if token in some]
                    steps += len(active)
                    if reached:
                        if isinstance(child, _SubjectNode):
                            stack.append((child, reached, depth))
                        elif _fits(child.name, reached, depth):
                            yield child
                    if steps >= STEP:
                        self.steps += steps
                        steps = 0
                        yield None
        self.steps += steps

    def _each(
        self,
        node: _SubjectNode[E],
        stack: list[tuple[_SubjectNode[E] | E, list[_PatternNode[V]], int]],
        active: list[_PatternNode[V]],
        depth: int,
    ) -> Iterator[E | None]:
        """Continues with all children of a node; yields the matching subjects among them."""
        steps = 0
        for child in list(node.next.values()):
            steps += len(active)
            if isinstance(child, _SubjectNode):
                stack.append((child, active, depth))
            elif _fits(child.name, active, depth):
                yield child
            if steps >= STEP:
                self.steps += steps
                steps = 0
                yield None
        self.steps += steps

    def _below(self, node: _SubjectNode[E]) -> Iterator[E | None]:
        stack = [node]
        steps = 0
        while stack:
            for child in list(stack.pop().next.values()):
                steps += 1
                if not isinstance(child, _SubjectNode):
                    yield child
                else:
                    if child.end is not None:
                        yield child.end
                    stack.append(child)
                if steps >= STEP:
                    self.steps += steps
                    steps = 0
                    yield None
        self.steps += steps


def _fits(name: bytes, active: list[_PatternNode[V]], depth: int) -> bool:
    """Returns whether the tokens of a subject from some depth on match the rest of a pattern."""
    left = name.split(b".", depth)
    for token in left[depth].split(b".") if len(left) > depth else ():
        reached: list[_PatternNode[V]] = []
        for node in active:
            if node.rests:
                return True
            if node.star is not None:
                reached.append(node.star)
            following = node.next.get(token)
            if following is not None:
                reached.append(following)
        if not reached:
            return False
        active = reached
    return any(node.ends for node in active)
