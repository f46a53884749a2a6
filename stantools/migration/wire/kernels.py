"""Parsing what a server sends: the compiled kernel where it was built, else the plain one (same results).

`STANTOOLS_KERNELS` forces one, as for `stantools.format.kernels`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import choose

_kernels = choose("stantools.migration.wire")

#: Which kernel is in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from stantools.migration.wire.plain import parse_frames
else:
    parse_frames = _kernels.parse_frames

__all__ = ["NAME", "parse_frames"]
