"""The kernels of stream archives: the compiled ones where they were built, else the plain ones.

Both give the same results. The environment variable `STANTOOLS_KERNELS` forces one, as for the kernels of the format.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from stantools.errors import UsageError
from stantools.format.kernels import VARIABLE
from stantools.migration.archive import plain

if TYPE_CHECKING:
    from types import ModuleType


def _choose(wanted: str) -> ModuleType:
    """The module with the kernels that are wanted; the fastest there is for an empty string."""
    if wanted == "plain":
        return plain
    try:
        return importlib.import_module("stantools.migration.archive._native")
    except ImportError as error:
        if wanted == "native":
            raise UsageError(
                f"{VARIABLE} asks for the compiled kernels, which are not built: {error}",
                "install with a C compiler at hand, or unset the variable",
            ) from error
        return plain


_kernels = _choose(os.environ.get(VARIABLE, ""))

#: Which kernels are in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from stantools.migration.archive.plain import (
        crc32c,
        encode_records,
        encode_skips,
        frame,
        hash64,
        scan_records,
    )
else:
    crc32c = _kernels.crc32c
    encode_records = _kernels.encode_records
    encode_skips = _kernels.encode_skips
    frame = _kernels.frame
    hash64 = _kernels.hash64
    scan_records = _kernels.scan_records

__all__ = [
    "NAME",
    "crc32c",
    "encode_records",
    "encode_skips",
    "frame",
    "hash64",
    "scan_records",
]
