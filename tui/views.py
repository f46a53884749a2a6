"""The views of a store and where in it they look: what screens say to each other without knowing each other."""

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


#: View -> module and class of its screen. A module is imported when its view is opened for the first time.
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

#: Views that show one channel.
OF_A_CHANNEL = frozenset({View.MESSAGES, View.TIMELINE, View.SLICES})


@dataclass(frozen=True)
class Place:
    """Where a view is to look; everything that is not given is left to the view."""

    channel: str | None = None  #: name of a channel
    seq: int | None = None  #: a sequence in it
    timestamp: int | None = None  #: a time in it, nanoseconds since 1970
    file: str | None = None  #: a file, as findings name it: relative to the store, with slashes
    offset: int | None = None  #: a byte in that file
    code: str | None = None  #: a finding code
    plan: str | None = None  #: a verb that changes something: salvage, compact, truncate-bad-eof, export, migrate


_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")
_CLOCK = re.compile(r"\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?")


def share_of(text: str) -> float | None:
    """Returns the share that a text such as `50%` means, from 0 to 1; None if it means none."""
    match = _SHARE.fullmatch(text)
    return min(float(match[1]) / 100, 1.0) if match else None


def time_of(text: str, today: int) -> int:
    """Returns the time that a text means, in nanoseconds since 1970.

    Args:
        text: A time, an age, or a time of day.
        today: A time on the day that a time of day means.

    Raises:
        ValueError: It means none.
    """
    return parse_time(f"{format_time(today)[:10]}T{text}" if _CLOCK.fullmatch(text) else text)


def screen_class(view: View) -> Any:
    """Returns the class of a view's screen."""
    module, name = SCREENS[view]
    return getattr(importlib.import_module(module), name)
