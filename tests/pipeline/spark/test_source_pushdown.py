"""Conditions that Spark pushes down: rows kept as SQL keeps them, and plans that get smaller but lose nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.directory import subject_matches
from stantools.store.ranges import Bounds

pa = pytest.importorskip("pyarrow")
sql = pytest.importorskip("pyspark.sql.datasource")

from stantools.pipeline.spark.pushdown import PushedFilters, understands  # noqa: E402

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = ("store", "channel", "seq", "timestamp", "timestamp_ns", "slice", "status", "data")
NAMES = ["a", "a.b", "a.", "b", "", "a\\xff", "a.*"]


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def rows() -> st.SearchStrategy[dict[str, Any]]:
    nanoseconds = st.none() | st.integers(-3000, 9000)
    return st.builds(
        lambda ns, **rest: {**rest, "timestamp_ns": ns, "timestamp": None if ns is None else moment(ns // 1000)},
        ns=nanoseconds,
        store=st.sampled_from(["/s", "/t"]),
        channel=st.none() | st.sampled_from(NAMES),
        seq=st.none() | st.integers(0, 8),
        slice=st.none() | st.sampled_from(["a/msgs.1.dat", "a/msgs.2.dat"]),
        status=st.sampled_from(["ok", "torn"]),
        data=st.none() | st.binary(max_size=2),
    )


def _simple() -> st.SearchStrategy[Any]:
    numbers = st.tuples(st.sampled_from(["seq", "timestamp_ns"]), st.integers(-2, 9))
    times = st.tuples(st.just("timestamp"), st.integers(-4, 9).map(moment))
    texts = st.tuples(st.sampled_from(["store", "channel", "slice", "status"]), st.sampled_from([*NAMES, "ok", "/s"]))
    some = numbers | times | texts
    compare = st.sampled_from(
        [sql.EqualTo, sql.GreaterThan, sql.GreaterThanOrEqual, sql.LessThan, sql.LessThanOrEqual, sql.EqualNullSafe]
    )
    return st.one_of(
        st.builds(lambda kind, pair: kind((pair[0],), pair[1]), compare, some),
        st.builds(lambda kind, pair: kind((pair[0],), pair[1]), compare, some),
        st.builds(lambda values: sql.In(("seq",), tuple(values)), st.lists(st.integers(0, 8), max_size=3)),
        st.builds(lambda values: sql.In(("channel",), tuple(values)), st.lists(st.sampled_from(NAMES), max_size=3)),
        st.builds(
            lambda kind, name: kind((name,)), st.sampled_from([sql.IsNull, sql.IsNotNull]), st.sampled_from(COLUMNS)
        ),
        st.builds(
            lambda kind, text: kind(("channel",), text),
            st.sampled_from([sql.StringStartsWith, sql.StringEndsWith, sql.StringContains]),
            st.sampled_from(["a", "a.", ".", "b", "*"]),
        ),
    )


def filters() -> st.SearchStrategy[Any]:
    return _simple() | _simple().map(sql.Not)


def truth(condition: Any, row: dict[str, Any]) -> bool | None:
    """What SQL says about a row, written as simply as possible."""
    if isinstance(condition, sql.Not):
        inner = truth(condition.child, row)
        return None if inner is None else not inner
    have = row[condition.attribute[0]]
    if isinstance(condition, (sql.IsNull, sql.IsNotNull)):
        return (have is None) == isinstance(condition, sql.IsNull)
    if isinstance(condition, sql.EqualNullSafe):
        return bool(have == condition.value)
    if have is None:
        return None
    by_kind = {
        sql.EqualTo: lambda: have == condition.value,
        sql.GreaterThan: lambda: have > condition.value,
        sql.GreaterThanOrEqual: lambda: have >= condition.value,
        sql.LessThan: lambda: have < condition.value,
        sql.LessThanOrEqual: lambda: have <= condition.value,
        sql.In: lambda: have in condition.value,
        sql.StringStartsWith: lambda: have.startswith(condition.value),
        sql.StringEndsWith: lambda: have.endswith(condition.value),
        sql.StringContains: lambda: condition.value in have,
    }
    return bool(by_kind[type(condition)]())


@settings(max_examples=400, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=6), st.lists(filters(), max_size=4), st.lists(st.sampled_from(NAMES)))
def test_rows_are_kept_as_sql_keeps_them_and_nothing_of_them_is_planned_away(
    table: list[dict[str, Any]], conditions: list[Any], patterns: list[str]
) -> None:
    taken = tuple(each for each in conditions if understands(TableName.MESSAGES, COLUMNS, each))
    assert len(taken) == len(conditions)
    pushed = PushedFilters(TableName.MESSAGES, taken)
    from stantools.pipeline.tables.schema import schema_of

    schema = schema_of(TableName.MESSAGES, COLUMNS)
    batch = pa.RecordBatch.from_pylist(table, schema=schema)
    patterns = [name for name in patterns if name and not name.endswith(".") and "\\" not in name]
    wanted = [row for row in table if all(truth(each, row) is True for each in conditions)]
    assert pushed.select(batch).to_pylist() == wanted

    narrowed = pushed.narrow(TableOptions(("/s", "/t"), channels=tuple(patterns), bounds=Bounds(first=1)))
    asked = [
        row
        for row in wanted
        if row["channel"] is not None and "\\" not in row["channel"]
        if row["seq"] is not None and row["seq"] >= 1 and row["timestamp_ns"] is not None
        if not patterns or any(subject_matches(each, row["channel"]) for each in patterns)
    ]
    if narrowed is None:
        assert asked == []
        return
    for row in asked:
        bounds, seq, ns = narrowed.bounds, row["seq"], row["timestamp_ns"]
        assert not narrowed.channels or any(subject_matches(each, row["channel"]) for each in narrowed.channels)
        assert bounds.first is not None and bounds.first <= seq
        assert bounds.last is None or seq <= bounds.last
        assert bounds.since is None or ns >= bounds.since
        assert bounds.until is None or ns < bounds.until
        assert not narrowed.stores or row["store"] in narrowed.stores
        assert not narrowed.slices or row["slice"] in narrowed.slices


def test_conditions_on_what_is_in_the_index_make_bounds() -> None:
    def narrow(*conditions: Any, table: TableName = TableName.MESSAGES, **given: Any) -> TableOptions | None:
        return PushedFilters(table, conditions).narrow(TableOptions(("/s",), table=table, **given))

    seq, time, ns = ("seq",), ("timestamp",), ("timestamp_ns",)
    plain = TableOptions(("/s",))
    assert narrow() == plain
    inside = narrow(sql.IsNotNull(seq), sql.GreaterThan(seq, 5), sql.LessThanOrEqual(seq, 9), bounds=Bounds(last=8))
    assert inside is not None and inside.bounds == Bounds(6, 8)
    listed = narrow(sql.In(seq, (7, 3, 12)))
    assert listed is not None and listed.bounds == Bounds(3, 12)
    assert narrow(sql.Not(sql.EqualTo(seq, 3))) == plain
    assert narrow(sql.GreaterThan(seq, -4)) == plain
    assert narrow(sql.LessThan(seq, 0)) is None
    assert narrow(sql.EqualTo(seq, 3), bounds=Bounds(first=4)) is None
    assert narrow(sql.EqualTo(seq, 3), table=TableName.FINDINGS) == TableOptions(("/s",), table=TableName.FINDINGS)
    exact = narrow(sql.GreaterThanOrEqual(ns, 50), sql.LessThan(ns, 60))
    assert exact is not None and exact.bounds == Bounds(since=50, until=60)
    # one microsecond more on each side than is asked for
    loose = narrow(sql.GreaterThanOrEqual(time, moment(10)), sql.LessThanOrEqual(time, moment(20)))
    assert loose is not None and loose.bounds == Bounds(since=9000, until=22000)
    one = narrow(sql.EqualTo(time, moment(10)))
    assert one is not None and one.bounds == Bounds(since=9000, until=12000)


def test_conditions_on_names_make_patterns_and_leave_out_files() -> None:
    def channels(*conditions: Any, given: tuple[str, ...] = ()) -> tuple[str, ...] | None:
        narrowed = PushedFilters(TableName.MESSAGES, conditions).narrow(TableOptions(("/s",), channels=given))
        return None if narrowed is None else narrowed.channels

    channel = ("channel",)
    assert channels(sql.EqualTo(channel, "a.b")) == ("a.b",)
    assert channels(sql.In(channel, ("a.b", "c")), given=("a.*",)) == ("a.b",)
    assert channels(sql.EqualTo(channel, "c"), given=("a.*",)) is None
    assert channels(sql.In(channel, ("a", "b")), sql.EqualTo(channel, "b")) == ("b",)
    assert channels(sql.EqualTo(channel, "a.*"), given=("a.>",)) == ("a.>",)
    assert channels(sql.EqualTo(channel, "a\\xff")) == ()
    assert channels(sql.StringStartsWith(channel, "a."), sql.StringStartsWith(channel, "a.b.")) == ("a.b.>",)
    assert channels(sql.StringStartsWith(channel, "a.b")) == ()

    def names(
        *conditions: Any, table: TableName = TableName.MESSAGES, **given: Any
    ) -> tuple[tuple[str, ...], ...] | None:
        narrowed = PushedFilters(table, conditions).narrow(TableOptions(("/s",), table=table, **given))
        return None if narrowed is None else (narrowed.stores, narrowed.slices)

    store, slice_ = ("store",), ("slice",)
    assert names(sql.EqualTo(store, "/t")) == (("/t",), ())
    assert names(sql.In(store, ("/t", "/s")), sql.EqualTo(slice_, "a/msgs.1.dat")) == (("/t", "/s"), ("a/msgs.1.dat",))
    assert names(sql.EqualTo(store, "/t"), stores=("/s",)) is None
    assert names(sql.EqualTo(store, "/t"), sql.EqualTo(store, "/s")) is None
    assert names(sql.EqualTo(slice_, "a"), table=TableName.SLICES) == ((), ("a",))
    assert names(sql.EqualTo(store, "/t"), table=TableName.FINDINGS) == (("/t",), ())


def test_what_is_not_known_exactly_stays_with_spark() -> None:
    def mine(condition: Any, table: TableName = TableName.MESSAGES, columns: tuple[str, ...] = COLUMNS) -> bool:
        return understands(table, columns, condition)

    assert mine(sql.EqualTo(("seq",), 3)) and mine(sql.Not(sql.EqualTo(("seq",), 3)))
    assert not mine(sql.EqualTo(("seq",), 3), columns=("channel",))
    assert not mine(sql.EqualTo(("seq",), 3.5)) and not mine(sql.EqualTo(("seq",), True))
    assert not mine(sql.EqualTo(("seq",), 1 << 63))
    assert not mine(sql.EqualTo(("seq",), None)) and not mine(sql.In(("seq",), (1, None)))
    assert not mine(sql.EqualTo(("data",), b"x")) and not mine(sql.EqualTo(("timestamp",), "2024"))
    assert not mine(sql.EqualTo(("timestamp",), datetime(2024, 1, 1)))
    assert not mine(sql.StringContains(("data",), "x"))
    assert not mine(sql.Not(sql.Not(sql.EqualTo(("seq",), 3))))
    assert not mine(sql.EqualTo(("seq", "x"), 3))
    assert mine(sql.EqualTo(("is_durable",), True), TableName.SUBSCRIPTIONS, ("is_durable",))
    assert not mine(sql.EqualTo(("pending",), [1]), TableName.SUBSCRIPTIONS, ("pending",))
    assert mine(sql.IsNull(("pending",)), TableName.SUBSCRIPTIONS, ("pending",))
