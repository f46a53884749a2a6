"""Parsing what a server sends: the compiled kernel where it was built, else the plain one (same results).

`STANTOOLS_KERNELS` forces one, as for `stantools.format.kernels`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stantools.format import kernels
from stantools.migration.wire import plain

if TYPE_CHECKING:
    from types import ModuleType


def _choose() -> ModuleType:
    if kernels.NAME == "plain":
        return plain
    try:
        return importlib.import_module("stantools.migration.wire._native")
    except ImportError:
        return plain  # built without this one, or by an older release


_kernels = _choose()

#: Which kernel is in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from stantools.migration.wire.plain import parse_frames
else:
    parse_frames = _kernels.parse_frames

__all__ = ["NAME", "parse_frames"]
