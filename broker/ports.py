"""What any rules in the broker need from outside: a clock, and somebody who calls them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Time in nanoseconds."""

    def monotonic(self) -> int:
        """Returns the time for timers and deadlines; never goes back."""

    def wall(self) -> int:
        """Returns the time since 1970, for timestamps."""


class Driver(Protocol):
    """Who calls the rules again."""

    def commit_soon(self) -> None:
        """Asks for a call of `commit` when the input that is there now has been handed over.

        What is asked for from within `commit` is another call, after new input had its turn.
        """

    def wake_at(self, time: int) -> None:
        """Asks for a call of `run_timers` at that time of the monotonic clock; replaces an earlier wish."""

    def aside(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Does something that may take long in a thread. `done` gets the result, and is never called from here."""
