"""The views of a store and the places they show: screens open each other by these names, without imports."""

from __future__ import annotations

import enum
import importlib
import re
from dataclasses import dataclass
from typing import Any

from stantools.notation import format_time, parse_time


class View(enum.StrEnum):
    """A view of a store; the value is its name for people and for `:`."""

    OVERVIEW = "overview"
    MESSAGES = "messages"
    TIMELINE = "timeline"
    SLICES = "slices"
    SUBSCRIPTIONS = "subscriptions"
    FINDINGS = "findings"
    PLANS = "plans"
    LIVE = "live"


#: View -> module and class of its screen. The module is imported when its view is first opened.
SCREENS: dict[View, tuple[str, str]] = {
    View.OVERVIEW: ("tui.screens.overview", "OverviewScreen"),
    View.MESSAGES: ("tui.screens.messages", "MessagesScreen"),
    View.TIMELINE: ("tui.screens.timeline", "TimelineScreen"),
    View.SLICES: ("tui.screens.slices", "SlicesScreen"),
    View.SUBSCRIPTIONS: ("tui.screens.subscriptions", "SubscriptionsScreen"),
    View.FINDINGS: ("tui.screens.findings", "FindingsScreen"),
    View.PLANS: ("tui.screens.plans", "PlansScreen"),
    View.LIVE: ("tui.screens.live", "LiveScreen"),
}

#: Views of a single channel.
OF_A_CHANNEL = frozenset({View.MESSAGES, View.TIMELINE, View.SLICES})


@dataclass(frozen=True)
class ViewTarget:
    channel: str | None = None
    seq: int | None = None  #: sequence in the channel
    timestamp: int | None = None  #: time in the channel, nanoseconds since 1970
    file: str | None = None  #: file as in findings: relative to the store, with slashes
    offset: int | None = None  #: byte in the file
    code: str | None = None  #: code of a finding
    plan: str | None = None  #: verb of a wizard: salvage, compact, truncate-bad-eof, export, migrate


_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")
_CLOCK = re.compile(r"\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?")


def share_of(text: str) -> float | None:
    """Parses a share such as `50%`; returns it from 0 to 1, or None."""
    match = _SHARE.fullmatch(text)
    return min(float(match[1]) / 100, 1.0) if match else None


def time_of(text: str, today: int) -> int:
    """Parses a time, an age or a time of day; returns nanoseconds since 1970.

    `today` is a time on the day of a time of day. Raises `ValueError`.
    """
    return parse_time(f"{format_time(today)[:10]}T{text}" if _CLOCK.fullmatch(text) else text)


def screen_class(view: View) -> Any:
    module, name = SCREENS[view]
    return getattr(importlib.import_module(module), name)
