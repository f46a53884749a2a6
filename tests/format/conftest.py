"""Both kernels as a fixture."""

from __future__ import annotations

from tests.twins import Twins

TWINS = Twins("stantools.format")
kernel = TWINS.fixture()
