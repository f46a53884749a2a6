"""Files with messages of one stream, and the messages that are chosen from them, in rising order.

Files come in the order of jetstream-store.md section 24: the first one that has a message gives it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.block_survey import BlockSurvey
from stantools.streamfiles.damage import scan
from stantools.streamfiles.raft_operations import LoggedMessage
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.survey import StreamSurvey

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: files whose records are in memory at a time
_MAX_OPEN: Final = 4
#: key of hashes that compare messages, whatever block they are in
_CONTENT_KEY: Final = highwayhash.stream_key("")


class RecordFile(Protocol):
    """A file with messages of a stream."""

    @property
    def file(self) -> str:
        """Its path, relative to the salvaged directory."""

    @property
    def sequences(self) -> Ranges:
        """Of its messages that are good."""

    def batches(self, opened: ExitStack) -> Iterator[RecordBatch]:
        """Yields its messages, which are there as long as the stack is open."""


@dataclass(slots=True)
class BlockFileRecords:
    """The messages in a block file."""

    survey: StreamSurvey
    block: BlockSurvey
    file: str

    @property
    def sequences(self) -> Ranges:
        return self.block.sequences

    def batches(self, opened: ExitStack) -> Iterator[RecordBatch]:
        content = opened.enter_context(self.survey.directory.content(self.block.file))
        for piece in scan(content.data, self.block.key):
            if isinstance(piece, RecordBatch):
                yield piece.messages


class MadeRecords:
    """Messages that are not records of a block, or whose records had to be repaired."""

    def __init__(self, file: str, messages: Sequence[LoggedMessage]) -> None:
        self.file = file
        self._messages = messages
        self.sequences = Ranges.of((each.sequence, each.sequence) for each in messages)

    def batches(self, _opened: ExitStack) -> Iterator[RecordBatch]:
        data = b"".join(
            kernels.encode_record(each.sequence, each.time, each.subject, each.headers, each.payload, _CONTENT_KEY)
            for each in self._messages
        )
        for piece in scan(data, _CONTENT_KEY):
            assert isinstance(piece, RecordBatch)
            yield piece


class _LoadedRecords:
    """The messages of a file in memory, in rising order; of equal sequences the first."""

    def __init__(self, records: RecordFile) -> None:
        self.stack = ExitStack()
        parts: list[RecordBatch] = []
        for batch in records.batches(self.stack):
            numbers = batch.sequence
            if len(numbers) > 1 and bool((numbers[1:] <= numbers[:-1]).any()):
                firsts = np.zeros(len(numbers), np.bool_)
                firsts[np.unique(numbers, return_index=True)[1]] = True
                batch = batch.take(firsts)
                batch = batch.take(np.argsort(batch.sequence, kind="stable"))
            if len(batch):
                # copies, since the reader uses the columns again
                parts.append(batch.take(np.ones(len(batch), np.bool_)))
        self.parts = parts
        self.rises = all(int(before.sequence[-1]) < int(after.sequence[0]) for before, after in pairwise(parts))

    def chosen(self, wanted: Ranges) -> Iterator[RecordBatch]:
        if self.rises:
            for part in self.parts:
                if wanted.meets(int(part.sequence[0]), int(part.sequence[-1])):
                    mask = wanted.select(part.sequence)
                    if mask.all():
                        yield part
                    elif mask.any():
                        yield part.take(mask)
            return
        rows = [
            (sequence, number, row)
            for number, part in enumerate(self.parts)
            for row, sequence in enumerate(part.sequence.tolist())
            if sequence in wanted
        ]
        last = 0
        for sequence, number, row in sorted(rows):
            if sequence > last:
                yield self.parts[number].take(slice(row, row + 1))
                last = sequence


@dataclass
class ChosenRecords:
    """The messages of a stream, from one or several files."""

    parts: list[tuple[RecordFile, Ranges]] = field(default_factory=list)

    @property
    def sequences(self) -> Ranges:
        return Ranges.union(chosen for _, chosen in self.parts)

    def counts(self) -> dict[str, int]:
        """Returns the number of messages from each file."""
        counts: dict[str, int] = {}
        for records, chosen in self.parts:
            if chosen:
                counts[records.file] = counts.get(records.file, 0) + chosen.count()
        return counts

    def read(self) -> Iterator[RecordBatch]:
        """Yields the messages in rising order."""
        pieces = sorted(
            ((first, last, number) for number, (_, chosen) in enumerate(self.parts) for first, last in chosen),
        )
        with _OpenFiles() as files:
            for number, run in groupby(pieces, key=lambda piece: piece[2]):
                wanted = Ranges.of((first, last) for first, last, _ in run)
                yield from files.loaded(self.parts[number][0]).chosen(wanted)


class _OpenFiles:
    def __init__(self) -> None:
        self._files: dict[int, _LoadedRecords] = {}

    def __enter__(self) -> _OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._files.values():
            each.stack.close()

    def loaded(self, records: RecordFile) -> _LoadedRecords:
        found = self._files.pop(id(records), None)
        if found is None:
            if len(self._files) == _MAX_OPEN:
                self._files.pop(next(iter(self._files))).stack.close()
            found = _LoadedRecords(records)
        self._files[id(records)] = found  # the last one is the most recently used
        return found


class MessagesDigest:
    """A digest of messages in their order: sequences, times, subjects, headers and payloads."""

    def __init__(self) -> None:
        self._contents, self._sizes = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)

    def add(self, batch: RecordBatch) -> None:
        self._contents.update(hashes(batch).tobytes())
        sizes = np.stack((batch.subject_size, batch.header_size), axis=1)
        self._sizes.update(np.ascontiguousarray(sizes).tobytes())

    def value(self) -> bytes:
        return self._contents.digest() + self._sizes.digest()


def hashes(batch: RecordBatch) -> NDArray[np.uint64]:
    """Returns a hash of each message, by which messages of different files are compared."""
    return kernels.content_hashes(batch.buffer, batch, _CONTENT_KEY)


def differing(first: RecordFile, second: RecordFile, common: Ranges) -> Ranges:
    """Returns those of common sequences whose messages differ."""
    with _OpenFiles() as files:
        found = []
        for records in (first, second):
            batches = list(files.loaded(records).chosen(common))
            numbers = [batch.sequence for batch in batches]
            values = [hashes(batch) for batch in batches]
            if not numbers:
                return Ranges()
            found.append((np.concatenate(numbers), np.concatenate(values)))
    (numbers_a, values_a), (numbers_b, values_b) = found
    both, at_a, at_b = np.intersect1d(numbers_a, numbers_b, assume_unique=True, return_indices=True)
    return Ranges.from_sequences(both[values_a[at_a] != values_b[at_b]])
