"""What was sent and what of it the target has confirmed: the position from which a replay goes on.

Messages are numbered from 0 in the order in which they are sent; no number is used twice. Confirmations may come in
any order; what counts is up to where there is no hole: everything before is with the target, and is never sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """How far a channel is.

    Attributes:
        sequence: Of its last message that is done.
        timestamp: Of the same, in nanoseconds since 1970: tells whether a store is still the same.
    """

    sequence: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class _Run:
    first: int
    channel: bytes
    sequences: list[int]
    timestamps: list[int]


class Ledger:
    """Keeps account of one replay.

    Args:
        positions: Where the channels are, from an earlier run.
    """

    def __init__(self, positions: Mapping[bytes, Position] | None = None) -> None:
        self._positions = dict(positions or {})
        self._runs: deque[_Run] = deque()
        self._ahead: set[int] = set()
        self._next = 0  # the number of the next message
        self._low = 0  # the lowest number that may still be outstanding
        #: Messages that are confirmed without a hole before them.
        self.confirmed = 0

    @property
    def next(self) -> int:
        """The number of the next message."""
        return self._next

    @property
    def low(self) -> int:
        """The lowest number that is not confirmed."""
        return self._low

    @property
    def outstanding(self) -> int:
        """Messages that were sent and are not confirmed."""
        return self._next - self._low - len(self._ahead)

    def add(self, channel: bytes, sequences: list[int], timestamps: list[int]) -> int:
        """Notes messages of one channel that are being sent.

        Args:
            channel: The channel.
            sequences: Their sequences; the list is kept.
            timestamps: Their timestamps; the list is kept.

        Returns:
            The number of the first.
        """
        number = self._next
        self._runs.append(_Run(number, channel, sequences, timestamps))
        self._next += len(sequences)
        return number

    def withdraw(self, number: int) -> None:
        """Notes that messages from this number on were not sent after all."""
        while self._runs and self._runs[-1].first >= number:
            self._runs.pop()
        if self._runs and number < self._next:
            run = self._runs.pop()
            rows = number - run.first
            self._runs.append(_Run(run.first, run.channel, run.sequences[:rows], run.timestamps[:rows]))
        self._next = min(self._next, number)

    def confirm(self, number: int) -> bool:
        """Notes that one message is confirmed.

        Returns:
            True if it was outstanding.
        """
        if not self._low <= number < self._next or number in self._ahead:
            return False
        if number == self._low:
            self._advance(number + 1)
        else:
            self._ahead.add(number)
        return True

    def confirm_below(self, number: int) -> None:
        """Notes that every message with a number below this is confirmed."""
        number = min(number, self._next)
        if number > self._low:
            self._ahead = {each for each in self._ahead if each >= number}
            self._advance(number)

    def _advance(self, low: int) -> None:
        while low in self._ahead:
            self._ahead.remove(low)
            low += 1
        self.confirmed += low - self._low
        self._low = low

    def where(self, number: int) -> tuple[bytes, int]:
        """Returns channel and sequence of a message that is not yet part of `positions`."""
        for run in self._runs:
            if run.first <= number < run.first + len(run.sequences):
                return run.channel, run.sequences[number - run.first]
        raise KeyError(number)

    def positions(self) -> dict[bytes, Position]:
        """Returns how far every channel is, as far as there is no hole."""
        while self._runs and self._runs[0].first < self._low:
            run = self._runs[0]
            row = min(self._low - run.first, len(run.sequences)) - 1
            self._positions[run.channel] = Position(run.sequences[row], run.timestamps[row])
            if row < len(run.sequences) - 1:
                break
            self._runs.popleft()
        return dict(self._positions)

    def set_position(self, channel: bytes, position: Position | None) -> None:
        """Corrects how far a channel is, None for its beginning; nothing may be outstanding."""
        self.positions()
        if position is None:
            self._positions.pop(channel, None)
        else:
            self._positions[channel] = position

    def forget_outstanding(self) -> int:
        """Drops what is not part of `positions`: it will be sent again, under new numbers.

        Returns:
            How many messages that are.
        """
        self.positions()
        dropped = self._next - self._low
        self._runs.clear()
        self._ahead.clear()
        self._low = self._next
        return dropped
