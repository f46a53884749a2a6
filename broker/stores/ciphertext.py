"""A check whether a store used without encryption holds encrypted messages: it samples the ends of channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker.stores.blocklist import decoded
from broker.stores.interface import ChannelStore, MessageStore, StorageError
from stantools.format.crc import Crc
from stantools.format.encryption import may_be_encrypted

#: channels that are sampled, and messages at each end of one
_CHANNELS: Final = 256
_SAMPLES: Final = 4


def suspected(channels: Mapping[bytes, tuple[ChannelStore, Any]], crc: Crc) -> list[bytes]:
    """Returns the channels whose first or last messages may be encrypted; of many channels only some are sampled."""
    step = -(-len(channels) // _CHANNELS) or 1
    names = list(channels)[::step]
    return [name for name in names if may_be_encrypted(_samples(name, channels[name][0].messages, crc))]


def _samples(name: bytes, messages: MessageStore, crc: Crc) -> Iterator[tuple[int, memoryview]]:
    last = messages.last
    starts = sorted({messages.first, max(messages.first, last - _SAMPLES + 1)}) if last else ()
    try:
        for start in starts:
            try:
                records = messages.read(start, _SAMPLES)
                columns, _ = decoded(records, name, crc)
            except (StorageError, OSError):
                continue  # the error is reported when a client reads the message
            data = memoryview(records.data)
            rows = zip(records.sequences.tolist(), columns.data_start.tolist(), columns.data_size.tolist(), strict=True)
            yield from ((sequence, data[begin : begin + size]) for sequence, begin, size in rows if size)
    finally:
        messages.end_reading()
