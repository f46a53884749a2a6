"""Blocks of messages for the tests of stores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker.record_buffer import MessageRecordBuffer
from broker.stores.blocklist import block_of
from broker.stores.interface import ChannelStore, FlushOutcome, MessageStore, StateStore, StorageError
from stantools.format import gogo, kernels
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
IEEE = Crc()


def block(
    channel: bytes,
    first: int,
    payloads: Sequence[bytes],
    *,
    times: Sequence[int] | None = None,
    replies: Sequence[bytes] | None = None,
    crc: Crc = IEEE,
) -> MessageRecordBuffer:
    """Messages with headers, as the streaming rules hand them over; one a second unless you say otherwise."""
    sequences = np.arange(first, first + len(payloads), dtype=np.uint64)
    if times is None:
        times = [START + sequence * SECOND for sequence in range(first, first + len(payloads))]
    timestamps = np.array(times, np.int64)
    data, sizes = kernels.encode_messages(channel, sequences, timestamps, replies, payloads, crc)
    records = block_of(data, sizes, sequences, timestamps)
    # As from the streaming rules, and as from somebody who does not say how much it is.
    if first % 2 == 0:
        records.total = -1
    return records


def message(records: MessageRecordBuffer, row: int) -> pb.MsgProto:
    return gogo.decode(pb.MsgProto, records.payload(row))


def everything(store: MessageStore, *, first: int = 1, count: int = 1 << 30, size: int = 1 << 20) -> list[pb.MsgProto]:
    """Reads until nothing comes."""
    found: list[pb.MsgProto] = []
    while True:
        records = store.read(first, count, size)
        if not len(records):
            return found
        messages = [message(records, row) for row in range(len(records))]
        assert [each.sequence for each in messages] == records.sequences.tolist()
        assert [each.timestamp for each in messages] == records.timestamps.tolist()
        found += messages
        first = messages[-1].sequence + 1


def made(store: StateStore, name: bytes) -> ChannelStore:
    """Adds a channel and waits until it is there."""
    channel = store.create_channel(name)
    flush(store, channel.messages)
    return channel


def flush(store: StateStore, *channels: MessageStore) -> None:
    """Flushes channels, all at once, and waits until that is over. Raises what the first that failed says."""
    under_way = [flush for messages in channels if (flush := messages.flush()) is not None]
    store.settle()
    done = store.completed()
    assert set(under_way) <= set(done)
    for each in under_way:
        if each.outcome is not FlushOutcome.STORED:
            raise StorageError(each.error)
