"""The verdict on a start of the server: its forecast, compared with the messages in the files.

"Harmless" is a promise: every intact message that the limits leave is delivered at its sequence, to a subscriber
from the first message on and to one that begins anywhere else; no sequence is assigned a second time; no
subscription stands beyond the last message; nothing is destroyed. Every exception is a `StartFlaw`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from stantools.escaping import escape
from stantools.inspection.forecast.channel_forecast import ChannelForecast, Forecast, Harm, Loss
from stantools.inspection.outcomes import ChannelOutcome, name_ranges
from stantools.notation import counted, describe_ranges, describe_sequences, some_of
from stantools.store.ranges import Ranges
from stantools.store.sublog import SubStatus

#: Subscriptions that a sentence names.
_NAMED = 3


class StartFlawKind(enum.Enum):
    """Why a start is not harmless, in the order of the sentence; the value is the beginning of its text."""

    CRASH = "end with a panic at the first lookup of a message"
    REUSED = "give sequences a second time"
    AHEAD = "never send new messages to subscriptions that stand beyond the last one"
    UNREACHABLE = "not reach intact messages"
    STALL = "stall"
    SKIPPED = "skip intact messages"
    WRONG = "deliver other messages in the place of"
    REPEATED = "deliver messages twice"
    ALONE = "fail to deliver messages to a subscriber that begins there, and to deliver them again"
    OVERLAID = "lose sight of messages as soon as one is published"
    MISPLACED = "not find messages that are published next"
    ENDLESS = "search for a missing message for ever, and answer no publisher any more, in"
    UNKNOWN = "perhaps give sequences a second time"
    UNPROVEN = "deliver every message in the store"  #: nothing proves that a channel ended with its last message


#: Kinds that leave a message undelivered, or deliver the wrong one.
UNDELIVERED = frozenset(
    (
        StartFlawKind.CRASH,
        StartFlawKind.UNREACHABLE,
        StartFlawKind.STALL,
        StartFlawKind.SKIPPED,
        StartFlawKind.WRONG,
        StartFlawKind.REPEATED,
        StartFlawKind.ALONE,
        StartFlawKind.OVERLAID,
    )
)


#: Kinds that do harm once a message is published.
HARMFUL = frozenset((StartFlawKind.REUSED, StartFlawKind.AHEAD, StartFlawKind.MISPLACED, StartFlawKind.ENDLESS))


@dataclass(frozen=True)
class StartFlaw:
    """A reason in one channel why a start is not harmless."""

    kind: StartFlawKind
    channel: str
    sequences: Ranges = field(default_factory=Ranges)
    detail: str = ""  #: details, safe to show

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.name.lower(),
            "channel": self.channel,
            "sequences": self.sequences.as_json(),
            "detail": self.detail,
        }


@dataclass(frozen=True)
class StartVerdict:
    """A start of the server, and its effect on the messages in the store."""

    forecast: Forecast
    channels: Mapping[str, ChannelOutcome]  #: with the messages that a server finds, and that its start destroys
    flaws: tuple[StartFlaw, ...]  #: reasons why it is not harmless, apart from changed files
    limited: Mapping[str, Ranges]  #: intact messages that the limits hide, by channel

    @cached_property
    def shortened(self) -> list[str]:
        """The files that a start would shorten or remove, without indexes, which are rebuilt."""
        changed = self.forecast.files_changed().items()
        return [
            path
            for path, (before, after) in changed
            if path.endswith(".dat") and before is not None and (after is None or after < before)
        ]

    @cached_property
    def ghosts(self) -> int:
        """Number of durable queue members that a start would delete."""
        return sum(each.subscriptions.count(SubStatus.GHOST) for each in self.forecast.channels.values())

    @property
    def destructive(self) -> bool:
        """The start removes bytes that may hold data."""
        return bool(self.shortened or self.forecast.destroys)

    @property
    def undelivered(self) -> bool:
        """Some message would not be delivered, or not the right one."""
        return any(each.kind in UNDELIVERED for each in self.flaws)

    @property
    def delivers(self) -> bool:
        """The files show no harm by a start, although the end of a channel may be unproven."""
        works = self.forecast.starts and self.forecast.recovered
        unproven = all(each.kind is StartFlawKind.UNPROVEN for each in self.flaws)
        return works and unproven and not (self.destructive or self.ghosts)

    @property
    def harmless(self) -> bool:
        """The start keeps the promise in the module's docstring."""
        return self.delivers and not self.flaws

    def sentence(self) -> str:
        """Describes in one sentence what the server would do if it were started now; names in it are safe to show."""
        return "Started now, the server would " + self.outlook()

    def outlook(self) -> str:
        """Returns the same as the rest of a sentence that ends in `would`."""
        forecast = self.forecast
        if not forecast.starts:
            reason = f": {escape(forecast.error)}" if forecast.error else ""
            return f"exit with code {forecast.exit_code}{reason}"
        if not forecast.recovered:
            return "start over as if the store were empty"
        if self.delivers and self.flaws:
            return f"start and deliver every message in the store; {self.unproven()}"
        if parts := self.harms():
            return f"start, and would {'; it would '.join(parts)}"
        if self.limited:
            return f"start and deliver every message that the limits leave (they hide {name_ranges(self.limited)})"
        return "start and deliver every message"

    def unproven(self) -> str:
        """Names the channels whose end is not proven."""
        first, *more = [each.detail for each in self.flaws if each.kind is StartFlawKind.UNPROVEN]
        return first + (f" (and of {counted(len(more), 'more channel')})" if more else "")

    def harms(self) -> list[str]:
        """Returns the harmful effects of a start, each as the rest of a sentence that ends in `would`."""
        parts = []
        if lost := self.shortened:
            gone: dict[str, Ranges] = {}
            for loss in self.forecast.destroys:
                if loss.how in (Harm.CUT, Harm.REMOVED) and loss.sequences:
                    gone[loss.channel] = gone.get(loss.channel, Ranges()) | loss.sequences
            intact = f", with intact messages: {name_ranges(gone)}" if gone else ""
            parts.append(f"cut or remove {counted(len(lost), 'file')}, {escape(lost[0])} first{intact}")
        removed = [each for each in self.forecast.destroys if each.how is Harm.REMOVED]
        if removed and not lost:
            gone = {each.channel: each.sequences for each in removed}
            parts.append(f"remove messages by its limits: {name_ranges(gone)}")
        if anew := [loss for loss in self.forecast.destroys if loss.how is Harm.ANEW]:
            where = f"{escape(anew[0].channel)} from sequence {anew[0].at} on"
            held = name_ranges({loss.channel: loss.sequences for loss in anew})
            parts.append(
                f"assign sequences of {counted(len(anew), 'channel')} a second time: {where}, and not reach {held}"
            )
        for kind in StartFlawKind:
            if kind is StartFlawKind.UNPROVEN:
                continue
            if flaws := [each for each in self.flaws if each.kind is kind]:
                parts.append(_sentence(kind, flaws))
        if self.ghosts:
            parts.append(f"delete {counted(self.ghosts, 'durable queue member')} whose client is gone")
        return parts


