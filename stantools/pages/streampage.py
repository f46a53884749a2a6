"""The page about a JetStream directory: results of doctor, verify and subs, a map of every block, and message times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from stantools.browse.stream_channel import StreamChannel
from stantools.inspection.findings import Finding, worst_first
from stantools.inspection.report import Report
from stantools.inspection.stream_consumers import ConsumerLag, consumer_lags
from stantools.inspection.stream_verify import StreamsVerdict, StreamVerdict, verify_streams
from stantools.inspection.subscribers import as_ranges
from stantools.pages.html import render
from stantools.pages.pictures import MAX_DRAWN, ChannelPicture, draw, is_wrong
from stantools.pages.plots import strip
from stantools.pages.storepage import LISTED
from stantools.progress import Progress
from stantools.sources.source import Source
from stantools.streamfiles.survey import StreamSurvey


@dataclass(frozen=True)
class StreamSection:
    """A stream as the page shows it."""

    verdict: StreamVerdict
    consumers: Sequence[ConsumerLag]
    disk_bytes: int
    findings: int
    picture: ChannelPicture | None

    @property
    def lag(self) -> int:
        """The greatest lag of its consumers."""
        return max((each.lag for each in self.consumers), default=0)

    @property
    def sequences(self) -> Markup:
        """A strip of its sequences: intact, damaged and missing."""
        verdict = self.verdict
        if not verdict.live:
            return Markup("")
        parts = ((verdict.intact, "good"), (verdict.damaged, "warn"), (verdict.missing, "bad"))
        marks = ((first, last + 1, role) for ranges, role in parts for first, last in ranges)
        return strip(marks, verdict.live.first, verdict.live.last + 1)


@dataclass
class DirectoryFacts:
    """The streams of a source, read for a page one by one."""

    source: Source
    streams: list[StreamSection] = field(default_factory=list)
    verdict: StreamsVerdict = field(default_factory=StreamsVerdict)
    surveys: list[StreamSurvey] = field(default_factory=list)

    def read(self, progress: Progress | None = None) -> None:
        """Scans and draws every stream; `progress` is called with bytes."""
        healthy = 0

        def draw_stream(survey: StreamSurvey, verdict: StreamVerdict, findings: Sequence[Finding]) -> None:
            nonlocal healthy
            stream = survey.directory
            self.surveys.append(survey)
            channel = StreamChannel(stream, survey)
            states = [(path.name, state) for path, state in channel.states().items()]
            wrong = bool(findings) or any(is_wrong(state) for _, state in states)
            healthy += not wrong
            picture = draw(states, channel.timeline(lambda _: None)) if wrong or healthy <= MAX_DRAWN else None
            size = sum(each.size for each in (*stream.blocks, *stream.other_blocks))
            self.streams.append(StreamSection(verdict, consumer_lags(stream), size, len(findings), picture))

        self.verdict = verify_streams(self.source, progress=progress, on_stream=draw_stream)


def streams_page(facts: DirectoryFacts, report: Report, now_ns: int) -> str:
    """Renders the page; `report` is that of doctor, `now_ns` is the time of the inspection."""
    said = report.document()
    return render(
        "streams.html",
        {"pending": lambda pending: as_ranges(sorted(pending))},
        path=str(facts.source.path),
        report=report,
        state=said["state"],
        verdict=said["verdict"],
        streams=facts.streams,
        findings=worst_first(facts.verdict.findings),
        listed=LISTED,
        now_ns=now_ns,
    )
