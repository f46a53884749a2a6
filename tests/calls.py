"""Something that happens between two system calls of the code under test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def before_call(step: int, act: Callable[[], object]) -> Iterator[list[int]]:
    """Calls `act` before a system call of the block, by its number; fills a list with those that came until then.

    Calls of compiled modules are not seen, those of the standard library are.
    """
    calls: list[int] = []

    def profile(_: object, event: str, function: object) -> None:
        if event == "c_call" and getattr(function, "__module__", None) in ("posix", "io", "_io", "mmap"):
            if len(calls) == step:
                sys.setprofile(None)
                act()
            calls.append(step)

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)
