"""`verify` of JetStream directories: every byte of every block is read, every record's hash is checked.

Of each stream: what it held as far as its directory tells (live), and which of these messages are intact, damaged and
missing. Facts: jetstream-store.md sections 3 to 20.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final

from stantools.inspection.catalogue import finding
from stantools.inspection.findings import STREAM_FINDING_FIELDS, Finding
from stantools.inspection.report import NextStep, ReportTable, columns
from stantools.inspection.scan_result import ScanResult
from stantools.inspection.stream_advice import safe_step
from stantools.notation import counted, describe_ranges
from stantools.progress import Progress
from stantools.sources.jetstream import FOLDER
from stantools.sources.source import Source
from stantools.store.ranges import Ranges
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.flaws import FileFlaw
from stantools.streamfiles.stream_checks import check_stream
from stantools.streamfiles.survey import StreamSurvey

_COLUMNS: Final = columns(
    *("account", "stream", "messages", "bytes", "intact", "damaged", "missing before"),
    numbers=("messages", "bytes"),
    keys=("account", "stream"),
    details=("bytes",),
)


@dataclass(frozen=True)
class StreamVerdict:
    account: str
    name: str
    live: Ranges  #: what the stream held, as far as the directory tells
    intact: Ranges  #: live messages whose whole record is there and right, wherever it lies
    damaged: Ranges
    missing: Ranges
    messages: int  #: intact ones
    bytes: int  #: size of their records

    @property
    def intact_messages(self) -> int:
        return self.messages

    @property
    def intact_bytes(self) -> int:
        return self.bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "account": self.account,
            "name": self.name,
            "live": self.live.as_json(),
            "intact": self.intact.as_json(),
            "damaged": self.damaged.as_json(),
            "missing": self.missing.as_json(),
            "messages": self.messages,
            "bytes": self.bytes,
        }


@dataclass
class StreamsVerdict(ScanResult):
    finding_columns: ClassVar[Sequence[str]] = STREAM_FINDING_FIELDS

    step: NextStep | None = None  #: the safe one; None for a clean source
    streams: list[StreamVerdict] = field(default_factory=list)

    def next_step(self) -> NextStep:
        return self.step or super().next_step()

    @property
    def logs(self) -> list[StreamVerdict]:
        return self.streams

    def table(self) -> ReportTable:
        rows = [
            (
                each.account,
                each.name,
                each.messages,
                each.bytes,
                *(describe_ranges(part, 4) if part else None for part in (each.intact, each.damaged, each.missing)),
            )
            for each in sorted(self.streams, key=lambda each: (-each.missing.count(), -each.damaged.count()))
        ]
        return ReportTable(_COLUMNS, rows)

    def messages_sentence(self) -> str:
        intact, damaged, missing = (
            sum(getattr(each, name).count() for each in self.streams) for name in ("intact", "damaged", "missing")
        )
        text = f"{counted(intact, 'message', 'is/are')} intact, {damaged + missing} missing before"
        return text + (f", {damaged} of them damaged" if damaged else "")

    def as_json(self) -> dict[str, Any]:
        streams = {"streams": [each.as_json() for each in self.streams]}
        return {"schema": 1, "kind": "jetstream", **self.common_json(), **streams, **self.effort_json()}


def verify_streams(
    source: Source,
    *,
    patterns: Sequence[str] = (),
    progress: Progress | None = None,
    on_finding: Callable[[Finding], object] | None = None,
    on_stream: Callable[[StreamSurvey, StreamVerdict, Sequence[Finding]], object] | None = None,
    survey_of: Callable[[StoredStream], StreamSurvey] | None = None,
) -> StreamsVerdict:
    """Scans the streams of a source completely; the options are those of `verify`.

    `on_stream` gets each stream with its findings. `survey_of` returns the survey of a stream that has been made
    already.
    """
    begin, verdict = time.perf_counter(), StreamsVerdict()
    chosen = source.chosen_streams(patterns)
    verdict.add_findings(_directory_findings(source, chosen), on_finding)
    for stream in chosen:
        survey = survey_of(stream) if survey_of else StreamSurvey(stream, progress)
        found, findings = _verify_stream(source, stream, survey)
        verdict.add_findings(findings, on_finding)
        verdict.bytes_scanned += survey.bytes_scanned
        verdict.streams.append(found)
        if on_stream:
            on_stream(survey, found, findings)
    if not verdict.clean:
        text = "copy the directory before a server is started on it, then write what is intact to a new one"
        if source.archived:
            text = "write what is intact in the archive to a new directory"
        verdict.step = safe_step(source, f"{text}; nothing was changed")
    verdict.seconds = time.perf_counter() - begin
    return verdict


def _directory_findings(source: Source, streams: Sequence[StoredStream]) -> Iterator[Finding]:
    """Yields the findings that do not belong to a stream."""
    for text in source.flaws:
        yield finding("archive-incomplete", text, stream=None)
    for name in source.logged_streams():
        detail = f"only a Raft log is here of {name}: its directory is gone, as after its deletion as an orphan"
        yield finding("js-orphan", detail, stream=None)
    yield from _nested(source, streams)


def _verify_stream(
    source: Source, stream: StoredStream, survey: StreamSurvey
) -> tuple[StreamVerdict, Sequence[Finding]]:
    checked = list(check_stream(survey))
    flaws = (*stream.flaws, *survey.flaws, *checked)
    verdict = StreamVerdict(
        stream.account,
        stream.name,
        survey.live,
        survey.intact,
        survey.damaged,
        survey.missing,
        survey.intact.count(),
        survey.totals()[0],
    )
    return verdict, [flaw_finding(flaw, source, stream) for flaw in flaws]


def flaw_finding(flaw: FileFlaw, source: Source, stream: StoredStream) -> Finding:
    return finding(
        flaw.kind.value,
        flaw.detail,
        file=file_below(source, stream, flaw.file),
        offset=flaw.offset,
        length=flaw.length,
        seq=flaw.sequence,
        account=stream.account,
        stream=stream.name,
        consumer=flaw.consumer,
    )


def file_below(source: Source, stream: StoredStream, file: str) -> str:
    """Returns the path of a stream's file relative to the source; that of a backup is the stream."""
    folder = os.path.relpath(stream.path, source.place)
    return stream.name if (folder, file) == (".", "") else str(Path(folder, file))


def _nested(source: Source, streams: Sequence[StoredStream]) -> Iterator[Finding]:
    folders = {
        Path(*parts[: at + 2])
        for parts in (each.path.absolute().parts for each in streams)
        for at, pair in enumerate(pairwise(parts))
        if pair == (FOLDER, FOLDER)
    }
    for each in sorted(folders):
        detail = f"no server that is given {each.parent.parent} sees the streams in it"
        yield finding("js-nested", detail, file=os.path.relpath(each, source.place), stream=None)
