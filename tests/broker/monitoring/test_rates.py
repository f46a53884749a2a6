"""The rates of the live page, with a clock that is set."""

from __future__ import annotations

from broker.monitoring.rates import LONGEST, RateHistory
from tests.broker.monitoring.standins import Streaming, get, monitoring


class Counters:
    """A server that receives and delivers at steady rates; samples come a little late, as timers do."""

    def __init__(self, received: int, delivered: int) -> None:
        self.now = 1000.0
        self.rates = received, delivered
        self.begun = self.now
        self.history = RateHistory(self.counters, lambda: self.now)

    def counters(self) -> tuple[int, int]:
        passed = self.now - self.begun
        return round(passed * self.rates[0]), round(passed * self.rates[1])

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.history.sample()
            self.now += 1.003


def test_steady_rates_stay_steady_and_before_the_start_nothing_is_known() -> None:
    server = Counters(1000, 3000)
    server.run(60)
    rates = server.history.document(120)
    assert len(rates["in"]) == len(rates["out"]) == 120
    assert rates["step"] == 1
    assert rates["until"] == int(server.now - 1.003)
    unknown = rates["in"].count(None)
    assert rates["in"][:unknown] == [None] * unknown
    assert 58 <= 120 - unknown <= 61
    assert all(abs(each - 1000) < 2 for each in rates["in"][unknown:])
    assert all(abs(each - 3000) < 2 for each in rates["out"][unknown:])


def test_longer_windows_have_wider_points_that_do_not_change_later() -> None:
    server = Counters(10, 10)
    server.run(1000)
    server.rates = 50, 10
    first = server.history.document(LONGEST)
    assert first["step"] == 30
    server.run(7)
    second = server.history.document(LONGEST)
    moved = (second["until"] - first["until"]) // 30
    assert second["in"][: len(second["in"]) - moved] == first["in"][moved:]
    assert server.history.document(10**9)["step"] == 30
    assert server.history.document(-5)["step"] == 1


def test_another_server_of_the_group_and_a_clock_that_is_set_back() -> None:
    server = Counters(100, 100)
    server.run(30)
    server.begun = server.now  # its counters begin at 0
    server.run(30)
    assert min(each for each in server.history.document(120)["in"] if each is not None) >= 0
    server.now -= 3600
    server.begun = server.now
    server.run(3)
    rates = server.history.document(120)
    assert rates["until"] <= server.now
    assert sum(each is not None for each in rates["in"]) <= 3


async def test_the_endpoint_and_the_links() -> None:
    async with monitoring(Streaming()) as server:
        rates = (await get(server.port, "/streaming/ratesz?window=600")).json
        assert rates["step"] == 5
        assert len(rates["in"]) == 120
        page = (await get(server.port, "/streaming/")).body.decode()
        assert 'href="serverz"' in page
        assert 'href="ui"' in page
        assert 'href="streaming/ui"' in (await get(server.port, "/streaming")).body.decode()
        assert 'href="streaming/ui"' in (await get(server.port, "/")).body.decode()
    for base, link in (("/x", "streaming/ui"), ("/x/y", "../streaming/ui")):
        async with monitoring(Streaming(), base_path=base) as server:
            assert f'href="{link}"' in (await get(server.port, base)).body.decode()
