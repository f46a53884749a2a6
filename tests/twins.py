"""Kernels come in pairs: the plain ones, and the compiled ones where they were built."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

_MISSING = "the compiled kernels are not built"


class Twins:
    """The kernels of a package."""

    def __init__(self, package: str) -> None:
        self.plain = importlib.import_module(f"{package}.plain")
        self._native: ModuleType | None
        try:
            self._native = importlib.import_module(f"{package}._native")
        except ImportError:
            self._native = None
        #: Each of the two, for `parametrize`.
        self.each = [
            pytest.param(self.plain, id="plain"),
            pytest.param(self._native, id="native", marks=pytest.mark.skipif(self._native is None, reason=_MISSING)),
        ]

    @property
    def built(self) -> list[ModuleType]:
        """Those that there are."""
        return [self.plain, *([] if self._native is None else [self._native])]

    @property
    def native(self) -> ModuleType:
        """The compiled ones. The test is skipped where they were not built."""
        if self._native is None:
            pytest.skip(_MISSING)
        return self._native

    @property
    def both(self) -> list[ModuleType]:
        """The two, where there are both; else the test is skipped."""
        return [self.plain, self.native]

    def fixture(self) -> Any:
        """Returns a fixture: each of the two in turn."""

        @pytest.fixture(scope="session", params=self.each)
        def kernel(request: pytest.FixtureRequest) -> ModuleType:
            module: ModuleType = request.param
            return module

        return kernel
