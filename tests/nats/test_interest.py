"""Who subscribed to what, against a plain list."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.nats.interest import Interest, InterestCache
from stantools.nats.subjects import matches

SUBJECTS = [b"a", b"b", b"a.b", b"a.a", b"b.a", b"a.b.c", b"a.b.b", b"b.b.b", b"a.b.c.d", b"c"]
PATTERNS = [*SUBJECTS[:6], b"*", b">", b"a.*", b"*.b", b"a.>", b"*.*", b"*.>", b"a.b.*", b"a.*.c", b"a.b.>", b"b.*.b"]


def as_new(thing: Interest[Any] | InterestCache[Any]) -> bool:
    """Returns whether nothing is left of what was in it, but for what it has counted."""
    return len(pickle.dumps(thing)) < len(pickle.dumps(type(thing)())) + 12


def test_plain_subscriptions_and_groups() -> None:
    table: Interest[str] = Interest()
    assert table.match(b"foo.bar") == ((), ())
    for subject, who, queue in [
        (b"foo.bar", "one", b""),
        (b"foo.*", "two", b""),
        (b"foo.>", "three", b"q"),
        (b"foo.bar", "four", b"q"),
        (b">", "five", b"other"),
        (b"bar", "six", b""),
    ]:
        assert table.insert(subject, who, queue)
        assert not table.insert(subject, who, queue)
    found = table.match(b"foo.bar")
    assert set(found.plain) == {"one", "two"}
    assert {frozenset(members) for members in found.queues} == {frozenset({"three", "four"}), frozenset({"five"})}
    assert table.count == 6
    assert not table.remove(b"foo.bar", "four")
    assert not table.remove(b"foo.*", "nobody")
    assert not table.remove(b"x.*.y", "nobody")
    assert not table.remove(b"foo.>", "three", b"x")
    assert table.remove(b"foo.bar", "four", b"q")
    assert table.remove(b"foo.bar", "one")
    assert table.match(b"foo.bar").plain == ("two",)
    assert table.match(b"foo.bar").queues in ((("three",), ("five",)), (("five",), ("three",)))


def test_order_of_subscribing_is_kept() -> None:
    table: Interest[int] = Interest()
    for i in range(20):
        table.insert(b"foo", i)
    table.remove(b"foo", 3)
    table.insert(b"foo", 3)
    assert table.match(b"foo").plain == (*range(3), *range(4, 20), 3)


def remembered(*subjects: bytes) -> InterestCache[int]:
    known: InterestCache[int] = InterestCache()
    for i, subject in enumerate(subjects):
        known.keep(subject, i)
    return known


def test_changes_leave_alone_what_they_cannot_affect() -> None:
    known = remembered(b"a.b.c", b"a.c.d", b"b.b.c", b"a")
    for pattern in (b"a.b.d", b"z.>", b"a.z.*"):
        assert known.changed(pattern, 10) == []
    assert known.changed(b"a.b.*", 10) == [b"a.b.c"]
    assert known.changed(b"a", 10) == [b"a"]
    assert set(known.values) == {b"a.c.d", b"b.b.c"}
    assert known.changed(b"a.>", 10) == [b"a.c.d"]
    assert known.changed(b"*.q", 10) is None
    known.clear()
    assert as_new(known)


def test_a_subject_that_was_forgotten_and_came_again_is_forgotten_once() -> None:
    known = remembered(b"a.b.c")
    assert known.changed(b"a.b.c", 10) == [b"a.b.c"]
    known.keep(b"a.b.c", 2)
    assert known.changed(b"a.b.*", 10) == [b"a.b.c"]


@pytest.mark.parametrize("pattern", [b"f.*.q", b"f.>", b"f.1.*"])
def test_too_many_are_not_gone_through(pattern: bytes) -> None:
    known = remembered(*(b"f.%d.x" % i for i in range(11)), *(b"f.1.%d" % i for i in range(11)))
    assert known.changed(pattern, 10) is None
    assert len(known.values) == 22


def test_a_search_can_be_interrupted() -> None:
    table: Interest[int] = Interest()
    for i in range(4096):
        table.insert(b".".join(b"*" if i >> bit & 1 else b"a" for bit in range(12)) + b".end", i)
    search = table.search(b"a." * 12 + b"end")
    steps = 0
    with pytest.raises(StopIteration) as end:
        while True:
            next(search)
            steps += 1
    assert steps >= 7
    assert sorted(end.value.value.plain) == list(range(4096))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "insert", "remove", "match"]),
            st.sampled_from(PATTERNS),
            st.integers(0, 3),
            st.sampled_from([b"", b"", b"q", b"r"]),
            st.sampled_from(SUBJECTS),
        ),
        max_size=60,
    )
)
def test_like_a_plain_list(steps: list[tuple[str, bytes, int, bytes, bytes]]) -> None:
    table: Interest[int] = Interest()
    model: list[tuple[bytes, int, bytes]] = []

    def check(subject: bytes) -> None:
        found = table.match(subject)
        hits = [(who, queue) for pattern, who, queue in model if matches(pattern, subject)]
        assert sorted(found.plain) == sorted(who for who, queue in hits if not queue)
        groups: dict[bytes, list[Any]] = {}
        for who, queue in hits:
            if queue:
                groups.setdefault(queue, []).append(who)
        assert sorted(sorted(members) for members in found.queues) == sorted(sorted(some) for some in groups.values())

    for step, pattern, who, queue, subject in steps:
        entry = (pattern, who, queue)
        if step == "insert":
            assert table.insert(pattern, who, queue) is (entry not in model)
            if entry not in model:
                model.append(entry)
        elif step == "remove":
            assert table.remove(pattern, who, queue) is (entry in model)
            if entry in model:
                model.remove(entry)
        check(subject)
        assert table.count == len(model)
    for subject in SUBJECTS:
        check(subject)
    for pattern, who, queue in model:
        assert table.remove(pattern, who, queue)
    assert as_new(table)
    assert table.count == 0


def test_many_subscriptions() -> None:
    table: Interest[int] = Interest()
    names = [b"_INBOX.%d.x" % i for i in range(20_000)] + [b"svc.%d.*" % i for i in range(5000)]
    for i, name in enumerate(names):
        table.insert(name, i)
    assert table.match(b"_INBOX.777.x").plain == (777,)
    assert table.match(b"svc.4999.q").plain == (24_999,)
    for i, name in enumerate(names):
        assert table.remove(name, i)
    assert table.count == 0
    assert as_new(table)


def test_deep_subjects() -> None:
    table: Interest[int] = Interest()
    deep = b".".join([b"t"] * 2000)
    table.insert(deep.replace(b"t", b"*", 1), 1)
    table.insert(deep[:-1] + b">", 2)
    assert sorted(table.match(deep).plain) == [1, 2]
    assert table.remove(deep.replace(b"t", b"*", 1), 1)
    assert table.remove(deep[:-1] + b">", 2)
    assert as_new(table)
