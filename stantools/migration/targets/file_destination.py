"""Streams in files, of a backup or a stopped server: read, and compared message by message.

Every hash is checked. Findings are those of the proof on a running server.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from stantools.errors import StantoolsError, readable
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.journal import (
    UNWATCHED,
    JournalObserver,
    StepLog,
    StreamOutcome,
    StreamResult,
    StreamStage,
    StreamState,
)
from stantools.migration.prepared_stream import PreparedStream
from stantools.migration.proof.stream_proof import Comparison, Proof, compare_consumer, setting_differences
from stantools.migration.stream_source import channel_of
from stantools.migration.targets.stream_load import DEFAULTS, ApplyOptions
from stantools.nats.columns import FrameColumns
from stantools.nats.inbox import Received
from stantools.notation import some_of
from stantools.progress import Progress
from stantools.sources.jetstream import ARCHIVE, REQUEST
from stantools.streamfiles.framing import MAX_FILE_SIZE, TarFile
from stantools.streamfiles.layout import BLOCK_NAME, MESSAGES, ArchiveError
from stantools.streamfiles.meta import ArchiveState, ConsumerState, consumer_meta, stream_meta
from stantools.streamfiles.reader import ArchiveReader, StreamReader
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.writer import ConsumerEntry
from stantools.work import ThreadWork

_THERE = "check that the file is there"
_PIECE = 1 << 20
_REQUEST_MAX = 16 << 20
_CONSUMER_FILES = ("meta.inf", "meta.sum", "o.dat")


@dataclass
class WrittenStream:
    stream: str = ""  #: name, "" if unreadable
    config: Mapping[str, Any] = field(default_factory=dict)  #: configuration in `meta.inf`
    #: state that a server will report, as far as readable
    state: ArchiveState = field(default_factory=ArchiveState)
    consumers: Sequence[ConsumerEntry] = ()
    whole: bool = False  #: read to its end
    findings: list[Finding] = field(default_factory=list)
    #: request of a backup (`backup.json`): configuration and state for the server
    request: Mapping[str, Any] = field(default_factory=dict)


def check_backup(directory: Path, take: Callable[[RecordBatch], None] | None = None) -> WrittenStream:
    """Reads a backup to its end, with every hash, and compares its request with its archive.

    `take` gets the records as they are read. Raises StoreUnreadableError if a file is missing.
    """
    written = WrittenStream()
    try:
        written.request = _request(directory / REQUEST)
    except ArchiveError as problem:
        written.findings.append(finding("archive-damaged", problem.message, file=REQUEST))
    archive = directory / ARCHIVE
    _read(lambda: ArchiveReader(_pieces(archive), str(archive)), written, ARCHIVE, take)
    if written.request and written.whole and (wrong := "; ".join(_request_differences(written))):
        detail = f"{directory / REQUEST} does not belong to its archive: {wrong}"
        written.findings.append(finding("archive-damaged", detail, file=REQUEST))
    return written


def check_stream_directory(directory: Path, take: Callable[[RecordBatch], None] | None = None) -> WrittenStream:
    """Reads the directory of a stream in a server's store to its end. `take` gets the records."""
    written = WrittenStream()
    _read(lambda: StreamReader(_files(directory), str(directory)), written, directory.name, take)
    return written


def _read(
    opened: Callable[[], StreamReader], written: WrittenStream, file: str, take: Callable[[RecordBatch], None] | None
) -> None:
    try:
        reader = opened()
        written.stream, written.config = reader.stream, reader.config
        for records in reader.records():
            written.state = reader.state
            if take:
                take(records)
    except ArchiveError as problem:
        written.findings.append(finding("archive-damaged", problem.message, file=file))
        return
    written.state, written.consumers = reader.state, reader.consumers
    written.whole = True


def _pieces(path: Path) -> Iterator[bytes]:
    with readable(path, _THERE), path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _files(directory: Path) -> Iterator[TarFile]:
    """Yields the files of a stream's directory that belong into an archive; servers keep other files as well."""
    blocks = {
        int(match[1]): path for path in _listed(directory / MESSAGES) if (match := BLOCK_NAME.fullmatch(path.name))
    }
    paths = [directory / "meta.inf", directory / "meta.sum", *(blocks[number] for number in sorted(blocks))]
    paths += [path / name for path in _listed(directory / "obs") for name in _CONSUMER_FILES]
    for path in paths:
        if path.exists():
            yield TarFile(path.relative_to(directory).as_posix(), _content(path))


