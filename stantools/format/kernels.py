"""The work on many records at once: the compiled kernels where they were built, else the plain ones.

Both give the same results. The compiled ones release the interpreter lock for the whole call, so that threads
can work on several files. The environment variable `STANTOOLS_KERNELS` forces one: `plain` or `native`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import use

if TYPE_CHECKING:
    from stantools.format.plain import (
        encode_flow,
        encode_index,
        encode_messages,
        find_log_record,
        find_record,
        gather,
        index_record,
        index_run,
        read_index,
        read_messages_at,
        same_entries,
        scan_index,
        scan_leaf,
        scan_log,
        scan_messages,
        scan_run,
    )

__all__ = [
    "encode_flow",
    "encode_index",
    "encode_messages",
    "find_log_record",
    "find_record",
    "gather",
    "index_record",
    "index_run",
    "read_index",
    "read_messages_at",
    "same_entries",
    "scan_index",
    "scan_leaf",
    "scan_log",
    "scan_messages",
    "scan_run",
]

#: Which kernels are in use: "native" or "plain".
NAME: str = use("stantools.format", globals(), __all__)
