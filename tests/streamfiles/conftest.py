"""Both kernels as a fixture."""

from __future__ import annotations

from types import ModuleType

import pytest

from stantools.streamfiles import kernels
from tests.twins import Twins

FUNCTIONS = tuple(kernels.__all__)


TWINS = Twins("stantools.streamfiles")
kernel = TWINS.fixture()


@pytest.fixture
def native() -> ModuleType:
    """The compiled kernels."""
    return TWINS.native


@pytest.fixture
def used_kernel(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Each of the two in turn, and everything uses it."""
    for name in FUNCTIONS:
        monkeypatch.setattr(kernels, name, getattr(kernel, name))
    return kernel
