"""Messages in memory, which end with the process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker.stores.streams.contents import Contents
from broker.stores.streams.interface import Stored, StreamStore
from broker.stores.streams.subject_filter import SubjectFilter
from stantools.streamfiles.meta import ConsumerState

#: rows of a segment
_SEGMENT: Final = 65536
#: bytes that a message counts for besides its content (jetstream-server.md section 7)
_OVERHEAD: Final = 16


class VolatileStream(StreamStore):
    """A stream that stores neither its configuration nor its consumers."""

    def configure(self, config: Mapping[str, Any], created: int) -> None: ...

    def consumers(self) -> Iterator[tuple[dict[str, Any], int, ConsumerState | None]]:
        return iter(())

    def keep_consumer(
        self, name: str, config: Mapping[str, Any], created: int, begins: ConsumerState | None = None
    ) -> None: ...

    def keep_state(self, name: str, state: ConsumerState) -> None: ...

    def forget_consumer(self, name: str) -> None: ...


class MemoryStream(VolatileStream):
    def __init__(self, next_sequence: int = 1) -> None:
        self.contents = Contents(next_sequence)

    @staticmethod
    def size_of(subject: bytes, header: bytes, payload: bytes) -> int:
        """Returns the bytes that a message counts for."""
        return len(subject) + len(header) + len(payload) + _OVERHEAD

    def append(self, time: int, subject: bytes, header: bytes, payload: bytes) -> int:
        contents = self.contents
        sequence = contents.last + 1
        segments = contents.segments
        if not segments or len(segments[-1].sizes) >= _SEGMENT or segments[-1].end != sequence:
            contents.begin(sequence)
        contents.add(sequence, time, subject, self.size_of(subject, header, payload), 0)
        segments[-1].records.append((header, payload))
        return sequence

    def read(self, sequence: int) -> Stored | None:
        found = self.contents.locate(sequence)
        if found is None:
            return None
        segment, row = found
        record = segment.records[row]
        assert record is not None
        return Stored(sequence, segment.times[row], self.contents.subject_at(segment, row), *record)

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        found = self.contents.locate(sequence)
        if found is None:
            return False
        self.contents.discard(*found)
        self._remove_empty_segments(found[0].first)
        return True

    def purge_below(self, sequence: int) -> None:
        self.contents.drop_below(sequence)
        self._remove_empty_segments(self.contents.first)

    def purge_matching(self, wanted: SubjectFilter, below: int) -> None:
        self.contents.drop_rows(list(self.contents.rows(wanted, below)))
        self._remove_empty_segments(self.contents.last)

    def purge_all(self, next_sequence: int) -> None:
        self.contents.restart(next_sequence)

    def flush(self) -> None:
        """Does nothing: the messages are not durable."""

    def close(self) -> None:
        self.contents.restart(1)

    delete = abandon = close

    def _remove_empty_segments(self, end: int) -> None:
        """Removes the segments without messages that begin up to a sequence, except the last."""
        for segment in self.contents.segments[:-1]:
            if segment.first > end:
                break
            if not segment.live:
                self.contents.remove_segment(segment)
