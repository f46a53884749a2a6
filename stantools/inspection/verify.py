"""`verify`: a full scan of a store, with a finding for every difference from what a healthy server leaves.

It promises: every byte of every file that the server would read is read, every record's CRC is checked and every
message decoded, and every damaged range is reported. Nothing is changed, and no content of a file raises an
exception; only a path that is not a store does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.inspection.catalogue import finding
from stantools.inspection.file_findings import (
    directory_findings,
    foreign_findings,
    log_findings,
    sequence_findings,
    slice_findings,
    subscription_findings,
)
from stantools.inspection.findings import Finding
from stantools.inspection.outcomes import ChannelOutcome, OutcomeTotals, channel_outcome, store_outcomes
from stantools.inspection.report import ReportTable, columns
from stantools.inspection.runs import ChannelHistory, RecordRun, RunPart, arrange
from stantools.inspection.scan_result import ScanResult
from stantools.inspection.slicesummary import held_sequences
from stantools.inspection.survey import ChannelSurvey, survey_slice
from stantools.inspection.survey_jobs import survey_channels
from stantools.notation import describe_ranges
from stantools.progress import Progress
from stantools.store.clientlog import ClientsState, salvage_clients
from stantools.store.directory import CLIENTS_FILE, SERVER_FILE, WITNESS_FILE, Datastore, FileSnapshot, possible_slices
from stantools.store.limits import is_channel_name
from stantools.store.logscan import LogState
from stantools.store.mapping import Buffer, mapped
from stantools.store.ranges import Ranges
from stantools.store.serverinfo import read_server_info
from stantools.store.sublog import SubsState, salvage_subs

_State = TypeVar("_State", bound=LogState)


@dataclass
class ChannelVerdict:
    """The verdict on one channel."""

    name: str
    intact: Ranges  #: sequences with a whole and correct record, whatever the index says
    damaged: Ranges  #: sequences with a partial record
    missing: Ranges  #: sequences without any byte
    messages: int  #: whole messages in its directory, each once
    bytes: int  #: size in the server's accounting
    outcome: ChannelOutcome  #: state of the messages in its directory
    #: Messages of other channels in its directory, by channel.
    foreign: Mapping[str, Ranges] = field(default_factory=dict)
    repairable_bytes: int = 0  #: of messages that are not whole, and proven all the same

    @property
    def intact_messages(self) -> int:
        """With those that are proven although their record is damaged."""
        return self.messages + (self.outcome.intact - self.intact).count()

    @property
    def intact_bytes(self) -> int:
        return self.bytes + self.repairable_bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "intact": self.intact.as_json(),
            "damaged": self.damaged.as_json(),
            "missing": self.missing.as_json(),
            "messages": self.messages,
            "bytes": self.bytes,
            "recoverable": (self.outcome.intact - self.intact).as_json(),
            "archived": self.outcome.archived.as_json(),
            "unknown": [each.as_json() for each in self.outcome.unknown],
            "other_channels": {name: ranges.as_json() for name, ranges in self.foreign.items()},
        }


_COLUMNS = columns(
    *("channel", "messages", "bytes", "intact", "archived", "missing before", "unknown"),
    numbers=("messages", "bytes"),
    details=("bytes",),
)


@dataclass
class Verdict(ScanResult):
    """The result of verify of a store or a clustered node."""

    channels: list[ChannelVerdict] = field(default_factory=list)  #: one verdict per channel directory
    #: Messages in files in the root, by channel.
    in_root: Mapping[str, Ranges] = field(default_factory=dict)

    @property
    def logs(self) -> list[ChannelVerdict]:
        return self.channels

    @property
    def outcomes(self) -> dict[str, ChannelOutcome]:
        """The messages of each channel, wherever in the store they lie."""
        return store_outcomes(((each.outcome, each.foreign) for each in self.channels), self.in_root)

    def add(self, report: RootReport | ChannelReport, on_finding: Callable[[Finding], object] | None = None) -> None:
        """Adds the report on a part of the store; `on_finding` is called with each finding."""
        self.add_findings(report.findings, on_finding)
        self.bytes_scanned += report.bytes_scanned
        if isinstance(report, ChannelReport):
            self.channels.append(report.verdict)
        else:
            self.in_root = report.messages

    def table(self) -> ReportTable:
        rows = [
            (
                each.name,
                each.intact_messages,
                each.intact_bytes,
                describe_ranges(each.outcome.intact, 4),
                describe_ranges(each.outcome.archived, 4) if each.outcome.archived else None,
                describe_ranges(each.outcome.missing, 4) if each.outcome.missing else None,
                ", ".join(unknown.sequences for unknown in each.outcome.unknown) or None,
            )
            for each in sorted(self.channels, key=lambda each: each.outcome.rank)
        ]
        return ReportTable(_COLUMNS, rows)

    def messages_sentence(self) -> str:
        return OutcomeTotals.of(self.outcomes.values()).sentence()

    def as_json(self) -> dict[str, Any]:
        channels = {"channels": [each.as_json() for each in self.channels]}
        return {"schema": 1, **self.common_json(), **channels, **self.effort_json()}


def verify(
    store: Datastore,
    *,
    patterns: Sequence[str] = (),
    workers: int = 2,
    progress: Progress | None = None,
    on_finding: Callable[[Finding], object] | None = None,
    on_survey: Callable[[ChannelSurvey], object] | None = None,
) -> Verdict:
    """Scans a store completely.

    `workers` slices are scanned at the same time. `on_finding` is called with each finding at once, `on_survey` with
    the scan of each channel before it is released.
    """
    begin = time.perf_counter()
    root = verify_root(store)
    verdict = Verdict()
    verdict.add(root, on_finding)
    for survey in survey_channels(store, store.matching(patterns), workers=workers, progress=progress):
        verdict.add(verify_channel(store.path, survey, store.crc, root.clients), on_finding)
        if on_survey:
            on_survey(survey)
    verdict.seconds = time.perf_counter() - begin
    return verdict


@dataclass(frozen=True)
class RootReport:
    """The findings about the files in a store's root."""

    findings: list[Finding]  #: in the order in which verify reports them
    clients: frozenset[bytes]  #: ids of the clients with intact records; the findings of a channel depend on them
    bytes_scanned: int
    messages: Mapping[str, Ranges] = field(default_factory=dict)  #: messages in files of the root, by channel


