"""The proof that a stream equals its plan: its state, every message, its consumers.

Messages are compared by sequence, time, subject, headers and payload. Differences are gathered by kind, as ranges of
sequences, with the first few cases in words: a stream that is wrong throughout makes no more findings than one with
a single wrong message.

Consumers (jetstream-migration.md sections 9 and 11): JetStream reports the number of pending messages and the
acknowledgement floor, but not which messages are pending. With the delivered sequence these fix the position in all
cases but one: other pending messages, equal in number, after the same first one.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stantools.format.message_batch import MessageBatch
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.plan.migration_plan import ConsumerPlan, ConsumerProgress
from stantools.migration.proof.kernels import compare_messages
from stantools.migration.stream_source import StreamSource, channel_of
from stantools.nats.inbox import Received
from stantools.nats.jetstream import JetStream
from stantools.nats.readback import Readback
from stantools.notation import counted, describe_ranges
from stantools.progress import Progress
from stantools.store.ranges import Ranges
from stantools.streamfiles.headers import header_block

_EXAMPLES = 3
_EXTRA = "extra"
#: sequences collected before they become ranges
_COLLECT = 1 << 16


class Difference(enum.IntFlag):
    """Differences of a message."""

    ABSENT = 1  #: the other side has no message with this sequence
    TIME = 2
    SUBJECT = 4
    HEADER = 8
    DATA = 16


_CODES = {
    Difference.ABSENT: "message-missing",
    _EXTRA: "message-extra",
    Difference.DATA: "message-payload",
    Difference.HEADER: "message-headers",
    Difference.SUBJECT: "message-subject",
    Difference.TIME: "message-timestamp",
}
_ORDER = list(_CODES)


@dataclass
class _DifferenceRanges:
    """Differences of one kind."""

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
    """Compares the messages of a stream, in rising order, with their source.

    `source` yields the expected messages in rising order; `stream` and `channel` ("" for several) are for findings.
    `origin`: headers with channel, sequence and time are expected. `published`: messages may have been published
    (see `compare_messages`).
    """

    def __init__(
        self, source: Iterator[MessageBatch], stream: str, *, origin: bool, published: bool, channel: str | None = None
    ) -> None:
        self._source = source
        self._channel = channel
        self._stream = stream
        self._origin = origin
        self._published = published
        self._batch: MessageBatch | None = None
        self._row = 0
        self._marks = np.zeros(0, np.uint8)
        self._gathered: dict[Difference | str, _DifferenceRanges] = {}
        #: messages in both, and their payload bytes in the stream
        self.messages = 0
        self.bytes = 0

    def add(self, received: Received) -> None:
        """Compares the next messages of the stream; every message has a sequence."""
        self.bytes += int(received.columns.data_size.sum(dtype=np.int64))
        other_marks = np.zeros(len(received), np.uint8)
        at = 0
        while at < len(received):
            batch = self._current_batch()
            if batch is None:
                other_marks[at:] = Difference.ABSENT
                break
            begin, other = self._row, at
            self._row, at = compare_messages(
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
        """Ends the comparison and returns its findings."""
        while (batch := self._current_batch()) is not None:
            self._gather(Difference.ABSENT, batch.stream_sequence[self._row :])
            self._row = len(batch)
        return list(self._findings())

    def _current_batch(self) -> MessageBatch | None:
        """Returns the batch of the source with the next message."""
        while self._batch is None or self._row >= len(self._batch):
            self._batch = next(self._source, None)
            self._row = 0
            if self._batch is None:
                self._source = iter(())
                return None
            if len(self._marks) < len(self._batch):
                self._marks = np.zeros(len(self._batch), np.uint8)
        return self._batch

    def _gather(self, kind: Difference | str, sequences: npt.NDArray[np.uint64]) -> _DifferenceRanges:
        gathered = self._gathered.setdefault(kind, _DifferenceRanges())
        gathered.add(sequences)
        return gathered

    def _unmark_appended(self, batch: MessageBatch, begin: int, received: Received, other: int) -> None:
        """Removes the marks of appended messages, which have origin headers where the others have none."""
        again = np.zeros(len(self._marks), np.uint8)
        compare_messages(
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

    def _note(self, batch: MessageBatch, begin: int, received: Received, other: int) -> None:
        if self._published and not self._origin:
            self._unmark_appended(batch, begin, received, other)
        marks = self._marks[begin : self._row]
        for mark in Difference:
            rows = np.flatnonzero(marks & mark) + begin
            if not len(rows):
                continue
            gathered = self._gather(mark, batch.stream_sequence[rows])
            if mark is Difference.ABSENT:
                continue
            for row in rows[: _EXAMPLES - len(gathered.examples)].tolist():
                at = other + int(np.searchsorted(received.columns.sequence[other:], batch.stream_sequence[row]))
                gathered.examples.append(
                    f"{int(batch.stream_sequence[row])}: {self._words(mark, batch, row, received, at)}"
                )

    def _words(self, mark: Difference, batch: MessageBatch, row: int, received: Received, at: int) -> str:
        if mark is Difference.TIME:
            return f"{int(received.columns.timestamp[at])} instead of {int(batch.timestamp[row])}"
        if mark is Difference.SUBJECT:
            return f"{_text(received.subject(at))} instead of {_text(batch.subject)}"
        if mark is Difference.HEADER:
            sequence, time = int(batch.sequence[row]), int(batch.timestamp[row])
            expected = header_block(batch.channel, sequence, time, batch.reply(row), origin=self._origin)
            return f"{_text(received.header(at))} instead of {_text(expected)}"
        return f"{_digest(received.data(at))} instead of {_digest(batch.data(row))}"

    def _findings(self) -> Iterator[Finding]:
        for kind, gathered in sorted(self._gathered.items(), key=lambda item: _ORDER.index(item[0])):
            ranges = gathered.settle()
            detail = f"{counted(ranges.count(), 'message')} of stream {self._stream}: {describe_ranges(ranges)}"
            if gathered.examples:
                detail += f" (sequence {'; '.join(gathered.examples)})"
            yield finding(_CODES[kind], detail, channel=self._channel, seq=ranges.first)


def _text(value: bytes) -> str:
    shown = ascii(value[:200].decode("latin-1"))
    return shown if len(value) <= 200 else f"{shown}…"


def _digest(data: bytes) -> str:
    return f"{counted(len(data), 'byte')} with SHA-256 {hashlib.sha256(data).hexdigest()[:16]}…"


#: first version that counts every missing sequence, however the gap was made (jetstream-migration.md section 5.3)
_COUNTS_GAPS = (2, 11, 0)
#: first version that counts a consumer's remaining messages exactly; older ones include sequences missing between
#: blocks
_COUNTS_PENDING = (2, 10, 0)
#: fields that the server fills in, or that the migration sets only while it works
_NOT_COMPARED = ("name", "durable_name", "deliver_policy", "opt_start_seq", "metadata", "num_replicas")


@dataclass
class Proof:
    findings: list[Finding] = field(default_factory=list)
    messages: int = 0  #: messages in both
    bytes: int = 0  #: payload bytes read from the stream
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not self.findings


@dataclass(frozen=True)
class ExpectedStream:
    """The expected content of a stream on a server."""

    name: str
    source: StreamSource  #: expected messages
    origin: bool  #: messages have headers with channel, sequence and time
    via_publish: bool  #: messages, all or some, were published: their timestamps are their own
    #: consumers with positions in sequences of the stream
    consumers: Sequence[tuple[ConsumerPlan, ConsumerProgress]] = ()

    async def prove(
        self, js: JetStream, *, messages: bool = True, after: int = 0, progress: Progress | None = None
    ) -> Proof:
        """Compares the stream on a server with its source.

        The stream is read through an ephemeral consumer, which is removed afterwards; nothing else is created.
        Without `messages` only the state reported by the server is compared. `after` skips messages up to that
        sequence. `progress` gets numbers of messages.
        """
        started = time.monotonic()
        info = await js.stream_info(self.name)
        if info is None:
            return Proof([finding("stream-missing", f"stream {self.name} does not exist")])
        state, findings = info["state"], []
        if wrong := "; ".join(_state_differences(self.source, state, js.connection.version)):
            findings.append(finding("stream-state", f"stream {self.name}: {wrong}", channel=channel_of(self.source)))
        for consumer, position in self.consumers:
            there = await js.consumer_info(self.name, consumer.name)
            differences = (
                list(_position_differences(js, self.source, position, there, self.via_publish)) if there else []
            )
            expected = {name: value for name, value in consumer.config.items() if name not in _NOT_COMPARED}
            findings += compare_consumer(self.name, consumer, there and there["config"], differences, expected)
        read = await self.prove_messages(js, state, after=after, progress=progress) if messages else Proof()
        return Proof(findings + read.findings, read.messages, read.bytes, time.monotonic() - started)

    async def prove_messages(
        self,
        js: JetStream,
        state: dict[str, Any],
        *,
        after: int = 0,
        until: int | None = None,
        progress: Progress | None = None,
    ) -> Proof:
        """Compares only the messages, up to the last one of `state` (from `STREAM.INFO`).

        Messages of the source after `until` are not expected.
        """
        started = time.monotonic()
        comparison = Comparison(
            self.source.read(after=after, until=until),
            self.name,
            origin=self.origin,
            published=self.via_publish,
            channel=channel_of(self.source),
        )
        if after < int(state["last_seq"]):
            async with aclosing(Readback(js, self.name, state, after=after).batches()) as batches:
                async for batch in batches:
                    comparison.add(batch)
                    if progress:
                        progress(len(batch))
        found = comparison.finish()
        return Proof(found, comparison.messages, comparison.bytes, time.monotonic() - started)


def _state_differences(source: StreamSource, state: Mapping[str, Any], version: tuple[int, int, int]) -> Iterator[str]:
    if state["messages"] != source.count:
        yield f"it has {state['messages']} messages instead of {source.count}"
    # Servers disagree on the first sequence of an empty stream.
    if source.count and state["messages"] and state["first_seq"] != source.first:
        yield f"its first sequence is {state['first_seq']} instead of {source.first}"
    if state["last_seq"] != source.last:
        yield f"its last sequence is {state['last_seq']} instead of {source.last}"
    if version >= _COUNTS_GAPS and source.count and state["messages"] == source.count:
        missing = source.last - source.first + 1 - source.count
        if state.get("num_deleted", 0) != missing:
            yield f"it counts {state.get('num_deleted', 0)} missing sequences instead of {missing}"


def compare_consumer(
    stream: str,
    planned: ConsumerPlan,
    config: Mapping[str, Any] | None,
    position: Sequence[str],
    expected: Mapping[str, Any],
) -> Iterator[Finding]:
    """Returns the differences between a consumer and its plan.

    `config` is the actual configuration, None without the consumer; `expected` are required fields; `position` are
    differences of its position, in words.
    """
    where, channel = f"consumer {planned.name} of stream {stream}", planned.channel
    if config is None:
        yield finding("consumer-missing", f"{where} does not exist", channel=channel)
        return
    if position:
        yield finding("consumer-position", f"{where}: {'; '.join(position)}", channel=channel)
    if wrong := setting_differences(expected, config):
        yield finding("consumer-config", f"{where}: {wrong}", channel=channel)


def known_differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """As `setting_differences`, without fields that the server's version does not know."""
    return setting_differences({name: value for name, value in expected.items() if name in found}, found)


