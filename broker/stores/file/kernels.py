"""The work on many log records at once: compiled where it was built, else plain (same results).

The environment variable `STANTOOLS_KERNELS` forces one: `plain` or `native`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import choose

_kernels = choose("broker.stores.file")

#: Which kernel is in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from broker.stores.file.plain import encode_flow
else:
    encode_flow = _kernels.encode_flow

__all__ = ["NAME", "encode_flow"]