def _listed(directory: Path) -> list[Path]:
    with readable(directory, _THERE):
        return sorted(directory.iterdir()) if directory.is_dir() else []


def _content(path: Path) -> bytearray:
    with readable(path, _THERE):
        size = path.stat().st_size
        if size > MAX_FILE_SIZE:
            raise ArchiveError(f"{path} has {size} bytes; at most {MAX_FILE_SIZE} are expected")
        return bytearray(path.read_bytes())


def _request(path: Path) -> dict[str, Any]:
    try:
        with readable(path, _THERE), path.open("rb") as file:
            request = json.loads(file.read(_REQUEST_MAX))
    except (ValueError, RecursionError) as problem:
        raise ArchiveError(f"{path} is not JSON: {problem}") from problem
    if not isinstance(request, dict) or not all(isinstance(request.get(name), dict) for name in ("config", "state")):
        raise ArchiveError(f"{path} does not hold a config and a state")
    return request


def _request_differences(written: WrittenStream) -> Iterator[str]:
    """Yields the contradictions between a backup's request and its archive."""
    config, state = written.request["config"], written.request["state"]
    if config.get("name") != written.stream:
        yield f"it is for stream {config.get('name')!r}, the archive holds {written.stream!r}"
    for name, value in {**written.state.as_json(), "consumer_count": len(written.consumers)}.items():
        if state.get(name) != value:
            yield f"{name} is {state.get(name)!r}, in the archive {value!r}"


#: columns in both kinds of batches
_SHARED = (
    "sequence",
    "timestamp",
    "subject_start",
    "subject_size",
    "header_start",
    "header_size",
    "data_start",
    "data_size",
)
_SHOWN = 10


def prove_backup(directory: Path, stream: PreparedStream, progress: Progress | None = None) -> Proof:
    """Compares a backup with its source: messages, configuration and consumers. `progress` gets numbers of messages."""
    proof, written = _compare_all(lambda take: check_backup(directory, take), stream, progress)
    if written.request:
        proof.findings += _config(f"stream {stream.name}, request", stream.plan.config, written.request["config"])
    return proof


def prove_stream_directory(directory: Path, stream: PreparedStream, progress: Progress | None = None) -> Proof:
    """As `prove_backup`, for a stream in the store of a stopped server."""
    if not directory.is_dir():
        detail = f"stream {stream.name} does not exist in {directory.parent}"
        return Proof([finding("stream-missing", detail, channel=channel_of(stream.source))])
    return _compare_all(lambda take: check_stream_directory(directory, take), stream, progress)[0]


def _compare_all(
    check: Callable[[Callable[[RecordBatch], None]], WrittenStream], stream: PreparedStream, progress: Progress | None
) -> tuple[Proof, WrittenStream]:
    started = time.monotonic()
    plan, channel = stream.plan, channel_of(stream.source)
    comparison = Comparison(
        stream.source.read(), stream.name, origin=plan.origin_headers, published=False, channel=channel
    )

    def compare(records: RecordBatch) -> None:
        received = _received(records)
        comparison.add(received)
        if progress:
            progress(len(received))

    written = check(compare)
    findings = list(written.findings)
    if written.stream:
        # Messages after damage that stopped the reader count as missing.
        findings += comparison.finish()
        expected = json.loads(stream_meta(plan.name, plan.config, plan.created_ns))
        findings += _config(f"stream {stream.name}", expected, written.config)
    if written.whole:
        if written.state.last_seq != stream.source.last:
            detail = f"stream {stream.name} ends at sequence {written.state.last_seq} instead of {stream.source.last}"
            findings.append(finding("stream-state", detail, channel=channel))
        findings += _consumers(stream, written)
    seconds = time.monotonic() - started
    return Proof(findings, comparison.messages, comparison.bytes, seconds), written


def _received(records: RecordBatch) -> Received:
    """Returns the messages among records in the form of a delivery."""
    live = records.messages
    columns = FrameColumns(len(live))
    for name in _SHARED:
        setattr(columns, name, getattr(live, name))
    return Received(records.buffer, columns)


