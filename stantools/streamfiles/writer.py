"""Building a stream archive (jetstream-migration.md section 5), piece by piece, with about two blocks of memory.

    meta.inf, meta.sum         the stream's configuration
    msgs/1.blk, msgs/2.blk, …  its messages, with skip records for missing sequences
    obs/<consumer>/…           configuration and state of each consumer

A server that receives these bytes creates the whole stream or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stantools.errors import RefusedError
from stantools.format.message_batch import MessageBatch
from stantools.streamfiles import framing, highwayhash, kernels, meta
from stantools.streamfiles.framing import STORED, Framer
from stantools.streamfiles.layout import (
    EMPTY_RECORD_SIZE,
    MAX_RECORD_SIZE,
    MAX_SEQUENCE,
    MAX_SKIPS,
    OpenBlock,
    WriteStop,
    record_sizes,
)
from stantools.streamfiles.meta import ArchiveState, ConsumerState, StreamTally, encode_consumer, measure
from stantools.streamfiles.record_batch import RecordBatch

__all__ = ["ArchiveState", "ConsumerEntry", "StreamArchive", "measure"]

#: bytes of a block that a gap after its last message may need
_SKIPS_SIZE: Final = MAX_SKIPS * EMPTY_RECORD_SIZE
#: the last file before the messages: the archive up to it is sent at once
_LAST_OF_STREAM: Final = "meta.sum"


@dataclass(frozen=True, slots=True)
class ConsumerEntry:
    name: str
    config: Mapping[str, Any]  #: configuration in the form of the API
    state: ConsumerState | None = None  #: its position; None if it begins where its configuration says


class StreamArchive:
    """Builds the archive of one stream.

    The stream's name is part of the hashes, so it cannot be changed later. Fields of the configuration that some
    servers do not know are omitted; `whole` configurations are in the form of `meta.inf`, and kept. With `origin`,
    messages get headers with channel, sequence and time. Raises RefusedError if a stream with this configuration cannot
    be restored from an archive.
    """

    def __init__(
        self,
        stream: str,
        config: Mapping[str, Any],
        created_ns: int,
        *,
        origin: bool,
        compression: str = STORED,
        block_bytes: int = 8_000_000,
        whole: bool = False,
    ) -> None:
        self._stream = stream
        self._whole = whole
        self._meta = meta.encode_config(config) if whole else meta.stream_meta(stream, config, created_ns)
        self._created = created_ns
        self._modified = created_ns // 1_000_000_000
        self._origin = origin
        self._framer = Framer(compression)
        self._tally = StreamTally()
        self._last = 0
        self._index = 1
        self._file = np.zeros(0, np.uint8)
        self._block = OpenBlock(self._file, block_bytes, highwayhash.block_key(stream, 1))

    @property
    def state(self) -> ArchiveState:
        """The state that the server must report after all pieces; complete then."""
        return self._tally.state(self._last)

    def pieces(
        self, batches: Iterable[MessageBatch | RecordBatch], consumers: Callable[[], Sequence[ConsumerEntry]], last: int
    ) -> Iterator[memoryview]:
        """Builds the archive of all messages, in rising order; may be called once.

        `consumers` is called after the last message; `last` is the last sequence that the stream has used, with or
        without a message. Yields whole frames, so that a receiving server does not wait for the rest of one; a piece
        is valid until the next one is requested.

        Raises RefusedError for a message too large for a record, a first one without a time, or impossible
        sequences, and UsageError for a consumer's state that contradicts itself.
        """
        small = bytearray()
        for name, content in self.members(batches, consumers, last):
            if isinstance(content, memoryview):
                size = len(content)
                end = framing.UNIT + size + framing.padding(size)
                self._file[: framing.UNIT] = np.frombuffer(framing.file_header(name, size, self._modified), np.uint8)
                self._file[framing.UNIT + size : end] = 0
                yield self._framer.frame(self._file.data[:end])
                continue
            small += framing.whole_file(name, content, self._modified)
            if name == _LAST_OF_STREAM:
                yield self._framer.frame(small)
                small = bytearray()
        yield self._framer.frame(small + framing.END)

    def members(
        self, batches: Iterable[MessageBatch | RecordBatch], consumers: Callable[[], Sequence[ConsumerEntry]], last: int
    ) -> Iterator[tuple[str, bytes | memoryview]]:
        """Builds the files of the archive, which are also those of the stream's directory on a server.

        It is an alternative to `pieces`, with the same arguments and exceptions. Yields the relative name and the
        content of each file. Blocks are a `memoryview`, valid until the next file is requested.
        """
        yield from self._described("", self._meta, highwayhash.stream_key(self._stream))
        self._reserve(self._block.room)
        for batch in batches:
            yield from self._add(batch)
        yield from self._add_end(last)
        for entry in consumers():
            folder = f"obs/{entry.name}/"
            whole = self._whole
            config = (
                meta.encode_config(entry.config)
                if whole
                else meta.consumer_meta(entry.name, entry.config, self._created)
            )
            yield from self._described(folder, config, highwayhash.consumer_key(self._stream, entry.name))
            if entry.state is not None:
                yield f"{folder}o.dat", encode_consumer(entry.state)

    def _described(self, folder: str, config: bytes, key: bytes) -> Iterator[tuple[str, bytes]]:
        yield f"{folder}meta.inf", config
        yield f"{folder}meta.sum", meta.meta_sum(config, key)

    def _reserve(self, room: int) -> None:
        """Makes the block large enough for `room` bytes of records, and discards its content."""
        # its tar header goes before it, its padding after it
        self._file = np.empty(framing.UNIT + room + _SKIPS_SIZE + framing.UNIT, np.uint8)
        self._block.content = self._file[framing.UNIT : -framing.UNIT]

    def _add(self, batch: MessageBatch | RecordBatch) -> Iterator[tuple[str, memoryview]]:
        row = 0
        if not self._tally.messages and len(batch) and not batch.timestamp[0]:
            raise RefusedError(
                f"{_place(batch, 0)} has no time; as the first one of stream "
                f"{self._stream} it would make servers hide all messages as soon as another one is published",
                "choose the way publish for this channel",
            )
        while True:
            before = row
            row, size, stop = self._write(batch, row)
            self._tally.add(batch.stream_sequence[before:row], batch.timestamp[before:row], size)
            if stop is WriteStop.DONE:
                return
            if stop is WriteStop.FULL and not self._block.position:
                self._reserve(int(self._sizes(batch)[row]))
            elif stop in (WriteStop.FULL, WriteStop.GAP):
                yield self._finish_block()
            else:
                raise self._record_error(batch, row, stop)

    def _write(self, batch: MessageBatch | RecordBatch, row: int) -> tuple[int, int, WriteStop]:
        if isinstance(batch, RecordBatch):
            return kernels.copy_records(batch, row, self._block)
        return kernels.encode_records(batch, row, self._block, self._origin)

    def _sizes(self, batch: MessageBatch | RecordBatch) -> NDArray[np.int64]:
        if isinstance(batch, RecordBatch):
            return batch.length.astype(np.int64)
        return record_sizes(batch, len(batch.channel), len(batch.subject), self._origin)[0]

    def _add_end(self, last: int) -> Iterator[tuple[str, memoryview]]:
        """Skip records up to the last sequence."""
        if last > MAX_SEQUENCE:
            raise self._sequence_error(last)
        self._last = last
        missing = last - self._tally.last_seq
        if missing > 0:
            count, time = missing, self._tally.last_ts
            if not self._tally.messages:
                count, time = 1, self._created
            elif missing > MAX_SKIPS:
                # A server may append to the last block: so not to one with a giant gap.
                yield self._finish_block()
                count = 1
            kernels.encode_skips(self._block, last - count + 1, count, time)
        if self._block.position:
            yield self._finish_block()

    def _finish_block(self) -> tuple[str, memoryview]:
        """Name and content of the block so far; begins the next one."""
        block = self._block
        name, content = f"msgs/{self._index}.blk", block.content[: block.position].data
        self._index += 1
        block.position, block.key = 0, highwayhash.block_key(self._stream, self._index)
        return name, content

    def _record_error(self, batch: MessageBatch | RecordBatch, row: int, stop: WriteStop) -> RefusedError:
        number = int(batch.stream_sequence[row])
        if stop is WriteStop.TOO_LARGE:
            return RefusedError(
                f"{_place(batch, row)} needs {int(self._sizes(batch)[row])} bytes in stream {self._stream}, "
                f"a server takes at most {MAX_RECORD_SIZE} from an archive",
                "leave the channel out, or choose the way publish",
            )
        if number > MAX_SEQUENCE:
            return self._sequence_error(number)
        return RefusedError(
            f"{_place(batch, row)}: in stream {self._stream} comes sequence {number} after {self._tally.last_seq}",
            "see what `stantools verify` says about the channel",
        )

    def _sequence_error(self, number: int) -> RefusedError:
        return RefusedError(
            f"sequence {number} is more than a stream can have: stream {self._stream} ends at {MAX_SEQUENCE}",
            "see what `stantools verify` says about the channel",
        )


def _place(batch: MessageBatch | RecordBatch, row: int) -> str:
    if isinstance(batch, RecordBatch):
        return f"message {int(batch.sequence[row])}"
    return f"channel {batch.channel.decode('utf-8', 'backslashreplace')}: message {int(batch.sequence[row])}"
