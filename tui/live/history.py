"""Counters that are seen from time to time, and what they were a while ago."""

from __future__ import annotations

from array import array

#: So many rates are remembered.
LENGTH = 60


class Meter:
    """How fast a counter grows. What it counts began anew when it goes back: then there is no rate at first."""

    __slots__ = ("_at", "_rates", "_value", "rate")

    def __init__(self) -> None:
        self._value: int | None = None
        self._at = 0.0
        self._rates = array("f")
        #: In a second, between the last two looks; None if there were none.
        self.rate: float | None = None

    def see(self, value: int | None, at: float) -> bool:
        """Takes note of the counter.

        Args:
            value: What it is; None if that cannot be told.
            at: When, in seconds on any clock that only goes forward.

        Returns:
            False if it has gone back.
        """
        before, passed = self._value, at - self._at
        if before is not None and value is not None and passed <= 0:
            return value >= before
        self._value, self._at = value, at
        if before is None or value is None:
            self.rate = None
            return True
        if value < before:
            self.rate = None
            return False
        self.rate = (value - before) / passed
        self._rates.append(self.rate)
        if len(self._rates) > LENGTH:
            del self._rates[0]
        return True

    def forget(self) -> None:
        """The counter begins anew: what it was says nothing about its rate."""
        self._value = self.rate = None

    @property
    def rates(self) -> list[float]:
        """The last rates, oldest first."""
        return self._rates.tolist()
