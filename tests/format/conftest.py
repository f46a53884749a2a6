"""Both kernels as a fixture."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from stantools.format import plain


def native_kernels() -> ModuleType | None:
    """The compiled kernels, None where they are not built."""
    try:
        return importlib.import_module("stantools.format._native")
    except ImportError:
        return None


@pytest.fixture(params=["plain", "native"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    """Each of the two kernels in turn."""
    if request.param == "plain":
        return plain
    native = native_kernels()
    if native is None:
        pytest.skip("the compiled kernels are not built")
    return native
