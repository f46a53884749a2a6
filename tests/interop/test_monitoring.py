"""The live page and the metrics of a broker at work."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from stantools.streaming.client import Start, SubscriptionOptions, connect
from tests.broker.monitoring.browser import browser
from tests.brokers import Broker
from tests.waiting import until

__all__ = ["browser"]


class Traffic(threading.Thread):
    """Publishes to a channel with a subscriber that never acknowledges, until it is told to end."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._over = threading.Event()
        self.published = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as problem:
            self.problem = problem

    async def _publish(self) -> None:
        async with await connect(self._url, "test-cluster", "busy") as client:
            options = SubscriptionOptions(durable="slow", start=Start.first(), manual_acks=True, max_in_flight=5)
            await client.subscribe("orders", lambda message: None, options)
            while not self._over.is_set():
                await client.publish("orders", b"x" * 100)
                self.published += 1
                await asyncio.sleep(0.005)

    def __enter__(self) -> Traffic:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(90)


def number(browser: Any, selector: str) -> float:
    text = browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
    return float(str(text).replace(",", "") or 0)


def test_the_live_page_of_a_broker_at_work(browser: Any, start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(http=True)
    with Traffic(broker.url) as traffic:
        browser.get(f"{broker.monitoring}/streaming/ui")
        cell = "#channels tr.channel td:nth-child({})".format
        until(lambda: number(browser, "#rate-in dd") > 0)
        until(lambda: number(browser, cell(6)) > 0)
        until(lambda: number(browser, cell(9)) > 0)
        assert number(browser, cell(8)) == 5
        before = number(browser, cell(5))
        until(lambda: number(browser, cell(5)) > before)
        clients = "return [...document.querySelectorAll('#clients tbody tr')].map(e => e.dataset.client)"
        assert browser.execute_script(clients) == ["busy"]
    assert traffic.problem is None
    until(lambda: browser.execute_script(clients) == [])
    until(lambda: number(browser, cell(5)) == traffic.published)
    until(lambda: number(browser, "#rate-in dd") == 0)
    said = [each["message"] for each in browser.get_log("browser") if each["level"] == "SEVERE"]
    assert [each for each in said if "favicon" not in each] == []


def test_metrics_of_a_broker_at_work(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(http=True)
    with Traffic(broker.url) as traffic:
        until(lambda: traffic.published > 20)
    assert traffic.problem is None
    with urllib.request.urlopen(f"{broker.monitoring}/metrics", timeout=10) as answer:
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(answer.read().decode())
            for sample in family.samples
        }
    assert found["stan_in_messages_total"] == found["stan_channel_last_sequence"] == traffic.published
    assert found["stan_subscription_pending_messages"] == 5
    assert found["stan_subscription_lag_messages"] == traffic.published - 5
    assert found["stan_subscription_members"] == 0
    assert found["stan_clients"] == 0
    assert found["nats_in_messages_total"] >= traffic.published
    assert 0 < found["nats_memory_bytes"] < 400 << 20
