"""The work on many messages at once: the compiled kernels where they were built, else the plain ones (same results).

The environment variable `STANTOOLS_KERNELS` forces one: `plain` or `native`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import choose

_kernels = choose("broker.streaming.hot")

#: Which kernels are in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from broker.streaming.hot.plain import encode_records, read_acks, read_publishes
else:
    encode_records = _kernels.encode_records
    read_acks = _kernels.read_acks
    read_publishes = _kernels.read_publishes

__all__ = ["NAME", "encode_records", "read_acks", "read_publishes"]
