"""The kernels that there are."""

from __future__ import annotations

from tests.twins import Twins

TWINS = Twins("broker.streaming.hot")
kernel = TWINS.fixture()
