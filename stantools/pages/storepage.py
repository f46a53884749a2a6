"""The page about a store: results of doctor, verify, forecast and subs, a map of every slice, and message times.

`Pictures` draws channels during verify, because scans are not kept; `store_page` combines the drawings with the
results of the rest of the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from markupsafe import Markup

from stantools.browse.slice_map import BytesState, IndexState, cells, index_state, segments
from stantools.browse.timeline import read_timeline
from stantools.errors import StoreUnreadableError
from stantools.escaping import fill_in, store_names, text
from stantools.format.crc import Crc
from stantools.inspection.advice import Diagnosis, remedies
from stantools.inspection.diagnosis_report import diagnosis_report, messages_section, start_sections
from stantools.inspection.findings import worst_first
from stantools.inspection.forecast.channel_forecast import ChannelForecast
from stantools.inspection.outcomes import ChannelOutcome
from stantools.inspection.overview import Overview
from stantools.inspection.subscribers import NO_SUBSCRIPTIONS, Subscriber, SubscriberList, as_ranges
from stantools.inspection.survey import ChannelSurvey, SliceSurvey
from stantools.inspection.verify import ChannelVerdict
from stantools.notation import span_text
from stantools.pages.html import render
from stantools.pages.plots import BarChart, TimeAxis, plot, strip
from stantools.store.ranges import Ranges
from stantools.store.sublog import SubStatus

#: Maximum number of rows of a table: subscriptions and slices of one channel.
LISTED = 2000
_CHANNEL_ROWS = 100
#: Maximum number of healthy channels that are drawn. Channels with a problem are all drawn.
_MAX_DRAWN = 500
#: Parts of the map of a slice.
_PARTS = 400
_STATES = {
    BytesState.UNKNOWN: "rest",
    BytesState.GOOD: "good",
    BytesState.INDEX_ONLY: "warn",
    BytesState.FOREIGN: "warn",
    BytesState.ORPHAN: "warn",
    BytesState.ZERO: "warn",
    BytesState.BAD: "bad",
    BytesState.UNREADABLE: "bad",
}


@dataclass(frozen=True)
class SlicePicture:
    """A slice with the map of its bytes."""

    name: str  #: name of its file
    size: int  #: bytes of the data file
    messages: int  #: number of good messages
    first: int | None  #: sequence of the first of them, None if there is none
    last: int | None  #: of the last one
    damaged: int  #: number of damaged ranges
    index: IndexState
    map: Markup  #: map of the file's bytes

    @property
    def wrong(self) -> bool:
        """It has a problem."""
        return bool(self.damaged) or self.index.level != "clean"


@dataclass(frozen=True)
class ChannelPicture:
    """The drawings of a channel."""

    slices: Sequence[SlicePicture]  #: those with a problem come first, if there are many
    hidden: int  #: number of slices left out
    timeline: Markup  #: times of its messages; empty if there are none
    span: str  #: first and last time; empty if there are none
    problems: Sequence[str]  #: files that could not be read for it


@dataclass
class Pictures:
    """Draws channels as they are scanned."""

    crc: Crc
    channels: dict[str, ChannelPicture] = field(default_factory=dict)  #: by name
    _healthy: int = 0

    def add(self, survey: ChannelSurvey) -> None:
        slices = [_slice(each) for each in (*survey.slices, *survey.lone_indexes, *survey.strays)]
        wrong = bool(survey.damaged or survey.missing) or any(each.wrong for each in slices)
        self._healthy += not wrong
        if not wrong and self._healthy > _MAX_DRAWN:
            return
        shown = (
            sorted(slices, key=lambda each: not each.wrong)[:_CHANNEL_ROWS] if len(slices) > _CHANNEL_ROWS else slices
        )
        self.channels[survey.files.name] = ChannelPicture(shown, len(slices) - len(shown), *_timeline(survey, self.crc))


def _slice(survey: SliceSurvey) -> SlicePicture:
    bar = cells(segments(survey), survey.size, _PARTS)
    parts, at = [], 0
    for state, group in groupby(bar):
        end = at + sum(1 for _ in group)
        if state in _STATES:
            parts.append((at, end, _STATES[state]))
        at = end
    held = Ranges.union(run.sequences for run in survey.runs)
    return SlicePicture(
        survey.files.name,
        survey.size,
        sum(run.count for run in survey.runs),
        held.first if held else None,
        held.last if held else None,
        len(survey.damages) + bool(survey.error or survey.header_error),
        index_state(survey),
        strip(parts, 0, _PARTS),
    )


def _timeline(survey: ChannelSurvey, crc: Crc) -> tuple[Markup, str, Sequence[str]]:
    timeline = read_timeline(survey.files, crc, survey=survey)
    if not timeline.whole.times:
        return Markup(""), "", timeline.problems
    axis = TimeAxis.over(timeline.first, timeline.last)
    try:
        if timeline.first < timeline.last:
            found = timeline.whole.regroup(axis.start, axis.width, axis.places)
        else:
            found = timeline.detail(axis.start, axis.start + axis.width * axis.places, axis.width)
    except StoreUnreadableError as problem:
        return Markup(""), "", [*timeline.problems, problem.message]
    panels = (
        BarChart(f"messages per {axis.unit}", dict(enumerate(found.count.tolist()))),
        BarChart(f"bytes per {axis.unit}", dict(enumerate(found.bytes.tolist())), "orange", sizes=True),
    )
    marks = [
        (place, "bad" if found.damaged[place] else "warn")
        for place in range(len(found))
        if found.damaged[place] or found.missing[place] or found.gap[place]
    ]
    problems = list(timeline.problems)
    if timeline.strays:
        problems.append(f"{timeline.strays:,} messages have times far outside, and are left out of the plot")
    span = span_text(timeline.first, timeline.last, axis.width)
    return plot(panels, axis.places, axis.ticks, marks=marks, height=70), span, problems


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
        """Its subscriptions: first those that a start would delete, then those with the greatest lag."""
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
