"""The live page, in a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.broker.monitoring.browser import Monitored, browser
from tests.broker.monitoring.standins import MEMBER, SUBSCRIPTION, Streaming
from tests.waiting import until

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


def complaints(browser: Any) -> list[str]:
    """Errors of the page; pages of earlier tests ask servers that have ended."""
    origin = browser.execute_script("return location.origin")
    said = [str(each["message"]) for each in browser.get_log("browser") if each["level"] == "SEVERE"]
    return [each for each in said if each.startswith(origin) and "favicon" not in each]


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
        assert text(browser, "#total-msgs dd") == "6"
        assert text(browser, "#channels-count") == "2"
        assert cells(browser, "orders.eu") == ["orders.eu", "5", "360 B", "3", "7", "0", "2", "3", "4"]
        rows = browser.execute_script(
            "return [...document.querySelectorAll('#clients tbody tr')].map(e => e.innerText)"
        )
        assert [row.split("\t")[0] for row in rows] == ["app-1", "app-2"]
        server.update(now="2026-11-21T00:01:02.125821289Z", in_msgs=66, out_msgs=208, uptime="2s")
        channels["now"] = "2026-11-21T00:01:02.125Z"
        channels["channels"][1].update(msgs=65, last_seq=67)
        until(lambda: cells(browser, "orders.eu")[4] == "67")
        # The next round finds nothing new, so the rates of the cards are seen for one round only; the chart keeps them.
        until(lambda: text(browser, "#chart-top") not in ("", "0"))
        lines = "return [...document.querySelectorAll('#chart path[id]')].map(each => each.getAttribute('d'))"
        # A line has a point for each second since the server's start.
        until(lambda: all(len(set(path.replace("M", "L").split("L"))) > 2 for path in browser.execute_script(lines)))
        labels = browser.execute_script("return [...document.querySelectorAll('#chart text')].map(e => e.textContent)")
        assert labels[0] == "0"
        assert re.fullmatch(r"\d\d:\d\d:\d\d", labels[-1])
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
        # Nor does a name turn the direction of what is written.
        assert browser.execute_script("return element('b', 'gnp\\u202eexe').textContent") == "gnp\\u202eexe"
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


def test_channels_are_sorted_by_their_lag(browser: Any) -> None:
    streaming = Streaming()
    channels = streaming.documents["channelsz"]["channels"]
    behind = channels[1] | {"name": "a.behind", "last_seq": 9000}
    streaming.documents["channelsz"]["channels"] = [
        *channels,
        *(channels[0] | {"name": f"z{n}"} for n in range(60)),
        behind,
    ]
    shown = "return [...document.querySelectorAll('#channels tr.channel')].slice(0, 2).map(e => e.dataset.channel)"
    with Monitored(streaming) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, "orders.eu") != [])
        by(browser, "th[data-sort=lag]").click()
        until(lambda: browser.execute_script(shown) == ["a.behind", "orders.eu"])
        assert by(browser, "th[data-sort=lag]").get_attribute("aria-sort") == "descending"
        by(browser, "th[data-sort=name]").click()
        until(lambda: browser.execute_script(shown) == ['<b>&"\\', "a.behind"])


def test_the_window_of_the_chart(browser: Any) -> None:
    with Monitored(Streaming()) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, "orders.eu") != [])
        browser.execute_script("const e = by('window'); e.value = 3600; e.dispatchEvent(new Event('change'))")
        ends = (
            "const e = [...document.querySelectorAll('#chart text')].map(e => e.textContent); return [e[3], e.at(-1)]"
        )

        def minutes() -> float:
            first, last = ([int(part) for part in each.split(":")] for each in browser.execute_script(ends))
            return ((last[0] - first[0]) * 60 + last[1] - first[1]) % 1440

        until(lambda: 58 <= minutes() <= 60)


def test_a_server_that_goes_away_is_said_to_be_gone(browser: Any) -> None:
    with Monitored(Streaming()) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, "orders.eu") != [])
        assert not by(browser, "#trouble").is_displayed()
    until(lambda: by(browser, "#trouble").is_displayed())
    assert "does not answer" in text(browser, "#trouble")
    assert cells(browser, "orders.eu") != []


@pytest.fixture
def emulated(browser: Any) -> Iterator[Callable[..., None]]:
    """Sets the width of the window and the colours that a user prefers."""

    def emulate(width: int, scheme: str) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)

    yield emulate
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


#: Everything with a text of its own that is outside of the window, or hard to read on what is behind it.
UNFIT = """
const parts = (color) => { const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
const light = (color) => color.slice(0, 3)
    .map((each) => each / 255).map((each) => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
const page = getComputedStyle(document.documentElement);
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
function ground(element) {
    if (!element) return dark ? [18, 18, 18, 1] : [255, 255, 255, 1];
    return over(parts(getComputedStyle(element).backgroundColor), ground(element.parentElement));
}
const found = [];
for (const each of document.querySelectorAll("body *")) {
    const own = [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const box = each.getBoundingClientRect();
    if (!own || !box.width) continue;
    let opacity = 1;
    for (let up = each; up; up = up.parentElement) opacity *= Number(getComputedStyle(up).opacity);
    const behind = ground(each), [r, g, b, a] = parts(getComputedStyle(each).color);
    const [one, other] = [light(over([r, g, b, a * opacity], behind)), light(behind)].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (box.right > innerWidth + 1 || box.left < -1 || each.scrollWidth > each.clientWidth + 1 && each.clientWidth)
        found.push(`${each.textContent} does not fit`);
    if (contrast < 4.5 && !each.matches("span.in, span.out"))
        found.push(`${each.textContent} has a contrast of ${contrast.toFixed(1)}`);
}
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280])
def test_it_fits_and_can_be_read(browser: Any, emulated: Callable[..., None], width: int, scheme: str) -> None:
    streaming = Streaming()
    channels = streaming.documents["channelsz"]["channels"]
    large = {"msgs": 12_345_678, "bytes": 98_765_432_100, "last_seq": 12_345_999}
    channels.append(channels[1] | large | {"name": "production.warehouse.berlin.orders.confirmed.v2"})
    streaming.documents["clientsz"]["clients"][0]["hb_inbox"] = f"_INBOX.{'abc0123456789' * 4}"
    with Monitored(streaming) as monitored:
        emulated(width, scheme)
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, "orders.eu") != [])
        for number in range(3):
            click = "document.querySelectorAll('#channels tr.channel button')[arguments[0]].click()"
            browser.execute_script(click, number)
        assert browser.execute_script("return document.querySelectorAll('tr.subscription').length") == 4
        assert browser.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0
        background = browser.execute_script("return getComputedStyle(document.querySelector('.badge')).color")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")
        assert browser.execute_script(UNFIT) == []
        # Where there is no room for headings above, they stand beside the values.
        shown = "const e = document.querySelector('#channels > thead'); return getComputedStyle(e).display !== 'none'"
        beside = "return getComputedStyle(document.querySelector('tr.channel').cells[1], '::before').content"
        assert browser.execute_script(shown) == (width == 1280)
        assert (browser.execute_script(beside) == '"Messages"') == (width == 420)


