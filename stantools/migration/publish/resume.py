"""Is what a stream holds already the beginning of the source? Asked before anything is added to it.

Every message was acknowledged before the ones a window later were sent, and stored only directly behind the one before
it. So only the last window can hold something else: it is compared message by message, the rest follows from how far
the source goes up to there (`extent`). Sequences without a message (`gaps`) have to be filled and emptied again.
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
from stantools.nats.jetstream import MESSAGE_NOT_FOUND
from stantools.store.ranges import U64
from stantools.streamfiles import headers
from stantools.streamfiles.batch import Batch, Messages

if TYPE_CHECKING:
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.batch import Messages


def missing(source: Messages) -> int:
    """Returns how many sequences have no message between others or at the end: so many fillers it takes."""
    return source.last + 1 - source.first - source.count if source.count else 0


def check_fillers(name: str, lacking: int, limit: int) -> None:
    """Checks that not too many sequences of a stream have to be filled and emptied again.

    Raises:
        RefusedError: There are too many.
    """
    if lacking > limit:
        raise RefusedError(
            f"stream {name}: {lacking} sequences have no message, and publishing leaves a gap only by filling and "
            f"emptying it; the limit is {limit}",
            "restore an archive, which can have gaps of any size, or allow more fillers",
        )


def gaps(batches: Iterator[Batch], after: int, until: int) -> Iterator[tuple[int, int]]:
    """Yields the closed ranges of sequences in (after, until] that no message has.

    Args:
        batches: The messages in (after, until].
        after: Where to begin.
        until: Where to end.
    """
    for batch in batches:
        sequences = batch.sequence
        before = np.concatenate((np.array([after], np.uint64), sequences[:-1]))
        for row in np.flatnonzero(sequences - before > 1).tolist():
            yield int(before[row]) + 1, int(sequences[row]) - 1
        after = int(sequences[-1])
    if after < until:
        yield after + 1, until


@dataclass
class Extent:
    """The part of a source up to a sequence."""

    messages: int = 0  #: how many there are
    gaps: deque[tuple[int, int]] = field(default_factory=deque)  #: ranges of sequences without a message, the last ones
    reach: int = 0  #: the sequence behind which the last messages are


def extent(source: Messages, until: int, gaps_kept: int = 0, last: int = 0, last_bytes: int = 0) -> Extent:
    """Measures the part of a source up to a sequence.

    Args:
        source: The source.
        until: The last sequence of the part.
        gaps_kept: How many sequences of gaps to keep, the last ones.
        last: How many sequences are the last ones, gaps included.
        last_bytes: Payload bytes that the last messages have together, at most, if it is more than one.
    """
    found = Extent(reach=max(until - last, source.first - 1, 0))
    tail: deque[tuple[U64, U64]] = deque()

    def counted() -> Iterator[Batch]:
        for batch in source.read(until=until):
            found.messages += len(batch)
            tail.append((batch.sequence.copy(), batch.columns.data_size.astype(np.uint64)))
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


#: Servers before this version undo a deletion without erasing when they are killed (seen: 2.9.10).
_LASTING_FROM: Final = (2, 10, 0)
#: Fillers that are deleted at once.
AT_ONCE: Final = 4096
#: There is no such message: it has been deleted already.
_NOT_FOUND: Final = 10043


async def delete_fillers(js: JetStream, name: str, sequences: Iterable[int]) -> None:
    """Deletes messages of a stream; those that are gone already are no failure.

    Args:
        js: JetStream.
        name: The stream.
        sequences: Which ones; they must be fillers.

    Raises:
        NatsError: It could not be done.
    """
    rest = iter(sequences)
    while part := list(islice(rest, AT_ONCE)):
        bodies = [{"seq": sequence, "no_erase": js.connection.version >= _LASTING_FROM} for sequence in part]
        await js.ask_many(f"STREAM.MSG.DELETE.{name}", bodies, ignore=frozenset({_NOT_FOUND}))


#: Messages, and bytes of payloads, that are asked for at once: the server must get rid of them, and both are in memory.
_ROWS: Final = 512
_BYTES: Final = 8 << 20


REMEDY: Final = (
    "something else writes to the stream, or it was made from something else: stop what publishes to it, then remove "
    "the stream and migrate again"
)


class NotOursError(RefusedError):
    """A stream holds something that is not in the source."""


@dataclass
class Compared:
    """What a part of a stream holds."""

    messages: int = 0  #: messages of the source
    fillers: list[int] = field(default_factory=list)  #: sequences at which there still are fillers


async def compare(js: JetStream, name: str, source: Messages, after: int, until: int, generation: int) -> Compared:
    """Compares what a stream holds with the source.

    Args:
        js: JetStream.
        name: The stream.
        source: What it should hold.
        after: Only higher sequences are compared.
        until: Only sequences up to this one.
        generation: Part of the ids that messages have.

    Raises:
        NotOursError: There is a message that is another one than in the source, or none where it has one.
        NatsError: The server does not answer as it should.
    """
    return await _compare(js, name, wanted_messages(source, after, until), generation)


async def find_fillers(js: JetStream, name: str, sequences: Iterable[int]) -> list[int]:
    """Returns the sequences at which there still are fillers, of those that the source lacks.

    Args:
        js: JetStream.
        name: The stream.
        sequences: Where to look, rising.

    Raises:
        NotOursError: There is a message that is not a filler.
        NatsError: The server does not answer as it should.
    """
    return (await _compare(js, name, map(Wanted, sequences), 0)).fillers


async def _compare(js: JetStream, name: str, listed: Iterable[Wanted], generation: int) -> Compared:
    found = Compared()
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
                    f"{'no message' if wanted.subject is None else 'another one'}",
                    REMEDY,
                )
    return found


Stored = tuple[bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What should be at a sequence of the stream; without a subject nothing should."""

    sequence: int
    subject: bytes | None = None
    channel: bytes = b""
    own: int = 0
    timestamp: int = 0
    reply: bytes = b""
    data: bytes = b""

    def is_met(self, stored: Stored | None, generation: int) -> bool:
        """Returns whether it is there; it may have been published, or restored, with origin headers or without."""
        if stored is None or self.subject is None:
            return stored is None and self.subject is None
        subject, block, data = stored
        number = b"\r\n%b: %b%d\r\n" % (headers.MESSAGE_ID, headers.identity(self.channel, generation), self.own)
        if headers.MESSAGE_ID in block and number not in block:
            return False
        about = (self.channel, self.own, self.timestamp, self.reply)
        blocks = [headers.header_block(*about, origin=origin) for origin in (True, False)]
        return subject == self.subject and data == self.data and headers.own_block(block) in blocks


def wanted_messages(source: Messages, after: int, until: int) -> Iterator[Wanted]:
    """What should be at each sequence of the range."""
    if not source.count:
        return
    at = max(after + 1, source.first)
    for batch in source.read(after=at - 1, until=until):
        for sequence, message in zip(batch.sequence.tolist(), batch.messages(), strict=True):
            for lacking in range(at, sequence):
                yield Wanted(lacking)
            yield Wanted(sequence, batch.subject, batch.channel, *message)
            at = sequence + 1
    for lacking in range(at, until + 1):
        yield Wanted(lacking)


def _parts(listed: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    """Puts together what is asked for at once."""
    part: list[Wanted] = []
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
