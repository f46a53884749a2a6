"""numpy, loaded at first use.

Loading numpy takes longer than all other work of `info` and `verify` on a small, healthy store. Their modules import
`np` from here and do without it until there are many rows or damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        def __getattr__(self, name: str) -> object:
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)  # later accesses find it at once
            return value

    np = _Numpy()