def test_by_keyboard(browser: Any) -> None:
    with Monitored(Streaming()) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, "orders.eu") != [])
        browser.execute_script("[...document.querySelectorAll('#channels button')].at(-1).focus()")
        browser.execute_script("window.first = document.activeElement")
        focused = "return [document.activeElement.textContent, document.activeElement.ariaExpanded]"
        # The page has made its rows anew.
        until(lambda: browser.execute_script("return !window.first.isConnected"))
        assert browser.execute_script(focused) == ["orders.eu", "false"]
        browser.switch_to.active_element.send_keys(" ")
        until(lambda: browser.execute_script(focused) == ["orders.eu", "true"])
        assert "app-1, durable audit, stalled" in text(browser, "#channels tr.subscription")


def test_a_slow_click(browser: Any) -> None:
    """Rows are recreated every second: not while a button of the mouse is down."""
    webdriver = pytest.importorskip("selenium.webdriver")
    streaming = Streaming()
    with Monitored(streaming) as monitored:
        browser.get(f"http://127.0.0.1:{monitored.port}/streaming/ui")
        until(lambda: cells(browser, "orders.eu") != [])
        row = "return [...document.querySelectorAll('#channels tr.channel')].at(-1)"
        actions = webdriver.ActionChains(browser)
        actions.move_to_element(browser.execute_script(row)).click_and_hold().perform()
        streaming.documents["serverz"]["total_msgs"] = 7777
        until(lambda: text(browser, "#total-msgs dd") == "7,777")
        webdriver.ActionChains(browser).release().perform()
        until(lambda: "app-1" in text(browser, "#channels tr.subscription"))
