"""When each message is due."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stantools.migration.replay.run import Pacer, ReplaySpeed

SECOND = 10**9


def due(pacer: Pacer, *times: int) -> list[int]:
    return [int(each) for each in pacer.schedule(np.array(times, np.int64))]


def test_the_original_pace() -> None:
    pacer = Pacer(ReplaySpeed())
    assert due(pacer, 100, 150, 150, 400) == [0, 50, 50, 300]
    assert due(pacer, 500) == [400]
    assert due(pacer) == []


def test_a_multiple_of_it() -> None:
    assert due(Pacer(ReplaySpeed(10)), 0, 100, 1000) == [0, 10, 100]
    assert due(Pacer(ReplaySpeed(0.5)), 0, 100, 1000) == [0, 200, 2000]


def test_at_once() -> None:
    pacer = Pacer(ReplaySpeed(None))
    assert due(pacer, 5, 10**18, 7) == [0, 0, 0]
    assert not pacer.waits
    assert Pacer(ReplaySpeed()).waits
    assert Pacer(ReplaySpeed(None, rate=1)).waits


def test_a_clock_that_was_set_back_makes_nobody_wait() -> None:
    assert due(Pacer(ReplaySpeed()), 100, 200, 50, 150, 200, 210) == [0, 100, 100, 100, 100, 110]


def test_pauses_are_shortened() -> None:
    assert due(Pacer(ReplaySpeed(1, longest_pause=30)), 0, 10, 1000, 1010) == [0, 10, 40, 50]


def test_a_rate() -> None:
    pacer = Pacer(ReplaySpeed(None, rate=2))
    assert due(pacer, 0, 0, 0) == [0, SECOND // 2, SECOND]
    assert due(pacer, 0) == [SECOND * 3 // 2]


def test_a_rate_is_a_limit_and_no_goal() -> None:
    pacer = Pacer(ReplaySpeed(1, rate=1))
    assert due(pacer, 0, 1, 10 * SECOND, 10 * SECOND) == [0, SECOND, 10 * SECOND, 11 * SECOND]


def test_the_widest_times_do_not_overflow() -> None:
    first, last = due(Pacer(ReplaySpeed()), -(2**63), 2**63 - 1)
    assert first == 0
    assert last == 2**62


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=30),
    st.none() | st.sampled_from([0.5, 1.0, 3.0]),
    st.none() | st.sampled_from([1.0, 1000.0]),
    st.none() | st.integers(0, 10**10),
    st.integers(1, 30),
)
def test_batches_do_not_matter_and_the_rules_hold(
    times: list[int], speed: float | None, rate: float | None, pause: int | None, size: int
) -> None:
    whole = due(Pacer(ReplaySpeed(speed, rate, pause)), *times)
    pacer = Pacer(ReplaySpeed(speed, rate, pause))
    parts = [each for part in range(0, len(times), size) for each in due(pacer, *times[part : part + size])]
    assert np.allclose(parts, whole, rtol=1e-9, atol=2)
    now = expected = 0.0
    latest = times[0]
    for number, (time, found) in enumerate(zip(times, whole, strict=True)):
        if speed is not None:
            gap = max(time - latest, 0) / speed
            now += gap if pause is None else min(gap, pause)
            latest = max(latest, time)
        expected = max(now, expected + SECOND / rate) if rate and number else max(now, expected)
        assert abs(found - expected) <= 2 + expected * 1e-9
