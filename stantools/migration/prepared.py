"""A planned stream together with its source: what every way of loading it begins with."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.errors import StantoolsError, StoreUnreadableError
from stantools.migration.plan.consumers import placed
from stantools.migration.plan.model import ConsumerPlan, Level, Note, Plan, Position, StreamPlan
from stantools.migration.proof.stream import ExpectedStream
from stantools.migration.source import StoreSource
from stantools.migration.stream_source import StreamSource, stream_source
from stantools.migration.takeover import StateRecords, plan_state
from stantools.progress import Progress
from stantools.recovery.place import check_room
from stantools.streamfiles.batch import Batch
from stantools.streamfiles.layout import HEADER_LENGTH_SIZE
from stantools.streamfiles.meta import ConsumerState
from stantools.streamfiles.writer import ArchiveState, ConsumerEntry, StreamArchive, measure

#: About what headers with the origin add to a message.
_HEADER_BYTES = 150
#: What the header with the reply adds, and what is asked for in case all have one.
_REPLY_BYTES = 64


@dataclass(frozen=True)
class PreparedStream:
    """A stream of a plan and the messages that go into it."""

    plan: StreamPlan
    source: StreamSource

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.plan.name

    @property
    def largest_message(self) -> int:
        """About the bytes of its largest message, with headers."""
        payload = max((channel.largest_payload for channel, _ in self.source.parts), default=0)
        return payload + (_HEADER_BYTES if self.plan.origin_headers else 0)

    def positions(self) -> list[tuple[ConsumerPlan, Position]]:
        """Returns the consumers with their positions in sequences of the stream."""
        return [(consumer, placed(consumer, self.source)) for consumer in self.plan.consumers]

    def expected(self, *, published: bool) -> ExpectedStream:
        """Returns what the stream should be; `published` as `via_publish` there."""
        return ExpectedStream(self.name, self.source, self.plan.origin_headers, published, self.positions())

    def entries(self) -> list[ConsumerEntry]:
        """Returns the consumers as an archive holds them (jetstream-migration.md section 11).

        Consumer sequences are those of the stream. What is pending counts as sent longer ago than the ack wait, so
        that it is delivered again at once, as NATS Streaming does when a durable comes back.
        """
        return [ConsumerEntry(c.name, c.config, _state(c, position)) for c, position in self.positions()]

    def measure(self) -> ArchiveState:
        """Reads all messages and returns the state that the stream must have, without consumers."""
        return measure(self.source.read(), origin=self.plan.origin_headers, last=self.source.last)

    def archive(self, config: Mapping[str, Any], compression: str = "stored") -> StreamArchive:
        """Returns the archive to be built.

        Args:
            config: The stream configuration that goes into it.
            compression: `stored` or `snappy`.
        """
        plan = self.plan
        return StreamArchive(plan.name, config, plan.created_ns, origin=plan.origin_headers, compression=compression)

    def pieces(self, archive: StreamArchive, progress: Progress | None = None) -> Iterator[memoryview]:
        """Builds the archive, piece by piece; each is valid until the next one is asked for."""
        return archive.pieces(self.batches(progress), self.entries, self.source.last)

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        """Reads the messages; `progress` is called with the number of those that were dealt with."""
        for batch in self.source.read():
            yield batch
            if progress:
                progress(len(batch))


def estimated_bytes(plan: StreamPlan, *, least: bool = False) -> int:
    """Returns about how many bytes a stream takes: payloads, subjects, headers, and the frame of every record.

    Args:
        plan: The stream.
        least: Returns how many it takes at least, whatever its headers are.
    """
    headers = HEADER_LENGTH_SIZE + (_HEADER_BYTES if plan.origin_headers else _REPLY_BYTES)
    return plan.bytes_stored(0 if least else headers)


def prepare(plan: Plan, source: StoreSource) -> list[PreparedStream]:
    """Joins a plan with the store that it was made for.

    Returns:
        The streams of the plan; behind them, if it is for a broker, that of the broker's state.

    Raises:
        StoreUnreadableError: A channel of the plan is not in the store.
    """
    channels = {channel.name: channel for channel in source.channels}
    prepared = []
    for stream in plan.streams:
        missing = next((part.channel for part in stream.parts if part.channel not in channels), None)
        if missing is not None:
            raise StoreUnreadableError(
                f"{source.plan.source}: there is no channel {missing!r}, which stream {stream.name} is made of",
                "name the store that the plan was made for, or plan again",
            )
        parts = [(channels[part.channel], os.fsencode(part.subject)) for part in stream.parts]
        prepared.append(PreparedStream(stream, stream_source(parts)))
    if plan.broker:
        records = StateRecords(plan, source, [channel for each in prepared for channel, _ in each.source.parts])
        prepared.append(PreparedStream(plan_state(plan, records), records))
    return prepared


def _state(consumer: ConsumerPlan, position: Position) -> ConsumerState | None:
    if not position.delivered:
        return None
    sent_at = time.time_ns() - int(consumer.config.get("ack_wait", 0))
    pending = {sequence: (sequence, sent_at) for sequence in position.pending}
    floor, delivered = position.ack_floor, position.delivered
    return ConsumerState((floor, floor), (delivered, delivered), pending, {})


def room_problems(place: Path, streams: Sequence[PreparedStream]) -> list[Note]:
    """Returns what is in the way of streams on a file system here: that it has no room for them."""
    try:
        check_room(place, sum(estimated_bytes(stream.plan) for stream in streams))
    except StantoolsError as problem:
        return [Note(Level.PROBLEM, str(place), problem.message, problem.remedy)]
    return []
