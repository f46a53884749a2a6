"""Both kernels as a fixture."""

from __future__ import annotations

from stantools.format import kernels
from tests.kernelpairs import KernelPair
from tests.oracles import format as oracle

KERNELS = KernelPair(kernels, oracle)
kernel = KERNELS.fixture()
