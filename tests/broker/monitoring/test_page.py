"""The live page, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.monitoring.browser import Monitored, browser
from tests.broker.monitoring.standins import MEMBER, SUBSCRIPTION, Streaming

__all__ = ["browser"]


def by(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def text(browser: Any, selector: str) -> str:
    # In one step, because the page replaces its rows once a second.
    found = browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
    return str(found)


def cells(browser: Any, name: str) -> list[str]:
    """The cells of a channel's row."""
    script = """const row = [...document.querySelectorAll('#channels tr.channel')]
        .find(each => each.dataset.channel === arguments[0]);
        return row ? [...row.cells].map(each => each.innerText) : []"""
    return list(browser.execute_script(script, name))


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def complaints(browser: Any) -> list[str]:
    """What the browser has to say against the page."""
    said = [str(each["message"]) for each in browser.get_log("browser") if each["level"] == "SEVERE"]
    return [each for each in said if "favicon" not in each]


def test_channels_clients_rates_and_lag_live(browser: Any) -> None:
    streaming = Streaming()
    # Counters move with the clock of the documents, so rates are exact: 60 messages in 2 seconds.
    server, channels = streaming.documents["serverz"], streaming.documents["channelsz"]
    with Monitored(streaming) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: text(browser, "#cluster") == "test-cluster")
        until(lambda: cells(browser, "orders.eu") != [])
        assert text(browser, "#state") == "STANDALONE"
        assert "FILE store" in text(browser, "#about")
        assert text(browser, "#total-msgs b") == "6"
        assert text(browser, "#channels-count") == "2"
        assert cells(browser, "orders.eu") == ["orders.eu", "5", "360 B", "3", "7", "0.0", "2", "3", "4"]
        rows = browser.execute_script(
            "return [...document.querySelectorAll('#clients tbody tr')].map(e => e.innerText)"
        )
        assert [row.split("\t")[0] for row in rows] == ["app-1", "app-2"]
        server.update(now="2026-11-21T00:01:02.125821289Z", in_msgs=66, out_msgs=208, uptime="2s")
        channels["now"] = "2026-11-21T00:01:02.125Z"
        channels["channels"][1].update(msgs=65, last_seq=67)
        until(lambda: cells(browser, "orders.eu")[4] == "67")
        # The next round finds nothing new, so the rates are seen for one round only; the chart keeps them.
        until(lambda: text(browser, "#chart-top") == "100")
        assert cells(browser, "orders.eu")[8] == "64"
        assert "up 2s" in text(browser, "#about")
        assert complaints(browser) == []
        asked = browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
        assert all(each.startswith(f"http://127.0.0.1:{monitored.port}/") for each in asked), asked


def test_subscriptions_of_a_channel_are_shown_on_a_click(browser: Any) -> None:
    with Monitored(Streaming()) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, "orders.eu") != [])
        click = "[...document.querySelectorAll('#channels tr.channel')].at(-1).click()"
        browser.execute_script(click)
        rows = "return [...document.querySelectorAll('#channels tr.subscription')].map(e => e.cells[0].innerText)"
        assert browser.execute_script(rows) == [
            "app-1, durable audit, stalled",
            "app-2, queue w2:g2, offline",
        ]
        time.sleep(1.2)  # still there after the next round
        assert len(browser.execute_script(rows)) == 2
        browser.execute_script(click)
        assert browser.execute_script(rows) == []


def test_names_are_shown_and_not_run(browser: Any) -> None:
    evil = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    streaming = Streaming()
    streaming.documents["channelsz"]["channels"][0]["name"] = evil
    streaming.documents["clientsz"]["clients"][1]["hb_inbox"] = evil
    streaming.documents["serverz"]["cluster_id"] = evil
    subscription = SUBSCRIPTION | {"durable_name": evil}
    streaming.documents["channelsz"]["channels"][0]["subscriptions"] = [subscription, MEMBER | {"queue_name": evil}]
    with Monitored(streaming) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, evil) != [])
        assert text(browser, "#cluster") == evil
        browser.execute_script("document.querySelector('#channels tr.channel').click()")
        assert browser.execute_script("return document.querySelectorAll('main img, main script').length") == 0
        assert browser.title != "run"
        assert complaints(browser) == []


def test_pages_and_filter(browser: Any) -> None:
    streaming = Streaming()
    channel = {"msgs": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "subs_count": 0}
    streaming.documents["channelsz"]["channels"] = [{"name": f"c{each:03}"} | channel for each in range(120)]
    shown = "return [...document.querySelectorAll('#channels tr.channel')].map(e => e.dataset.channel)"
    with Monitored(streaming) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: len(browser.execute_script(shown)) == 50)
        assert text(browser, "#channels-count") == "1 to 50 of 120"
        for expected in ("51 to 100 of 120", "101 to 120 of 120"):
            by(browser, "#channels-on").click()
            until(lambda expected=expected: text(browser, "#channels-count") == expected)  # type: ignore[misc]
        assert not by(browser, "#channels-on").is_enabled()
        by(browser, "#filter").send_keys("C11")
        until(lambda: browser.execute_script(shown) == [f"c{each}" for each in range(110, 120)])


def test_a_server_that_goes_away_is_said_to_be_gone(browser: Any) -> None:
    with Monitored(Streaming()) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, "orders.eu") != [])
        assert not by(browser, "#trouble").is_displayed()
    until(lambda: by(browser, "#trouble").is_displayed())
    assert "does not answer" in text(browser, "#trouble")
    assert cells(browser, "orders.eu") != []


@pytest.mark.parametrize("width", [500, 1400])
def test_it_fits_on_small_and_large_windows(browser: Any, width: int) -> None:
    with Monitored(Streaming()) as monitored:
        browser.set_window_size(width, 900)
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, "orders.eu") != [])
        too_wide = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert too_wide <= (0 if width > 1000 else 300)
