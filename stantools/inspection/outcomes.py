"""The state of a channel's messages, counted in one place for doctor, forecast, verify, salvage, report and browser.

intact         whole messages, wherever they lie in the store; salvage keeps them
  readable       messages that a server, started now, would find at their sequences
  recoverable    the others
archived       messages in archived slices only (`msgs.N.dat.bak`)
missing        before any step: damaged beyond proof, or gone
unknown        content of a slice that shows nothing any more
lost           intact, and destroyed or left out by the planned step

Each is a set of sequences; totals are derived. The record of a message names its channel, in whatever directory it
lies. If the sequences of a channel began again (`inspection.runs`), the sets refer to its newest generation;
messages of older ones count as intact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stantools.escaping import escape
from stantools.format.layout import ScanStop
from stantools.inspection.file_findings import missing_slices
from stantools.inspection.runs import ChannelHistory
from stantools.inspection.survey import ChannelSurvey, NeighbourSequences, SliceSurvey
from stantools.notation import counted, describe_ranges
from stantools.store.limits import is_channel_name
from stantools.store.ranges import Ranges
from stantools.store.resync import DamageKind
from stantools.store.sublog import SubsState

#: Channels and ranges that a sentence names.
_NAMED = 3
_RANGES = 4


@dataclass(frozen=True)
class UnknownRange:
    """Sequences that may or may not have had messages."""

    first: int
    last: int | None  #: the last one; None if the end of the channel is unknown
    reason: str  #: reason, with names as they are
    suspected: bool  #: there was something; otherwise it is only not proven that there was nothing

    @property
    def sequences(self) -> str:
        """The sequences in words."""
        if self.last is None:
            return f"from sequence {self.first} on"
        return f"sequence {self.first}" if self.first == self.last else f"sequences {self.first}-{self.last}"

    def sentence(self, channel: str) -> str:
        """Describes it for a channel; names in it are safe to show."""
        if self.suspected:
            where = self.sequences if self.last is None else f"in {self.sequences}"
            return f"the content of {escape(channel)} {where} is unknown ({escape(self.reason)})"
        return f"nothing proves that {escape(channel)} ended at {self.first - 1} ({escape(self.reason)})"

    def as_json(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last, "reason": self.reason, "suspected": self.suspected}


@dataclass(frozen=True)
class ChannelOutcome:
    """The messages of one channel."""

    name: str
    intact: Ranges = field(default_factory=Ranges)  #: whole messages
    older: tuple[Ranges, ...] = ()  #: whole messages of older generations, oldest first
    archived: Ranges = field(default_factory=Ranges)  #: messages in archived slices only
    missing: Ranges = field(default_factory=Ranges)  #: messages that are damaged beyond proof, or gone
    #: Missing sequences without a trace of a message: whole records leave them out.
    gaps: Ranges = field(default_factory=Ranges)
    unknown: tuple[UnknownRange, ...] = ()  #: sequences with unknown content
    #: Intact messages that a server would find; None without a forecast.
    readable: Ranges | None = None
    sent: int = 0  #: highest sequence that was sent to a subscription
    lost: Ranges = field(default_factory=Ranges)  #: intact messages that the planned step destroys or leaves out

    @property
    def known(self) -> Ranges:
        """Every sequence that has or had a message."""
        return Ranges.union((self.intact, self.archived, self.missing, *self.older))

    @property
    def count(self) -> int:
        """Number of whole messages."""
        return self.intact.count() + sum(each.count() for each in self.older)

    @property
    def recoverable(self) -> Ranges:
        """Intact messages that a server would not find; none without a forecast."""
        return Ranges() if self.readable is None else self.intact - self.readable

    @property
    def suspected(self) -> bool:
        """Messages may be gone that no count includes."""
        return any(each.suspected for each in self.unknown)

    @property
    def rank(self) -> tuple[int, ...]:
        """Its place in a list that begins with the most missing messages."""
        return -self.missing.count(), -self.suspected, -self.recoverable.count(), -self.archived.count()

    def with_directory(self, more: Ranges, other: ChannelOutcome | None = None) -> ChannelOutcome:
        """Returns the outcome together with messages of the channel in another directory.

        `other` is the outcome of that directory if it is this channel's, renamed or copied.
        """
        intact = self.intact | more
        gone = Ranges.union((self.missing, intact.holes(), other.missing if other else Ranges()))
        known = Ranges.union((intact, self.archived, gone, *self.older))
        sent = max(self.sent, other.sent if other else 0)
        if known and sent > known.last:
            gone = gone | Ranges.of([(known.last + 1, sent)])
        missing = gone - intact - self.archived
        return replace(self, intact=intact, missing=missing, gaps=self.gaps - intact, sent=sent)

    def as_json(self) -> dict[str, Any]:
        sets: dict[str, Any] = {
            "intact": self.intact.as_json(),
            "older_generations": [each.as_json() for each in self.older],
            "archived": self.archived.as_json(),
            "missing": self.missing.as_json(),
            "gaps": self.gaps.as_json(),
            "unknown": [each.as_json() for each in self.unknown],
            "lost": self.lost.as_json(),
        }
        if self.readable is not None:
            sets |= {"readable": self.readable.as_json(), "recoverable": self.recoverable.as_json()}
        return sets


@dataclass(frozen=True)
class OutcomeTotals:
    """Numbers of messages, for several channels together."""

    intact: int = 0
    readable: int | None = None  #: None without a forecast
    archived: int = 0
    missing: int = 0
    lost: int = 0
    unknown: int = 0  #: channels with unknown sequences

    @property
    def recoverable(self) -> int:
        """Intact messages that a server would not find; 0 without a forecast."""
        return 0 if self.readable is None else self.intact - self.readable

    @property
    def whole(self) -> int:
        """All messages that are known to have existed."""
        return self.intact + self.archived + self.missing

    @classmethod
    def of(cls, outcomes: Iterable[ChannelOutcome]) -> OutcomeTotals:
        all_ = list(outcomes)
        forecast = all_ and all(each.readable is not None for each in all_)
        return cls(
            sum(each.count for each in all_),
            sum(each.readable.count() for each in all_ if each.readable is not None) if forecast else None,
            sum(each.archived.count() for each in all_),
            sum(each.missing.count() for each in all_),
            sum(each.lost.count() for each in all_),
            sum(bool(each.unknown) for each in all_),
        )

    def sentence(self, step: str = "this step") -> str:
        """Describes the numbers in one line; `step` is the step that loses messages."""
        parts = [counted(self.intact, "message") + " intact"]
        if self.readable is not None:
            parts[0] += f" ({self.readable} readable now, {self.recoverable} recoverable)"
        parts += [f"{self.archived} archived"] if self.archived else []
        parts.append(f"{self.missing} missing before")
        parts += [f"{self.lost} lost by {step}"] if self.lost else []
        parts += [f"in {counted(self.unknown, 'channel')} the rest is unknown"] if self.unknown else []
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "intact": self.intact,
            "readable": self.readable,
            "recoverable": None if self.readable is None else self.recoverable,
            "archived": self.archived,
            "missing": self.missing,
            "lost": self.lost,
            "unknown_channels": self.unknown,
        }


def name_ranges(sets: Mapping[str, Ranges]) -> str:
    """Names the first channels with their sequences; names in it are safe to show."""
    named = [f"{escape(name)} {describe_ranges(ranges, _RANGES)}" for name, ranges in sets.items() if ranges]
    more = len(named) - _NAMED
    return "; ".join(named[:_NAMED]) + (f" and {counted(more, 'more channel')}" if more > 0 else "")


def missing_sentence(outcomes: Mapping[str, ChannelOutcome]) -> str:
    """Describes how many messages are missing, and which; names in it are safe to show."""
    totals = OutcomeTotals.of(outcomes.values())
    if totals.missing:
        verb = "is" if totals.missing == 1 else "are"
        which = name_ranges({name: each.missing for name, each in outcomes.items()})
        text = f"{totals.missing} of {counted(totals.whole, 'message')} {verb} missing ({which})"
    elif totals.whole:
        known = "known to be " if any(each.suspected for each in outcomes.values()) else ""
        text = f"no message of {totals.whole} is {known}missing"
    else:
        text = "there are no messages in it"
    if totals.archived:
        text += (
            f", {totals.archived} of all are archived" if totals.missing else f", {totals.archived} of them archived"
        )
    ends = [(name, each) for name, outcome in outcomes.items() for each in outcome.unknown]
    ends.sort(key=lambda end: not end[1].suspected)
    if ends:
        (name, end), more = ends[0], len(ends) - 1
        text += f"; {end.sentence(name)}" + (f" (and in {counted(more, 'more place')})" if more else "")
    return text


def channel_outcome(
    survey: ChannelSurvey, history: ChannelHistory, subs: SubsState | None = None, archived: Ranges | None = None
) -> ChannelOutcome:
    """Determines the state of a channel's messages, as far as one directory shows it.

    `history` has the records of the survey in order. Delivered sequences in `subs` prove messages. `archived` are
    sequences in archived slices, unless the survey includes them.
    """
    generations = history.generations
    newest = generations[-1].sequences if generations else Ranges()
    older = tuple(each.sequences for each in generations[:-1])
    raw = survey.files.raw_name
    own = [
        run.sequences
        for run in survey.runs()
        if run.subject != raw and not is_channel_name(run.subject.decode("utf-8", "surrogateescape"))
    ]
    intact = Ranges.union((newest, survey.in_strays - Ranges.union(older), survey.repairable, *own))
    # Sequences named by indexes or shown by damaged ranges belong to no certain generation.
    gone = (survey.damaged | survey.missing) if not older else (survey.damaged | newest.holes())
    archived = (archived or Ranges()) - intact
    missing = gone - intact - archived
    last = Ranges.union((intact, missing, archived, *older)).last
    unknown = tuple(_unknown(survey, last))
    sent = max(subs.subscriptions.last_sent, default=0) if subs else 0
    if sent > last:
        if last:
            missing = missing | Ranges.of([(last + 1, sent)])
            unknown = tuple(each for each in unknown if each.last is not None)
        else:
            reason = f"subscriptions stand at sequence {sent}, and there is no message"
            unknown = (UnknownRange(1, None, reason, suspected=True),)
    shown = Ranges.union(
        (
            survey.damaged,
            survey.named,
            Ranges.of((each.first, each.last) for each in missing_slices(survey)),
        )
    )
    gaps = (missing & intact.holes()) - shown
    return ChannelOutcome(survey.files.name, intact, older, archived, missing, gaps, unknown, sent=sent)


def _unknown(survey: ChannelSurvey, last: int) -> Iterator[UnknownRange]:
    """Iterates over the sequences at the ends of a channel whose content is unknown.

    Between two messages nothing is unknown, because sequences have no gaps. At the ends, a whole index shows the
    messages, or the data file itself, if its index agrees.
    """
    slices = [each for each in survey.slices if not each.files.archived]
    filled = [place for place, each in enumerate(slices) if each.runs]
    first, final = (filled[0], filled[-1]) if filled else (0, 0)
    begin = slices[first].runs[0].first if filled else 0
    for each in slices[: first + bool(filled)]:
        if begin > 1 and not _is_complete(each) and (not each.runs or any(not n.before for n in _unexplained(each))):
            yield UnknownRange(1, begin - 1, _reason(each), suspected=True)
            break
    for each in slices[final:]:
        suspected = not each.runs or any(not n.after for n in _unexplained(each))
        if not _is_complete(each) or (suspected and each.index.orphan_count):
            yield UnknownRange(last + 1, None, _reason(each), suspected)
            break


def _unexplained(survey: SliceSurvey) -> list[NeighbourSequences]:
    """Returns the damaged ranges that may have held a message of unknown sequence."""
    return [each for each in survey.damages if each.damage.kind is not DamageKind.ZEROS and each.sequence is None]


def _is_complete(survey: SliceSurvey) -> bool:
    """Returns whether a slice shows everything that was written to it: its index is whole."""
    index = survey.index
    return not survey.error and index.usable and index.stop is ScanStop.END


def _reason(survey: SliceSurvey) -> str:
    name = survey.files.name
    if survey.error:
        return f"{name} cannot be read"
    what = "is damaged" if survey.damages and survey.runs else "ends there" if survey.runs else "holds no message"
    index = survey.index
    if not index.present:
        return f"{name} {what}, and has no index"
    if not index.usable:
        return f"{name} {what}, and its index names none"
    return (
        f"{name} {what}, and its index {'is damaged' if index.stop is not ScanStop.END else 'does not name the rest'}"
    )


def store_outcomes(
    directories: Iterable[tuple[ChannelOutcome, Mapping[str, Ranges]]], in_root: Mapping[str, Ranges]
) -> dict[str, ChannelOutcome]:
    """Combines the directories of a store into the state of each channel.

    A directory all of whose messages name one other channel is that channel's, renamed or copied; its missing
    messages are missing there. Each directory comes with the messages of other channels in it; `in_root` has the
    messages in files of the root, by channel.
    """
    outcomes: dict[str, ChannelOutcome] = {}
    elsewhere: list[tuple[Mapping[str, Ranges], ChannelOutcome | None]] = [(in_root, None)]
    for outcome, foreign in directories:
        renamed = is_renamed(outcome, foreign)
        if not renamed:
            outcomes[outcome.name] = outcome
        elsewhere.append((foreign, outcome if renamed else None))
    for found, other in elsewhere:
        for name, sequences in found.items():
            outcomes[name] = (outcomes.get(name) or ChannelOutcome(name)).with_directory(sequences, other)
    return dict(sorted(outcomes.items()))


def is_renamed(outcome: ChannelOutcome, foreign: Mapping[str, Ranges]) -> bool:
    """Returns whether a directory holds messages of one other channel, and none of the channel of its name."""
    return not (outcome.intact or outcome.archived) and len(foreign) == 1
