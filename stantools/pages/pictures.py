"""Drawings of a channel or stream for a page: a map of the bytes of each file, and the times of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from stantools.browse.browsed_channel import FileState
from stantools.browse.slice_map import BytesState, IndexState, cells
from stantools.browse.timeline import Timeline
from stantools.errors import StoreUnreadableError
from stantools.notation import span_text
from stantools.pages.plots import BarChart, TimeAxis, plot, strip

#: Files of a channel that are drawn.
_MAX_FILES = 100
#: Maximum number of healthy channels that are drawn. Channels with a problem are all drawn.
MAX_DRAWN = 500
#: Parts of the map of a file.
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
    """A slice or block with the map of its bytes."""

    name: str  #: name of its file
    size: int  #: bytes of the data file
    messages: int  #: number of good messages
    first: int | None  #: sequence of the first of them, None if there is none
    last: int | None  #: of the last one
    index: IndexState
    map: Markup  #: map of the file's bytes


@dataclass(frozen=True)
class ChannelPicture:
    """The drawings of a channel."""

    slices: Sequence[SlicePicture]  #: those with a problem come first, if there are many
    hidden: int  #: number of slices left out
    timeline: Markup  #: times of its messages; empty if there are none
    span: str  #: first and last time; empty if there are none
    problems: Sequence[str]  #: files that could not be read for it


def is_wrong(state: FileState) -> bool:
    return bool(state.damages or state.error or state.header_error) or state.index.level != "clean"


def draw(states: Sequence[tuple[str, FileState]], timeline: Timeline) -> ChannelPicture:
    """Draws the files of a channel, given with their names, and the times of its messages."""
    if len(states) > _MAX_FILES:
        states = sorted(states, key=lambda each: not is_wrong(each[1]))
    shown = [_slice(*each) for each in states[:_MAX_FILES]]
    return ChannelPicture(shown, len(states) - len(shown), *_timeline(timeline))


def _slice(name: str, state: FileState) -> SlicePicture:
    bar = cells(state.segments, state.size, _PARTS)
    parts, at = [], 0
    for value, group in groupby(bar):
        end = at + sum(1 for _ in group)
        if value in _STATES:
            parts.append((at, end, _STATES[value]))
        at = end
    held = state.held
    first, last = (held.first, held.last) if held else (None, None)
    return SlicePicture(name, state.size, state.messages, first, last, state.index, strip(parts, 0, _PARTS))


def _timeline(timeline: Timeline) -> tuple[Markup, str, Sequence[str]]:
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
