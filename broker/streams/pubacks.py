"""Acknowledgements of what was published, which wait until it is flushed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from broker.streams.preview import said_of_publish
from stantools.nats.frames import frame_table, rows
from stantools.nats.kernels import encode_numbers

if TYPE_CHECKING:
    from broker.streams.ports import StreamsPort
    from broker.streams.stream import Stream
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames


#: Rows that are answered one by one.
_FEW: Final = 16
#: An answer about a message of a stream: the stream, where to, and the answer.
_One = tuple["Stream", bytes, bytes]


class _AckColumns(NamedTuple):
    """Answers about messages of a stream, as rows of a table."""

    stream: Stream
    buffer: bytes
    frames: Frames


class PubAcks:
    """Acknowledgements that wait.

    Args:
        bus: NATS.
        preview: Those who made a stream in a dialect of the preview are answered in it.
    """

    def __init__(self, bus: StreamsPort, *, preview: bool) -> None:
        self._bus, self._preview = bus, preview
        self._waiting: list[_One | _AckColumns] = []

    def add(self, stream: Stream, to: bytes, answer: bytes) -> None:
        """Adds an answer."""
        self._waiting.append((stream, to, answer))

    def add_rows(self, stream: Stream, buffer: Buffer, frames: Frames, begin: int, end: int, sequence: int) -> None:
        """Adds the answers to rows of a table that were stored one after the other, from a sequence on."""
        if end - begin < _FEW:
            head = b'{"stream":%b,"seq":' % stream.json_name
            view = memoryview(buffer)
            for _, _, reply, size, _, _, _, _ in frames[begin:end].tolist():
                if size:
                    self._waiting.append((stream, bytes(view[reply : reply + size]), b"%b%d}" % (head, sequence)))
                sequence += 1
            return
        answers = frame_table(end - begin)
        head = b'{"stream":%b,"seq":' % stream.json_name
        data, count = encode_numbers(buffer, frames, begin, end, head, sequence, b"}", answers)
        if count:
            self._waiting.append(_AckColumns(stream, data, answers[:count]))

    def answer(self, stream: Stream, to: bytes, answer: bytes) -> None:
        """Sends an answer at once."""
        self._bus.answer(to, said_of_publish(stream, answer) if self._preview else answer, 0)

    def refuse(self, stream: Stream, answer: bytes) -> None:
        """Answers everything that waits for a stream so."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each[0] is not stream:
                self._waiting.append(each)
            elif isinstance(each, _AckColumns):
                found = rows(each.buffer, each.frames, 0, len(each.frames))
                self._waiting.extend((stream, to, answer) for to, _, _, _ in found)
            else:
                self._waiting.append((stream, each[1], answer))

    def send(self) -> None:
        """Sends what waits."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not isinstance(each, _AckColumns):
                self.answer(*each)
            elif self._preview:
                for to, _, _, answer in rows(each.buffer, each.frames, 0, len(each.frames)):
                    self._bus.publish(to, said_of_publish(each.stream, answer))
            else:
                self._bus.publish_rows(each.buffer, each.frames)
