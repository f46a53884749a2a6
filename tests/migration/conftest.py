"""Real servers for the tests of migration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts real servers: `start_server(version=…, config=…)`; all are stopped at the end of the test."""
    running: list[Any] = []

    def start(version: str = servers.NEWEST, config: dict[str, Any] | None = None, **more: Any) -> Any:
        if not servers.binary(version).exists():
            pytest.skip(f"nats-server {version} is not here (python tests/servers.py)")
        server = servers.NatsServer(tmp_path / f"server{len(running)}", version, config, **more)
        running.append(server)
        return server.start()

    yield start
    for server in running:
        server.kill()


@pytest.fixture(params=servers.VERSIONS)
def each_server(request: pytest.FixtureRequest, start_server: Callable[..., Any]) -> Any:
    """A running server of every version in turn."""
    return start_server(request.param)
