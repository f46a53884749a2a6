"""Comparing every message of a stream with the source: sequence, time, subject, headers, payload.

What differs is gathered by kind, as ranges of sequences, with the first few cases in words. So a stream in which
nothing is right makes no more findings than one in which a single message is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.batches import Batch
from stantools.migration.headers import header_block
from stantools.migration.proof import kernels
from stantools.migration.proof.kernels import Mark
from stantools.nats.assembler import Received
from stantools.notation import counted
from stantools.store.ranges import Ranges

_EXAMPLES = 3
_RANGES = 6
_EXTRA = "extra"
#: Sequences that are collected before they are made ranges.
_COLLECT = 1 << 16


_CODES = {
    Mark.ABSENT: "message-missing",
    _EXTRA: "message-extra",
    Mark.DATA: "message-payload",
    Mark.HEADER: "message-headers",
    Mark.SUBJECT: "message-subject",
    Mark.TIME: "message-timestamp",
}
_ORDER = list(_CODES)


@dataclass
class _Gathered:
    """What differs in one way."""

    ranges: Ranges = field(default_factory=Ranges)
    new: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    collected: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, sequences: npt.NDArray[np.uint64]) -> None:
        self.new.append(sequences.copy())
        self.collected += len(sequences)
        if self.collected > _COLLECT or len(self.new) > _COLLECT // 64:
            self.settle()

    def settle(self) -> Ranges:
        self.ranges = Ranges.union([self.ranges, *map(Ranges.from_sequences, self.new)])
        self.new, self.collected = [], 0
        return self.ranges


class Comparison:
    """Takes what a stream holds, in rising order, and compares it with what it should hold.

    Args:
        source: What it should hold, in rising order.
        stream: Its name, for the findings.
        origin: Headers with channel, sequence and time are expected.
        published: Messages may have come by publishing (see `compare_messages`).
        channel: The channel that findings name, if it is one.
    """

    def __init__(
        self, source: Iterator[Batch], stream: str, *, origin: bool, published: bool, channel: str | None = None
    ) -> None:
        self._source = source
        self._channel = channel
        self._stream = stream
        self._origin = origin
        self._published = published
        self._batch: Batch | None = None
        self._row = 0
        self._marks = np.zeros(0, np.uint8)
        self._gathered: dict[Mark | str, _Gathered] = {}
        #: Messages that both sides have, and their payload bytes there.
        self.messages = 0
        self.bytes = 0

    def add(self, received: Received) -> None:
        """Compares the next messages of the stream; all have a sequence."""
        self.bytes += int(received.columns.data_size.sum(dtype=np.int64))
        other_marks = np.zeros(len(received), np.uint8)
        at = 0
        while at < len(received):
            batch = self._present()
            if batch is None:
                other_marks[at:] = Mark.ABSENT
                break
            begin, other = self._row, at
            self._row, at = kernels.compare_messages(
                batch,
                begin,
                received.buffer,
                received.columns,
                at,
                origin=self._origin,
                published=self._published,
                marks=self._marks,
                other_marks=other_marks,
            )
            if self._marks[begin : self._row].any():
                self._note(batch, begin, received, other)
        absent = np.flatnonzero(other_marks)
        self.messages += len(received) - len(absent)
        if len(absent):
            self._gather(_EXTRA, received.columns.sequence[absent])

    def finish(self) -> list[Finding]:
        """Says that nothing more comes, and returns what differs."""
        while (batch := self._present()) is not None:
            self._gather(Mark.ABSENT, batch.sequence[self._row :])
            self._row = len(batch)
        return list(self._findings())

    def _present(self) -> Batch | None:
        """Returns the batch of the source in which the next message is."""
        while self._batch is None or self._row >= len(self._batch):
            self._batch = next(self._source, None)
            self._row = 0
            if self._batch is None:
                self._source = iter(())
                return None
            if len(self._marks) < len(self._batch):
                self._marks = np.zeros(len(self._batch), np.uint8)
        return self._batch

    def _gather(self, kind: Mark | str, sequences: npt.NDArray[np.uint64]) -> _Gathered:
        gathered = self._gathered.setdefault(kind, _Gathered())
        gathered.add(sequences)
        return gathered

    def _excuse(self, batch: Batch, begin: int, received: Received, other: int) -> None:
        """Takes back the marks of messages that were appended, which carry their origin where the others do not."""
        again = np.zeros(len(self._marks), np.uint8)
        kernels.compare_messages(
            batch,
            begin,
            received.buffer,
            received.columns,
            other,
            origin=True,
            published=True,
            marks=again,
            other_marks=np.zeros(len(received), np.uint8),
        )
        marks = self._marks[begin : self._row]
        marks[again[begin : self._row] == 0] = 0

    def _note(self, batch: Batch, begin: int, received: Received, other: int) -> None:
        if self._published and not self._origin:
            self._excuse(batch, begin, received, other)
        marks = self._marks[begin : self._row]
        for mark in Mark:
            rows = np.flatnonzero(marks & mark) + begin
            if not len(rows):
                continue
            gathered = self._gather(mark, batch.sequence[rows])
            if mark is Mark.ABSENT:
                continue
            for row in rows[: _EXAMPLES - len(gathered.examples)].tolist():
                at = other + int(np.searchsorted(received.columns.sequence[other:], batch.sequence[row]))
                gathered.examples.append(f"{int(batch.sequence[row])}: {self._words(mark, batch, row, received, at)}")

    def _words(self, mark: Mark, batch: Batch, row: int, received: Received, at: int) -> str:
        if mark is Mark.TIME:
            return f"{int(received.columns.timestamp[at])} instead of {int(batch.columns.timestamp[row])}"
        if mark is Mark.SUBJECT:
            return f"{_text(received.subject(at))} instead of {_text(batch.subject)}"
        if mark is Mark.HEADER:
            sequence, time = int(batch.columns.sequence[row]), int(batch.columns.timestamp[row])
            expected = header_block(batch.channel, sequence, time, batch.reply(row), origin=self._origin)
            return f"{_text(received.header(at))} instead of {_text(expected)}"
        return f"{_digest(received.data(at))} instead of {_digest(batch.data(row))}"

    def _findings(self) -> Iterator[Finding]:
        for kind, gathered in sorted(self._gathered.items(), key=lambda item: _ORDER.index(item[0])):
            ranges = gathered.settle()
            detail = f"{counted(ranges.count(), 'message')} of stream {self._stream}: {_listed(ranges)}"
            if gathered.examples:
                detail += f" (sequence {'; '.join(gathered.examples)})"
            yield finding(_CODES[kind], detail, channel=self._channel, seq=ranges.first)


def _listed(ranges: Ranges) -> str:
    pairs = ranges.pairs()
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in pairs[:_RANGES]]
    if len(pairs) > _RANGES:
        parts.append(f"… and {counted(len(pairs) - _RANGES, 'more range')}")
    return ", ".join(parts)


def _text(value: bytes) -> str:
    shown = ascii(value[:200].decode("latin-1"))
    return shown if len(value) <= 200 else f"{shown}…"


def _digest(data: bytes) -> str:
    return f"{counted(len(data), 'byte')} with SHA-256 {hashlib.sha256(data).hexdigest()[:16]}…"
