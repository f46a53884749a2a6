"""Frame tables for tests: what the parser of the broker makes of PUB and HPUB."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from stantools.nats import frames, kernels
from stantools.nats.frames import Frames, frame_table
from tests.oracles import nats as oracle


def lay_out(messages: Sequence[tuple[bytes, bytes, bytes]]) -> tuple[bytes, Frames]:
    """A buffer with messages of (reply subject, headers, payload), and the table of their frames."""
    table = frame_table(len(messages))
    buffer = bytearray(b"PUB subject ")
    for row, (reply, headers, payload) in zip(table, messages, strict=True):
        row[frames.SUBJECT], row[frames.SUBJECT_SIZE] = 4, 7
        row[frames.REPLY], row[frames.REPLY_SIZE] = len(buffer), len(reply)
        buffer += reply + b" \r\n"
        row[frames.HEADER_SIZE] = len(headers)
        row[frames.PAYLOAD], row[frames.PAYLOAD_SIZE] = len(buffer), len(headers) + len(payload)
        buffer += headers + payload + b"\r\n"
    return bytes(buffer), table


def names_for(kernel: ModuleType) -> Any:
    """A table of names that kernels of that kind look into."""
    return (oracle if kernel.__name__.startswith("tests.") else kernels).Names()
