"""An open JetStream directory, or backup of a stream, in the browser."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stantools.errors import StantoolsError, StoreUnreadableError
from stantools.notation import counted, format_size
from stantools.sources.door import open_source
from stantools.sources.source import SourceRequest
from stantools.store.read_options import ReadOptions
from tui.cells import name_text
from tui.jobs import Job
from tui.session import ChannelFacts, ChannelSummary, ScanStage, SourceSession

if TYPE_CHECKING:
    from stantools.browse.browsed_channel import BrowsedChannel, OpenedRecords
    from stantools.inspection.advice import Advice
    from stantools.inspection.findings import Finding
    from stantools.inspection.outcomes import ChannelOutcome
    from stantools.inspection.stream_forecast.nodes_report import NodesForecasts
    from stantools.inspection.stream_forecast.start_report import StartForecasts
    from stantools.inspection.stream_overview import StreamOverview
    from stantools.inspection.stream_verify import StreamVerdict
    from stantools.sources.source import Source
    from stantools.streamfiles.directory import StoredStream
    from stantools.streamfiles.survey import StreamSurvey


class StreamSession(SourceSession):
    """The streams of a source.

    Attributes:
        starts: Forecasts of starts, once known.
    """

    NOUN = "stream"
    FILES = "block"
    VIEW_NAMES: ClassVar[Mapping[str, str]] = {"slices": "blocks", "subscriptions": "consumers"}
    VERBS: ClassVar[Sequence[str]] = ("salvage", "export", "migrate")

    def __init__(self, source: Source, read_options: ReadOptions | None = None, *, workers: int = 2) -> None:
        self._given = source
        self._streams: dict[str, StoredStream] = {}
        super().__init__(source.path, read_options or source.read_options, workers=workers)
        self.source = source

    def _open(self) -> None:
        source = self._given
        if self.source is not None and source.archived:  # again: its private copy is unchanged
            source = replace(source, streams=tuple(replace(each, flaws=[]) for each in source.streams))
        elif self.source is not None:
            source = open_source(self.path, SourceRequest(self.read_options))
        self._given = source
        if self.source is not None:
            self.source = source
        self._streams = dict(sorted(_labelled(source.streams)))
        if source.archived and source.streams:
            self.root = source.streams[0].path
        self.consumers = {}
        self.starts: StartForecasts | NodesForecasts | None = None
        self._reset(list(self._streams))

    def use_key(self, key: bytes | None) -> None:
        self.read_options = replace(self.read_options, encryption_key=key)
        self.rescan()

    @property
    def outcomes(self) -> Mapping[str, ChannelOutcome]:
        verdicts = (each.verdict for each in list(self.channels.values()))
        return {each.name: each.outcome for each in verdicts if each}

    def start_outlook(self) -> tuple[str, bool] | None:
        return (self.starts.sentence(), self.starts.harmless) if self.starts else None

    def advice(self) -> Advice | None:
        from stantools.inspection.advice import Advice

        if self.starts is None:
            text = f"No start can be forecast: {self.forecast_problem}"
            return Advice(text) if self.forecast_problem else None
        if self.uses:
            return Advice(f"{self.uses[0].detail}: stop the server before you change anything, then check again")
        step = self.starts.next_step()
        return Advice(step.text, tuple(shlex.split(step.commands[-1])) if step.commands else ())

    def about(self) -> Sequence[str]:
        found = [name_text(str(self.named)), counted(len(self.channels), "stream")]
        if self.stage > ScanStage.OVERVIEW:
            found.append(counted(sum(map(len, self.consumers.values())), "consumer"))
        return [*found, f"{format_size(self.totals.disk_bytes)} on disk"]

    def stream(self, name: str) -> StoredStream:
        if name not in self._streams:
            raise StoreUnreadableError(f"{name_text(name)}: the directory no longer has this stream")
        return self._streams[name]

    def channel(self, name: str) -> BrowsedChannel:
        from stantools.browse.stream_channel import StreamChannel

        return StreamChannel(self.stream(name), self.survey(name))

    def records(self, path: Path, channel: str | None) -> OpenedRecords | None:
        from stantools.browse.stream_channel import stream_records

        name = channel or next((name for name, each in self._streams.items() if path.is_relative_to(each.path)), "")
        return stream_records(self.stream(name), path, self.survey(name))

    def _scan(self, job: Job[None]) -> None:
        self.look(job)
        self._verify(job)
        self._forecast(job)
        self.stage = ScanStage.COMPLETE
        self.touch()

    def look(self, job: Job[None]) -> None:
        """Reads the indexes and consumers; the blocks of streams without a valid index are read by the scan."""
        from stantools.inspection.stream_consumers import consumer_lags
        from stantools.inspection.stream_overview import stream_overview

        job.begin_phase("reading indexes", len(self._streams))
        self.stage = ScanStage.OVERVIEW
        for name, stream in self._streams.items():
            overview = stream_overview(stream, job.advance)
            self.consumers[name] = consumer_lags(stream)
            self._summarise(self.channels[name], overview)
            self.totals.by_index += overview.messages
            self.totals.disk_bytes += sum(each.size for each in stream.blocks)
            self.touch()
            job.advance(1)

    def _summarise(self, facts: ChannelFacts, overview: StreamOverview, survey: StreamSurvey | None = None) -> None:
        known = self._streams[facts.name].index
        filled = [each for each in survey.blocks if each.messages] if survey else []
        consumers = self.consumers[facts.name]
        facts.summary = ChannelSummary(
            overview.messages,
            overview.first_seq,
            overview.last_seq,
            overview.bytes,
            sum(each.size for each in overview.blocks),
            len(overview.blocks),
            filled[0].first_time if filled else known.first_time if known else 0,
            filled[-1].last_time if filled else known.last_time if known and overview.messages else 0,
            len(consumers),
            max((each.lag for each in consumers), default=0),
        )

    def _verify(self, job: Job[None]) -> None:
        from stantools.inspection.findings import StreamFinding
        from stantools.inspection.stream_verify import verify_streams
        from stantools.inspection.verify import ChannelVerdict

        source = self._given
        job.begin_phase("checking every byte", source.data_size())
        self.stage = ScanStage.SCAN
        self.root_findings = []
        self.touch()
        names = {stream: name for name, stream in self._streams.items()}

        def add_finding(each: Finding) -> None:
            if isinstance(each, StreamFinding) and not each.stream:
                self.root_findings.append(each)
                self.totals.add_findings([each])
                self.touch()

        def add_stream(survey: StreamSurvey, verdict: StreamVerdict, findings: Sequence[Finding]) -> None:
            name = names[survey.directory]
            facts = self.channels[name]
            facts.survey = survey
            facts.findings = [replace(each, channel=name) for each in findings]
            facts.verdict = ChannelVerdict(
                name,
                verdict.intact,
                verdict.damaged,
                verdict.missing,
                verdict.messages,
                verdict.bytes,
                _outcome(name, survey),
            )
            self.totals.add_channel(facts)
            self.touch()
            job.check()

        verify_streams(source, progress=job.advance, on_finding=add_finding, on_stream=add_stream)
        self.scanned = True

    def _forecast(self, job: Job[None]) -> None:
        from stantools.inspection.source_queries import signs_of_use
        from stantools.inspection.stream_forecast.nodes_report import forecast_directories
        from stantools.inspection.stream_forecast.start_report import SurveyCache
        from stantools.sources.source import Capability

        source = self._given
        self.stage = ScanStage.FORECAST
        self.uses = signs_of_use(source)
        self.touch()
        if Capability.FORECAST not in source.found.kind.capabilities:
            self.forecast_problem = "no server starts on a backup"
            self.touch()
            return
        job.begin_phase("forecasting a start", 0)
        try:
            surveys = SurveyCache(job.advance, (facts.survey for facts in self.channels.values()))
            self.starts = forecast_directories(source, None, surveys)
        except StantoolsError as problem:  # no known fact depends on it
            self.forecast_problem = problem.message
        self.touch()


def _labelled(streams: Sequence[StoredStream]) -> Iterator[tuple[str, StoredStream]]:
    """Yields each stream with its name, with account and node if several have the name."""
    names = Counter(each.name for each in streams)
    full = Counter(f"{each.account}/{each.name}" for each in streams)
    for stream in streams:
        name = stream.name
        if names[name] > 1:
            name = f"{stream.account}/{name}"
            if full[name] > 1:
                name = f"{stream.node or stream.path.parent.parent.parent.name}/{name}"
        yield name, stream


def _outcome(name: str, survey: StreamSurvey) -> ChannelOutcome:
    from stantools.inspection.outcomes import ChannelOutcome

    return ChannelOutcome(name, survey.intact, missing=survey.damaged | survey.missing)