def _sentence(kind: StartFlawKind, flaws: list[StartFlaw]) -> str:
    if kind is StartFlawKind.STALL:
        first = flaws[0]
        where = f"{escape(first.channel)} at sequence {first.sequences.first}"
        return f"stall in {counted(len(flaws), 'channel')}: {where} ({first.detail})"
    details = [each for each in flaws if each.detail]
    if details:
        more = len(flaws) - 1
        where = f"{escape(details[0].channel)} {details[0].detail}"
        return f"{kind.value}: {where}" + (f" (and {counted(more, 'more channel')})" if more else "")
    return f"{kind.value}: {name_ranges({each.channel: each.sequences for each in flaws})}"


def judge_start(forecast: Forecast, outcomes: Mapping[str, ChannelOutcome]) -> StartVerdict:
    """Compares the forecast of a start (with lookups) with the messages in the files (`Verdict.outcomes`)."""
    channels: dict[str, ChannelOutcome] = {}
    flaws: list[StartFlaw] = []
    limited: dict[str, Ranges] = {}
    works = forecast.starts and forecast.recovered
    losses: dict[str, list[Loss]] = {}
    for loss in forecast.destroys:
        losses.setdefault(loss.channel, []).append(loss)
    for name, outcome in outcomes.items():
        shown = forecast.channels.get(name) if works else None
        found = shown.lookups.readable & outcome.intact if shown else Ranges()
        own = losses.get(name, [])
        destroyed = Ranges.union(loss.sequences for loss in own)
        channels[name] = replace(outcome, readable=found, lost=destroyed & outcome.intact)
        if not works:
            continue
        hidden = Ranges()
        if shown and shown.limited:
            hidden = outcome.intact & Ranges.of([(0, shown.first_seq - 1)])
            if hidden:
                limited[name] = hidden
        flaws += _flaws(outcome, shown, hidden, anew=any(loss.how is Harm.ANEW for loss in own))
    return StartVerdict(forecast, channels, tuple(flaws), limited)


