"""A plan for the teams of the applications: which consumer and subject each client, durable and channel has now."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from stantools.migration.code_samples import reader_samples
from stantools.migration.plan.migration_plan import ConsumerKind, ConsumerPlan, MigrationPlan, StreamPlan, TargetKind
from stantools.nats.connect_options import DEFAULT_SERVER


@dataclass(frozen=True)
class HandoutRow:
    """A durable or a durable queue group, or, without consumer, a channel that is published to."""

    client: str  #: client id, "" for a queue group and for publishers
    durable: str
    queue_group: str
    channel: str
    stream: str
    consumer: str
    subject: str  #: subject of the channel's messages in the stream
    kind: str  #: `pull` or `push`; `publish` without consumer
    deliver_subject: str  #: of a push consumer
    next_sequence: int | None  #: first message that the consumer has not delivered; None without consumer
    pending: int  #: delivered messages that are not acknowledged

    @property
    def application(self) -> str:
        """The heading under which its team looks for it."""
        return f"queue group {self.queue_group}" if self.queue_group else f"client {self.client}"


def handout(plan: MigrationPlan) -> list[HandoutRow]:
    """Returns a row for every consumer, by application, then one for every channel."""
    readers = [_reader(stream, consumer) for stream in plan.streams for consumer in stream.consumers]
    readers.sort(key=lambda row: (bool(row.queue_group), row.client, row.queue_group, row.channel, row.durable))
    publishers = [
        HandoutRow("", "", "", part.channel, stream.name, "", part.subject, "publish", "", None, 0)
        for stream in plan.streams
        for part in stream.parts
    ]
    return readers + publishers


def _reader(stream: StreamPlan, consumer: ConsumerPlan) -> HandoutRow:
    subjects = {part.channel: part.subject for part in stream.parts}
    return HandoutRow(
        consumer.client,
        consumer.durable,
        consumer.group,
        consumer.channel,
        stream.name,
        consumer.name,
        subjects.get(consumer.channel, ""),
        consumer.kind.value,
        str(consumer.settings.get("deliver_subject", "")),
        consumer.position.delivered + 1,
        len(consumer.position.pending),
    )


def server_of(plan: MigrationPlan) -> str:
    """Returns the URL in the programs of a plan."""
    return plan.target.places[0] if plan.target.kind is TargetKind.SERVER and plan.target.places else DEFAULT_SERVER


def samples_of(plan: MigrationPlan, row: HandoutRow) -> dict[str, str]:
    """Returns the programs that read the consumer of a row, by language."""
    kind = ConsumerKind(row.kind)
    group = row.consumer if row.queue_group and kind is ConsumerKind.PUSH else ""
    return reader_samples(server_of(plan), row.stream, row.consumer, kind, group)


def as_csv(rows: Sequence[HandoutRow]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [each.name for each in fields(HandoutRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()
