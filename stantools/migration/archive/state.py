"""The state that a stream has when a server has restored it: what to ask for, and what to compare its answer with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stantools.migration.archive.meta import rfc3339
from stantools.migration.archive.sizes import record_sizes
from stantools.migration.batches import Batch


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """The state of a stream.

    Attributes:
        messages: Number of messages.
        bytes: Size of their records, as servers count.
        first_seq: Sequence of the first message; without messages the one after `last_seq`, 0 if nothing ever was.
        last_seq: The last sequence ever used; the message may be missing.
        first_ts: Time of the first message in nanoseconds since 1970, 0 without messages.
        last_ts: Time of the last message.
    """

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    first_ts: int = 0
    last_ts: int = 0

    def as_json(self) -> dict[str, Any]:
        """Returns it as the API has it, without `consumer_count`.

        A time of 0 is left out: some servers tell it as 1970, others as the year 1.
        """
        times = {"first_ts": self.first_ts, "last_ts": self.last_ts}
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            **{name: rfc3339(time) for name, time in times.items() if time},
        }


class Tally:
    """Adds up the state of a stream from its messages."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self.first_seq = self.last_seq = 0
        self.first_ts = self.last_ts = 0

    def add(self, batch: Batch, first: int, end: int, size: int) -> None:
        """Adds the rows from `first` to before `end`, whose records have `size` bytes."""
        if first == end:
            return
        if not self.messages:
            self.first_seq, self.first_ts = int(batch.sequence[first]), int(batch.columns.timestamp[first])
        self.last_seq, self.last_ts = int(batch.sequence[end - 1]), int(batch.columns.timestamp[end - 1])
        self.messages += end - first
        self.bytes += size

    def state(self, last: int) -> ArchiveState:
        """Returns the state of a stream that has used the sequences up to `last`."""
        last = max(last, self.last_seq)
        first = self.first_seq if self.messages else last + 1 if last else 0
        return ArchiveState(self.messages, self.bytes, first, last, self.first_ts, self.last_ts)


def measure(batches: Iterable[Batch], *, origin: bool, last: int = 0) -> ArchiveState:
    """Returns the state that the archive of some batches will have, without building it.

    Args:
        batches: All messages of the stream.
        origin: They get headers with channel, sequence and time.
        last: The last sequence ever used.
    """
    tally = Tally()
    for batch in batches:
        sizes, _ = record_sizes(batch.columns, len(batch.channel), len(batch.subject), origin)
        tally.add(batch, 0, len(batch), int(sizes[: len(batch)].sum()))
    return tally.state(last)
