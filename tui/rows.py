"""Rows of a table as a model: things, and columns that make cells of them. No terminal is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from tui.cells import Cell, Role, number, text_of

_T = TypeVar("_T")


@dataclass(frozen=True)
class Column(Generic[_T]):
    """A column of a table of things of one kind."""

    title: str  #: its heading
    width: int  #: in characters; of a column that grows, the least
    cell: Callable[[_T], Cell]  #: makes the cell of a thing
    #: What rows are sorted by, the first first; None if they cannot be sorted by this column.
    order: Callable[[_T], Any] | None = None
    key: str = ""  #: its name for the program; the title if it is not given
    right: bool = False  #: aligned to the right
    grows: bool = False  #: takes a share of what is left of the line
    wide: bool | None = None  #: it is only there where there is room (True), or where there is none (False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.title)

    def marked(self, *, reverse: bool) -> Column[_T]:
        """Returns the column with the sign that the rows are sorted by it, or the other way round."""
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
) -> Column[_T]:
    """Returns a column of numbers, sorted with the largest first.

    Args:
        title: Its heading.
        width: In characters.
        count: Returns the number of a thing.
        role: What a number means.
        key: Its name for the program.
        zero: A zero is written; else nothing is in its place, so that others are seen.
        wide: It is only there where there is room (True), or where there is none (False).
    """

    def cell(thing: _T) -> Cell:
        value = count(thing)
        return "" if not (value or zero) else (number(value), role) if role else number(value)

    return Column(title, width, cell, lambda thing: -count(thing), key=key, right=True, wide=wide)


class RowSource(ABC, Generic[_T]):
    """Where the rows of a table come from. All methods are called by the user interface and must answer at once."""

    columns: Sequence[Column[_T]] = ()  #: the columns that are shown

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def things(self, start: int, stop: int) -> Sequence[_T]:
        """Returns what is in the rows from `start` up to but without `stop`."""

    def heading(self, thing: _T) -> Cell | None:
        """Returns what is written over all columns instead of cells: a heading, or that something is missing."""
        return None

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns the cells of rows, one for every column; a single one if it is written over all columns."""
        found: list[Sequence[Cell]] = []
        for thing in self.things(start, stop):
            heading = self.heading(thing)
            found.append([column.cell(thing) for column in self.columns] if heading is None else [heading])
        return found


class ListRows(RowSource[_T]):
    """Rows of a list.

    Args:
        shown: The things.
    """

    def __init__(self, columns: Sequence[Column[_T]], shown: Sequence[_T] = ()) -> None:
        self.columns = columns
        self.shown = shown

    def __len__(self) -> int:
        return len(self.shown)

    def things(self, start: int, stop: int) -> Sequence[_T]:
        """Returns a part of the list."""
        return self.shown[start:stop]


class Rows(ListRows[_T]):
    """Things as rows, filtered, and sorted by one of the columns.

    Args:
        words: Returns what the filter looks into.
        key: Returns what a row is known by, also after everything was read again.
        order: Key of the column that is sorted by at first.
        unfolded: Returns the rows of the things that are shown, where one has several.

    Attributes:
        reverse: Sorted the other way round.
        wide: There is room for every column.
        grey: What is shown is old.
        shown: What passes the filter, in order.
    """

    def __init__(
        self,
        columns: Sequence[Column[_T]],
        words: Callable[[_T], str],
        key: Callable[[_T], Hashable],
        order: str,
        unfolded: Callable[[list[_T]], list[_T]] = lambda found: found,
    ) -> None:
        super().__init__(())
        self.filter = ""  #: a text that must occur in a row's words; case does not count
        self.order = order
        self.reverse = self.wide = self.grey = False
        self._declared, self._words, self.key, self._unfolded = columns, words, key, unfolded
        self._all: Sequence[_T] = ()
        self.update()

    def fill(self, things: Iterable[_T], columns: Sequence[Column[_T]] | None = None) -> None:
        """Shows other things, and other columns if they are given."""
        self._all, self._declared = list(things), columns or self._declared
        self.update()

    @property
    def total(self) -> int:
        """How many things there are, filtered or not."""
        return len(self._all)

    def update(self) -> None:
        """Filters and sorts anew."""
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
        """Sorts by the next column that is seen; `update` does it."""
        keys = [column.key for column in self.columns if column.order is not None]
        self.order = keys[(keys.index(self.order) + 1) % len(keys)] if self.order in keys else keys[0]

    def find(self, key: Hashable) -> int | None:
        """Returns the place of a row."""
        return next((place for place, each in enumerate(self.shown) if self.key(each) == key), None)

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns the cells of rows."""
        rows = super().rows(start, stop)
        return [[(text_of(cell), "dim") for cell in row] for row in rows] if self.grey else rows
