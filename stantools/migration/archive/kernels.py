"""The kernels of stream archives: the compiled ones where they were built, else the plain ones.

Both give the same results. The environment variable `STANTOOLS_KERNELS` forces one, as for the kernels of the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import choose

_kernels = choose("stantools.migration.archive")

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
