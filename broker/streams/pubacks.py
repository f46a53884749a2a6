"""Publish acknowledgements that wait until the messages are flushed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from broker.streams.preview import translate_publish_ack
from stantools.nats.frames import frame_table, rows
from stantools.nats.kernels import encode_numbers

if TYPE_CHECKING:
    from broker.streams.ports import StreamsPort
    from broker.streams.stream import Stream
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames


#: beginning of an answer, before the sequence
_HEAD: Final = b'{"stream":%b,"seq":'
#: Fewer rows are answered one by one.
_FEW: Final = 16
#: An answer about a message: the stream, its reply subject, and the answer.
_One = tuple["Stream", bytes, bytes]


def publish_ack(stream: Stream, sequence: int, *, known: bool = False) -> bytes:
    """Returns the answer to a message that is stored, or `known` as a duplicate."""
    return b"%b%d%b}" % (_HEAD % stream.json_name, sequence, b',"duplicate": true' if known else b"")


class _AckColumns(NamedTuple):
    """Answers about messages of a stream, as rows of a table."""

    stream: Stream
    buffer: bytes
    frames: Frames


class PubAcks:
    """Publish acknowledgements that wait for a flush; with `preview`, in the dialect of the stream's creator."""

    def __init__(self, bus: StreamsPort, *, preview: bool) -> None:
        self._bus, self._preview = bus, preview
        self._waiting: list[_One | _AckColumns] = []

    def add(self, stream: Stream, to: bytes, answer: bytes) -> None:
        self._waiting.append((stream, to, answer))

    def add_rows(self, stream: Stream, buffer: Buffer, frames: Frames, begin: int, end: int, sequence: int) -> None:
        """Adds the answers to rows of a table that were stored with consecutive sequences."""
        if end - begin < _FEW:
            view = memoryview(buffer)
            for _, _, reply, size, _, _, _, _ in frames[begin:end].tolist():
                if size:
                    self._waiting.append((stream, bytes(view[reply : reply + size]), publish_ack(stream, sequence)))
                sequence += 1
            return
        answers = frame_table(end - begin)
        head = _HEAD % stream.json_name
        data, count = encode_numbers(buffer, frames, begin, end, head, sequence, b"}", answers)
        if count:
            self._waiting.append(_AckColumns(stream, data, answers[:count]))

    def answer(self, stream: Stream, to: bytes, answer: bytes) -> None:
        """Sends an answer without a wait for the flush."""
        self._bus.answer(to, translate_publish_ack(stream, answer) if self._preview else answer, 0)

    def refuse(self, stream: Stream, answer: bytes) -> None:
        """Sends this answer in place of all that wait for a stream."""
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
        """Sends all that wait."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not isinstance(each, _AckColumns):
                self.answer(*each)
            elif self._preview:
                for to, _, _, answer in rows(each.buffer, each.frames, 0, len(each.frames)):
                    self._bus.publish(to, translate_publish_ack(each.stream, answer))
            else:
                self._bus.publish_rows(each.buffer, each.frames)
