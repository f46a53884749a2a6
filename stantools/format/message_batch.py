"""Messages in batches: columns, and the buffer that they point into.

Readers of slices, tables, migrations and the broker pass messages on in this form. Nothing is copied until a payload
or a reply is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self

from stantools.format import gogo, kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.encryption import Cipher, DataCipher, DecryptError
from stantools.format.envelope import Buffer
from stantools.format.layout import RECORD_HEADER_SIZE, Flag
from stantools.format.proto import store_pb2 as pb
from stantools.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class MessageBatch(MessageColumns):
    """Messages of one channel, in the order of a file or a stream. Valid until the reader's next step."""

    __slots__ = ("buffer", "channel", "records", "stream_sequence", "subject")

    buffer: Buffer  #: where `data_start` and `reply_start` point
    records: Buffer  #: where `offset` points: the buffer itself, unless payloads were decrypted
    channel: bytes  #: the channel's name in the store; for a separate generation, its own name
    subject: bytes  #: subject in the stream; by default the channel's name
    #: The sequence of each row in the stream: `sequence` itself unless the stream is renumbered.
    stream_sequence: NDArray[np.uint64]

    def __init__(self, columns: MessageColumns, buffer: Buffer, channel: bytes, subject: bytes | None = None) -> None:
        self.capacity = columns.capacity
        self.offset, self.size = columns.offset, columns.size
        self.sequence, self.timestamp = columns.sequence, columns.timestamp
        self.data_start, self.data_size = columns.data_start, columns.data_size
        self.reply_start, self.reply_size = columns.reply_start, columns.reply_size
        self.flags = columns.flags
        self.buffer = self.records = buffer
        self.channel, self.subject = channel, channel if subject is None else subject
        self.stream_sequence = self.sequence

    @classmethod
    def at(
        cls, buffer: Buffer, offsets: NDArray[np.int64], channel: bytes, crc: Crc, columns: MessageColumns | None = None
    ) -> tuple[Self, NDArray[np.uint8]]:
        """Reads the record at each of the given offsets, and returns the reason for each bad one (`ScanStop`)."""
        rows = len(offsets)
        columns, stops = MessageColumns(rows) if columns is None else columns.take(rows), np.zeros(rows, np.uint8)
        kernels.read_messages_at(buffer, len(buffer), offsets, crc, channel, columns, stops)
        return cls(columns, buffer, channel), stops

    @classmethod
    def of_messages(cls, messages: Sequence[pb.MsgProto], channel: bytes, subject: bytes | None = None) -> Self:
        """Returns messages that no record holds in the wanted form."""
        columns = MessageColumns(len(messages))
        content = bytearray()
        for row, message in enumerate(messages):
            columns.offset[row], columns.size[row] = len(content), message.ByteSize()
            columns.sequence[row], columns.timestamp[row] = message.sequence, message.timestamp
            columns.data_start[row], columns.data_size[row] = len(content) if message.data else 0, len(message.data)
            content += message.data
            columns.reply_start[row], columns.reply_size[row] = len(content) if message.reply else 0, len(message.reply)
            content += message.reply
            columns.flags[row] = Flag.HAS_REPLY if message.reply else 0
        return cls(columns, memoryview(bytes(content)), channel, subject)

    @classmethod
    def of_payload(cls, sequence: int, timestamp: int, content: bytes, subject: bytes) -> Self:
        """Returns one message of no channel."""
        columns = MessageColumns(1)
        columns.sequence[0], columns.timestamp[0], columns.data_size[0] = sequence, timestamp, len(content)
        return cls(columns, memoryview(content), b"", subject)

    def part(self, low: int, high: int) -> Self:
        return self._completed(super().part(low, high), slice(low, high))

    def pick(self, rows: NDArray[Any]) -> Self:
        return self._completed(super().pick(rows), rows)

    def _completed(self, part: Self, rows: slice | NDArray[Any]) -> Self:
        part.buffer, part.records, part.channel, part.subject = self.buffer, self.records, self.channel, self.subject
        renumbered = self.stream_sequence is not self.sequence
        part.stream_sequence = self.stream_sequence[rows] if renumbered else part.sequence
        return part

    def data(self, row: int) -> bytes:
        return text(self.buffer, self.data_start, self.data_size, row)

    def reply(self, row: int) -> bytes:
        return text(self.buffer, self.reply_start, self.reply_size, row)

    def payloads(self) -> Iterator[bytes]:
        return texts(self.buffer, self.data_start, self.data_size)

    def replies(self) -> Iterator[bytes]:
        if not self.reply_size.any():
            return repeat(b"", self.capacity)
        return texts(self.buffer, self.reply_start, self.reply_size)

    def messages(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Iterates over the rows: sequence in the channel, time in nanoseconds since 1970, reply subject, payload."""
        return zip(self.sequence.tolist(), self.timestamp.tolist(), self.replies(), self.payloads(), strict=True)

    def opened(self, cipher: DataCipher | None) -> Iterator[tuple[bytes, str]]:
        """Iterates over the payloads as a server with the cipher's key delivers them.

        Each has the reason why it cannot be decrypted and is as stored, else "".
        """
        for payload in self.payloads():
            data, problem = payload, ""
            if cipher is not None:
                try:
                    data = cipher.decrypt(payload)
                except DecryptError as error:
                    problem = error.message
            yield data, problem

    @property
    def has_foreign(self) -> bool:
        """Some records have another subject than the channel."""
        return bool(int(np.bitwise_or.reduce(self.flags)) & Flag.FOREIGN_SUBJECT)

    def record_subject(self, row: int) -> bytes:
        """Returns the subject in a record."""
        if not int(self.flags[row]) & Flag.FOREIGN_SUBJECT:
            return self.channel
        start = int(self.offset[row]) + RECORD_HEADER_SIZE
        return bytes(gogo.decode(pb.MsgProto, self.records[start : start + int(self.size[row])]).subject)

    def coded(self) -> NDArray[np.bool_]:
        """Returns the rows whose payloads begin with the code of a cipher: a server with a key would decrypt them."""
        if not len(self.buffer):
            return np.zeros(self.capacity, np.bool_)
        # A message without data starts at 0, which is a valid place.
        first = np.frombuffer(self.buffer, np.uint8)[self.data_start]
        coded: NDArray[np.bool_] = (self.data_size > 0) & ((first == Cipher.AES) | (first == Cipher.CHACHA))
        return coded

    def with_contents(self, payloads: Sequence[Buffer], replies: Sequence[bytes]) -> Self:
        """Returns the messages with other payloads and replies, in a buffer of their own."""
        batch = self.part(0, self.capacity)
        batch.data_size = np.fromiter(map(len, payloads), np.uint32, len(payloads))
        batch.reply_size = np.fromiter(map(len, replies), np.uint32, len(replies))
        ends = np.cumsum(batch.data_size, dtype=np.int64)
        batch.data_start = ends - batch.data_size
        batch.reply_start = np.cumsum(batch.reply_size, dtype=np.int64) - batch.reply_size + ends[-1]
        batch.buffer = memoryview(b"".join([*payloads, *replies]))
        return batch


def text(buffer: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.uint32], row: int) -> bytes:
    start = int(starts[row])
    return bytes(buffer[start : start + int(sizes[row])])


def texts(buffer: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.uint32]) -> Iterator[bytes]:
    ends = (starts + sizes).tolist()
    return (bytes(buffer[start:end]) for start, end in zip(starts.tolist(), ends, strict=True))
