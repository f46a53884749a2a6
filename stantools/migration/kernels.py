"""The work on many messages at once: the compiled kernels where they were built, else the plain ones.

Archives write and read records with their hashes, publishing writes frames and looks through answers, the proof
compares messages; each pair of kernels is in the package that needs it. Both give the same results. The environment
variable `STANTOOLS_KERNELS` forces one, as for the kernels of the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import use

if TYPE_CHECKING:
    from stantools.migration.archive.plain import (
        crc32c,
        encode_records,
        encode_skips,
        frame,
        hash64,
        scan_records,
    )
    from stantools.migration.proof.plain import compare_messages
    from stantools.migration.publish.plain import check_answers, encode_publishes

_ARCHIVE = ("crc32c", "encode_records", "encode_skips", "frame", "hash64", "scan_records")

__all__ = [
    "check_answers",
    "compare_messages",
    "crc32c",
    "encode_publishes",
    "encode_records",
    "encode_skips",
    "frame",
    "hash64",
    "scan_records",
]

#: Which kernels are in use: "native" or "plain".
NAME: str = use("stantools.migration.archive", globals(), _ARCHIVE)
use("stantools.migration.publish", globals(), ("check_answers", "encode_publishes"))
use("stantools.migration.proof", globals(), ("compare_messages",))
