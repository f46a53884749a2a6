"""Checks that the content of a stream is the beginning of the source, before anything is added.

Every message was acknowledged before those one window later were sent, and stored only directly after its
predecessor. So only the last window can differ: it is compared message by message; the rest follows from the number
of messages in the source up to there (`extent`). Sequences without a message (`gaps`) have to be filled and emptied
again.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.errors import RefusedError
from stantools.format.message_batch import MessageBatch
from stantools.nats.jetstream import MESSAGE_NOT_FOUND
from stantools.store.ranges import U64
from stantools.streamfiles import headers
from stantools.streamfiles.messages import Messages

if TYPE_CHECKING:
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.messages import Messages


def missing(source: Messages) -> int:
    """Returns the number of sequences without a message between others or at the end, each of which needs a filler."""
    return source.last + 1 - source.first - source.count if source.count else 0


def check_fillers(name: str, missing_count: int, limit: int) -> None:
    """Raises RefusedError if too many sequences of a stream need fillers."""
    if missing_count > limit:
        raise RefusedError(
            f"stream {name}: {missing_count} sequences have no message, and publishing makes a gap only by filling and "
            f"emptying it; the limit is {limit}",
            "restore an archive, which can have gaps of any size, or allow more fillers",
        )


def gaps(batches: Iterator[MessageBatch], after: int, until: int) -> Iterator[tuple[int, int]]:
    """Yields the closed ranges of sequences in (after, until] without a message; `batches` are its messages."""
    for batch in batches:
        sequences = batch.stream_sequence
        before = np.concatenate((np.array([after], np.uint64), sequences[:-1]))
        for row in np.flatnonzero(sequences - before > 1).tolist():
            yield int(before[row]) + 1, int(sequences[row]) - 1
        after = int(sequences[-1])
    if after < until:
        yield after + 1, until


@dataclass
class SourceExtent:
    """The part of a source up to a sequence."""

    messages: int = 0
    gaps: deque[tuple[int, int]] = field(default_factory=deque)  #: last ranges of sequences without a message
    reach: int = 0  #: the sequence before the last messages


def extent(source: Messages, until: int, gaps_kept: int = 0, last: int = 0, last_bytes: int = 0) -> SourceExtent:
    """Measures the part of a source up to a sequence.

    Keeps the last gaps, up to `gaps_kept` sequences. The "last messages" are those of the last `last` sequences,
    gaps included, with at most `last_bytes` of payload unless a single message is larger.
    """
    found = SourceExtent(reach=max(until - last, source.first - 1, 0))
    tail: deque[tuple[U64, U64]] = deque()

    def counted() -> Iterator[MessageBatch]:
        for batch in source.read(until=until):
            found.messages += len(batch)
            tail.append((batch.stream_sequence.copy(), batch.data_size.astype(np.uint64)))
            while len(tail) > 1 and int(tail[1][0][0]) <= found.reach:
                tail.popleft()
            yield batch

    excess = -gaps_kept
    for first, end in gaps(counted(), source.first - 1, until) if source.count else ():
        found.gaps.append((first, end))
        excess += end - first + 1
        while excess > 0:
            first, end = found.gaps.popleft()
            if (size := end - first + 1) > excess:
                found.gaps.appendleft((first + excess, end))
            excess -= min(size, excess)
    if found.messages:
        sequences, sizes = (np.concatenate(part) for part in zip(*tail, strict=True))
        behind = np.cumsum(sizes[::-1])[::-1] > last_bytes
        behind[-1] = False
        if behind.any():
            found.reach = max(found.reach, int(sequences[np.flatnonzero(behind)[-1]]))
    return found


#: older servers undo a deletion without erasing when they are killed (seen: 2.9.10)
_LASTING_FROM: Final = (2, 10, 0)
#: fillers deleted at a time
AT_ONCE: Final = 4096
#: the message does not exist: it was deleted before
_NOT_FOUND: Final = 10043


async def delete_fillers(js: JetStream, name: str, sequences: Iterable[int]) -> None:
    """Deletes fillers of a stream; those already deleted are no failure."""
    rest = iter(sequences)
    while part := list(islice(rest, AT_ONCE)):
        bodies = [{"seq": sequence, "no_erase": js.connection.version >= _LASTING_FROM} for sequence in part]
        await js.ask_many(f"STREAM.MSG.DELETE.{name}", bodies, ignore=frozenset({_NOT_FOUND}))


#: messages per request; server and client hold all of them in memory
_ROWS: Final = 512
_BYTES: Final = 8 << 20


REMEDY: Final = (
    "another application writes to the stream, or it was made from another source: stop the publishers, then remove "
    "the stream and migrate again"
)


class NotOursError(RefusedError):
    """A stream holds messages that are not in the source."""


@dataclass
class ExtentComparison:
    """The content of a part of a stream."""

    messages: int = 0  #: messages of the source
    fillers: list[int] = field(default_factory=list)  #: sequences that still have fillers


async def compare(
    js: JetStream, name: str, source: Messages, after: int, until: int, generation: int
) -> ExtentComparison:
    """Compares the messages in (after, until] with the source.

    Raises NotOursError for a different message, or for a missing one. `generation` is part of message ids.
    """
    return await _compare(js, name, wanted_messages(source, after, until), generation)


async def find_fillers(js: JetStream, name: str, sequences: Iterable[int]) -> list[int]:
    """Returns those of the rising sequences that still have fillers; the source has no message at any of them.

    Raises NotOursError for a message that is not a filler.
    """
    return (await _compare(js, name, map(ExpectedMessage, sequences), 0)).fillers


async def _compare(js: JetStream, name: str, listed: Iterable[ExpectedMessage], generation: int) -> ExtentComparison:
    found = ExtentComparison()
    for part in _parts(listed):
        answers = await js.ask_many(
            f"STREAM.MSG.GET.{name}",
            [{"seq": wanted.sequence} for wanted in part],
            ignore=frozenset({MESSAGE_NOT_FOUND}),
        )
        for wanted, answer in zip(part, answers, strict=True):
            stored = None if answer is None else _stored(answer)
            if wanted.subject is None and stored and headers.is_filler(*stored[1:]):
                found.fillers.append(wanted.sequence)
            elif wanted.is_met(stored, generation):
                found.messages += stored is not None
            else:
                raise NotOursError(
                    f"stream {name}: {_describe(stored)} at sequence {wanted.sequence}, where the source has "
                    f"{'no message' if wanted.subject is None else 'a different one'}",
                    REMEDY,
                )
    return found


Stored = tuple[bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class ExpectedMessage:
    """The expected message at a sequence of the stream; without a subject, no message."""

    sequence: int
    subject: bytes | None = None
    channel: bytes = b""
    own: int = 0
    timestamp: int = 0
    reply: bytes = b""
    data: bytes = b""

    def is_met(self, stored: Stored | None, generation: int) -> bool:
        """Returns whether the stored message is equal; published or restored, with or without origin headers."""
        if stored is None or self.subject is None:
            return stored is None and self.subject is None
        subject, block, data = stored
        if headers.message_id(block) not in (b"", b"%b%d" % (headers.identity(self.channel, generation), self.own)):
            return False
        about = (self.channel, self.own, self.timestamp, self.reply)
        blocks = [headers.header_block(*about, origin=origin) for origin in (True, False)]
        return subject == self.subject and data == self.data and headers.own_block(block) in blocks


def wanted_messages(source: Messages, after: int, until: int) -> Iterator[ExpectedMessage]:
    """Yields the expectation for each sequence in (after, until]."""
    if not source.count:
        return
    at = max(after + 1, source.first)
    for batch in source.read(after=at - 1, until=until):
        for sequence, message in zip(batch.stream_sequence.tolist(), batch.messages(), strict=True):
            for missing_count in range(at, sequence):
                yield ExpectedMessage(missing_count)
            yield ExpectedMessage(sequence, batch.subject, batch.channel, *message)
            at = sequence + 1
    for missing_count in range(at, until + 1):
        yield ExpectedMessage(missing_count)


def _parts(listed: Iterable[ExpectedMessage]) -> Iterator[list[ExpectedMessage]]:
    """Groups expectations by request."""
    part: list[ExpectedMessage] = []
    size = 0
    for wanted in listed:
        if part and (len(part) == _ROWS or size + len(wanted.data) > _BYTES):
            yield part
            part, size = [], 0
        part.append(wanted)
        size += len(wanted.data)
    if part:
        yield part


def _stored(answer: dict[str, Any]) -> Stored:
    message = answer.get("message") or {}
    try:
        block, data = (base64.b64decode(message.get(name) or "") for name in ("hdrs", "data"))
    except (binascii.Error, TypeError, ValueError):
        block, data = b"", b""
    return str(message.get("subject")).encode(), block, data


def _describe(stored: Stored | None) -> str:
    if stored is None:
        return "there is no message"
    subject, block, data = stored
    kind = "a filler" if headers.is_filler(block, data) else f"a message of {len(data)} bytes on {subject.decode()}"
    return f"there is {kind}"
