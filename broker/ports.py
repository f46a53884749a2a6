"""Ports of all rules in the broker: a clock, and a driver that calls the rules again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def monotonic(self) -> int:
        """Returns the time for timers and deadlines; it never decreases."""

    def wall(self) -> int:
        """Returns the time since 1970, for timestamps."""


class RuleDriver(Protocol):
    def commit_soon(self) -> None:
        """Requests a call of `commit` after all available input has been handed over.

        A request from within `commit` leads to another call, after new input.
        """

    def wake_at(self, time: int) -> None:
        """Requests a call of `run_timers` at that monotonic time; replaces an earlier request."""

    def aside(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Runs a slow job in a thread. `done` gets the result, never from within this call."""
