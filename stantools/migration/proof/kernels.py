"""Comparing messages: the compiled kernel where it was built, else the plain one (same results)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stantools.format import kernels
from stantools.migration.proof import plain
from stantools.migration.proof.plain import Mark, is_extended

if TYPE_CHECKING:
    from types import ModuleType


def _choose() -> ModuleType:
    if kernels.NAME == "plain":
        return plain
    try:
        return importlib.import_module("stantools.migration.proof._native")
    except ImportError:
        return plain  # built without this one, or by an older release


_kernels = _choose()

#: Which kernel is in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from stantools.migration.proof.plain import compare_messages
else:
    compare_messages = _kernels.compare_messages

__all__ = ["NAME", "Mark", "compare_messages", "is_extended"]
