"""The work on many frames at once: the compiled kernels where they were built, else the plain ones.

Both give the same results. The environment variable `STANTOOLS_KERNELS` forces one: `plain` or `native`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import choose

_kernels = choose("stantools.nats")

#: Which kernels are in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from stantools.nats.plain import (
        Names,
        encode_block,
        encode_messages,
        encode_publishes,
        parse_messages,
        parse_publishes,
        read_deliveries,
    )
else:
    Names = _kernels.Names
    encode_block = _kernels.encode_block
    encode_messages = _kernels.encode_messages
    encode_publishes = _kernels.encode_publishes
    parse_messages = _kernels.parse_messages
    parse_publishes = _kernels.parse_publishes
    read_deliveries = _kernels.read_deliveries

__all__ = [
    "NAME",
    "Names",
    "encode_block",
    "encode_messages",
    "encode_publishes",
    "parse_messages",
    "parse_publishes",
    "read_deliveries",
]
