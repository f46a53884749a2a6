"""Findings as rows, grouped and filtered. They are added in small portions, so that no key press is delayed."""

from __future__ import annotations

import enum
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Any

from stantools.inspection.findings import RANKS, Finding, Severity, StreamFinding
from stantools.inspection.records import FileKind, kind_of
from tui.cells import SYMBOLS, Cell, counted, name_text
from tui.rows import RowSource, TableColumn
from tui.session import ChannelFacts, SourceSession

_SEVERITIES = tuple(RANKS)
#: Findings added between two looks at the clock.
_STEP = 200


class Grouping(enum.StrEnum):
    CHANNEL = "channel"
    CODE = "code"
    SEVERITY = "severity"


@dataclass(eq=False)
class FindingGroup:
    name: str  #: the channel, code or severity; "" for findings without a channel
    #: Numbers of its findings, by severity, each list in ascending order.
    members: tuple[list[int], list[int], list[int]] = field(default_factory=lambda: ([], [], []))
    open: bool = True
    size: int = 0  #: number of findings
    worst: int = 3  #: rank of the worst severity; 0 is an error

    def add(self, number: int, rank: int) -> None:
        self.members[rank].append(number)
        self.size += 1
        self.worst = min(self.worst, rank)

    def number(self, at: int) -> int:
        """Returns the number of the finding at a position of the group: errors first."""
        for each in self.members:
            if at < len(each):
                return each[at]
            at -= len(each)
        raise IndexError(at)

    def counts(self) -> str:
        words = (("error", "errors"), ("warning", "warnings"), ("note", "notes"))
        return ", ".join(counted(len(each), *what) for each, what in zip(self.members, words, strict=True) if each)


def place_words(finding: Finding, *, channel: bool) -> str:
    """Returns the place of a finding, escaped: file and offset, sequence or subscription, and its channel if wanted."""
    file = finding.file
    if isinstance(finding, StreamFinding):
        file = file.partition(f"/{finding.stream}/")[2] or file
    elif not channel and finding.channel is not None:
        file = file.removeprefix(finding.channel).lstrip("/")
    words = [name_text(file)] if file else []
    if finding.offset is not None:
        words.append(f"at {finding.offset}")
    elif isinstance(finding, StreamFinding) and finding.consumer is not None:
        words.append(f"consumer {name_text(finding.consumer)}")
    elif finding.seq is not None:
        words.append(f"{'subscription' if of_subscription(finding) else 'seq'} {finding.seq}")
    return " ".join(words)


def of_subscription(finding: Finding) -> bool:
    """Whether the finding's number is the id of a subscription instead of a sequence."""
    if isinstance(finding, StreamFinding):
        return finding.consumer is not None
    return kind_of(PurePosixPath(finding.file).name) is FileKind.SUBS


