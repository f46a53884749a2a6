"""Tables as models: items, and columns that make their cells. Independent of the terminal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from tui.cells import Cell, Role, number, text_of, time_text

_T = TypeVar("_T")


@dataclass(frozen=True)
class TableColumn(Generic[_T]):
    title: str
    width: int  #: in characters; minimum width of a column that grows
    cell: Callable[[_T], Cell]  #: makes the cell of an item
    #: sort key, ascending; None for a column that cannot be sorted
    order: Callable[[_T], Any] | None = None
    key: str = ""  #: name in the program; the title by default
    right: bool = False
    grows: bool = False  #: takes a share of the remaining width
    wide: bool | None = None  #: only on wide screens (True) or only on narrow ones (False)
    #: Width if the table has room; in a narrower column the end of the text is left out. 0 for a fixed width.
    full: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.title)

    def marked(self, *, reverse: bool) -> TableColumn[_T]:
        title = self.title.strip() + ("▴" if reverse else "▾")
        return replace(self, title=title, width=max(self.width, len(title)))


def count_column(
    title: str,
    width: int,
    count: Callable[[_T], int],
    role: Role = "",
    *,
    key: str = "",
    zero: bool = False,
    wide: bool | None = None,
) -> TableColumn[_T]:
    """Returns a column of numbers, sorted in descending order. Without `zero`, zeros are left blank.

    `key` and `wide` are those of `TableColumn`.
    """

    def cell(thing: _T) -> Cell:
        value = count(thing)
        return "" if not (value or zero) else (number(value), role) if role else number(value)

    return TableColumn(title, width, cell, lambda thing: -count(thing), key=key, right=True, wide=wide)


def time_column(
    title: str,
    timestamp: Callable[[_T], int],
    order: Callable[[_T], Any] | None = None,
    *,
    wide: bool | None = None,
) -> TableColumn[_T]:
    """Returns a column of times: to the second, or to the millisecond if the table has room; 0 is left blank.

    `timestamp` returns nanoseconds since 1970; `order` and `wide` are those of `TableColumn`.
    """

    def cell(thing: _T) -> Cell:
        time = timestamp(thing)
        return time_text(time) if time else ""

    return TableColumn(title, 19, cell, order, wide=wide, full=23)


class RowSource(ABC, Generic[_T]):
    """The rows of a table. The user interface calls all methods, so they must return at once."""

    columns: Sequence[TableColumn[_T]] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def things(self, start: int, stop: int) -> Sequence[_T]:
        """Returns the items of the rows from `start` to `stop` (exclusive)."""

    def heading(self, thing: _T) -> Cell | None:
        """Returns the text that spans all columns instead of cells, such as a heading or a gap."""
        return None

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns the cells of rows, one per column; a single one for a row that spans all columns."""
        found: list[Sequence[Cell]] = []
        for thing in self.things(start, stop):
            heading = self.heading(thing)
            found.append([column.cell(thing) for column in self.columns] if heading is None else [heading])
        return found


class ListRows(RowSource[_T]):
    def __init__(self, columns: Sequence[TableColumn[_T]], shown: Sequence[_T] = ()) -> None:
        self.columns = columns
        self.shown = shown

    def __len__(self) -> int:
        return len(self.shown)

    def things(self, start: int, stop: int) -> Sequence[_T]:
        return self.shown[start:stop]


class TableRows(ListRows[_T]):
    """Items as rows, filtered and sorted by one of the columns.

    Args:
        words: Returns the text that the filter searches.
        key: Returns the identity of a row, stable when everything is read again.
        order: Key of the column of the first sort order.
        unfolded: Returns the rows of the items, where an item has several.

    Attributes:
        reverse: Sorted in reverse order.
        wide: The screen has room for every column.
        grey: The figures are outdated.
        shown: The items that pass the filter, in order.
    """

    def __init__(
        self,
        columns: Sequence[TableColumn[_T]],
        words: Callable[[_T], str],
        key: Callable[[_T], Hashable],
        order: str,
        unfolded: Callable[[list[_T]], list[_T]] = lambda found: found,
    ) -> None:
        super().__init__(())
        self.filter = ""  #: a text that must occur in a row's words, in any case
        self.order = order
        self.reverse = self.wide = self.grey = False
        self._declared, self._words, self.key, self._unfolded = columns, words, key, unfolded
        self._all: Sequence[_T] = ()
        self.update()

    def fill(self, things: Iterable[_T], columns: Sequence[TableColumn[_T]] | None = None) -> None:
        self._all, self._declared = list(things), columns or self._declared
        self.update()

    @property
    def total(self) -> int:
        """Number of items, filtered or not."""
        return len(self._all)

    def update(self) -> None:
        wanted = self.filter.casefold()
        found = [each for each in self._all if wanted in self._words(each).casefold()] if wanted else list(self._all)
        self.columns = [each for each in self._declared if each.wide in (None, self.wide)]
        for column in self._declared:
            if column.key == self.order and column.order is not None:
                found.sort(key=column.order, reverse=self.reverse)
                break
        self.columns = [each.marked(reverse=self.reverse) if each.key == self.order else each for each in self.columns]
        self.shown = self._unfolded(found)

    def sort_by_next(self) -> None:
        """Selects the next visible column for sorting; `update` sorts."""
        keys = [column.key for column in self.columns if column.order is not None]
        self.order = keys[(keys.index(self.order) + 1) % len(keys)] if self.order in keys else keys[0]

    def find(self, key: Hashable) -> int | None:
        return next((place for place, each in enumerate(self.shown) if self.key(each) == key), None)

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        rows = super().rows(start, stop)
        return [[(text_of(cell), "dim") for cell in row] for row in rows] if self.grey else rows
