"""Messages of a store as batches of columns, the input of all targets.

`StepReader` reads the good records of a salvage plan again, as columns that point into the mapped file. The plan has
seen every byte, so the reader does not continue after damage: any difference from the plan means that the store has
changed since. CRCs are checked again, as later steps rely on the data read here.

`BatchFinisher` decrypts payloads and makes replies fit for headers. Most batches need neither and pass unchanged;
otherwise payloads and replies are copied into a new buffer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, Cipher, DecryptError
from stantools.format.layout import Flag
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.runs import read_run
from stantools.recovery.salvage.model import RecordCopy, Rewrite, Step
from stantools.store.mapping import WINDOW, Buffer
from stantools.store.ranges import Ranges
from stantools.streamfiles.batch import MessageBatch, texts
from stantools.streamfiles.headers import safe_value

#: limit of record bytes in one batch; a longer record has its own batch
BATCH_BYTES = WINDOW
#: the highest possible sequence
MAX_SEQUENCE = 2**64 - 1


class StepReader:
    """Reads steps of the plan of one channel.

    `subject` is that of the messages; `batch_bytes` counts records.
    """

    def __init__(
        self,
        channel: bytes,
        subject: bytes,
        crc: Crc,
        *,
        batch_bytes: int,
        batch_rows: int,
    ) -> None:
        self._channel = channel
        self._subject = subject
        self._crc = crc
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._columns = MessageColumns(0)

    def read(self, step: Step, after: int = 0, until: int = MAX_SEQUENCE) -> Iterator[MessageBatch]:
        """Yields the messages of a step with sequences in (after, until], in rising order.

        A batch is valid until the next one. Raises StoreUnreadableError if the file differs from its plan.
        """
        wanted = step.sequences
        if not wanted or wanted.last <= after or wanted.first > until:
            return
        if after >= wanted.first or until < wanted.last:
            wanted = wanted & Ranges.of([(after + 1, until)])
        if not wanted:
            return
        if isinstance(step, RecordCopy):
            rows = min(step.run.count, self._batch_rows)
            if self._columns.capacity < rows:
                self._columns = MessageColumns(rows)
            for batch in read_run(step.run, wanted, self._crc, columns=self._columns, max_bytes=self._batch_bytes):
                yield self._batch(*batch)
        else:
            yield from self._rewritten(step, wanted)

    def _rewritten(self, step: Rewrite, wanted: Ranges) -> Iterator[MessageBatch]:
        gathered: list[pb.MsgProto] = []
        size = 0
        for message in step.narrowed(wanted).messages():
            gathered.append(message)
            size += len(message.data)
            if size >= self._batch_bytes or len(gathered) == self._batch_rows:
                yield self._batch(*rewritten(gathered))
                gathered, size = [], 0
        if gathered:
            yield self._batch(*rewritten(gathered))

    def _batch(self, buffer: Buffer, columns: MessageColumns) -> MessageBatch:
        return MessageBatch(self._channel, self._subject, buffer, columns, columns.sequence)


def rewritten(messages: Sequence[pb.MsgProto]) -> tuple[Buffer, MessageColumns]:
    """Returns columns of messages that no record holds in the wanted form."""
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
    return memoryview(bytes(content)), columns


_U8 = npt.NDArray[np.uint8]
_Rows = npt.NDArray[np.bool_]

#: limit of different reply lengths that are checked at once; a batch with more is checked message by message
_MAX_LENGTHS = 64


class BatchFinisher:
    """Makes messages ready for a target.

    `channel` is the name in the records, on which the encryption key depends. Without `key` payloads stay as stored;
    with `keep_sealed` a payload stays as stored if it cannot be decrypted. Raises UsageError for an empty key.
    """

    def __init__(self, channel: bytes, key: bytes | None = None, *, keep_sealed: bool = False) -> None:
        self._channel = channel
        self._cipher = None if key is None else ChannelCipher(key, channel)
        self._keep_sealed = keep_sealed

    def finish(self, batch: MessageBatch) -> MessageBatch:
        """Returns messages with decrypted payloads, and replies that can be header values."""
        buffer, columns = batch.buffer, batch.columns
        content = np.frombuffer(buffer, np.uint8)
        sealed: _Rows | None = None
        if self._cipher:
            # A server with a key would try to decrypt payloads that begin with the code of a cipher.
            # A message without data starts at 0, a valid index unless the buffer is empty.
            first = content[columns.data_start] if len(content) else np.zeros(columns.capacity, np.uint8)
            coded = (columns.data_size > 0) & ((first == Cipher.AES) | (first == Cipher.CHACHA))
            sealed = coded if coded.any() else None
        if sealed is None and _replies_are_safe(content, buffer, columns):
            return batch
        return self._rebuild(batch, sealed)

    def _rebuild(self, batch: MessageBatch, sealed: _Rows | None) -> MessageBatch:
        """Copies payloads and replies into a new buffer."""
        buffer, columns = batch.buffer, batch.columns
        payloads = list(texts(buffer, columns.data_start, columns.data_size))
        if sealed is not None:
            self._decrypt(payloads, columns, np.flatnonzero(sealed).tolist())
        replies = [safe_value(reply) for reply in texts(buffer, columns.reply_start, columns.reply_size)]
        part = columns.part(0, columns.capacity)
        part.data_size = np.fromiter(map(len, payloads), np.uint32, len(payloads))
        part.reply_size = np.fromiter(map(len, replies), np.uint32, len(replies))
        ends = np.cumsum(part.data_size.astype(np.int64))
        part.data_start = ends - part.data_size
        part.reply_start = np.cumsum(part.reply_size.astype(np.int64)) - part.reply_size + ends[-1]
        return replace(batch, buffer=memoryview(b"".join([*payloads, *replies])), columns=part)

    def _decrypt(self, payloads: list[bytes], columns: MessageColumns, rows: list[int]) -> None:
        assert self._cipher is not None
        failed: list[tuple[int, str]] = []
        for row in rows:
            try:
                payloads[row] = self._cipher.decrypt(payloads[row])
            except DecryptError as error:
                failed.append((row, error.message))
        if failed and not self._keep_sealed:
            row, why = failed[0]
            sequences = columns.sequence
            raise DecryptError(
                f"channel {os.fsdecode(self._channel)!r}: message {int(sequences[row])} cannot be decrypted: {why} "
                f"({len(failed)} of {len(rows)} that look encrypted among messages {int(sequences[rows[0]])} to "
                f"{int(sequences[rows[-1]])})",
                "check the encryption key"
                if len(failed) == len(rows)
                else "a server with this key could not deliver them either: they were stored with another key, or "
                "plain and only look encrypted; keep their payloads as they are stored, or exclude the channel",
            )


def _replies_are_safe(content: _U8, buffer: Buffer, columns: MessageColumns) -> bool:
    """Returns whether every reply survives as a header value, as `headers.is_safe_value` does for one."""
    if not int(np.bitwise_or.reduce(columns.flags)) & Flag.HAS_REPLY:
        return True
    rows = np.flatnonzero(columns.reply_size)
    starts, sizes = columns.reply_start[rows], columns.reply_size[rows]
    lengths = np.unique(sizes).tolist()
    if len(lengths) > _MAX_LENGTHS:
        return all(safe_value(reply) == reply for reply in texts(buffer, starts, sizes))
    for length in lengths:
        # All places where that many bytes can begin, without copying; the replies are then rows of a table.
        places = np.ndarray((len(content) - length + 1,), f"V{length}", buffer, strides=(1,))
        table = places[starts[sizes == length]].view(np.uint8).reshape(-1, length)
        if (
            int(table.min()) < 0x20
            or (table == 0x7F).any()
            or (table[:, 0] == 0x20).any()
            or (table[:, -1] == 0x20).any()
        ):
            return False
    return True
