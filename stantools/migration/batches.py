"""Messages of a store as batches of columns, the input of all targets.

`StepReader` reads the good records of a salvage plan again, as columns that point into the mapped file. The plan has
seen every byte, so the reader does not continue after damage: any difference from the plan means that the store has
changed since. CRCs are checked again, as later steps rely on the data read here.

`BatchFinisher` decrypts payloads and makes replies fit for headers. Most batches need neither and pass unchanged;
otherwise payloads and replies are copied into a new buffer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, DecryptError
from stantools.format.message_batch import MessageBatch
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.runs import read_run
from stantools.recovery.salvage.model import RecordCopy, Rewrite, Step
from stantools.store.mapping import WINDOW
from stantools.store.ranges import Ranges
from stantools.streamfiles.messages import safe_replies

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
            for batch in read_run(step.run, wanted, self._crc, rows=self._batch_rows, max_bytes=self._batch_bytes):
                batch.channel, batch.subject = self._channel, self._subject
                yield batch
        else:
            yield from self._rewritten(step, wanted)

    def _rewritten(self, step: Rewrite, wanted: Ranges) -> Iterator[MessageBatch]:
        gathered: list[pb.MsgProto] = []
        size = 0
        for message in step.narrowed(wanted).messages():
            gathered.append(message)
            size += len(message.data)
            if size >= self._batch_bytes or len(gathered) == self._batch_rows:
                yield MessageBatch.of_messages(gathered, self._channel, self._subject)
                gathered, size = [], 0
        if gathered:
            yield MessageBatch.of_messages(gathered, self._channel, self._subject)


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
        coded = batch.coded() if self._cipher else None
        replies = safe_replies(batch)
        if replies is None and (coded is None or not coded.any()):
            return batch
        payloads, problems = zip(*batch.opened(self._cipher), strict=True)
        failed = [(row, problem) for row, problem in enumerate(problems) if problem]
        if failed and not self._keep_sealed:
            row, problem = failed[0]
            sealed = batch.sequence[coded].tolist()
            raise DecryptError(
                f"channel {os.fsdecode(self._channel)!r}: message {int(batch.sequence[row])} cannot be decrypted: "
                f"{problem} ({len(failed)} of {len(sealed)} that look encrypted among messages {sealed[0]} to "
                f"{sealed[-1]})",
                "check the encryption key"
                if len(failed) == len(sealed)
                else "a server with this key could not deliver them either: they were stored with another key, or "
                "plain and only look encrypted; keep their payloads as they are stored, or exclude the channel",
            )
        return batch.with_contents(payloads, list(batch.replies()) if replies is None else replies)
