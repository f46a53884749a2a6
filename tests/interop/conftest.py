"""Brokers for the tests with clients of other makers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stantools.errors import StantoolsError
from stantools.nats.serverprocess import find_server
from tests.brokers import Broker


# Tests that start a broker of their own have most of these things with messages in memory.
@pytest.fixture(scope="session", params=[pytest.param("MEMORY", marks=pytest.mark.slow), "FILE"])
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


@pytest.fixture
def needs_server() -> None:
    """Skips a test whose nodes need a nats-server, where there is none."""
    try:
        find_server()
    except StantoolsError as problem:
        pytest.skip(problem.message)
