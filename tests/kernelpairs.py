"""Each compiled kernel has an oracle in `tests/oracles`: plain Python that has to give the same results.

Facts are checked on the compiled one in a normal run, on the oracle in the slow run; that both give the same for
generated input, in every run.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


class KernelPair:
    """The compiled kernels of a package, and their oracle."""

    def __init__(self, compiled: ModuleType, oracle: ModuleType) -> None:
        self.compiled, self.oracle = compiled, oracle
        self.both = [oracle, compiled]
        #: Each of the two, for `parametrize`.
        self.each = [pytest.param(oracle, id="oracle", marks=pytest.mark.slow), pytest.param(compiled, id="compiled")]

    def fixture(self) -> Any:
        """Returns a fixture: each of the two in turn."""

        @pytest.fixture(scope="session", params=self.each)
        def kernel(request: pytest.FixtureRequest) -> ModuleType:
            module: ModuleType = request.param
            return module

        return kernel
