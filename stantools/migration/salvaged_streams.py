"""Streams of a JetStream directory on their way into a running server: restored, compared, resumed as others are."""

from __future__ import annotations

import base64
import enum
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from stantools.errors import StoreUnreadableError, UsageError
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.plan.migration_plan import (
    ChannelPart,
    ConsumerPlan,
    MigrationPlan,
    OmittedPart,
    SourceRef,
    StreamPlan,
    TargetRef,
)
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.prepared_stream import PreparedStream
from stantools.migration.proof.stream_proof import ExpectedStream, Proof, compare_consumer
from stantools.migration.stream_source import StreamSource
from stantools.migration.targets.server_destination import ServerDestination
from stantools.migration.targets.target import Destination
from stantools.nats.jetstream import JetStream
from stantools.nats.readback import Readback
from stantools.notation import describe_ranges, parse_moment
from stantools.options import declared
from stantools.progress import Progress
from stantools.recovery.recovery_options import StreamSalvageOptions
from stantools.recovery.streams.stream_plan import SalvagedStream, StreamSalvagePlan, plan_stream_salvage
from stantools.sources.source import Source
from stantools.store.ranges import Ranges
from stantools.streamfiles.meta import ArchiveState, StreamTally
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.writer import ConsumerEntry, StreamArchive

#: members of a configuration that are parts of a plan, or decided by the server
_NAMED: Final = ("Created", "name", "subjects")
_OF_CONSUMER: Final = ("Created", "Name", "durable_name", "name")
#: what a server fills in, or reports in another form
_NOT_COMPARED: Final = ("metadata", "num_replicas", "deliver_policy", "opt_start_seq", "pause_until", "max_waiting")
_TOGETHER: Final = 500
_NO_MESSAGE: Final = 10037

#: time, subject, headers, payload
_Content = tuple[int, bytes, bytes, bytes]


@dataclass(frozen=True)
class RecordedMessages:
    """The messages of a salvaged stream, as the source of a migration."""

    stream: SalvagedStream
    renumbered = False
    parts: Sequence[Any] = ()

    @property
    def count(self) -> int:
        return self.stream.messages

    @property
    def first(self) -> int:
        return self.stream.recovered.first

    @property
    def last(self) -> int:
        return self.stream.last


@dataclass(frozen=True)
class SalvagedInput(PreparedStream):
    """A salvaged stream, with its messages as they are recorded."""

    stream: SalvagedStream

    @classmethod
    def of(cls, stream: SalvagedStream) -> SalvagedInput:
        return cls(_planned(stream), cast(StreamSource, RecordedMessages(stream)), stream)

    @property
    def largest_message(self) -> int:
        return 0

    def expected(self, *, published: bool) -> ExpectedStream:
        """Returns the expected content; nothing of it is ever published."""
        return cast(ExpectedStream, ExpectedRecords(self.stream, self.plan))

    def measure(self) -> ArchiveState:
        tally = StreamTally()
        for batch in self.stream.chosen.read():
            tally.add(batch.sequence, batch.timestamp, int(batch.length.sum()))
        return tally.state(self.stream.last)

    def archive(self, config: Mapping[str, Any], compression: str = "stored") -> StreamArchive:
        created = self.stream.config.members.get("Created")
        return self.stream.archive({"Created": created, **_without_nothing(config)}, compression)

    def pieces(self, archive: StreamArchive, progress: Progress | None = None) -> Iterator[memoryview]:
        def batches() -> Iterator[RecordBatch]:
            for batch in self.stream.chosen.read():
                yield batch
                if progress:
                    progress(len(batch))

        return archive.pieces(batches(), self.entries, self.stream.last)

    def entries(self) -> list[ConsumerEntry]:
        return self.stream.entries()


def _planned(stream: SalvagedStream) -> StreamPlan:
    config, recovered = stream.config.members, stream.recovered
    lost = stream.lost.count()
    part = ChannelPart(stream.full_name, "", stream.messages, recovered.first, stream.last, stream.bytes, lost)
    consumers = tuple(
        ConsumerPlan(each.name, settings=_without(each.config.members, _OF_CONSUMER)) for each in stream.consumers
    )
    return StreamPlan(
        stream.name,
        tuple(config.get("subjects") or ()),
        (part,),
        _without(config, _NAMED),
        consumers=consumers,
        created_ns=stream.config.created_ns,
    )


