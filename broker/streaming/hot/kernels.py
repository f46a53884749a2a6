"""The work on many messages at once: the compiled kernels where they were built, else the plain ones (same results).

The environment variable `STANTOOLS_KERNELS` forces one: `plain` or `native`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import use

if TYPE_CHECKING:
    from broker.streaming.hot.plain import (
        encode_lone_records,
        encode_records,
        read_acks,
        read_lone_acks,
        read_publishes,
    )

__all__ = [
    "encode_lone_records",
    "encode_records",
    "read_acks",
    "read_lone_acks",
    "read_publishes",
]

#: Which kernels are in use: "native" or "plain".
NAME: str = use("broker.streaming.hot", globals(), __all__)
