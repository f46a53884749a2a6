"""Tables of things that change all the time: columns as a list, filtered, sorted, the cursor kept on its row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tui.cells import Cell, text_of
from tui.widgets.rowtable import Column, marked

_T = TypeVar("_T")


@dataclass(frozen=True)
class Field(Generic[_T]):
    """A column and how it is filled.

    Attributes:
        column: The column.
        cell: Returns its cell.
        order: What rows are sorted by, the first first; None if they cannot be.
        wide: It is only shown where there is room.
    """

    column: Column
    cell: Callable[[_T], Cell]
    order: Callable[[_T], Any] | None = None
    wide: bool = False


class LiveRows(Generic[_T]):
    """Rows made of things; only those that are seen are made.

    Args:
        fields: The columns.
        name: Returns what the filter looks into.
        key: Returns what a thing is known by between two looks.
        order: Key of the column that is sorted by at first.
    """

    def __init__(
        self,
        fields: Sequence[Field[_T]],
        name: Callable[[_T], str],
        key: Callable[[_T], Hashable],
        *,
        order: str = "",
    ) -> None:
        self._fields = fields
        self._name, self.key = name, key
        self._all: Sequence[_T] = ()
        self.filter = ""
        self.order = order
        self.reverse = False
        #: There is room for every column.
        self.wide = False
        #: What is shown is old.
        self.grey = False
        self.shown: list[_T] = []
        self.update()

    @property
    def total(self) -> int:
        """How many there are without the filter."""
        return len(self._all)

    def fill(self, things: Iterable[_T]) -> None:
        """Shows other things."""
        self._all = list(things)
        self.update()

    def update(self) -> None:
        """Filters and sorts anew."""
        self._seen = [each for each in self._fields if self.wide or not each.wide]
        self.columns: Sequence[Column] = [self._column(each) for each in self._seen]
        wanted = self.filter.casefold()
        shown = [each for each in self._all if wanted in self._name(each).casefold()] if wanted else list(self._all)
        order = next((each.order for each in self._fields if each.column.key == self.order), None)
        if order is not None:
            shown.sort(key=order)
        if self.reverse:
            shown.reverse()
        self.shown = shown

    def sort_by_next(self) -> None:
        """Sorts by the next column that is seen."""
        keys = [each.column.key for each in self._seen if each.order is not None]
        if keys:
            self.order = keys[(keys.index(self.order) + 1) % len(keys)] if self.order in keys else keys[0]
        self.update()

    def find(self, key: Hashable) -> int | None:
        """Returns the row of a thing."""
        return next((row for row, each in enumerate(self.shown) if self.key(each) == key), None)

    def __len__(self) -> int:
        return len(self.shown)

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns a part of the rows."""
        made = [[field.cell(each) for field in self._seen] for each in self.shown[start:stop]]
        if self.grey:
            return [[(text_of(cell), "dim") for cell in cells] for cells in made]
        return made

    def _column(self, field: Field[_T]) -> Column:
        column = field.column
        if column.key != self.order or field.order is None:
            return column
        return marked(column, reverse=self.reverse)
