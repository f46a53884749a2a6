"""The work on many messages of a stream at once: the compiled kernels where they were built, else the plain ones.

The environment variable `STANTOOLS_KERNELS` forces one: `plain` or `native`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import use

if TYPE_CHECKING:
    from broker.stores.streams.plain import drop_firsts, enter_rows, measure_rows

__all__ = ["drop_firsts", "enter_rows", "measure_rows"]

#: Which kernels are in use: "native" or "plain".
NAME: str = use("broker.stores.streams", globals(), __all__)
