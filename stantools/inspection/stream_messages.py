"""Reading the messages of a JetStream stream: a selection of the intact ones, in order, with damage in its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.findings import Severity
from stantools.inspection.stored_messages import ReadProblem, Selection, StoredMessage, chosen
from stantools.notation import describe_sequences
from stantools.progress import Progress
from stantools.store.ranges import Ranges
from stantools.streamfiles.block_survey import BlockSurvey
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.flaws import FileFlaw, FlawKind
from stantools.streamfiles.layout import MESSAGES
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.survey import StreamSurvey

#: flaws that have nothing to do with messages, and those of which the sequences are told
_ELSEWHERE = {FlawKind.BLOCK_MISSING, FlawKind.TOMBSTONES_LOST}

_LOCKS = {FlawKind.KEY_MISSING, FlawKind.KEY_WRONG}


class StreamMessageReader:
    """Reads the messages of one stream; every block is read once before."""

    def __init__(self, stream: StoredStream, progress: Progress | None = None) -> None:
        self._stream = stream
        self._survey = StreamSurvey(stream, progress)

    def last_sequence(self) -> int:
        return self._survey.last

    def read(self, selection: Selection) -> Iterator[StoredMessage | ReadProblem]:
        """Iterates over the selected messages in the order of their sequences, with damage before its block."""
        selection = selection.resolved(self.last_sequence())
        low, high = selection.first or 0, selection.last if selection.last is not None else 2**64 - 1
        wanted = self._survey.intact & Ranges.of([(low, high)])
        by_sequence = selection.since is None and selection.until is None and selection.pattern is None
        if selection.tail is not None and by_sequence:
            wanted = _newest(wanted, selection.tail)
            low = wanted.first
        lost = (self._survey.damaged | self._survey.missing) & Ranges.of([(low, high)])
        messages = self._messages(wanted, selection)
        if selection.tail is not None:
            messages = iter(deque(messages, maxlen=selection.tail))
        yield from self._problems(lost)
        yield from messages

    def _problems(self, lost: Ranges) -> Iterator[ReadProblem]:
        """Yields the problems of the stream, and of the messages that cannot be printed."""
        for flaw in (*self._stream.flaws, *self._survey.flaws):
            concerned = bool(lost) and self._concerns_blocks(flaw) and (not flaw.sequence or flaw.sequence in lost)
            locked = flaw.kind in _LOCKS and not flaw.consumer and self._stream.locked
            if concerned or locked:
                yield ReadProblem(flaw.file, flaw.offset, flaw.length, flaw.sequence, flaw.detail)
        for first, last in self._survey.missing & lost:
            yield ReadProblem(MESSAGES, None, None, first, f"{describe_sequences([(first, last)], 1)} missing")

    @staticmethod
    def _concerns_blocks(flaw: FileFlaw) -> bool:
        serious = CATALOGUE[flaw.kind.value].severity is not Severity.INFO
        return serious and flaw.file.endswith((".blk", ".key")) and flaw.kind not in _ELSEWHERE

    def _messages(self, wanted: Ranges, selection: Selection) -> Iterator[StoredMessage]:
        for block, batch in self._survey.messages(wanted):
            taken = chosen(batch.sequence, batch.timestamp, selection)
            for message in _decode(block, batch if taken.all() else batch.take(taken)):
                if selection.pattern is None or selection.pattern.search(message.data):
                    yield message


def _newest(wanted: Ranges, count: int) -> Ranges:
    """Returns the last `count` sequences."""
    kept: list[tuple[int, int]] = []
    for first, last in reversed(wanted.pairs()):
        if count <= 0:
            break
        first = max(first, last + 1 - count)
        kept.append((first, last))
        count -= last + 1 - first
    return Ranges.of(kept)


def _decode(block: BlockSurvey, batch: RecordBatch) -> Iterator[StoredMessage]:
    numbers = zip(batch.sequence.tolist(), batch.timestamp.tolist(), batch.offset.tolist(), strict=True)
    contents = zip(batch.subjects(), batch.payloads(), batch.headers(), strict=True)
    for (sequence, timestamp, offset), (subject, data, headers) in zip(numbers, contents, strict=True):
        yield StoredMessage(sequence, timestamp, subject, b"", data, block.name, offset, headers=headers)
