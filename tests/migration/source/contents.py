"""Reading sources and stores in the tests of migration sources."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from stantools.format import gogo, kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.message_batch import MessageBatch
from stantools.format.proto import store_pb2 as pb
from stantools.migration.source import ChannelSource, StoreSource
from stantools.store.directory import open_datastore
from stantools.store.mapping import mapped
from stantools.store.slice_reader import SliceFile
from tests.migration.stores import CRC, Record

#: A message: timestamp, reply, payload.
Message = tuple[int, bytes, bytes]


def contents(batches: Iterable[MessageBatch], subject: bytes | None = None) -> dict[int, Message]:
    """Reads batches, which must come in rising order: stream sequence -> message."""
    found: dict[int, Message] = {}
    last = 0
    for batch in batches:
        assert len(batch) > 0
        assert subject is None or batch.subject == subject
        for name in MessageColumns.names:
            assert len(getattr(batch, name)) == len(batch) == batch.capacity, name
        for row, (sequence, timestamp) in enumerate(
            zip(batch.stream_sequence.tolist(), batch.timestamp.tolist(), strict=True)
        ):
            assert sequence > last
            last = sequence
            found[sequence] = timestamp, batch.reply(row), batch.data(row)
    return found


def stored(root: Path, crc: Crc = CRC) -> dict[str, dict[int, Message]]:
    """Reads every good message of a store, one by one: channel -> sequence -> message."""
    found: dict[str, dict[int, Message]] = {}
    for channel in open_datastore(root).channels():
        here = found.setdefault(channel.name, {})
        for one in channel.slices:
            assert one.data is not None
            with mapped(one.data) as data:
                for event in SliceFile(data, channel.raw_name, crc).records():
                    if isinstance(event, MessageColumns):
                        for offset, size in zip(event.offset.tolist(), event.size.tolist(), strict=True):
                            message = gogo.decode(pb.MsgProto, data[offset + 8 : offset + 8 + size])
                            here[message.sequence] = message.timestamp, bytes(message.reply), bytes(message.data)
    return found


def write_slices(
    root: Path, channel: bytes, slices: Sequence[Sequence[Record]], *, subject: bytes | None = None, start: int = 1
) -> None:
    """Writes slices of a channel without indexes; a server would rebuild those.

    Args:
        root: The store.
        channel: The channel's directory.
        slices: The messages of each slice.
        subject: The subject of the messages, if it is not the channel.
        start: The number of the first slice.
    """
    directory = root / os.fsdecode(channel)
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "subs.dat").exists():
        (directory / "subs.dat").write_bytes(b"\1\0\0\0")
    for number, records in enumerate(slices, start):
        data, _ = kernels.encode_messages(
            channel if subject is None else subject,
            [r[0] for r in records],
            [r[1] for r in records],
            [r[2] for r in records],
            [r[3] for r in records],
            CRC,
        )
        (directory / f"msgs.{number}.dat").write_bytes(b"\1\0\0\0" + bytes(data))


def only(source: StoreSource) -> ChannelSource:
    """Returns the only channel of a source."""
    (channel,) = source.channels
    return channel
