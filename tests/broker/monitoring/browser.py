"""A real browser without a window: Debian's chromium, driven by selenium."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.monitoring.standins import Nats, Streaming, monitoring

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The browser; skips where there is none (on Debian: apt install chromium chromium-driver)."""
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which(DRIVER)
    if not binary or not driver:
        pytest.skip("no chromium with chromedriver here (Debian: apt install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    profile: Path = tmp_path_factory.mktemp("profile")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        "--window-size=1200,1400",
        "--no-proxy-server",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield started
    finally:
        started.quit()


class Monitored:
    """A monitoring server on a thread of its own, for tests that block. A context manager."""

    def __init__(self, streaming: Streaming) -> None:
        self._streaming = streaming
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.port = 0

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with monitoring(self._streaming, Nats()) as server:
            self.port = server.port
            self._ready.set()
            await self._over.wait()

    def __enter__(self) -> Monitored:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(90)
