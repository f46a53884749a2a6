"""What became of a channel's messages: counted here, once, for doctor, forecast, verify, salvage, report and browser.

    intact         whole messages, wherever they lie in the store; what a salvage keeps
      readable       those that a server, started now, would find at their sequences
      recoverable    the others
    archived       those that only archived slices hold (`msgs.N.dat.bak`)
    missing        before anything is done: damaged beyond proof, or gone
    unknown        what a slice held that shows nothing any more
    lost           intact, and destroyed or left out by the step that is planned

Each is a set of sequences; totals are derived. A message is the channel's that its record names, in whatever directory
it lies. Of a channel whose sequences began again (`inspection.runs`), the sets are about its newest generation;
messages of older ones count as intact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stantools.escaping import escape
from stantools.format.layout import Stop
from stantools.inspection.file_findings import missing_slices
from stantools.inspection.runs import History, RecordRun
from stantools.inspection.survey import ChannelSurvey, Neighbours, SliceSurvey
from stantools.notation import counted, describe_ranges
from stantools.store.limits import is_channel_name
from stantools.store.ranges import Ranges
from stantools.store.resync import DamageKind
from stantools.store.sublog import SubsState

#: Channels and ranges that a sentence names.
_NAMED = 3
_RANGES = 4


@dataclass(frozen=True)
class Unknown:
    """Sequences of which nothing shows whether there were messages."""

    first: int  #: the first of them
    last: int | None  #: the last; None: nobody knows how far the channel went
    reason: str  #: why nothing shows it, names as they are
    suspected: bool  #: something was there; else it is only not proven that nothing was

    @property
    def sequences(self) -> str:
        """The sequences in words."""
        if self.last is None:
            return f"from sequence {self.first} on"
        return f"sequence {self.first}" if self.first == self.last else f"sequences {self.first}-{self.last}"

    def sentence(self, channel: str) -> str:
        """Says it of a channel; names in it are safe to show."""
        if self.suspected:
            return f"what {escape(channel)} held {self._where} is unknown ({escape(self.reason)})"
        return f"nothing proves that {escape(channel)} ended at {self.first - 1} ({escape(self.reason)})"

    @property
    def _where(self) -> str:
        return self.sequences if self.last is None else f"in {self.sequences}"

    def as_json(self) -> dict[str, Any]:
        """Returns it for json output."""
        return {"first": self.first, "last": self.last, "reason": self.reason, "suspected": self.suspected}


@dataclass(frozen=True)
class ChannelOutcome:
    """What became of the messages of one channel."""

    name: str  #: the channel
    intact: Ranges = field(default_factory=Ranges)  #: whole messages
    older: tuple[Ranges, ...] = ()  #: whole messages of older generations, oldest first
    archived: Ranges = field(default_factory=Ranges)  #: messages that only archived slices hold
    missing: Ranges = field(default_factory=Ranges)  #: messages that are damaged beyond proof, or gone
    #: Of the missing ones those that nothing shows ever to have been there: sequences that whole records leave out.
    gaps: Ranges = field(default_factory=Ranges)
    unknown: tuple[Unknown, ...] = ()  #: where nothing shows what there was
    #: Of the intact ones those that a server would find; None where no start is forecast.
    readable: Ranges | None = None
    sent: int = 0  #: the highest sequence that was sent to a subscription
    lost: Ranges = field(default_factory=Ranges)  #: intact ones that the planned step destroys or leaves out

    @property
    def known(self) -> Ranges:
        """Every sequence that is or was there."""
        return Ranges.union((self.intact, self.archived, self.missing, *self.older))

    @property
    def count(self) -> int:
        """How many whole messages there are."""
        return self.intact.count() + sum(each.count() for each in self.older)

    @property
    def recoverable(self) -> Ranges:
        """Intact messages that a server would not find; none where no start is forecast."""
        return Ranges() if self.readable is None else self.intact - self.readable

    @property
    def suspected(self) -> bool:
        """Something may be gone that nothing counts."""
        return any(each.suspected for each in self.unknown)

    def with_directory(self, more: Ranges, other: ChannelOutcome | None = None) -> ChannelOutcome:
        """Returns the outcome with what another directory shows of the channel.

        Args:
            more: Messages of the channel in there.
            other: What became of that directory, if it is the channel's, renamed or copied.
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
        """Returns the sets for json output."""
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
class Totals:
    """The same in numbers, of some channels together."""

    intact: int = 0
    readable: int | None = None  #: None where no start is forecast
    archived: int = 0
    missing: int = 0
    lost: int = 0
    unknown: int = 0  #: channels in which something is unknown

    @property
    def recoverable(self) -> int:
        """Intact messages that a server would not find; 0 where no start is forecast."""
        return 0 if self.readable is None else self.intact - self.readable

    @property
    def whole(self) -> int:
        """All messages that are known to have been there."""
        return self.intact + self.archived + self.missing

    @classmethod
    def of(cls, outcomes: Iterable[ChannelOutcome]) -> Totals:
        """Counts the messages of some channels."""
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
        """Says the numbers in one line; `step` is what loses messages."""
        parts = [counted(self.intact, "message") + " intact"]
        if self.readable is not None:
            parts[0] += f" ({self.readable} readable now, {self.recoverable} recoverable)"
        parts += [f"{self.archived} archived"] if self.archived else []
        parts.append(f"{self.missing} missing before")
        parts += [f"{self.lost} lost by {step}"] if self.lost else []
        parts += [f"in {counted(self.unknown, 'channel')} the rest is unknown"] if self.unknown else []
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers for json output."""
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
    """Names channels with their sequences in a sentence, the first ones only; names in it are safe to show."""
    named = [f"{escape(name)} {describe_ranges(ranges, _RANGES)}" for name, ranges in sets.items() if ranges]
    more = len(named) - _NAMED
    return "; ".join(named[:_NAMED]) + (f" and {counted(more, 'more channel')}" if more > 0 else "")


def missing_sentence(outcomes: Mapping[str, ChannelOutcome]) -> str:
    """Says how many messages are missing, and which; names in it are safe to show."""
    totals = Totals.of(outcomes.values())
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
        text += f"; {end.sentence(name)}" + (f" (and so in {counted(more, 'more place')})" if more else "")
    return text


def channel_outcome(
    survey: ChannelSurvey, history: History, subs: SubsState | None = None, archived: Ranges | None = None
) -> ChannelOutcome:
    """Determines what became of the channel of one directory, as far as that directory shows it.

    Args:
        survey: What is in its slices.
        history: Its records in order.
        subs: The fold of its subs.dat: what was delivered was there.
        archived: Sequences in archived slices, where these are not in the survey.
    """
    generations = history.generations
    newest = generations[-1].sequences if generations else Ranges()
    older = tuple(each.sequences for each in generations[:-1])
    raw = survey.files.raw_name
    own = [run.sequences for run in survey.runs() if run.subject != raw and not _is_channel(run)]
    intact = Ranges.union((newest, survey.in_strays - Ranges.union(older), survey.repairable, *own))
    # What the indexes name and the damaged ranges show belongs to no certain generation.
    gone = (survey.damaged | survey.missing) if not older else (survey.damaged | newest.holes())
    archived = (archived or Ranges()) - intact
    missing = gone - intact - archived
    last = Ranges.union((intact, missing, archived, *older)).last
    unknown = tuple(_unknown(survey, last))
    sent = _last_sent(subs)
    if sent > last:
        if last:
            missing = missing | Ranges.of([(last + 1, sent)])
            unknown = tuple(each for each in unknown if each.last is not None)
        else:
            reason = f"subscriptions stand at sequence {sent}, and there is no message"
            unknown = (Unknown(1, None, reason, suspected=True),)
    shown = Ranges.union(
        (
            survey.damaged,
            survey.named,
            Ranges.of((each.first, each.last) for each in missing_slices(survey)),
        )
    )
    gaps = (missing & intact.holes()) - shown
    return ChannelOutcome(survey.files.name, intact, older, archived, missing, gaps, unknown, sent=sent)


def _is_channel(run: RecordRun) -> bool:
    return is_channel_name(run.subject.decode("utf-8", "surrogateescape"))


def _last_sent(subs: SubsState | None) -> int:
    return max(subs.subscriptions.last_sent, default=0) if subs else 0


def _unknown(survey: ChannelSurvey, last: int) -> Iterator[Unknown]:
    """Iterates over what the ends of a channel do not show.

    Between two messages nothing is unknown, because sequences have no gaps. At the ends, an index that is whole shows
    what there was, or the data file itself, where its index agrees.
    """
    slices = [each for each in survey.slices if not each.files.archived]
    filled = [place for place, each in enumerate(slices) if each.runs]
    first, final = (filled[0], filled[-1]) if filled else (0, 0)
    begin = slices[first].runs[0].first if filled else 0
    for each in slices[: first + bool(filled)]:
        if begin > 1 and not _shows(each) and (not each.runs or any(not n.before for n in _unexplained(each))):
            yield Unknown(1, begin - 1, _reason(each), suspected=True)
            break
    for each in slices[final:]:
        suspected = not each.runs or any(not n.after for n in _unexplained(each))
        if not _shows(each) or (suspected and each.index.orphan_count):
            yield Unknown(last + 1, None, _reason(each), suspected)
            break


def _unexplained(survey: SliceSurvey) -> list[Neighbours]:
    """Returns the damaged ranges that may have held a message of which the bytes do not tell the sequence."""
    return [each for each in survey.damages if each.damage.kind is not DamageKind.ZEROS and each.sequence is None]


def _shows(survey: SliceSurvey) -> bool:
    """Returns whether a slice shows everything that was written to it: its index is whole."""
    index = survey.index
    return not survey.error and index.usable and index.stop is Stop.END


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
    return f"{name} {what}, and its index {'is damaged' if index.stop is not Stop.END else 'does not name the rest'}"


def store_outcomes(
    directories: Iterable[tuple[ChannelOutcome, Mapping[str, Ranges]]], in_root: Mapping[str, Ranges]
) -> dict[str, ChannelOutcome]:
    """Puts together what became of each channel of a store.

    A directory all of whose messages name one other channel is that channel's, renamed or copied; what is missing in it
    is missing there.

    Args:
        directories: Each channel, as far as its own directory shows it, and messages of other channels in there.
        in_root: Messages in files of the root, by the channel they name.
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