@dataclass(frozen=True)
class ChannelReport:
    """The findings about one channel."""

    findings: list[Finding]  #: in the order in which verify reports them
    verdict: ChannelVerdict
    bytes_scanned: int  #: bytes read, including those of the slices


def verify_root(store: Datastore) -> RootReport:
    """Checks the root of a store: the names in it, server.dat and clients.dat."""
    if store.alone:
        return RootReport([], frozenset(), 0)
    server, server_size = _server_findings(store)
    clients, clients_size = _fold(store.clients, partial(salvage_clients, crc=store.crc))
    findings = [*store_findings(store), *server, *_clients_findings(clients)]
    runs = [run for each in possible_slices(store.foreign) for run in survey_slice(each, b"", store.crc).runs]
    return RootReport(findings, _ids(clients), server_size + clients_size, _by_channel(runs))


def registered_clients(root: Path, crc: Crc) -> frozenset[bytes]:
    """Returns the ids of the clients in clients.dat with intact records; none if it cannot be read.

    It is read once for all channels of a store that a process verifies one by one.
    """
    path = root / CLIENTS_FILE
    try:
        state = path.stat()
    except OSError:
        return frozenset()
    return _client_ids(path, state.st_mtime_ns, state.st_size, crc)


@lru_cache(maxsize=16)
def _client_ids(path: Path, changed: int, size: int, crc: Crc) -> frozenset[bytes]:
    return _ids(_fold(path, partial(salvage_clients, crc=crc))[0])


def _ids(clients: ClientsState | str | None) -> frozenset[bytes]:
    return frozenset(clients.clients) if isinstance(clients, ClientsState) else frozenset()


def loose_findings(directory: Path, survey: ChannelSurvey, history: ChannelHistory) -> Iterator[Finding]:
    """Yields the findings of slices without a store: about themselves, their indexes, and the sequences in them."""
    yield from slice_findings(directory, survey)
    yield from sequence_findings(survey, history)
    yield from foreign_findings(directory, survey)


def verify_channel(root: Path, survey: ChannelSurvey, crc: Crc, known_clients: Container[bytes]) -> ChannelReport:
    """Derives the findings and the verdict on one channel; of its files only subs.dat is read here.

    Where sequences occur twice, their records are read again to compare them. The survey excludes archived slices;
    `known_clients` are the ids from `verify_root`.
    """
    subs, subs_size = _fold(survey.files.subs, partial(salvage_subs, crc=crc), survey.files.subs_seen)
    history = arrange(survey.own_runs(), crc)
    findings = list(channel_findings(root, survey, history, subs, known_clients))
    scanned = sum(s.size + s.index.size for s in (*survey.slices, *survey.lone_indexes, *survey.strays))
    verdict = channel_verdict(survey, history, crc, subs if isinstance(subs, SubsState) else None)
    return ChannelReport(findings, verdict, subs_size + scanned)


def channel_verdict(
    survey: ChannelSurvey, history: ChannelHistory, crc: Crc, subs: SubsState | None = None
) -> ChannelVerdict:
    """Returns which sequences of a channel are there."""
    raw = survey.files.raw_name
    held = [] if any(each.files.archived for each in survey.slices) else survey.files.archived
    archived = Ranges.union(held_sequences(each, raw, crc) for each in held)
    outcome = channel_outcome(survey, history, subs, archived)
    strays = [run for stray in survey.strays for run in stray.runs]
    foreign = [run for run in (*survey.runs(), *strays) if run.subject != raw]
    messages = size = 0
    # Each message once: copies of slices under other numbers or names add nothing.
    counted_pieces = [piece for generation in history.generations for piece in generation.pieces]
    counted_pieces += _new_pieces((run for run in strays if run.subject == raw), survey.in_slices)
    counted_pieces += _new_pieces(foreign, Ranges())
    for piece in counted_pieces:
        count = piece.sequences.count()
        messages += count
        size += piece.run.bytes * count // piece.run.count
    return ChannelVerdict(
        survey.files.name,
        survey.intact,
        survey.damaged,
        outcome.missing - survey.damaged,
        messages,
        size,
        outcome,
        _by_channel(foreign),
        sum(
            size + MESSAGE_OVERHEAD
            for sequence, size in survey.repairable_sizes.items()
            if sequence not in survey.intact
        ),
    )


