"""numpy, loaded by the first who computes with it.

Loading it takes longer than everything else that `info` and `verify` do with a small, healthy store. So modules that
these need take `np` from here, and go without it until there are many rows, or damage, to look at.
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
            setattr(self, name, value)  # the next time it is found at once
            return value

    np = _Numpy()
