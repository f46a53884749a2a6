"""The store times of a channel's messages: a plot that can be zoomed, with a line about gaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.browse.histogram import Bucket, Histogram, bucket_width, narrower, wider, width_text
from stantools.browse.timeline import BINS, Timeline
from stantools.notation import format_size, format_time, span_text
from tui.cells import Cell, Role, bar, counted, number, text_of, time_text
from tui.jobs import Job
from tui.screens.base import LatestWork, ViewScreen
from tui.session import SourceSession
from tui.views import View, ViewTarget, share_of, time_of
from tui.widgets.line import TextLine
from tui.widgets.plot import Plot, PlotBars

_UNITS = ("messages", "bytes", "mean size")
_SECOND, _MILLISECOND = 10**9, 10**6


class TimelineScreen(ViewScreen):
    NAME = "timeline"
    TAB = View.TIMELINE
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Messages", id="timeline.open"),
        Binding("plus,equals_sign", "zoom(1)", "In", key_display="+", id="timeline.zoom_in"),
        Binding("minus", "zoom(-1)", "Out", key_display="-", id="timeline.zoom_out"),
        Binding("0", "whole", "Whole", id="timeline.whole"),
        Binding("b", "unit", "Bytes", id="timeline.unit"),
        Binding("n", "next_gap(1)", "Next gap", id="timeline.next_gap"),
        Binding("N", "next_gap(-1)", "Previous gap", show=False, id="timeline.previous_gap"),
        Binding("left,h", "move(-1)", "Earlier", show=False, id="timeline.earlier"),
        Binding("right,l", "move(1)", "Later", show=False, id="timeline.later"),
        Binding("H,shift+left,pageup", "pan(-1)", "Half a screen earlier", show=False, id="timeline.pan_earlier"),
        Binding("L,shift+right,pagedown", "pan(1)", "Half a screen later", show=False, id="timeline.pan_later"),
        Binding("g,home", "end(0)", "Beginning", show=False, id="timeline.first"),
        Binding("G,end", "end(1)", "End", show=False, id="timeline.last"),
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__(session, place)
        self._timeline: Timeline | None = None
        self._reads: LatestWork[Timeline] = LatestWork(self)
        self._detail_reads: LatestWork[Histogram] = LatestWork(self)
        self._detail: Histogram | None = None
        self._survey: object = None
        self._problem = ""
        self._unit = 0
        self._limits = 0, 0  # first and last time of the plot
        self._start, self._width, self._buckets = 0, 1, 1
        self._cursor = 0  # in nanoseconds since 1970
        self._shown: Histogram | None = None

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="timeline-summary")
        yield Plot(id="timeline-plot")
        yield TextLine(id="timeline-bucket")

    def on_mount(self) -> None:
        self.query_one(Plot).focus()
        assert self.channel is not None
        path = str(self.session.path)
        self.note("stantools", "messages", path, self.channel, "--data", "none", "-o", "ndjson")
        self._read()

    def facts_changed(self) -> None:
        facts = self.session.channels.get(self.channel or "")
        if facts is not None and facts.survey is not None and facts.survey is not self._survey:
            self._read()
        self._write()

    def on_resize(self) -> None:
        self.call_after_refresh(self._arrange)

    # Reading

    def _read(self) -> None:
        facts = self.session.channels.get(self.channel or "")
        if facts is None:
            self._problem = "the store no longer has this channel"
            self.call_after_refresh(self._write)
            return
        self._survey = facts.survey
        session, name = self.session, facts.name

        def work(job: Job[Timeline]) -> Timeline:
            return session.channel(name).timeline(job.advance)

        total = 2 * facts.summary.count if facts.summary else 0
        self._reads.start(Job("timeline", work, total=total), self._read_done, self._write)

    def _read_done(self, job: Job[Timeline]) -> None:
        if job.problem is not None:
            self._problem = job.problem.message
            self._write()
            return
        first_time = self._timeline is None
        self._timeline, self._detail, self._problem = job.result, None, ""
        timeline = self._timeline
        self._limits = timeline.first, timeline.last
        if first_time and timeline.count:
            self._cursor = timeline.first
            self.action_whole()
            if self.place.timestamp is not None:
                self._jump(self.place.timestamp)
            elif self.place.seq is not None:
                self._jump_to_sequence(self.place.seq)
        self._arrange()

    # Plot

    @property
    def _columns(self) -> int:
        return self.query_one(Plot).columns

    def _arrange(self) -> None:
        timeline = self._timeline
        if timeline is None or not timeline.count or not self.is_mounted:
            self._write()
            return
        low, high = self._limits
        self._cursor = max(low, min(self._cursor, high))
        first = low // self._width * self._width
        total = (high - first) // self._width + 1
        self._buckets = min(total, self._columns)
        self._start = max(
            first, min(self._start // self._width * self._width, first + (total - self._buckets) * self._width)
        )
        at = (self._cursor - self._start) // self._width
        if at < 0:
            self._start += at * self._width
        elif at >= self._buckets:
            self._start += (at - self._buckets + 1) * self._width
        found = self._histogram(timeline)
        if found is not None:
            self._shown = found
        else:
            self._read_detail(timeline)
        self._write()

    def _histogram(self, timeline: Timeline) -> Histogram | None:
        stop = self._start + self._width * self._buckets
        for source in (timeline.whole, self._detail):
            if source is None or self._width < source.width:
                continue
            whole = source is timeline.whole and self._limits == (timeline.first, timeline.last)
            if whole or source.covers(self._start, stop):
                return source.regroup(self._start, self._width, self._buckets)
        return None

    def _read_detail(self, timeline: Timeline) -> None:
        width = self._width
        # Two steps finer, so that the next zoom step is there at once.
        fine = narrower(narrower(width))
        if self._buckets * (width // fine) * 2 > BINS:
            fine = width
        spare = max(BINS - self._buckets * (width // fine), 0) // 2 * fine // width * width
        start, stop = self._start - spare, self._start + self._buckets * width + spare

        def work(job: Job[Histogram]) -> Histogram:
            return timeline.detail(start, stop, fine, job.advance)

        self._detail_reads.start(Job("timeline", work, total=timeline.count), self._detail_done, self._write)

    def _detail_done(self, job: Job[Histogram]) -> None:
        if job.problem is not None:
            self.browser.fail(job.problem)
            self.action_whole()
            return
        self._detail = job.result
        self._arrange()

    @property
    def _at(self) -> int:
        shown = self._shown
        if shown is None or not len(shown):
            return 0
        return max(0, min((self._cursor - shown.start) // shown.width, len(shown) - 1))

    def _write(self) -> None:
        if not self.is_mounted:
            return
        plot, shown = self.query_one(Plot), self._shown
        self.query_one("#timeline-summary", TextLine).show_lines(list(self._summary()))
        if shown is None:
            plot.show(PlotBars())
            self.query_one("#timeline-bucket", TextLine).show("")
            return
        plot.show(_bars(shown, self._unit, self._at))
        self.query_one("#timeline-bucket", TextLine).show_lines(
            list(_bucket_lines(shown.bucket(self._at), self.size.width))
        )

    def _summary(self) -> Iterable[Sequence[Cell]]:
        timeline, job = self._timeline, self._reads.job or self._detail_reads.job
        if self._problem:
            yield [(f"✗ {self._problem}", "bad")]
        if timeline is None:
            if job is not None:
                share = f" {bar(job.share, 20)} {job.share:.0%}" if job.share is not None else ""
                yield [(f"reading the times of the messages{share}", "accent")]
            yield [""]
            return
        if not timeline.count:
            yield ["no messages"]
            yield [*_problem_cells(timeline)]
            return
        span = timeline.last - timeline.first
        exact = _SECOND if span > 100 * _SECOND else _MILLISECOND if span > 100 * _MILLISECOND else 1
        when = span_text(timeline.first, timeline.last, exact) if span else f"all at {format_time(timeline.first)}"
        facts = self.session.channels.get(self.channel or "")
        whole = facts.intact if facts is not None else 0
        # A message whose record is damaged may be proven; its time is not.
        count = f"{number(timeline.count)} of {counted(whole, 'message')}" if whole > timeline.count else ""
        cells: list[Cell] = [
            (count or counted(timeline.count, "message"), "strong"),
            f", {format_size(timeline.bytes)}, {when}",
        ]
        if job is not None:
            cells.append(("  reading more closely" if job is self._detail_reads.job else "  reading again", "accent"))
        yield cells
        width = self._shown.width if self._shown is not None else self._width
        unit: Cell = (f"{_UNITS[self._unit]} per {width_text(width)}", "strong")
        problems = list(_problem_cells(timeline))
        if len(text_of(unit)) + sum(len(text_of(cell)) for cell in problems) > self.size.width - 8:
            yield [unit]
            yield problems
        else:
            yield [unit, "   ", *problems]

    # Keys

    def action_move(self, buckets: int) -> None:
        self._cursor = self._cursor // self._width * self._width + buckets * self._width
        self._arrange()

    def action_pan(self, direction: int) -> None:
        step = max(self._buckets // 2, 1) * self._width * direction
        self._start += step
        self._cursor += step
        self._arrange()

    def action_end(self, which: int) -> None:
        self._cursor = self._limits[which]
        self._arrange()

    def action_zoom(self, direction: int) -> None:
        """Zooms in (1) or out (-1); the cursor keeps its column."""
        width = narrower(self._width) if direction > 0 else wider(self._width)
        low, high = self._limits
        if direction < 0 and (high - low) // self._width + 2 <= self._columns:
            return
        share = (self._cursor - self._start) // self._width / max(self._buckets - 1, 1)
        self._cursor += min(self._width, width) // 2 if direction > 0 and self._cursor % self._width == 0 else 0
        if direction > 0:
            self._cursor = self._busiest(width)
        self._width = width
        self._start = (self._cursor // width - round(share * (self._columns - 1))) * width
        self._arrange()

    def _busiest(self, width: int) -> int:
        """Returns a time in the cursor's bucket that has messages, so that zooming in finds them."""
        bucket = self._cursor // self._width * self._width
        for source in (self._detail, self._timeline.whole if self._timeline else None):
            if source is None or source.width > width or not source.covers(bucket, bucket + self._width):
                continue
            parts = source.regroup(bucket, width, self._width // width)
            if parts.count.any():
                return bucket + int(np.argmax(parts.count)) * width
        return self._cursor

    def action_whole(self) -> None:
        timeline = self._timeline
        if timeline is None or not timeline.count:
            return
        self._limits = timeline.first, timeline.last
        self._width = bucket_width(timeline.last - timeline.first, self._columns)
        self._start = timeline.first
        self._arrange()

    def action_unit(self) -> None:
        self._unit = (self._unit + 1) % len(_UNITS)
        self._write()

    def action_next_gap(self, direction: int) -> None:
        if self._timeline is None or self._shown is None:
            return
        source = self._timeline.whole
        if self._detail is not None and self._detail.width <= self._width < source.width:
            source = self._detail
        marked = np.flatnonzero(source.missing + source.damaged)
        bucket = self._cursor // self._width * self._width
        at = bucket + self._width if direction > 0 else bucket
        place = int(np.searchsorted(marked, (at - source.start) // source.width)) - (direction < 0)
        if 0 <= place < len(marked):
            self._cursor = source.start + int(marked[place]) * source.width
            self._arrange()
        else:
            where = "behind" if direction > 0 else "before"
            self.notify(f"nothing is missing or damaged {where} this")

    def action_open(self) -> None:
        if self._shown is None:
            return
        bucket = self._shown.bucket(self._at)
        place = ViewTarget(channel=self.channel, timestamp=bucket.start)
        self.browser.open_view(View.MESSAGES, place, above=True)

    @on(Plot.Chosen)
    def _chosen(self, event: Plot.Chosen) -> None:
        if self._shown is None:
            return
        self._cursor = self._shown.start + event.bar * self._shown.width
        self._arrange()
        if event.twice:
            self.action_open()

    # Places

    def go_to_hint(self) -> str:
        return "2026-11-21T03:00:00Z, 03:00 of that day, 1d3h ago, a sequence, 50%"

    def go_to(self, text: str) -> str | None:
        timeline = self._timeline
        if timeline is None or not timeline.count:
            return None if not text[:1].isdigit() else "there are no messages"
        if (share := share_of(text)) is not None:
            self._jump(timeline.first + int((timeline.last - timeline.first) * share))
            return ""
        if text.isdecimal():
            return self._jump_to_sequence(int(text))
        try:
            self._jump(time_of(text, self._cursor))
        except ValueError as error:
            return None if not text[:1].isdigit() else str(error)
        return ""

    def _jump_to_sequence(self, sequence: int) -> str:
        """Finds the time of a sequence in the background and goes to it."""
        timeline = self._timeline
        assert timeline is not None

        def found(time: int | None) -> None:
            if time is not None:
                self._jump(time)
            else:
                self.notify(f"there is no message {sequence}", severity="warning")

        self.begin("look up", lambda _: timeline.time_of(sequence) if sequence < 2**64 else None, found)
        return ""

    def _jump(self, timestamp: int) -> None:
        """Goes to a time, even if it is far outside of the scale."""
        timeline = self._timeline
        assert timeline is not None
        self._cursor = max(timeline.earliest, min(timestamp, timeline.latest))
        low, high = self._limits
        if not low <= self._cursor <= high:
            self._limits = min(low, self._cursor), max(high, self._cursor)
        if not self._start <= self._cursor < self._start + self._buckets * self._width:
            self._start = (self._cursor // self._width - self._columns // 2) * self._width
        self._arrange()


def _bars(shown: Histogram, unit: int, cursor: int) -> PlotBars:
    if unit == 2:
        values = (shown.bytes / np.maximum(shown.count, 1)).tolist()
    else:
        values = (shown.bytes if unit else shown.count).astype(float).tolist()
    marks: list[tuple[str, Role]] = []
    roles: list[Role] = []
    damaged, missing, gap, count = (each.tolist() for each in (shown.damaged, shown.missing, shown.gap, shown.count))
    for place in range(len(shown)):
        role: Role = ""
        if damaged[place]:
            mark: tuple[str, Role] = ("✗", "bad")
            role = "bad"
        elif missing[place]:
            mark, role = ("!", "warn"), "warn"
        elif gap[place] and not count[place]:
            mark = "-", "warn"
        else:
            mark = ("", "") if count[place] else ("·", "dim")
        marks.append((mark[0] or " ", mark[1]))
        roles.append(role)
    return PlotBars(shown.start, shown.width, values, roles, marks, cursor)


def _bucket_lines(bucket: Bucket, room: int) -> Iterable[Sequence[Cell]]:
    when: list[Cell] = [(span_text(bucket.start, bucket.stop, bucket.stop - bucket.start), "strong")]
    if room >= 120:
        when.append(("     · silent  - within a gap  ! missing  ✗ damaged", "dim"))
    yield when
    cells: list[Cell] = []
    if bucket.count:
        cells += [f"{counted(bucket.count, 'message')}, {format_size(bucket.bytes)}"]
        if bucket.first_seq == bucket.last_seq:
            cells.append(f", sequence {bucket.first_seq}")
        else:
            cells.append(f", sequences {bucket.first_seq} to {bucket.last_seq}")
            cells.append(f"; mean {format_size(round(bucket.mean))}, largest {format_size(bucket.largest)}")
    elif bucket.gap and not (bucket.damaged or bucket.missing):
        cells.append(("no messages; sequences around here are missing or damaged", "warn"))
    else:
        cells.append(("no messages", "dim"))
    if bucket.damaged:
        cells.append((f"  ✗ {number(bucket.damaged)} damaged", "bad"))
    if bucket.missing:
        cells.append((f"  ! {number(bucket.missing)} missing", "warn"))
    yield cells


def _problem_cells(timeline: Timeline) -> Iterable[Cell]:
    missing = timeline.missing if timeline.missing is not None else int(timeline.whole.missing.sum())
    said = False
    if timeline.damaged:
        said = True
        yield (f"✗ {number(timeline.damaged)} damaged  ", "bad")
    if missing:
        said = True
        yield (f"! {number(missing)} missing  ", "warn")
    if timeline.strays:
        said = True
        ends = []
        if timeline.earliest < timeline.whole.start:
            ends.append(time_text(timeline.earliest)[:10])
        if timeline.latest >= timeline.whole.stop:
            ends.append(time_text(timeline.latest)[:10])
        yield (f"! {counted(timeline.strays, 'time')} far outside ({', '.join(ends)})  ", "warn")
    if timeline.disorder:
        said = True
        yield (f"! {number(timeline.disorder)} out of order", "warn")
    for problem in timeline.problems[:1]:
        said = True
        yield (f"✗ {problem}", "bad")
    if not said:
        if timeline.missing is None:
            yield ("no gap in the indexes; the scan is not complete", "dim")
        else:
            yield ("no sequence is missing or damaged", "dim")
