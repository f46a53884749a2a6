"""Real servers for the tests of migration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import servers


@pytest.fixture(params=servers.VERSIONS)
def each_server(request: pytest.FixtureRequest, start_server: Callable[..., Any]) -> Any:
    """A running server of every version in turn."""
    return start_server(request.param)
