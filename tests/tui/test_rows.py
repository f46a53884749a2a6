"""Tables without a screen: columns make cells of things, which are filtered and sorted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tui.rows import ListRows, TableColumn, TableRows, count_column

COLUMNS = (
    TableColumn[str]("word", 8, str, str, grows=True),
    count_column("long", 5, len, "warn", key="length"),
    TableColumn[str]("first", 5, lambda word: word[:1], wide=True),
    TableColumn[str]("last", 5, lambda word: word[-1:], lambda word: word[-1:], wide=False),
)


def words() -> TableRows[str]:
    rows = TableRows(COLUMNS, str, str, "word")
    rows.fill(["pear", "Apple", "fig", ""])
    return rows


def test_cells() -> None:
    rows = words()
    assert rows.rows(1, 3) == [["Apple", ("5", "warn"), "e"], ["fig", ("3", "warn"), "g"]]
    assert rows.rows(0, 1) == [["", "", ""]]
    rows.wide = True
    rows.update()
    assert [column.title for column in rows.columns] == ["word▾", "long", "first"]
    assert rows.rows(3, 9) == [["pear", ("4", "warn"), "p"]]
    rows.grey = True
    assert rows.rows(3, 4) == [[("pear", "dim"), ("4", "dim"), ("p", "dim")]]


def test_sorted_by_the_columns_that_are_seen() -> None:
    rows = words()
    orders = []
    for _ in range(4):
        rows.sort_by_next()
        rows.update()
        orders.append((rows.order, rows.shown[0]))
    assert orders == [("length", "Apple"), ("last", ""), ("word", ""), ("length", "Apple")]
    rows.reverse = True
    rows.update()
    assert rows.shown == ["", "fig", "pear", "Apple"]
    assert next(column for column in rows.columns if column.key == "length").title == "long▴"


def test_a_row_is_found_again() -> None:
    rows = words()
    assert rows.find("fig") == 2 and rows.find("plum") is None
    rows.filter = "P"
    rows.update()
    assert rows.shown == ["Apple", "pear"] and rows.find("fig") is None


def test_a_thing_may_have_several_rows() -> None:
    rows = TableRows(COLUMNS, str, str, "word", lambda found: [row for each in found for row in (each, each.upper())])
    rows.fill(["b", "a"])
    assert rows.shown == ["a", "A", "b", "B"]


@given(st.lists(st.text(max_size=3)), st.integers(0, 9), st.integers(0, 9))
def test_a_window_of_rows(things: list[str], start: int, stop: int) -> None:
    rows = ListRows(COLUMNS[:1], things)
    assert len(rows) == len(things)
    assert rows.rows(start, stop) == [[each] for each in things[start:stop]]
