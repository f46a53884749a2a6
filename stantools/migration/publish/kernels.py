"""Writing what is published and reading what is answered: the compiled kernels where they were built, else the plain.

The environment variable `STANTOOLS_KERNELS` forces one, as for `stantools.format.kernels`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stantools.format import kernels
from stantools.migration.publish import plain

if TYPE_CHECKING:
    from types import ModuleType


def _choose() -> ModuleType:
    if kernels.NAME == plain.NAME:
        return plain
    try:
        return importlib.import_module("stantools.migration.publish._native")
    except ImportError:
        return plain


_kernels = _choose()

#: Which kernels are in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from stantools.migration.publish.plain import check_answers, encode_publishes
else:
    check_answers = _kernels.check_answers
    encode_publishes = _kernels.encode_publishes

__all__ = ["NAME", "check_answers", "encode_publishes"]
