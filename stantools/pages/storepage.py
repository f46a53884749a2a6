"""The page about a store: results of doctor, verify, forecast and subs, a map of every slice, and message times.

`Pictures` draws channels during verify, because scans are not kept; `store_page` combines the drawings with the
results of the rest of the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from stantools.browse.store_channel import slice_state
from stantools.browse.timeline import read_timeline
from stantools.escaping import fill_in, store_names, text
from stantools.format.crc import Crc
from stantools.inspection.advice import Diagnosis, remedies
from stantools.inspection.diagnosis_report import diagnosis_report, messages_section, start_sections
from stantools.inspection.findings import worst_first
from stantools.inspection.forecast.channel_forecast import ChannelForecast
from stantools.inspection.outcomes import ChannelOutcome
from stantools.inspection.overview import Overview
from stantools.inspection.subscribers import NO_SUBSCRIPTIONS, Subscriber, SubscriberList, as_ranges
from stantools.inspection.survey import ChannelSurvey
from stantools.inspection.verify import ChannelVerdict
from stantools.pages.html import render
from stantools.pages.pictures import MAX_DRAWN, ChannelPicture, draw, is_wrong
from stantools.pages.plots import strip
from stantools.store.ranges import Ranges
from stantools.store.sublog import SubStatus

#: Maximum number of rows of a table: subscriptions and slices of one channel.
LISTED = 2000
_CHANNEL_ROWS = 100


@dataclass
class Pictures:
    """Draws channels as they are scanned."""

    crc: Crc
    channels: dict[str, ChannelPicture] = field(default_factory=dict)  #: by name
    _healthy: int = 0

    def add(self, survey: ChannelSurvey) -> None:
        states = [
            (each.files.name, slice_state(each)) for each in (*survey.slices, *survey.lone_indexes, *survey.strays)
        ]
        wrong = bool(survey.damaged or survey.missing) or any(is_wrong(each) for _, each in states)
        self._healthy += not wrong
        if wrong or self._healthy <= MAX_DRAWN:
            timeline = read_timeline(survey.files, self.crc, survey=survey)
            self.channels[survey.files.name] = draw(states, timeline)


@dataclass(frozen=True)
class _ChannelSection:
    """A channel as the page shows it."""

    verdict: ChannelVerdict
    forecast: ChannelForecast | None
    picture: ChannelPicture | None
    subscriptions: SubscriberList
    findings: int
    outcome: ChannelOutcome

    @property
    def whole(self) -> Ranges:
        """Every sequence that is or was there."""
        return self.outcome.known

    @property
    def sequences(self) -> Markup:
        """A strip of its sequences: readable, recoverable or archived, and missing."""
        outcome, whole = self.outcome, self.whole
        if not whole:
            return Markup("")
        kept = outcome.recoverable | outcome.archived
        parts = ((outcome.intact - kept, "good"), (kept, "warn"), (outcome.missing, "bad"))
        marks = ((first, last + 1, role) for ranges, role in parts for first, last in ranges)
        return strip(marks, whole.first, whole.last + 1)

    @property
    def subscribers(self) -> Sequence[Subscriber]:
        """Its subscriptions: first the ones that a start would delete, then by greatest lag."""
        ghosts = self.subscriptions.having(SubStatus.GHOST)[:_CHANNEL_ROWS]
        others = self.subscriptions.having(*(each for each in SubStatus if each is not SubStatus.GHOST))
        return [*ghosts, *others.with_most_lag(_CHANNEL_ROWS - len(ghosts))]

    @property
    def lag(self) -> int:
        """The greatest lag of its subscriptions."""
        return max((each.lag for each in self.subscriptions.with_most_lag(1)), default=0)


def store_page(diagnosis: Diagnosis, overview: Overview, pictures: Pictures, now_ns: int) -> str:
    """Renders the page; `pictures` were drawn during verify, `now_ns` is the time of the inspection."""
    verified = diagnosis.verified
    normal = diagnosis.starts[0][0].forecast if diagnosis.starts else None
    described = {each.name: each for each in overview.channels}
    counts = Counter(each.channel for each in verified.findings)
    channels = [
        _ChannelSection(
            verdict,
            normal.channels.get(verdict.name) if normal else None,
            pictures.channels.get(verdict.name),
            described[verdict.name].subscriptions if verdict.name in described else NO_SUBSCRIPTIONS,
            counts[verdict.name],
            diagnosis.outcomes.get(verdict.name, verdict.outcome),
        )
        for verdict in verified.channels
    ]
    channels.sort(key=lambda each: (each.outcome.rank, -each.findings))
    ranked = worst_first(verified.findings)
    return render(
        "store.html",
        {"pending": lambda each: as_ranges(each.pending), "text": text},
        diagnosis=diagnosis,
        report=diagnosis_report(diagnosis),
        starts=start_sections(diagnosis),
        messages=messages_section(diagnosis, detailed=True),
        overview=overview,
        channels=channels,
        findings=ranked,
        listed=LISTED,
        remedies=[fill_in(each, store_names(diagnosis.path)) for each in remedies(ranked, diagnosis.path)],
        now_ns=now_ns,
    )
