"""A planned stream together with its source: what every way of loading it begins with."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stantools.migration.archive.consumer import ConsumerState
from stantools.migration.archive.writer import ArchiveState, ConsumerEntry, StreamArchive, measure
from stantools.migration.merge import StreamSource
from stantools.migration.plan.matching import source_of
from stantools.migration.plan.model import ConsumerPlan, Plan, Position, StreamPlan
from stantools.migration.source import StoreSource
from stantools.migration.watch import Watch, counted


@dataclass(frozen=True)
class PreparedStream:
    """A stream of a plan and the messages that go into it."""

    plan: StreamPlan
    source: StreamSource

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.plan.name

    def positions(self) -> list[tuple[ConsumerPlan, Position]]:
        """Returns the consumers with their positions in sequences of the stream."""
        if not self.plan.renumbered:
            return [(consumer, consumer.position) for consumer in self.plan.consumers]
        result = []
        for consumer in self.plan.consumers:
            channel = _raw(consumer.channel)
            position = consumer.position.translated(lambda seqs, channel=channel: self.source.position(channel, seqs))
            result.append((consumer, position))
        return result

    def entries(self) -> list[ConsumerEntry]:
        """Returns the consumers as an archive holds them (migration facts, section 11).

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

    def pieces(self, archive: StreamArchive, watch: Watch) -> Iterator[memoryview]:
        """Builds the archive, piece by piece; each is valid until the next one is asked for."""
        return archive.pieces(counted(self.source.read(), watch, self.name), self.entries, self.source.last)


def prepare(plan: Plan, source: StoreSource) -> list[PreparedStream]:
    """Joins a plan with the store that it was made for.

    Raises:
        StoreUnreadableError: A channel of the plan is not in the store.
    """
    return [PreparedStream(stream, source_of(stream, source)) for stream in plan.streams]


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _state(consumer: ConsumerPlan, position: Position) -> ConsumerState | None:
    if not position.delivered:
        return None
    sent_at = time.time_ns() - int(consumer.config.get("ack_wait", 0))
    pending = {sequence: (sequence, sent_at) for sequence in position.pending}
    floor, delivered = position.ack_floor, position.delivered
    return ConsumerState((floor, floor), (delivered, delivered), pending, {})
