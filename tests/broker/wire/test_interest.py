"""Who subscribed to what, against a plain list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire import interest
from broker.wire.interest import Interest
from broker.wire.subjects import matches

SUBJECTS = [b"a", b"b", b"a.b", b"a.a", b"b.a", b"a.b.c", b"a.b.b", b"b.b.b", b"a.b.c.d", b"c"]
PATTERNS = [*SUBJECTS[:6], b"*", b">", b"a.*", b"*.b", b"a.>", b"*.*", b"*.>", b"a.b.*", b"a.*.c", b"a.b.>", b"b.*.b"]


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
    assert found.fanout == 4
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


def test_the_generation_changes_with_what_changes_only() -> None:
    table: Interest[str] = Interest()
    table.insert(b"a", "x")
    before = table.generation
    table.insert(b"a", "x")
    table.remove(b"a", "y")
    table.match(b"a")
    assert table.generation == before
    assert table.changes(before) == []
    table.remove(b"a", "x")
    table.insert(b"b.*", "x")
    assert table.generation != before
    assert table.changes(before) == [b"a", b"b.*"]
    for i in range(interest.CHANGES):
        table.insert(b"c", str(i))
    assert table.changes(before) is None
    assert len(table.changes(before + 2) or []) == interest.CHANGES


def test_changes_leave_alone_what_they_cannot_affect() -> None:
    table: Interest[str] = Interest()
    for subject in (b"a.b.c", b"a.c.d", b"b.b.c", b"a"):
        table.insert(subject, "x")
        table.match(subject)

    def kept() -> set[bytes]:
        return set(table._cache)

    table.insert(b"a.b.d", "y")
    table.insert(b"z.>", "y")
    table.insert(b"a.z.*", "y")
    assert kept() == {b"a.b.c", b"a.c.d", b"b.b.c", b"a"}
    table.insert(b"a.b.*", "y")
    assert kept() == {b"a.c.d", b"b.b.c", b"a"}
    table.remove(b"a", "x")
    assert kept() == {b"a.c.d", b"b.b.c"}
    table.insert(b"a.>", "y")
    assert kept() == {b"b.b.c"}
    table.insert(b"*.q", "y")
    assert kept() == set()
    assert not table._cached_by_tokens


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "CACHE_SIZE", 16)
    table: Interest[str] = Interest()
    table.insert(b"n.>", "x")
    for i in range(100):
        assert table.match(b"n.%d" % i).plain == ("x",)
        assert len(table._cache) <= 16
    assert sum(len(some) for seconds in table._cached_by_tokens.values() for some in seconds.values()) <= 16


def test_statistics() -> None:
    table: Interest[int] = Interest()
    assert table.statistics().cache_hit_rate == 0.0
    for i in range(4):
        table.insert(b"foo", i)
    table.insert(b"bar", 1)
    table.remove(b"bar", 1)
    for subject in (b"foo", b"foo", b"foo", b"bar"):
        table.match(subject)
    found = table.statistics()
    assert (found.num_subscriptions, found.num_cache, found.num_inserts, found.num_removes) == (4, 2, 5, 1)
    assert (found.num_matches, found.cache_hit_rate, found.max_fanout, found.avg_fanout) == (4, 0.5, 4, 2.0)


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
    assert not table._literals
    assert not table._patterns
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
    assert not table._patterns


def test_deep_subjects() -> None:
    table: Interest[int] = Interest()
    deep = b".".join([b"t"] * 2000)
    table.insert(deep.replace(b"t", b"*", 1), 1)
    table.insert(deep[:-1] + b">", 2)
    assert sorted(table.match(deep).plain) == [1, 2]
    assert table.remove(deep.replace(b"t", b"*", 1), 1)
    assert table.remove(deep[:-1] + b">", 2)
    assert not table._patterns