def _config(place: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Finding]:
    if wrong := setting_differences(expected, found):
        yield finding("stream-config", f"{place}: {wrong}")


def _consumers(stream: PreparedStream, written: WrittenStream) -> Iterator[Finding]:
    there = {entry.name: entry for entry in written.consumers}
    for plan, expected in zip(stream.plan.consumers, stream.entries(), strict=True):
        found, differences = there.get(plan.name), []
        if found and _position(found.state) != _position(expected.state):
            differences.append(f"its position is {_words(found.state)} instead of {_words(expected.state)}")
        config = json.loads(consumer_meta(plan.name, plan.config, stream.plan.created_ns))
        yield from compare_consumer(stream.name, plan, found.config if found else None, differences, config)


def _position(state: ConsumerState | None) -> object:
    """Returns the comparable part of a position: all but times of delivery."""
    if state is None:
        return None
    pending = {sequence: number for sequence, (number, _) in state.pending.items()}
    return state.ack_floor, state.delivered, pending, dict(state.redelivered)


def _words(state: ConsumerState | None) -> str:
    if state is None:
        return "its beginning"
    pending = some_of([str(each) for each in sorted(state.pending)], _SHOWN)
    return f"{state.delivered[1]}, all acknowledged up to {state.ack_floor[1]}, pending {pending or 'nothing'}"


@dataclass(frozen=True)
class PlacedStream:
    stream: str
    directory: Path
    state: ArchiveState  #: state that a server will report
    present: bool = False  #: it was there before, identical
    replaced: Path | None = None  #: new place of the replaced stream


class FileDestination(ABC):
    """A place for streams in the file system, written without a server."""

    #: several streams may be written in parallel
    parallel: ClassVar[bool] = True
    #: outcome for a stream that was not there before
    outcome: ClassVar[StreamOutcome]

    @abstractmethod
    def directory(self, stream: str) -> Path: ...

    @abstractmethod
    def place(
        self, stream: PreparedStream, options: ApplyOptions = DEFAULTS, watch: JournalObserver = UNWATCHED
    ) -> PlacedStream:
        """Writes a stream atomically and synced; an existing one is compared with the source and kept if identical.

        Raises RefusedError for a different stream, another run, a server, lack of space, or a stream that no archive
        can hold.
        """

    @abstractmethod
    def prove(self, stream: PreparedStream, progress: Progress | None = None) -> Proof: ...

    def apply(
        self, streams: Sequence[PreparedStream], journal: StepLog, options: ApplyOptions, watch: JournalObserver
    ) -> list[StreamResult]:
        """Writes every missing stream, then reads it back."""

        def one(stream: PreparedStream) -> StreamResult:
            result = StreamResult(stream.name)
            try:
                if journal.state(stream.name) is None:
                    journal.note(stream.name, StreamState.STARTED)
                started = time.monotonic()
                placed = self.place(stream, options, watch)
                result.seconds = time.monotonic() - started
                result.outcome = StreamOutcome.REPLACED if placed.replaced else self.outcome
                result.messages, result.bytes = placed.state.messages, placed.state.bytes
                if placed.present:
                    result.outcome = StreamOutcome.COMPLETE
                elif options.prove:
                    self._prove_into(result, stream, watch)
                if result.good:
                    journal.note(stream.name, StreamState.PROVEN if options.prove else StreamState.LOADED)
            except StantoolsError as problem:
                result.failed(problem)
            return result

        return list(ThreadWork(options.parallel if self.parallel else 1).in_order(one, streams))

    def verify(
        self, streams: Sequence[PreparedStream], published: Collection[str], watch: JournalObserver, parallel: int
    ) -> list[StreamResult]:
        def one(stream: PreparedStream) -> StreamResult:
            result = StreamResult(stream.name, StreamOutcome.COMPARED)
            try:
                self._prove_into(result, stream, watch)
                result.messages = result.proven
            except StantoolsError as problem:
                result.failed(problem)
            return result

        return list(ThreadWork(parallel).in_order(one, streams))

    def _prove_into(self, result: StreamResult, stream: PreparedStream, watch: JournalObserver) -> None:
        with watch.stage(stream.name, StreamStage.PROVE, stream.source.count) as progress:
            proof = self.prove(stream, progress)
        result.compared(proof)
        result.bytes = result.bytes or proof.bytes
