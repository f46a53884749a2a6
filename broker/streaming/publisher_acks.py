"""Acknowledgements of publishers, in the order of arrival.

Facts: streaming-protocol.md section 11.

Acknowledgements to the same subject, such as those of one publisher, keep the order of arrival: one whose message is
stored waits for earlier ones whose outcome is unknown yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from broker import log
from broker.stores.interface import FlushOutcome
from broker.streaming.ports import Role
from broker.streaming.publishes.fields import failed

if TYPE_CHECKING:
    from broker.streaming.ports import StreamingBus
    from broker.streaming.publishes.columns import AckRun, Rows
    from broker.streaming.state import Channel
    from stantools.nats.frames import Payloads

# Needed for each publish: attribute lookups on an enum are slow.
STORED: Final = FlushOutcome.STORED


class ChannelBatch:
    """The messages of one channel in a batch."""

    __slots__ = ("channel", "error", "heads", "outcome", "rows", "size")

    def __init__(self, channel: Channel, rows: Rows, outcome: FlushOutcome | None = None, error: bytes = b"") -> None:
        self.channel = channel
        self._begin(rows, outcome, error)

    def _begin(self, rows: Rows, outcome: FlushOutcome | None, error: bytes) -> None:
        self.rows = rows  #: rows of the batch
        self.size = 0  #: bytes of the records
        self.outcome = outcome  #: None until the store reports it
        self.error = error  #: reason of a refusal
        self.heads: list[bytes] | None = None  #: subjects whose first queued acknowledgement is in this portion


class _Singles(ChannelBatch):
    """The owner of rows that were stored as single messages; it has no channel."""

    __slots__ = ()

    def __init__(self) -> None:
        self._begin(np.empty(0, np.int32), FlushOutcome.STORED, b"")


class CommitBatch:
    """Publishes that are staged together, with their acknowledgements and the subjects of these.

    `traced` has client, channel and guid of each row from `row` on, if trace logging is enabled. Rows outside of all
    portions were stored as single messages (`Channel.single_store`).
    """

    __slots__ = ("acks", "portions", "row", "runs", "traced")

    def __init__(
        self,
        acks: Payloads,
        runs: list[AckRun],
        portions: list[ChannelBatch],
        traced: Sequence[tuple[str, str, str]] = (),
        row: int = 0,
    ) -> None:
        self.acks = acks
        self.runs = runs
        self.portions = portions
        self.traced = traced
        self.row = row

    def cut(self, unflushed: Container[Channel]) -> CommitBatch | None:
        """Takes out the rows before the first one of an unflushed channel. Returns None if there is no such channel."""
        flushed: list[ChannelBatch] = []
        left: list[int] = []
        for portion in self.portions:
            if portion.outcome is None and portion.channel in unflushed:
                left.append(int(portion.rows[0]))
            else:
                flushed.append(portion)
        if not left:
            return None
        first = min(left)
        count = sum(run.end <= first for run in self.runs)
        row = self.runs[count].begin
        traced = row - self.row
        before = CommitBatch(self.acks, self.runs[:count], flushed, self.traced[:traced], self.row)
        self.runs, self.traced, self.row = self.runs[count:], self.traced[traced:], row
        return before


class _PendingAck(NamedTuple):
    """Consecutive acknowledgements of one portion that go to the same subject."""

    batch: CommitBatch
    portion: ChannelBatch
    begin: int
    end: int


_SINGLES: Final = _Singles()


class PublisherAcks:
    """Sends the acknowledgements of batches, and keeps those that must wait."""

    def __init__(self, bus: StreamingBus) -> None:
        self._bus = bus
        self._pending: dict[bytes, deque[_PendingAck]] = {}

    def send(self, batch: CommitBatch) -> bool:
        """Sends the acknowledgements of a batch, or queues them after earlier ones to the same subject.

        Returns whether all messages are stored and all acknowledgements sent, without a look at each.
        """
        if not self._pending:
            for portion in batch.portions:
                if portion.outcome is not STORED:
                    break
            else:
                if batch.traced:
                    _trace(batch.traced)
                self._bus.publish_runs(Role.SEND, batch.runs, batch.acks)
                return True
        for portion, reply, begin, end in _split_runs(batch):
            queue = self._pending.get(reply)
            if queue is not None:
                queue.append(_PendingAck(batch, portion, begin, end))
            elif portion.outcome is None:
                self._pending[reply] = deque([_PendingAck(batch, portion, begin, end)])
                _wait_for(portion, reply)
            else:
                self._answer(batch, portion, reply, begin, end)
        return False

    def settle(self, portions: list[ChannelBatch], outcome: FlushOutcome, error: bytes = b"") -> None:
        """Records the outcome of portions, and sends the queued acknowledgements that waited for it."""
        for portion in portions:
            portion.outcome, portion.error = outcome, error
        if self._pending:
            for portion in portions:
                heads, portion.heads = portion.heads, None
                for reply in heads or ():
                    self._release(reply)

    def _release(self, reply: bytes) -> None:
        """Sends the queued acknowledgements to a subject, up to the first without an outcome."""
        queue = self._pending[reply]
        while queue:
            batch, portion, begin, end = queue[0]
            if portion.outcome is None:
                _wait_for(portion, reply)
                return
            queue.popleft()
            self._answer(batch, portion, reply, begin, end)
        del self._pending[reply]

    def _answer(self, batch: CommitBatch, portion: ChannelBatch, reply: bytes, begin: int, end: int) -> None:
        """Answers a publisher; an unknown outcome has no answer."""
        if portion.outcome is STORED:
            _trace(batch.traced[begin - batch.row : end - batch.row])
            self._bus.publish_block(Role.SEND, reply, batch.acks, begin, end)
        elif portion.outcome is FlushOutcome.REFUSED:
            for row in range(begin, end):
                self._bus.publish(Role.SEND, reply, failed(batch.acks.payload(row), portion.error))


def _wait_for(portion: ChannelBatch, reply: bytes) -> None:
    if portion.heads is None:
        portion.heads = []
    portion.heads.append(reply)


def _trace(rows: Sequence[tuple[str, str, str]]) -> None:
    for names in rows:
        log.STREAMING.log(log.TRACE, "[Client:%s] Acking Publisher subj=%s guid=%s", *names)


def _split_runs(batch: CommitBatch) -> Iterator[tuple[ChannelBatch, bytes, int, int]]:
    """Yields the runs of a batch, split where the portion changes."""
    portions = [*batch.portions, _SINGLES]
    if len(portions[0].rows) == len(batch.acks):
        for reply, begin, end in batch.runs:
            yield portions[0], reply, begin, end
        return
    owners = np.full(len(batch.acks), len(batch.portions))
    for number, portion in enumerate(batch.portions):
        owners[portion.rows] = number
    for reply, begin, end in batch.runs:
        if end - begin == 1:  # many clients that publish one message at a time
            yield portions[owners[begin]], reply, begin, end
            continue
        part = owners[begin:end]
        changes = (np.flatnonzero(part[1:] != part[:-1]) + (begin + 1)).tolist()
        for first, stop in pairwise([begin, *changes, end]):
            yield portions[int(owners[first])], reply, first, stop
