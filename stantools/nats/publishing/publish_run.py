"""Messages on their way into a stream, each confirmed by an answer.

Into a stream that has one writer, every message is published with the last sequence that the stream must have before
it (`exact`): the server stores it at the next sequence or not at all. So it may be sent any number of times, and an
answer that confirms sequence N proves that all messages up to N are stored. In a stream with other writers the owner
numbers the messages, and each has an id by which it is recognised. The reply subject of each message ends with its
sequence or number; answers come in the order of the messages.

A *run* begins after a sequence known to be stored, with reply subjects of its own: answers to earlier runs do not
count. At most a window of messages is unanswered. An answer that is missing, late, an error or out of order ends the
run, and the outcome of the messages in flight is unknown. Its owner then reads the stream, and begins the next run
after the last message of its own: `broker.stores.jetstream.exact_publisher` for messages in memory,
`migration.publish.stream_fill` for those of a source that can be read again, `migration.replay.jetstream_publisher`
for streams with other writers.

This module is free of sockets and clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from stantools.nats.errors import ApiError, NatsError
from stantools.nats.jetstream import read_answer
from stantools.nats.publishing.kernels import check_answers, encode_publishes
from stantools.streamfiles import headers

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer
    from stantools.format.message_batch import MessageBatch
    from stantools.nats.columns import FrameColumns

#: maximum number of unanswered messages to a stream: its queue in the server is bounded
MAX_WINDOW: Final = 4096
#: the same in bytes; a larger message is sent alone. After a killed run only the last window of a stream can differ
#: from its source: everything before it was confirmed.
MAX_WINDOW_BYTES: Final = 16 << 20
#: bytes of a frame besides channel, subjects, id, reply subject and payload at most
_AROUND: Final = 1024
_UNLIMITED: Final = 1 << 62


@dataclass(frozen=True)
class PublishWindow:
    """Limits of unanswered messages."""

    messages: int = MAX_WINDOW  #: messages, up to `MAX_WINDOW`
    bytes: int = 8 << 20  #: bytes, up to `MAX_WINDOW_BYTES`; a larger message is sent alone
    chunk: int = 512  #: messages in one write
    seconds: float = 10.0  #: seconds to wait for the next answer

    def __post_init__(self) -> None:
        fits = 1 <= self.messages <= MAX_WINDOW and 1 <= self.bytes <= MAX_WINDOW_BYTES
        if not fits or self.chunk < 1:
            raise ValueError(f"{self} is not a window")


class AckOrderError(NatsError):
    """Answers came in another order than the messages; the stored messages have to be read."""

    retriable = True


class UnexpectedAnswer(NamedTuple):
    sequence: int  #: expected sequence of the message
    problem: NatsError


class PublishRun:
    """The messages in flight to one stream; begins with `begin`."""

    __slots__ = (
        *("_bytes", "_chunks", "_exact", "_out", "_stream"),
        *("confirmed", "repeated", "reply", "sent", "stored", "window"),
    )

    def __init__(self, stream: str, window: PublishWindow, buffer_bytes: int = 1 << 16, *, exact: bool = True) -> None:
        self.window = window
        self.confirmed = 0  #: last sequence, or number, known to be stored
        self.sent = 0  #: last sequence, or number, sent
        self.stored = 0  #: sequence in the stream of the last message that an answer to this run has confirmed, or 0
        self.repeated = 0  #: confirmed messages that the stream had before
        self.reply = b""  #: prefix of the reply subjects, before the sequence or number
        self._exact = exact
        self._stream = stream
        self._chunks: deque[tuple[int, int]] = deque()  # writes in flight: last sequence, bytes
        self._bytes = 0
        self._out = bytearray(buffer_bytes)

    def begin(self, reply: bytes, after: int) -> None:
        """Begins a run after a sequence known to be stored; `reply` differs from that of all earlier runs."""
        self.reply = reply
        self.confirmed = after
        self.stored = 0
        self.drop()

    def drop(self) -> None:
        """Forgets the messages in flight."""
        self.sent = self.confirmed
        self._chunks.clear()
        self._bytes = 0

    @property
    def in_flight(self) -> int:
        return self.sent - self.confirmed

    @property
    def room(self) -> int:
        """The number of further messages that the window allows at present."""
        return self.window.messages - self.sent + self.confirmed if self._bytes <= self.window.bytes else 0

    def fits(self, messages: int, size: int) -> bool:
        """Returns whether the window has room for these messages and bytes."""
        return not self.in_flight or (messages <= self.room and self._bytes + size <= self.window.bytes)

    def encode(
        self,
        batch: MessageBatch,
        row: int,
        rows: int,
        identity: bytes,
        *,
        origin: bool,
        shift: int = 0,
        largest: int = _UNLIMITED,
    ) -> tuple[bytes, int]:
        """Returns the frames of the next messages and their number, 0 if the first exceeds `largest`.

        Arguments as for `encode_publishes`.
        """
        out = self._out
        while True:
            done, size = encode_publishes(
                batch, row, rows, self.reply, identity, origin, self._exact, shift, largest, out
            )
            if done:
                return bytes(memoryview(out)[:size]), done
            size = int(batch.data_size[row]) + int(batch.reply_size[row]) + len(identity)
            size += len(batch.channel) + len(batch.subject) + len(self.reply) + _AROUND
            if size <= len(out):
                return b"", 0
            self._out = out = bytearray(size)

    def size(self, batch: MessageBatch, row: int, identity: bytes, *, origin: bool, shift: int = 0) -> int:
        """Returns the bytes of a message that count for the server's limit, with its headers."""
        own, expected_last = int(batch.sequence[row]), int(batch.stream_sequence[row]) - 1 - shift
        block = headers.header_block(batch.channel, own, int(batch.timestamp[row]), batch.reply(row), origin=origin)
        guarded = headers.guarded(block, identity, own, expected_last if self._exact else None)
        return len(guarded) + int(batch.data_size[row])

    def encode_fillers(self, subject: bytes, count: int, shift: int = 0) -> bytes:
        """Returns the frames of fillers at the next sequences."""
        frames = []
        for sequence in range(self.sent + 1, self.sent + 1 + count):
            block = headers.filler(sequence - 1 - shift)
            frames.append(
                b"HPUB %b %b%d %d %d\r\n%b\r\n" % (subject, self.reply, sequence, len(block), len(block), block)
            )
        return b"".join(frames)

    def add(self, messages: int, size: int) -> None:
        """Records the next messages as sent, in one write of `size` bytes."""
        self.sent += messages
        self._chunks.append((self.sent, size))
        self._bytes += size

    def confirm(self, last: int) -> None:
        """Records that all messages up to a sequence are stored."""
        self.confirmed = last
        self.sent = max(self.sent, last)
        while self._chunks and self._chunks[0][0] <= last:
            self._bytes -= self._chunks.popleft()[1]

    def take(self, buffer: Buffer, columns: FrameColumns) -> int:
        """Confirms messages by their answers; returns the row of the first other answer, for `unexpected`."""
        row, expected, stored, repeated = check_answers(buffer, columns, 0, self.reply, self.confirmed + 1, self._exact)
        if expected - 1 > self.sent:
            return 0
        if expected - 1 > self.confirmed:
            self.stored = stored
            self.repeated += repeated
            self.confirm(expected - 1)
        return row

    def unexpected(self, buffer: Buffer, columns: FrameColumns, row: int) -> Iterator[UnexpectedAnswer]:
        """Yields the answers of this run from a row on: errors, and confirmations out of order."""
        view = memoryview(buffer)
        for at in range(row, len(columns)):
            start, size = int(columns.subject_start[at]), int(columns.subject_size[at])
            subject = bytes(view[start : start + size])
            if subject.startswith(self.reply):
                start, size = int(columns.data_start[at]), int(columns.data_size[at])
                token = subject[len(self.reply) :].decode()
                problem = self._problem(token, bytes(view[start : start + size]))
                yield UnexpectedAnswer(int(token) if token.isdecimal() else 0, problem)

    def _problem(self, token: str, data: bytes) -> NatsError:
        message = f"message {token} of stream {self._stream}" if self._exact else f"a message to {self._stream}"
        if not data:
            return ApiError(message, 503, 0, "no stream accepts it")
        try:
            answer = read_answer(message, data)
        except NatsError as problem:
            return problem
        stored = answer.get("seq")
        if not isinstance(stored, int):
            return NatsError(f"{message} was answered with {data[:80]!r}", "check which service answers on its subject")
        if not self._exact:
            return AckOrderError(f"{message} was answered before an earlier one", "run the command again")
        if str(stored) == token:
            return AckOrderError(f"{message} was answered before message {self.confirmed + 1}", "run the command again")
        return NatsError(
            f"{message} was stored by {answer.get('stream')} at sequence {stored}",
            "the server does not know Nats-Expected-Last-Sequence: use nats-server 2.9 or newer",
        )
