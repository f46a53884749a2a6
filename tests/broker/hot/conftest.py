"""The kernels that there are."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from broker.streaming.hot import plain

try:
    native: ModuleType | None = importlib.import_module("broker.streaming.hot._native")
except ImportError:
    native = None


@pytest.fixture(
    params=[
        pytest.param(plain, id="plain"),
        pytest.param(native, id="native", marks=pytest.mark.skipif(native is None, reason="not compiled")),
    ]
)
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module
