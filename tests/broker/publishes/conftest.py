"""The kernels that there are."""

from __future__ import annotations

from broker.streaming.publishes import kernels
from tests.kernelpairs import KernelPair
from tests.oracles import streaming as oracle

KERNELS = KernelPair(kernels, oracle)
kernel = KERNELS.fixture()
