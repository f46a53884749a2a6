"""Things by small numbers, for the kernels, which know numbers only."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Slots(Generic[T]):
    """A list whose gaps are used again."""

    def __init__(self) -> None:
        self._things: list[T | None] = []
        self._free: list[int] = []

    def put(self, thing: T) -> int:
        """Returns the number that the thing has from now on."""
        if self._free:
            number = self._free.pop()
            self._things[number] = thing
            return number
        self._things.append(thing)
        return len(self._things) - 1

    def take(self, number: int) -> None:
        """Removes a thing; its number will be another's."""
        self._things[number] = None
        self._free.append(number)

    def __getitem__(self, number: int) -> T:
        thing = self._things[number]
        if thing is None:
            raise KeyError(number)
        return thing
