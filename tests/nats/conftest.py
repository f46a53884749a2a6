"""Both kernels as a fixture."""

from __future__ import annotations

from stantools.nats import kernels
from tests.kernelpairs import KernelPair
from tests.oracles import nats as oracle

KERNELS = KernelPair(kernels, oracle)
kernels = KERNELS.fixture()
