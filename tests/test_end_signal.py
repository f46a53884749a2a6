"""Ctrl-C as the normal end of work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from stantools.end_signal import EndSignal


@pytest.fixture
def outside() -> Iterator[list[int]]:
    """Signals that arrive outside."""
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGINT, note)
    yield seen
    signal.signal(signal.SIGINT, before)


def test_the_first_signal_only_asks_for_the_end(outside: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("stantools.end_signal.time.monotonic", lambda: now)
    with EndSignal() as end:
        assert not end.asked
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # at once: the same
        assert end.asked and not outside
        assert not end.wait(1e9)
        now += 1
        signal.raise_signal(signal.SIGINT)
        assert outside == [signal.SIGINT]
    signal.raise_signal(signal.SIGINT)
    assert outside == [signal.SIGINT] * 2


def test_an_ignored_signal_stays_ignored(outside: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with EndSignal() as end:
        signal.raise_signal(signal.SIGINT)
        assert not end.asked
