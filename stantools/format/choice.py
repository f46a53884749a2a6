"""Which kernels are used: the compiled ones where they were built, else their twins in Python and numpy.

Both give the same results. The environment variable `STANTOOLS_KERNELS` forces one: `plain` or `native`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from stantools.errors import UsageError

VARIABLE = "STANTOOLS_KERNELS"


def use(package: str, namespace: dict[str, Any], names: Iterable[str]) -> str:
    """Puts the kernels that are wanted into a module; the fastest there are if nothing is said.

    Args:
        package: Where they are: `_native`, if it was compiled, and `plain`, which is loaded only if it is needed.
        namespace: The globals of the module.
        names: Those to put there.

    Returns:
        Which they are: "native" or "plain".

    Raises:
        UsageError: The variable makes no sense, or asks for kernels that are not built.
    """
    kernels = _chosen(package)
    namespace.update({name: getattr(kernels, name) for name in names})
    return str(kernels.NAME)


def _chosen(package: str) -> ModuleType:
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "plain", "native"):
        raise UsageError(f"{VARIABLE} is {wanted!r}", "set it to plain or native, or unset it")
    if wanted == "plain":
        return importlib.import_module(f"{package}.plain")
    try:
        return importlib.import_module(f"{package}._native")
    except ImportError as error:
        if wanted == "native":
            raise UsageError(
                f"{VARIABLE} asks for the compiled kernels, which are not built: {error}",
                "install with a C compiler at hand, or unset the variable",
            ) from error
        return importlib.import_module(f"{package}.plain")