def _without(members: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name not in names}


def _without_nothing(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration without empty subjects, which a mirror must not have."""
    return {name: value for name, value in config.items() if name != "subjects" or value}


@dataclass
class _Differences:
    different: dict[int, list[int]] = field(default_factory=dict)  #: sequences by place in `_CODES`

    def add(self, kind: int, sequence: int) -> None:
        self.different.setdefault(kind, []).append(sequence)

    def findings(self, stream: str) -> Iterator[Finding]:
        for kind, sequences in self.different.items():
            ranges = Ranges.of((each, each) for each in sequences)
            yield finding(
                _CODES[kind],
                f"{len(sequences)} messages of stream {stream}: {describe_ranges(ranges)}",
                seq=ranges.first,
            )


@dataclass(frozen=True)
class ExpectedRecords:
    """The expected content of a restored stream on a server."""

    stream: SalvagedStream
    plan: StreamPlan

    async def prove(
        self, js: JetStream, *, messages: bool = True, after: int = 0, progress: Progress | None = None
    ) -> Proof:
        """Compares state, every message, and every consumer; without `messages` not the messages."""
        started = time.monotonic()
        name = self.stream.name
        info = await js.stream_info(name)
        if info is None:
            return Proof([finding("stream-missing", f"stream {name} does not exist")])
        state = info["state"]
        findings = []
        wanted = (self.stream.messages, self.stream.last)
        if (state["messages"], state["last_seq"]) != wanted:
            detail = f"stream {name}: it has {state['messages']} messages up to {state['last_seq']} instead of {wanted}"
            findings.append(finding("stream-state", detail))
        for consumer, planned in zip(self.stream.consumers, self.plan.consumers, strict=True):
            there = await js.consumer_info(name, consumer.name)
            differences = []
            if there and consumer.state:
                delivered, pending = there["delivered"]["stream_seq"], there["num_ack_pending"]
                if delivered != consumer.state.delivered[1]:
                    differences.append(f"it has delivered up to {delivered} instead of {consumer.state.delivered[1]}")
                if pending != len(consumer.state.pending):
                    differences.append(f"{pending} messages are pending instead of {len(consumer.state.pending)}")
            expected = {key: value for key, value in planned.settings.items() if key not in _NOT_COMPARED}
            findings += compare_consumer(name, planned, there and there["config"], differences, expected)
        read = await self._compare(js, info, progress) if messages else Proof()
        return Proof(findings + read.findings, read.messages, read.bytes, time.monotonic() - started)

    async def _compare(self, js: JetStream, info: Mapping[str, Any], progress: Progress | None) -> Proof:
        differences, count, size = _Differences(), 0, 0
        source = self._contents()
        sequence, content = next(source, (0, None))
        async with aclosing(self._read(js, info)) as received:
            async for number, found in received:
                while content is not None and sequence < number:
                    differences.add(_MISSING, sequence)
                    sequence, content = next(source, (0, None))
                if content is None or sequence != number:
                    differences.add(_EXTRA, number)
                    continue
                for kind, (one, other) in enumerate(zip(content, found, strict=True)):
                    if one != other:
                        differences.add(kind, number)
                count, size = count + 1, size + len(found[3])
                if progress:
                    progress(1)
                sequence, content = next(source, (0, None))
        while content is not None:
            differences.add(_MISSING, sequence)
            sequence, content = next(source, (0, None))
        return Proof(list(differences.findings(self.stream.name)), count, size)

    def _contents(self) -> Iterator[tuple[int, _Content]]:
        for batch in self.stream.chosen.read():
            contents = zip(batch.timestamp.tolist(), batch.subjects(), batch.headers(), batch.payloads(), strict=True)
            yield from zip(batch.sequence.tolist(), contents, strict=True)

    async def _read(self, js: JetStream, info: Mapping[str, Any]) -> Any:
        """Yields sequence and content of every message on the server, in rising order."""
        state, name = info["state"], self.stream.name
        if not state["messages"]:
            return
        if info["config"].get("retention", "limits") == "limits":
            async with aclosing(Readback(js, name, state).batches()) as batches:
                async for batch in batches:
                    times, numbers = batch.columns.timestamp.tolist(), batch.columns.sequence.tolist()
                    for row, number in enumerate(numbers):
                        yield number, (times[row], batch.subject(row), batch.header(row), batch.data(row))
            return
        # a consumer of a work queue would be refused, or change it
        for at in range(state["first_seq"], state["last_seq"] + 1, _TOGETHER):
            end = min(at + _TOGETHER, state["last_seq"] + 1)
            asked = [{"seq": sequence} for sequence in range(at, end)]
            for answer in await js.ask_many(f"STREAM.MSG.GET.{name}", asked, ignore=frozenset({_NO_MESSAGE})):
                if answer:
                    message = answer["message"]
                    headers, data = (base64.b64decode(message.get(key, "")) for key in ("hdrs", "data"))
                    yield message["seq"], (parse_moment(message["time"]), message["subject"].encode(), headers, data)


_CODES: Final = (
    "message-timestamp",
    "message-subject",
    "message-headers",
    "message-payload",
    "message-missing",
    "message-extra",
)
_MISSING, _EXTRA = range(4, 6)


#: options of a plan that apply to streams as well, and those that file stores beside them cannot have either
class _OptionScope(enum.Enum):
    """The sources of a migration that an option is for."""

    ALL = enum.auto()
    STORES = enum.auto()  #: file stores only
    NONE_WITH_STREAMS = enum.auto()  #: a migration with streams cannot have it


#: of the options of a plan; the others are for stores
_SCOPES: Final = {
    **dict.fromkeys(("channels", "replicas"), _OptionScope.ALL),
    **dict.fromkeys(("via", "for_broker", "maps", "override"), _OptionScope.NONE_WITH_STREAMS),
}


def check_restore(target: Destination, options: PlanOptions, *, alone: bool = True) -> None:
    """Raises `UsageError` for a target, or an option, that streams cannot have.

    Unless they are `alone`, other options are those of the file stores beside them.
    """
    if not isinstance(target, ServerDestination):
        raise UsageError(
            "the streams of a JetStream directory go into a running server", "for files: stantools salvage --to backup"
        )
    refused = {_OptionScope.NONE_WITH_STREAMS, *((_OptionScope.STORES,) if alone else ())}
    for name, each in declared(PlanOptions):
        if _SCOPES.get(name, _OptionScope.STORES) in refused and getattr(options, name) != each.default:
            raise UsageError(f"streams are restored as they are, without --{each.flag(name)}", "leave it out")
    if alone and options.limits is not None:
        raise UsageError("streams are restored with their own limits", "leave the limits of channels out")


def migration_of(plan: StreamSalvagePlan, target: TargetRef) -> tuple[MigrationPlan, list[SalvagedInput]]:
    """Returns the plan of a migration of salvaged streams, and its inputs."""
    inputs = [SalvagedInput.of(each) for each in plan.streams]
    streams = tuple(each.plan for each in inputs)
    left_out = [
        OmittedPart("stream", each.full_name, "its configuration or consumers are not all there", loss=True)
        for each in plan.streams
        if each.lossy and not each.lost
    ]
    if plan.left_out:
        left_out.append(OmittedPart("stream", "", "nothing of it can be read", plan.left_out, loss=True))
    source = SourceRef(str(plan.source))
    return MigrationPlan(source, target, streams=streams, left_out=tuple(left_out), made_at=time.time_ns()), inputs


async def prove_directory(js: JetStream, source: Source, stream: str, progress: Progress | None = None) -> Proof:
    """Compares a stream of a directory with the one of its name on a server."""
    stored = source.stream(stream)
    plan = plan_stream_salvage(replace(source, streams=(stored,)), StreamSalvageOptions(), [stored.name])
    if not plan.streams:
        raise StoreUnreadableError(f"{stored.path}: nothing of the stream can be read: {'; '.join(plan.notes)}")
    planned = SalvagedInput.of(plan.streams[0])
    return await ExpectedRecords(planned.stream, planned.plan).prove(js, progress=progress)
