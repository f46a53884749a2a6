"""Progress of long work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

#: Called with the number of further bytes (or messages, where noted) processed, possibly from several threads.
Progress = Callable[[int], object]


class PhaseCounter(Protocol):
    """The progress of one phase: bytes done, and findings."""

    def advance(self, count: int) -> object: ...

    def found(self, *findings: object) -> object: ...


#: Begins a phase, given its name and its bytes, 0 if unknown.
Phase = Callable[[str, int], AbstractContextManager[PhaseCounter]]
