"""The streams of a JetStream directory, as a nats-server would recover them if it is healthy.

An index that describes the blocks as they are answers without them; otherwise every block is read.
Facts: jetstream-store.md sections 2, 5, 10 and 23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.findings import Severity
from stantools.progress import Progress
from stantools.sources.source import Source
from stantools.streamfiles.block_survey import BlockSurvey
from stantools.streamfiles.blocks import is_compressed
from stantools.streamfiles.directory import BlockFile, StoredConsumer, StoredStream
from stantools.streamfiles.indexes import KnownStream
from stantools.streamfiles.meta import ConsumerState
from stantools.streamfiles.survey import StreamSurvey

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BlockOverview:
    number: int
    file: str  #: path relative to the stream's directory
    size: int
    first_seq: int  #: sequence of its first message; 0 without messages
    last_seq: int
    messages: int
    compressed: bool
    encrypted: bool


@dataclass(slots=True)
class StreamOverview:
    account: str
    name: str
    config: Mapping[str, Any] | None  #: without its time of creation; None if it cannot be read
    created: str | None
    first_seq: int
    last_seq: int
    messages: int
    bytes: int  #: size of the messages' records
    num_subjects: int | None  #: None if there are too many to be counted without an index
    blocks: list[BlockOverview]
    consumers: list[StoredConsumer]
    problems: list[str] = field(default_factory=list)

    @property
    def num_deleted(self) -> int:
        return self.last_seq - self.first_seq + 1 - self.messages if self.messages else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "account": self.account,
            "name": self.name,
            "config": self.config,
            "created": self.created,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "messages": self.messages,
            "bytes": self.bytes,
            "num_deleted": self.num_deleted,
            "num_subjects": self.num_subjects,
            "blocks": [asdict(each) for each in self.blocks],
            "consumers": [consumer_as_json(each) for each in self.consumers],
            "problems": self.problems,
        }


def consumer_as_json(consumer: StoredConsumer) -> dict[str, Any]:
    state = consumer.state or ConsumerState((0, 0), (0, 0))
    config = dict(consumer.config) if consumer.config is not None else None
    for name in ("Created", "Name"):
        if config:
            config.pop(name, None)
    return {
        "name": consumer.name,
        "config": config,
        "delivered": dict(zip(("consumer", "stream"), state.delivered, strict=True)),
        "ack_floor": dict(zip(("consumer", "stream"), state.ack_floor, strict=True)),
        "pending": [[each, number, time // _SECOND] for each, (number, time) in sorted(state.pending.items())],
        "redelivered": [[each, count] for each, count in sorted(state.redelivered.items())],
    }


def stream_overviews(
    source: Source, *, patterns: Sequence[str] = (), progress: Progress | None = None
) -> Iterator[StreamOverview]:
    """Yields the streams of a source whose names match a pattern; no patterns match all."""
    for stream in source.chosen_streams(patterns):
        yield stream_overview(stream, progress)


def stream_overview(stream: StoredStream, progress: Progress | None = None) -> StreamOverview:
    config = dict(stream.config) if stream.config is not None else None
    created = config.pop("Created", None) if config else None
    survey: StreamSurvey | None = None
    known = stream.index
    if known is None or stream.index_doubt:
        survey = StreamSurvey(stream, progress)
        size, subjects = survey.totals()
        first, last, messages = survey.intact.first, survey.last, survey.intact.count()
        blocks = [_read_block(each) for each in survey.blocks]
    else:
        first, last, messages = known.first, known.last, known.messages
        size, subjects = known.size, known.subjects
        blocks = [_listed_block(each, stream, known) for each in stream.blocks]
    if not messages:
        first = last + 1 if last else 0
    overview = StreamOverview(
        stream.account,
        stream.name,
        config,
        created if isinstance(created, str) else None,
        first,
        last,
        messages,
        size,
        subjects,
        blocks,
        stream.consumers,
    )
    flaws = (*stream.flaws, *(survey.flaws if survey else ()))
    overview.problems = [
        f"{each.file}: {each.detail}" for each in flaws if CATALOGUE[each.kind.value].severity is not Severity.INFO
    ]
    return overview


def _listed_block(file: BlockFile, stream: StoredStream, known: KnownStream) -> BlockOverview:
    entry = known.blocks.get(file.number)
    messages = entry.messages if entry else 0
    first, last = (entry.first, entry.last) if entry and messages else (0, 0)
    name, encrypted = f"{file.place}/{file.name}", file.path.with_suffix(".key").exists()
    return BlockOverview(
        file.number, name, file.size, first, last, messages, not encrypted and is_compressed(file.path), encrypted
    )


def _read_block(block: BlockSurvey) -> BlockOverview:
    return BlockOverview(
        block.file.number,
        block.name,
        block.file.size,
        block.first,
        block.last,
        block.messages,
        block.compressed,
        block.encrypted,
    )
