"""Trees of subjects and patterns find what a comparison of each with each finds, and look at little else."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from stantools.nats.interest import finished
from stantools.nats.subjects import overlap, valid_pattern
from stantools.nats.subjecttree import PatternTree, SubjectTree, first_overlap, grow, tree_of
from tests.conftest import others_slow

TOKENS = (b"a", b"b", b"cc", b"*")


@dataclass(eq=False)
class Named:
    """A subject in a tree."""

    name: bytes


def fits(pattern: bytes, subject: bytes) -> bool:
    """The rule, token by token: a `*` in a subject is a token as any other."""
    wanted, tokens = pattern.split(b"."), subject.split(b".")
    if wanted[-1] == b">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(one in (b"*", other) for one, other in zip(wanted, tokens, strict=True))


def a_pattern(chance: random.Random) -> bytes:
    tokens = [chance.choice(TOKENS) for _ in range(chance.randint(1, 5))]
    if chance.random() < 0.3:
        tokens[-1] = b">"
    return b".".join(tokens)


def a_subject(chance: random.Random) -> bytes:
    return b".".join(chance.choice(TOKENS) for _ in range(chance.randint(1, 5)))


@pytest.mark.parametrize("seed", others_slow(range(4), range(2)))
def test_what_is_found_is_what_a_comparison_of_all_finds(seed: int) -> None:
    chance = random.Random(seed)
    tree: SubjectTree[Named] = SubjectTree()
    there: dict[bytes, Named] = {}
    for _ in range(1500):
        name = chance.choice(list(there)) if there and chance.random() < 0.4 else a_subject(chance)
        if name in there:
            tree.discard(there.pop(name))
            tree.discard(Named(name))  # is not there: nothing happens
        else:
            there[name] = Named(name)
            tree.add(there[name])
        patterns = [a_pattern(chance) for _ in range(chance.randint(1, 4))]
        found = [each.name for each in tree.select(tree_of(patterns)) if each is not None]
        assert sorted(found) == sorted(name for name in there if any(fits(each, name) for each in patterns))


@pytest.mark.parametrize("seed", others_slow(range(4), range(2)))
def test_overlaps_are_those_of_a_comparison_of_each_with_each(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(1000):
        mine, theirs = ([a_pattern(chance) for _ in range(chance.randint(0, 6))] for _ in range(2))
        found = {pair for pair in tree_of(mine).overlaps(tree_of(theirs)) if pair is not None}
        assert found == {(one, other) for one in mine for other in theirs if overlap(one, other)}
        apart = not any(overlap(one, other) for one in set(mine) for other in set(mine) if one != other)
        pair = finished(first_overlap(tree_of(mine), 1_000_000))
        assert (pair is None) == apart
        assert pair is None or (overlap(*pair) and pair[0] != pair[1])


def test_a_tree_takes_over_another_one() -> None:
    """As if its patterns had been added, also those with values of both; all can be taken out again."""
    chance = random.Random(2)
    for _ in range(500):
        values = dict[int, list[bytes]]()
        tree: PatternTree[int] = PatternTree()
        for number in range(4):
            values[number] = list({a_pattern(chance) for _ in range(chance.randint(0, 6))})
            tree.merge(finished(grow((pattern, number) for pattern in values[number])))
        found = {pair[::-1] for pair in tree.overlaps(tree_of([b">"])) if pair is not None}
        assert found == {(b">", number) for number, patterns in values.items() if patterns}
        for pattern in {each for patterns in values.values() for each in patterns}:
            met = {pair[0] for pair in tree.overlaps(tree_of([pattern])) if pair is not None}
            assert met == {each for each, patterns in values.items() if any(overlap(pattern, own) for own in patterns)}
        for number, patterns in values.items():
            for pattern in patterns:
                tree.remove(pattern, number)
        assert not tree.root


def test_a_tree_that_is_taken_over_is_not_gone_through() -> None:
    tree = finished(grow((b"a.%d.x" % number, 1) for number in range(50)))
    other = finished(grow((b"b.%d.x" % number, 2) for number in range(5000)))
    branch = other.root.next[b"b"]
    tree.merge(other)
    assert tree.root.next[b"b"] is branch


def test_patterns_that_were_taken_out_are_not_found() -> None:
    chance = random.Random(1)
    for _ in range(500):
        patterns = list(dict.fromkeys(a_pattern(chance) for _ in range(8)))
        tree, gone = tree_of(patterns), patterns[::2]
        for pattern in gone:
            tree.remove(pattern, pattern)
        found = {pair[1] for pair in tree_of([b">"]).overlaps(tree) if pair is not None}
        assert found == set(patterns) - set(gone)
        for pattern in patterns[1::2]:
            tree.remove(pattern, pattern)
        assert not tree.root  # nothing is left of them


def test_a_pattern_costs_the_branches_that_it_reaches() -> None:
    tree: SubjectTree[Named] = SubjectTree()
    for number in range(50_000):
        tree.add(Named(b"kv.%d.%d" % (number % 7, number)))

    def cost(*patterns: bytes) -> tuple[int, int]:
        before = tree.steps
        return sum(each is not None for each in tree.select(tree_of(patterns))), tree.steps - before

    found, steps = cost(b"kv.*.777")
    assert (found, steps < 100) == (1, True)
    found, steps = cost(b"other.>")
    assert (found, steps < 10) == (0, True)
    found, steps = cost(b"kv.3.>")
    assert found <= steps < 2 * found
    # Patterns that have a beginning in common walk there once: not 1,000 times through 50,000 subjects.
    found, steps = cost(*(b"kv.*.%d" % number for number in range(1000)))
    assert (found, steps < 20_000) == (1000, True)


def test_filters_are_not_compared_each_with_each() -> None:
    patterns = [b"m.%d.*.a" % number for number in range(5000)]
    assert finished(first_overlap(tree_of(patterns), 30_000)) is None
    assert finished(first_overlap(tree_of([*patterns, b"m.77.b.>"]), 30_000)) is not None


def test_patterns_that_overlap_nearly_everywhere_are_given_up() -> None:
    one = [b"*.c%d.x" % number for number in range(600)]
    other = [b"d%d.*.y" % number for number in range(600)]
    with pytest.raises(OverflowError):
        finished(first_overlap(tree_of([*one, *other]), 100_000))


def test_others_have_a_turn_all_the_time() -> None:
    tree: SubjectTree[Named] = SubjectTree()
    for number in range(20_000):
        tree.add(Named(b"kv.%d.x" % number))
    for patterns in ((b"kv.*.y",), (b">",), (b"*.*.x", b"*.7.>")):
        between = longest = 0
        for each in tree.select(tree_of(patterns)):
            between = between + 1 if each is not None else 0
            longest = max(longest, between)
        assert longest < 3000, patterns
    assert all(map(valid_pattern, (b"kv.*.y", b"*.7.>")))
