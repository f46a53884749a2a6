"""Rounds of an event loop: the order of the steps from the input to the output.

A round begins with the first read, or the first request of rules, and ends when the loop has read from all readable
sockets. Its steps run one after the other, each to its end, and none calls back into an earlier one:

    read → apply (parse, hand to receivers, rules) → commit (store, deliver, acknowledge) → write

Input is applied while the loop reads, or together at the end of the round (`broker.nats.read_coalescer`). Output is
collected and leaves in one write. Only output that must not wait is written before: that of a client with much of it,
and all output before a commit that may take as long as a disk. `_INNER` has the legal steps, `enter` asserts them.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable
from typing import Final, Protocol


class RoundStep(enum.Enum):
    #: the loop reads, and calls timers
    READ = enum.auto()
    #: a batch of input is applied
    APPLY = enum.auto()
    #: rules store, deliver and acknowledge
    COMMIT = enum.auto()
    #: output is written
    WRITE = enum.auto()


# Constants for hot paths: looking up members of an enumeration is slow (Python 3.11).
READ: Final = RoundStep.READ
APPLY: Final = RoundStep.APPLY
COMMIT: Final = RoundStep.COMMIT
WRITE: Final = RoundStep.WRITE
#: The steps that may begin in the middle of a step, which continues after them.
_INNER: Final = {
    READ: (APPLY, COMMIT, WRITE),
    APPLY: (WRITE,),
    COMMIT: (WRITE,),
    WRITE: (),
}


class Committer(Protocol):
    """Rules that commit at the end of a round."""

    def commit(self) -> None:
        """Makes the latest changes durable, then sends their answers."""


class LoopRounds:
    """The rounds of the running event loop.

    Attributes:
        step: The step in progress.
        scheduled: The end of the round is scheduled.
        committers: The rules that commit at the end of the round.
        now: Time of the last input, ns since the epoch.
    """

    def __init__(
        self,
        apply_input: Callable[[], None],
        write: Callable[[], None],
        hold_back: Callable[[], None] | None = None,
    ) -> None:
        self.step = READ
        self.scheduled = False
        self.now = time.time_ns()
        self.committers: dict[Committer, None] = {}
        self.apply_input: Final = apply_input  #: applies the input that waits in buffers
        self._write: Final = write  # writes the collected output
        # Lets output wait for `write`; None if output waits anyway.
        self._hold_back: Final = hold_back

    def enter(self, step: RoundStep) -> RoundStep:
        """Begins a step; returns the one that continues after it, for `step`.

        Hot paths set `step` themselves, with the same assertion.
        """
        before = self.step
        assert step in _INNER[before], f"{step.name} in the middle of {before.name}"
        self.step = step
        return before

    def soon(self) -> None:
        """Ends the round after the loop has read from all readable sockets; the rules in `committers` commit then."""
        if not self.scheduled:
            self.scheduled = True
            if self._hold_back is not None:
                self._hold_back()
            asyncio.get_running_loop().call_soon(self._end)

    def write_now(self) -> None:
        """Writes the output of a step before its end."""
        self._write()
        if self._hold_back is not None:
            self._hold_back()

    def _end(self) -> None:
        self.apply_input()
        # From here on, requests are for the next round.
        self.scheduled = False
        committers = self.committers
        if committers:
            self.committers = {}
            assert self.step is READ, f"COMMIT in the middle of {self.step.name}"
            self.step = COMMIT
            for each in committers:
                try:
                    each.commit()
                except Exception as problem:
                    # An error of one server does not affect the others.
                    loop = asyncio.get_running_loop()
                    loop.call_exception_handler({"message": "commit", "exception": problem})
            self.step = READ
        self._write()
        if self.scheduled and self._hold_back is not None:
            self._hold_back()


def nothing() -> None: ...
