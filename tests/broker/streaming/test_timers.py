"""Timers: in order, once, and without keeping what was cancelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.streaming.context import Timer, Timers
from tests.broker.streaming.world import Time, Wishes


class Setting:
    def __init__(self) -> None:
        self.time = Time()
        self.driver = Wishes()
        self.timers = Timers(self.time, self.driver)
        self.done: list[int] = []

    def at(self, delay: int) -> Timer:
        time = self.time.now + delay
        return self.timers.at(time, lambda: self.done.append(time))


def test_the_wish_is_for_the_first() -> None:
    setting = Setting()
    start = setting.time.now
    setting.at(50)
    assert setting.driver.due == start + 50
    setting.at(70)
    assert setting.driver.due == start + 50
    early = setting.at(20)
    assert setting.driver.due == start + 20
    setting.timers.cancel(early)
    setting.time.now += 20
    setting.timers.run()
    assert setting.done == []
    assert setting.driver.due == start + 50


def test_what_becomes_due_by_doing_waits_for_the_next_time() -> None:
    setting = Setting()
    setting.timers.at(setting.time.now, lambda: setting.at(0) and None)
    setting.timers.run()
    assert setting.done == []
    assert setting.driver.due == setting.time.now
    setting.timers.run()
    assert len(setting.done) == 1


def test_one_that_is_due_may_be_cancelled_by_another() -> None:
    setting = Setting()
    later: list[Timer] = []
    setting.timers.at(setting.time.now, lambda: setting.timers.cancel(later[0]))
    later.append(setting.at(0))
    setting.timers.run()
    assert setting.done == []
    assert len(setting.timers) == 0


def test_cancelled_ones_do_not_pile_up() -> None:
    setting = Setting()
    setting.at(1)
    for _ in range(10_000):
        setting.timers.cancel(setting.at(10**12))
    assert len(setting.timers) == 1
    assert len(setting.timers._heap) < 3000


def test_one_that_fails_does_not_take_the_others_with_it() -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    setting = Setting()
    setting.timers.at(setting.time.now, fail)
    setting.at(0)
    with pytest.raises(RuntimeError):
        setting.timers.run()
    assert setting.driver.due == setting.time.now
    setting.timers.run()
    assert len(setting.done) == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=50), st.lists(st.integers(0, 10), max_size=10))
def test_each_once_and_in_order(delays: list[tuple[int, bool]], steps: list[int]) -> None:
    setting = Setting()
    start = setting.time.now
    expected = []
    for delay, cancelled in delays:
        timer = setting.at(delay)
        if cancelled:
            setting.timers.cancel(timer)
            setting.timers.cancel(timer)
        else:
            expected.append(start + delay)
    assert len(setting.timers) == len(expected)
    for step in (0, *steps):
        setting.time.now += step
        setting.timers.run()
    assert setting.done == sorted(time for time in expected if time <= setting.time.now)
