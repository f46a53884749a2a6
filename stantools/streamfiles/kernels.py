"""The kernels of stream archives: the compiled ones where they were built, else the plain ones (same results).

The environment variable `STANTOOLS_KERNELS` forces one, as for the kernels of the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import use

if TYPE_CHECKING:
    from stantools.streamfiles.plain import (
        crc32c,
        decode_record,
        direct_answer,
        encode_record,
        encode_records,
        encode_skips,
        encode_tombstones,
        find_messages,
        frame,
        hash64,
        scan_records,
    )

__all__ = [
    "crc32c",
    "decode_record",
    "direct_answer",
    "encode_record",
    "encode_records",
    "encode_skips",
    "encode_tombstones",
    "find_messages",
    "frame",
    "hash64",
    "scan_records",
]

#: Which kernels are in use: "native" or "plain".
NAME: str = use("stantools.streamfiles", globals(), __all__)
