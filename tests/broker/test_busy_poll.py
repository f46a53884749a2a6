"""Polling for the next request: as long as requests come meanwhile, and nobody else needs the processor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from broker.busy_poll import PollState, RequestPoll

MICROSECOND = 1e-6


class Rounds:
    """A loop whose rounds take some microseconds each, and a client that sends a request some time after an answer."""

    def __init__(self) -> None:
        self.now = 1.0
        self.ready: list[Any] = []
        self.poll = RequestPoll()

    def perf_counter(self) -> float:
        return self.now

    def call_soon(self, action: Any) -> None:
        self.ready.append(action)

    def round(self, duration: float) -> None:
        self.now += duration * MICROSECOND
        ready, self.ready = self.ready, []
        for action in ready:
            action()

    def ask(self, pause: float, duration: float = 10) -> int:
        """Applies a request; the next one comes after a pause. Returns the number of rounds without a sleep."""
        self.poll.applied(True)
        end, rounds = self.now + pause * MICROSECOND, 0
        while self.ready and self.now < end:
            self.round(duration)
            rounds += 1
        self.now = max(self.now, end)
        return rounds


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    made = Rounds()
    with (
        mock.patch("broker.busy_poll.perf_counter", made.perf_counter),
        mock.patch("broker.busy_poll.asyncio.get_running_loop", lambda: made),
    ):
        yield made


def test_polling_lasts_until_the_next_request(rounds: Rounds) -> None:
    assert [rounds.ask(pause) for pause in (40, 100, 20, 140)] == [4, 10, 2, 14]
    assert rounds.poll.state is PollState.POLLING
    rounds.poll.applied(False)
    rounds.round(10)
    assert rounds.poll.state is PollState.IDLE and not rounds.ready


def test_polling_in_vain_becomes_rare(rounds: Rounds) -> None:
    polled = [at for at in range(2000) if rounds.ask(1000)]
    # The pauses are twice as long each time, up to a bound.
    assert [later - earlier - 1 for earlier, later in itertools.pairwise(polled)] == [
        *(2, 4, 8, 16, 32, 64, 128),
        *[256] * 6,
    ]
    # When it pays again, it becomes usual again.
    assert sum(rounds.ask(50) > 0 for _ in range(5000)) > 4000


def test_polling_ends_if_another_process_has_the_processor(rounds: Rounds) -> None:
    assert rounds.ask(60) == 6
    # A round that takes so long was interrupted: the client waited for the processor.
    assert rounds.ask(5000, duration=3000) == 2
    assert [rounds.ask(60) for _ in range(257)] == [*[0] * 256, 6]


def test_a_long_commit_does_not_count(rounds: Rounds) -> None:
    for _ in range(20):
        rounds.poll.applied(True)
        rounds.round(9000)  # the commit and its output, before the first look
        assert rounds.poll.state is PollState.POLLING
        rounds.round(10)
