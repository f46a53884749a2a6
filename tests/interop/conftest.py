"""Brokers for the tests with clients of other makers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers import Broker


@pytest.fixture(scope="session", params=["MEMORY", "FILE"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that several tests share: they use channels and client ids of their own."""
    folder = tmp_path_factory.mktemp("broker")
    words: list[object] = ["-st", request.param]
    if request.param == "FILE":
        words += ["-dir", folder / "store"]
    with Broker(folder, *words) as running:
        yield running


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Starts brokers of a test's own."""
    started: list[Broker] = []

    def start(*words: object, **options: object) -> Broker:
        made = Broker(tmp_path / f"broker{len(started)}", *words, **options)  # type: ignore[arg-type]
        started.append(made)
        return made.start()

    yield start
    for each in started:
        each.__exit__()