class FindingRows(RowSource[FindingGroup | int]):
    def __init__(self, session: SourceSession) -> None:
        self._session = session
        self.grouping = Grouping.CHANNEL
        self.filter = ""  #: text that must occur in them
        self.errors_only = False
        self.wide = False
        self.findings: list[Finding] = []  #: all findings added, in the order of the session
        self.readings = 0  #: number of times the store was opened; numbers of findings are valid for one of them
        self._words: list[str] = []
        self._store: object = None
        self._root: object = None
        self.waiting: list[ChannelFacts] = []  #: channels with findings still to add
        self._pending_lists: deque[list[Finding]] = deque()
        self._begun = 0
        self._next = 0
        self._groups: dict[str, FindingGroup] = {}
        self.groups: list[FindingGroup] = []
        self._sorted = True
        self._starts: list[int] = []
        self._closed = False
        self._toggled: set[str] = set()
        self._count = 0

    def arrange(self) -> None:
        """Chooses the columns; those repeated in the group headings are left out."""
        code: TableColumn[Any] = TableColumn("code", 22, lambda at: self.findings[at].code)
        self.columns: Sequence[TableColumn[Any]] = (
            TableColumn("", 3, self._symbol),
            *(() if self.grouping is Grouping.CODE else (code,)),
            TableColumn("where", 30 if self.wide else 24, self._place),
            TableColumn("what", 24, lambda at: self.findings[at].detail, grows=True),
        )

    def _symbol(self, at: Any) -> Cell:
        symbol, role = SYMBOLS[self.findings[at].severity.value]
        return f"  {symbol}", role

    def _place(self, at: Any) -> Cell:
        return place_words(self.findings[at], channel=self.grouping is not Grouping.CHANNEL), "strong"

    def __len__(self) -> int:
        return self._count

    @property
    def shown(self) -> int:
        return sum(group.size for group in self.groups)

    @property
    def behind(self) -> bool:
        """Whether `take` has findings left to add."""
        return bool(self._pending_lists) or self._next < len(self.findings)

    def take(self, seconds: float = 0.015) -> bool:
        """Adds new findings for about `seconds`; returns whether there were any."""
        self._look()
        if not self.behind:
            return False
        until = time.monotonic() + seconds
        while self.behind:
            if self._pending_lists:
                self._add_findings()
            for number in range(self._next, min(self._next + _STEP, len(self.findings))):
                self._sort_in(number)
                self._next = number + 1
            if time.monotonic() >= until:
                break
        self._count_rows()
        return True

    def _look(self) -> None:
        session = self._session
        if session.opened is not self._store:
            self._store, self._root = session.opened, None
            self.readings += 1
            self.waiting = list(session.channels.values())
            self.findings, self._words, self._pending_lists, self._begun = [], [], deque(), 0
            self.regroup()
        if session.root_findings is not self._root:
            self._root = session.root_findings
            self._pending_lists.append(session.root_findings)
        done = [facts for facts in self.waiting if facts.verdict is not None]
        if done:
            self._pending_lists += [facts.findings for facts in done if facts.findings]
            self.waiting = [facts for facts in self.waiting if facts.verdict is None]

    def _add_findings(self) -> None:
        found = self._pending_lists[0][self._begun : self._begun + _STEP]
        self.findings += found
        self._words += ["\n".join((each.channel or "", each.code, each.file, each.detail)).casefold() for each in found]
        self._begun += len(found)
        if self._begun >= len(self._pending_lists[0]):
            self._pending_lists.popleft()
            self._begun = 0

    def _name(self, finding: Finding) -> str:
        if self.grouping is Grouping.CHANNEL:
            return finding.channel or ""
        return finding.code if self.grouping is Grouping.CODE else finding.severity.value

    def _sort_in(self, number: int) -> None:
        finding = self.findings[number]
        if self.errors_only and finding.severity is not Severity.ERROR:
            return
        if self.filter and self.filter not in self._words[number]:
            return
        name = self._name(finding)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = FindingGroup(name, open=self._closed == (name in self._toggled))
            self.groups.append(group)
        rank = RANKS[finding.severity]
        self._sorted &= group.size > 0 and rank >= group.worst
        group.add(number, rank)

    def _count_rows(self) -> None:
        if not self._sorted:
            self.groups.sort(key=attrgetter("worst", "name"))
            self._sorted = True
        ends = list(accumulate(1 + group.size if group.open else 1 for group in self.groups))
        self._starts = [0, *ends[:-1]] if ends else []
        self._count = ends[-1] if ends else 0

    def regroup(self) -> None:
        """Starts again with the present grouping and filter; `take` adds the findings."""
        self.filter = self.filter.casefold()
        self._groups, self.groups, self._next = {}, [], 0
        self.arrange()
        self._count_rows()

    def forget_folding(self) -> None:
        """Opens all groups made from now on."""
        self._closed, self._toggled = False, set()

    def toggle(self, group: FindingGroup) -> None:
        group.open = not group.open
        self._toggled ^= {group.name}
        self._count_rows()

    def toggle_all(self) -> None:
        self._closed, self._toggled = not self._closed, set()
        for group in self.groups:
            group.open = not self._closed
        self._count_rows()

    def at(self, row: int) -> FindingGroup | int | None:
        """Returns the group or the number of the finding in a row."""
        if not 0 <= row < self._count:
            return None
        place = bisect_right(self._starts, row) - 1
        group, inside = self.groups[place], row - self._starts[place]
        return group.number(inside - 1) if inside else group

    def group_of(self, row: int) -> FindingGroup | None:
        return self.groups[bisect_right(self._starts, row) - 1] if 0 <= row < self._count else None

    def row_of(self, entry: FindingGroup | int) -> int | None:
        """Returns the row of a group or finding; the row of the group if it is closed; None if it is filtered out."""
        if isinstance(entry, FindingGroup):
            group, inside = self._groups.get(entry.name), 0
        else:
            finding = self.findings[entry]
            group, inside = self._groups.get(self._name(finding)), 1
            if group is not None:
                rank = RANKS[finding.severity]
                at = bisect_left(group.members[rank], entry)
                if at == len(group.members[rank]) or group.members[rank][at] != entry:
                    return None
                inside += sum(map(len, group.members[:rank])) + at
        if group is None:
            return None
        return self._starts[self.groups.index(group)] + (inside if group.open else 0)

    def next_group(self, row: int, step: int) -> int:
        """Returns the row of the next (1) or previous (-1) group."""
        if not self._starts:
            return 0
        if step > 0:
            place = min(bisect_right(self._starts, row), len(self._starts) - 1)
        else:
            place = max(bisect_left(self._starts, row) - 1, 0)
        return self._starts[place]

    def things(self, start: int, stop: int) -> Sequence[FindingGroup | int]:
        found = (self.at(row) for row in range(start, min(stop, self._count)))
        return [each for each in found if each is not None]

    def heading(self, thing: FindingGroup | int) -> Cell | None:
        if not isinstance(thing, FindingGroup):
            return None
        symbol, role = SYMBOLS[_SEVERITIES[min(thing.worst, 2)].value]
        return f"{'▾' if thing.open else '▸'} {symbol} {self.title(thing)}: {thing.counts()}", role

    def title(self, group: FindingGroup) -> str:
        if self.grouping is Grouping.CHANNEL:
            return name_text(group.name) if group.name else "the store as a whole"
        return group.name
