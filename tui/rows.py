"""Rows of a table as a model: where they come from, their columns, filtered and sorted. No terminal is needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from tui.cells import Cell

_T = TypeVar("_T")


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        key: Its name for the program.
        title: Its heading.
        width: In characters; of a column that grows, the least.
        right: Aligned to the right.
        grows: Takes a share of what is left of the line.
    """

    key: str
    title: str
    width: int
    right: bool = False
    grows: bool = False


def marked(column: Column, *, reverse: bool) -> Column:
    """Returns a column with the sign that the rows are sorted by it.

    Args:
        column: The column.
        reverse: Sorted the other way round.
    """
    title = column.title.strip() + ("▴" if reverse else "▾")
    return replace(column, title=title, width=max(column.width, len(title)))


class RowSource(Protocol):
    """Where rows come from. All methods are called by the user interface and must answer at once."""

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        ...

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns rows from `start` up to but without `stop`, each with a cell for every column.

        A row of a single cell is written over all columns: a heading, or a place where something is missing.
        """
        ...


class ListSource:
    """A source of rows that are there already.

    Args:
        columns: The columns.
        cells: The rows.
    """

    def __init__(self, columns: Sequence[Column], cells: Sequence[Sequence[Cell]] = ()) -> None:
        self.columns = columns
        self.cells = cells

    def __len__(self) -> int:
        return len(self.cells)

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns a part of the rows."""
        return self.cells[start:stop]


class Rows(Generic[_T]):
    """Things as rows: filtered, and sorted by one of the columns. Cells are only made of what is seen.

    Args:
        orders: Key of a column -> what rows are sorted by, the first first.
        order: Key of the column that is sorted by at first.

    Attributes:
        filter: A text that must occur in a row's words; case does not count.
        order: Key of the column that is sorted by.
        reverse: Sorted the other way round.
        wide: There is room for every column.
        shown: What passes the filter, in order.
        columns: The columns, the one that is sorted by marked.
    """

    def __init__(self, orders: Mapping[str, Callable[[_T], Any]], order: str) -> None:
        self.filter = ""
        self.order = order
        self.reverse = False
        self.wide = False
        self.shown: list[Any] = []
        self.columns: Sequence[Column] = ()
        self._orders = orders
        self._all: Sequence[_T] = ()

    def layout(self) -> Sequence[Column]:
        """Returns the columns that there is room for."""
        raise NotImplementedError

    def cells(self, row: Any) -> Sequence[Cell]:
        """Returns the cells of a row."""
        raise NotImplementedError

    def words(self, thing: _T) -> str:
        """Returns what the filter looks into, in small letters."""
        raise NotImplementedError

    def key(self, row: Any) -> Hashable:
        """Returns what a row is known by, also after everything was read again."""
        raise NotImplementedError

    def unfolded(self, found: list[_T]) -> list[Any]:
        """Returns the rows of the things that are shown; each is one, unless a kind of rows has several."""
        return found

    def fill(self, things: Iterable[_T]) -> None:
        """Shows other things."""
        self._all = list(things)
        self.update()

    def update(self) -> None:
        """Filters and sorts anew."""
        columns = self.layout()
        self.columns = [marked(c, reverse=self.reverse) if c.key == self.order else c for c in columns]
        wanted = self.filter.casefold()
        found = [each for each in self._all if wanted in self.words(each)] if wanted else list(self._all)
        if self.order in self._orders:
            found.sort(key=self._orders[self.order], reverse=self.reverse)
        self.shown = self.unfolded(found)

    def sort_by_next(self) -> None:
        """Sorts by the next column that is seen; `update` does it."""
        seen = {column.key for column in self.columns}
        keys = [key for key in self._orders if key in seen]
        self.order = keys[(keys.index(self.order) + 1) % len(keys)] if self.order in keys else keys[0]

    def find(self, key: Hashable) -> int | None:
        """Returns the place of a row."""
        return next((place for place, each in enumerate(self.shown) if self.key(each) == key), None)

    def __len__(self) -> int:
        return len(self.shown)

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns a part of the rows."""
        return [self.cells(each) for each in self.shown[start:stop]]
