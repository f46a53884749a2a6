"""Batches and sources without a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stantools.format.columns import MessageColumns
from stantools.migration.batches import Batch


class Item(NamedTuple):
    """A message."""

    sequence: int
    data: bytes
    timestamp: int = 1_600_000_000_000_000_000
    reply: bytes = b""


def make_batch(items: Sequence[Item], channel: bytes = b"orders", subject: bytes | None = None) -> Batch:
    """Builds a batch."""
    columns = MessageColumns(len(items))
    buffer = bytearray(b"left out of every message")
    for row, item in enumerate(items):
        columns.sequence[row] = item.sequence
        columns.timestamp[row] = item.timestamp
        for start, size, value in (
            (columns.data_start, columns.data_size, item.data),
            (columns.reply_start, columns.reply_size, item.reply),
        ):
            start[row] = len(buffer) if value else 0
            size[row] = len(value)
            buffer += value
    sequence = np.array([item.sequence for item in items], np.uint64)
    return Batch(channel, channel if subject is None else subject, memoryview(bytes(buffer)), columns, sequence)


@dataclass
class FakeSource:
    """A source of listed messages, in batches of a few."""

    items: Sequence[Item]
    last: int = 0
    channel: bytes = b"orders"
    batch_rows: int = 1000
    reads: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = max(self.last, self.items[-1].sequence if self.items else 0)

    @property
    def count(self) -> int:
        return len(self.items)

    @property
    def first(self) -> int:
        return self.items[0].sequence if self.items else 0

    def read(self, *, after: int = 0) -> Iterator[Batch]:
        self.reads.append(after)
        left = [item for item in self.items if item.sequence > after]
        for at in range(0, len(left), self.batch_rows):
            yield make_batch(left[at : at + self.batch_rows], self.channel)
