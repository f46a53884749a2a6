"""The work on many frames at once: the compiled kernels where they were built, else the plain ones.

Both give the same results. The environment variable `STANTOOLS_KERNELS` forces one: `plain` or `native`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import use

if TYPE_CHECKING:
    from stantools.nats.plain import (
        Names,
        encode_block,
        encode_message,
        encode_messages,
        encode_numbers,
        encode_publishes,
        hand_out,
        parse_gathered,
        parse_messages,
        parse_publishes,
        put_acknowledgements,
        read_deliveries,
        subject_runs,
    )

__all__ = [
    "Names",
    "encode_block",
    "encode_message",
    "encode_messages",
    "encode_numbers",
    "encode_publishes",
    "hand_out",
    "parse_gathered",
    "parse_messages",
    "parse_publishes",
    "put_acknowledgements",
    "read_deliveries",
    "subject_runs",
]

#: Which kernels are in use: "native" or "plain".
NAME: str = use("stantools.nats", globals(), __all__)