def _flaws(
    outcome: ChannelOutcome, shown: ChannelForecast | None, hidden: Ranges, *, anew: bool
) -> Iterator[StartFlaw]:
    name = outcome.name
    if shown is None:
        if outcome.intact and not anew:
            yield StartFlaw(StartFlawKind.UNREACHABLE, name, outcome.intact)
        return
    wanted = outcome.intact - hidden
    yield from _end_flaws(outcome, shown, anew=anew)
    if shown.stalls_at is not None and shown.stall_error.startswith("panic"):
        failing = shown.lookups.failing or Ranges.of([(shown.stalls_at, shown.stalls_at)])
        yield StartFlaw(StartFlawKind.CRASH, name, failing)
        return
    if outcome.older:
        older = ", then ".join(describe_ranges(each, 4) for each in outcome.older)
        yield StartFlaw(StartFlawKind.UNREACHABLE, name, outcome.older[0], f"{older} of an older generation")
    inside = Ranges.of([(shown.first_seq, shown.last_seq)]) if shown.first_seq else Ranges()
    outside = wanted - inside
    if outside and not anew:
        yield StartFlaw(StartFlawKind.UNREACHABLE, name, outside)
    delivered = Ranges.of(shown.delivered)
    twice = _repeated(shown.delivered)
    if shown.stalls_at is not None:
        rest = wanted & inside & Ranges.of([(shown.stalls_at, shown.last_seq)])
        not_delivered = f"{describe_sequences(rest, 4)} not delivered" if rest else "nothing after it is delivered"
        yield StartFlaw(
            StartFlawKind.STALL, name, Ranges.of([(shown.stalls_at, shown.stalls_at)]) | rest, not_delivered
        )
        inside = inside & Ranges.of([(0, max(shown.stalls_at - 1, 0))])
    wrong = Ranges.of((each, each) for each in shown.lookups.wrong)
    if skipped := (wanted & inside) - delivered - wrong:
        yield StartFlaw(StartFlawKind.SKIPPED, name, skipped)
    if wrong:
        yield StartFlaw(StartFlawKind.WRONG, name, wrong)
    if twice:
        yield StartFlaw(StartFlawKind.REPEATED, name, twice)
    if shown.alone is not None:
        unread = (wanted & shown.lookups.readable) - shown.alone.readable
        if unread or shown.alone.wrong:
            unread = unread | Ranges.of((each, each) for each in shown.alone.wrong)
            yield StartFlaw(StartFlawKind.ALONE, name, unread)
    if shown.overlaid:
        yield StartFlaw(StartFlawKind.OVERLAID, name, shown.overlaid)
    if shown.endless:
        yield StartFlaw(StartFlawKind.ENDLESS, name, Ranges(), shown.endless)
    if shown.misplaces:
        yield StartFlaw(StartFlawKind.MISPLACED, name, Ranges(), f"from sequence {shown.last_seq + 1} on")


def _end_flaws(outcome: ChannelOutcome, shown: ChannelForecast, *, anew: bool) -> Iterator[StartFlaw]:
    """Iterates over the effects of the channel's end, as the server shows it, on new messages."""
    name, last = outcome.name, shown.last_seq
    again = outcome.known - Ranges.of([(0, last)])
    if again and not anew:
        yield StartFlaw(StartFlawKind.REUSED, name, again)
    if ahead := shown.subscriptions.beyond(last):
        furthest = ahead.furthest
        names = some_of([escape(each.name or f"subscription {each.state.id}") for each in ahead[: _NAMED + 1]], _NAMED)
        if len(ahead) > _NAMED:
            names = f"{counted(len(ahead), 'subscription')}, {names.partition(' and ')[0]} among them"
        text = f"{describe_ranges([(last + 1, furthest)])} to {names}"
        yield StartFlaw(StartFlawKind.AHEAD, name, Ranges.of([(last + 1, furthest)]), text)
    for each in outcome.unknown:
        if each.last is None and each.suspected:
            text = f"{each.sequences}, if there were more ({escape(each.reason)})"
            yield StartFlaw(StartFlawKind.UNKNOWN, name, Ranges(), text)
        elif each.last is None:
            yield StartFlaw(StartFlawKind.UNPROVEN, name, Ranges(), each.sentence(name))


def _repeated(delivered: Iterable[tuple[int, int]]) -> Ranges:
    """Returns the sequences that occur in more than one run of a delivery."""
    again, end = [], -1
    for first, last in sorted(delivered):
        if first <= end:
            again.append((first, min(last, end)))
        end = max(end, last)
    return Ranges.of(again)
