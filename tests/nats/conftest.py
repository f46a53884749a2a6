from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from stantools.nats import plain


def _twins() -> list[ModuleType]:
    try:
        return [plain, importlib.import_module("stantools.nats._native")]
    except ImportError:
        return [plain]


@pytest.fixture(scope="session", params=_twins(), ids=lambda module: module.NAME)
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """Each of the twins that are there."""
    module: ModuleType = request.param
    return module


@pytest.fixture(scope="session")
def twins() -> list[ModuleType]:
    """Both twins."""
    if len(_twins()) < 2:
        pytest.skip("the compiled kernels are not built")
    return _twins()
