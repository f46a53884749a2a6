"""Batches to build archives from, and what must be in these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stantools.format.columns import MessageColumns
from stantools.format.message_batch import MessageBatch
from stantools.streamfiles.headers import header_block
from stantools.streamfiles.reader import ArchiveReader

TIME = 1_600_000_000_123_456_789
#: What a server adds to the configuration of a stream that says nothing of it, in the order in which it is kept.
STREAM_DEFAULTS = {
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120_000_000_000,
}


@dataclass(frozen=True)
class Item:
    """A message of a channel. `at` is its sequence in the stream, if that is another one."""

    sequence: int
    timestamp: int = TIME
    data: bytes = b""
    reply: bytes = b""
    at: int = 0

    @property
    def place(self) -> int:
        return self.at or self.sequence


def batch(messages: Sequence[Item], channel: bytes = b"foo.bar", subject: bytes = b"") -> MessageBatch:
    columns = MessageColumns(len(messages))
    buffer = bytearray(b"in front")
    for row, message in enumerate(messages):
        columns.sequence[row], columns.timestamp[row] = message.sequence, message.timestamp
        if message.data:
            columns.data_start[row], columns.data_size[row] = len(buffer), len(message.data)
            buffer += message.data
        if message.reply:
            columns.reply_start[row], columns.reply_size[row] = len(buffer), len(message.reply)
            buffer += message.reply
    made = MessageBatch(columns, memoryview(bytes(buffer)), channel, subject or channel)
    made.stream_sequence = np.array([message.place for message in messages], np.uint64)
    return made


def numbered(sequences: Sequence[int], size: int = 12) -> list[Item]:
    return [Item(n, TIME + n, b"%0*d" % (size, n)) for n in sequences]


def record_content(message: Item, channel: bytes, subject: bytes, origin: bool) -> tuple[object, ...]:
    """Sequence, time, subject, header block and payload that the record of a message must have."""
    block = header_block(channel, message.sequence, message.timestamp, message.reply, origin=origin)
    return message.place, message.timestamp, subject, block, message.data


def contents(reader: ArchiveReader) -> tuple[list[tuple[object, ...]], list[int], dict[int, int]]:
    """The messages of an archive, the sequences that it skips, and how many records each block has."""
    messages: list[tuple[object, ...]] = []
    skips: list[int] = []
    blocks: dict[int, int] = {}
    for records in reader.records():
        blocks[reader.block] = blocks.get(reader.block, 0) + len(records)
        for row in range(len(records)):
            if records.flags[row]:
                assert records.flags[row] == 2
                skips.append(int(records.sequence[row]))
                continue
            facts = (int(records.sequence[row]), int(records.timestamp[row]))
            messages.append((*facts, records.subject(row), records.header(row), records.data(row)))
    return messages, skips, blocks
