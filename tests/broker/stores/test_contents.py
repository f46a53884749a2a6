"""The subjects of a stream and its filters, whatever happens, also in the middle of a search."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any
from unittest import mock

import pytest

from broker.stores.streams import contents as module
from broker.stores.streams import subject_filter
from broker.stores.streams.contents import Contents
from broker.stores.streams.memory import MemoryStream
from broker.stores.streams.subject_filter import SubjectFilter
from stantools.nats import subjecttree
from stantools.nats.interest import finished
from stantools.nats.subjects import matches
from tests.conftest import others_slow

SUBJECTS = [b"s.%d.%d" % (number % 5, number) for number in range(90)] + [b"s.a", b"s", b"t.u.v.w"]
PATTERNS = (b"s.*.7", b"s.3.*", b"s.>", b"*.*.*", b"s.*", b"t.u.v.w", b"none", b"*.u.>", b"s.1.1")


class Model:
    """A stream as a dict."""

    def __init__(self) -> None:
        self.store = MemoryStream()
        self.messages: dict[int, bytes] = {}

    def act(self, chance: random.Random) -> None:
        """Does something."""
        last = self.store.contents.last
        match chance.randrange(12):
            case 0 if self.messages:
                self.store.remove(gone := chance.choice(list(self.messages)))
                del self.messages[gone]
            case 1:
                self.store.purge_below(end := chance.randint(0, last + 1))
                self.messages = {sequence: name for sequence, name in self.messages.items() if sequence >= end}
            case 2 if chance.random() < 0.2:
                self.store.purge_all(last + 1)
                self.messages = {}
            case _:
                name = chance.choice(SUBJECTS)
                self.messages[self.store.append(last, name, b"", b"x")] = name

    def check(self, filters: Sequence[tuple[tuple[bytes, ...], SubjectFilter | None]]) -> None:
        """Compares everything."""
        contents = self.store.contents
        for patterns, wanted in filters:
            own = [
                sequence for sequence, name in self.messages.items() if any(matches(each, name) for each in patterns)
            ]
            for start in (0, contents.first, contents.last // 2, contents.last + 1):
                later = [each for each in own if each >= start]
                found = contents.matching(wanted, start, 3)
                assert found == later[: len(found)] and bool(found) == bool(later), (patterns, start)
                assert contents.count(wanted, start) == len(later), (patterns, start)
            assert contents.last_match(wanted) == max(own, default=0)
            names = {self.messages[sequence] for sequence in own}
            assert {each.name for each in contents.selected(patterns)} == names
            if wanted is not None:
                assert {name for name, each in contents.subjects.items() if wanted.has(each.number)} == names
            for pattern in patterns:
                last = [sequence for sequence, name in self.messages.items() if matches(pattern, name)]
                assert contents.last_of(pattern) == max(last, default=0)


@pytest.mark.parametrize("seed", range(6))
def test_filters_know_the_subjects_whatever_happens(seed: int) -> None:
    """Filters are made and released at any time; few subjects are kept in another way than many."""
    chance = random.Random(seed)
    few, late = chance.choice((0, 3, 64)), chance.choice((4, 4096))
    with mock.patch.object(subject_filter, "_FEW_SUBJECTS", few), mock.patch.object(module, "_MOST_UNINDEXED", late):
        model = Model()
        filters: list[tuple[tuple[bytes, ...], SubjectFilter | None]] = []
        for _ in range(300):
            model.act(chance)
            if chance.random() < 0.1:
                patterns = tuple(chance.sample(PATTERNS, chance.randint(1, 3)))
                filters.append((patterns, model.store.contents.filter(patterns)))
            if filters and chance.random() < 0.05:
                model.store.contents.release(filters.pop(chance.randrange(len(filters)))[1])
            if chance.random() < 0.1:
                model.check(filters)
        model.check(filters)


@pytest.mark.parametrize("seed", others_slow(range(6), (0, 2, 5)))  # with other sizes
def test_a_filter_that_is_made_in_the_middle_of_changes_knows_all_subjects(seed: int) -> None:
    chance = random.Random(seed)
    few, late = chance.choice((0, 3, 64)), chance.choice((4, 4096))
    with (
        mock.patch.object(subject_filter, "_FEW_SUBJECTS", few),
        mock.patch.object(module, "_MOST_UNINDEXED", late),
        mock.patch.object(module, "STEP", 2),
        mock.patch.object(subjecttree, "STEP", 2),
    ):
        model = Model()
        for _ in range(60):
            model.act(chance)
        made: list[tuple[tuple[bytes, ...], Generator[None, None, SubjectFilter | None]]] = []
        done: list[tuple[tuple[bytes, ...], SubjectFilter | None]] = []
        interrupted = 0
        for _ in range(400):
            model.act(chance)
            if len(made) < 3:
                patterns = tuple(chance.sample(PATTERNS, chance.randint(1, 2)))
                made.append((patterns, model.store.contents.make_filter(patterns)))
            patterns, work = chance.choice(made)
            try:
                next(work)
                interrupted += 1
                if chance.random() < 0.05:  # the client has gone
                    work.close()
                    made.remove((patterns, work))
            except StopIteration as end:
                made.remove((patterns, work))
                done.append((patterns, end.value))
                model.check(done)
        assert interrupted > 50 and done
        for _, work in made:
            work.close()
        for _, wanted in done:
            model.store.contents.release(wanted)
        model.store.contents.release(finished(model.store.contents.make_filter((b"s.*",))))
        # Only what was asked for with `last_of` is kept.
        assert model.store.contents._filtered.count == len(model.store.contents._asked)


def test_streams_that_nobody_asks_for_patterns_have_no_tree() -> None:
    store = MemoryStream()
    for number in range(100):
        store.append(0, b"s.%d" % number, b"", b"")
    literal = store.contents.filter((b"s.7",))
    assert store.contents.matching(literal, 0, 5) == [8] and store.contents.last_of(b"s.9") == 10
    assert store.contents._tree is None
    assert store.contents.last_of(b"*.9") == 10
    assert store.contents._tree is not None


def test_many_filters_cost_a_new_subject_only_those_that_match(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStream()
    filters = [store.contents.filter((b"s.%d" % number,)) for number in range(500)]
    learned: list[Any] = []
    monkeypatch.setattr(SubjectFilter, "learn", lambda self, subject: learned.append(self))
    store.append(0, b"s.77", b"", b"")
    assert learned == [filters[77]]


def test_a_gap_of_sequences_is_listed_as_far_as_is_wanted() -> None:
    store = MemoryStream()
    for _ in range(20):
        store.append(0, b"s", b"", b"")
    for sequence in (3, 4, 5, 9, 18):
        store.remove(sequence)
    store.skip(24)
    gone = [3, 4, 5, 9, 18, 21, 22, 23]
    for most in range(10):
        assert [each for some in store.contents.deleted(most) for each in some] == gone[:most]
    assert isinstance(store.contents, Contents)