def _new_pieces(runs: Iterable[RecordRun], known: Ranges) -> Iterator[RunPart]:
    """Yields the parts of runs with new sequences, by the subject of the runs."""
    seen: dict[bytes, Ranges] = {}
    for run in runs:
        before = seen.get(run.subject, known)
        if fresh := run.sequences - before:
            yield RunPart(run, fresh)
        seen[run.subject] = before | run.sequences


def _by_channel(runs: Iterable[RecordRun]) -> dict[str, Ranges]:
    """Returns the sequences of messages by channel, for subjects that are channels."""
    found: dict[str, Ranges] = {}
    for run in runs:
        name = os.fsdecode(run.subject)
        if is_channel_name(name):
            found[name] = found.get(name, Ranges()) | run.sequences
    return found


def store_findings(store: Datastore) -> Iterator[Finding]:
    """Iterates over the findings about names in the root directory."""
    for name in store.system_names:
        yield finding("foreign-directory", "belongs to the operating system; it is not a channel", file=name)
    for path in store.leftovers:
        yield finding("leftover-file", "left by an interrupted compaction", file=path.name)
    for path in store.foreign:
        yield finding("foreign-file", "the server ignores it", file=path.name)
    for path in store.symlinks:
        yield finding("symlinked-channel", f"links to {path.readlink()}", file=path.name)
    for path in store.raft_logs:
        yield finding("raft-log", "a raft log lies in the store", file=str(path.relative_to(store.path)))
    if store.witness:
        yield finding("witness-present", "the last start used the truncate option", file=WITNESS_FILE)
    folded: dict[str, str] = {}
    for name in store.channel_names:
        twin = folded.setdefault(name.casefold(), name)
        if twin != name:
            yield finding("case-collision", f"differs from {twin!r} by letter case only", file=name, channel=name)


def _server_findings(store: Datastore) -> tuple[list[Finding], int]:
    """Returns the findings about server.dat and how many bytes were read."""
    if store.server is None:
        return [finding("server-missing", "there is no server.dat", file=SERVER_FILE)], 0
    try:
        with mapped(store.server) as buffer:
            server = read_server_info(buffer, store.crc)
            size = len(buffer)
    except StoreUnreadableError as error:
        return [finding("file-unreadable", error.message, file=SERVER_FILE)], 0
    if server.error:
        return [finding("server-damaged", server.error, file=SERVER_FILE, offset=0, length=size)], size
    if server.info is None:
        text = "server.dat holds no record"
        return [finding("server-missing", text, file=SERVER_FILE, offset=0, length=size)], size
    return [], size


def _fold(
    path: Path | None, fold: Callable[[Buffer], _State], snapshot: FileSnapshot | None = None
) -> tuple[_State | str | None, int]:
    """Folds a log file and returns its size; a text is the reason why it cannot be read, None means it is gone."""
    if path is None:
        return None, 0
    try:
        with mapped(path, snapshot=snapshot) as buffer:
            return fold(buffer), len(buffer)
    except StoreUnreadableError as error:
        return error.message, 0


def _clients_findings(clients: ClientsState | str | None) -> Iterator[Finding]:
    if clients is None:
        yield finding("clients-missing", "there is no clients.dat", file="clients.dat")
    elif isinstance(clients, str):
        yield finding("file-unreadable", clients, file="clients.dat")
    else:
        yield from log_findings("clients.dat", clients)


def channel_findings(
    root: Path,
    survey: ChannelSurvey,
    history: ChannelHistory,
    subs: SubsState | str | None,
    known_clients: Container[bytes],
) -> Iterator[Finding]:
    """Iterates over all findings of one channel.

    `subs` is the fold of its subs.dat: None if there is none, a text if it cannot be read. `known_clients` are the
    ids of the clients with intact records.
    """
    channel = survey.files.name
    file = f"{channel}/subs.dat"
    has_messages = bool(survey.slices or survey.files.archived or survey.lone_indexes or survey.files.misnamed)
    yield from directory_findings(root, survey, in_use=has_messages or subs is not None)
    yield from slice_findings(root, survey)
    yield from sequence_findings(survey, history)
    yield from foreign_findings(root, survey)
    if subs is None:
        if has_messages:
            yield finding("subs-missing", "the channel has messages and no subs.dat", file=file, channel=channel)
    elif isinstance(subs, str):
        yield finding("file-unreadable", subs, file=file, channel=channel)
    else:
        yield from log_findings(file, subs, channel)
        last = max(survey.intact.last, survey.damaged.last)
        yield from subscription_findings(file, channel, subs, known_clients, last)
