"""A planned stream with its source, the input of every way of loading."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.errors import StantoolsError, StoreUnreadableError
from stantools.format.message_batch import MessageBatch
from stantools.migration.broker_state_stream import BrokerStateStream, plan_state
from stantools.migration.plan.consumers import stream_position
from stantools.migration.plan.migration_plan import (
    ConsumerPlan,
    ConsumerProgress,
    MigrationPlan,
    Remark,
    RemarkLevel,
    StreamPlan,
)
from stantools.migration.proof.stream_proof import ExpectedStream
from stantools.migration.source import StoreSource
from stantools.migration.stream_source import StreamSource, stream_source
from stantools.progress import Progress
from stantools.recovery.place import check_room
from stantools.streamfiles.layout import HEADER_LENGTH_SIZE
from stantools.streamfiles.meta import ConsumerState
from stantools.streamfiles.writer import ArchiveState, ConsumerEntry, StreamArchive, measure

#: estimated size of headers with the origin
_HEADER_BYTES = 150
#: size of the header with the reply, assumed for every message
_REPLY_BYTES = 64


@dataclass(frozen=True)
class PreparedStream:
    plan: StreamPlan
    source: StreamSource

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def largest_message(self) -> int:
        """Approximate bytes of its largest message, with headers."""
        payload = max((channel.largest_payload for channel, _ in self.source.parts), default=0)
        return payload + (_HEADER_BYTES if self.plan.origin_headers else 0)

    def resembles(self, config: Mapping[str, Any], messages: int, last: int) -> bool:
        """Returns whether a stream of the target looks as if a migration had made all of it."""
        described = config.get("description") == self.plan.config.get("description")
        return described and (messages, last) == (self.source.count, self.source.last)

    def positions(self) -> list[tuple[ConsumerPlan, ConsumerProgress]]:
        """Returns the consumers with their positions in sequences of the stream."""
        return [(consumer, stream_position(consumer, self.source)) for consumer in self.plan.consumers]

    def expected(self, *, published: bool) -> ExpectedStream:
        """Returns the expected content; `published` is its `via_publish`."""
        return ExpectedStream(self.name, self.source, self.plan.origin_headers, published, self.positions())

    def entries(self) -> list[ConsumerEntry]:
        """Returns the consumers in the form of an archive (jetstream-migration.md section 11).

        Consumer sequences equal those of the stream. Pending messages count as sent before the ack wait, so that
        they are delivered again at once, as NATS Streaming does when a durable resumes.
        """
        return [ConsumerEntry(c.name, c.config, _state(c, position)) for c, position in self.positions()]

    def measure(self) -> ArchiveState:
        """Reads all messages and returns the state that the stream must have, without consumers."""
        return measure(self.source.read(), origin=self.plan.origin_headers, last=self.source.last)

    def archive(self, config: Mapping[str, Any], compression: str = "stored") -> StreamArchive:
        """Returns the archive to build; `compression` is `stored` or `snappy`."""
        plan = self.plan
        return StreamArchive(plan.name, config, plan.created_ns, origin=plan.origin_headers, compression=compression)

    def pieces(self, archive: StreamArchive, progress: Progress | None = None) -> Iterator[memoryview]:
        """Builds the archive in pieces; each is valid until the next one."""
        return archive.pieces(self.batches(progress), self.entries, self.source.last)

    def batches(self, progress: Progress | None = None) -> Iterator[MessageBatch]:
        """Reads the messages; `progress` gets numbers of processed ones."""
        for batch in self.source.read():
            yield batch
            if progress:
                progress(len(batch))


def estimated_bytes(plan: StreamPlan, *, minimum: bool = False) -> int:
    """Estimates the bytes of a stream: payloads, subjects, headers, and the frame of every record.

    `minimum` returns a lower bound, whatever the headers are.
    """
    headers = HEADER_LENGTH_SIZE + (_HEADER_BYTES if plan.origin_headers else _REPLY_BYTES)
    return plan.bytes_stored(0 if minimum else headers)


def prepare(plan: MigrationPlan, source: StoreSource) -> list[PreparedStream]:
    """Joins a plan with its store; for a broker, the stream of the broker's state is last."""
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
        records = BrokerStateStream(plan, source, [channel for each in prepared for channel, _ in each.source.parts])
        prepared.append(PreparedStream(plan_state(plan, records), records))
    return prepared


def _state(consumer: ConsumerPlan, position: ConsumerProgress) -> ConsumerState | None:
    if not position.delivered:
        return None
    sent_at = time.time_ns() - int(consumer.config.get("ack_wait", 0))
    pending = {sequence: (sequence, sent_at) for sequence in position.pending}
    floor, delivered = position.ack_floor, position.delivered
    return ConsumerState((floor, floor), (delivered, delivered), pending, {})


def room_problems(place: Path, streams: Sequence[PreparedStream]) -> list[Remark]:
    """Returns problems of free space on a file system here."""
    try:
        check_room(place, sum(estimated_bytes(stream.plan) for stream in streams))
    except StantoolsError as problem:
        return [Remark(RemarkLevel.PROBLEM, str(place), problem.message, problem.remedy)]
    return []
