"""What a consumer has to be given to get to its position."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from stantools.errors import StantoolsError
from stantools.store.directory import subject_matches

if TYPE_CHECKING:
    from stantools.migration.publish.source import Source
    from stantools.store.ranges import U64

#: How far back the message before the first pending one is looked for.
_LOOK_BACK: Final = (1, 1 << 16)


class Standing(Protocol):
    """How far a consumer is, in sequences of the stream."""

    @property
    def delivered(self) -> int:
        """The last sequence that was delivered."""

    @property
    def ack_floor(self) -> int:
        """Everything up to here is done with."""

    @property
    def pending(self) -> Sequence[int]:
        """What was delivered and not acknowledged, rising."""


@dataclass(frozen=True)
class Delivery:
    """What a consumer has to be given.

    Attributes:
        start: The sequence that it begins at.
        count: How many messages there are from there to the last one delivered.
        last: The last one of them, 0 if there is none.
        pending: Those not to acknowledge.
    """

    start: int
    count: int
    last: int
    pending: frozenset[int]


def plan_delivery(source: Source, what: str, position: Standing, subject: str | None, *, lead: bool) -> Delivery:
    """Finds out what a consumer has to be given.

    Args:
        source: What its stream holds.
        what: Names the consumer in the message.
        position: Where it should stand.
        subject: The subject that its messages have; None for any.
        lead: Begin with the message before the first pending one.

    Raises:
        StantoolsError: A message that should be pending is not there.
    """
    start = position.ack_floor + 1
    before = _message_before(source, start, subject) if lead else 0
    if not before and not position.pending:
        return Delivery(start, 0, 0, frozenset())
    left = set(position.pending)
    count = last = 0
    for part in _existing(source, before or start, position.delivered, subject):
        if len(part):
            count += len(part)
            last = int(part[-1])
            left.difference_update(part.tolist())
    if left:
        raise StantoolsError(
            f"{what}: {len(left)} pending messages are not in the stream, the first is {min(left)}",
            "make the plan again: the store has changed",
        )
    return Delivery(before or start, count, last, frozenset(position.pending))


def _existing(source: Source, start: int, end: int, subject: str | None) -> Iterator[U64]:
    """The sequences from `start` to `end` that have a message on the subject."""
    for batch in source.read(after=start - 1):
        sequences = batch.sequence[batch.sequence <= end]
        if subject is None or subject_matches(subject, os.fsdecode(batch.subject)):
            yield sequences
        if len(sequences) < len(batch):
            return


def _message_before(source: Source, sequence: int, subject: str | None) -> int:
    """The last message before a sequence, 0 if there is none nearby."""
    for distance in _LOOK_BACK:
        found = [
            int(part[-1]) for part in _existing(source, max(sequence - distance, 1), sequence - 1, subject) if len(part)
        ]
        if found:
            return found[-1]
    return 0
