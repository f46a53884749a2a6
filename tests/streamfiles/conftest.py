"""Both kernels as a fixture."""

from __future__ import annotations

from types import ModuleType

import pytest

from stantools.streamfiles import kernels
from tests.kernelpairs import KernelPair
from tests.oracles import streamfiles as oracle

FUNCTIONS = (
    "crc32c",
    "decode_record",
    "direct_answer",
    "encode_record",
    "encode_records",
    "encode_skips",
    "encode_tombstones",
    "end_of_records",
    "find_messages",
    "frame",
    "hash64",
    "scan_records",
)


KERNELS = KernelPair(kernels, oracle)
kernel = KERNELS.fixture()


@pytest.fixture
def compiled() -> ModuleType:
    """The compiled kernels."""
    return KERNELS.compiled


@pytest.fixture
def used_kernel(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Each of the two in turn, and everything uses it."""
    for name in FUNCTIONS:
        monkeypatch.setattr(kernels, name, getattr(kernel, name))
    return kernel
