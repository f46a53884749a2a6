"""Both kernels as a fixture."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from stantools.streamfiles import kernels, plain

FUNCTIONS = ("crc32c", "encode_records", "encode_skips", "frame", "hash64", "scan_records")


def native_kernels() -> ModuleType | None:
    """The compiled kernels, None where they are not built."""
    try:
        return importlib.import_module("stantools.streamfiles._native")
    except ImportError:
        return None


@pytest.fixture
def native() -> ModuleType:
    """The compiled kernels."""
    found = native_kernels()
    if found is None:
        pytest.skip("the compiled kernels are not built")
    return found


@pytest.fixture(params=["plain", "native"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    """Each of the two kernels in turn."""
    if request.param == "plain":
        return plain
    found: ModuleType = request.getfixturevalue("native")
    return found


@pytest.fixture
def used_kernel(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Each of the two in turn, and everything uses it."""
    for name in FUNCTIONS:
        monkeypatch.setattr(kernels, name, getattr(kernel, name))
    return kernel