def setting_differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Returns the differences of a configuration; additional fields are allowed, and zeros count as absent."""
    found = {
        name: {key: value.get(key) for key in expected[name]}
        if isinstance(value, dict) and expected.get(name)
        else value
        for name, value in found.items()
    }
    return "; ".join(
        f"{name} is {found.get(name)!r} instead of {value!r}"
        for name, value in expected.items()
        if found.get(name) != value and (value or found.get(name))
    )


def _position_differences(
    js: JetStream,
    source: StreamSource,
    position: ConsumerProgress,
    info: Mapping[str, Any],
    late_floor: bool,
) -> Iterator[str]:
    """Returns the differences of a consumer's position.

    `late_floor`: it was made by acknowledging, and the server shows its floor only with the next acknowledgement.
    """
    delivered, floor = int(info["delivered"]["stream_seq"]), int(info["ack_floor"]["stream_seq"])
    if delivered != position.delivered:
        yield f"it has delivered up to {delivered} instead of {position.delivered}"
    if floor != position.ack_floor and not (late_floor and floor < position.ack_floor):
        yield f"it is acknowledged up to {floor} instead of {position.ack_floor}"
    pending = int(info["num_ack_pending"])
    if pending != len(position.pending):
        yield f"{counted(pending, 'message', 'waits/wait')} for acknowledgement, instead of {len(position.pending)}"
    if len(source.parts) > 1 or js.connection.version < _COUNTS_PENDING:
        return  # the remaining messages of one of several channels can only be counted by reading them
    ((channel, _),) = source.parts
    left = (channel.sequences & Ranges.of([(position.delivered + 1, 2**64 - 1)])).count()
    if int(info["num_pending"]) != left:
        yield f"{int(info['num_pending'])} messages remain to be delivered, instead of {left}"
