"""Which kernels are used: the compiled ones where they were built, else their twins in Python and numpy.

Both give the same results. The environment variable `STANTOOLS_KERNELS` forces one: `plain` or `native`.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from stantools.errors import UsageError

VARIABLE = "STANTOOLS_KERNELS"


def choose(native: str, plain: ModuleType) -> ModuleType:
    """Returns the module with the kernels that are wanted; the fastest there is if nothing is said.

    Args:
        native: Name of the compiled module.
        plain: The module that is always there.

    Raises:
        UsageError: The variable makes no sense, or asks for kernels that are not built.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "plain", "native"):
        raise UsageError(f"{VARIABLE} is {wanted!r}", "set it to plain or native, or unset it")
    if wanted == "plain":
        return plain
    try:
        return importlib.import_module(native)
    except ImportError as error:
        if wanted == "native":
            raise UsageError(
                f"{VARIABLE} asks for the compiled kernels, which are not built: {error}",
                "install with a C compiler at hand, or unset the variable",
            ) from error
        return plain
