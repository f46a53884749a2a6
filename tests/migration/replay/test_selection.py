"""What is replayed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import RefusedError, UsageError
from stantools.migration.replay.selection import ReplayPlan, ReplaySelection, plan_replay
from stantools.migration.replay.state import ReplayPosition
from stantools.migration.replay.subjects import SubjectRules
from tests.migration.replay.stores import MS, START, messages, planned
from tests.migration.stores import opened, write_store


def rows(plan: ReplayPlan) -> list[tuple[str, int, bytes]]:
    """What is replayed, in its order: subject, sequence, payload."""
    return [
        (batch.subject.decode(), int(batch.sequence[row]), batch.data(row))
        for batch in plan.read()
        for row in range(len(batch))
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(
        tmp_path_factory.mktemp("selection") / "store",
        {
            "a": messages(10),
            "b.c": messages(5, first=101, start=START + MS // 2, step=2 * MS, text="b"),
            "empty": [],
        },
    )


def test_channels_keep_their_relative_order(store: Path) -> None:
    plan = planned(store)
    assert plan.messages == 15
    assert plan.span == 9 * MS
    times = {("a", n): (n - 1) * MS for n in range(1, 11)}
    times |= {("b.c", n): (n - 101) * 2 * MS + MS // 2 for n in range(101, 106)}
    assert [(name, number) for name, number, _ in rows(plan)] == sorted(times, key=lambda each: times[each])


@pytest.mark.parametrize(
    ("chosen", "a", "b"),
    [
        ({}, range(1, 11), range(101, 106)),
        ({"first": 3, "last": 5}, range(3, 6), []),
        ({"first": -2}, [9, 10], [104, 105]),
        ({"last": -9}, [1, 2], []),
        ({"first": 103}, [], [103, 104, 105]),
        ({"since": START + 8 * MS}, [9, 10], [105]),
        ({"until": START + MS}, [1], [101]),
        ({"since": START + MS, "until": START + 3 * MS, "first": 3}, [3], [102]),
        ({"since": -(2**70), "until": 2**70}, range(1, 11), range(101, 106)),
        ({"first": 2**70}, [], []),
        ({"last": 2**70}, range(1, 11), range(101, 106)),
    ],
)
def test_selections(store: Path, chosen: dict[str, Any], a: Any, b: Any) -> None:
    plan = planned(store, **chosen)
    found = rows(plan)
    assert [number for name, number, _ in found if name == "a"] == list(a)
    assert [number for name, number, _ in found if name == "b.c"] == list(b)
    assert plan.messages == len(found)


def test_what_is_left_behind_positions(store: Path) -> None:
    plan = planned(store)
    positions = {b"a": ReplayPosition(9, 0), b"b.c": ReplayPosition(105, 0), b"other": ReplayPosition(1, 1)}
    left = plan.after(positions)
    assert [(name, number) for name, number, _ in rows(left)] == [("a", 10)]
    assert left.messages == 1
    assert rows(left.after({b"a": ReplayPosition(10, 0)})) == []
    assert rows(plan.after({})) == rows(plan)


def test_rules_and_prefix(store: Path) -> None:
    plan = planned(store, "b.*=x.*", prefix="p")
    assert {name for name, _, _ in rows(plan)} == {"p.a", "p.x.c"}


def test_subjects_that_cannot_be(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", {"a b": messages(1)})
    with pytest.raises(UsageError, match=r"channel 'a b' cannot be replayed: the subject 'a b' has a blank") as caught:
        planned(store)
    assert "--subject" in caught.value.remedy
    assert rows(planned(store, "a b=a.b")) == [("a.b", 1, b"m1")]
    assert rows(planned(store, "a b=a/b")) == [("a/b", 1, b"m1")]
    with pytest.raises(UsageError, match="streaming server refuses"):
        planned(store, "a b=a/b", streaming=True)


def test_a_selection_means_the_same_when_the_store_has_grown(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", {"a": messages(10)})
    chosen = ReplaySelection(first=-3).fixed(opened(root).channels)
    again = ReplaySelection.from_json(chosen.as_json())
    assert again == chosen
    shutil.rmtree(root)
    write_store(root, {"a": messages(20), "new": messages(5)})
    source = opened(root)
    found = rows(plan_replay(source, SubjectRules(), again, streaming=False))
    assert [number for name, number, _ in found if name == "a"] == list(range(8, 21))
    assert [number for name, number, _ in found if name == "new"] == [3, 4, 5]
    assert ReplaySelection(first=3).fixed(source.channels) == ReplaySelection(first=3)


@pytest.mark.parametrize("values", [{"first": "1"}, {"ends": []}, {"ends": {"a": "1"}}, {"since": 1.5}])
def test_a_selection_from_a_strange_file(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="numbers"):
        ReplaySelection.from_json(values)


@pytest.mark.parametrize(
    ("position", "says"),
    [
        (ReplayPosition(3, START + 2 * MS), None),
        (ReplayPosition(3, START), "is different now"),
        (ReplayPosition(11, START), "its last one is now 10"),
    ],
)
def test_a_store_that_is_another_one(store: Path, position: ReplayPosition, says: str | None) -> None:
    source, plan = opened(store), planned(store)
    if says is None:
        plan.check_positions(source, {b"a": position})
    else:
        with pytest.raises(RefusedError, match=says):
            plan.check_positions(source, {b"a": position})
    with pytest.raises(RefusedError, match="no longer exists"):
        plan.check_positions(source, {b"z": position})


def test_a_message_that_is_gone_does_not_tell(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", {"a": messages(5, first=4)})
    planned(root).check_positions(opened(root), {b"a": ReplayPosition(3, 7)})


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=3),
    st.data(),
)
def test_any_positions(tmp_path_factory: pytest.TempPathFactory, times: list[list[int]], data: st.DataObject) -> None:
    channels = {
        f"c{number}": [(n, START + time, b"", b"x%d" % n) for n, time in enumerate(each, 1)]
        for number, each in enumerate(times)
    }
    plan = planned(write_store(tmp_path_factory.mktemp("any") / "store", channels))
    whole = rows(plan)
    cut = data.draw(st.integers(0, len(whole)))
    positions = {name.encode(): ReplayPosition(number, 0) for name, number, _ in whole[:cut]}
    assert rows(plan.after(positions)) == whole[cut:]
